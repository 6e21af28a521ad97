"""Collecting a Resolution from the panels of a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Format, Values, get_format
from accuracy_eval.jit import map_threads
from accuracy_eval.metrics.aggregates import FEWEST, LIMIT, TILE
from accuracy_eval.metrics.registry import AGGREGATES
from accuracy_eval.resolution.lines import LINE_SUMS, RATIO, by_tiles, certain, likely, likely_gain, line_sums
from accuracy_eval.resolution.products import STRIP_ELEMENTS, largest_products
from accuracy_eval.resolution.shares import line_counts, line_size
from accuracy_eval.resolution.thresholds import least_changes, thresholds, ulps

WHOLE_LINES = MappingProxyType(dict.fromkeys(AGGREGATES, LIMIT))
MEDIAN_SAMPLES = 1 << 16
SAMPLED_LINES = 32  # columns, and rows of the first panel, looked at for what nineteen of twenty would show; 4 rows of later panels
SAMPLED_ALONG = 8192  # elements of each row, and of each column in the first panel, that stand for all: small thresholds are rare
MOST_UNSEEN = 1024  # values of k whose loss no single element shows that whole rows are asked about, a panel


@dataclass(frozen=True)
class Resolution:
    """Smallest errors of the output that fail the limits: certainly (whatever is hit), and 19 times in 20.

    Certain, for the error that is left after rounding, against the reference:
    element         any single element off by more fails, absolute; Inf where an element may overflow within its budget
    element_median  the same, of half of all elements
    row, column     an error of that relative Frobenius norm within one row (column) fails, whichever it is; NaN if all are zero
    tile            the same of a 128 × 128 tile; NaN where no gate looks at tiles
    gain            the whole output multiplied by 1 ± gain fails
    k_seen          products a_ik·b_kj, k fixed, whose loss from every element fails; k_total: those that change anything
    k_unseen        first such k that would not be missed, or None
    Nineteen in twenty, for what is added to a correctly rounded output before it is rounded again:
    element_95      one element, anywhere, changed by that much either way
    row_95, column_95   one row (column), anywhere, whose elements get independent normal errors of that norm relative to its own
    gain_95         the whole output multiplied by 1 + gain or 1 - gain
    """

    element: float
    element_median: float
    row: float
    column: float
    gain: float
    tile: float = math.nan
    k_seen: int = 0
    k_total: int = 0
    k_unseen: int | None = None
    element_95: float = math.nan
    row_95: float = math.nan
    column_95: float = math.nan
    gain_95: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `Side.resolution`; what no gate looks at is not in it."""
        return {name: value for name, value in vars(self).items() if not (isinstance(value, float) and math.isnan(value))}


