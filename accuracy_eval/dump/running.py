"""Cases on an open backend, each candidate's results into a part file. Digests and files are made by threads while the device computes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any, Protocol

from numpy.typing import NDArray

from accuracy_eval import store
from accuracy_eval.backends.base import Backend, Outcome, Prepared, Source
from accuracy_eval.backends.candidates import Candidate
from accuracy_eval.backends.probing import probed
from accuracy_eval.backends.states import named
from accuracy_eval.cases import case_id
from accuracy_eval.digests import sha256_codes
from accuracy_eval.dump.choosing import Known, known
from accuracy_eval.errors import EngineError, UnsupportedCase, described
from accuracy_eval.formats import get_format
from accuracy_eval.leaving import keep
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.timeline import Timeline

MOST_IN_FLIGHT = 16 << 30  # bytes of operands and outputs on the host that are not yet digested and written
LEAST_IN_FLIGHT = 1 << 30
MOST_CASES_IN_FLIGHT = 128  # where a disk takes longer for a small case than the device, all that is left of a suite would wait for it


@dataclass(frozen=True)
class Job:
    """One case and the candidates to run on its operands."""

    case: Case
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """What all cases of a dump share: where parts go, their info and platform documents, how a case is run, who runs it."""

    parts: Path
    info: Mapping[str, Any]
    run: Mapping[str, Any]
    repeats: int
    store_inputs: bool
    seat: str = ""
    kernels: bool = False
    certify: bool = False


class Place(Protocol):
    """Where jobs run: this process (`Here`) or several (`dump.workers.Crew`)."""

    def platform(self) -> dict[str, Any]:
        """Flat provenance of the device."""

    def candidates(self, case: Case) -> tuple[Known, ...]:
        """The candidates registered for the case's op that are meant for such cases."""

    def probe(self) -> dict[str, Any]:
        """The device's numerics card as plain data, and a sentence per format for the platform record."""

    def run(self, jobs: Sequence[Job], settings: Settings) -> Iterator[CaseRecord]:
        """A record for each candidate of each job, as they are written; in any order."""


def unfinished(jobs: Sequence[Job], finished: Collection[tuple[str, str]]) -> list[Job]:
    """What of the jobs is not among the finished (case, candidate)."""
    left = (Job(j.case, tuple(n for n in j.candidates if (case_id(j.case), n) not in finished)) for j in jobs)
    return [j for j in left if j.candidates]


class Here:
    """Jobs one after the other on a backend of this process.

    rescue  makes the place that goes on when the device answers no more calls; without it EngineError says how to
    """

    def __init__(self, backend: Backend, rescue: Callable[[], AbstractContextManager[Place]] | None = None) -> None:
        self.backend, self._rescue = backend, rescue

    def platform(self) -> dict[str, Any]:
        return self.backend.platform()

    def candidates(self, case: Case) -> tuple[Known, ...]:
        return known(c for c in self.backend.candidates(case.op) if c.applies(case))

    def probe(self) -> dict[str, Any]:
        return numerics(self.backend)

    def run(self, jobs: Sequence[Job], settings: Settings) -> Iterator[CaseRecord]:
        finished: set[tuple[str, str]] = set()
        for record in self._here(jobs, settings):
            finished.add((record.id, record.candidate))
            yield record
        left = unfinished(jobs, finished)
        if not left:
            return
        kept = (
            f"what was done is kept in {settings.parts}, where the case that raised has its reason; go on in a new process with "
            "dump --resume --workers 1, where a lost device costs its case alone"
        )
        if self._rescue is None:
            raise EngineError(f"{self.backend.name} answers every call of this process with an earlier error; {kept}")
        try:
            with self._rescue() as place:
                yield from place.run(left, settings)
        except EngineError as error:
            error.add_note(kept)
            raise

    def _here(self, jobs: Sequence[Job], settings: Settings) -> Iterator[CaseRecord]:
        """Records until all is done or the device is lost."""
        self.backend.expect(job.case for job in jobs)
        with Runner(self.backend).open() as runner:
            written: list[Future[CaseRecord | None]] = []
            for job in jobs:
                for future in runner.begin(job, settings):
                    written.append(future)
                    while written and written[0].done():
                        yield from _there(written.pop(0))
            for future in written:
                yield from _there(future)


