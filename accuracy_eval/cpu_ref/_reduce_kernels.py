"""Compiled loops over the rows of a matrix, in double-double: exact-looking sums, exponentials and their quotients.

Arrays are float64: x, grad, out [r, n]; results of a row [r]. `sums` keeps what a certificate needs; the other loops have a relative
error below 2^-70 for each term, of which the result is rounded once to float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import _double_double as dd
from accuracy_eval.cpu_ref._double_double import add, div, mul
from accuracy_eval.cpu_ref.pairs import Pair, quick_two_sum, two_prod, two_sum
from accuracy_eval.jit import kernel

Array = NDArray[np.float64]
INF, NAN = math.inf, math.nan


@kernel
def sums(x: Array, hi: Array, lo: Array, size: Array) -> None:
    """hi + lo = Σx to n·2^-105·size; size: Σ|x|."""
    for i in range(x.shape[0]):
        h, low, s = 0.0, 0.0, 0.0
        for j in range(x.shape[1]):
            v = x[i, j]
            h, e = two_sum(h, v)
            h, low = quick_two_sum(h, low + e)
            s += abs(v)
        hi[i], lo[i] = h, low
        size[i] = s


@kernel
def quotients(hi: Array, lo: Array, divisor: float, out: Array) -> None:
    """out = (hi + lo) / divisor, rounded once."""
    for i in range(hi.size):
        if 0.0 < abs(hi[i]) < 1e290:
            out[i], _ = div(hi[i], lo[i], divisor, 0.0)
        else:
            out[i] = hi[i] / divisor


@kernel
def maxima(x: Array, out: Array) -> None:
    """Largest element of each row; NaN if one is; +0 where zeros of both signs are largest."""
    for i in range(x.shape[0]):
        m = -INF
        for j in range(x.shape[1]):
            v = x[i, j]
            if v > m or (v == 0.0 and m == 0.0 and math.copysign(1.0, v) > 0.0):
                m = v
            elif math.isnan(v):
                m = v
                break
        out[i] = m


@kernel
def _exp_difference(v: float, m: float) -> Pair:
    """exp(v − m) for v ≤ m finite or v = −Inf."""
    if v == -INF:
        return 0.0, 0.0
    h, low = two_sum(v, -m)
    if not h > -760.0:
        return 0.0, 0.0
    return dd.exp(h, low)


@kernel
def log_sum_exps(x: Array, maximum: Array, out: Array) -> None:
    """m + log Σ exp(x − m); ±Inf and NaN maxima are the result."""
    for i in range(x.shape[0]):
        m = maximum[i]
        if not abs(m) < INF:
            out[i] = m
            continue
        h, low = 0.0, 0.0
        for j in range(x.shape[1]):
            eh, el = _exp_difference(x[i, j], m)
            h, low = add(h, low, eh, el)
        gh, gl = dd.log(h)
        gh, gl = add(gh, gl, low / h, 0.0)
        out[i], _ = add(m, 0.0, gh, gl)


@kernel
def _weights(x: Array, i: int, m: float, high: Array, low: Array) -> None:
    """high + low = softmax of row i; NaN where the maximum is not finite."""
    if not abs(m) < INF:
        high[:] = NAN
        low[:] = 0.0
        return
    sh, sl = 0.0, 0.0
    for j in range(x.shape[1]):
        high[j], low[j] = _exp_difference(x[i, j], m)
        sh, sl = add(sh, sl, high[j], low[j])
    for j in range(x.shape[1]):
        if high[j] > 1e-280:
            high[j], low[j] = div(high[j], low[j], sh, sl)
        else:
            high[j], low[j] = high[j] / sh, 0.0


@kernel
def softmaxes(x: Array, maximum: Array, out: Array) -> None:
    """exp(x − m) / Σ exp(x − m)."""
    high, low = np.empty(x.shape[1]), np.empty(x.shape[1])
    for i in range(x.shape[0]):
        _weights(x, i, maximum[i], high, low)
        out[i] = high


@kernel
def softmax_gradients(x: Array, maximum: Array, grad: Array, out: Array) -> None:
    """s·(g − Σ g·s)."""
    high, low = np.empty(x.shape[1]), np.empty(x.shape[1])
    for i in range(x.shape[0]):
        _weights(x, i, maximum[i], high, low)
        sh, sl, plain = 0.0, 0.0, 0.0
        for j in range(x.shape[1]):
            g = grad[i, j]
            plain += high[j] * g
            ph, pl = _product(high[j], low[j], g)
            sh, sl = add(sh, sl, ph, pl)
        for j in range(x.shape[1]):
            dh, dl = add(grad[i, j], 0.0, -sh, -sl)
            if abs(plain) < INF:
                out[i, j], _ = _product_pair(high[j], low[j], dh, dl)
            else:
                out[i, j] = high[j] * (grad[i, j] - plain)


@kernel
def _product(h: float, low: float, g: float) -> Pair:
    return _product_pair(h, low, g, 0.0)


@kernel
def _product_pair(ah: float, al: float, bh: float, bl: float) -> Pair:
    """A product; rounded where its tail would underflow or a factor is too large to be split."""
    p = abs(ah * bh)
    if 1e-290 < p < 1e290 and abs(ah) < 1e290 and abs(bh) < 1e290:
        return mul(ah, al, bh, bl)
    return ah * bh, 0.0


@kernel
def max_gradients(x: Array, maximum: Array, grad: Array, out: Array) -> None:
    """grad / (number of largest elements) at each of them, 0 elsewhere; NaN where the maximum is NaN (0/0)."""
    for i in range(x.shape[0]):
        count = 0
        for j in range(x.shape[1]):
            if x[i, j] == maximum[i]:
                count += 1
        for j in range(x.shape[1]):
            if count == 0:
                out[i, j] = NAN
            elif x[i, j] == maximum[i]:
                out[i, j] = grad[i] / count
            else:
                out[i, j] = grad[i] * 0.0


@kernel
def norms(x: Array, unit: Array, out: Array) -> None:
    """sqrt(Σ x²) of finite rows; unit [r]: a power of two near the largest element of each, so that no square leaves float64."""
    for i in range(x.shape[0]):
        h, low = 0.0, 0.0
        for j in range(x.shape[1]):
            v = x[i, j] / unit[i]
            p, e = two_prod(v, v)
            h, t = two_sum(h, p)
            h, low = quick_two_sum(h, low + (t + e))
        root = math.sqrt(h)
        if root > 0.0:
            p, e = two_prod(root, root)
            root += ((h - p) - e + low) / (2.0 * root)
        out[i] = root * unit[i]


@kernel
def statistics(x: Array, total: Array, absolute: Array, squares: Array, mean: Array, rms: Array, largest: Array, coherence: Array) -> None:
    """Of the running sums s_t in index order and of the terms; see `reduce.RowStatistics`."""
    for i in range(x.shape[0]):
        s, a, q, m, r, top, signs = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0
        for j in range(x.shape[1]):
            v = x[i, j]
            s += v
            a += abs(v)
            q += v * v
            m += abs(s)
            r += s * s
            top = max(top, abs(s))
            if v > 0.0:
                signs += 1
            elif v < 0.0:
                signs -= 1
        n = max(x.shape[1], 1)
        total[i], absolute[i], squares[i], largest[i] = s, a, q, top
        mean[i], rms[i], coherence[i] = m / n, r / n, abs(signs)
