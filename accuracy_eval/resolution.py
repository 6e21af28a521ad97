"""What a PASS would have caught: the smallest errors of an output that fail its budget gates, from the reference and its budgets alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Format, Values, get_format
from accuracy_eval.jit import kernel, map_threads
from accuracy_eval.metrics.aggregates import FEWEST, GATED, LIMIT, TILE

STRIP_ELEMENTS = 1 << 19  # elements that one thread works on at a time: 4 MB of float64
MEDIAN_SAMPLES = 1 << 16
SAMPLED_LINES = 32  # columns, and rows of the first panel, looked at for what nineteen of twenty would show; 4 rows of later panels
SAMPLED_ALONG = 8192  # elements of each row, and of each column in the first panel, that stand for all: small thresholds are rare
PER_OCTAVE = 4  # classes of a threshold: 19 % wide
MOST_UNSEEN = 1024  # values of k whose loss no single element shows that whole rows are asked about, a panel
LOWEST, HIGHEST = -60, 20  # octaves of thresholds relative to the line's rms: below, always crossed; above, never


@dataclass(frozen=True)
class Resolution:
    """Smallest errors of the output that fail the budget gate: certainly (whatever is hit), and 19 times in 20.

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


@kernel
def _ulp(x: float, bits: int, emin: int) -> float:
    if x == 0.0:
        return math.ldexp(1.0, emin - bits)
    _, e = math.frexp(x)
    return math.ldexp(1.0, max(e - 1, emin) - bits)


@kernel
def _thresholds(values: Any, budget: Any, bits: int, emin: int, top: float, rows: Any, columns: Any, allowed: Any) -> float:
    """allowed = largest output error that may pass; adds its squares to rows [r, 2] and columns [n, 2] beside those of values.

    Returns the smallest gain that fails: an element scaled by it is off by more than `allowed` after rounding.
    """
    gain = np.inf
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = abs(values[i, j])
            if not v < np.inf:
                allowed[i, j] = 0.0
                continue
            b = budget[i, j]
            reach = (v + b) * (1 + 4e-16)
            half = 0.5 * _ulp(reach, bits, emin)
            t = b + half if reach + half < top else np.inf
            allowed[i, j] = t
            rows[i, 0] += t * t
            rows[i, 1] += v * v
            columns[j, 0] += t * t
            columns[j, 1] += v * v
            if v > 0.0 and t < np.inf:
                g = (t + 0.5 * _ulp(v + 2.0 * t, bits, emin)) / v
                gain = min(gain, g)
    return gain


@kernel
def _nearest(x: float, bits: int, emin: int) -> float:
    u = _ulp(x, bits, emin)
    return np.rint(x / u) * u  # type: ignore[no-any-return]


@kernel
def _reach(x: float, from_: float, bits: int, emin: int, top: float) -> float:
    """From a representable number up to where the reals end that round like x ≥ 0; Inf where that is an overflow."""
    r = _nearest(x, bits, emin)
    return (r - from_) + 0.5 * _ulp(r, bits, emin) if r < top else np.inf


@kernel
def _reach_down(x: float, from_: float, bits: int, emin: int, top: float) -> float:
    """The same downward, x of either sign."""
    if x <= 0.0:
        return _reach(-x, -from_, bits, emin, top)
    r = _nearest(x, bits, emin)
    below = _ulp(np.nextafter(r, 0.0), bits, emin) if r > 0.0 else np.inf
    return (from_ - r) + 0.5 * min(_ulp(r, bits, emin), below)


@kernel
def _changes(values: Any, budget: Any, bits: int, emin: int, top: float, away: Any, toward: Any) -> None:
    """What must be added to the rounded value, away from zero and toward it, to leave the codes that its budget allows.

    values, budget, away, toward: one axis. Inf where no change does.
    """
    for i in range(values.shape[0]):
        v = abs(values[i])
        if not v < np.inf:
            away[i] = toward[i] = np.inf
            continue
        r = _nearest(v, bits, emin)
        away[i] = _reach(v + budget[i], r, bits, emin, top)
        toward[i] = _reach_down(v - budget[i], r, bits, emin, top)


@kernel
def _count(thresholds: Any, rms: Any, weight: float, counts: Any) -> None:
    """Adds thresholds [lines, elements], relative to rms [lines], to counts [lines, classes]."""
    last = counts.shape[1] - 1
    for i in range(thresholds.shape[0]):
        if not 0.0 < rms[i] < np.inf:
            continue
        for j in range(thresholds.shape[1]):
            t = thresholds[i, j] / rms[i]
            place = last if not t < np.inf else 0 if t <= 0.0 else int(np.rint((np.log2(t) - LOWEST) * PER_OCTAVE))
            counts[i, min(max(place, 0), last)] += weight


