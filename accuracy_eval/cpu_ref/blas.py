"""One BLAS thread at a time: tiles are spread over our own threads, each multiplied by a single-threaded BLAS.

Many products of a tile are too small to be worth a BLAS thread pool (on a busy machine its barriers cost more than the work),
and a result that one thread computes does not depend on how many there are. OpenBLAS, which numpy's wheels carry, is asked
through its own symbols; any other BLAS keeps its setting, which costs time only.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

_PREFIXES = ("scipy_openblas_", "openblas_")
_SUFFIXES = ("64_", "")
_lock = threading.Lock()
_users = 0
_before = 0


@cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """(get, set) of the number of threads of numpy's OpenBLAS, or None where numpy uses another BLAS."""
    for path in _openblas_files():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                try:
                    get, put = (getattr(library, f"{prefix}{verb}_num_threads{suffix}") for verb in ("get", "set"))
                except AttributeError:
                    continue
                get.restype, put.restype, put.argtypes = ctypes.c_int, None, [ctypes.c_int]
                return get, put
    return None


def _openblas_files() -> list[str]:
    """OpenBLAS files loaded into this process, else those beside numpy."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        loaded = {line.split()[-1] for line in maps.read_text(encoding="utf-8", errors="replace").splitlines() if "openblas" in line}
        return sorted(loaded)
    root = Path(np.__file__).parent
    return sorted(str(p) for folder in (root.parent / "numpy.libs", root / ".dylibs") for p in folder.glob("*openblas*"))


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS calls made inside use one thread each; the earlier setting comes back when the last such block ends.

    The setting is the process's: other threads' BLAS calls run single-threaded meanwhile.
    """
    global _users, _before
    controls = _controls()
    if controls is None:
        yield
        return
    get, put = controls
    with _lock:
        if _users == 0:
            _before = get()
            put(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                put(_before)
