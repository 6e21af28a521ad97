"""Tasks on their way to workers: who is next, and what becomes of those a worker held when it ended; the life of a pool."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from accuracy_eval.engine.work import Event, Lost

AHEAD = 2  # tasks a worker holds: the one it runs and the next
PATIENCE = 3  # times a task may be on a worker that ends while another task is the one at fault


class Waiting:
    """Positions of tasks that no worker holds, in the order they are dealt."""

    def __init__(self, count: int) -> None:
        self._numbers = deque(range(count))
        self._troubled: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def take(self) -> int:
        return self._numbers.popleft()

    def after_end(self, seat: str, reason: str, *, at_fault: Sequence[int], others: Sequence[int]) -> Iterator[Lost]:
        """A worker ended: the task at fault is lost; the others it held are dealt next, unless that happened to them too often."""
        for number in at_fault:
            yield Lost(number, seat, f"the worker ended while it ran this: {reason}")
        for number in reversed(others):
            self._troubled[number] = self._troubled.get(number, 0) + 1
            if self._troubled[number] >= PATIENCE:
                yield Lost(number, seat, f"its worker ended {PATIENCE} times, the last time: {reason}")
            else:
                self._numbers.appendleft(number)

    def abandoned(self) -> Iterator[Lost]:
        """No worker is left for what waits."""
        while self._numbers:
            yield Lost(self._numbers.popleft(), "", "no worker is left: each died and could not be started again")


class Clock:
    """Seconds of listening to workers. What passes while this process is stopped (Ctrl-Z, a scheduler that suspends a job), or has other
    work, is no silence of theirs: between two readings twice the longest wait counts at most.

    limit_s   of silence
    moment_s  what one wait may take
    """

    def __init__(self, limit_s: float | None) -> None:
        self.moment_s = 1.0 if limit_s is None else max(0.05, min(1.0, limit_s / 4))
        self._read, self._listened = time.monotonic(), 0.0

    def now(self) -> float:
        before, self._read = self._read, time.monotonic()
        self._listened += min(self._read - before, 2 * self.moment_s)
        return self._listened


class Place(Protocol):
    """A seat and the worker that has it now."""

    hello: Any

    @property
    def alive(self) -> bool:
        """Whether a worker is there, or on its way."""

    @property
    def free(self) -> bool:
        """Whether it takes another task now."""

    def launch(self) -> None:
        """Begin to start a worker."""

    def greet(self, within_s: float) -> None:
        """Wait for its hello. EngineError with its own words when it cannot start."""

    def send(self, number: int, task: Any) -> None:
        """Give it a task."""


P = TypeVar("P", bound=Place)


class Pool(ABC, Generic[P]):
    """Workers at their places, whatever they run on: started together, dealt tasks in order, ended together."""

    def __init__(self, places: Sequence[P], start_s: float) -> None:
        self._places, self._start_s = places, start_s

    def __enter__(self) -> Self:
        try:
            for place in self._places:
                place.launch()
            for place in self._places:
                place.greet(self._start_s)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    @property
    def hellos(self) -> list[Any]:
        """What each worker said it is, in the order of seats."""
        return [p.hello for p in self._places]

    def run(self, tasks: Sequence[Any]) -> Iterator[Event]:
        """One event a task, as they come."""
        waiting = Waiting(len(tasks))
        open_tasks = len(tasks)
        while open_tasks:
            for place in self._places:
                while place.free and waiting:
                    number = waiting.take()
                    place.send(number, tasks[number])
            if not any(p.alive for p in self._places):
                yield from waiting.abandoned()
                return
            for event in self._listen(waiting):
                open_tasks -= 1
                yield event

    @abstractmethod
    def _listen(self, waiting: Waiting) -> Iterator[Event]:
        """What comes within the next moment."""

    @abstractmethod
    def _end(self) -> None:
        """End every worker."""
