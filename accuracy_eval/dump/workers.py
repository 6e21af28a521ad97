"""A dump by several processes, one a GPU, on this host or a cluster: a crash, a hang or a broken device costs its case."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from traceback import format_tb
from types import TracebackType
from typing import Any, Literal

from accuracy_eval import store
from accuracy_eval.backends.base import Backend
from accuracy_eval.backends.candidates import load_plugin, registered
from accuracy_eval.backends.open import open_backend
from accuracy_eval.cases import case_id
from accuracy_eval.dump.choosing import Known, known
from accuracy_eval.dump.planning import flop
from accuracy_eval.dump.running import Job, Runner, Settings, numerics, unfinished
from accuracy_eval.engine.local import LocalPool
from accuracy_eval.engine.ray import Cluster, RayPool
from accuracy_eval.engine.seats import seats_for
from accuracy_eval.engine.work import Broken, Done, Finished, Lost, Pool, Seat
from accuracy_eval.errors import AccuracyEvalError, EngineError
from accuracy_eval.ops.registry import OPS, get_op
from accuracy_eval.records import Case, CaseRecord

PATIENCE = 3  # times the device may be lost before the results of a case that raised nothing are on the host
CASE_LIMIT_S = 900.0  # without a sign of life: a minute a case is long, a first compilation of a kernel is longer
RANKS_SHARE = 0.9  # of that: ranks give up before their worker is given up, and say which of them is at fault


@dataclass(frozen=True)
class _Hello:
    """What a worker is: the platform of its device and the candidates it has by op."""

    platform: dict[str, Any]
    candidates: dict[str, tuple[Known, ...]]


class Crew:
    """Worker processes for a device name; a `Place` for jobs. Use as a context manager.

    device    as for `open_backend`; "cuda" and "auto" on a GPU host take one GPU a worker
    workers   how many
    plugins   files that register candidates
    limit_s   seconds a case may run without a sign of life
    cluster   where the workers are, if not on this host; part files and plugins must then be where every node sees them
    EngineError when a worker cannot start, or two of them got different or the same devices.
    """

    def __init__(
        self, device: str, workers: int, *, encoding: Literal["ocp", "fnuz"] = "ocp", plugins: Sequence[str] = (),
        limit_s: float | None = CASE_LIMIT_S, cluster: Cluster | None = None,
    ) -> None:  # fmt: skip
        self._seats: Sequence[Seat]
        self._pool: Pool
        ranks_limit_s = CASE_LIMIT_S if limit_s is None else RANKS_SHARE * limit_s
        worker = partial(_DumpWorker, encoding, tuple(str(Path(p).absolute()) for p in plugins), ranks_limit_s)
        if cluster is None:
            name, self._seats = seats_for(device, workers)
            self._pool = LocalPool(partial(worker, name), self._seats, limit_s=limit_s)
        else:
            name, seats = cluster.seats_for(device, workers)
            self._seats, self._pool = seats, RayPool(partial(worker, name), seats, limit_s=limit_s)
        self._stack = ExitStack()

    def __enter__(self) -> Crew:
        self._stack.enter_context(self._pool)
        try:
            self._alike()
        except EngineError:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _alike(self) -> None:
        """Workers must have equal devices, and each its own."""
        first, *others = [h.platform for h in self._pool.hellos]
        for seat, other in zip(self._seats[1:], others, strict=True):
            for key in ("device_name", "arch", "torch_version"):
                if first.get(key) != other.get(key):
                    raise EngineError(
                        f"{seat.name} has {key} {other.get(key)!r}, {self._seats[0].name} {first.get(key)!r}: one dump is of one kind of "
                        "device; choose equal ones with CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, on a cluster with --on"
                    )
        chips = [p.get("uuid") for p in (first, *others) if p.get("uuid")]
        if len(set(chips)) < len(chips):
            raise EngineError(
                f"two workers got the same GPU ({', '.join(map(str, chips))}); is a variable other than the visible devices set?"
            )

    def platform(self) -> dict[str, Any]:
        """Provenance of the first worker's device; each case carries its own."""
        platform: dict[str, Any] = self._pool.hellos[0].platform
        return dict(platform)

    def candidates(self, case: Case) -> tuple[Known, ...]:
        here = {c.name: c for c in registered(case.op)}  # plugins are loaded on both sides
        return tuple(k for k in self._pool.hellos[0].candidates[case.op] if k.name not in here or here[k.name].applies(case))

    def probe(self) -> dict[str, Any]:
        event = next(self._pool.run([None]))
        if isinstance(event, Lost):
            raise EngineError(f"the device could not be probed: {event.reason}")
        if isinstance(event.value, Exception):
            raise event.value
        found: dict[str, Any] = event.value
        return found

    def run(self, jobs: Sequence[Job], settings: Settings) -> Iterator[CaseRecord]:
        settings = dataclasses.replace(settings, parts=settings.parts.absolute())  # a worker may have another working directory
        left = list(jobs)
        unread: Counter[Job] = Counter()
        while left:
            # longest first: what is left at the end, when workers run out of work, is short
            ordered = sorted(left, key=lambda job: flop(job.case), reverse=True)
            left = []
            for event in self._pool.run([(job, settings) for job in ordered]):
                if isinstance(event, Finished):
                    if isinstance(event.value, Exception):
                        raise event.value
                    for record in event.value:
                        _check_seen(settings.parts / store.part_name(record.id, record.candidate), event.seat)
                        yield record
                    # the device was lost before these were run, or before they were on the host
                    others = unfinished([ordered[event.task]], {(r.id, r.candidate) for r in event.value})
                    unread.update(others)
                    for job in others:
                        if unread[job] < PATIENCE:
                            left.append(job)
                            continue
                        reason = f"the device was lost {PATIENCE} times before the results were on the host"
                        records, after = self._lost(job, settings, f"{event.seat}: {reason}")
                        yield from records
                        left += after
                else:
                    reason = f"{event.seat}: {event.reason}" if event.seat else event.reason
                    records, others = self._lost(ordered[event.task], settings, reason)
                    yield from records
                    left += others

    def _lost(self, job: Job, settings: Settings, reason: str) -> tuple[list[CaseRecord], list[Job]]:
        """Records of the candidates that were finished and of the one that was running, and a job of those after it."""
        ident = case_id(job.case)
        records: list[CaseRecord] = []
        for number, name in enumerate(job.candidates):
            path = settings.parts / store.part_name(ident, name)
            if path.exists():
                records += store.Dump.open(path).records
                continue
            contract = get_op(job.case.op).contract(job.case)
            record = CaseRecord(ident, job.case, name, "error", reason, (), contract, 0, {}, {})
            store.write_part(settings.parts, record, {}, info=settings.info, platform=settings.run)
            rest = job.candidates[number + 1 :]
            return [*records, record], [Job(job.case, rest)] if rest else []
        return records, []


