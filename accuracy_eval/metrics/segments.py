"""A row segment of at most 128 elements filled and compared, lane by lane, in loops that LLVM turns into vector code.

Both sides become float64 values and, between codes of one format, float64 ordinals; then every lane gets its error in ulp and whether it
is a mismatch, and the segment a count of lanes that are not plain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import inline
from accuracy_eval.metrics.floats import bf16_value, bits, exponent, fp16_value, fp32_value, from_bits, signed
from accuracy_eval.metrics.slots import (
    A, BF16, E, FP16, FP32, FP64, FRACTION52, F_FLOOR_E, F_HIGH_A, F_HIGH_E, F_LOW_A, F_LOW_E, INNER, INT32, OA, OE, P_EMIN, P_FLOAT,
    P_FRACTION, P_MODE, P_ZERO_FAST, R, REAL, REFERENCE, ROUNDER, SIGN, TABLE8, TF32, U, X,
)  # fmt: skip


@inline
def fill(s: Any, value: int, ordinal: int, kind: int, source: Any, tables: Any, r: int, c: int, w: int) -> None:
    """Values of source[r, c:c+w] into the lanes at `value`, ordinals into those at `ordinal` (not for 64-bit kinds)."""
    if kind == TABLE8:
        x8 = source[0][r, c : c + w]
        for j in range(w):
            s[value + j] = tables[0, x8[j]]
            s[ordinal + j] = tables[1, x8[j]]
    elif kind == BF16:
        x16 = source[1][r, c : c + w]
        for j in range(w):
            s[value + j] = bf16_value(np.int64(x16[j]))
    elif kind == FP16:
        x16 = source[1][r, c : c + w]
        for j in range(w):
            s[value + j] = fp16_value(np.int64(x16[j]))
    elif kind == FP32:
        x32 = source[2][r, c : c + w]
        for j in range(w):
            s[value + j] = fp32_value(np.int64(x32[j]))
    elif kind == TF32:
        x32 = source[2][r, c : c + w]
        for j in range(w):
            h = np.int64(x32[j])
            s[value + j] = fp32_value(h << 13)
            s[ordinal + j] = np.float64(signed(h, 0x3FFFF))
    elif kind == INT32:
        x32 = source[2][r, c : c + w]
        for j in range(w):
            v = np.float64(np.uint32(x32[j]).view(np.int32))
            s[value + j] = v
            s[ordinal + j] = v
    elif kind == FP64:
        x64 = source[3][r, c : c + w]
        for j in range(w):
            s[value + j] = np.uint64(x64[j]).view(np.float64)
    else:
        xr = source[4][r, c : c + w]
        for j in range(w):
            s[value + j] = xr[j]


@inline
def pair(s: Any, w: int, kind: int, src_a: Any, src_e: Any, r: int, c: int) -> Any:
    """fill and compare_codes in one loop, for the formats that matter most. Returns (lanes that are not finite, up, down)."""
    odd: Any = 0
    up = 0
    down = 0
    if kind == FP32:
        a32, e32 = src_a[2][r, c : c + w], src_e[2][r, c : c + w]
        for j in range(w):
            g, h = np.int64(a32[j]), np.int64(e32[j])
            s[A + j] = fp32_value(g)
            s[E + j] = fp32_value(h)
            u = signed(g, 0x7FFFFFFF) - signed(h, 0x7FFFFFFF)
            s[U + j] = np.float64(u)
            s[X + j] = 1.0 if u != 0 else 0.0
            odd += ((g & 0x7FFFFFFF) >= 0x7F800000) | ((h & 0x7FFFFFFF) >= 0x7F800000)
            up += u > 0
            down += u < 0
    elif kind == BF16:
        a16, e16 = src_a[1][r, c : c + w], src_e[1][r, c : c + w]
        for j in range(w):
            g, h = np.int64(a16[j]), np.int64(e16[j])
            s[A + j] = bf16_value(g)
            s[E + j] = bf16_value(h)
            u = signed(g, 0x7FFF) - signed(h, 0x7FFF)
            s[U + j] = np.float64(u)
            s[X + j] = 1.0 if u != 0 else 0.0
            odd += ((g & 0x7FFF) >= 0x7F80) | ((h & 0x7FFF) >= 0x7F80)
            up += u > 0
            down += u < 0
    else:
        a16, e16 = src_a[1][r, c : c + w], src_e[1][r, c : c + w]
        for j in range(w):
            g, h = np.int64(a16[j]), np.int64(e16[j])
            s[A + j] = fp16_value(g)
            s[E + j] = fp16_value(h)
            u = signed(g, 0x7FFF) - signed(h, 0x7FFF)
            s[U + j] = np.float64(u)
            s[X + j] = 1.0 if u != 0 else 0.0
            odd += ((g & 0x7FFF) >= 0x7C00) | ((h & 0x7FFF) >= 0x7C00)
            up += u > 0
            down += u < 0
    return odd, up, down


@inline
def code_at(kind: int, source: Any, r: int, c: int) -> Any:
    """The raw code as int64 (64-bit codes keep their bits); a real value's float64 bits."""
    if kind == TABLE8:
        return np.int64(source[0][r, c])
    if kind in (BF16, FP16):
        return np.int64(source[1][r, c])
    if kind == FP64:
        return np.uint64(source[3][r, c]).view(np.int64)
    if kind == REAL:
        return bits(source[4][r, c])
    return np.int64(source[2][r, c])


