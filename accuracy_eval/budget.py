"""Which codes of an output an error budget allows.

The budget B of an element (`cpu_ref.running`) bounds its error before the output is rounded. An output passes iff its code lies in
[round(C − B), round(C + B)], C the reference: equivalently, the distance from C to the reals that round to the code is at most B.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Overflow, Values, encode, get_format, is_nan, ordinals, ulp


def interval(values: Values, budget: Values | float, fmt: str | Format, *, overflow: Overflow | None = None) -> tuple[Codes, Codes]:
    """Codes of round(C − B) and round(C + B): the codes between them (in the order of `ordinals`) pass. NaN and ±Inf stand alone."""
    v = np.asarray(values, np.float64)
    b = np.where(np.isfinite(v), np.asarray(budget, np.float64), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        # float64 rounds C ± B by half an ulp of C; outward, so that B itself never shrinks
        low = np.where(b > 0, np.nextafter(v - b, -np.inf), v)
        high = np.where(b > 0, np.nextafter(v + b, np.inf), v)
    return encode(low, fmt, overflow=overflow), encode(high, fmt, overflow=overflow)


def within_budget(
    codes: Codes, values: Values, budget: Values | float, fmt: str | Format, *, overflow: Overflow | None = None
) -> NDArray[np.bool_]:
    """Which codes the reference and its budget allow, same shape. NaN is allowed exactly where the reference is NaN."""
    f = get_format(fmt)
    low, high = interval(values, budget, f, overflow=overflow)
    at = ordinals(codes, f)
    inside = (ordinals(low, f) <= at) & (at <= ordinals(high, f))
    nan = is_nan(codes, f)
    expected_nan = is_nan(low, f) | is_nan(high, f)
    return np.asarray(np.where(nan | expected_nan, nan & expected_nan, inside))


def distance(actual: float, expected: float, fmt: str | Format) -> float:
    """From a real value to the reals that round to `actual`, a value of the format: what metric budget_max counts in budgets.

    The reals of an infinity begin where rounding overflows; where the format does not round to it, as to a NaN, there are none: inf.
    """
    f = get_format(fmt)
    if not math.isfinite(expected):
        return 0.0 if actual == expected or (math.isnan(actual) and math.isnan(expected)) else math.inf
    edge = f.max + float(ulp(f.max, f)) / 2
    if math.isnan(actual):
        return max(edge - abs(expected), 0.0) if f.overflow == "nan" else math.inf
    if math.isinf(actual):
        return max(edge - math.copysign(expected, expected * actual), 0.0) if f.overflow == "inf" else math.inf
    half = float(ulp(actual, f)) / 2
    inward = actual * (actual - expected) > 0
    if f.kind == "float" and inward and abs(actual) > f.smallest_normal and math.frexp(actual)[0] in (0.5, -0.5):
        half /= 2  # the gap below a power of two is half the gap above it
    return max(abs(actual - expected) - half, 0.0)