class ResolutionMeter:
    """Collects a Resolution from the panels of a reference, in any order.

    problem     the GEMM, for lost products; None leaves k_* at 0
    out_format  format of the output; columns: its width
    lines       metrics of registry.AGGREGATES that gates limit, and their limits: which of rows, columns and tiles they look at
    """

    def __init__(
        self, columns: int, out_format: str | Format, problem: Gemm | None = None, lines: Mapping[str, float] = WHOLE_LINES
    ) -> None:
        self._limits = lines
        self._format = get_format(out_format)
        self._columns = np.zeros((columns, 2))
        self._rows: list[NDArray[np.float64]] = []
        self._element = 0.0
        self._gain = math.inf
        self._sample: list[NDArray[np.float64]] = []
        self._changes: list[NDArray[np.float64]] = []  # [3, elements]: away, toward, |value|
        self._row_counts: list[NDArray[np.float64]] = []  # [rows, classes]
        self._looked_at = _spread(columns, SAMPLED_LINES)
        self._column_changes: list[NDArray[np.float64]] = []  # [2, looked_at, rows]
        self._height = 0
        self._row_lines: list[NDArray[np.float64]] = []
        self._column_lines = np.zeros((columns, LINE_SUMS))
        self._tile_lines: list[NDArray[np.float64]] = []
        self._problem = problem
        if problem is not None:
            self._place = largest_products(problem)
            self._seen = np.zeros(problem.k, np.bool_)

    def update(self, first_row: int, values: Values, budget: Values, typical: Values | None = None) -> None:
        """A panel: values and budget, what each may be off by, float64 [r, columns], rows from first_row on.

        typical  budgets of many elements together
        """
        f = self._format
        allowed = np.empty(values.shape)
        rows = np.zeros((values.shape[0], 2))
        bits, emin, top = (f.fraction_bits, f.emin, f.max) if f.kind == "float" else (62, 62, math.inf)  # the ulp of integers is 1
        step = max(1, STRIP_ELEMENTS // max(1, values.shape[1]))

        def strip(first: int) -> tuple[float, NDArray[np.float64]]:
            part, columns = slice(first, first + step), np.zeros_like(self._columns)
            return thresholds(values[part], budget[part], bits, emin, top, rows[part], columns, allowed[part]), columns

        gain = math.inf
        for smallest, columns in map_threads(strip, range(0, values.shape[0], step)):
            gain = min(gain, smallest)
            self._columns += columns
        self._rows.append(rows)
        self._gain = min(self._gain, gain)
        self._element = max(self._element, float(allowed.max(initial=0.0)))
        flat = allowed.reshape(-1)
        self._sample.append(flat[:: max(1, flat.size * max(1, len(self._sample)) // MEDIAN_SAMPLES)].copy())
        self._look(values, budget, bits, emin, top)
        with np.errstate(invalid="ignore"):
            half = allowed - budget
        if typical is not None:
            self._lines(values, half, budget, typical)
        if self._problem is not None:
            self._missed(first_row, values, half, allowed, typical)

    def _lines(self, values: Values, half: Values, budget: Values, typical: Values) -> None:
        """Line sums of the rows, columns and tiles of a panel, where gates look at them."""
        if "row_budget" in self._limits:
            self._row_lines.append(line_sums(half.T, values.T, budget.T, typical.T))
        if self._limits.keys().isdisjoint({"col_budget", "tile_budget"}):
            return
        for first in range(0, len(values), TILE):
            band = slice(first, first + TILE)
            sums = line_sums(half[band], values[band], budget[band], typical[band])
            if "tile_budget" in self._limits:
                self._tile_lines.append(by_tiles(sums))
            if "col_budget" in self._limits:
                largest = np.maximum(self._column_lines[:, RATIO], sums[:, RATIO])
                self._column_lines += sums
                self._column_lines[:, RATIO] = largest

    def _look(self, values: Values, budget: Values, bits: int, emin: int, top: float) -> None:
        """Thresholds of a sample: rows, columns and single elements spread over the panel."""

        def changes(v: Values, b: Values) -> NDArray[np.float64]:
            found = np.empty((2, v.size))
            least_changes(np.ascontiguousarray(v).reshape(-1), np.ascontiguousarray(b).reshape(-1), bits, emin, top, found[0], found[1])
            return found.reshape(2, *v.shape)

        height, width = values.shape
        self._height += height
        if not values.size:
            return
        earlier = len(self._row_counts)
        rows = _spread(height, max(4, SAMPLED_LINES // (1 + earlier)))
        at = np.ix_(rows, _spread(width, SAMPLED_ALONG))
        self._row_counts.append(line_counts(changes(values[at], budget[at]), np.sqrt(self._rows[-1][rows, 1] / width), width))
        at = np.ix_(_spread(height, max(64, SAMPLED_ALONG // (1 + earlier))), self._looked_at)
        self._column_changes.append(changes(values[at].T, budget[at].T))
        step = max(1, values.size * max(1, len(self._changes)) // MEDIAN_SAMPLES)
        v, b = values.reshape(-1)[::step], budget.reshape(-1)[::step]
        self._changes.append(np.concatenate([changes(v, b), np.abs(v)[None]]))

    def _probable(self) -> tuple[float, float, float, float]:
        """element_95, row_95, column_95, gain_95."""
        if not self._changes:
            return math.nan, math.nan, math.nan, math.nan
        away, toward, size = np.concatenate(self._changes, axis=1)
        smallest = self._format.smallest_subnormal / 2 if self._format.kind == "float" else 0.5
        use = (size > smallest) & (size < math.inf)  # what is stored as zero stays zero under any gain
        with np.errstate(over="ignore"):
            gain = max(float((t[use] / size[use]).min()) for t in (away, toward)) if use.any() else math.inf
        either = np.concatenate([away, toward])
        element = float(np.quantile(either, 0.95, method="higher"))
        rms = np.sqrt(self._columns[self._looked_at, 1] / self._height)
        columns = line_counts(np.concatenate(self._column_changes, axis=2), rms, self._height)
        return element, line_size(np.concatenate(self._row_counts)), line_size(columns), gain

    def _missed(self, first_row: int, values: Values, half: Values, allowed: Values, typical: Values | None) -> None:
        i, j, size = self._place
        here = np.nonzero((i >= first_row) & (i < first_row + values.shape[0]) & (size > 0))[0]
        at = (i[here] - first_row, j[here])
        with np.errstate(invalid="ignore"):
            rounding = 0.5 * ulps(np.abs(values[at]) + size[here], self._format)
            self._seen[here] = np.isfinite(values[at]) & (size[here] * (1 - 1e-12) - rounding > allowed[at])
        if typical is not None and "row_budget" in self._limits and values.shape[1] >= FEWEST:
            for k in here[~self._seen[here]][:MOST_UNSEEN]:
                row = i[k] - first_row
                self._seen[k] = self._row_shows(int(k), int(i[k]), values[row], half[row], typical[row])

    def _row_shows(self, k: int, i: int, values: Values, half: Values, typical: Values) -> bool:
        """Whether the loss of product k from the whole row i certainly fails the gate on rows."""
        p = self._problem
        assert p is not None
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            a, b = p.a_values(slice(i, i + 1), slice(k, k + 1))[0, 0], p.b_values(slice(k, k + 1), slice(0, p.n))[0]
            lost = np.abs(p.scalars[0] * a * b)
            left = lost * (1 - 1e-12) - half - 0.5 * ulps(np.abs(values) + lost, self._format)
            use = np.where(left > 0, left / typical, 0.0)
            return bool(np.isfinite(values).all() and np.sqrt(np.mean(np.square(use))) > self._limits["row_budget"])

    def result(self) -> Resolution:
        """What the panels so far can show."""
        rows = np.concatenate(self._rows) if self._rows else np.zeros((0, 2))
        sample = np.concatenate(self._sample) if self._sample else np.zeros(0)
        seen = total = 0
        unseen = None
        if self._problem is not None:
            there = self._place[2] > 0
            seen, total = int((self._seen & there).sum()), int(there.sum())
            missing = np.nonzero(there & ~self._seen)[0]
            unseen = int(missing[0]) if missing.size else None
        by_row, by_tile = (np.concatenate(x) if x else np.zeros((0, LINE_SUMS)) for x in (self._row_lines, self._tile_lines))
        element_95, row_95, column_95, gain_95 = self._probable()
        of_row, of_column, of_tile = (self._limits.get(metric, math.inf) for metric in AGGREGATES)
        tile = certain(by_tile, of_tile)
        return Resolution(
            self._element,
            float(np.median(sample)) if sample.size else math.nan,
            row=min(_relative(rows), certain(by_row, of_row)),
            column=min(_relative(self._columns), certain(self._column_lines, of_column)),
            gain=self._gain,
            tile=tile if tile < math.inf else math.nan,
            k_seen=seen,
            k_total=total,
            k_unseen=unseen,
            element_95=element_95,
            row_95=min(row_95, likely(by_row, of_row)),
            column_95=min(column_95, likely(self._column_lines, of_column)),
            gain_95=min(gain_95, *map(likely_gain, (by_row, self._column_lines, by_tile), (of_row, of_column, of_tile))),
        )


def _relative(sums: NDArray[np.float64]) -> float:
    use = sums[:, 1] > 0
    if not use.any():
        return math.nan
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = sums[use, 0] / sums[use, 1]  # squares beyond float64 on both sides leave nothing that is certain
    return float(np.sqrt(np.where(np.isnan(ratio), np.inf, ratio).max()))


def _spread(size: int, count: int) -> NDArray[np.int64]:
    """`count` indices, or all, evenly over `size`."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)) if size else np.zeros(0, np.int64)
