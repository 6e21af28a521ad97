"""Double-double arithmetic and the elementary functions built on it: at least 70 good bits, in compiled code.

A number is an unevaluated sum hi + lo of two float64 with |lo| ≤ ulp(hi)/2. Only +, −, ×, ÷ and sqrt of IEEE float64 are used and
no libm, so every result has the same bits on every host. Relative error of each function: below 2^-70 (series keep only their first
terms as pairs); tests hold it against mpmath.

Sources: Dekker 1971 and Knuth (error-free sum and product); Payne & Hanek 1983 (argument reduction); Tang 1989 (table-driven exp).
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.pairs import Pair, quick_two_sum, two_prod, two_sum
from accuracy_eval.jit import inline, kernel

_MP = mpmath.mp.clone()
_MP.prec = 400


def _parts(value: Any, *bits: int) -> tuple[float, ...]:
    """`value` as a sum of float64: one part for each width in bits (so that short parts multiply small integers exactly), then 53."""
    parts = []
    rest = _MP.mpf(value)
    for width in (*bits, 53):
        if rest == 0:
            parts.append(0.0)
            continue
        unit = _MP.ldexp(1, int(_MP.floor(_MP.log(abs(rest), 2))) + 1 - width)
        part = _MP.nint(rest / unit) * unit
        parts.append(float(part))
        rest -= part
    return tuple(parts)


def _pair(value: Any) -> Pair:
    hi, lo = _parts(value, 53)
    return hi, lo


def _pair_table(values: list[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    pairs = np.array([_pair(v) for v in values])
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


LN2 = _pair(_MP.ln(2))
INV_LN2 = _pair(1 / _MP.ln(2))
INV_LN10 = _pair(1 / _MP.ln(10))
SQRT_HALF = _pair(_MP.sqrt(0.5))
HALF_PI = _pair(_MP.pi / 2)
TWO_BY_SQRT_PI = _pair(2 / _MP.sqrt(_MP.pi))
INV_SQRT_TWO_PI = _pair(1 / _MP.sqrt(2 * _MP.pi))
GELU_SLOPE = _pair(_MP.sqrt(8 / _MP.pi))  # twice sqrt(2/π)
GELU_CUBIC = _pair(_MP.mpf("0.044715"))

_STEPS = 64  # exp: table of 2^(j/64)
_LOG_A, _LOG_B, _LOG_C = _parts(_MP.ln(2), 40, 40)  # times an exponent of 11 bits: exact
_EXP_A, _EXP_B, _EXP_C = _parts(_MP.ln(2) / _STEPS, 33, 33)  # times a step number of 17 bits: exact
_INV_STEP = float(_STEPS / _MP.ln(2))
_EXP2_HI, _EXP2_LO = _pair_table([_MP.power(2, _MP.mpf(j) / _STEPS) for j in range(_STEPS)])
_EXP_PAIRS, _EXP_TERMS = 4, 12  # Taylor terms kept as pairs, and all
_EXP_HI, _EXP_LO = _pair_table([1 / _MP.factorial(n) for n in range(_EXP_TERMS)])
_LOG_NODES, _LOG_TERMS = 128, 12
_LOG_OFFSET = 38  # nodes 1 + j/128 from j = -38, below 1/√2, to 54, above √2
_LOG_INVERSE = np.array([round(1024 / (1 + j / _LOG_NODES)) / 1024 for j in range(-_LOG_OFFSET, 55)])
_LOG_HI, _LOG_LO = _pair_table([-_MP.ln(_MP.mpf(float(c))) for c in _LOG_INVERSE])
_LOG_SERIES = np.array([0.0] + [(-1) ** (n + 1) / n for n in range(1, _LOG_TERMS + 1)])
_THIRD_H, _THIRD_L = _pair(_MP.mpf(1) / 3)
_POW2_OFFSET = 1100
_POW2 = np.ldexp(1.0, np.arange(-_POW2_OFFSET, 1024))


@inline
def add(ah: float, al: float, bh: float, bl: float) -> Pair:
    s, e = two_sum(ah, bh)
    t, f = two_sum(al, bl)
    s, e = quick_two_sum(s, e + t)
    return quick_two_sum(s, e + f)


@inline
def plus(ah: float, al: float, bh: float, bl: float) -> Pair:
    """a + b for |a| ≥ |b|, as in Horner's scheme: half the work of `add`."""
    s, e = quick_two_sum(ah, bh)
    return quick_two_sum(s, e + (al + bl))


