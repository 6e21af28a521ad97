"""One compiled loop for each special function, in double-double: value = hi + lo.

Every loop takes x [n], y [n] (float64; unary functions ignore y) and writes hi [n], lo [n] (float64, |lo| ≤ ulp(hi)/2). The relative
error of hi + lo is below 2^-67 where |hi| ≥ 2^-900; below that hi alone is within
one ulp. lo = 0 with a result that is not exact only where a limit decides it (saturated, overflowed, underflowed, non-finite operand).
Non-finite operands give what the formula in `special_functions.FUNCTIONS` gives step by step in IEEE arithmetic.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import _double_double as dd
from accuracy_eval.cpu_ref._double_double import add, div, exp_unscaled, mul, scale, times
from accuracy_eval.cpu_ref._special_pieces import (
    ERF_SLOPE_H,
    ERF_SLOPE_L,
    INF,
    INV_LN2_H,
    INV_LN2_L,
    INV_LN10_H,
    INV_LN10_L,
    LN2_H,
    LN2_L,
    NAN,
    SOFTPLUS_THRESHOLD,
    TINY,
    clamp,
    gelu_tanh_argument,
    scaled_logistic,
    scaled_normal_cdf,
)
from accuracy_eval.cpu_ref.pairs import Pair, quick_two_sum
from accuracy_eval.jit import kernel

Array = NDArray[np.float64]


@kernel
def exp_at(x: float) -> Pair:
    if math.isnan(x):
        return NAN, 0.0
    return dd.exp(x, 0.0)


@kernel
def exp(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = exp_at(x[i])


@kernel
def exp2_at(x: float) -> Pair:
    if math.isnan(x):
        return NAN, 0.0
    if x >= 1025.0:
        return INF, 0.0
    if x <= -1076.0:
        return 0.0, 0.0
    n = math.floor(x + 0.5)
    th, tl = times(0, LN2_H, LN2_L, x - n)
    k, h, low = exp_unscaled(th, tl)
    return scale(h, low, k + n)


@kernel
def exp2(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = exp2_at(x[i])


@kernel
def expm1_at(x: float) -> Pair:
    if math.isnan(x):
        return NAN, 0.0
    if abs(x) < TINY:
        return x, 0.5 * x * x
    return dd.expm1(x, 0.0)


@kernel
def expm1(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = expm1_at(x[i])


@kernel
def log_at(x: float) -> Pair:
    if x == 0.0:
        return -INF, 0.0
    if not x > 0.0:
        return NAN, 0.0
    if x == INF:
        return INF, 0.0
    return dd.log(x)


@kernel
def log(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = log_at(x[i])


@kernel
def log2_at(x: float) -> Pair:
    if not 0.0 < x < INF:
        return log_at(x)
    k, h, low = dd.log_parts(x)
    h, low = mul(h, low, INV_LN2_H, INV_LN2_L)
    return add(float(k), 0.0, h, low)


@kernel
def log2(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = log2_at(x[i])


@kernel
def log10_at(x: float) -> Pair:
    h, low = log_at(x)
    if not 0.0 < x < INF:
        return h, low
    return mul(h, low, INV_LN10_H, INV_LN10_L)


@kernel
def log10(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = log10_at(x[i])


@kernel
def log1p_at(x: float) -> Pair:
    if x == -1.0:
        return -INF, 0.0
    if not x > -1.0:
        return NAN, 0.0
    if x == INF:
        return INF, 0.0
    if abs(x) < TINY:
        return x, -0.5 * x * x
    return dd.log1p(x, 0.0)


@kernel
def log1p(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = log1p_at(x[i])


@kernel
def sqrt_at(x: float) -> Pair:
    if x == 0.0 or x == INF:
        return x, 0.0
    if not x > 0.0:
        return NAN, 0.0
    return dd.sqrt(x)


@kernel
def sqrt(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = sqrt_at(x[i])


@kernel
def rsqrt_at(x: float) -> Pair:
    if x == 0.0:
        return math.copysign(INF, x), 0.0
    if not x > 0.0:
        return NAN, 0.0
    if x == INF:
        return 0.0, 0.0
    return dd.rsqrt(x)


@kernel
def rsqrt(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = rsqrt_at(x[i])


@kernel
def reciprocal_at(x: float) -> Pair:
    if x == 0.0:
        return math.copysign(INF, x), 0.0
    if math.isnan(x) or math.isinf(x):
        return 1.0 / x, 0.0
    return dd.reciprocal(x)


@kernel
def reciprocal(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = reciprocal_at(x[i])


@kernel
def sigmoid_at(x: float) -> Pair:
    if math.isnan(x):
        return NAN, 0.0
    k, h, low = scaled_logistic(clamp(x), 0.0)
    return scale(h, low, k)


@kernel
def sigmoid(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = sigmoid_at(x[i])


@kernel
def tanh_at(x: float) -> Pair:
    if math.isnan(x):
        return NAN, 0.0
    if abs(x) > 60.0:
        return math.copysign(1.0, x), 0.0
    if abs(x) < TINY:
        return x, -1e-60 * x
    h, low = dd.expm1(2.0 * x, 0.0)
    bh, bl = add(2.0, 0.0, h, low)
    return div(h, low, bh, bl)


@kernel
def tanh(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = tanh_at(x[i])


@kernel
def erf_at(x: float) -> Pair:
    if math.isnan(x):
        return NAN, 0.0
    if abs(x) < TINY:
        return (x, 0.0) if x == 0.0 else times(0, ERF_SLOPE_H, ERF_SLOPE_L, x)
    return dd.erf(x)


@kernel
def erf(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = erf_at(x[i])


@kernel
def trig_at(x: float, quadrant: int, scratch: NDArray[np.int64]) -> Pair:
    """sin(x + quadrant·π/2)."""
    if not abs(x) < INF:
        return NAN, 0.0
    if x == 0.0:
        return (x, 0.0) if quadrant == 0 else (2.0 - quadrant, 0.0)
    return dd.sin_cos(x, quadrant, scratch)


@kernel
def sin(x: Array, y: Array, hi: Array, lo: Array) -> None:
    scratch = np.zeros(dd.SCRATCH, np.int64)
    for i in range(x.size):
        hi[i], lo[i] = trig_at(x[i], 0, scratch)


@kernel
def cos(x: Array, y: Array, hi: Array, lo: Array) -> None:
    scratch = np.zeros(dd.SCRATCH, np.int64)
    for i in range(x.size):
        hi[i], lo[i] = trig_at(x[i], 1, scratch)


@kernel
def power_at(x: float, y: float, yl: float) -> Pair:
    """x^(y + yl), special operands as C99 F.10.4.4; yl counts for finite x > 0 only."""
    if x == 1.0 or (y == 0.0 and yl == 0.0):
        return 1.0, 0.0
    if math.isnan(x) or math.isnan(y):
        return NAN, 0.0
    ax = abs(x)
    if math.isinf(y):
        if ax == 1.0:
            return 1.0, 0.0
        return (INF, 0.0) if (ax > 1.0) == (y > 0.0) else (0.0, 0.0)
    whole, odd = True, False
    if abs(y) < 9007199254740992.0:  # 2^53; beyond it every number is an even integer, and too large for floor
        whole = math.floor(y) == y
        odd = whole and math.floor(y) % 2 == 1
    sign = math.copysign(1.0, x) if odd else 1.0
    if ax == 0.0 or ax == INF:
        return (sign * INF, 0.0) if (ax == 0.0) == (y < 0.0) else (sign * 0.0, 0.0)
    if x < 0.0 and not whole:
        return NAN, 0.0
    if ax == 1.0:
        return sign, 0.0
    lh, ll = dd.log(ax)
    guess = lh * y
    if guess > 710.0:
        return sign * INF, 0.0
    if guess < -746.0:
        return sign * 0.0, 0.0
    if abs(guess) < 1e-280:
        return quick_two_sum(sign, sign * guess)
    th, tl = times(0, lh, ll, y)
    h, low = dd.exp(th, tl + yl * lh)
    return sign * h, sign * low


@kernel
def pow(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = power_at(x[i], y[i], 0.0)


@kernel
def gelu_at(x: float) -> Pair:
    if not 0.0 < abs(x) < INF:
        return (NAN, 0.0) if x == -INF else (x, 0.0)
    k, h, low = scaled_normal_cdf(x)
    return times(k, h, low, x)


@kernel
def gelu(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = gelu_at(x[i])


@kernel
def gelu_tanh_at(x: float) -> Pair:
    if not 0.0 < abs(x) < INF:
        return (NAN, 0.0) if x == -INF else (x, 0.0)
    if abs(x) > 1e10:
        return (x, 0.0) if x > 0.0 else (-0.0, 0.0)
    th, tl = gelu_tanh_argument(x)
    k, h, low = scaled_logistic(th, tl)
    return times(k, h, low, x)


@kernel
def gelu_tanh(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = gelu_tanh_at(x[i])


@kernel
def silu_at(x: float) -> Pair:
    if not 0.0 < abs(x) < INF:
        return (NAN, 0.0) if x == -INF else (x, 0.0)
    k, h, low = scaled_logistic(clamp(x), 0.0)
    return times(k, h, low, x)


@kernel
def silu(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = silu_at(x[i])


@kernel
def softplus_at(x: float) -> Pair:
    if math.isnan(x) or x > SOFTPLUS_THRESHOLD:
        return x, 0.0
    if x < -150.0:  # log(1 + a) = a − a²/2 = a to 200 bits
        return dd.exp(x, 0.0)
    h, low = dd.exp(x, 0.0)
    return dd.log1p(h, low)


@kernel
def softplus(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = softplus_at(x[i])
