"""One file in segments over several connections, for hosts so far away that one connection waits more than it sends.

A connection's window limits what is on its way (OpenSSH: 2 MiB): its speed is the window over the round trip. Several have several.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread

from accuracy_eval.errors import AccuracyEvalError
from accuracy_eval.transfer.links import Link
from accuracy_eval.transfer.remote import STREAMS, Files, Remote

SEGMENT_BYTES = 8 << 20
AHEAD_BYTES = 2 * STREAMS * SEGMENT_BYTES  # what is done lies within so much behind the first byte that is not
Work = Callable[[Files, int, int], None]  # moves the bytes from an offset to another


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
        """The next segment to move; None when there is none left or another stream has failed. Waits rather than run far ahead."""
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

    def wait_beyond(self, position: int) -> int:
        """The frontier once it lies beyond a position; raises what a stream has failed with."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self.frontier > position)
            if self._error:
                raise self._error
            return self.frontier


def move(remote: Remote, segments: Segments, work: Work, follow: Callable[[int, int], None]) -> None:
    """Move all segments; `follow(start, end)` is called, in order and from this thread, for bytes that are done on both sides."""
    links: list[Link] = []

    def stream(number: int) -> None:
        try:
            files = remote.bulk if number == 0 else _further(remote, links)
        except (AccuracyEvalError, OSError, EOFError) as error:  # fewer connections than wished for is no failure
            remote.note(f"{remote.label}: connection {number + 1} not made ({error})")
            return
        try:
            while (segment := segments.take()) is not None:
                work(files, *segment)
                segments.done(segment[0])
        except BaseException as error:  # noqa: BLE001  raised again by the caller's thread
            segments.fail(error)

    threads = [Thread(target=stream, args=(n,), daemon=True) for n in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        position = segments.frontier
        while position < segments.end:
            reached = segments.wait_beyond(position)
            follow(position, reached)
            position = reached
    except BaseException as error:
        segments.fail(error)
        raise
    finally:
        _close(links)  # whoever waits for an answer stops waiting
        for thread in threads:
            thread.join()
        _close(links)


def _close(links: list[Link]) -> None:
    for link in links:
        link.close()


def _further(remote: Remote, links: list[Link]) -> Files:
    link = remote.bulk.link.another()
    links.append(link)
    return remote.bulk.on(link)
