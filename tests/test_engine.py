"""Worker processes: order, pinning, what a death, a hang and a broken device cost."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support_workers import obedient, silent, stumbling, unable

from accuracy_eval.engine.local import LocalPool
from accuracy_eval.engine.work import Finished, Lost, Seat
from accuracy_eval.errors import EngineError


def results(tasks: Sequence[str], seats: int = 2, **options: Any) -> dict[int, Any]:
    """Value, or reason of the loss, by task."""
    with LocalPool(obedient, [Seat(f"worker {i}") for i in range(seats)], **options) as pool:
        found: dict[int, Any] = {}
        for event in pool.run(tasks):
            assert event.task not in found
            found[event.task] = event.value if isinstance(event, Finished) else event
        return found


def test_every_task_is_done_once_however_many_workers() -> None:
    tasks = [f"square {n}" for n in range(20)]
    assert results(tasks, 1) == results(tasks, 3) == {n: n * n for n in range(20)}


def test_no_tasks_is_no_events() -> None:
    assert results([]) == {}


def test_work_is_shared() -> None:
    assert set(results(["name"] * 20, 2).values()) == {"worker 0", "worker 1"}


def test_a_worker_is_told_what_follows() -> None:
    assert results(["pause", "next", "square 3"], 1)[1] == ["square 3"]
    assert results(["pause", "next"], 1)[1] == []


def test_each_worker_starts_with_its_seats_variables_and_the_parents_stay() -> None:
    with LocalPool(obedient, [Seat("a", {"PLACE": "first"}), Seat("b", {"PLACE": "second"})]) as pool:
        assert pool.hellos == ["a first", "b second"]
    assert "PLACE" not in os.environ


def test_a_death_costs_the_task_that_ran_and_names_the_signal() -> None:
    found = results(["square 1", "die", *(f"square {n}" for n in range(2, 8))], 1)
    assert isinstance(found[1], Lost)
    assert "SIGKILL" in found[1].reason
    assert [found[n] for n in (0, *range(2, 8))] == [1, 4, 9, 16, 25, 36, 49]


@pytest.mark.parametrize(("stumbles", "then"), [("2", 9), ("2 3", 9), ("2 3 4", None)])
def test_a_worker_that_is_killed_while_it_starts_is_started_again_twice(tmp_path: Path, stumbles: str, then: int | None) -> None:
    (tmp_path / "starts").write_text("")
    seat = Seat("worker 0", {"STARTS": str(tmp_path / "starts"), "STUMBLES": stumbles})
    with LocalPool(stumbling, [seat]) as pool:
        died, after = sorted(pool.run(["die", "square 3"]), key=lambda event: event.task)
    assert isinstance(died, Lost)
    assert (after.value if isinstance(after, Finished) else None) == then
    assert len((tmp_path / "starts").read_text()) == 4 if then is None else len(stumbles.split()) + 2


def test_what_was_running_beside_the_one_that_died_is_done_again() -> None:
    found = results(["later 7", "die", "square 3"], 1)
    assert found[0] == 7
    assert isinstance(found[1], Lost)
    assert found[2] == 9


def test_a_hang_is_ended_after_the_limit_and_costs_one_task() -> None:
    found = results(["hang", "square 2", "square 3"], 1, limit_s=1.0)
    assert isinstance(found[0], Lost)
    assert "no sign of life for 1 s" in found[0].reason
    assert (found[1], found[2]) == (4, 9)


def test_a_broken_device_is_replaced_and_its_failure_kept() -> None:
    assert results(["broken 1", "square 2", "broken 3", "square 4"], 1) == {0: "failed 1", 1: 4, 2: "failed 3", 3: 16}


def test_answers_that_come_later_are_waited_for() -> None:
    assert results([f"later {n}" for n in range(6)]) == {n: n for n in range(6)}


def test_a_worker_that_cannot_start_says_why_before_anything_runs() -> None:
    with (
        pytest.raises(EngineError, match="gpu 0: the worker could not start: RuntimeError: this device is not there"),
        LocalPool(unable, [Seat("gpu 0")]),
    ):
        pass
    with pytest.raises(EngineError, match="exit code 3"), LocalPool(silent, [Seat("gpu 0")]):
        pass


def test_leaving_early_ends_the_workers() -> None:
    before = time.monotonic()
    with LocalPool(obedient, [Seat("a"), Seat("b")]) as pool:
        places = [p.process for p in pool._places]
        for _ in pool.run(["square 1", "hang", "hang"]):
            break
    assert not any(p.is_alive() for p in places)
    assert time.monotonic() - before < 60
