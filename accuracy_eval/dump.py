"""dump: run a suite's cases on a device and store every output with its digests.

The working form is a folder `OUT.parts` with one finished file a case and candidate, packed at the end into OUT: a kill at any
moment loses at most the cases in flight, and `resume` goes on from what is there. Digests and files are made on host threads
while the device computes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from typing import Any

from numpy.typing import NDArray

from accuracy_eval import store
from accuracy_eval.backends.base import Backend, Outcome, Prepared, Source
from accuracy_eval.backends.candidates import Candidate
from accuracy_eval.backends.probing import probed
from accuracy_eval.cases import Suite, case_id
from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case, CaseRecord, TensorRecord

IN_FLIGHT_BYTES = 3 << 30  # outputs and inputs on the host that are not yet written: bounds memory, keeps the device busy
Progress = Callable[[int, int, str], None]


@dataclass
class DumpSummary:
    """What a dump did: cases by status, those taken over from an earlier run, and seconds."""

    path: Path
    done: int = 0
    unsupported: int = 0
    error: int = 0
    resumed: int = 0
    never_written: list[str] = field(default_factory=list)
    nondeterministic: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    time_s: float = 0.0


class _Budget:
    """Bytes that may be on their way to the disk; `take` waits until they fit (one item always does)."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used, self._changed = limit, 0, Condition()

    def take(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.used == 0 or self.used + size <= self.limit)
            self.used += size

    def give(self, size: int) -> None:
        with self._changed:
            self.used -= size
            self._changed.notify_all()


