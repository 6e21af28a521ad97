"""Subnormal numbers of float32, which float32 arithmetic may take for zero: operands, products, sums and results below 2^-126.

Vector units with their flush flag set, and libraries that set it, do so for float32 and for bfloat16, whose exponents are the same.
Subnormals of float16 lie a hundred binades higher, in the range of values people store: losing them is an error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Values, get_format, ulp

SMALLEST = 2.0**-126  # normal number of float32 and bfloat16


def stored(size: Values, fmt: str) -> Values:
    """What a step of that magnitude may lose as a device keeps it in `fmt`: half a step of it, doubled, for many elements come close to the
    half; twice the whole where it may become zero."""
    step = ulp(size, fmt)
    return np.where(subnormal(size), 2.0 * SMALLEST, step) if get_format(fmt).smallest_normal == SMALLEST else step


def vanishing(size: Values, fmt: str) -> Values:
    """What a step of the arithmetic in `fmt` may lose of a result of that magnitude below its normal numbers: a step of its subnormals, and
    twice the whole where it may become zero."""
    f = get_format(fmt)
    whole = 2.0 * np.abs(size) if f.smallest_normal == SMALLEST else 0.0
    return np.where(np.abs(size) < f.smallest_normal, whole + f.smallest_subnormal, 0.0)


def subnormal(x: Values) -> NDArray[np.bool_]:
    """Which values a device may take for zero."""
    return np.asarray((x != 0) & (np.abs(x) < SMALLEST))


def lost_products(a: Values, b: Values) -> Values | None:
    """Σ 2·|a·b| over the products of a [m, k] and b [k, n] with an operand that may become zero, [m, n]; None: there is none.

    Doubled as every error is that a healthy device makes in full: it uses half its budget.
    """
    small_a, small_b = subnormal(a), subnormal(b)
    if not (small_a.any() or small_b.any()):
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # 0·Inf where the product is not finite either
        size_a, size_b = np.abs(a), np.abs(b)
        lost: Values = np.where(small_a, size_a, 0.0) @ size_b + size_a @ np.where(small_b, size_b, 0.0)
        lost *= 2.0
    return lost


def lost_infinities(a: Values, b: Values) -> NDArray[np.bool_]:
    """Which products' sums [m, n] hold Inf times an operand that may become zero: NaN then."""
    found: NDArray[np.bool_] = (np.isinf(a).astype(np.float32) @ subnormal(b).astype(np.float32)) > 0
    found |= (subnormal(a).astype(np.float32) @ np.isinf(b).astype(np.float32)) > 0
    return found


def lost_steps(terms: int, *, flushes: bool) -> float:
    """What a sum of that many products may lose where products, running sums, an addend and the result become zero or, in float64, are
    rounded to its smallest steps."""
    return (2 * terms + 2) * (SMALLEST if flushes else 2.0**-1074)
