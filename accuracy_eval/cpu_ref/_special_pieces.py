"""What special functions and their derivatives are made of, in double-double: constants, scaled exponentials, safe products."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import _double_double as dd
from accuracy_eval.cpu_ref._double_double import add, div, exp_unscaled, mul, scale, times
from accuracy_eval.cpu_ref.pairs import Pair, two_prod
from accuracy_eval.jit import inline, kernel

Array = NDArray[np.float64]

NAN, INF = math.nan, math.inf
SOFTPLUS_THRESHOLD = 20.0
LN2_H, LN2_L = dd.LN2
INV_LN2_H, INV_LN2_L = dd.INV_LN2
INV_LN10_H, INV_LN10_L = dd.INV_LN10
SQRT_HALF_H, SQRT_HALF_L = dd.SQRT_HALF
ERF_SLOPE_H, ERF_SLOPE_L = dd.TWO_BY_SQRT_PI
DENSITY_H, DENSITY_L = dd.INV_SQRT_TWO_PI
GELU_SLOPE_H, GELU_SLOPE_L = dd.GELU_SLOPE
GELU_CUBIC_H, GELU_CUBIC_L = dd.GELU_CUBIC
TINY = 1e-40  # below it the first term of a series is the value to 130 bits; squares still are far from underflow
NOTHING = -3000  # an exponent that scales any value to 0


@inline
def clamp(x: float) -> float:
    return min(max(x, -1e300), 1e300)


# (k, h, l) stands for (h + l)·2^k


@kernel
def scaled_exp(th: float, tl: float) -> tuple[int, float, float]:
    """exp(t), for t ≤ 800 (below -790 it scales to 0 whatever it is multiplied with here)."""
    if th < -790.0:
        return NOTHING, 1.0, 0.0
    return exp_unscaled(th, tl)


@kernel
def scaled_logistic(th: float, tl: float) -> tuple[int, float, float]:
    """1 / (1 + exp(−t)), for |t| ≤ 1e300."""
    k, ah, al = scaled_exp(-abs(th), -tl if th > 0.0 else tl)
    sh, sl = scale(ah, al, k)
    bh, bl = add(1.0, 0.0, sh, sl)
    if th > 0.0:
        h, low = div(1.0, 0.0, bh, bl)
        return 0, h, low
    h, low = div(ah, al, bh, bl)
    return k, h, low


@kernel
def scaled_logistic_slope(th: float, tl: float) -> tuple[int, float, float]:
    """s·(1 − s) = a / (1 + a)² with s = logistic(t) and a = exp(−|t|), for |t| ≤ 1e300."""
    k, ah, al = scaled_exp(-abs(th), -tl if th > 0.0 else tl)
    sh, sl = scale(ah, al, k)
    bh, bl = add(1.0, 0.0, sh, sl)
    bh, bl = mul(bh, bl, bh, bl)
    h, low = div(ah, al, bh, bl)
    return k, h, low


@kernel
def scaled_exp_minus_square(x: float, factor: float) -> tuple[int, float, float]:
    """exp(−factor·x²); factor is a power of two."""
    if abs(x) > 100.0:
        return NOTHING, 1.0, 0.0
    zh, zl = two_prod(x, x)
    return scaled_exp(-factor * zh, -factor * zl)


@kernel
def scaled_normal_cdf(x: float) -> tuple[int, float, float]:
    """Φ(x) = erfc(−x/√2)/2."""
    if abs(x) > 38.8:
        return (0, 1.0, 0.0) if x > 0.0 else (NOTHING, 1.0, 0.0)
    th, tl = mul(SQRT_HALF_H, SQRT_HALF_L, -x, 0.0)
    k, h, low = dd.erfc_unscaled(th, tl)
    return k - 1, h, low


@kernel
def gelu_tanh_argument(x: float) -> Pair:
    """2u = 2·sqrt(2/π)·(x + 0.044715·x³), for |x| ≤ 1e60."""
    if abs(x) < TINY:
        return times(0, GELU_SLOPE_H, GELU_SLOPE_L, x)
    zh, zl = two_prod(x, x)
    zh, zl = mul(zh, zl, GELU_CUBIC_H, GELU_CUBIC_L)
    zh, zl = add(1.0, 0.0, zh, zl)
    zh, zl = mul(zh, zl, GELU_SLOPE_H, GELU_SLOPE_L)
    return mul(zh, zl, x, 0.0)


@inline
def safe_mul(ah: float, al: float, bh: float, bl: float) -> Pair:
    """a·b; beyond the range where the exact product works, the rounded one."""
    if 1e-290 < abs(ah) < 1e290 and 1e-290 < abs(bh) < 1e290:
        p = abs(ah * bh)
        if 1e-290 < p < 1e300:
            return mul(ah, al, bh, bl)
    return ah * bh, 0.0
