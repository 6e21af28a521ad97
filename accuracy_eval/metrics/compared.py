"""Two arrays of one shape, as they are compared; and elements of them, as they are reported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from accuracy_eval import formats
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Overflow
from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.ledger import Top
from accuracy_eval.records import WorstElement

_CODE = (1 << 64) - 1  # the walk keeps codes as signed numbers


@dataclass(frozen=True)
class Compared:
    """See Meter. `expected` None: expected is float64 values, the unrounded truth."""

    shape: tuple[int, ...]
    actual: Format
    expected: Format | None
    overflow: Overflow

    @property
    def cols(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def mode(self) -> int:
        return k.REFERENCE if self.expected is None else k.SAME if self.expected == self.actual else k.VALUES

    def code_distance(self, actual: Any, expected: Any) -> int:
        """How many codes of one format lie between two: up to 2^64."""
        a, e = np.array([[actual], [expected]], self.actual.storage)
        return int(formats.ordinal_distance(a, e, self.actual)[0])

    def worst(self, top: list[Top]) -> tuple[WorstElement, ...]:
        """The elements of a list of the worst."""
        if not top:
            return ()
        codes = [t.expected_code & _CODE for t in top]
        if self.expected is None:
            codes = formats.encode(np.array([t.values[1] for t in top]), self.actual, overflow=self.overflow).tolist()
        indices = self._indices([t.flat for t in top])
        return tuple(
            WorstElement(index, t.actual_code & _CODE, code, a, e, abs(a - e), ulp, budget=_known(budget))
            for t, index, code in zip(top, indices, codes, strict=True)
            for a, e, ulp, budget in [t.values]
        )

    def element(self, flat: int, code: Any, expected: Any, budget: float) -> WorstElement:
        """An element by its code and what was expected, code or value; infinitely far off where not both are finite."""
        a = self._value(code, self.actual)
        e = self._value(expected, self.expected) if self.expected else float(expected)
        expected_code = int(expected) & _CODE if self.expected else self._rounded(e)
        error = ulp = math.inf
        if math.isfinite(a) and math.isfinite(e):
            error = abs(a - e)
            with np.errstate(over="ignore"):
                ulp = (a - e) / float(formats.ulp([e], self.actual)[0])
            if self.mode == k.SAME:
                ulp = math.copysign(float(self.code_distance(code, expected)), a - e)
        (index,) = self._indices([flat])
        return WorstElement(index, int(code) & _CODE, expected_code, a, e, error, ulp, budget=_known(budget))

    def _value(self, code: Any, fmt: Format) -> float:
        return float(formats.decode(np.array([code], fmt.storage), fmt)[0])

    def _rounded(self, value: float) -> int | None:
        """The code of a real value; None for what rounds to a NaN that the format does not have."""
        try:
            return int(formats.encode([value], self.actual, overflow=self.overflow)[0])
        except UsageError:
            return None

    def _indices(self, flat: list[int]) -> list[tuple[int, ...]]:
        if not self.shape:
            return [()] * len(flat)
        return list(zip(*(axis.tolist() for axis in np.unravel_index(flat, self.shape)), strict=True))


def _known(budget: float) -> float | None:
    return None if math.isnan(budget) else float(budget)
