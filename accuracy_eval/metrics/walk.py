"""The compiled walk over two arrays of codes: one function, one signature, every sum and count of the metrics.

The unit of work is a rectangle of `rows` × `cols` elements, cut into tiles of 128 × 128 and walked by row segments of at most 128
elements. A segment is first *filled*: both sides become float64 values and, between codes of one format, float64 ordinals.
Then it takes one of two ways:

- *plain*: every value finite and, after squaring, within float64's range. Lane-wise loops over the 128 columns, which LLVM turns into
  vector code: sums run down the columns of a tile and are folded pairwise at its end, so their order is fixed and their error is
  that of some 40 additions.
- *odd*: anything else (NaN, Inf, 1e200, 1e-200, a reference that overflows the format). Element by element; sums go to one of three
  buckets (middle, small × 2^600, big × 2^-600), so that nothing overflows or underflows.

Both ways count the same things; tests hold them against each other. All kernels live in this file because numba's cache watches the
file of the compiled function only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import inline, kernel

LANES = 128
TILE = 128

# scratch, one slot of 128 lanes each: values, ordinals, ulp error, rounded expectation, mismatch, inner error, sums of a row
A, E, OA, OE, U, R, X, INNER, FOLD = (LANES * i for i in range(9))
# column accumulators of the tile: Σd², Σe², Σa², Σa·e, Σd·e, Σd·sgn(e), Σ(d-c), Σ(d-c)², Σu, Σ|u|, max|d|, mismatches, and Σe² of
# segments that are equal, which is their Σa² and Σa·e too
FIRST_COLUMN = LANES * 9
CDD, CEE, CAA, CAE, CDE, CSG, CS1, CS2, CU, CAU, CMAX, CMIS, CEQ = (FIRST_COLUMN + LANES * i for i in range(13))
SCRATCH = FIRST_COLUMN + LANES * 13

# storage kinds
TABLE8, BF16, FP16, FP32, TF32, FP64, INT32, REAL = range(8)
# what `expected` is: codes of the same format, values of another format, real values to be rounded to the actual's format
SAME, VALUES, REFERENCE = range(3)
# what encoding does beyond the largest finite value
SATURATE, INF, NAN = range(3)

# integer parameters
P_KIND_A, P_KIND_E, P_MODE, P_FRACTION, P_EMIN, P_FLOAT, P_POLICY, P_NEG_ZERO, P_SIGNED, P_HAS_ZERO, P_ZERO_FAST, P_BUDGET, P_ALL_ODD = (
    range(13)
)
P_COUNT = 13
# float parameters: largest and smallest plain magnitude of either side, least plain expected, smallest normal of either side, the
# format's limits: largest finite value, first value that rounds beyond it, the boundary there, smallest and lowest value
F_HIGH_A, F_LOW_A, F_HIGH_E, F_LOW_E, F_FLOOR_E, F_NORMAL_A, F_NORMAL_E, F_MAX, F_THRESHOLD, F_EDGE, F_SMALLEST, F_LOWEST = range(12)
F_COUNT = 12

# sums[quantity, bucket, (high, low)]; S_COUNTED.. hold the moments of d: count, mean, Σ(d-mean)²
S_AA, S_EE, S_DD, S_AE, S_DE, S_SG, S_U, S_AU, S_N, S_MEAN, S_M2 = range(11)
S_COUNT = 11
MIDDLE, SMALL, BIG = range(3)

# counts
(
    C_VALID, C_MISMATCH, C_UP, C_DOWN, C_ZERO_SIGN, C_NONZERO_AT_ZERO, C_ZERO_REFERENCE, C_NONFINITE,
    C_NAN_A, C_NAN_E, C_INF_A, C_INF_E, C_OVER_BUDGET, C_BAD_BUDGET,
) = range(14)  # fmt: skip
C_CLASS_A = 14
C_CLASS_E = 21
C_ALLCLOSE = 28
K_NAN, K_POS_INF, K_NEG_INF, K_NEG_ZERO, K_SUBNORMAL, K_ZERO, K_FINITE = range(7)

# records: value and flat index
M_REL, M_SCALED, M_INNER, M_RATIO, M_MIN_A, M_MAX_A, M_MIN_E, M_MAX_E, M_NAN, M_INF = range(10)
M_COUNT = 10

# rows of the per-row, per-column and per-tile arrays: Σd² by bucket, Σe² by bucket, mismatches, max|d|
B_DD, B_EE, B_MIS, B_MAX = 0, 3, 6, 7
B_COUNT = 8

# histogram of |ulp error|: integers below 65536 exactly, beyond that (and for real values throughout) 1024 bins an octave
EXACT = 65536
SUB_BITS = 10
SHIFT = 52 - SUB_BITS
REAL_FLOOR = 2.0**-30
BIN_ONE_REAL = (int(np.float64(REAL_FLOOR).view(np.int64)) - 1) >> SHIFT
BIN_EXACT = (int(np.float64(EXACT).view(np.int64)) - 1) >> SHIFT
HISTOGRAM = EXACT + (49 << SUB_BITS)
# before it, the bins below 1024 once more for each of four groups of lanes: one counter hit over and over stalls on its own store
NEAR, GROUPS = 1024, 4
COUNTERS = GROUPS * NEAR + HISTOGRAM

UP600, DOWN600 = 2.0**600, 2.0**-600
WIDE_LOW, WIDE_HIGH = 2.0**-400, 2.0**400
NEAR_OVERFLOW = 2.0**1000
ROUNDER = 1.5 * 2.0**52  # added and subtracted: rounds to an integer, ties to even, for magnitudes under 2^51
SIGN = -(1 << 63)
FRACTION52 = (1 << 52) - 1
SLACK = 1.0 + 2.0**-50  # a record must be beaten by this much, so that equal ratios with other roundings are no news


@inline
def bits(x: Any) -> Any:
    return np.float64(x).view(np.int64)


@inline
def from_bits(i: Any) -> Any:
    return np.int64(i).view(np.float64)


@inline
def exponent(x: Any) -> Any:
    """floor(log2|x|) of a normal float64; -1023 for zero and subnormals."""
    return ((bits(x) >> 52) & 0x7FF) - 1023


@kernel
def scaled(x: float, k: int) -> Any:
    """x·2^k without an intermediate overflow."""
    while k > 1000:
        x *= 2.0**1000
        k -= 1000
    while k < -1000:
        x *= 2.0**-1000
        k += 1000
    return x * from_bits((k + 1023) << 52)


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
def bf16_value(h: Any) -> Any:
    return np.float64(np.uint32(h << 16).view(np.float32))


@inline
def fp16_value(h: Any) -> Any:
    m = h & 0x7FFF
    # rebias by 112; an all-ones exponent takes another 112 to float32's all-ones
    wide = (m << 13) + ((112 << 23) if m < 0x7C00 else (224 << 23))
    v = np.float64(np.uint32(wide).view(np.float32))
    v = v if m >= 0x400 else np.float64(m) * 2.0**-24
    return v if h == m else -v


@inline
def fp32_value(h: Any) -> Any:
    return np.float64(np.uint32(h).view(np.float32))


@inline
def signed(h: Any, mask: int) -> Any:
    """Place of a sign-magnitude code on the number line."""
    m = h & mask
    return m if h == m else -m


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
            counts[C_NAN_A] += 1
            if reci[M_NAN] < 0 or flat < reci[M_NAN]:
                reci[M_NAN] = flat
        if nan_e and not nan_a:
            counts[C_NAN_E] += 1
        if inf_a and a != t:
            counts[C_INF_A] += 1
            if reci[M_INF] < 0 or flat < reci[M_INF]:
                reci[M_INF] = flat
        if inf_e and a != t:
            counts[C_INF_E] += 1
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
    acc            (sums, counts, rows, cols, tiles, topf, topi, rec, reci, histogram [COUNTERS]) of this unit; see the constants of
                   this module; histograms of several units may be one
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
