"""One file in segments over several channels and connections, for hosts so far away that one channel waits more than it sends.

A channel's window limits what is on its way (OpenSSH: 2 MiB): its speed is the window over the round trip. TCP's limits are a connection's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from threading import Condition, Thread

from accuracy_eval.errors import AccuracyEvalError
from accuracy_eval.transfer.links import Link
from accuracy_eval.transfer.remote import CHANNELS, CONNECTIONS, Files, Remote

SEGMENT_BYTES = 4 << 20
AHEAD_BYTES = 2 * CONNECTIONS * CHANNELS * SEGMENT_BYTES  # what is done lies within so much behind the first byte that is not
Work = Callable[[int, int], None]  # moves the bytes from an offset to another


class Segments:
    """Deals out the bytes from `start` to `end` in order and knows up to where all are done."""

    def __init__(self, start: int, end: int) -> None:
        self.end = end
        self.frontier = start
        self._next = start
        self._done: set[int] = set()
        self._error: BaseException | None = None
        self._changed = Condition()

    def take(self) -> tuple[int, int] | None:
        """The next segment to move; None when there is none left or another channel has failed. Waits rather than run far ahead."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._next < self.frontier + AHEAD_BYTES)
            if self._error or self._next >= self.end:
                return None
            start = self._next
            self._next = min(self.end, start + SEGMENT_BYTES)
            return start, self._next

    def done(self, start: int) -> None:
        with self._changed:
            self._done.add(start)
            while self.frontier in self._done:
                self._done.remove(self.frontier)
                self.frontier = min(self.end, self.frontier + SEGMENT_BYTES)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what a channel has failed with."""
        with self._changed:
            if self._error:
                raise self._error

    def wait_beyond(self, position: int) -> int:
        """The frontier once it lies beyond a position; raises what a channel has failed with."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self.frontier > position)
            self.check()
            return self.frontier


def move(remote: Remote, segments: Segments, work: Callable[[Files], AbstractContextManager[Work]], meter: Callable[[int], None]) -> None:
    """Move all segments; `meter` is called, from this thread, with up to where all bytes are done on both sides.

    work   prepares the files of one channel for the moves that follow
    """
    crew = _Crew(remote, segments, work, remote.spread())
    threads = [Thread(target=crew.connection, args=(n,), daemon=True) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    try:
        position = segments.frontier
        while position < segments.end:
            position = segments.wait_beyond(position)
            meter(position)
    except BaseException as error:
        segments.fail(error)
        remote.gather()  # whoever waits for an answer stops waiting
        raise
    finally:
        for thread in threads:
            thread.join()
    segments.check()


@dataclass
class _Crew:
    """The threads of a transfer: one a connection, which has one a channel."""

    remote: Remote
    segments: Segments
    work: Callable[[Files], AbstractContextManager[Work]]
    further: list[Future[Link]]

    def connection(self, number: int) -> None:
        files = self.remote.far
        try:
            link = self.further[number - 1].result() if number else files.link
        except (AccuracyEvalError, OSError, EOFError) as error:  # fewer connections than wished for is no failure
            self.remote.note(f"{self.remote.label}: connection {number + 1} not made ({error})")
            return
        threads = [Thread(target=self.channel, args=(link, number == n == 0), daemon=True) for n in range(CHANNELS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def channel(self, link: Link, first: bool) -> None:
        needed = first  # a host may limit the channels of a connection: to one at least
        try:
            files = self.remote.far if first else self.remote.far.on(link)
            with nullcontext() if first else closing(files), self.work(files) as move_segment:
                needed = True
                while (segment := self.segments.take()) is not None:
                    move_segment(*segment)
                    self.segments.done(segment[0])
        except BaseException as error:  # noqa: BLE001  raised again by the caller's thread
            if needed:
                self.segments.fail(error)
