"""Block sums of matrix units one element at a time: rules without a lane form, and the cases a lane form leaves open.

Every kernel takes values k-major, [K + 1, n] float64 with a last row of zeros, exponents likewise (int64, floor(log2|x|) at least
the format's emin), the elements as two index arrays (i[t], j[t]), the order of k, and acc [t], values of the accumulator's format,
which it replaces by the result. Integers stay below 2^53 in float64, as in `lanes`; CDNA1's exact sums are expansions of float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import as_bits, as_float, inline, kernel

FAR = -4096  # exponent of a zero operand
TERMS = 16  # most terms of an exact sum


@inline
def _exponent(x: Any) -> Any:
    """floor(log2|x|) of a nonzero finite float64; subnormals of float64 count as −1023."""
    return ((as_bits(x) >> 52) & 2047) - 1023


@inline
def _times(x: Any, e: Any) -> Any:
    """x·2^e in two factors, |e| ≤ 2000."""
    h = min(max(e, -1000), 1000)
    return x * as_float((h + 1023) << 52) * as_float((e - h + 1023) << 52)


@inline
def _nearest(v: Any, P: int, emin: int) -> Any:
    """v rounded to nearest even with P fraction bits, at least emin; beyond 2^128 infinite (float32 range)."""
    if v == 0.0 or not np.isfinite(v):
        return v
    e = max(_exponent(v), emin)
    r = _times(np.rint(_times(v, P - e)), e - P)
    return np.copysign(np.inf, v) if np.abs(r) >= 2.0**128 else r


@inline
def _special(p: Any, state: Any) -> Any:
    """How a term enters the class of a sum: bit 0 NaN, 1 +Inf, 2 −Inf."""
    if np.isnan(p):
        return state | 1
    if np.isinf(p):
        return state | (2 if p > 0 else 4)
    return state


@inline
def _class_value(state: Any) -> Any:
    """The result that a class of terms forces; 0 where it forces none."""
    if state & 1 or (state & 6) == 6:
        return np.nan
    if state & 2:
        return np.inf
    return -np.inf if state & 4 else 0.0


@kernel
def truncating(
    groups: int, L: int, av: Any, ae: Any, bv: Any, be: Any, i: Any, j: Any, order: Any, start: int, stop: int, acc: Any
) -> None:
    """CDNA3, TR-FDPA (groups = 1) and GTR-FDPA (groups = 2), with products of 2^128 and more taken as infinite."""
    part = L // groups
    for t in range(acc.shape[0]):
        c = acc[t]
        for first in range(start, stop, L):
            state = _special(c, 0)
            top, total = FAR, 0.0
            for g in range(groups):
                e, s = FAR, 0.0
                for q in range(first + g * part, first + (g + 1) * part):
                    p = av[order[q], i[t]] * bv[order[q], j[t]]
                    if np.isfinite(p) and np.abs(p) >= 2.0**128:
                        p = np.copysign(np.inf, p)
                    state = _special(p, state)
                    if p != 0.0 and np.isfinite(p):
                        e = max(e, ae[order[q], i[t]] + be[order[q], j[t]])
                for q in range(first + g * part, first + (g + 1) * part):
                    p = av[order[q], i[t]] * bv[order[q], j[t]]
                    if np.isfinite(p) and p != 0.0 and state == 0:
                        s += np.trunc(_times(p, 24 - e))
                if e > FAR:
                    m = max(top, e)
                    total = (np.floor(_times(total, max(top - m, -100))) if top > FAR else 0.0) + np.floor(_times(s, max(e - m, -100)))
                    top = m
            if state != 0:
                c = _class_value(state)
                continue
            ec = max(_exponent(c), -126) if c != 0.0 else FAR
            m = max(ec, top)
            if m == FAR:
                c = 0.0
                continue
            v = np.floor(_times(total, max(top - m, -100) + 8)) if top > FAR else 0.0
            if c != 0.0 and (groups == 1 or ec >= m - 25):
                v += np.floor(_times(c, 24 - m)) * 256.0
            v = _times(v, m - 32) + 0.0
            if v != 0.0:
                e = max(_exponent(v), -126)
                v = _nearest(_times(np.floor(_times(v, 31 - e)), e - 31), 23, -126)
            c = v
        acc[t] = c


@kernel
def exact(L: int, av: Any, bv: Any, i: Any, j: Any, order: Any, start: int, stop: int, acc: Any) -> None:
    """CDNA1, E-FDPA: L products and the accumulator are summed exactly and rounded once to float32."""
    parts = np.empty(TERMS + 1)
    for t in range(acc.shape[0]):
        c = acc[t]
        for first in range(start, stop, L):
            state = _special(c, 0)
            count = 0
            for q in range(first - 1, first + L):
                x = c if q < first else av[order[q], i[t]] * bv[order[q], j[t]]
                state = _special(x, state)
                # Shewchuk's expansion: parts do not overlap and add up to the sum without error
                kept = 0
                for s in range(count):
                    y = parts[s]
                    if np.abs(x) < np.abs(y):
                        x, y = y, x
                    high = x + y
                    low = y - (high - x)
                    if low != 0.0:
                        parts[kept] = low
                        kept += 1
                    x = high
                parts[kept] = x
                count = kept + 1
            c = _class_value(state) if state != 0 else _round_parts(parts, count)
        acc[t] = c


@inline
def _round_parts(parts: Any, count: int) -> Any:
    """The float32 nearest to a sum of non-overlapping parts of increasing size: to odd in float64 first, which makes it one rounding."""
    high, rest, s = parts[count - 1], 0.0, count - 2
    while s >= 0 and rest == 0.0:
        x = high
        high = x + parts[s]
        rest = parts[s] - (high - x)
        s -= 1
    bits = as_bits(high)
    if rest != 0.0 and bits & 1 == 0:
        high = as_float(bits + (1 if (rest > 0.0) == (high > 0.0) else -1))
    return np.float64(np.float32(high)) + 0.0


@kernel
def grouped(P: int, e0: int, F: int, av: Any, bv: Any, sa: Any, ea: Any, sb: Any, eb: Any, i: Any, j: Any, order: Any, start: int,
            stop: int, acc: Any) -> None:  # fmt: skip
    """Blackwell mxf4 and nvf4, GST: blocks of 64 products, four groups of 16 summed exactly, times the groups' scales, then T-FDPA.

    sa, ea  significand and exponent of the scale of a group of 16, [ceil(K / 16), m]; sb, eb likewise. Every 16 of `order` are of one
            group, or zeros.
    """
    padding = av.shape[0] - 1
    terms, tops = np.empty(4), np.empty(4, np.int64)
    for t in range(acc.shape[0]):
        c = acc[t]
        for first in range(start, stop, 64):
            state = _special(c, 0)
            top = max(_exponent(c), -126) if c != 0.0 else e0
            for g in range(4):
                place = first + 16 * g
                terms[g], tops[g] = 0.0, e0
                if order[place] != padding:
                    group = order[place] // 16
                    s, zero = 0.0, True
                    for q in range(place, place + 16):
                        p = av[order[q], i[t]] * bv[order[q], j[t]]
                        zero = zero and p == 0.0
                        s += p
                    scale = sa[group, i[t]] * sb[group, j[t]]
                    state = _special(scale, state)
                    terms[g] = s * scale
                    tops[g] = e0 if zero or scale == 0.0 else ea[group, i[t]] + eb[group, j[t]]
                top = max(top, tops[g])
            if state != 0:
                c = _class_value(state)
                continue
            total = np.trunc(_times(c, F - top))
            for g in range(4):
                total += np.trunc(_times(terms[g], tops[g] - top + F))
            v = _times(total, top - F) + 0.0
            if v != 0.0:
                e = max(_exponent(v), -126)
                v = _times(np.trunc(_times(v, P - e)), e - P)
                if np.abs(v) >= 2.0**128:
                    v = np.copysign(np.inf, v)
            c = v
        acc[t] = c


@inline
def _lead(x: Any) -> Any:
    return _exponent(x) if x != 0.0 else FAR


@kernel
def rdna3(av: Any, ae: Any, bv: Any, be: Any, i: Any, j: Any, order: Any, start: int, stop: int, flush: int, acc: Any) -> None:
    """RDNA3 WMMA: two products a step, magnitudes cut to one grid, terms against the accumulator's sign in ones' complement.

    flush  1 (bfloat16): a subnormal accumulator counts as 0 (subnormal operands were made 0 by the caller)
    """
    for t in range(acc.shape[0]):
        c = acc[t]
        for q in range(start, stop, 2):
            k0, k1 = order[q], order[q + 1]
            p0, p1 = av[k0, i[t]] * bv[k0, j[t]], av[k1, i[t]] * bv[k1, j[t]]
            state = _special(p1, _special(p0, _special(c, 0)))
            if state != 0:
                c = _class_value(state)
                continue
            if flush and np.abs(c) < 2.0**-126:
                c = np.copysign(0.0, c)
            grid = FAR
            if p0 != 0.0:
                grid = max(grid, ae[k0, i[t]] + be[k0, j[t]] - 24)
            if p1 != 0.0:
                grid = max(grid, ae[k1, i[t]] + be[k1, j[t]] - 24)
            grid = max(grid, max(_lead(c), max(_lead(p0), _lead(p1))) - 26)
            if grid < -1000:  # nothing but zeros
                c = 0.0
                continue
            negative = np.signbit(c)
            total = np.trunc(_times(np.abs(c), -grid))
            for p in (p0, p1):
                magnitude = np.trunc(_times(np.abs(p), -grid))
                total += magnitude if np.signbit(p) == negative else -magnitude - 1.0
            v = _nearest(_times(-total if negative else total, grid) + 0.0, 23, -1000)
            c = 0.0 if np.abs(v) < 2.0**-126 else v
        acc[t] = c


@kernel
def rdna4(av: Any, ae: Any, bv: Any, be: Any, i: Any, j: Any, order: Any, start: int, stop: int, L: int, acc: Any) -> None:
    """RDNA4 WMMA (L = 4; its dot product instruction: 2): pairs of products floored and added, floored again beside the accumulator."""
    sums = np.empty(8)
    for t in range(acc.shape[0]):
        c = acc[t]
        for first in range(start, stop, L):
            state = _special(c, 0)
            top = FAR
            for pair in range(L // 2):
                e = FAR
                for q in range(first + 2 * pair, first + 2 * pair + 2):
                    p = av[order[q], i[t]] * bv[order[q], j[t]]
                    state = _special(p, state)
                    if p != 0.0:
                        e = max(e, ae[order[q], i[t]] + be[order[q], j[t]])
                s = 0.0
                if e > FAR and state == 0:
                    for q in range(first + 2 * pair, first + 2 * pair + 2):
                        s += np.floor(_times(av[order[q], i[t]] * bv[order[q], j[t]], 24 - e))
                    s = _times(s, e - 24)
                    top = max(top, e)
                sums[pair] = s
            if state != 0:
                c = _class_value(state)
                continue
            grid = max(top - 24, max(_lead(c), -126) - 26)
            total = 0.0
            for pair in range(L // 2):
                total += np.floor(_times(sums[pair], -grid))
            kept = np.floor(_times(c, -grid))
            if not (kept == -1.0 and _times(c, -grid) > -1.0 and grid > -126):
                total += kept
            c = _nearest(_times(total, grid) + 0.0, 23, -126)
        acc[t] = c
