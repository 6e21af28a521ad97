"""Block sums of matrix units for many elements at once, in float64 lanes.

Why float64 is exact here. A term of a block is trunc(s·2^(e − E + F)), an integer below 2^(F + 2) as |s| < 4; a product of two
operands of at most 24 significant bits is exact in float64, and so is its scaling by a power of two. With F ≤ 32 and at most 32
terms the sum stays under 2^39: every addition is exact, in any order. Rounding of the sum scales by powers of two and truncates.
Exponents are small integers, kept as float32 because that gives twice the lanes of int64.

Operands come k-major: values and exponents [K + 1, n], whose last row is zero. A chain visits the rows named by `order`, so that
any permutation and padding of k costs nothing. Two forms of each kernel: *tile* (every row of A with every column of B) and
*pairs* (row r of A with row r of B).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import as_bits, as_float, fma, inline, kernel

WIDTH = 128  # columns of B worked on together: a block of operands and its work arrays stay in the L1 cache
NONE = -4096.0  # exponent of a zero operand: below every real one, exact in float32 also after an addition
LOW = -600  # exponent that stands for "no nonzero term" where a scale factor is made of it
HIGH = 900  # exponents of infinities are cut here, so that 2^±e stays a normal float64

TFDPA, TRFDPA, GTRFDPA = 0, 1, 2  # which rule finishes a block
RZ, RNE = 0, 1


@inline
def _power(e: Any) -> Any:
    """2^e for −1022 ≤ e ≤ 1023."""
    return as_float((e + 1023) << 52)


@inline
def _exponent(x: Any, lowest: int) -> Any:
    """floor(log2|x|) as int64, cut to [lowest, HIGH]; zero and subnormals give `lowest`."""
    return min(max(((as_bits(x) >> 52) & 2047) - 1023, np.int64(lowest)), np.int64(HIGH))


@inline
def _with_accumulator(top: Any, acc: Any, scale: Any, width: int, F: int, emin: int, zero: int) -> None:
    """T-FDPA: the accumulator takes part in the maximum. top = E, scale = 2^(F − E)."""
    for j in range(width):
        e = _exponent(acc[j], emin) if acc[j] != 0.0 else np.int64(zero)
        e = min(max(e, np.int64(top[j])), np.int64(HIGH))
        top[j] = e
        scale[j] = _power(F - e)


@inline
def _products_only(top: Any, scale: Any, width: int, F: int) -> None:
    """TR-FDPA: products align among themselves. top = E cut to [LOW, HIGH], scale = 2^(F − E)."""
    for j in range(width):
        e = min(max(np.int64(top[j]), np.int64(LOW)), np.int64(HIGH))
        top[j] = e
        scale[j] = _power(F - e)


@inline
def _round_tfdpa(total: Any, top: Any, acc: Any, width: int, F: int, P: int, emin: int, mode: int, limit: float) -> None:
    """acc = total·2^(top − F) rounded to P fraction bits, float32 or float16 range."""
    for j in range(width):
        v = total[j] * _power(np.int64(top[j]) - F) + 0.0  # + 0.0: a sum of nothing but zeros is +0
        e = _exponent(v, emin)
        scaled = v * _power(P - e)
        r = (np.trunc(scaled) if mode == RZ else np.rint(scaled)) * _power(e - P)
        acc[j] = np.copysign(np.inf, r) if np.abs(r) >= limit else r


@inline
def _join_accumulator(total: Any, top: Any, acc: Any, width: int, cut: int) -> None:
    """TR- and GTR-FDPA: products summed to `total` units of 2^(top − 24) meet the accumulator; RNE to float32 after a floor.

    An accumulator more than `cut` binades below counts as 0. NaN where a single product may reach 2^128: the caller settles such
    elements one by one.
    """
    for j in range(width):
        ec = _exponent(acc[j], -126) if acc[j] != 0.0 else np.int64(LOW)
        ed = np.int64(top[j])
        m = max(ec, ed)
        # 100 binades below the floor is 0 or −1 whatever the exponent
        part = np.floor(total[j] * _power(max(ed - m, np.int64(-100)) + 8))
        c = np.floor(acc[j] * _power(24 - m)) * 256.0 if ec >= m - cut else 0.0
        v = (part + c) * _power(m - 32) + 0.0
        e = _exponent(v, -126)
        r = np.rint(np.floor(v * _power(31 - e)) * 0.00390625) * _power(e - 23)
        r = np.copysign(np.inf, r) if np.abs(r) >= 2.0**128 else r
        acc[j] = np.nan if ed >= 127 else r


@inline
def _meet(total: Any, top: Any, second: Any, other: Any, width: int) -> None:
    """GTR-FDPA: two groups, each in units of its own maximum, floored to the units of the larger and added."""
    for j in range(width):
        x, y = np.int64(top[j]), np.int64(other[j])
        e = max(x, y)
        total[j] = np.floor(total[j] * _power(max(x - e, np.int64(-100)))) + np.floor(second[j] * _power(max(y - e, np.int64(-100))))
        top[j] = e


@inline
def _top_tile(ae: Any, i: int, be: Any, order: Any, first: int, last: int, j0: int, width: int, top: Any) -> None:
    for j in range(width):
        top[j] = np.float32(-8192.0)
    for q in range(first, last, 4):
        k0, k1, k2, k3 = order[q], order[q + 1], order[q + 2], order[q + 3]
        x0, x1, x2, x3 = ae[k0, i], ae[k1, i], ae[k2, i], ae[k3, i]
        for j in range(width):
            top[j] = max(
                max(max(x0 + be[k0, j0 + j], x1 + be[k1, j0 + j]), max(x2 + be[k2, j0 + j], x3 + be[k3, j0 + j])), top[j]
            )  # fmt: skip


@inline
def _sum_tile(av: Any, i: int, bv: Any, order: Any, first: int, last: int, j0: int, width: int, scale: Any, total: Any) -> None:
    for q in range(first, last, 4):
        k0, k1, k2, k3 = order[q], order[q + 1], order[q + 2], order[q + 3]
        x0, x1, x2, x3 = av[k0, i], av[k1, i], av[k2, i], av[k3, i]
        for j in range(width):
            s = scale[j]
            total[j] += (np.trunc(x0 * bv[k0, j0 + j] * s) + np.trunc(x1 * bv[k1, j0 + j] * s)) + (
                np.trunc(x2 * bv[k2, j0 + j] * s) + np.trunc(x3 * bv[k3, j0 + j] * s)
            )


@inline
def _top_pairs(ae: Any, be: Any, order: Any, first: int, last: int, j0: int, width: int, top: Any) -> None:
    for j in range(width):
        top[j] = np.float32(-8192.0)
    for q in range(first, last, 4):
        k0, k1, k2, k3 = order[q], order[q + 1], order[q + 2], order[q + 3]
        for j in range(j0, j0 + width):
            top[j - j0] = max(
                max(max(ae[k0, j] + be[k0, j], ae[k1, j] + be[k1, j]), max(ae[k2, j] + be[k2, j], ae[k3, j] + be[k3, j])), top[j - j0]
            )


@inline
def _sum_pairs(av: Any, bv: Any, order: Any, first: int, last: int, j0: int, width: int, scale: Any, total: Any) -> None:
    for q in range(first, last, 4):
        k0, k1, k2, k3 = order[q], order[q + 1], order[q + 2], order[q + 3]
        for j in range(j0, j0 + width):
            s = scale[j - j0]
            total[j - j0] += (np.trunc(av[k0, j] * bv[k0, j] * s) + np.trunc(av[k1, j] * bv[k1, j] * s)) + (
                np.trunc(av[k2, j] * bv[k2, j] * s) + np.trunc(av[k3, j] * bv[k3, j] * s)
            )


@kernel
def tile(rule: int, L: int, F: int, P: int, e0: int, half: int, av: Any, ae: Any, bv: Any, be: Any, order: Any, start: int,
         stop: int, row0: int, row1: int, acc: Any) -> None:  # fmt: skip
    """acc[row0:row1] = the chain of blocks order[start:stop] of those rows of A with every column of B, from acc.

    rule   TFDPA, TRFDPA or GTRFDPA; L products a block, F alignment bits, P fraction bits of the result, e0 exponent of a zero term
    half   1: T-FDPA results are float16, rounded to nearest (P = 10)
    av, ae, bv, be  values and exponents, [K + 1, m] and [K + 1, n]; acc float64 [m, n], values of the accumulator's format
    stop − start is a multiple of L, L of 4 (GTRFDPA: of 8); for GTRFDPA the two groups of a block follow each other in `order`.
    """
    n = bv.shape[1]
    top, other = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
    scale, total, second = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH)
    emin, mode, limit = (-14, RNE, 65520.0) if half else (-126, RZ, 2.0**128)
    for j0 in range(0, n, WIDTH):
        width = min(WIDTH, n - j0)
        for first in range(start, stop, L):
            last = first + L
            for i in range(row0, row1):
                a = acc[i, j0 : j0 + width]
                if rule == TFDPA:
                    _top_tile(ae, i, be, order, first, last, j0, width, top)
                    _with_accumulator(top, a, scale, width, F, emin, e0)
                    for j in range(width):
                        total[j] = np.trunc(a[j] * scale[j])
                    _sum_tile(av, i, bv, order, first, last, j0, width, scale, total)
                    _round_tfdpa(total, top, a, width, F, P, emin, mode, limit)
                elif rule == TRFDPA:
                    _top_tile(ae, i, be, order, first, last, j0, width, top)
                    _products_only(top, scale, width, F)
                    total[:width] = 0.0
                    _sum_tile(av, i, bv, order, first, last, j0, width, scale, total)
                    _join_accumulator(total, top, a, width, 4096)
                else:
                    middle = first + L // 2
                    total[:width] = 0.0
                    second[:width] = 0.0
                    _top_tile(ae, i, be, order, first, middle, j0, width, top)
                    _products_only(top, scale, width, F)
                    _sum_tile(av, i, bv, order, first, middle, j0, width, scale, total)
                    _top_tile(ae, i, be, order, middle, last, j0, width, other)
                    _products_only(other, scale, width, F)
                    _sum_tile(av, i, bv, order, middle, last, j0, width, scale, second)
                    _meet(total, top, second, other, width)
                    _join_accumulator(total, top, a, width, 25)


@kernel
def pairs(rule: int, L: int, F: int, P: int, e0: int, half: int, av: Any, ae: Any, bv: Any, be: Any, order: Any, start: int,
          stop: int, acc: Any) -> None:  # fmt: skip
    """As `tile`, for row r of A with row r of B: av, ae, bv, be [K + 1, r], acc [r]."""
    n = bv.shape[1]
    top, other = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
    scale, total, second = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH)
    emin, mode, limit = (-14, RNE, 65520.0) if half else (-126, RZ, 2.0**128)
    for j0 in range(0, n, WIDTH):
        width = min(WIDTH, n - j0)
        a = acc[j0 : j0 + width]
        for first in range(start, stop, L):
            last = first + L
            if rule == TFDPA:
                _top_pairs(ae, be, order, first, last, j0, width, top)
                _with_accumulator(top, a, scale, width, F, emin, e0)
                for j in range(width):
                    total[j] = np.trunc(a[j] * scale[j])
                _sum_pairs(av, bv, order, first, last, j0, width, scale, total)
                _round_tfdpa(total, top, a, width, F, P, emin, mode, limit)
            elif rule == TRFDPA:
                _top_pairs(ae, be, order, first, last, j0, width, top)
                _products_only(top, scale, width, F)
                total[:width] = 0.0
                _sum_pairs(av, bv, order, first, last, j0, width, scale, total)
                _join_accumulator(total, top, a, width, 4096)
            else:
                middle = first + L // 2
                total[:width] = 0.0
                second[:width] = 0.0
                _top_pairs(ae, be, order, first, middle, j0, width, top)
                _products_only(top, scale, width, F)
                _sum_pairs(av, bv, order, first, middle, j0, width, scale, total)
                _top_pairs(ae, be, order, middle, last, j0, width, other)
                _products_only(other, scale, width, F)
                _sum_pairs(av, bv, order, middle, last, j0, width, scale, second)
                _meet(total, top, second, other, width)
                _join_accumulator(total, top, a, width, 25)


@kernel
def fma_tile(av: Any, bv: Any, order: Any, start: int, stop: int, row0: int, row1: int, acc: Any) -> None:
    """acc[i, j] = fma(a_k, b_k, acc) for k in order[start:stop], in the arrays' own width (all float32 or all float64)."""
    n = bv.shape[1]
    for j0 in range(0, n, 512):
        width = min(512, n - j0)
        for q0 in range(start, stop, 16):
            for i in range(row0, row1):
                a = acc[i, j0 : j0 + width]
                for q in range(q0, min(q0 + 16, stop)):
                    k = order[q]
                    x = av[k, i]
                    b = bv[k, j0 : j0 + width]
                    for j in range(width):
                        a[j] = fma(x, b[j], a[j])


