"""What an engine runs and what it reports, whatever the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

Done = Callable[[Any], None]


@dataclass(frozen=True)
class Seat:
    """A place for one worker.

    name         says where in messages: "gpu 0", "worker 3"
    environment  variables its process starts with, before anything is imported; what pins it to a device
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Worker(Protocol):
    """What an engine keeps alive at a seat. Made there by the `start` it is given, which must be picklable."""

    def hello(self) -> Any:
        """What the worker is, sent once."""

    def expect(self, tasks: Sequence[Any]) -> None:
        """What follows the next task, as far as it is known: the worker may prepare for it."""

    def run(self, task: Any, done: Done) -> None:
        """Begin a task and call `done(value)` once, now or later from another thread. Raise Broken to be replaced."""

    def close(self) -> None:
        """Return when every `done` has been called."""


Start = Callable[[Seat], Worker]


class Broken(Exception):
    """Raised by a worker that cannot go on (a device that answers every call with an earlier error): a fresh one takes its seat."""


@dataclass(frozen=True)
class Finished:
    """`task` is the position of the task in the list that was given."""

    task: int
    seat: str
    value: Any


@dataclass(frozen=True)
class Lost:
    """A task whose worker died or hung while it ran, or that no worker is left for."""

    task: int
    seat: str
    reason: str


Event = Finished | Lost


class Pool(AbstractContextManager["Pool"], Protocol):
    """Workers at their seats. Use as a context manager; EngineError on entry when one cannot start: nothing has run then."""

    @property
    def hellos(self) -> list[Any]:
        """What each worker said it is, in the order of seats."""

    def run(self, tasks: Sequence[Any]) -> Iterator[Event]:
        """One event a task, as they come."""
