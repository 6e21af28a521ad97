"""Where the walk keeps what: places in its scratch, parameters, sums, counts, records and histogram. Numbers alone."""

from __future__ import annotations

import numpy as np

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
M_REL, M_SCALED, M_INNER, M_RATIO, M_MIN_A, M_MAX_A, M_MIN_E, M_MAX_E, M_NAN_A, M_NAN_E, M_INF_A, M_INF_E = range(12)
M_COUNT = 12

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
