"""Whole rows, columns and tiles: the errors that fail the gates on their root mean square, from sums along them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Values
from accuracy_eval.metrics.aggregates import FEWEST, TILE

# of a line: Σ half ulp², Σ value², Σ typical⁴, Σ 1/typical², elements, largest (budget/typical)²; Σ of (value/typical)²,
# value·half/typical², (half/typical)²
HALF, VALUE, FOURTH, INVERSE, COUNT, RATIO, SHARE, CROSS, ROUNDED = range(9)
LINE_SUMS = 9
LEAST = 1e-250  # of Σ typical⁴: below, squares of squares have lost what they were


def line_sums(half: Values, values: Values, budget: Values, typical: Values) -> NDArray[np.float64]:
    """Line sums [columns, LINE_SUMS] of a block [rows, columns]."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        square = np.square(typical)
        sums = [np.square(half).sum(0), np.square(values).sum(0), np.square(square).sum(0), (1 / square).sum(0)]
        ratio = np.square(budget / typical).max(0)
        share, rounding = np.abs(values) / typical, half / typical
        of_gain = [np.square(share).sum(0), (share * rounding).sum(0), np.square(rounding).sum(0)]
    return np.stack([*sums, np.full(half.shape[1], float(half.shape[0])), ratio, *of_gain], axis=1)


def by_tiles(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Line sums of 128 columns each."""
    starts = np.arange(0, len(columns), TILE)
    tiles = np.asarray(np.add.reduceat(columns, starts))
    tiles[:, RATIO] = np.maximum.reduceat(columns[:, RATIO], starts)
    return tiles


def _judged(lines: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lines that a gate looks at and for which a relative error means something."""
    good = (lines[:, VALUE] > 0) & (lines[:, COUNT] >= FEWEST) & (lines[:, FOURTH] > LEAST)
    return lines[good & np.isfinite(lines).all(axis=1)]


def certain(lines: NDArray[np.float64], limit: float) -> float:
    """Relative norm of an error that fails a gate in whichever of the lines it is and however it is spread; Inf where it cannot be told.

    An error of uses q passes if every q² ≤ R = (budget/typical)² and Σq² ≤ limit²·n; then Σ(q·typical)² ≤ sqrt(Σtypical⁴·R·limit²·n).
    """
    x = _judged(lines)
    passing = np.sqrt(np.sqrt(x[:, FOURTH] * x[:, RATIO] * x[:, COUNT]) * limit)
    sizes = (np.sqrt(x[:, HALF]) + passing) / np.sqrt(x[:, VALUE])
    return float(sizes.max()) if len(sizes) == len(lines) > 0 else math.inf


def likely(lines: NDArray[np.float64], limit: float) -> float:
    """Relative norm of independent normal errors that fail it in nineteen of twenty lines; Inf where it cannot be told."""
    x = _judged(lines)
    sizes = np.sqrt(x[:, COUNT] * (limit**2 * x[:, COUNT] / x[:, INVERSE] + x[:, HALF] / x[:, COUNT]) / x[:, VALUE])
    return float(np.quantile(sizes, 0.95, method="higher")) if len(sizes) == len(lines) > 0 else math.inf


def likely_gain(lines: NDArray[np.float64], limit: float) -> float:
    """The gain whose errors fail the gate in one of the lines; Inf where rounding hides it.

    An element's error is its share g·value, two roundings of up to half an ulp, less the half ulp that its code stands for: the square of
    its use is (g·value - half)² + ⅔·half² in the mean, in units of typical².
    """
    x = lines[(lines[:, COUNT] >= FEWEST) & (lines[:, SHARE] > 0) & np.isfinite(lines).all(axis=1)]
    with np.errstate(invalid="ignore"):
        root = np.sqrt(np.square(x[:, CROSS]) - x[:, SHARE] * (5 / 3 * x[:, ROUNDED] - limit**2 * x[:, COUNT]))
        gains = (x[:, CROSS] + root) / x[:, SHARE]
    return float(np.nanmin(gains)) if np.isfinite(gains).any() else math.inf
