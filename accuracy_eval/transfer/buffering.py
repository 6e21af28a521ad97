"""A channel's buffer whose cost does not grow with what waits in it.

paramiko's own moves the whole backlog for every packet that is read: with the window that a far host needs, a near one is slowed
to a tenth.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Condition, Event


class BlockPipe:
    """What paramiko's channels need of a BufferedPipe, keeping packets as they came."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._changed = Condition()
        self._closed = False
        self._event: Event | None = None

    def set_event(self, event: Event) -> None:
        """Keep the event set while there is something to read, or the end."""
        with self._changed:
            self._event = event
            (event.set if self._closed or self._blocks else event.clear)()

    def feed(self, data: bytes | str) -> None:
        block = data.encode() if isinstance(data, str) else bytes(data)
        with self._changed:
            if block:
                self._blocks.append(block)
            if self._event is not None:
                self._event.set()
            self._changed.notify_all()

    def read_ready(self) -> bool:
        with self._changed:
            return bool(self._blocks)

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Up to `nbytes` as soon as there are any; b"" at the end; paramiko's PipeTimeout when the time is over."""
        from paramiko.buffered_pipe import PipeTimeout

        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._blocks and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if (left is not None and left <= 0) or not self._changed.wait(left):
                    raise PipeTimeout
            return self._take(nbytes)

    def empty(self) -> bytes:
        """Everything there is."""
        with self._changed:
            return self._take(len(self))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._event is not None:
                self._event.set()
            self._changed.notify_all()

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def _take(self, most: int) -> bytes:
        taken = []
        while self._blocks and most:
            block = self._blocks.popleft()
            if len(block) > most:
                self._blocks.appendleft(block[most:])
                block = block[:most]
            taken.append(block)
            most -= len(block)
        if not self._blocks and self._event is not None and not self._closed:
            self._event.clear()
        return b"".join(taken)