@inline
def compare_codes(s: Any, w: int, kind: int, fp: Any) -> Any:
    """Between codes of one format: ulp error and mismatch of every lane. Returns (lanes that are not plain, up, down)."""
    high, low = fp[F_HIGH_A], fp[F_LOW_A]
    odd = 0
    up = 0
    down = 0
    if kind == FP64:
        for j in range(w):
            x, y = bits(s[A + j]), bits(s[E + j])
            x = x if x >= 0 else -(x & 0x7FFFFFFFFFFFFFFF)
            y = y if y >= 0 else -(y & 0x7FFFFFFFFFFFFFFF)
            # of one sign the difference fits int64; of two signs it is rounded once, to 53 bits
            s[U + j] = np.float64(x - y) if (x >= 0) == (y >= 0) else np.float64(x) - np.float64(y)
    else:
        for j in range(w):
            s[U + j] = s[OA + j] - s[OE + j]
    for j in range(w):
        a, e, u = abs(s[A + j]), abs(s[E + j]), s[U + j]
        plain = (a <= high) & (e <= high) & ((a >= low) | (a == 0.0)) & ((e >= low) | (e == 0.0))
        odd += not plain
        up += u > 0.0
        down += u < 0.0
        s[X + j] = 1.0 if u != 0.0 else 0.0
    return odd, up, down


@inline
def compare_values(s: Any, w: int, ip: Any, fp: Any) -> Any:
    """Against values: real-valued ulp error, rounded expectation, mismatch. Returns (lanes that are not plain, up, down)."""
    high_a, low_a, high_e, low_e, floor_e = fp[F_HIGH_A], fp[F_LOW_A], fp[F_HIGH_E], fp[F_LOW_E], fp[F_FLOOR_E]
    zero_fast = ip[P_ZERO_FAST] != 0
    fraction, emin, floating = ip[P_FRACTION], ip[P_EMIN], ip[P_FLOAT]
    rounding = ip[P_MODE] == REFERENCE and fraction < 52
    odd = 0
    up = 0
    down = 0
    for j in range(w):
        a, e = s[A + j], s[E + j]
        x, y = abs(a), abs(e)
        plain = (x <= high_a) & (y <= high_e) & ((x >= low_a) | (x == 0.0)) & ((y >= low_e) | ((y == 0.0) & (zero_fast | (x == 0.0))))
        odd += not (plain & (e >= floor_e))
        p = exponent(e)
        k = (fraction - (p if p > emin else emin)) * floating
        grow = from_bits((1023 + k) << 52)
        s[U + j] = (a - e) * grow
        if rounding:
            r = abs((e * grow + ROUNDER) - ROUNDER) * from_bits((1023 - k) << 52)
            r = from_bits(bits(r) | (bits(e) & SIGN))
        else:
            r = e
        s[R + j] = r
        up += a > r
        down += a < r
        s[X + j] = 1.0 if a != r else 0.0
    return odd, up, down


@inline
def inner_plain(s: Any, w: int, ip: Any) -> None:
    """Distance from the reference to the interval of reals that round to the actual value: 0 where it is the rounded reference."""
    fraction, emin, floating = ip[P_FRACTION], ip[P_EMIN], ip[P_FLOAT]
    wide = fraction == 52
    for j in range(w):
        a, e = s[A + j], s[E + j]
        p = exponent(a)
        normal = p > emin
        # the gap below a power of two is half the gap above it
        inward = ((a > 0.0) & (e < a)) | ((a < 0.0) & (e > a))
        halved = inward & normal & ((bits(a) & FRACTION52) == 0)
        # -1022: a float64 zero's gap is not a float64; against |e - a| it is nothing
        k = max(((p if normal else emin) - fraction - (1 if halved else 0)) * floating - 1, -1022)
        gap = from_bits((k + 1023) << 52)
        # a format under 53 bits has its boundaries in float64: the distance to one is then rounded once, relative to itself
        distance = (abs(e - a) - gap) if wide else (e - (a + gap) if e > a else (a - gap) - e)
        s[INNER + j] = distance if (distance > 0.0) & (a != s[R + j]) else 0.0
