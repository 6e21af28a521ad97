"""A digest that is computed while its bytes travel."""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

WAITING = 4  # blocks that may wait for the digest: bounds memory


class Hasher:
    """SHA-256 on a thread of its own, for the length of a `with` block. hashlib releases the GIL.

    digest  a running SHA-256 to go on from
    """

    def __init__(self, digest: Any = None) -> None:
        self._digest = hashlib.sha256(usedforsecurity=False) if digest is None else digest
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._thread is not None
        self._thread.shutdown()

    def update(self, block: bytes) -> None:
        assert self._thread is not None
        while len(self._waiting) >= WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._digest.update, block))

    def hexdigest(self) -> str:
        """Of all blocks so far."""
        while self._waiting:
            self._waiting.popleft().result()
        return str(self._digest.hexdigest())
