"""Sums over ranks: the truth, and what additions in any order, each rounded to the format that travels, may be off by."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import Contract
from accuracy_eval.cpu_ref.reduce import reduce
from accuracy_eval.formats import Format, Values, get_format

ADDER = 2.0**-23  # relative error of an adder of 24 bits that truncates: what adds two narrower numbers before they are rounded


def rank_sum(x: Values) -> Values:
    """Σ over ranks of x [ranks, n], float64 [n], within 0.51 ulp of the real value."""
    total: Values = reduce("sum", x.T)
    return total


def growth(contract: Contract, out: str | Format, ranks: int) -> float:
    """g of |error before the output is rounded| ≤ g·Σ|x|, for every order and tree of the ranks − 1 additions.

    A term takes part in at most ranks − 1 additions, each off by at most u of its result: γ = (1 + u)^(ranks − 1) − 1. Where what
    travels has the output's format, the rounding of the last addition is the output's own: one less. Additions of numbers narrower than
    float32 may be made by a truncating adder of 24 bits before they are rounded. Sums of subnormal numbers are exact.
    """
    if contract.exact:
        return 0.0
    if contract.partial:
        partial = get_format(contract.partial)
        roundings = ranks - 2 if partial == get_format(out) else ranks - 1
        adder = ADDER if partial.fraction_bits < 23 else 0.0
        return _gamma(partial.eps / 2, roundings) + _gamma(adder, ranks - 1)
    return _gamma(max(2.0**-a.bits if a.rounding == "RZ" else 2.0 ** -(a.bits + 1) for a in contract.accumulators), ranks - 1)


def _gamma(unit: float, count: int) -> float:
    return math.expm1(max(count, 0) * math.log1p(unit))


def hop_budget(x: Values, contract: Contract, out: str | Format) -> Values:
    """Error that the sum over ranks of x [ranks, n] may have under the contract before the output is rounded, float64 [n]."""
    with np.errstate(invalid="ignore"):
        budget: Values = growth(contract, out, len(x)) * np.abs(x).sum(axis=0)
    return budget


def hop_overflows(x: Values, contract: Contract, out: str | Format) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where a partial sum may overflow to +Inf, and to −Inf, in some order: the terms of one sign alone, roundings included, leave the
    range of what travels. x [ranks, n], bool [n] each."""
    limit = contract.largest
    if limit is None:
        nowhere = np.zeros(x.shape[1], np.bool_)
        return nowhere, nowhere
    finite = np.where(np.isfinite(x), x, 0.0)
    kept = limit * (1.0 - min(0.5, growth(contract, out, len(x) + 1)))
    return np.maximum(finite, 0.0).sum(axis=0) >= kept, np.maximum(-finite, 0.0).sum(axis=0) >= kept