def _there(written: Future[CaseRecord | None]) -> Iterator[CaseRecord]:
    record = written.result()
    if record is not None:
        yield record


def numerics(backend: Backend) -> dict[str, Any]:
    """The numerics card of a backend: whole under "numerics", a sentence per format under "platform"."""
    card = probed(backend)
    return {"numerics": card.to_json(), "platform": {f"numerics.{c.name}": c.sentence for c in card.formats}}


class Runner:
    """Runs jobs on a backend; what it returns is written by threads. Use `open` as a context manager.

    lost  the device answers no more calls: nothing is run any more, and results that were still there have no record
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lost = False
        self._budget = _Budget(in_flight_bytes(), MOST_CASES_IN_FLIGHT)
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="write")

    @contextmanager
    def open(self) -> Iterator[Runner]:
        with self._writers:
            yield self

    def begin(self, job: Job, settings: Settings) -> Iterator[Future[CaseRecord | None]]:
        """Run each candidate of a job; the record of each, ready when its part is on the disk. What a device raises is in the record.

        The candidate that loses the device is the last to run. None is the record of results that were lost with it: those are to be
        run again, elsewhere.
        """
        if self.lost:
            return
        prepared: Prepared | None = None
        failure: Exception | None = None
        try:
            prepared = self.backend.prepare(job.case)
        except Exception as error:  # noqa: BLE001  whatever a device raises is recorded with its case
            failure = error
        lost = self._loses_the_device(failure)  # then every candidate has that failure
        for candidate in named(self.backend.candidates(job.case.op), job.candidates):
            began, started = time.time(), time.monotonic()
            outcome: Outcome | None = None
            if prepared is not None:
                failure = None
                try:
                    outcome = self.backend.run(
                        prepared, candidate, repeats=settings.repeats, kernels=settings.kernels, certify=settings.certify
                    )
                except Exception as error:  # noqa: BLE001  as above
                    failure = error
                    lost = self._loses_the_device(error)
            # not the tensors: those would hold device memory until written; nor operands that may be on a lost device still
            sources, inputs = (prepared.sources, prepared.inputs) if prepared and not lost else ((), ())
            timeline = Timeline(prepared.timeline, outcome.timeline) if prepared and outcome else Timeline()
            size = _size((*sources, *inputs), outcome)
            self._budget.take(size)
            times = {"seat": settings.seat, "began": round(began, 3), "run_s": round(time.monotonic() - started, 6)}
            written = _Written(job.case, candidate, sources, inputs, outcome, failure, size, times, timeline, lost)
            yield self._writers.submit(self._write, written, settings)
            if lost and prepared is not None:
                keep(prepared)
                return

    def _loses_the_device(self, failure: Exception | None) -> bool:
        """Whether the device answers no more calls since it raised that; what it holds is kept then."""
        if failure is None or isinstance(failure, UnsupportedCase) or self.backend.healthy():
            return False
        self.lost = True
        keep(self.backend, failure)
        return True

    def _write(self, w: _Written, settings: Settings) -> CaseRecord | None:
        """The case's record and arrays into a part file; None when the device was lost before they were on the host."""
        try:
            try:
                arrays, tensors, stages = self._read(w, settings.store_inputs)
            except RuntimeError as error:  # what torch raises
                if self._loses_the_device(error):
                    return None
                raise
            record = w.record(tensors)
            times = {**w.times, "stages": stages}
            store.write_part(settings.parts, record, arrays, info=settings.info, platform=settings.run, times=times)
            return record
        finally:
            self._budget.give(w.size)

    def _read(self, w: _Written, store_inputs: bool) -> tuple[dict[str, NDArray[Any]], tuple[TensorRecord, ...], dict[str, Any]]:
        """Arrays to store, records of all tensors, and the case's times by stage: all that is waited for."""
        arrays: dict[str, NDArray[Any]] = {}
        tensors: list[TensorRecord] = []
        for role, found in (("source", w.sources), ("input", w.inputs)):
            tensors += [TensorRecord(s.name, role, s.format, s.shape, s.sha256.result()) for s in found]
        if store_inputs:  # under a recipe what was multiplied: an unquantised operand follows from the case, its codes need a quantiser
            arrays.update({s.name: s.codes() for s in w.inputs or w.sources})
        for r in w.outcome.results if w.outcome else ():
            for number, future in enumerate(r.codes, 1):
                name = r.name if number == 1 else f"{r.name}#{number}"
                codes = arrays[name] = future.result()
                with w.timeline.stage("digest_output", codes.nbytes):
                    digest = sha256_codes(codes)
                tensors.append(TensorRecord(name, "output", r.format, r.shape, digest))
        return arrays, tuple(tensors), w.timeline.stages(since=w.times["began"])


