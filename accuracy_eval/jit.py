"""The one place that touches numba: a typed decorator for compiled kernels, and threads over fixed chunks.

Kernels release the GIL and are compiled once per signature, cached on disk. They are never `parallel=True`: work is cut into
chunks whose number depends on the data alone and handed to a thread pool, so results do not depend on the thread count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.extending import intrinsic

from accuracy_eval.threads import map_threads, thread_count

__all__ = ["as_bits", "as_float", "exact_fma", "fma", "inline", "kernel", "map_threads", "thread_count"]

_UNCOMPILED = bool(vars(numba.core.config)["DISABLE_JIT"])

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` on first call (nopython, no GIL, IEEE division), cached on disk.

    No fast-math: kernels are the yardstick. NUMBA_DISABLE_JIT=1 runs them as plain Python.
    """
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline(function: F) -> F:
    """As `kernel`, for small helpers called inside kernels: always inlined by LLVM, so a helper costs no call."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))


def _intrinsic(generator: Callable[..., Any], python: Callable[..., Any]) -> Callable[..., Any]:
    """`generator` as a function for kernels; `python`, which does the same, where kernels run uncompiled."""
    return python if _UNCOMPILED else cast(Callable[..., Any], intrinsic(generator))


def _fused(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """LLVM's fma of three floats of one width: one instruction where the host has it, the C library's function where not."""
    return (x(x, y, z), lambda context, builder, signature, args: builder.fma(*args)) if x == y == z else None


def _reinterpret(target: Any) -> Callable[..., Any]:
    def generator(typing_context: Any, x: Any) -> Any:
        return target(x), lambda context, builder, signature, args: builder.bitcast(args[0], context.get_value_type(target))

    return generator


def exact_fma(x: Any, y: Any, z: Any) -> Any:
    """x·y + z rounded once to the width of `x` (numpy float32 or float64 scalars), in exact arithmetic: slow, for uncompiled kernels."""
    width = np.float32 if isinstance(x, np.float32) else np.float64
    values = float(x), float(y), float(z)
    with np.errstate(all="ignore"):
        if math.isfinite(values[0]) and math.isfinite(values[1]) and not math.isfinite(values[2]):
            return z
        if not all(map(math.isfinite, values)):
            return width(np.float64(x) * np.float64(y) + np.float64(z))
        total = Fraction(values[0]) * Fraction(values[1]) + Fraction(values[2])
        if total == 0:  # the sign of an exact zero follows IEEE addition
            return width(values[0] * values[1] + values[2]) if 0 in values[:2] else width(0.0)
        bits, lowest, highest = (24, -149, 128) if width is np.float32 else (53, -1074, 1024)
        exponent = total.numerator.bit_length() - total.denominator.bit_length()  # |total| lies within a factor 2 of 2^exponent
        exponent -= abs(total) < Fraction(2) ** exponent
        unit = Fraction(2) ** max(exponent - bits + 1, lowest)
        rounded = abs(round(total / unit) * unit)  # Fraction rounds ties to even
        return width(math.copysign(math.inf if rounded >= Fraction(2) ** highest else float(rounded), 1 if total > 0 else -1))


# For use inside kernels. fma: x·y + z of float32 or float64 scalars of one width, rounded once.
# as_float, as_bits: an int64's 64 bits as a float64, and back.
fma = _intrinsic(_fused, exact_fma)
as_float = _intrinsic(_reinterpret(numba.types.float64), lambda x: np.int64(x).view(np.float64))
as_bits = _intrinsic(_reinterpret(numba.types.int64), lambda x: np.float64(x).view(np.int64))
