"""How a device computes a special function, over all operands it was asked for: errors by range, monotonicity, parity, range of values.

The truth is `special.evaluate`; a table of it never fails anything, it says what a device does beside what its vendor documents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.special import Vendor, evaluate, get_function, limit, limit_ulps, region, rounded
from accuracy_eval.cpu_ref.special_functions import Function
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, Values, decode, get_format, is_nan, ordinals, ulp

RANGES = ("core", "tail", "subnormal")  # by `special.region`: everything else, operands where the formula loses bits, subnormal results


@dataclass(frozen=True)
class RangeErrors:
    """Errors in one range of a function.

    count     elements with a finite result on both sides
    ulp_max   largest |actual − f(x)| in ulp of f(x), the result's own rounding included; `at` the operand
    inexact   elements whose code is not the correctly rounded one
    beyond    elements past the documented limit
    """

    count: int = 0
    ulp_max: float = 0.0
    at: float | None = None
    inexact: int = 0
    beyond: int = 0


@dataclass(frozen=True)
class FunctionProfile:
    """One function, format and set of operands on one device.

    limit_ulps   what the vendor documents for float32 results ("any": the larger of both); 1 for narrower ones
    classes      elements that are NaN or infinite where the correctly rounded result is not, or the reverse
    outside      elements outside the interval the function's values lie in
    breaks       neighbouring operands of one sign at which a monotone function turns back; None where it is not monotone
    asymmetries  operands of both signs whose results break the function's parity; None where it has none
    """

    function: str
    format: str
    operands: int
    limit_ulps: float
    ranges: tuple[RangeErrors, RangeErrors, RangeErrors]
    classes: int = 0
    outside: int = 0
    breaks: int | None = None
    asymmetries: int | None = None

    @property
    def worst(self) -> RangeErrors:
        return max(self.ranges, key=lambda r: r.ulp_max)


def profile(fn: str | Function, x: Codes, actual: Codes, fmt: str | Format, *, vendor: Vendor = "any") -> FunctionProfile:
    """The profile of a unary function: operands and results as codes of one format, any shape; NaN operands are left out.

    Operands need no order and may repeat. Parity is looked at for those that occur with both signs.
    """
    f, out = get_function(fn), get_format(fmt)
    if f.arity != 1:
        raise UsageError(f"{f.name} takes {f.arity} operands; a profile is of functions of one")
    known = ~is_nan(x, out).reshape(-1)
    unique, first = np.unique(x.reshape(-1)[known], return_index=True)
    order = np.lexsort(((unique & out.sign_mask) == 0, ordinals(unique, out)))  # increasing, −0 before 0
    xs, ys = unique[order], actual.reshape(-1)[known][first][order]
    values, found = decode(xs, out), decode(ys, out)
    truth = evaluate(f, values)
    right = rounded(f, values, out)
    best = decode(right, out)
    finite = np.isfinite(found) & np.isfinite(best)
    where = region(f, values, truth, out)
    ranges = tuple(_errors(f, values, found, ys, truth, right, finite & (where == r), out, vendor) for r in range(len(RANGES)))
    with np.errstate(invalid="ignore"):
        outside = ((found < f.values[0]) | (found > f.values[1])) & (found != best)  # rsqrt(−0) is −Inf
    return FunctionProfile(
        f.name, out.name, len(unique), limit_ulps(f, out, vendor), ranges,  # type: ignore[arg-type]
        int(np.count_nonzero((found != best) & ~finite & ~(np.isnan(found) & np.isnan(best)))), int(np.count_nonzero(outside)),
        breaks(f, values, found), asymmetries(f, xs, ys, out),
    )  # fmt: skip


def _errors(f: Function, x: Values, found: Values, codes: Codes, truth: Values, right: Codes, here: NDArray[np.bool_], out: Format,
            vendor: Vendor) -> RangeErrors:  # fmt: skip
    if not here.any():
        return RangeErrors()
    xs, error = x[here], np.abs(found[here] - truth[here])
    ulps = error / ulp(truth[here], out)
    worst = int(np.argmax(ulps))
    beyond = error > limit(f, xs, truth[here], out, vendor=vendor)
    # zeros of either sign are one value: whose zero it is, the class table says
    inexact = (codes[here] != right[here]) & (found[here] != decode(right[here], out))
    return RangeErrors(
        int(np.count_nonzero(here)), float(ulps[worst]), float(xs[worst]), int(np.count_nonzero(inexact)), int(np.count_nonzero(beyond))
    )


def breaks(f: Function, x: Values, found: Values) -> int | None:
    """Neighbours (x increasing, of one sign) at which a monotone function turns back; None for others. NaN compares with nothing."""
    if not f.monotone:
        return None
    with np.errstate(invalid="ignore"):
        step = np.sign(np.subtract(found[1:], found[:-1], where=found[1:] != found[:-1], out=np.zeros(max(len(x) - 1, 0))))
        back = step < 0 if f.monotone == "increasing" else step > 0
        return int(np.count_nonzero(back & (np.signbit(x[1:]) == np.signbit(x[:-1]))))


def asymmetries(f: Function, x: Codes, found: Codes, out: Format) -> int | None:
    """Operands that occur with both signs and whose results are not those of the function's parity; None where it has none."""
    if not f.parity:
        return None
    negative = (x & out.sign_mask) != 0
    _, i, j = np.intersect1d(x[negative] ^ out.sign_mask, x[~negative], return_indices=True)
    minus, plus = found[negative][i], found[~negative][j]
    mirrored = plus ^ (out.sign_mask if f.parity == "odd" else 0)
    return int(np.count_nonzero((minus != mirrored) & ~(is_nan(minus, out) & is_nan(plus, out))))
