"""One compiled loop for each derivative of a special function: called as those of `_special_kernels`, and as near.

Where terms cancel, the bound on the error is relative to the terms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import _double_double as dd
from accuracy_eval.cpu_ref._double_double import add, div, mul, scale, times
from accuracy_eval.cpu_ref._special_kernels import exp2_at, log_at, power_at, reciprocal_at, rsqrt_at, sigmoid_at, trig_at
from accuracy_eval.cpu_ref._special_pieces import (
    DENSITY_H,
    DENSITY_L,
    ERF_SLOPE_H,
    ERF_SLOPE_L,
    GELU_CUBIC_H,
    GELU_CUBIC_L,
    GELU_SLOPE_H,
    GELU_SLOPE_L,
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
    safe_mul,
    scaled_exp_minus_square,
    scaled_logistic,
    scaled_logistic_slope,
    scaled_normal_cdf,
)
from accuracy_eval.cpu_ref.pairs import two_prod, two_sum
from accuracy_eval.jit import kernel

Array = NDArray[np.float64]


@kernel
def d_exp2(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = exp2_at(x[i])
        hi[i], lo[i] = safe_mul(h, low, LN2_H, LN2_L)


@kernel
def d_log2(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = reciprocal_at(x[i])
        hi[i], lo[i] = safe_mul(h, low, INV_LN2_H, INV_LN2_L)


@kernel
def d_log10(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = reciprocal_at(x[i])
        hi[i], lo[i] = safe_mul(h, low, INV_LN10_H, INV_LN10_L)


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
        sh, sl = safe_mul(h, low, h, low)
        sh, sl = safe_mul(sh, sl, h, low)
        hi[i], lo[i] = -0.5 * sh, -0.5 * sl


@kernel
def d_reciprocal(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        h, low = reciprocal_at(x[i])
        h, low = safe_mul(h, low, h, low)
        hi[i], lo[i] = -h, -low


@kernel
def d_sigmoid(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        if math.isnan(x[i]):
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = scaled_logistic_slope(clamp(x[i]), 0.0)
        hi[i], lo[i] = scale(h, low, k)


@kernel
def d_tanh(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        if math.isnan(x[i]):
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = scaled_logistic_slope(2.0 * clamp(x[i]), 0.0)
        hi[i], lo[i] = scale(h, low, k + 2)


@kernel
def d_erf(x: Array, y: Array, hi: Array, lo: Array) -> None:
    for i in range(x.size):
        if math.isnan(x[i]):
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = scaled_exp_minus_square(x[i], 1.0)
        h, low = mul(h, low, ERF_SLOPE_H, ERF_SLOPE_L)
        hi[i], lo[i] = scale(h, low, k)


@kernel
def d_cos(x: Array, y: Array, hi: Array, lo: Array) -> None:
    scratch = np.zeros(dd.SCRATCH, np.int64)
    for i in range(x.size):
        h, low = trig_at(x[i], 0, scratch)
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
        h, low = power_at(x[i], eh, el)
        hi[i], lo[i] = safe_mul(h, low, y[i], 0.0)


@kernel
def d_pow_y(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """x^y·log(x); 0 where x = 0 and y ≥ 0."""
    for i in range(x.size):
        if x[i] == 0.0 and y[i] >= 0.0:
            hi[i], lo[i] = 0.0, 0.0
            continue
        h, low = power_at(x[i], y[i], 0.0)
        lh, ll = log_at(x[i])
        hi[i], lo[i] = safe_mul(h, low, lh, ll)


@kernel
def d_gelu(x: Array, y: Array, hi: Array, lo: Array) -> None:
    """Φ(x) + x·φ(x)."""
    for i in range(x.size):
        if not abs(x[i]) < INF:
            hi[i], lo[i] = NAN, 0.0
            continue
        k, h, low = scaled_normal_cdf(x[i])
        h, low = scale(h, low, k)
        k, eh, el = scaled_exp_minus_square(x[i], 0.5)
        eh, el = mul(eh, el, DENSITY_H, DENSITY_L)
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
        th, tl = gelu_tanh_argument(v)
        k, sh, sl = scaled_logistic(th, tl)
        sh, sl = scale(sh, sl, k)
        if abs(v) < TINY:
            zh, zl = 1.0, 0.0
        else:
            zh, zl = two_prod(v, v)
            zh, zl = mul(zh, zl, GELU_CUBIC_H, GELU_CUBIC_L)
            zh, zl = mul(zh, zl, 3.0, 0.0)
            zh, zl = add(1.0, 0.0, zh, zl)
        zh, zl = mul(zh, zl, GELU_SLOPE_H, GELU_SLOPE_L)
        k, ah, al = scaled_logistic_slope(th, tl)
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
        v = clamp(x[i])
        k, h, low = scaled_logistic(v, 0.0)
        h, low = scale(h, low, k)
        k, ah, al = scaled_logistic_slope(v, 0.0)
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
