"""Worker processes: order, pinning, what a death, a hang and a broken device cost."""

from __future__ import annotations

import os
import signal
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


@pytest.mark.parametrize("after", [["square 3"], []])
def test_a_worker_is_told_what_follows(tmp_path: Path, after: list[str]) -> None:
    """It is busy until the last task is sent: with its first answer a worker gets the next but one."""
    tasks = [f"busy-until {tmp_path}/sent", "next", *after]
    with LocalPool(obedient, [Seat("worker 0")]) as pool:
        [place] = pool._places
        send = place.send

        def watched(number: int, task: str) -> None:
            send(number, task)
            if task == tasks[-1]:
                (tmp_path / "sent").touch()

        place.send = watched  # type: ignore[method-assign]
        found = {e.task: e for e in pool.run(tasks)}
    assert isinstance(found[1], Finished)
    assert found[1].value == after


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
    found = results(["hang", "square 2", "square 3"], 1, limit_s=4.0)
    assert isinstance(found[0], Lost)
    assert "no sign of life for 4 s" in found[0].reason
    assert (found[1], found[2]) == (4, 9)


def test_what_passes_while_this_process_is_stopped_is_no_silence_of_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z, or a scheduler that suspends the job: the workers are stopped with it, in the middle of their tasks."""
    monotonic, stopped_s = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + stopped_s[0])
    with LocalPool(obedient, [Seat("worker 0")], limit_s=60.0) as pool:
        [place] = pool._places
        overdue = place.overdue

        def watched(limit_s: float | None) -> bool:
            if not place.held.get(1):  # whether it is begun
                return overdue(limit_s)
            stopped_s[0] = 1000.0
            found = overdue(limit_s)
            (tmp_path / "looked").touch()
            return found

        place.overdue = watched  # type: ignore[method-assign]
        events = list(pool.run(["square 3", f"until {tmp_path}/looked"]))
    assert events == [Finished(0, "worker 0", 9), Finished(1, "worker 0", "over")]


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
    with LocalPool(obedient, [Seat("a"), Seat("b")]) as pool:
        places = [p.process for p in pool._places]
        for _ in pool.run(["square 1", "hang", "hang"]):
            break
    assert [p.exitcode for p in places] == [-signal.SIGKILL] * 2  # not waited for until they end
