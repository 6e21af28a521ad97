"""Where a case's time went: its stages, when they ran, how long they were busy and the bytes they handled, in any thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """One piece of work of a stage: its start (time.time), its seconds and its bytes.

    taken_s is asked once the work is over; it gives None where they are lost.
    """

    stage: str
    began: float
    taken_s: Callable[[], float | None]
    size: int


class Timeline:
    """The spans of a case, those of `parts` included, also what is added to a part later. Safe to add to from several threads."""

    def __init__(self, *parts: Timeline) -> None:
        self._parts = parts
        self._spans: list[Span] = []

    def add(self, span: Span) -> None:
        self._spans.append(span)

    @contextmanager
    def stage(self, name: str, size: int) -> Iterator[None]:
        """The block that follows is work of that stage, of this thread."""
        began, started = time.time(), time.perf_counter()
        yield
        taken = time.perf_counter() - started
        self.add(Span(name, began, lambda: taken, size))

    def stages(self, since: float) -> dict[str, dict[str, Any]]:
        """By stage: from_s and to_s, its first start and last end after `since`; busy_s, the sum over its spans; bytes.

        All work must be over. Several threads may be busy at once, so busy_s can exceed to_s - from_s.
        """
        found: dict[str, dict[str, Any]] = {}
        for span in self._all():
            taken, began = span.taken_s(), span.began - since
            if taken is None:
                continue
            row = found.setdefault(span.stage, {"from_s": began, "to_s": began, "busy_s": 0.0, "bytes": 0})
            row["from_s"], row["to_s"] = min(row["from_s"], began), max(row["to_s"], began + taken)
            row["busy_s"] += taken
            row["bytes"] += span.size
        return {stage: {k: round(v, 6) for k, v in row.items()} for stage, row in found.items()}

    def _all(self) -> list[Span]:
        return [span for part in self._parts for span in part._all()] + self._spans
