"""One process a seat on this host. A worker that dies or hangs costs the task it was running and is replaced.

Tasks are dealt in the order given, to whoever is free: sorted longest first, the last ones to finish are short. Each worker is sent
one task ahead, so that it has work while its last answer travels. Workers end with the process that started them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from accuracy_eval.engine.dealing import AHEAD, Clock, Pool, Waiting
from accuracy_eval.engine.work import Broken, Event, Finished, Seat, Start
from accuracy_eval.errors import EngineError, described
from accuracy_eval.leaving import leave

START_S = 180.0  # until a worker must have said hello: importing a framework from a cold disk takes a minute
STARTS = 3  # of a worker, one after the other, that end before it says hello; something else may have ended it
CLOSE_S = 60.0  # until workers that have nothing left to do must have ended


class LocalPool(Pool["_Place"]):
    """Workers at their seats. Use as a context manager; `hellos` are there on entry.

    limit_s  seconds a worker may give no sign of life while it has a task; None: no limit
    EngineError when a worker cannot start: nothing has run then.
    """

    def __init__(self, start: Start, seats: Sequence[Seat], *, limit_s: float | None = None) -> None:
        self._limit, self._clock = limit_s, Clock(limit_s)
        super().__init__([_Place(seat, start, self._clock) for seat in seats], START_S)

    def _listen(self, waiting: Waiting) -> Iterator[Event]:
        """What comes within the next moment."""
        places = {p.conn: p for p in self._places if p.conn is not None}
        for conn in wait(list(places), timeout=self._clock.moment_s):
            place = places[conn]  # type: ignore[index]
            try:
                yield from place.take()
            except (EOFError, OSError):
                yield from self._replace(place, place.cause(), waiting)
        for place in self._places:
            if place.overdue(self._limit):
                place.kill()
                reason = f"no sign of life for {self._limit:g} s" if place.greeted else f"did not start within {START_S:.0f} s"
                yield from self._replace(place, reason, waiting)

    def _replace(self, place: _Place, reason: str, waiting: Waiting) -> Iterator[Event]:
        started, unstarted = place.drop()
        yield from waiting.after_end(place.seat.name, reason, at_fault=started[-1:], others=[*started[:-1], *unstarted])
        if place.greeted or place.starts < STARTS:
            place.launch()
        # one that never says hello would not the next time either: its seat stays empty

    def _end(self) -> None:
        for place in self._places:
            place.dismiss()
        until = time.monotonic() + CLOSE_S
        for place in self._places:
            place.bury(until)


class _Place:
    """A seat, the process that has it now, and the tasks it holds."""

    def __init__(self, seat: Seat, start: Start, clock: Clock) -> None:
        self.seat, self._start, self._clock = seat, start, clock
        self.conn: Connection | None = None
        self.process: Any = None
        self.hello: Any = None
        self.ready = self.greeted = False
        self.starts = 0  # since a worker has last said hello
        self.held: dict[int, bool] = {}  # task -> whether it was begun
        self._heard = 0.0
        self._words = ""  # of a worker that says why it ends

    @property
    def alive(self) -> bool:
        return self.conn is not None

    @property
    def free(self) -> bool:
        return self.ready and len(self.held) < AHEAD

    def launch(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.conn, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._start, self.seat), name=self.seat.name)
        with _variables(self.seat.environment), _interrupts_held():
            process.start()
            self.process = process
        theirs.close()
        self.ready = self.greeted = False
        self.starts += 1
        self._heard = self._clock.now()

    def greet(self, within_s: float) -> None:
        """Wait for hello. EngineError with the worker's own words when it cannot start."""
        assert self.conn is not None
        while not self.ready:
            if not self.conn.poll(self._clock.moment_s):
                if self._clock.now() - self._heard > within_s:
                    raise EngineError(f"{self.seat.name}: the worker did not start within {within_s:.0f} s")
                continue
            try:
                list(self.take())
            except (EOFError, OSError):
                raise EngineError(f"{self.seat.name}: the worker could not start: {self.cause()}") from None

    def send(self, number: int, task: Any) -> None:
        assert self.conn is not None
        if not self.held:
            self._heard = self._clock.now()
        self.held[number] = False
        with contextlib.suppress(OSError):  # it has just died: reading from it will say so
            self.conn.send((number, task))

    def take(self) -> Iterator[Event]:
        """The next message. EOFError when the worker has ended."""
        assert self.conn is not None
        kind, *rest = self.conn.recv()
        self._heard = self._clock.now()
        if kind == "hello":
            self.hello, self.ready, self.greeted, self.starts = rest[0], True, True, 0
        elif kind == "begun":
            self.held[rest[0]] = True
        elif kind == "done":
            if self.held.pop(rest[0], None) is not None:
                yield Finished(rest[0], self.seat.name, rest[1])
        else:  # "failed": it ends next, and these are its words
            self._words = str(rest[0])

    def cause(self) -> str:
        """Why the process ended."""
        self.process.join(5)
        code = self.process.exitcode
        if self._words:
            return self._words
        if code is not None and code < 0:
            return f"{signal.Signals(-code).name} ({signal.strsignal(-code)})"
        return f"exit code {code}"

    def overdue(self, limit_s: float | None) -> bool:
        if not self.alive:
            return False
        silent = self._clock.now() - self._heard
        return silent > START_S if not self.ready else bool(self.held) and limit_s is not None and silent > limit_s

    def drop(self) -> tuple[list[int], list[int]]:
        """The tasks it held, (begun, not begun), in the order they were sent; the process is gone."""
        begun, unbegun = [n for n, b in self.held.items() if b], [n for n, b in self.held.items() if not b]
        self.held.clear()
        self._words = ""
        if self.conn is not None:
            self.conn.close()
        self.conn, self.ready = None, False
        return begun, unbegun

    def kill(self) -> None:
        self.process.kill()
        self.process.join(5)

    def dismiss(self) -> None:
        if self.conn is not None:
            with contextlib.suppress(OSError):
                self.conn.send(None)

    def bury(self, until: float) -> None:
        if self.process is None:
            return
        if self.held or not self.ready:  # its answer is not wanted any more
            self.process.kill()
        self.process.join(max(0.1, until - time.monotonic()))
        if self.process.is_alive():
            self.kill()
        if self.conn is not None:
            self.conn.close()
            self.conn = None


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """os.environ with `values`, for the processes started inside."""
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits: a process that is started inside hears none until it says so, however long its imports take."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(conn: Connection, start: Start, seat: Seat) -> None:
    """A worker process: hello, then tasks until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    lock = threading.Lock()

    def say(*message: Any) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            conn.send(message)

    try:
        worker = start(seat)
        say("hello", worker.hello())
    except Exception as error:  # noqa: BLE001  whatever it is, the other side must hear it
        say("failed", described(error))
        raise SystemExit(1) from None
    try:
        held: deque[Any] = deque()  # what has come and is not begun
        while True:
            while not held or conn.poll():
                held.append(conn.recv())
            if (message := held.popleft()) is None:
                break
            number, task = message
            worker.expect([coming[1] for coming in held if coming is not None])
            say("begun", number)
            worker.run(task, partial(say, "done", number))
    except (EOFError, ConnectionResetError):
        os._exit(1)  # whoever wanted the answers is gone
    except Broken as error:
        say("failed", str(error))
        worker.close()
        leave(1)
    worker.close()
    leave(0)
