"""`dump`: the cases of a suite chosen, run where they are to run, counted and packed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accuracy_eval import store
from accuracy_eval.backends.base import Backend
from accuracy_eval.backends.certificates import certifiable
from accuracy_eval.dump.choosing import check_names, chosen, expected_names, registered_facts, share
from accuracy_eval.dump.resuming import again_text, kept_said, only_writer, outdated, require_all, taken_over
from accuracy_eval.dump.running import Here, Job, Settings, unfinished
from accuracy_eval.dump.summary import DumpSummary
from accuracy_eval.dump.workers import Crew
from accuracy_eval.errors import UsageError, counted
from accuracy_eval.json_data import to_json
from accuracy_eval.suite import Suite

Progress = Callable[[int, int, str], None]


def dump(
    suite: Suite,
    backend: Backend | Here | Crew,
    out: str | Path,
    *,
    candidates: Sequence[str] = (),
    states: Sequence[str] = (),
    repeats: int = 2,
    kernels: bool = False,
    certify: bool = False,
    resume: bool = False,
    store_inputs: bool = False,
    pack: bool = True,
    probe: bool = False,
    shard: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> DumpSummary:
    """Run every case of `suite` on `backend`, in this process or by a crew of workers, and write the results to `out`.

    candidates    names to run, or "all"; empty runs the default, the user's, and what the suite expects (each named one must exist for
                  at least one op of the suite)
    states        also run each of them in these states of the device (`backends.states.STATES`)
    repeats       runs of each case on differently poisoned outputs; every distinct result is kept
    kernels       record the names of the kernels that each case runs, where the device tells them
    certify       check every run of an exact product on the device, in integers, and note wrong rows and columns
    resume        keep the results in `OUT.parts`, or in a finished `out`, and run only what is missing, failed, or came from a file of
                  a candidate that has changed; they must come from the same suite, device and versions. Without it, leftovers are an error
    store_inputs  keep the operand codes in the file, not only their digests
    probe         store the device's numerics card too: whole in the dump's info, a sentence per format in its platform record
    shard         (i, n): only cases whose position in the suite is i modulo n, and what they are compared with (`choosing.share`)
    UsageError when `out` exists, or leftovers do and `resume` is off; FileError where results cannot be written, or are gone.
    A case that is unsupported or raises is recorded.
    """
    started = time.monotonic()
    out = Path(out)
    parts = out.with_name(out.name + ".parts")
    place = backend if isinstance(backend, Here | Crew) else Here(backend)
    todo = share(suite, shard)
    info = {**_info(suite, shard), "candidates": registered_facts(suite.cases, place.candidates, candidates)}
    provenance = place.platform()
    if certify and provenance.get("backend") != "torch":
        raise UsageError(f"--certify checks products where a device made them; {provenance.get('label')} is none, compare judges its dump")
    vendor = str(provenance.get("vendor"))
    if certify and not any(map(certifiable, suite.cases)):
        raise UsageError(
            f"--certify: none of the {counted(len(suite.cases), 'case')} is a product it can check: gemm, forward, no recipe, --lane exact "
            "(suite screen has large ones)"
        )
    work = [Job(c, chosen(place.candidates(c), candidates, states, expected_names(suite, c, vendor))) for c in todo]
    check_names(candidates, (name for job in work for name in job.candidates), info["candidates"])
    with only_writer(parts), ExitStack() as stack:
        finished, damaged = taken_over(out, parts, info, provenance, resume=resume)
        stack.enter_context(kept_said(parts))
        if probe:
            card = place.probe()
            info["numerics"] = card["numerics"]
            provenance |= card["platform"]
        run = {**provenance, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        stale = outdated(parts, work, finished, place.candidates)
        for key in stale:
            (parts / store.part_name(*key)).unlink()
        jobs = unfinished(work, finished - stale.keys())
        summary = DumpSummary.begun(parts, work, jobs, again_text(stale, damaged))
        summary.certified = 0 if certify else None
        settings = Settings(parts, info, run, repeats, store_inputs, kernels=kernels, certify=certify)
        total = sum(len(j.candidates) for j in work)
        for count, record in enumerate(place.run(jobs, settings), summary.resumed + 1):
            summary.count(record)
            if progress:
                progress(count, total, record.id)
        require_all(parts, work)
        if pack:
            if out.exists() and not resume:
                raise UsageError(f"{out} appeared while this dump ran; the results are in {parts}: pack them with accuracy-eval merge")
            store.pack(parts, out)
            summary.path = out
    summary.time_s = time.monotonic() - started
    return summary


def _info(suite: Suite, shard: tuple[int, int]) -> dict[str, Any]:
    """What a dump says of its suite: the digest and number of cases are the whole suite's, whatever was chosen of it."""
    whole = suite.whole or suite
    held = store.Shards(len(suite.cases), frozenset([shard])).info() if shard[1] > 1 else {}
    return {
        "suite": suite.name, "suite_digest": whole.digest, "suite_cases": len(whole.cases), "chosen": list(suite.chosen),
        "expected": [to_json(e) for e in suite.expected], **held,
    }  # fmt: skip
