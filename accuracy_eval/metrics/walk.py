"""The compiled walk over two arrays of codes: one function, one signature, every sum and count of the metrics.

The unit of work is a rectangle of `rows` × `cols` elements, cut into tiles of 128 × 128 and walked by row segments of at most 128
elements. A segment is first *filled*: both sides become float64 values and, between codes of one format, float64 ordinals.
Then it takes one of two ways:

- *plain*: every value finite and, after squaring, within float64's range. Lane-wise loops over the 128 columns, which LLVM turns into
  vector code: sums run down the columns of a tile and are folded pairwise at its end, so their order is fixed and their error is
  that of some 40 additions.
- *odd*: anything else (NaN, Inf, 1e200, 1e-200, a reference that overflows the format). Element by element; sums go to one of three
  buckets (middle, small × 2^600, big × 2^-600), so that nothing overflows or underflows.

Both ways count the same things; tests hold them against each other.
"""

from __future__ import annotations

from typing import Any

from accuracy_eval.jit import inline, kernel
from accuracy_eval.metrics.floats import bits, from_bits
from accuracy_eval.metrics.odd import odd_segment
from accuracy_eval.metrics.segments import compare_codes, compare_values, fill, inner_plain, pair
from accuracy_eval.metrics.slots import (
    A, BF16, B_DD, B_EE, B_MAX, B_MIS, CAA, CAE, CAU, CDD, CDE, CEE, CEQ, CMAX, CMIS, CS1, CS2, CSG, CU, C_ALLCLOSE, C_BAD_BUDGET,
    C_CLASS_A, C_CLASS_E, C_DOWN, C_MISMATCH, C_NONZERO_AT_ZERO, C_OVER_BUDGET, C_UP, C_VALID, C_ZERO_REFERENCE, C_ZERO_SIGN, E,
    FIRST_COLUMN, FP16, FP32, F_NORMAL_A, F_NORMAL_E, INNER, K_FINITE, K_NEG_ZERO, K_SUBNORMAL, K_ZERO, LANES, MIDDLE, M_INNER, M_MAX_A,
    M_MAX_E, M_MIN_A, M_MIN_E, M_RATIO, M_REL, M_SCALED, OA, OE, P_ALL_ODD, P_BUDGET, P_KIND_A, P_KIND_E, P_MODE, P_NEG_ZERO, R,
    REFERENCE, SAME, SCRATCH, SIGN, SLACK, S_AA, S_AE, S_AU, S_DD, S_DE, S_EE, S_SG, S_U, TILE, U, X,
)  # fmt: skip
from accuracy_eval.metrics.tallies import (
    add, add_moments, bins, budget_records, fold, fold_square, fold_square_of_difference, plain_records, record,
)  # fmt: skip


@inline
def middle_of(x: float, y: float, z: float) -> float:
    return max(min(x, y), min(max(x, y), z))


