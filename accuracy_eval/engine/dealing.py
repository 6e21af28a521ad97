"""Tasks on their way to workers: who is next, and what becomes of those a worker held when it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from accuracy_eval.engine.work import Lost

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
