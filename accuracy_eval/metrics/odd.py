"""A row segment with elements that are not plain (NaN, Inf, 1e200, an overflow of the format), element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import kernel
from accuracy_eval.metrics.floats import bits, exponent, from_bits, scaled
from accuracy_eval.metrics.segments import code_at
from accuracy_eval.metrics.slots import (
    A, BIG, B_DD, B_EE, B_MAX, B_MIS, C_ALLCLOSE, C_BAD_BUDGET, C_CLASS_A, C_CLASS_E, C_DOWN, C_INF_A, C_INF_E, C_MISMATCH, C_NAN_A,
    C_NAN_E, C_NONFINITE, C_NONZERO_AT_ZERO, C_OVER_BUDGET, C_UP, C_VALID, C_ZERO_REFERENCE, C_ZERO_SIGN, DOWN600, E, EXACT, FRACTION52,
    F_EDGE, F_LOWEST, F_MAX, F_NORMAL_A, F_NORMAL_E, F_SMALLEST, F_THRESHOLD, GROUPS, INF, MIDDLE, M_INF_A, M_INF_E, M_INNER, M_MAX_A,
    M_MAX_E, M_MIN_A, M_MIN_E, M_NAN_A, M_NAN_E, M_RATIO, M_REL, M_SCALED, NAN, NEAR, NEAR_OVERFLOW, P_BUDGET, P_EMIN, P_FLOAT,
    P_FRACTION, P_HAS_ZERO, P_KIND_A, P_KIND_E, P_MODE, P_NEG_ZERO, P_POLICY, P_SIGNED, REFERENCE, ROUNDER, SAME, SATURATE, SIGN, S_AA,
    S_AE, S_AU, S_DD, S_DE, S_EE, S_SG, S_U, U, UP600, WIDE_HIGH,
)  # fmt: skip
from accuracy_eval.metrics.tallies import add, add_moments, add_product, bin_of, bucket, count_class, count_first, keep, record, to_bucket


@kernel
def rounded(e: float, ip: Any, fp: Any) -> Any:
    """e rounded to the actual's format as a value: ties to even, overflow by the format's policy, NaN where it has no code."""
    if e != e:
        return e
    if ip[P_SIGNED] == 0 and e < 0.0 and ip[P_FLOAT] != 0:
        return np.nan
    if abs(e) >= fp[F_THRESHOLD]:
        if ip[P_POLICY] == INF:
            return np.inf if e > 0.0 else -np.inf
        if ip[P_POLICY] == NAN:
            return np.nan
        return fp[F_MAX] if e > 0.0 else fp[F_LOWEST]
    if ip[P_FLOAT] == 0:
        r = e if abs(e) > 2.0**51 else (e + ROUNDER) - ROUNDER
        return min(max(r, fp[F_LOWEST]), fp[F_MAX])
    if ip[P_FRACTION] == 52:
        return e
    if ip[P_HAS_ZERO] == 0 and abs(e) < fp[F_SMALLEST]:
        return fp[F_SMALLEST] if ip[P_POLICY] == SATURATE else np.nan
    k = ip[P_FRACTION] - max(exponent(e), ip[P_EMIN])
    r = abs(scaled((scaled(e, k) + ROUNDER) - ROUNDER, -k))
    return from_bits(bits(r) | (bits(e) & SIGN))


@kernel
def inner_error(a: float, e: float, r: float, ip: Any, fp: Any) -> Any:
    """As inner_plain for any pair. The set of +Inf begins where rounding overflows; the set of a NaN is empty unless overflow gives
    NaN; an empty set, or a reference without a place on the line, is at distance +inf."""
    if a == r or (a != a and r != r):
        return 0.0
    if r != r or e != e:
        return np.inf
    if a != a:
        return max(fp[F_EDGE] - abs(e), 0.0) if ip[P_POLICY] == NAN else np.inf
    if abs(a) == np.inf:
        if ip[P_POLICY] != INF:
            return np.inf
        return max(fp[F_EDGE] - e if a > 0.0 else e + fp[F_EDGE], 0.0)
    if abs(e) == np.inf:
        return np.inf
    p = exponent(a)
    k = -1
    if ip[P_FLOAT] != 0:
        normal = p > ip[P_EMIN]
        inward = (a > 0.0 and e < a) or (a < 0.0 and e > a)
        halved = inward and normal and (bits(a) & FRACTION52) == 0
        k = max(p, ip[P_EMIN]) - ip[P_FRACTION] - 1 - (1 if halved else 0)
    gap = scaled(1.0, k)
    distance = abs(e - a) - gap if ip[P_FRACTION] == 52 else (e - (a + gap) if e > a else (a - gap) - e)
    return max(distance, 0.0)


@kernel
def odd_segment(
    s: Any, w: int, ip: Any, fp: Any, specs: Any, budget: Any, acc: Any, src_a: Any, src_e: Any, r: int, c: int, at: int,
    row: int, column: int, tile_row: int, tile_column: int,
) -> None:  # fmt: skip
    """A segment with elements that are not plain, element by element. `at` is the flat index of its first element; `row`, `column`
    and the tile index are places in the unit's own arrays."""
    sums, counts, rows, cols, tiles = acc[0], acc[1], acc[2], acc[3], acc[4]
    topf, topi, rec, reci, histogram = acc[5], acc[6], acc[7], acc[8], acc[9]
    last = topf.shape[1] - 1
    mode = ip[P_MODE]
    has_budget = ip[P_BUDGET] != 0
    for j in range(w):
        a, e = s[A + j], s[E + j]
        t = rounded(e, ip, fp) if mode == REFERENCE else e
        if t == 0.0 and mode == REFERENCE and ip[P_NEG_ZERO] == 0:
            t = 0.0
        flat = at + j
        count_class(counts, C_CLASS_A, a, fp[F_NORMAL_A])
        count_class(counts, C_CLASS_E, t, fp[F_NORMAL_E])
        nan_a, nan_e, inf_a, inf_e = a != a, t != t, abs(a) == np.inf, abs(t) == np.inf
        same_class = a == t if (inf_a or inf_e) else nan_a == nan_e
        if nan_a and not nan_e:
            count_first(counts, C_NAN_A, reci, M_NAN_A, flat)
        if nan_e and not nan_a:
            count_first(counts, C_NAN_E, reci, M_NAN_E, flat)
        if inf_a and a != t:
            count_first(counts, C_INF_A, reci, M_INF_A, flat)
        if inf_e and a != t:
            count_first(counts, C_INF_E, reci, M_INF_E, flat)
        if not same_class:
            counts[C_NONFINITE] += 1
        signs_differ = a == 0.0 and t == 0.0 and ip[P_NEG_ZERO] != 0 and (bits(a) < 0) != (bits(t) < 0)
        if signs_differ:
            counts[C_ZERO_SIGN] += 1
        if (a != t and not (nan_a and nan_e)) or signs_differ:
            counts[C_MISMATCH] += 1
            rows[B_MIS, row] += 1.0
            cols[B_MIS, column + j] += 1.0
            tiles[B_MIS, tile_row, tile_column] += 1.0
        if a > t:
            counts[C_UP] += 1
        elif a < t:
            counts[C_DOWN] += 1

        b = budget[r, c + j] if has_budget else np.nan
        finite_a, finite_e = not (nan_a or inf_a), abs(e) < np.inf
        if finite_a:
            if a < rec[M_MIN_A]:
                rec[M_MIN_A] = a
            if a > rec[M_MAX_A]:
                rec[M_MAX_A] = a
        if finite_e:
            if e < rec[M_MIN_E]:
                rec[M_MIN_E] = e
            if e > rec[M_MAX_E]:
                rec[M_MAX_E] = e
        x, y = abs(a), abs(e)
        huge = x > NEAR_OVERFLOW or y > NEAR_OVERFLOW
        d = 0.0
        small_d = 0.0  # d·2^-600, for differences that may overflow
        if finite_a and finite_e:
            small_d = a * DOWN600 - e * DOWN600
            d = small_d * UP600 if huge else a - e
        error = abs(d)
        if not same_class or not (finite_a and finite_e):
            error_allowed = inner_error(a, e, t, ip, fp) if mode == REFERENCE else (0.0 if same_class else np.inf)
        else:
            error_allowed = inner_error(a, e, t, ip, fp) if mode == REFERENCE else error
        if mode == REFERENCE:
            record(rec, reci, M_INNER, error_allowed, flat)
        if has_budget:
            if not b >= 0.0:
                counts[C_BAD_BUDGET] += 1
            if error_allowed > b:
                counts[C_OVER_BUDGET] += 1
            if error_allowed > 0.0:
                record(rec, reci, M_RATIO, error_allowed / b if error_allowed < np.inf else np.inf, flat)
        for i in range(specs.shape[0]):
            if not same_class or error > specs[i, 1] + specs[i, 0] * (y if finite_e else 0.0):
                counts[C_ALLCLOSE + i] += 1
        if not (finite_a and finite_e):
            continue

        counts[C_VALID] += 1
        if y == 0.0:
            counts[C_ZERO_REFERENCE] += 1
            if x != 0.0:
                counts[C_NONZERO_AT_ZERO] += 1
        if mode == SAME:
            u = s[U + j]
        else:
            p = exponent(e)
            k = (ip[P_FRACTION] - (p if p > ip[P_EMIN] else ip[P_EMIN])) * ip[P_FLOAT]
            u = scaled(small_d, k + 600) if huge else scaled(d, k)
        histogram[GROUPS * NEAR + bin_of(abs(u), mode == SAME)] += 1
        bu = BIG if abs(u) > WIDE_HIGH else MIDDLE
        add(sums, S_U, bu, u * DOWN600 if bu == BIG else u)
        if mode != SAME or abs(u) >= EXACT:
            add(sums, S_AU, bu, abs(u * DOWN600 if bu == BIG else u))

        bd, ba, be = bucket(error), bucket(x), bucket(y)
        td = small_d if (huge and bd == BIG) else to_bucket(d, bd)
        ta, te = to_bucket(a, ba), to_bucket(e, be)
        add(sums, S_DD, bd, td * td)
        add(sums, S_AA, ba, ta * ta)
        add(sums, S_EE, be, te * te)
        add_product(sums, S_AE, a, e)
        if huge and bd == BIG and exponent(small_d) + exponent(e) > 200:
            add(sums, S_DE, BIG, small_d * (e * DOWN600))
        elif huge and bd == BIG:  # here |e| < 2^201: its 2^600-fold is finite
            add(sums, S_DE, MIDDLE, small_d * (e * UP600))
        else:
            add_product(sums, S_DE, d, e)
        add(sums, S_SG, bd, td if e > 0.0 else (-td if e < 0.0 else 0.0))
        add_moments(sums, bd, 1.0, td, 0.0)
        rows[B_DD + bd, row] += td * td
        rows[B_EE + be, row] += te * te
        cols[B_DD + bd, column + j] += td * td
        cols[B_EE + be, column + j] += te * te
        tiles[B_DD + bd, tile_row, tile_column] += td * td
        tiles[B_EE + be, tile_row, tile_column] += te * te
        if error > tiles[B_MAX, tile_row, tile_column]:
            tiles[B_MAX, tile_row, tile_column] = error
        if y > 0.0:
            record(rec, reci, M_REL, abs(small_d) / (y * DOWN600) if huge and y > 1.0 else error / y, flat)
        record(rec, reci, M_SCALED, abs(small_d) / (max(1.0, y) * DOWN600) if huge else error / max(1.0, y), flat)
        if error > topf[0, last, 0] or abs(u) > topf[1, last, 0]:
            code_a, code_e = code_at(ip[P_KIND_A], src_a, r, c + j), code_at(ip[P_KIND_E], src_e, r, c + j)
            if error > topf[0, last, 0]:
                keep(topf, topi, 0, error, a, e, u, b, flat, code_a, code_e)
            if abs(u) > topf[1, last, 0]:
                keep(topf, topi, 1, abs(u), a, e, u, b, flat, code_a, code_e)
