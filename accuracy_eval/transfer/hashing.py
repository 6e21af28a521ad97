"""A digest that is computed while its bytes travel."""

from __future__ import annotations

import hashlib
import os
from threading import Condition, Thread
from typing import Any, Self

BLOCK_BYTES = 1 << 19  # stays in a core's own cache


class FileDigest:
    """SHA-256 of an open file as its bytes come, on a thread of its own, for the length of a `with` block.

    fd      the file
    start   how many of its bytes `digest`, a running SHA-256, has taken in already
    """

    def __init__(self, fd: int, start: int = 0, digest: Any = None) -> None:
        self._fd = fd
        self._position = self._reached = start
        self._digest = hashlib.sha256(usedforsecurity=False) if digest is None else digest
        self._error: OSError | None = None
        self._stopped = False
        self._changed = Condition()
        self._thread = Thread(target=self._work, name="sha256", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def reach(self, position: int) -> None:
        """Say that the bytes before a position are in the file."""
        with self._changed:
            self._reached = position
            self._changed.notify_all()

    def hexdigest(self) -> str:
        """Of all bytes reached; of fewer where the file has become shorter."""
        with self._changed:
            self._changed.wait_for(lambda: self._position >= self._reached or self._stopped)
            if self._error is not None:
                raise self._error
            return str(self._digest.hexdigest())

    def _work(self) -> None:
        block = memoryview(bytearray(BLOCK_BYTES))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._reached > self._position or self._stopped)
                if self._stopped:
                    return
                wanted = min(BLOCK_BYTES, self._reached - self._position)
            try:  # outside of the lock: nobody waits for a disk
                count = os.preadv(self._fd, [block[:wanted]], self._position)
            except OSError as error:
                count, self._error = 0, error
            self._digest.update(block[:count])
            with self._changed:
                self._position += count
                self._stopped = self._stopped or not count
                self._changed.notify_all()


def digest_of(fd: int, length: int) -> Any:
    """The running SHA-256 after the first `length` bytes of an open file."""
    digest = hashlib.sha256(usedforsecurity=False)
    block = memoryview(bytearray(min(BLOCK_BYTES, length)))
    position = 0
    while position < length and (count := os.preadv(fd, [block[: length - position]], position)):
        digest.update(block[:count])
        position += count
    return digest
