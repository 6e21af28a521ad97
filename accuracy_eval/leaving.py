"""How a process ends that holds what a library cannot put away: such objects are kept, and no destructor of theirs runs.

Destructors of a GPU framework call the device. One that has been lost answers with an error, the destructor throws, and C++ ends the
process by abort: in the middle of other work, or at its end, in place of its exit code. HDF5 crashes at the end of a process in which it
holds a file that the disk does not take.

A user's kernel may have started threads that never end; Python would wait for them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, NoReturn

_KEPT: list[Any] = []
THREADS_END_S = 2.0  # what threads that are left have to end in


def keep(*objects: Any) -> None:
    """Hold such objects until the process is gone: also while an interpreter that is not left by `leave` takes itself apart."""
    for thing in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _KEPT.extend(objects)


def leave(code: int) -> NoReturn:
    """End the process: by `sys.exit`, or at once, after what was written is out, when there are such objects."""
    if _KEPT:
        _end(code)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        waited = threading.Timer(THREADS_END_S, _end, (code,))
        waited.daemon = True
        waited.start()
    sys.exit(code)


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)