@inline
def mul(ah: float, al: float, bh: float, bl: float) -> Pair:
    p, e = two_prod(ah, bh)
    return quick_two_sum(p, e + (ah * bl + al * bh))


@inline
def div(ah: float, al: float, bh: float, bl: float) -> Pair:
    q = ah / bh
    p, e = mul(bh, bl, q, 0.0)
    r, s = add(ah, al, -p, -e)
    return quick_two_sum(q, (r + s) / bh)


@inline
def scale(h: float, low: float, k: int) -> Pair:
    """(h + low) · 2^k for |h| in [2^-60, 2^60] or 0 and any k: two factors, so that only the last multiplication can round."""
    k = max(min(k, 2000), -2100)
    half = k // 2
    a, b = _POW2[half + _POW2_OFFSET], _POW2[k - half + _POW2_OFFSET]
    return h * a * b, low * a * b


@inline
def times(k: int, h: float, low: float, x: float) -> Pair:
    """(h + low)·2^k·x for any finite x, subnormal or huge; |h| in [2^-60, 2^60]."""
    m, e = math.frexp(x)
    h, low = mul(h, low, m, 0.0)
    return scale(h, low, k + e)


@kernel
def _exp_reduced(xh: float, xl: float) -> tuple[int, int, float, float]:
    """(k, j, p): exp(x) = 2^k · 2^(j/64) · (1 + p), |p| < 0.0055 with a relative error below 2^-75; |x| ≤ 800."""
    n = math.floor(xh * _INV_STEP + 0.5)
    h, e = two_sum(xh - n * _EXP_A, -n * _EXP_B)
    h, e = two_sum(h, e + (xl - n * _EXP_C))
    t = _EXP_HI[_EXP_TERMS - 1]
    for i in range(_EXP_TERMS - 2, _EXP_PAIRS - 1, -1):
        t = t * h + _EXP_HI[i]
    sh, sl = quick_two_sum(_EXP_HI[_EXP_PAIRS - 1], _EXP_LO[_EXP_PAIRS - 1] + t * h)
    for i in range(_EXP_PAIRS - 2, 0, -1):
        sh, sl = mul(sh, sl, h, e)
        sh, sl = plus(_EXP_HI[i], _EXP_LO[i], sh, sl)
    sh, sl = mul(sh, sl, h, e)
    k = n // _STEPS
    return k, n - k * _STEPS, sh, sl


@kernel
def exp_unscaled(xh: float, xl: float) -> tuple[int, float, float]:
    """(k, h, l): exp(x) = (h + l) · 2^k with h in [0.99, 2]; |x| ≤ 800."""
    k, j, ph, pl = _exp_reduced(xh, xl)
    th, tl = _EXP2_HI[j], _EXP2_LO[j]
    ph, pl = mul(ph, pl, th, tl)
    h, low = plus(th, tl, ph, pl)
    return k, h, low


@kernel
def exp(xh: float, xl: float) -> Pair:
    """The exponential; 0 below -746, Inf above 710."""
    if xh > 710.0:
        return math.inf, 0.0
    if xh < -746.0:
        return 0.0, 0.0
    k, h, low = exp_unscaled(xh, xl)
    return scale(h, low, k)


@kernel
def expm1(xh: float, xl: float) -> Pair:
    """exp(x) − 1, relative error below 2^-70 also near 0; -1 below -80, Inf above 710."""
    if xh > 710.0:
        return math.inf, 0.0
    if xh < -80.0:
        return -1.0, 0.0
    k, j, ph, pl = _exp_reduced(xh, xl)
    if k == 0 and j == 0:
        return ph, pl
    th, tl = _EXP2_HI[j], _EXP2_LO[j]
    ph, pl = mul(ph, pl, th, tl)
    ph, pl = add(th, tl, ph, pl)
    ph, pl = scale(ph, pl, k)
    if k > 120:
        return ph, pl
    return add(ph, pl, -1.0, 0.0)


