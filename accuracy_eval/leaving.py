"""How a process ends that holds what a library cannot put away: such objects are kept, and no destructor of theirs runs.

Destructors of a GPU framework call the device. One that has been lost answers with an error, the destructor throws, and C++ ends the
process by abort: in the middle of other work, or at its end, in place of its exit code. HDF5 crashes at the end of a process in which it
holds a file that the disk does not take.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NoReturn

_KEPT: list[Any] = []


def keep(*objects: Any) -> None:
    """Hold such objects until the process is gone: also while an interpreter that is not left by `leave` takes itself apart."""
    for thing in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _KEPT.extend(objects)


def leave(code: int) -> NoReturn:
    """End the process: by `sys.exit`, or at once, after what was written is out, when there are such objects."""
    if not _KEPT:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)
