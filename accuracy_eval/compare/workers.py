"""A comparison's cases shared by several processes; a case that ends its process costs that case alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from accuracy_eval.compare.comparison import Comparison, Found, Judged, Options, as_text
from accuracy_eval.compare.joining import Key
from accuracy_eval.engine.local import LocalPool
from accuracy_eval.engine.seats import cpu_seats
from accuracy_eval.engine.work import Done, Finished, Lost, Seat
from accuracy_eval.errors import AccuracyEvalError
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import CaseRecord, NotCompared, Verdict
from accuracy_eval.threads import thread_count

BATCH = 16  # results a worker process is given at a time, at most but for the candidates of one case
MANY_RESULTS = 1000  # from here on one process a core pays for starting them (2 s each)


class Judge:
    """A comparison in a worker process; its tasks are batches of keys."""

    def __init__(self, options: Options, _: Seat) -> None:
        self._comparison = Comparison(options).__enter__()
        self._joined = self._comparison.join()

    def hello(self) -> None:
        """Nothing needs to be known of it."""

    def expect(self, tasks: Sequence[Sequence[Key]]) -> None:
        """Nothing is prepared: a batch is read as it is judged."""

    def run(self, task: Sequence[Key], done: Done) -> None:
        try:
            done(as_text([pair for found in self._comparison.run([task], self._joined) for pair in found]))
        except AccuracyEvalError as error:
            done(error)

    def close(self) -> None:
        self._comparison.__exit__()


def shared(
    options: Options, batches: Sequence[Sequence[Key]], joined: Mapping[Key, Mapping[str, CaseRecord]], workers: int
) -> Iterator[Found]:
    """The results of each batch, in order, by several processes. A case that ends its worker is an ERROR of that case alone."""
    waiting: dict[int, Found] = {}
    lost: list[int] = []
    following = 0
    with LocalPool(partial(Judge, options), cpu_seats(workers)) as pool:
        for event in pool.run(batches):
            if isinstance(event, Lost):
                lost.append(event.task)
            else:
                waiting[event.task] = _found(event)
            while following in waiting:
                yield waiting.pop(following)
                following += 1
        for number in lost:  # one of its cases is at fault: each by itself
            waiting[number] = _one_by_one(pool, batches[number], joined)
    yield from (waiting[number] for number in sorted(waiting))


def _found(event: Finished) -> Found:
    if isinstance(event.value, Exception):
        raise event.value
    found: Found = event.value
    return found


def _one_by_one(pool: LocalPool, keys: Sequence[Key], joined: Mapping[Key, Mapping[str, CaseRecord]]) -> Found:
    """The results of cases of a batch whose worker ended."""
    by_key: dict[Key, Found] = {}
    for event in pool.run([[key] for key in keys]):
        key = keys[event.task]
        by_key[key] = [(key, _lost_case(joined[key], event.reason))] if isinstance(event, Lost) else _found(event)
    return [pair for key in keys for pair in by_key[key]]


def _lost_case(records: Mapping[str, CaseRecord], reason: str) -> Judged:
    r = next(iter(records.values()))
    family, why = get_op(r.case.op).family, f"could not be judged: {reason}; compare it alone with --case {r.id} --workers 1"
    return [NotCompared(r.id, family, r.candidate, label, Verdict.ERROR, why, r.case) for label in records]


def dealt(keys: Sequence[Key], workers: int) -> list[Sequence[Key]]:
    """Keys as they are dealt: several at a time where cases are many, and enough deals that nobody waits long at the end. Candidates of a
    case stay together, for they share its reference."""
    size = max(1, min(BATCH, len(keys) // (8 * workers)))
    batches: list[list[Key]] = []
    for _, of_case in groupby(keys, itemgetter(0)):
        if not batches or len(batches[-1]) >= size:
            batches.append([])
        batches[-1] += of_case
    return list(batches)


def default_workers(results: int) -> int:
    """One process a core where the results are many: what a small one costs is Python's, which threads do not share."""
    return 1 if results < MANY_RESULTS else min(thread_count(), results // BATCH)
