"""Products of operands whose products float64 cannot hold (float64, int32): sums kept in two float64 numbers.

Each product is split exactly (Dekker, without fused multiply-add, so that every host gets the same bits) and added to hi + lo
(Ogita, Rump, Oishi 2005, Dot2). Error of hi + lo: at most K²·2^-104·(|A||B|). Rows and columns are scaled by powers of two first:
nothing overflows before the result does; the split of a product loses bits only 2^-960 below the largest of its row and column.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.pairs import Pair, high_part, lost, two_prod, two_sum
from accuracy_eval.formats import Values
from accuracy_eval.jit import kernel, map_threads

COLUMNS = 256  # columns worked on at a time: three rows of B and two of sums stay in the first-level cache
ROWS = 64


@kernel
def _split(x: Any, high: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            high[i, j] = high_part(x[i, j])


@kernel
def _dot2(a: Any, b: Any, b_high: Any, hi: Any, lo: Any) -> None:
    """hi + lo = a·b; a [r, k], b and b_high [k, c], hi and lo [r, c] zero on entry."""
    for i in range(a.shape[0]):
        for t in range(a.shape[1]):
            x = a[i, t]
            xh = high_part(x)
            xl = x - xh
            for j in range(b.shape[1]):
                y = b[t, j]
                yh = b_high[t, j]
                p = x * y
                hi[i, j], e = two_sum(hi[i, j], p)
                lo[i, j] += e + lost(p, xh, xl, yh, y - yh)


@kernel
def combine(hi: Any, lo: Any, alpha: float, beta: float, c: Any, bias: Any, high: Any, low: Any) -> None:
    """high + low = alpha·(hi + lo) + beta·c + bias, in about 100 bits. c [r, n] or [0, 0], bias [n] or [0]."""
    for i in range(hi.shape[0]):
        for j in range(hi.shape[1]):
            h, e = _times(hi[i, j], lo[i, j], alpha)
            if c.shape[0] > 0:
                p, q = _times(c[i, j], 0.0, beta)
                h, r = two_sum(h, p)
                e += r + q
            if bias.shape[0] > 0:
                h, r = two_sum(h, bias[j])
                e += r
            n = h + e if np.isfinite(h) else h  # the error of a sum with Inf is NaN
            if np.isfinite(n):
                high[i, j], low[i, j] = n, e - (n - h)
            else:
                high[i, j], low[i, j] = n, 0.0


@kernel
def _times(hi: float, lo: float, f: float) -> Pair:
    p = hi * f
    if f == 1.0 or not np.isfinite(p) or abs(hi) > 2.0**990 or abs(f) > 2.0**990:
        return p, lo * f
    p, e = two_prod(hi, f)
    return p, e + lo * f


def product(a: Values, b: Values) -> tuple[Values, Values]:
    """(hi, lo) with hi + lo = a·b: a [r, K], b [K, c] float64 of any range; NaN and Inf as IEEE float64 gives them (lo is 0 there)."""
    ea, eb = exponents(a, 1), exponents(b, 0)
    finite_a, finite_b = np.asarray(np.isfinite(a).all(axis=1)), np.asarray(np.isfinite(b).all(axis=0))
    x, y = np.ascontiguousarray(np.ldexp(a, -ea)), np.ascontiguousarray(np.ldexp(b, -eb))
    x[~finite_a], y[:, ~finite_b] = 0.0, 0.0
    hi, lo = np.zeros((a.shape[0], b.shape[1])), np.zeros((a.shape[0], b.shape[1]))
    high = np.empty_like(y)
    _split(y, high)

    def run(cols: slice) -> None:
        yc, hc = np.ascontiguousarray(y[:, cols]), np.ascontiguousarray(high[:, cols])
        for i in range(0, len(x), ROWS):
            _dot2(x[i : i + ROWS], yc, hc, hi[i : i + ROWS, cols], lo[i : i + ROWS, cols])

    map_threads(run, [slice(j, min(j + COLUMNS, y.shape[1])) for j in range(0, y.shape[1], COLUMNS)])
    total = hi + lo
    lost = _may_be_lost(_smallest(a, ea, 1), _smallest(b, eb, 0), total)
    lost &= finite_a[:, None] & finite_b[None, :]
    z = total - hi
    lo = (hi - (total - z)) + (lo - z)
    scale = ea + eb
    # two steps: one factor alone may leave the range of float64 although the result does not
    half = scale // 2
    with np.errstate(over="ignore"):
        hi = np.ldexp(np.ldexp(total, half), scale - half)
        lo = np.where(np.isfinite(hi), np.ldexp(np.ldexp(lo, half), scale - half), 0.0)
    for i, j in np.argwhere(lost):
        hi[i, j], lo[i, j] = _exact(a[i], b[:, j])
    # Inf or NaN among the operands decides; finite terms must not overflow on the way to it
    plain_a, plain_b = (np.where(np.isfinite(v), np.sign(v), v) for v in (a, b))
    for rows, cols in ((~finite_a, slice(None)), (slice(None), ~finite_b)):
        hi[rows, cols] = plain_a[rows] @ plain_b[:, cols]
        lo[rows, cols] = 0.0
    return hi, lo


def out_of_range(a: Values, b: Values, size: Values) -> NDArray[np.bool_]:
    """Elements [r, c] of a·b whose products, scaled by the largest of their row and column, may be too small to square.

    size  [r, c], of about an ulp of the sum
    """
    ea, eb = exponents(a, 1), exponents(b, 0)
    small = _smallest(a, ea, 1) + _smallest(b, eb, 0) < -450
    return np.asarray(small & (np.ldexp(size, -(ea + eb)) < 2.0**-500))


def _smallest(x: Values, exponent: NDArray[np.int64], axis: int) -> Values:
    """log2 of the smallest non-zero magnitude of each row (axis 1) or column (axis 0) beside its largest; Inf where all are zero.

    Taken before scaling, which may itself round the smallest to zero.
    """
    smallest = np.where(x == 0, np.inf, np.abs(x)).min(axis=axis, keepdims=True, initial=np.inf)
    return np.asarray(np.log2(smallest) - exponent)


def _may_be_lost(small_a: Values, small_b: Values, total: Values) -> NDArray[np.bool_]:
    """Elements so small beside their row's and column's largest that products of the scaled operands may have underflowed: the large
    ones met zeros. Above 2^-900 what underflowed (below K·2^-1022) is beyond the doubled accumulator anyway."""
    return np.asarray((np.abs(total) < 2.0**-900) & (small_a + small_b < -900))


def _exact(a: Values, b: Values) -> tuple[float, float]:
    """(hi, lo) of one dot product in exact arithmetic."""
    both = np.flatnonzero((a != 0) & (b != 0))
    total = sum((Fraction(float(a[k])) * Fraction(float(b[k])) for k in both), Fraction(0))
    try:
        hi = float(total)
        return hi, float(total - Fraction(hi))
    except OverflowError:
        return math.inf if total > 0 else -math.inf, 0.0


def exponents(x: Values, axis: int) -> NDArray[np.int64]:
    """Exponent e of the largest magnitude of each row (axis 1) or column (axis 0), which is in [2^(e-1), 2^e); 1 with NaN or Inf."""
    largest = np.abs(x).max(axis=axis, keepdims=True, initial=0.0)
    return np.frexp(np.where(np.isfinite(largest), largest, 1.0))[1].astype(np.int64)
