"""Which codes of an output an error budget allows.

The budget B of an element (`cpu_ref.running`) bounds its error before the output is rounded. An output passes iff its code lies in
[round(C − B), round(C + B)], C the reference: equivalently, the distance from C to the reals that round to the code is at most B.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Overflow, Values, encode, get_format, is_nan, ordinals


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