def _line_counts(thresholds: NDArray[np.float64], rms: NDArray[np.float64], along: float) -> NDArray[np.float64]:
    """Classes of the thresholds [2, lines, elements] of lines of `along` elements each: [lines, classes]; lines without a norm left out."""
    counts = np.zeros((len(rms), (HIGHEST - LOWEST) * PER_OCTAVE + 1))
    for side in thresholds:
        _count(np.ascontiguousarray(side), rms, along / side.shape[1], counts)
    return counts[(rms > 0) & (rms < math.inf)]


def _line_size(counts: NDArray[np.float64], share: float = 0.95) -> float:
    """Relative norm of a normal error that is caught in that share of lines [lines, classes]; NaN without lines, Inf where none is."""
    if not len(counts):
        return math.nan
    used = np.nonzero(counts.any(axis=0))[0]
    counts = np.ascontiguousarray(counts[:, used])
    octaves = used / PER_OCTAVE + LOWEST
    low, high = float(LOWEST), float(HIGHEST)
    if _caught(counts, octaves, high) < share:
        return math.inf
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if _caught(counts, octaves, middle) >= share else (middle, high)
    return float(2.0**high)


@kernel
def _caught(counts: Any, octaves: Any, octave: float) -> float:
    """Share of the lines [lines, classes] in which a normal error of 2^octave crosses a threshold of one of the octaves [classes]."""
    passes = np.empty(octaves.shape[0])
    for j in range(octaves.shape[0]):
        # an element has two thresholds, of which one error can cross one: each stands for half of a two-sided one
        beyond = math.erfc(2.0 ** (octaves[j] - octave) / math.sqrt(2.0))
        passes[j] = math.log1p(-min(beyond, 1.0 - 1e-15)) / 2.0
    total = 0.0
    for i in range(counts.shape[0]):
        all_pass = 0.0
        for j in range(octaves.shape[0]):
            all_pass += counts[i, j] * passes[j]
        total -= math.expm1(all_pass)
    return total / counts.shape[0]  # type: ignore[no-any-return]


def _spread(size: int, count: int) -> NDArray[np.int64]:
    """`count` indices, or all, evenly over `size`."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)) if size else np.zeros(0, np.int64)


# of a line: Σ half ulp², Σ value², Σ typical⁴, Σ 1/typical², elements, largest (budget/typical)²; Σ of (value/typical)²,
# value·half/typical², (half/typical)²
HALF, VALUE, FOURTH, INVERSE, COUNT, RATIO, SHARE, CROSS, ROUNDED = range(9)
LINE_SUMS = 9
LEAST = 1e-250  # of Σ typical⁴: below, squares of squares have lost what they were


def _line_sums(half: Values, values: Values, budget: Values, typical: Values) -> NDArray[np.float64]:
    """Line sums [columns, LINE_SUMS] of a block [rows, columns]."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        square = np.square(typical)
        sums = [np.square(half).sum(0), np.square(values).sum(0), np.square(square).sum(0), (1 / square).sum(0)]
        ratio = np.square(budget / typical).max(0)
        share, rounding = np.abs(values) / typical, half / typical
        of_gain = [np.square(share).sum(0), (share * rounding).sum(0), np.square(rounding).sum(0)]
    return np.stack([*sums, np.full(half.shape[1], float(half.shape[0])), ratio, *of_gain], axis=1)


