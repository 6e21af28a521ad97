"""What the walk adds up and remembers: compensated sums in three buckets, pairwise folds of lanes, histogram, records, classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import inline, kernel
from accuracy_eval.metrics.floats import bits, exponent
from accuracy_eval.metrics.segments import code_at
from accuracy_eval.metrics.slots import (
    A, BIG, BIN_EXACT, BIN_ONE_REAL, CAU, DOWN600, E, EXACT, FOLD, GROUPS, HISTOGRAM, INNER, K_FINITE, K_NAN, K_NEG_INF, K_NEG_ZERO,
    K_POS_INF, K_SUBNORMAL, K_ZERO, MIDDLE, M_MAX_A, M_MAX_E, M_MIN_A, M_MIN_E, M_RATIO, M_REL, M_SCALED, NEAR, P_BUDGET, P_KIND_A,
    P_KIND_E, SHIFT, SMALL, S_M2, S_MEAN, S_N, U, UP600, WIDE_HIGH, WIDE_LOW,
)  # fmt: skip


@inline
def add(sums: Any, q: int, b: int, x: float) -> None:
    """Neumaier's compensated addition into sums[q, b]."""
    high = sums[q, b, 0]
    t = high + x
    if abs(high) >= abs(x):
        sums[q, b, 1] += (high - t) + x
    else:
        sums[q, b, 1] += (x - t) + high
    sums[q, b, 0] = t


@inline
def add_moments(sums: Any, b: int, n: float, mean: float, m2: float) -> None:
    """Merge (count, mean, Σ(d-mean)²) of a part into bucket b: Chan, Golub, LeVeque 1979."""
    before = sums[S_N, b, 0]
    total = before + n
    delta = mean - sums[S_MEAN, b, 0]
    sums[S_N, b, 0] = total
    sums[S_MEAN, b, 0] += delta * (n / total)
    sums[S_M2, b, 0] += m2 + delta * delta * (before * n / total)


@inline
def fold_half(s: Any, at: int) -> Any:
    for j in range(32):
        s[at + j] += s[at + 32 + j]
    for j in range(16):
        s[at + j] += s[at + 16 + j]
    for j in range(8):
        s[at + j] += s[at + 8 + j]
    return ((s[at] + s[at + 4]) + (s[at + 2] + s[at + 6])) + ((s[at + 1] + s[at + 5]) + (s[at + 3] + s[at + 7]))


@inline
def fold(s: Any, at: int) -> Any:
    """Sum of the 128 lanes at `at`, pairwise; overwrites them."""
    for j in range(64):
        s[at + j] += s[at + 64 + j]
    return fold_half(s, at)


@inline
def fold_square(s: Any, at: int) -> Any:
    """Sum of the squares of the 128 lanes at `at`."""
    for j in range(64):
        s[FOLD + j] = s[at + j] * s[at + j] + s[at + 64 + j] * s[at + 64 + j]
    return fold_half(s, FOLD)


@inline
def fold_square_of_difference(s: Any) -> Any:
    """Σ(a - e)² of the lanes."""
    for j in range(64):
        x, y = s[A + j] - s[E + j], s[A + 64 + j] - s[E + 64 + j]
        s[FOLD + j] = x * x + y * y
    return fold_half(s, FOLD)


@inline
def bin_of(u: float, integral: bool) -> Any:
    """Histogram bin of |ulp error| u >= 0: bins are (low, high]."""
    if u == 0.0:
        return 0
    if integral and u < EXACT:
        return int(u)
    key = (bits(u) - 1) >> SHIFT
    i = EXACT + (key - BIN_EXACT) if integral else max(key - BIN_ONE_REAL, 0) + 1
    return min(i, HISTOGRAM - 1)


@inline
def bins(s: Any, q: Any, w: int, integral: bool) -> None:
    """Counter of every lane's bin, into q; Σ|u| of what the histogram does not hold exactly."""
    far = 0
    for j in range(w):
        far += abs(s[U + j]) >= NEAR
    if integral and far == 0:
        for j in range(w):
            q[j] = np.int64(abs(s[U + j])) + (j & (GROUPS - 1)) * NEAR
    elif integral:
        for j in range(w):
            u = abs(s[U + j])
            exact = np.int64(u if u < EXACT else 0.0)
            octave = min(EXACT + (((bits(u) - 1) >> SHIFT) - BIN_EXACT), HISTOGRAM - 1)
            near = (j & (GROUPS - 1)) * NEAR
            s[CAU + j] += 0.0 if u < EXACT else u
            q[j] = exact + (near if u < NEAR else GROUPS * NEAR) if u < EXACT else octave + GROUPS * NEAR
    else:
        for j in range(w):
            u = abs(s[U + j])
            s[CAU + j] += u
            i = min(max(((bits(u) - 1) >> SHIFT) - BIN_ONE_REAL, 0) + 1, HISTOGRAM - 1)
            q[j] = (i if u > 0.0 else 0) + GROUPS * NEAR