@kernel
def fma_pairs(av: Any, bv: Any, order: Any, start: int, stop: int, acc: Any) -> None:
    """As `fma_tile`, for row r of A with row r of B."""
    for q in range(start, stop):
        a, b = av[order[q]], bv[order[q]]
        for j in range(acc.shape[0]):
            acc[j] = fma(a[j], b[j], acc[j])


@kernel
def muladd_tile(av: Any, bv: Any, order: Any, start: int, stop: int, row0: int, row1: int, acc: Any) -> None:
    """acc[i, j] = acc + a_k·b_k for k in order[start:stop], product and sum each rounded; float32 arrays."""
    for i in range(row0, row1):
        a = acc[i]
        for q in range(start, stop):
            k = order[q]
            x, b = av[k, i], bv[k]
            for j in range(a.shape[0]):
                a[j] = a[j] + x * b[j]


@kernel
def muladd_pairs(av: Any, bv: Any, order: Any, start: int, stop: int, acc: Any) -> None:
    """As `muladd_tile`, for row r of A with row r of B."""
    for q in range(start, stop):
        a, b = av[order[q]], bv[order[q]]
        for j in range(acc.shape[0]):
            acc[j] = acc[j] + a[j] * b[j]


@inline
def _flush(x: Any) -> Any:
    """A float32 below the smallest normal value becomes a zero of its sign."""
    return np.copysign(np.float32(0.0), x) if np.abs(x) < np.float32(2.0**-126) else x


@kernel
def flushing(av: Any, bv: Any, i: Any, j: Any, order: Any, start: int, stop: int, P: int, acc: Any) -> None:
    """CDNA2: acc[t] = flush(acc + q) for element t = (i[t], j[t]); q is the flushed pairwise sum of P rounded, flushed products."""
    for t in range(acc.shape[0]):
        c = acc[t]
        if np.abs(c) < np.float32(2.0**-126) and c != np.float32(0.0):
            c = np.float32(0.0)
        for q in range(start, stop, P):
            k0, k1 = order[q], order[q + 1]
            s = _flush(_flush(av[k0, i[t]] * bv[k0, j[t]]) + _flush(av[k1, i[t]] * bv[k1, j[t]]))
            if P == 4:
                k2, k3 = order[q + 2], order[q + 3]
                s = _flush(s + _flush(_flush(av[k2, i[t]] * bv[k2, j[t]]) + _flush(av[k3, i[t]] * bv[k3, j[t]])))
            c = _flush(c + s)
        acc[t] = c
