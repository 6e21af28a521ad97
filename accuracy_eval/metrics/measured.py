"""The result of a pass: metrics by name, and the arrays a diagnosis looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.records import WorstElement

Values = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseMap:
    """Error and reference by row, column or tile, kept apart so that a part whose reference is zero can be seen.

    error       ‖d‖ of each part, float64
    reference   ‖e‖ of each part, float64, same shape
    nsr         error/reference, same shape: 0 where the error is 0, +inf where only the reference is. Exact in range even where the norms
                overflow
    mismatches  elements of each part whose code is not the expected one, int64, same shape
    max_abs     largest |d| of each part (tiles only)
    """

    error: Values
    reference: Values
    nsr: Values
    mismatches: NDArray[np.int64]
    max_abs: Values | None = None


@dataclass(frozen=True)
class ClassCounts:
    """How many elements of one side are what. `zero` counts both signs, `finite` includes zeros and subnormals.

    The expected side of a judgement against real values is counted after rounding to the actual's format.
    """

    nan: int
    pos_inf: int
    neg_inf: int
    neg_zero: int
    subnormal: int
    zero: int
    finite: int


@dataclass(frozen=True)
class Classes:
    """The class table: counts of both sides, and how their NaN and Inf sets relate.

    *_only     NaN (Inf) on one side where the other side has something else, an Inf of the other sign included
    first_*    flat index of the first such element; None without one
    """

    actual: ClassCounts
    expected: ClassCounts
    nan_actual_only: int
    nan_expected_only: int
    inf_actual_only: int
    inf_expected_only: int
    first_nan_actual_only: int | None
    first_nan_expected_only: int | None
    first_inf_actual_only: int | None
    first_inf_expected_only: int | None

    @property
    def nan_sets_equal(self) -> bool:
        return self.nan_actual_only == 0 and self.nan_expected_only == 0


@dataclass(frozen=True)
class Range:
    """Smallest and largest finite value of a side; None where it has none."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class Measured:
    """Everything one pass over `actual` and `expected` found.

    reference          expected was the unrounded truth as float64 values (expected_format is then float64), not codes
    metrics            every name of METRICS, and one `allclose_violations[...]` per tolerance asked for
    classes            the class table
    worst              elements of largest |d|, largest first (of equal ones the first met); finite pairs with d ≠ 0 only
    worst_ulp          likewise by |ulp error|
    extremes           elements of largest |d|/|e|, inner error and share of the budget; Inf and NaN may be among them
    ulp_histogram      (upper edge, count): |ulp error| = 0, then bins (previous edge, edge] at powers of two; empty bins left out
    rows, cols, tiles  noise of the 2-D view [prod(shape[:-1]), shape[-1]]; None where there would be more than 2^20 parts (2^18 tiles)
    actual_range, expected_range   of the finite values
    constant           every element of actual is the same finite value (-0 and +0 are the same)
    """

    shape: tuple[int, ...]
    actual_format: str
    expected_format: str
    reference: bool
    metrics: Mapping[str, Any]
    classes: Classes
    worst: tuple[WorstElement, ...]
    worst_ulp: tuple[WorstElement, ...]
    extremes: tuple[WorstElement, ...]
    ulp_histogram: tuple[tuple[float, int], ...]
    rows: NoiseMap | None
    cols: NoiseMap | None
    tiles: NoiseMap | None
    actual_range: Range
    expected_range: Range

    def element(self, index: tuple[int, ...]) -> WorstElement | None:
        """The element at an index that some metric gives; None for any other."""
        return next((e for e in (*self.worst, *self.worst_ulp, *self.extremes) if e.index == index), None)

    @property
    def constant(self) -> bool:
        n = self.metrics["count"]
        return bool(n) and self.classes.actual.finite == n and self.actual_range.low == self.actual_range.high

    @property
    def all_zero(self) -> bool:
        """Every element of actual is ±0."""
        n = self.metrics["count"]
        return bool(n) and self.classes.actual.zero == n

    @property
    def max_expected(self) -> float | None:
        """Largest finite |expected|."""
        if self.expected_range.low is None or self.expected_range.high is None:
            return None
        return max(abs(self.expected_range.low), abs(self.expected_range.high))
