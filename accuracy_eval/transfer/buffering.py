"""A channel's buffer whose cost does not grow with what waits in it.

paramiko's own moves the whole backlog for every packet that is read: with the window that a far host needs, a near one is slowed
to a tenth.
"""

from __future__ import annotations

from collections import deque
from threading import Condition, Event

PATIENCE_S = 0.05  # to save a thread's waking for every packet
HEAD_BYTES = 64  # what paramiko leaves free in a packet of data
Block = bytes | memoryview


class BlockPipe:
    """What paramiko's channels need of a BufferedPipe, keeping packets as they came."""

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque()
        self._changed = Condition()
        self._size = 0
        self._least = 1  # what a reader waits for
        self._closed = False
        self._event: Event | None = None

    def set_event(self, event: Event) -> None:
        """Keep the event set while there is something to read, or the end."""
        with self._changed:
            self._event = event
            (event.set if self._closed or self._blocks else event.clear)()

    def feed(self, data: Block | str) -> None:
        block = data.encode() if isinstance(data, str) else data
        with self._changed:
            if block:
                self._blocks.append(block)
                self._size += len(block)
            if self._event is not None:
                self._event.set()
            if self._size >= self._least:
                self._changed.notify_all()

    def read_ready(self) -> bool:
        with self._changed:
            return bool(self._blocks)

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Up to `nbytes` as soon as there are any; b"" at the end; paramiko's PipeTimeout when the time is over."""
        return b"".join(self.read_blocks(nbytes, 1, timeout))

    def read_blocks(self, most: int, least: int, timeout: float | None = None) -> list[Block]:
        """Packets with up to `most` bytes together as soon as there are `least`; fewer when no more come for a moment or at all."""
        from paramiko.buffered_pipe import PipeTimeout

        with self._changed:
            for self._least, wait_s in ((least, PATIENCE_S), (1, timeout)):
                if self._changed.wait_for(lambda: self._size >= self._least or self._closed, wait_s):
                    return self._take(most)
            raise PipeTimeout

    def empty(self) -> bytes:
        """Everything there is."""
        with self._changed:
            return b"".join(self._take(self._size))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._event is not None:
                self._event.set()
            self._changed.notify_all()

    def __len__(self) -> int:
        return self._size

    def _take(self, most: int) -> list[Block]:
        taken: list[Block] = []
        while self._blocks and most:
            block = self._blocks.popleft()
            if len(block) > most:
                self._blocks.appendleft(block[most:])
                block = block[:most]
            taken.append(block)
            most -= len(block)
            self._size -= len(block)
        if not self._blocks and self._event is not None and not self._closed:
            self._event.clear()
        return taken