@kernel
def walk(
    ip: Any, fp: Any, src_a: Any, src_e: Any, tables_a: Any, tables_e: Any, budget: Any, specs: Any, s: Any, q: Any, acc: Any,
    row0: int, rows_here: int, col0: int, cols_here: int, first_row: int, all_cols: int,
) -> None:  # fmt: skip
    """Everything the metrics need of src[row0 : row0+rows_here, col0 : col0+cols_here], added to `acc`.

    src_a, src_e   (uint8, uint16, uint32, uint64, float64) arrays [r, cols] of which the one of the side's kind is used
    s, q           scratch: float64 [SCRATCH], int64 [LANES]
    acc            (sums, counts, rows, cols, tiles, topf, topi, rec, reci, histogram [COUNTERS]) of this unit; see
                   slots.py; histograms of several units may be one
    first_row      row of the whole array that src's row 0 is; indices in acc are flat indices of the whole array
    """
    sums, counts, rows, cols, tiles = acc[0], acc[1], acc[2], acc[3], acc[4]
    topf, rec, reci, histogram = acc[5], acc[7], acc[8], acc[9]
    last = topf.shape[1] - 1
    mode = ip[P_MODE]
    kind_a, kind_e = ip[P_KIND_A], ip[P_KIND_E]
    has_budget = ip[P_BUDGET] != 0
    normal_a, normal_e = fp[F_NORMAL_A], fp[F_NORMAL_E]
    expectation = R if mode == REFERENCE else E
    paired = mode == SAME and kind_a in (BF16, FP16, FP32)
    for tile_row in range((rows_here + TILE - 1) // TILE):
        for tile_column in range((cols_here + LANES - 1) // LANES):
            column = tile_column * LANES
            w = min(LANES, cols_here - column)
            # a narrow tile leaves lanes over: they must be zero where sums fold all of them
            for j in range(0 if w < LANES else FIRST_COLUMN, SCRATCH):
                s[j] = 0.0
            clean = 0
            equal = 0
            shift = 0.0
            for row in range(tile_row * TILE, min(tile_row * TILE + TILE, rows_here)):
                r, c = row0 + row, col0 + column
                at = (first_row + r) * all_cols + c
                if paired:
                    odd, up, down = pair(s, w, kind_a, src_a, src_e, r, c)
                else:
                    fill(s, A, OA, kind_a, src_a, tables_a, r, c, w)
                    fill(s, E, OE, kind_e, src_e, tables_e, r, c, w)
                    if mode == SAME:
                        odd, up, down = compare_codes(s, w, kind_a, fp)
                    else:
                        odd, up, down = compare_values(s, w, ip, fp)
                if odd > 0 or ip[P_ALL_ODD] != 0:
                    odd_segment(s, w, ip, fp, specs, budget, acc, src_a, src_e, r, c, at, row, column, tile_row, tile_column)
                    continue

                if clean == 0:
                    h = w // 2
                    shift = middle_of(s[A] - s[E], s[A + h] - s[E + h], s[A + w - 1] - s[E + w - 1])
                clean += w
                small = 0
                beyond = 0
                news = 0
                top_d, top_u = topf[0, last, 0], topf[1, last, 0]
                rel, sca = rec[M_REL] * SLACK, rec[M_SCALED] * SLACK
                min_a, max_a, min_e, max_e = rec[M_MIN_A], rec[M_MAX_A], rec[M_MIN_E], rec[M_MAX_E]
                same = mode == SAME and up == 0 and down == 0
                if same:
                    equal += w
                    for j in range(w):
                        e = s[E + j]
                        s[CEQ + j] += e * e
                        small += abs(e) < normal_e
                        news += (e < min_a) | (e > max_a) | (e < min_e) | (e > max_e)
                    rows[B_EE, row] += fold_square(s, E)
                else:
                    for j in range(w):
                        a, e, u = s[A + j], s[E + j], s[U + j]
                        d = a - e
                        x, y, z, v = abs(a), abs(e), abs(d), abs(u)
                        s[CDD + j] += d * d
                        s[CEE + j] += e * e
                        s[CAA + j] += a * a
                        s[CAE + j] += a * e
                        s[CDE + j] += d * e
                        s[CSG + j] += from_bits(bits(d) ^ (bits(e) & SIGN)) if y > 0.0 else 0.0
                        t = d - shift
                        s[CS1 + j] += t
                        s[CS2 + j] += t * t
                        s[CU + j] += u
                        m = s[CMAX + j]
                        s[CMAX + j] = z if z > m else m
                        s[CMIS + j] += s[X + j]
                        small += (x < normal_a) | (y < normal_e)
                        beyond += v > 1.0
                        news += (
                            (z > top_d) | (v > top_u) | ((z > rel * y) & (y > 0.0)) | (z > sca * (y if y > 1.0 else 1.0))
                            | (a < min_a) | (a > max_a) | (e < min_e) | (e > max_e)
                        )  # fmt: skip
                    rows[B_DD, row] += fold_square_of_difference(s)
                    rows[B_EE, row] += fold_square(s, E)
                if news > 0:
                    plain_records(s, w, ip, budget, acc, src_a, src_e, r, c, at)
                for i in range(0 if same else specs.shape[0]):
                    rtol, atol = specs[i, 0], specs[i, 1]
                    outside = 0
                    for j in range(w):
                        outside += abs(s[A + j] - s[E + j]) > atol + rtol * abs(s[E + j])
                    counts[C_ALLCLOSE + i] += outside

                if same or (mode == SAME and beyond == 0):
                    histogram[0] += w - up - down
                    histogram[1] += up + down
                else:
                    bins(s, q, w, mode == SAME)
                    for j in range(w):
                        histogram[q[j]] += 1

                signs = 0
                if small > 0:
                    zero_a, negative_a, tiny_a, zero_e, negative_e, tiny_e, at_zero, true_zero = 0, 0, 0, 0, 0, 0, 0, 0
                    sign_matters = ip[P_NEG_ZERO] != 0
                    sign_counts = sign_matters or mode != REFERENCE
                    for j in range(w):
                        a, t, e = s[A + j], s[expectation + j], s[E + j]
                        na, ne = bits(a) < 0, bits(t) < 0
                        za, ze = a == 0.0, t == 0.0
                        zero_a += za
                        zero_e += ze
                        negative_a += za & na
                        negative_e += ze & ne & sign_counts
                        tiny_a += abs(a) < normal_a
                        tiny_e += abs(t) < normal_e
                        true_zero += e == 0.0
                        at_zero += (e == 0.0) & (a != 0.0)
                        signs += za & ze & (na != ne) & sign_matters
                    counts[C_CLASS_A + K_ZERO] += zero_a
                    counts[C_CLASS_A + K_NEG_ZERO] += negative_a
                    counts[C_CLASS_A + K_SUBNORMAL] += tiny_a - zero_a
                    counts[C_CLASS_E + K_ZERO] += zero_e
                    counts[C_CLASS_E + K_NEG_ZERO] += negative_e
                    counts[C_CLASS_E + K_SUBNORMAL] += tiny_e - zero_e
                    counts[C_ZERO_REFERENCE] += true_zero
                    counts[C_NONZERO_AT_ZERO] += at_zero
                    if signs > 0:
                        counts[C_ZERO_SIGN] += signs
                        for j in range(w):
                            a, t = s[A + j], s[expectation + j]
                            if a == 0.0 and t == 0.0 and (bits(a) < 0) != (bits(t) < 0):
                                s[CMIS + j] += 1.0
                counts[C_UP] += up
                counts[C_DOWN] += down
                counts[C_MISMATCH] += up + down + signs
                rows[B_MIS, row] += up + down + signs

                if mode == REFERENCE:
                    inner_plain(s, w, ip)
                    found = 0
                    most = rec[M_INNER]
                    for j in range(w):
                        found += s[INNER + j] > most
                    if found > 0:
                        for j in range(w):
                            record(rec, reci, M_INNER, s[INNER + j], at + j)
                if has_budget:
                    if mode != REFERENCE:
                        for j in range(w):
                            s[INNER + j] = abs(s[A + j] - s[E + j])
                    bs = budget[r, c : c + w]
                    over = 0
                    bad = 0
                    found = 0
                    most = rec[M_RATIO] * SLACK
                    for j in range(w):
                        b, i = bs[j], s[INNER + j]
                        over += i > b
                        bad += not (b >= 0.0)
                        found += (i > 0.0) & (i > most * b)
                    counts[C_OVER_BUDGET] += over
                    counts[C_BAD_BUDGET] += bad
                    if found > 0:
                        budget_records(s, w, budget, acc, r, c, at)

            if clean > 0:
                for j in range(w):
                    s[CEE + j] += s[CEQ + j]
                both = fold(s, CEQ)
                counts[C_VALID] += clean
                counts[C_CLASS_A + K_FINITE] += clean
                counts[C_CLASS_E + K_FINITE] += clean
                most = 0.0
                mismatches = 0.0
                for j in range(w):
                    cols[B_DD, column + j] += s[CDD + j]
                    cols[B_EE, column + j] += s[CEE + j]
                    cols[B_MIS, column + j] += s[CMIS + j]
                    mismatches += s[CMIS + j]
                    most = max(most, s[CMAX + j])
                dd, ee = fold(s, CDD), fold(s, CEE)
                tiles[B_DD, tile_row, tile_column] += dd
                tiles[B_EE, tile_row, tile_column] += ee
                tiles[B_MIS, tile_row, tile_column] += mismatches
                tiles[B_MAX, tile_row, tile_column] = max(most, tiles[B_MAX, tile_row, tile_column])
                add(sums, S_DD, MIDDLE, dd)
                add(sums, S_EE, MIDDLE, ee)
                add(sums, S_AA, MIDDLE, fold(s, CAA) + both)
                add(sums, S_AE, MIDDLE, fold(s, CAE) + both)
                add(sums, S_DE, MIDDLE, fold(s, CDE))
                add(sums, S_SG, MIDDLE, fold(s, CSG))
                add(sums, S_U, MIDDLE, fold(s, CU))
                add(sums, S_AU, MIDDLE, fold(s, CAU))
                first, second = fold(s, CS1) - equal * shift, fold(s, CS2) + equal * (shift * shift)
                add_moments(sums, MIDDLE, float(clean), shift + first / clean, max(second - first * first / clean, 0.0))
