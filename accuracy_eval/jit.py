"""The one place that touches numba: a typed decorator for compiled kernels, and threads over fixed chunks.

Kernels release the GIL and are compiled once per signature, cached on disk. They are never `parallel=True`: work is cut into
chunks whose number depends on the data alone and handed to a thread pool, so results do not depend on the thread count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from accuracy_eval.threads import map_threads, thread_count

__all__ = ["inline", "kernel", "map_threads", "thread_count"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` on first call (nopython, no GIL, IEEE division), cached on disk.

    No fast-math: kernels are the yardstick. NUMBA_DISABLE_JIT=1 runs them as plain Python.
    """
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline(function: F) -> F:
    """As `kernel`, for small helpers called inside kernels: always inlined by LLVM, so a helper costs no call."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))
