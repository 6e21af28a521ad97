"""What a dump holds at a time does not grow with its cases."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Event, Lock, Thread, Timer
from typing import Any

import pytest

from accuracy_eval import store
from accuracy_eval.backends.open import open_backend
from accuracy_eval.dump import dump, running
from accuracy_eval.records import Case
from accuracy_eval.suite import parse_suite


def _waits(budget: running._Budget, size: int) -> Thread:
    """A thread that takes that many bytes; it has to wait."""
    thread = Thread(target=budget.take, args=(size,))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    return thread


@pytest.mark.parametrize(("sizes", "next_one"), [((0, 0, 0), 0), ((60,), 50), ((1000,), 1)], ids=["cases", "bytes", "more_than_all"])
def test_what_does_not_fit_waits_for_the_disk(sizes: tuple[int, ...], next_one: int) -> None:
    budget = running._Budget(most_bytes=100, most_cases=3)
    for size in sizes:
        budget.take(size)
    waiting = _waits(budget, next_one)
    budget.give(sizes[0])
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_device_that_is_faster_than_the_disk_is_few_cases_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_CASES_IN_FLIGHT", 2)
    suite = parse_suite({"name": "t", "cases": [{"op": "exp", "shape": {"n": [1, 2, 3, 4, 5, 6]}, "format": "float32"}]}, "t")
    begun: list[Case] = []
    written: list[Path] = []
    begun_while_the_disk_stood: list[int] = []
    first, disk_goes_on = Lock(), Event()
    write_part = store.write_part

    def look() -> None:
        begun_while_the_disk_stood.append(len(begun))
        disk_goes_on.set()

    def write(*args: Any, **options: Any) -> Path:
        if first.acquire(blocking=False):
            Timer(0.5, look).start()
        assert disk_goes_on.wait(300)
        written.append(write_part(*args, **options))
        return written[-1]

    with closing(open_backend("reference")) as backend:
        prepare = backend.prepare

        def counted(case: Case) -> Any:
            begun.append(case)
            return prepare(case)

        monkeypatch.setattr(backend, "prepare", counted)
        monkeypatch.setattr(store, "write_part", write)
        summary = dump(suite, backend, tmp_path / "a.h5")
    assert (summary.done, summary.error, len(written)) == (6, 0, 6)
    assert begun_while_the_disk_stood[0] <= 3  # two are on their way, one is done and waits for its place
