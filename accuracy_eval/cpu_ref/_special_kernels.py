"""One compiled loop for each special function and each derivative, in double-double: value = hi + lo.

Every loop takes x [n], y [n] (float64; unary functions ignore y) and writes hi [n], lo [n] (float64, |lo| ≤ ulp(hi)/2). The relative
error of hi + lo is below 2^-67 (a derivative's: of its terms, where they cancel) where |hi| ≥ 2^-900; below that hi alone is within
one ulp. lo = 0 with a result that is not exact only where a limit decides it (saturated, overflowed, underflowed, non-finite operand).
Non-finite operands give what the formula in `special_functions.FUNCTIONS` gives step by step in IEEE arithmetic.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import _double_double as dd
from accuracy_eval.cpu_ref._double_double import add, div, exp_unscaled, mul, scale, times
from accuracy_eval.cpu_ref.pairs import Pair, quick_two_sum, two_prod, two_sum
from accuracy_eval.jit import inline, kernel

Array = NDArray[np.float64]

NAN, INF = math.nan, math.inf
SOFTPLUS_THRESHOLD = 20.0
_LN2_H, _LN2_L = dd.LN2
_INV_LN2_H, _INV_LN2_L = dd.INV_LN2
_INV_LN10_H, _INV_LN10_L = dd.INV_LN10
_SQRT_HALF_H, _SQRT_HALF_L = dd.SQRT_HALF
_ERF_SLOPE_H, _ERF_SLOPE_L = dd.TWO_BY_SQRT_PI
_DENSITY_H, _DENSITY_L = dd.INV_SQRT_TWO_PI
_GELU_SLOPE_H, _GELU_SLOPE_L = dd.GELU_SLOPE
_GELU_CUBIC_H, _GELU_CUBIC_L = dd.GELU_CUBIC
_TINY = 1e-40  # below it the first term of a series is the value to 130 bits; squares still are far from underflow
_NOTHING = -3000  # an exponent that scales any value to 0


@inline
def _clamp(x: float) -> float:
    return min(max(x, -1e300), 1e300)


# --- pieces: (k, h, l) stands for (h + l)·2^k -------------------------------------------------------------------------------


@kernel
def _exp(th: float, tl: float) -> tuple[int, float, float]:
    """exp(t), for t ≤ 800 (below -790 it scales to 0 whatever it is multiplied with here)."""
    if th < -790.0:
        return _NOTHING, 1.0, 0.0
    return exp_unscaled(th, tl)


@kernel
def _logistic(th: float, tl: float) -> tuple[int, float, float]:
    """1 / (1 + exp(−t)), for |t| ≤ 1e300."""
    k, ah, al = _exp(-abs(th), -tl if th > 0.0 else tl)
    sh, sl = scale(ah, al, k)
    bh, bl = add(1.0, 0.0, sh, sl)
    if th > 0.0:
        h, low = div(1.0, 0.0, bh, bl)
        return 0, h, low
    h, low = div(ah, al, bh, bl)
    return k, h, low


@kernel
def _logistic_slope(th: float, tl: float) -> tuple[int, float, float]:
    """s·(1 − s) = a / (1 + a)² with s = logistic(t) and a = exp(−|t|), for |t| ≤ 1e300."""
    k, ah, al = _exp(-abs(th), -tl if th > 0.0 else tl)
    sh, sl = scale(ah, al, k)
    bh, bl = add(1.0, 0.0, sh, sl)
    bh, bl = mul(bh, bl, bh, bl)
    h, low = div(ah, al, bh, bl)
    return k, h, low


@kernel
def _exp_minus_square(x: float, factor: float) -> tuple[int, float, float]:
    """exp(−factor·x²); factor is a power of two."""
    if abs(x) > 100.0:
        return _NOTHING, 1.0, 0.0
    zh, zl = two_prod(x, x)
    return _exp(-factor * zh, -factor * zl)


@kernel
def _normal_cdf(x: float) -> tuple[int, float, float]:
    """Φ(x) = erfc(−x/√2)/2."""
    if abs(x) > 38.8:
        return (0, 1.0, 0.0) if x > 0.0 else (_NOTHING, 1.0, 0.0)
    th, tl = mul(_SQRT_HALF_H, _SQRT_HALF_L, -x, 0.0)
    k, h, low = dd.erfc_unscaled(th, tl)
    return k - 1, h, low


@kernel
def _gelu_tanh_argument(x: float) -> Pair:
    """2u = 2·sqrt(2/π)·(x + 0.044715·x³), for |x| ≤ 1e60."""
    if abs(x) < _TINY:
        return times(0, _GELU_SLOPE_H, _GELU_SLOPE_L, x)
    zh, zl = two_prod(x, x)
    zh, zl = mul(zh, zl, _GELU_CUBIC_H, _GELU_CUBIC_L)
    zh, zl = add(1.0, 0.0, zh, zl)
    zh, zl = mul(zh, zl, _GELU_SLOPE_H, _GELU_SLOPE_L)
    return mul(zh, zl, x, 0.0)


@inline
def _safe_mul(ah: float, al: float, bh: float, bl: float) -> Pair:
    """a·b; beyond the range where the exact product works, the rounded one."""
    if 1e-290 < abs(ah) < 1e290 and 1e-290 < abs(bh) < 1e290:
        p = abs(ah * bh)
        if 1e-290 < p < 1e300:
            return mul(ah, al, bh, bl)
    return ah * bh, 0.0


# --- functions --------------------------------------------------------------------------------------------------------------


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
    th, tl = times(0, _LN2_H, _LN2_L, x - n)
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
    if abs(x) < _TINY:
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
    h, low = mul(h, low, _INV_LN2_H, _INV_LN2_L)
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
    return mul(h, low, _INV_LN10_H, _INV_LN10_L)


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
    if abs(x) < _TINY:
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
    k, h, low = _logistic(_clamp(x), 0.0)
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
    if abs(x) < _TINY:
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
    if abs(x) < _TINY:
        return (x, 0.0) if x == 0.0 else times(0, _ERF_SLOPE_H, _ERF_SLOPE_L, x)
    return dd.erf(x)


@kernel
def erf(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = erf_at(x[i])


@kernel
def _trig_at(x: float, quadrant: int, scratch: NDArray[np.int64]) -> Pair:
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
        hi[i], lo[i] = _trig_at(x[i], 0, scratch)


@kernel
def cos(x: Array, y: Array, hi: Array, lo: Array) -> None:
    scratch = np.zeros(dd.SCRATCH, np.int64)
    for i in range(x.size):
        hi[i], lo[i] = _trig_at(x[i], 1, scratch)


@kernel
def _power_at(x: float, y: float, yl: float) -> Pair:
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
        hi[i], lo[i] = _power_at(x[i], y[i], 0.0)


@kernel
def gelu_at(x: float) -> Pair:
    if not 0.0 < abs(x) < INF:
        return (NAN, 0.0) if x == -INF else (x, 0.0)
    k, h, low = _normal_cdf(x)
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
    th, tl = _gelu_tanh_argument(x)
    k, h, low = _logistic(th, tl)
    return times(k, h, low, x)


@kernel
def gelu_tanh(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        hi[i], lo[i] = gelu_tanh_at(x[i])


@kernel
def silu_at(x: float) -> Pair:
    if not 0.0 < abs(x) < INF:
        return (NAN, 0.0) if x == -INF else (x, 0.0)
    k, h, low = _logistic(_clamp(x), 0.0)
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


# --- derivatives ------------------------------------------------------------------------------------------------------------


@kernel
def d_exp2(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = exp2_at(x[i])
        hi[i], lo[i] = _safe_mul(h, low, _LN2_H, _LN2_L)


@kernel
def d_log2(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = reciprocal_at(x[i])
        hi[i], lo[i] = _safe_mul(h, low, _INV_LN2_H, _INV_LN2_L)


@kernel
def d_log10(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = reciprocal_at(x[i])
        hi[i], lo[i] = _safe_mul(h, low, _INV_LN10_H, _INV_LN10_L)


@kernel
def d_log1p(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = two_sum(1.0, x[i])
        if 0.0 < abs(h) < 1e290:
            hi[i], lo[i] = div(1.0, 0.0, h, low)
        else:
            hi[i], lo[i] = reciprocal_at(1.0 + x[i])


@kernel
def d_sqrt(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = rsqrt_at(x[i])
        hi[i], lo[i] = 0.5 * h, 0.5 * low


@kernel
def d_rsqrt(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = rsqrt_at(x[i])
        sh, sl = _safe_mul(h, low, h, low)
        sh, sl = _safe_mul(sh, sl, h, low)
        hi[i], lo[i] = -0.5 * sh, -0.5 * sl


@kernel
def d_reciprocal(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = reciprocal_at(x[i])
        h, low = _safe_mul(h, low, h, low)
        hi[i], lo[i] = -h, -low


@kernel
def d_sigmoid(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        if math.isnan(x[i]):
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = _logistic_slope(_clamp(x[i]), 0.0)
        hi[i], lo[i] = scale(h, low, k)


@kernel
def d_tanh(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        if math.isnan(x[i]):
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = _logistic_slope(2.0 * _clamp(x[i]), 0.0)
        hi[i], lo[i] = scale(h, low, k + 2)


@kernel
def d_erf(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        if math.isnan(x[i]):
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = _exp_minus_square(x[i], 1.0)
        h, low = mul(h, low, _ERF_SLOPE_H, _ERF_SLOPE_L)
        hi[i], lo[i] = scale(h, low, k)


@kernel
def d_cos(x: Array, y: Array, hi: Array, lo: Array) -> None:
    scratch = np.zeros(dd.SCRATCH, np.int64)
    for i in range(x.size):
        h, low = _trig_at(x[i], 0, scratch)
        hi[i], lo[i] = -h, -low


@kernel
def d_pow(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """y·x^(y − 1); 0 where y = 0, whatever x is."""
    for i in range(x.size):
        if y[i] == 0.0:
            hi[i], lo[i] = 0.0, 0.0
            continue
        eh, el = two_sum(y[i], -1.0)
        if math.isinf(y[i]):
            eh, el = y[i], 0.0
        h, low = _power_at(x[i], eh, el)
        hi[i], lo[i] = _safe_mul(h, low, y[i], 0.0)


@kernel
def d_pow_y(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """x^y·log(x); 0 where x = 0 and y ≥ 0."""
    for i in range(x.size):
        if x[i] == 0.0 and y[i] >= 0.0:
            hi[i], lo[i] = 0.0, 0.0
            continue
        h, low = _power_at(x[i], y[i], 0.0)
        lh, ll = log_at(x[i])
        hi[i], lo[i] = _safe_mul(h, low, lh, ll)


@kernel
def d_gelu(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """Φ(x) + x·φ(x)."""
    for i in range(x.size):
        if not abs(x[i]) < INF:
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = _normal_cdf(x[i])
        h, low = scale(h, low, k)
        k, eh, el = _exp_minus_square(x[i], 0.5)
        eh, el = mul(eh, el, _DENSITY_H, _DENSITY_L)
        eh, el = times(k, eh, el, x[i])
        hi[i], lo[i] = add(h, low, eh, el)


@kernel
def d_gelu_tanh(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """s + x·s·(1 − s)·t'(x) with s = logistic(t), t = 2u, t' = 2·sqrt(2/π)·(1 + 3·0.044715·x²)."""
    for i in range(x.size):
        v = x[i]
        if not abs(v) < INF:
            hi[i], lo[i] = NAN, 0.0
            continue
        if abs(v) > 1e10:
            hi[i], lo[i] = (1.0, 0.0) if v > 0.0 else (0.0, 0.0)
            continue
        th, tl = _gelu_tanh_argument(v)
        k, sh, sl = _logistic(th, tl)
        sh, sl = scale(sh, sl, k)
        if abs(v) < _TINY:
            zh, zl = 1.0, 0.0
        else:
            zh, zl = two_prod(v, v)
            zh, zl = mul(zh, zl, _GELU_CUBIC_H, _GELU_CUBIC_L)
            zh, zl = mul(zh, zl, 3.0, 0.0)
            zh, zl = add(1.0, 0.0, zh, zl)
        zh, zl = mul(zh, zl, _GELU_SLOPE_H, _GELU_SLOPE_L)
        k, ah, al = _logistic_slope(th, tl)
        ah, al = mul(ah, al, zh, zl)
        ah, al = times(k, ah, al, v)
        hi[i], lo[i] = add(sh, sl, ah, al)


@kernel
def d_silu(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """s + x·s·(1 − s) with s = logistic(x)."""
    for i in range(x.size):
        if not abs(x[i]) < INF:
            hi[i], lo[i] = NAN, 0.0
            continue
        v = _clamp(x[i])
        k, h, low = _logistic(v, 0.0)
        h, low = scale(h, low, k)
        k, ah, al = _logistic_slope(v, 0.0)
        ah, al = times(k, ah, al, v)
        hi[i], lo[i] = add(h, low, ah, al)


@kernel
def d_softplus(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """1 above the threshold, else logistic(x)."""
    for i in range(x.size):
        if x[i] > SOFTPLUS_THRESHOLD:
            hi[i], lo[i] = 1.0, 0.0
        else:
            hi[i], lo[i] = sigmoid_at(x[i])