def _check_seen(part: Path, seat: str) -> None:
    """EngineError when what a worker wrote is not where this process looks: packing would leave it out."""
    if not part.exists():
        raise EngineError(
            f"{seat} wrote {part.name}, which is not in {part.parent} of this host; give a dump (-o) on storage that every node mounts "
            "at the same path, or dump on each node with --shard and join with accuracy-eval merge"
        )


class _DumpWorker:
    """The other side of a Crew: a backend and its runner in a process of their own."""

    def __init__(self, encoding: Literal["ocp", "fnuz"], plugins: tuple[str, ...], ranks_limit_s: float, device: str, seat: Seat) -> None:
        for path in plugins:
            load_plugin(path)
        self._seat = seat
        self._backend: Backend = open_backend(device, encoding, limit_s=ranks_limit_s)
        self._stack = ExitStack()
        self._runner = self._stack.enter_context(Runner(self._backend).open())

    def hello(self) -> _Hello:
        return _Hello(self._backend.platform(), {op: known(self._backend.candidates(op)) for op in OPS})

    def expect(self, tasks: Sequence[tuple[Job, Settings] | None]) -> None:
        self._backend.expect(task[0].case for task in tasks if task is not None)

    def run(self, task: tuple[Job, Settings] | None, done: Done) -> None:
        if task is None:
            done(_or_error(partial(numerics, self._backend)))
            return
        job, settings = task
        own = {**settings.run, **self._backend.platform()}
        written = []
        for future in self._runner.begin(job, dataclasses.replace(settings, run=own, seat=self._seat.name)):
            written.append(future)
            if len(written) < len(job.candidates):
                wait([future])  # the next candidate may end this process, and should take nothing with it
        _when_all(written, done)
        if self._runner.lost:
            raise Broken(f"{self._seat.name} answers every call with an earlier error")

    def close(self) -> None:
        self._stack.close()
        self._backend.close()


def _or_error(make: partial[Any]) -> Any:
    try:
        return make()
    except Exception as error:  # noqa: BLE001  raised again where the answer arrives
        return _with_place(error)


def _with_place(error: BaseException) -> BaseException:
    """The exception with its traceback as a note, for one that nobody expected: tracebacks do not travel between processes."""
    if not isinstance(error, AccuracyEvalError):
        error.add_note("In the worker:\n" + "".join(format_tb(error.__traceback__)))
    return error


def _when_all(futures: Sequence[Future[CaseRecord | None]], done: Done) -> None:
    """Call done with the records there are once all are written, or with the first exception."""
    if not futures:
        done([])
        return
    lock, left = Lock(), len(futures)

    def one(_: Future[CaseRecord | None]) -> None:  # runs in the writer's thread that completes it
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            errors = [e for f in futures if (e := f.exception())]
            done(_with_place(errors[0]) if errors else [r for f in futures if (r := f.result())])

    for f in futures:
        f.add_done_callback(one)