@kernel
def _log_reduced(mh: float, ml: float, uh: float, ul: float) -> Pair:
    """log(m) for m = mh + ml in [0.7, 1.42]; u = m − 1. With c ≈ 1/m of 10 bits: −log(c) + log(1 + r), r = m·c − 1, |r| < 0.0065."""
    j = math.floor((mh - 1.0) * _LOG_NODES + 0.5)
    if j == 0:
        rh, rl = uh, ul
    else:
        c = _LOG_INVERSE[j + _LOG_OFFSET]
        rh, rl = two_prod(mh, c)
        rh, rl = quick_two_sum(rh - 1.0, rl + ml * c)
    # r − r²/2 + r³/3 as pairs, the rest in float64
    t = _LOG_SERIES[_LOG_TERMS]
    for n in range(_LOG_TERMS - 1, 3, -1):
        t = t * rh + _LOG_SERIES[n]
    zh, zl = mul(rh, rl, rh, rl)
    sh, sl = quick_two_sum(_THIRD_H, _THIRD_L + t * rh)
    sh, sl = mul(sh, sl, rh, rl)
    sh, sl = plus(-0.5, 0.0, sh, sl)
    sh, sl = mul(sh, sl, zh, zl)
    h, low = plus(rh, rl, sh, sl)
    if j == 0:
        return h, low
    return plus(_LOG_HI[j + _LOG_OFFSET], _LOG_LO[j + _LOG_OFFSET], h, low)


@kernel
def log_parts(x: float) -> tuple[int, float, float]:
    """(k, h, l): log(x) = k·ln 2 + (h + l) with |h| < 0.35, for finite x > 0."""
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m *= 2.0
        k -= 1
    h, low = _log_reduced(m, 0.0, m - 1.0, 0.0)
    return k, h, low


@kernel
def log(x: float) -> Pair:
    """The natural logarithm for finite x > 0."""
    k, h, low = log_parts(x)
    if k == 0:
        return h, low
    ah, al = two_sum(k * _LOG_A, k * _LOG_B)
    ah, al = quick_two_sum(ah, al + k * _LOG_C)
    return add(ah, al, h, low)


@kernel
def log1p(xh: float, xl: float) -> Pair:
    """log(1 + x) for finite x > -1; x above 2^-400 in magnitude."""
    sh, sl = two_sum(1.0, xh)
    sh, sl = quick_two_sum(sh, sl + xl)
    if 0.71 < sh < 1.41:
        return _log_reduced(sh, sl, xh, xl)
    h, low = log(sh)
    q = sl / sh
    return add(h, low, q, -0.5 * q * q)


