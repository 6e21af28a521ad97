"""A limit on bytes a second."""

from __future__ import annotations

import time
from threading import Lock


class Pace:
    """Sleeps in `spend` so that all callers together stay below `rate` bytes a second; 0: no limit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = 0.0  # when everything spent so far has been paid for
        self._lock = Lock()

    def spend(self, count: int) -> None:
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + count / self._rate
            wait = self._free_at - now
        time.sleep(wait)
