"""dump: run a suite's cases on a device and store every output with its digests.

The working form is a folder `OUT.parts` with one finished file a case and candidate, packed at the end into OUT: a kill at any
moment loses at most the cases in flight, and `resume` goes on from what is there.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accuracy_eval import store
from accuracy_eval.backends.base import Backend
from accuracy_eval.dump.choosing import chosen, expected_names, registered_facts
from accuracy_eval.dump.resuming import again_text, outdated
from accuracy_eval.dump.running import Here, Job, Settings, unfinished
from accuracy_eval.dump.workers import Crew
from accuracy_eval.errors import FileError, UsageError, alike, counted
from accuracy_eval.json_data import to_json
from accuracy_eval.messages import wrong_product
from accuracy_eval.records import CaseRecord
from accuracy_eval.suite import Suite
from accuracy_eval.visits import EVERY

Progress = Callable[[int, int, str], None]


@dataclass
class DumpSummary:
    """What a dump did: cases by status, those taken over from an earlier run, and seconds. `wrong` are runs a certificate refused.

    reasons   why cases are unsupported -> how many
    unnamed   op -> cases for which none of the named candidates is registered: they ran nothing
    again     results of an earlier run that were not kept, since a file of their candidate has changed: who and which
    lost      what raised and left a device that answers no more calls; a fresh process ran the cases after it
    """

    path: Path
    done: int = 0
    unsupported: int = 0
    error: int = 0
    resumed: int = 0
    never_written: list[str] = field(default_factory=list)
    nondeterministic: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    unnamed: dict[str, int] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    time_s: float = 0.0


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
    shard         (i, n): only cases whose position in the suite is i modulo n
    UsageError when `out` exists, or leftovers do and `resume` is off. A case that is unsupported or raises is recorded.
    """
    started = time.monotonic()
    out = Path(out)
    parts = out.with_name(out.name + ".parts")
    todo = [c for i, c in enumerate(suite.cases) if i % shard[1] == shard[0]]
    if not todo:
        raise UsageError(f"suite {suite.name}: no cases to run (shard {shard[0]}/{shard[1]} of {len(suite.cases)})")
    whole = suite.whole or suite
    info: dict[str, Any] = {
        "suite": suite.name,
        "suite_digest": whole.digest,
        "suite_cases": len(whole.cases),
        "chosen": list(suite.chosen),
        "expected": [to_json(e) for e in suite.expected],
    }
    place = backend if isinstance(backend, Here | Crew) else Here(backend)
    info["candidates"] = registered_facts(suite.cases, place.candidates, candidates)
    provenance = place.platform()
    if certify and provenance.get("backend") != "torch":
        raise UsageError(f"--certify checks products where a device made them; {provenance.get('label')} is none, compare judges its dump")
    vendor = str(provenance.get("vendor"))
    work = [Job(c, chosen(place.candidates(c), candidates, states, expected_names(suite, c, vendor))) for c in todo]
    _check_names(work, candidates, info["candidates"])
    if out.exists() and not resume:
        raise UsageError(f"{out} exists already; complete it with --resume, remove it, or choose another name")
    if out.exists():
        _same_run(out, info, provenance)
        store.unpack(out, parts)
    finished = store.intact(parts) if parts.exists() else set()
    if parts.exists() and store.part_files(parts) and not resume:
        raise UsageError(
            f"{parts} holds {counted(len(finished), 'result')} of an unfinished dump; go on with --resume (and --workers 1 where a case "
            "ended the process: it then costs itself alone), or remove it"
        )
    if finished:
        _same_run(parts, info, provenance)
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{parts}: cannot be made: {error.strerror}; name a file that can be written with -o") from error
    with _only_writer(parts):
        if probe:
            card = place.probe()
            info["numerics"] = card["numerics"]
            provenance |= card["platform"]
        run = {**provenance, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        stale = outdated(parts, work, finished, place.candidates)
        for key in stale:
            (parts / store.part_name(*key)).unlink()
        jobs = unfinished(work, finished - stale.keys())
        total = sum(len(j.candidates) for j in work)
        summary = DumpSummary(out, resumed=total - sum(len(j.candidates) for j in jobs))
        summary.again = again_text(stale)
        summary.unnamed = dict(Counter(j.case.op for j in work if not j.candidates))
        settings = Settings(parts, info, run, repeats, store_inputs, kernels=kernels, certify=certify)
        for count, record in enumerate(place.run(jobs, settings), summary.resumed + 1):
            _count(summary, record)
            if progress:
                progress(count, total, record.id)
        if pack:
            if out.exists() and not resume:
                raise UsageError(f"{out} appeared while this dump ran; the results are in {parts}: pack them with accuracy-eval merge")
            store.pack(parts, out)
        else:
            summary.path = parts
    summary.time_s = time.monotonic() - started
    return summary


@contextmanager
def _only_writer(parts: Path) -> Iterator[None]:
    """A lock on the folder for the block, or as long as this process lives; UsageError when another dump writes there."""
    handle = os.open(parts, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UsageError(f"{parts}: another dump is writing there; wait for it, or choose another file") from None
    try:
        yield
    finally:
        os.close(handle)


# what must be equal for two halves of a dump to be one: the device and the software that computes
_SAME = ("label", "vendor", "arch", "device_name", "backend", "fp8_encoding", "torch_version", "library.cublas.version", "driver_version",
         "accuracy_eval_version")  # fmt: skip


def _same_run(path: Path, info: dict[str, Any], provenance: dict[str, Any]) -> None:
    """UsageError unless the results at `path` (a dump, or one part of a folder) were made by this suite on this device."""
    source = path if path.is_file() else store.part_files(path)[0]
    with store.Dump.open(source) as d:
        before = {"suite_digest": d.info.get("suite_digest"), "chosen": d.info.get("chosen", []), **{k: d.platform.get(k) for k in _SAME}}
        gone = _names(d.info.get("candidates", {})) - _names(info["candidates"])
    if gone:
        raise UsageError(
            f"{path}: --resume goes on with results of another run, in which {', '.join(sorted(gone))} was registered too. "
            "Register it again with the same --plugin FILE, or write to another file"
        )
    now = {**{k: info[k] for k in ("suite_digest", "chosen")}, **{k: provenance.get(k) for k in _SAME}}
    different = [f"{k} {before[k]!r} != {now[k]!r}" for k in now if before[k] != now[k]]
    if different:
        raise UsageError(
            f"{path}: --resume goes on with results of another run: {'; '.join(different)}. Use the same suite, seed, device and versions, "
            "or write to another file"
        )


def _names(registered: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {f"candidate {name} of {op}" for op, of_op in registered.items() for name in of_op}


def _check_names(work: Sequence[Job], names: Sequence[str], registered: Mapping[str, Mapping[str, Any]]) -> None:
    missing = set(names) - {n for j in work for n in j.candidates} - {EVERY}
    if missing:
        there = sorted({name for of_op in registered.values() for name in of_op})
        close = alike(min(missing), there)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise UsageError(
            f"candidate {', '.join(sorted(missing))} is registered for no op of the suite{hint}; there are: {', '.join(there)}; "
            "register it with --plugin FILE or drop it"
        )


def _count(summary: DumpSummary, record: CaseRecord) -> None:
    setattr(summary, record.status, getattr(summary, record.status) + 1)
    if record.status == "unsupported":
        summary.reasons[record.reason] = summary.reasons.get(record.reason, 0) + 1
    if record.status == "error":
        summary.errors.append(f"{record.id} ({record.candidate}): {record.reason}")
    name = record.id if record.candidate == "default" else f"{record.id} ({record.candidate})"
    summary.wrong += [f"{name}: {wrong_product(run)}" for run in record.notes.get("certificate", {}).get("wrong", ())]
    if "device_lost" in record.notes:
        summary.lost.append(name)
    if "never_written" in record.notes:
        summary.never_written.append(name)
    elif any(n > 1 for n in record.distinct.values()):
        summary.nondeterministic.append(name)