def _by_tiles(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Line sums of 128 columns each."""
    starts = np.arange(0, len(columns), TILE)
    tiles = np.asarray(np.add.reduceat(columns, starts))
    tiles[:, RATIO] = np.maximum.reduceat(columns[:, RATIO], starts)
    return tiles


def _judged(lines: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lines that a gate looks at and for which a relative error means something."""
    good = (lines[:, VALUE] > 0) & (lines[:, COUNT] >= FEWEST) & (lines[:, FOURTH] > LEAST)
    return lines[good & np.isfinite(lines).all(axis=1)]


def _certain(lines: NDArray[np.float64]) -> float:
    """Relative norm of an error that fails a gate in whichever of the lines it is and however it is spread; Inf where it cannot be told.

    An error of uses q passes if every q² ≤ R = (budget/typical)² and Σq² ≤ 0.49·n; then Σ(q·typical)² ≤ sqrt(Σtypical⁴·R·0.49·n).
    """
    x = _judged(lines)
    passing = np.sqrt(np.sqrt(x[:, FOURTH] * x[:, RATIO] * x[:, COUNT]) * LIMIT)
    sizes = (np.sqrt(x[:, HALF]) + passing) / np.sqrt(x[:, VALUE])
    return float(sizes.max()) if len(sizes) == len(lines) > 0 else math.inf


def _likely(lines: NDArray[np.float64]) -> float:
    """Relative norm of independent normal errors that fail it in nineteen of twenty lines; Inf where it cannot be told."""
    x = _judged(lines)
    sizes = np.sqrt(x[:, COUNT] * (LIMIT**2 * x[:, COUNT] / x[:, INVERSE] + x[:, HALF] / x[:, COUNT]) / x[:, VALUE])
    return float(np.quantile(sizes, 0.95, method="higher")) if len(sizes) == len(lines) > 0 else math.inf


def _likely_gain(lines: NDArray[np.float64]) -> float:
    """The gain whose errors fail the gate in one of the lines; Inf where rounding hides it.

    An element's error is its share g·value, two roundings of up to half an ulp, less the half ulp that its code stands for: the square of
    its use is (g·value - half)² + ⅔·half² in the mean, in units of typical².
    """
    x = lines[(lines[:, COUNT] >= FEWEST) & (lines[:, SHARE] > 0) & np.isfinite(lines).all(axis=1)]
    with np.errstate(invalid="ignore"):
        root = np.sqrt(np.square(x[:, CROSS]) - x[:, SHARE] * (5 / 3 * x[:, ROUNDED] - LIMIT**2 * x[:, COUNT]))
        gains = (x[:, CROSS] + root) / x[:, SHARE]
    return float(np.nanmin(gains)) if np.isfinite(gains).any() else math.inf


class ResolutionMeter:
    """Collects a Resolution from the panels of a reference, in any order.

    problem     the GEMM, for lost products; None leaves k_* at 0
    out_format  format of the output; columns: its width
    lines       metrics of aggregates.GATED that gates limit: which of rows, columns and tiles they look at
    """

    def __init__(
        self, columns: int, out_format: str | Format, problem: Gemm | None = None, lines: frozenset[str] = frozenset(GATED)
    ) -> None:
        self._gated = lines
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
            self._place = _largest_products(problem)
            self._seen = np.zeros(problem.k, np.bool_)

    def update(self, first_row: int, values: Values, budget: Values, typical: Values | None = None) -> None:
        """A panel: values and budget float64 [r, columns], rows from first_row on.

        typical  budgets of many elements together
        """
        f = self._format
        allowed = np.empty(values.shape)
        rows = np.zeros((values.shape[0], 2))
        bits, emin, top = (f.fraction_bits, f.emin, f.max) if f.kind == "float" else (62, 62, math.inf)  # the ulp of integers is 1
        step = max(1, STRIP_ELEMENTS // max(1, values.shape[1]))

        def strip(first: int) -> tuple[float, NDArray[np.float64]]:
            part, columns = slice(first, first + step), np.zeros_like(self._columns)
            return _thresholds(values[part], budget[part], bits, emin, top, rows[part], columns, allowed[part]), columns

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
        if "row_budget" in self._gated:
            self._row_lines.append(_line_sums(half.T, values.T, budget.T, typical.T))
        if self._gated.isdisjoint({"col_budget", "tile_budget"}):
            return
        for first in range(0, len(values), TILE):
            band = slice(first, first + TILE)
            sums = _line_sums(half[band], values[band], budget[band], typical[band])
            if "tile_budget" in self._gated:
                self._tile_lines.append(_by_tiles(sums))
            if "col_budget" in self._gated:
                largest = np.maximum(self._column_lines[:, RATIO], sums[:, RATIO])
                self._column_lines += sums
                self._column_lines[:, RATIO] = largest

    def _look(self, values: Values, budget: Values, bits: int, emin: int, top: float) -> None:
        """Thresholds of a sample: rows, columns and single elements spread over the panel."""

        def changes(v: Values, b: Values) -> NDArray[np.float64]:
            found = np.empty((2, v.size))
            _changes(np.ascontiguousarray(v).reshape(-1), np.ascontiguousarray(b).reshape(-1), bits, emin, top, found[0], found[1])
            return found.reshape(2, *v.shape)

        height, width = values.shape
        self._height += height
        if not values.size:
            return
        earlier = len(self._row_counts)
        rows = _spread(height, max(4, SAMPLED_LINES // (1 + earlier)))
        at = np.ix_(rows, _spread(width, SAMPLED_ALONG))
        self._row_counts.append(_line_counts(changes(values[at], budget[at]), np.sqrt(self._rows[-1][rows, 1] / width), width))
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
        gain = max(float((t[use] / size[use]).min()) for t in (away, toward)) if use.any() else math.inf
        either = np.concatenate([away, toward])
        element = float(np.quantile(either, 0.95, method="higher"))
        rms = np.sqrt(self._columns[self._looked_at, 1] / self._height)
        columns = _line_counts(np.concatenate(self._column_changes, axis=2), rms, self._height)
        return element, _line_size(np.concatenate(self._row_counts)), _line_size(columns), gain

    def _missed(self, first_row: int, values: Values, half: Values, allowed: Values, typical: Values | None) -> None:
        i, j, size = self._place
        here = np.nonzero((i >= first_row) & (i < first_row + values.shape[0]) & (size > 0))[0]
        at = (i[here] - first_row, j[here])
        with np.errstate(invalid="ignore"):
            rounding = 0.5 * _ulps(np.abs(values[at]) + size[here], self._format)
            self._seen[here] = np.isfinite(values[at]) & (size[here] * (1 - 1e-12) - rounding > allowed[at])
        if typical is not None and "row_budget" in self._gated and values.shape[1] >= FEWEST:
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
            left = lost * (1 - 1e-12) - half - 0.5 * _ulps(np.abs(values) + lost, self._format)
            use = np.where(left > 0, left / typical, 0.0)
            return bool(np.isfinite(values).all() and np.sqrt(np.mean(np.square(use))) > LIMIT)

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
        tile = _certain(by_tile)
        return Resolution(
            self._element,
            float(np.median(sample)) if sample.size else math.nan,
            row=min(_relative(rows), _certain(by_row)),
            column=min(_relative(self._columns), _certain(self._column_lines)),
            gain=self._gain,
            tile=tile if tile < math.inf else math.nan,
            k_seen=seen,
            k_total=total,
            k_unseen=unseen,
            element_95=element_95,
            row_95=min(row_95, _likely(by_row)),
            column_95=min(column_95, _likely(self._column_lines)),
            gain_95=min(gain_95, *map(_likely_gain, (by_row, self._column_lines, by_tile))),
        )


def _ulps(x: Values, f: Format) -> Values:
    if f.kind == "int":
        return np.ones_like(x)
    safe = np.where(np.isfinite(x), x, f.max)
    e = np.where(safe == 0, f.emin, np.maximum(np.frexp(safe)[1] - 1, f.emin))
    return np.asarray(np.ldexp(1.0, e - f.fraction_bits))


def _relative(sums: NDArray[np.float64]) -> float:
    use = sums[:, 1] > 0
    if not use.any():
        return math.nan
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = sums[use, 0] / sums[use, 1]  # squares beyond float64 on both sides leave nothing that is certain
    return float(np.sqrt(np.where(np.isnan(ratio), np.inf, ratio).max()))


def _largest_products(problem: Gemm) -> tuple[NDArray[np.int64], NDArray[np.int64], Values]:
    """For every k: row and column of the largest |alpha·a_ik·b_kj|, and that size; 0 where no finite one is left."""
    every = slice(0, problem.k)
    i, left = _largest_along(problem.m, problem.k, lambda lines: problem.a_values(lines, every))
    j, right = _largest_along(problem.n, problem.k, lambda lines: problem.b_values(every, lines).T)
    with np.errstate(over="ignore"):
        return i, j, left * right * abs(problem.scalars[0])


def _largest_along(lines: int, k: int, values: Callable[[slice], Values]) -> tuple[NDArray[np.int64], Values]:
    """For every k: the first of `lines` whose finite magnitude is largest, and that magnitude. values(lines) [lines, k]."""

    def strip(first: int) -> tuple[NDArray[np.int64], Values]:
        index, largest = np.full(k, first), np.zeros(k)
        block = values(slice(first, min(first + step, lines)))
        if block.flags.c_contiguous:
            _largest_by_line(block, first, index, largest)
        else:
            _largest_by_k(block.T, first, index, largest)
        return index, largest

    step = max(1, STRIP_ELEMENTS // max(1, k))
    index, largest = np.zeros(k, np.int64), np.zeros(k)
    for at, size in map_threads(strip, range(0, lines, step)):
        better = size > largest
        index[better], largest[better] = at[better], size[better]
    return index, largest


@kernel
def _largest_by_line(block: Any, first: int, index: Any, largest: Any) -> None:
    """block [lines, k], walked in the order it is stored."""
    for i in range(block.shape[0]):
        for t in range(block.shape[1]):
            x = abs(block[i, t])
            if x > largest[t] and x < np.inf:
                largest[t] = x
                index[t] = first + i


@kernel
def _largest_by_k(block: Any, first: int, index: Any, largest: Any) -> None:
    """block [k, lines], walked in the order it is stored."""
    for t in range(block.shape[0]):
        for i in range(block.shape[1]):
            x = abs(block[t, i])
            if x > largest[t] and x < np.inf:
                largest[t] = x
                index[t] = first + i