def dump(
    suite: Suite,
    backend: Backend,
    out: str | Path,
    *,
    candidates: Sequence[str] = (),
    repeats: int = 2,
    resume: bool = False,
    store_inputs: bool = False,
    pack: bool = True,
    probe: bool = False,
    shard: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> DumpSummary:
    """Run every case of `suite` on `backend` and write the results to `out`.

    candidates    names to run; empty runs all registered (each named one must exist for at least one op of the suite)
    repeats       runs of each case on differently poisoned outputs; every distinct result is kept
    resume        keep the results in `OUT.parts`, or in a finished `out`, and run only what is missing or failed; they must come from
                  the same suite, device and versions. Without it, leftovers are an error
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
    info: dict[str, Any] = {
        "suite": suite.name,
        "suite_digest": suite.digest,
        "expected": {op: list(n) for op, n in suite.expected.items()},
    }
    provenance = backend.platform()
    if out.exists() and not resume:
        raise UsageError(f"{out} exists already; complete it with --resume, remove it, or choose another name")
    if out.exists():
        _same_run(out, info, provenance)
        store.unpack(out, parts)
    finished = store.completed(parts) if parts.exists() else set()
    if parts.exists() and store.part_files(parts) and not resume:
        raise UsageError(f"{parts} holds {len(finished)} results of an unfinished dump; go on with --resume, or remove it")
    if finished:
        _same_run(parts, info, provenance)
    parts.mkdir(parents=True, exist_ok=True)
    lock = _only_writer(parts)
    if probe:
        card = probed(backend)
        info["numerics"] = card.to_json()
        provenance |= {f"numerics.{c.name}": c.sentence for c in card.formats}
    run = {**provenance, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    work = [(case, c) for case in todo for c in _chosen(backend, case, candidates)]
    _check_names(work, candidates)
    summary = DumpSummary(out)
    budget = _Budget(IN_FLIGHT_BYTES)
    pending: list[Future[CaseRecord]] = []
    by_case: dict[str, list[Candidate]] = {}
    for case, candidate in work:
        if (case_id(case), candidate.name) in finished:
            summary.resumed += 1
        else:
            by_case.setdefault(case_id(case), []).append(candidate)
    cases = {case_id(c): c for c in todo}
    total, count = len(work), summary.resumed
    with ThreadPoolExecutor(2, thread_name_prefix="write") as writers:
        for ident, chosen in by_case.items():
            case = cases[ident]
            prepared: Prepared | None = None
            failure: Exception | None = None
            try:
                prepared = backend.prepare(case)
            except Exception as error:  # noqa: BLE001  whatever a device raises is recorded with its case
                failure = error
            for candidate in chosen:
                outcome: Outcome | None = None
                if prepared is not None:
                    failure = None
                    try:
                        outcome = backend.run(prepared, candidate, repeats=repeats)
                    except Exception as error:  # noqa: BLE001  as above
                        failure = error
                sources, inputs = (
                    (prepared.sources, prepared.inputs) if prepared else ((), ())
                )  # not the tensors: those would hold device memory until written
                size = _size((*sources, *inputs), outcome)
                budget.take(size)
                pending.append(
                    writers.submit(_write, parts, case, candidate, sources, inputs, outcome, failure, store_inputs, info, run, budget, size)
                )
                count += 1
                if progress:
                    progress(count, total, ident)
        records = [f.result() for f in pending]
    _count(summary, records)
    if pack:
        if out.exists() and not resume:
            raise UsageError(f"{out} appeared while this dump ran; the results are in {parts}: pack them with accuracy-eval merge")
        store.pack(parts, out)
    else:
        summary.path = parts
    os.close(lock)
    summary.time_s = time.monotonic() - started
    return summary


def _only_writer(parts: Path) -> int:
    """A lock on the folder for as long as this process lives; UsageError when another dump writes there."""
    handle = os.open(parts, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UsageError(f"{parts}: another dump is writing there; wait for it, or choose another file") from None
    return handle


# what must be equal for two halves of a dump to be one: the device and the software that computes
_SAME = ("label", "vendor", "arch", "device_name", "backend", "fp8_encoding", "torch_version", "library.cublas.version", "driver_version",
         "accuracy_eval_version")  # fmt: skip


def _same_run(path: Path, info: dict[str, Any], provenance: dict[str, Any]) -> None:
    """UsageError unless the results at `path` (a dump, or one part of a folder) were made by this suite on this device."""
    source = path if path.is_file() else store.part_files(path)[0]
    with store.Dump.open(source) as d:
        before = {"suite_digest": d.info.get("suite_digest"), **{k: d.platform.get(k) for k in _SAME}}
    now = {"suite_digest": info["suite_digest"], **{k: provenance.get(k) for k in _SAME}}
    different = [f"{k} {before[k]!r} != {now[k]!r}" for k in now if before[k] != now[k]]
    if different:
        raise UsageError(
            f"{path}: --resume goes on with results of another run: {'; '.join(different)}. Use the same suite, seed, device and versions, "
            "or write to another file"
        )


def _chosen(backend: Backend, case: Case, names: Sequence[str]) -> list[Candidate]:
    return [c for c in backend.candidates(case.op) if c.applies(case) and (not names or c.name in names)]


def _check_names(work: Sequence[tuple[Case, Candidate]], names: Sequence[str]) -> None:
    missing = set(names) - {c.name for _, c in work}
    if missing:
        raise UsageError(
            f"candidate {', '.join(sorted(missing))} is registered for no op of the suite; register it with --plugin FILE or drop it"
        )


def _size(sources: Sequence[Source], outcome: Outcome | None) -> int:
    """Bytes of host memory the case holds until it is written: operands (for their digests) and results."""

    def bytes_of(shape: tuple[int, ...], fmt: str) -> int:
        from accuracy_eval.formats import get_format

        elements = 1
        for s in shape:
            elements *= s
        return elements * get_format(fmt).storage.itemsize

    size = sum(bytes_of(s.shape, s.format) for s in sources)
    return size + (sum(bytes_of(r.shape, r.format) * len(r.codes) for r in outcome.results) if outcome else 0)


def _write(
    parts: Path,
    case: Case,
    candidate: Candidate,
    sources: Sequence[Source],
    inputs: Sequence[Source],
    outcome: Outcome | None,
    failure: Exception | None,
    store_inputs: bool,
    info: dict[str, Any],
    run: dict[str, Any],
    budget: _Budget,
    size: int,
) -> CaseRecord:
    """The case's record and arrays into a part file."""
    try:
        arrays: dict[str, NDArray[Any]] = {}
        tensors: list[TensorRecord] = []
        for s in sources:
            tensors.append(TensorRecord(s.name, "source", s.format, s.shape, s.sha256.result()))
        tensors += [TensorRecord(i.name, "input", i.format, i.shape, i.sha256.result()) for i in inputs]
        if store_inputs:  # under a recipe what was multiplied: an unquantised operand follows from the case, its codes need a quantiser
            arrays.update({s.name: s.codes() for s in inputs or sources})
        distinct, unwritten = {}, {}
        for r in outcome.results if outcome else ():
            distinct[r.name] = len(r.codes)
            if r.never_written:
                unwritten[r.name] = r.never_written
            for number, future in enumerate(r.codes, 1):
                name = r.name if number == 1 else f"{r.name}#{number}"
                arrays[name] = future.result()
                tensors.append(TensorRecord(name, "output", r.format, r.shape, sha256_codes(arrays[name])))
        status = "done" if outcome else ("unsupported" if isinstance(failure, UnsupportedCase) else "error")
        reason = "" if failure is None else (str(failure) if status == "unsupported" else f"{type(failure).__name__}: {failure}")
        notes: dict[str, Any] = dict(outcome.notes) if outcome else {}
        if unwritten:
            notes["never_written"] = unwritten
        record = CaseRecord(
            case_id(case), case, candidate.name, status, reason, tuple(tensors), candidate.contract or get_op(case.op).contract(case),
            outcome.repeats if outcome else 0, distinct, notes,
        )  # fmt: skip
        store.write_part(parts, record, arrays, info=info, platform=run)
        return record
    finally:
        budget.give(size)


def _count(summary: DumpSummary, records: Sequence[CaseRecord]) -> None:
    for r in records:
        setattr(summary, r.status, getattr(summary, r.status) + 1)
        if r.status == "error":
            summary.errors.append(f"{r.id} ({r.candidate}): {r.reason}")
        if "never_written" in r.notes:
            summary.never_written.append(r.id)
        elif any(n > 1 for n in r.distinct.values()):
            summary.nondeterministic.append(r.id)
