"""The one place that touches numba: a typed decorator for compiled kernels, and threads over fixed chunks.

Kernels release the GIL and are compiled once per signature, cached on disk. They are never `parallel=True`: work is cut into
chunks whose number depends on the data alone and handed to a thread pool, so results do not depend on the thread count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")


def kernel(function: F) -> F:
    """Compile `function` on first call (nopython, no GIL, IEEE division), cached on disk.

    No fast-math: kernels are the yardstick. NUMBA_DISABLE_JIT=1 runs them as plain Python.
    """
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline(function: F) -> F:
    """As `kernel`, for small helpers called inside kernels: always inlined by LLVM, so a helper costs no call."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))


def thread_count() -> int:
    """Threads to use: ACCURACY_EVAL_THREADS, else the cores this process may run on."""
    wanted = os.environ.get("ACCURACY_EVAL_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_threads(function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None) -> list[R]:
    """[function(x) for x in items] on a thread pool, results in order of items; the first exception is raised."""
    work: Sequence[T] = list(items)
    count = min(threads or thread_count(), len(work))
    if count <= 1:
        return [function(x) for x in work]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, work))