@dataclass(frozen=True)
class _Written:
    """What a candidate gave for a case, on its way to the disk."""

    case: Case
    candidate: Candidate
    sources: Sequence[Source]
    inputs: Sequence[Source]
    outcome: Outcome | None
    failure: Exception | None
    size: int
    times: Mapping[str, Any]
    timeline: Timeline
    lost: bool

    def record(self, tensors: tuple[TensorRecord, ...]) -> CaseRecord:
        results = self.outcome.results if self.outcome else ()
        notes: dict[str, Any] = dict(self.outcome.notes) if self.outcome else {}
        unwritten = {r.name: r.never_written for r in results if r.never_written}
        if unwritten:
            notes["never_written"] = unwritten
        if self.lost:
            notes["device_lost"] = True
        if self.candidate.sources:
            notes["sources"] = dict(self.candidate.sources)
        status = "done" if self.outcome else ("unsupported" if isinstance(self.failure, UnsupportedCase) else "error")
        reason = "" if self.failure is None else described(self.failure, self.candidate.sources)
        return CaseRecord(
            case_id(self.case), self.case, self.candidate.name, status, reason, tensors,
            self.candidate.contract or get_op(self.case.op).contract(self.case), self.outcome.repeats if self.outcome else 0,
            {r.name: len(r.codes) for r in results}, notes,
        )  # fmt: skip


def in_flight_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """An eighth of the memory that is free now, within bounds: several operands are then digested at once while the device goes on."""
    try:
        free = next(int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return LEAST_IN_FLIGHT
    return max(LEAST_IN_FLIGHT, min(MOST_IN_FLIGHT, free // 8))


class _Budget:
    """Bytes and cases that may be on their way to the disk; `take` waits until another fits (one always does)."""

    def __init__(self, most_bytes: int, most_cases: int) -> None:
        self._most_bytes, self._most_cases = most_bytes, most_cases
        self._bytes = self._cases = 0
        self._changed = Condition()

    def take(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size))
            self._bytes += size
            self._cases += 1

    def give(self, size: int) -> None:
        with self._changed:
            self._bytes -= size
            self._cases -= 1
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._cases or (self._cases < self._most_cases and self._bytes + size <= self._most_bytes)


def _size(sources: Sequence[Source], outcome: Outcome | None) -> int:
    """Bytes of host memory the case holds until it is written: operands (for their digests) and results."""

    def bytes_of(shape: tuple[int, ...], fmt: str) -> int:
        return math.prod(shape) * get_format(fmt).storage.itemsize

    size = sum(bytes_of(s.shape, s.format) for s in sources)
    return size + (sum(bytes_of(r.shape, r.format) * len(r.codes) for r in outcome.results) if outcome else 0)
