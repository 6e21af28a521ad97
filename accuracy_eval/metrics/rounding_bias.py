"""Whether a 16-bit output is rounded one way throughout, toward zero or away from it: within a step of each element, and not of thousands.

Where steps before the last may be stored in 16 bits, as unfused kernels do, a budget cannot tell the last rounding from another: an output
that is cut off keeps it, and so does one that is a little too large. Roundings to nearest go up as often as down. So the mean of the code
steps by which elements lie further from zero than the correctly rounded truth is nothing but chance, and chance comes to less the more of
them there are; cut off, it is half a step. What errs together is one draw: equal elements always, those of a row or of a column where
they share an operand. The deviation of the mean is that of sums over elements of one code, over rows, over columns, whichever is largest.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.formats import Values, encode, get_format, ulp

Alike = Literal["elements", "lines"]  # what may err together besides equal elements: nothing, or those of a row or of a column
FEWEST = 64  # codes, or lines: eight standard errors of fewer mean little
NEAR = 2.0  # ulps of budget up to which an element counts: an error of more would move its size, whatever its sign


class RoundingMeter:
    """Collects the steps of an output of `columns` columns, panel by panel."""

    def __init__(self, columns: int, fmt: str, alike: Alike) -> None:
        self._format, self._alike = get_format(fmt), alike
        self._rows: list[NDArray[np.float64]] = []  # [2, r]: sums of steps, and how many
        self._columns = np.zeros((2, columns))
        self._codes = np.zeros((2, self._format.magnitude_mask + 1))  # the same by code of the truth

    def update(self, codes: NDArray[Any], expected: Values, budget: Values) -> None:
        """codes of the format, its unrounded truth and the budgets, each [r, columns]."""
        fmt = self._format
        right, mask = encode(expected, fmt), fmt.magnitude_mask
        found, wanted = ((c & mask).astype(np.int64) for c in (codes, right))
        with np.errstate(invalid="ignore"):
            used = (np.abs(expected) >= fmt.smallest_normal) & (budget <= NEAR * ulp(expected, fmt)) & (wanted <= fmt.max_code)
        used &= (found <= fmt.max_code) & ((codes ^ right) & fmt.sign_mask == 0)
        steps = np.where(used, np.clip(found - wanted, -NEAR, NEAR), 0.0)
        self._rows.append(np.stack([steps.sum(axis=1), used.sum(axis=1)]))
        self._columns += np.stack([steps.sum(axis=0), used.sum(axis=0)])
        for sums, weights in zip(self._codes, (steps, used), strict=True):
            sums += np.bincount(wanted[used], weights[used], len(sums))

    def result(self) -> dict[str, float]:
        """Metric rounding_bias; empty where too few different elements or lines say anything."""
        total, count = (float(x) for x in self._columns.sum(axis=1))
        alike = [self._codes]
        if self._alike == "lines":
            alike += [np.concatenate(self._rows, axis=1), self._columns] if self._rows else []
        draws = [sums[:, sums[1] > 0] for sums in alike]
        if min(of.shape[1] for of in draws) < FEWEST:
            return {}
        mean = total / count
        deviation = math.sqrt(max(float(((of[0] - mean * of[1]) ** 2).sum()) for of in draws)) / count
        return {"rounding_bias": max(abs(mean) - LAMBDA * deviation, 0.0)}