@kernel
def sqrt(x: float) -> Pair:
    """The square root for finite x > 0; the tail is 0 exactly when the root is."""
    m, e = math.frexp(x)
    if e % 2 != 0:
        m *= 2.0
        e -= 1
    s = math.sqrt(m)
    p, q = two_prod(s, s)
    return scale(s, ((m - p) - q) / (2.0 * s), e // 2)


@kernel
def reciprocal(x: float) -> Pair:
    """1/x for finite x ≠ 0."""
    m, e = math.frexp(x)
    y = 1.0 / m
    p, q = two_prod(m, y)
    return scale(y, ((1.0 - p) - q) * y, -e)


@kernel
def rsqrt(x: float) -> Pair:
    """1/sqrt(x) for finite x > 0: one Newton step, y + y·(1 − x·y²)/2."""
    m, e = math.frexp(x)
    if e % 2 != 0:
        m *= 2.0
        e -= 1
    y = 1.0 / math.sqrt(m)
    h, low = two_prod(y, y)
    h, low = mul(h, low, m, 0.0)
    r = (1.0 - h) - low
    y, low = quick_two_sum(y, y * r * (0.5 + 0.375 * r))
    return scale(y, low, -(e // 2))


# --- erf -------------------------------------------------------------------------------------------------------------------

_ERFCX_NODES = 8  # per unit
_ERFCX_END = 28.0
_ERFCX_PAIRS, _ERFCX_SINGLES = 5, 11  # Taylor terms kept as pairs, then as single float64
_ERF_PAIRS, _ERF_SINGLES = 6, 10


def _erfcx_table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Taylor coefficients of y = exp(x²)·erfc(x) around i/8, [nodes, 19] hi and lo, in integers of unit 2^-1700.

    From y' = 2xy − 2/√π: (n + 1)·a[n+1] = 2c·a[n] + 2·a[n−1]. y(0) = 1, and the series at one node gives y at the next; an error
    grows as exp(x²), 2^1131 at the end, and by another 2^209 over the terms kept. With |h| ≤ 1/16 the first term left out is below 2^-90.
    """
    nodes = int(_ERFCX_END * _ERFCX_NODES) + 1
    terms = _ERFCX_PAIRS + _ERFCX_SINGLES
    high = np.zeros((nodes, terms))
    low = np.zeros_like(high)
    bits = 1700
    with _MP.workprec(bits + 20):
        slope = int(_MP.ldexp(2 / _MP.sqrt(_MP.pi), bits))
    y = 1 << bits
    for i in range(nodes):
        a = [y, i * y // 4 - slope]  # 2c = i/4
        shift = 3
        y += a[1] >> shift
        while abs(a[-1]) >> shift or len(a) < terms:
            n = len(a) - 1
            a.append((i * a[n] // 4 + 2 * a[n - 1]) // (n + 1))
            shift += 3
            y += a[-1] >> shift
        for n in range(terms):
            value = a[n] >> (bits - 320)
            high[i, n] = first = value / (1 << 320)
            if n < _ERFCX_PAIRS:
                low[i, n] = (value - (int(math.ldexp(first, 128)) << 192)) / (1 << 320)
    return high, low


_ERFCX_HI, _ERFCX_LO = _erfcx_table()
_ERF_HI, _ERF_LO = _pair_table(
    [(-1) ** n * 2 / (_MP.sqrt(_MP.pi) * _MP.factorial(n) * (2 * n + 1)) for n in range(_ERF_PAIRS + _ERF_SINGLES)]
)


@kernel
def erfc_unscaled(xh: float, xl: float) -> tuple[int, float, float]:
    """(k, h, l): erfc(x) = (h + l)·2^k, for |x| ≤ 27.5; for x ≥ 0 it is exp(−x²)·erfcx(x)."""
    negative = xh < 0.0
    if negative:
        xh, xl = -xh, -xl
    node = math.floor(xh * _ERFCX_NODES + 0.5)
    h, e = two_sum(xh - node / _ERFCX_NODES, xl)
    s = _ERFCX_HI[node, _ERFCX_PAIRS + _ERFCX_SINGLES - 1]
    for n in range(_ERFCX_PAIRS + _ERFCX_SINGLES - 2, _ERFCX_PAIRS - 1, -1):
        s = s * h + _ERFCX_HI[node, n]
    sh, sl = s, 0.0
    for n in range(_ERFCX_PAIRS - 1, -1, -1):
        sh, sl = mul(sh, sl, h, e)
        sh, sl = plus(_ERFCX_HI[node, n], _ERFCX_LO[node, n], sh, sl)
    zh, zl = mul(xh, xl, xh, xl)
    k, eh, el = exp_unscaled(-zh, -zl)
    eh, el = mul(eh, el, sh, sl)
    if negative:
        eh, el = scale(eh, el, k)
        eh, el = add(2.0, 0.0, -eh, -el)
        return 0, eh, el
    return k, eh, el


@kernel
def erf(x: float) -> Pair:
    """The error function for any finite x, relative error below 2^-70 also near 0."""
    if abs(x) > 27.0:
        return math.copysign(1.0, x), 0.0
    if abs(x) >= 0.5:
        k, h, low = erfc_unscaled(abs(x), 0.0)
        h, low = scale(h, low, k)
        h, low = add(1.0, 0.0, -h, -low)
        return (h, low) if x > 0.0 else (-h, -low)
    zh, zl = two_prod(x, x)
    s = _ERF_HI[_ERF_PAIRS + _ERF_SINGLES - 1]
    for n in range(_ERF_PAIRS + _ERF_SINGLES - 2, _ERF_PAIRS - 1, -1):
        s = s * zh + _ERF_HI[n]
    sh, sl = s, 0.0
    for n in range(_ERF_PAIRS - 1, -1, -1):
        sh, sl = mul(sh, sl, zh, zl)
        sh, sl = plus(_ERF_HI[n], _ERF_LO[n], sh, sl)
    return times(0, sh, sl, x)


# --- sin and cos -----------------------------------------------------------------------------------------------------------

_HALF_PI_A, _HALF_PI_B, _HALF_PI_C, _HALF_PI_D = _parts(_MP.pi / 2, 33, 33, 33)  # times a multiple of 17 bits: exact
_TWO_BY_PI_ROUNDED = float(2 / _MP.pi)
_SHORT_ARGUMENT = 1e5
_LIMB = 28
_LIMBS = 9  # 252 bits of 2/π: 53 for x, 62 for the closest float64 to a multiple of π/2, the rest for the result
_LIMB_MASK = (1 << _LIMB) - 1
SCRATCH = 13
_SIN_PAIRS, _COS_PAIRS, _TRIG_TERMS = 4, 5, 12


def _two_by_pi() -> NDArray[np.int64]:
    count = 1100 // _LIMB + _LIMBS
    with _MP.workprec(count * _LIMB + 64):
        bits = int(_MP.floor(_MP.ldexp(2 / _MP.pi, count * _LIMB)))
    return np.array([(bits >> (_LIMB * (count - 1 - i))) & _LIMB_MASK for i in range(count)], np.int64)


_TWO_BY_PI = _two_by_pi()
_SIN_HI, _SIN_LO = _pair_table([(-1) ** n / _MP.factorial(2 * n + 1) for n in range(_TRIG_TERMS)])
_COS_HI, _COS_LO = _pair_table([(-1) ** n / _MP.factorial(2 * n) for n in range(_TRIG_TERMS)])


@kernel
def reduce_half_pi(x: float, p: NDArray[np.int64]) -> tuple[int, float, float]:
    """(q, h, l): x = (4i + q)·π/2 + (h + l), |h| ≤ π/4, for any finite x; p: 13 int64 of scratch.

    Up to 1e5 multiples of π/2 in four parts are subtracted; beyond, x = M·2^E times the limbs of 2/π that matter modulo 4, in integers.
    """
    ax = abs(x)
    if ax <= 0.7853981633974483:
        return 0, x, 0.0
    if ax <= _SHORT_ARGUMENT:
        n = math.floor(x * _TWO_BY_PI_ROUNDED + 0.5)
        h, low = two_sum(x - n * _HALF_PI_A, -n * _HALF_PI_B)
        h, low = add(h, low, -n * _HALF_PI_C, -n * _HALF_PI_D)
        return n & 3, h, low
    fraction, e = math.frexp(ax)
    mantissa = int(math.ldexp(fraction, 53))
    e -= 53
    first = max(0, (e - 2) // _LIMB)
    m0 = mantissa & _LIMB_MASK
    m1 = mantissa >> _LIMB
    for i in range(SCRATCH):
        p[i] = 0
    for i in range(_LIMBS):
        limb = _TWO_BY_PI[first + _LIMBS - 1 - i]
        p[i] += m0 * limb
        p[i + 1] += m1 * limb
    for i in range(SCRATCH - 1):
        p[i + 1] += p[i] >> _LIMB
        p[i] &= _LIMB_MASK
    point = _LIMB * (first + _LIMBS) - e  # the bit of weight 1
    q = _bits(p, point) & 3
    negative = (_bits(p, point - _LIMB) >> (_LIMB - 1)) != 0
    h, low = 0.0, 0.0
    unit = 1.0
    for i in range(1, 8):
        word = _bits(p, point - _LIMB * i)
        unit /= 1 << _LIMB
        # a fraction of one half or more is taken from the next multiple; the lost last unit is below 2^-196
        word = _LIMB_MASK - word if negative else word
        h, low = add(h, low, word * unit, 0.0)
    if negative:
        q += 1
        h, low = -h, -low
    h, low = mul(h, low, HALF_PI[0], HALF_PI[1])
    if x < 0.0:
        return (4 - q) & 3, -h, -low
    return q & 3, h, low


@inline
def _bits(p: NDArray[np.int64], position: int) -> int:
    """The 28 bits of the long integer that start at `position`."""
    i = position // _LIMB
    shift = position - i * _LIMB
    return int(((p[i] >> shift) | (p[i + 1] << (_LIMB - shift))) & _LIMB_MASK)


@kernel
def sin_cos(x: float, quadrant: int, p: NDArray[np.int64]) -> Pair:
    """sin(x + quadrant·π/2) for any finite x; p: scratch of `reduce_half_pi`."""
    q, h, low = reduce_half_pi(x, p)
    q = (q + quadrant) & 3
    if q % 2 == 0 and abs(h) < 1e-30:  # the square would underflow; h − h³/6 = h to 200 bits
        return (h, low) if q == 0 else (-h, -low)
    zh, zl = mul(h, low, h, low)
    if q % 2 == 0:
        s = _SIN_HI[_TRIG_TERMS - 1]
        for n in range(_TRIG_TERMS - 2, _SIN_PAIRS - 1, -1):
            s = s * zh + _SIN_HI[n]
        sh, sl = s, 0.0
        for n in range(_SIN_PAIRS - 1, -1, -1):
            sh, sl = mul(sh, sl, zh, zl)
            sh, sl = plus(_SIN_HI[n], _SIN_LO[n], sh, sl)
        sh, sl = mul(sh, sl, h, low)
    else:
        s = _COS_HI[_TRIG_TERMS - 1]
        for n in range(_TRIG_TERMS - 2, _COS_PAIRS - 1, -1):
            s = s * zh + _COS_HI[n]
        sh, sl = s, 0.0
        for n in range(_COS_PAIRS - 1, -1, -1):
            sh, sl = mul(sh, sl, zh, zl)
            sh, sl = plus(_COS_HI[n], _COS_LO[n], sh, sl)
    return (-sh, -sl) if q >= 2 else (sh, sl)
