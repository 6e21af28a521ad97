"""Ctrl-C in a terminal: one interrupts the command, and those that an impatient user sends right behind it change nothing."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

PATIENCE_S = 2.0  # what an interrupted command takes to put things away; a later Ctrl-C interrupts that too
RETRY_S = 0.05


class Interrupts:
    """Handler of SIGINT. An interrupt that a callback of a C library swallowed, as numba has them, comes again without a traceback."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._unraisable = sys.unraisablehook

    def install(self) -> None:
        """Only where Ctrl-C is heard at all: a shell starts background jobs with it ignored."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._heard)
            sys.unraisablehook = self._swallowed

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last > PATIENCE_S:
            self._last = now
            raise KeyboardInterrupt

    def _swallowed(self, what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self._unraisable(what)
            return
        self._last = None
        again = threading.Timer(RETRY_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        again.daemon = True
        again.start()