@kernel
def keep(topf: Any, topi: Any, which: int, key: float, a: float, e: float, u: float, b: float, at: int, code_a: int, code_e: int) -> None:
    """Insert an element into the list of the largest by `key`; of equal keys the first met stays ahead."""
    k = topf.shape[1] - 1
    while k > 0 and topf[which, k - 1, 0] < key:
        for i in range(5):
            topf[which, k, i] = topf[which, k - 1, i]
        for i in range(3):
            topi[which, k, i] = topi[which, k - 1, i]
        k -= 1
    topf[which, k, 0] = key
    topf[which, k, 1] = a
    topf[which, k, 2] = e
    topf[which, k, 3] = u
    topf[which, k, 4] = b
    topi[which, k, 0] = at
    topi[which, k, 1] = code_a
    topi[which, k, 2] = code_e


@inline
def record(rec: Any, reci: Any, which: int, value: float, at: int) -> None:
    if value > rec[which]:
        rec[which] = value
        reci[which] = at


@kernel
def plain_records(s: Any, w: int, ip: Any, budget: Any, acc: Any, src_a: Any, src_e: Any, r: int, c: int, at: int) -> None:
    """Look through a plain segment for new records; called only where a vector test says there is one."""
    rec, reci, topf, topi = acc[7], acc[8], acc[5], acc[6]
    last = topf.shape[1] - 1
    has_budget = ip[P_BUDGET] != 0
    for j in range(w):
        a, e, u = s[A + j], s[E + j], s[U + j]
        d = abs(a - e)
        y = abs(e)
        if y > 0.0:
            record(rec, reci, M_REL, d / y, at + j)
        record(rec, reci, M_SCALED, d / max(1.0, y), at + j)
        if a < rec[M_MIN_A]:
            rec[M_MIN_A] = a
        if a > rec[M_MAX_A]:
            rec[M_MAX_A] = a
        if e < rec[M_MIN_E]:
            rec[M_MIN_E] = e
        if e > rec[M_MAX_E]:
            rec[M_MAX_E] = e
        big, far = d > topf[0, last, 0], abs(u) > topf[1, last, 0]
        if big or far:
            b = budget[r, c + j] if has_budget else np.nan
            code_a, code_e = code_at(ip[P_KIND_A], src_a, r, c + j), code_at(ip[P_KIND_E], src_e, r, c + j)
            if big:
                keep(topf, topi, 0, d, a, e, u, b, at + j, code_a, code_e)
            if far:
                keep(topf, topi, 1, abs(u), a, e, u, b, at + j, code_a, code_e)


@kernel
def budget_records(s: Any, w: int, budget: Any, acc: Any, r: int, c: int, at: int) -> None:
    """As plain_records for inner errors in units of the budget. A budget of 0 admits 0 only."""
    rec, reci = acc[7], acc[8]
    for j in range(w):
        if s[INNER + j] > 0.0:
            record(rec, reci, M_RATIO, s[INNER + j] / budget[r, c + j], at + j)


@inline
def count_class(counts: Any, base: int, x: float, smallest_normal: float) -> None:
    if x != x:
        counts[base + K_NAN] += 1
    elif x == np.inf:
        counts[base + K_POS_INF] += 1
    elif x == -np.inf:
        counts[base + K_NEG_INF] += 1
    else:
        counts[base + K_FINITE] += 1
        if x == 0.0:
            counts[base + K_ZERO] += 1
            if bits(x) < 0:
                counts[base + K_NEG_ZERO] += 1
        elif abs(x) < smallest_normal:
            counts[base + K_SUBNORMAL] += 1


@inline
def count_first(counts: Any, c: int, reci: Any, m: int, flat: int) -> None:
    """One more of counts[c]; reci[m] is where the first of them is, units being walked in any order."""
    counts[c] += 1
    if reci[m] < 0 or flat < reci[m]:
        reci[m] = flat


@inline
def bucket(x: float) -> int:
    """Which accumulator takes a term of magnitude x."""
    return BIG if x > WIDE_HIGH else (SMALL if x < WIDE_LOW and x > 0.0 else MIDDLE)


@inline
def to_bucket(x: float, b: int) -> float:
    return x * DOWN600 if b == BIG else (x * UP600 if b == SMALL else x)


@inline
def add_product(sums: Any, q: int, x: float, y: float) -> None:
    """Σx·y by the magnitude of the product."""
    if x != 0.0 and y != 0.0:
        p = exponent(x) + exponent(y)
        if p > 800:
            add(sums, q, BIG, (x * DOWN600) * (y * DOWN600))
        elif p < -800:
            add(sums, q, SMALL, (x * UP600) * (y * UP600))
        else:
            add(sums, q, MIDDLE, x * y)
