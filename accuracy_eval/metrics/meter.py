"""Measuring two arrays in one pass: `measure` for whole arrays, `Meter` for panels of rows that arrive in order.

An array of any shape is seen as [rows, cols] with cols = shape[-1]. Work is cut by the shape alone into bands of rows and, across a
band, units of about 2^19 elements; units run on threads and are joined in order. Results do not depend on the height of the panels
nor on the number of threads. Memory: the panel, one band for rows that do not fill one yet, and a few MB a thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval import formats
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Overflow, get_format
from accuracy_eval.jit import thread_count
from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.aggregates import NO_USES, AggregateMeter
from accuracy_eval.metrics.arguments import DUMMIES, Array, checked_codes, geometry, parameters, readonly, source, tables
from accuracy_eval.metrics.histogram import Histogram
from accuracy_eval.metrics.joining import added, better, joined, merge_moments, new_records, noise, spread, worst_of
from accuracy_eval.metrics.measured import ClassCounts, Classes, Measured, NoiseMap, Range, Values
from accuracy_eval.metrics.registry import METRICS, allclose_name
from accuracy_eval.metrics.totals import Totals
from accuracy_eval.metrics.walk import walk
from accuracy_eval.records import Coded, WorstElement

MOST_PARTS = 1 << 20  # longest per-row and per-column array
MOST_TILES = 1 << 18
EXTREMES = (k.M_REL, k.M_INNER, k.M_RATIO)  # records whose element is kept: a limit on one may be broken far from the largest |d| and ulp
Extremes = dict[int, tuple[Any, Any, float]]  # record → actual code, expected code or value, budget


def measure(
    actual: Coded,
    expected: Coded | Values,
    *,
    budget: Values | None = None,
    overflow: Overflow | None = None,
    allclose: Sequence[tuple[float, float]] = (),
    top: int = 16,
) -> Measured:
    """Every metric of `actual` against `expected`, arrays of one shape.

    expected   codes of any format, or float64 values: the unrounded truth, which the meter itself rounds to the actual's format
    budget     error allowed of each element, same shape; see `Meter`
    Shapes that differ raise UsageError: what cannot be paired cannot be measured.
    """
    reference = not isinstance(expected, Coded)
    values = np.asarray(expected, np.float64) if not isinstance(expected, Coded) else expected.codes
    if values.shape != actual.shape:
        raise UsageError(f"actual has shape {actual.shape}, expected {values.shape}; only arrays of one shape can be measured")
    meter = Meter(
        actual.shape,
        actual.format,
        expected_format=expected.format if isinstance(expected, Coded) else None,
        reference=reference,
        overflow=overflow,
        allclose=allclose,
        top=top,
    )
    if budget is not None and budget.shape != actual.shape:
        raise UsageError(f"budget has shape {budget.shape}, actual {actual.shape}; a budget gives every element its own")
    rows, cols = meter.rows, meter.cols
    if rows and cols:
        view = (rows, cols)
        meter.update(0, actual.codes.reshape(view), values.reshape(view), None if budget is None else budget.reshape(view))
    return meter.result()


@dataclass
class _Unit:
    """A rectangle of the array and what the walk found in it. Row and column arrays are [quantity, place]; see slots.py."""

    row: int
    rows: int
    col: int
    cols: int
    sums: Values
    counts: NDArray[np.int64]
    row_parts: Values
    col_parts: Values
    tile_parts: Values
    top_values: Values
    top_codes: NDArray[np.int64]
    records: Values
    places: NDArray[np.int64]
    extremes: Extremes


class _Scratch:
    """What one thread writes to while it walks; counts of the histogram stay until the result, which leaves zeros."""

    def __init__(self) -> None:
        self.lanes = np.zeros(k.SCRATCH)
        self.bins = np.zeros(k.LANES, np.int64)
        self.histogram = np.zeros(k.COUNTERS, np.int64)


_SPARE: SimpleQueue[_Scratch] = SimpleQueue()
"""Scratches of finished meters: a megabyte of zeros is dearer to get from the system than a small array to measure."""
MOST_SPARE = 8


class Meter:
    """Measures actual against expected, panel by panel.

    shape            of the whole array; it is seen as [prod(shape[:-1]), shape[-1]], a 0-D array as [1, 1]
    actual_format    format of the actual codes
    expected_format  format of the expected codes; None is the actual's. If it differs, values are compared, and an ulp is the actual
                     format's spacing at the expected value
    reference        expected is float64 values, the unrounded truth. An ulp error is |a - e| in the actual's spacing at e; a mismatch is a
                     code other than e's rounding (ties to even, beyond the range by `overflow`)
    overflow         how the actual's format takes values beyond its range; None is the format's own policy
    allclose         (rtol, atol) pairs to count violations of: |a - e| <= atol + rtol·|e|, or both NaN, or the same Inf
    top              how many worst elements to keep

    NaN and Inf: both NaN, or the same Inf, is equal. Such pairs and pairs of a finite and a non-finite value take no part in numeric
    metrics; the latter count as mismatch, as nonfinite_mismatch and as a violation of every tolerance.
    Empty arrays have counts of 0 and no other metric.
    """

    def __init__(
        self,
        shape: Sequence[int],
        actual_format: str | Format,
        *,
        expected_format: str | Format | None = None,
        reference: bool = False,
        overflow: Overflow | None = None,
        allclose: Sequence[tuple[float, float]] = (),
        top: int = 16,
    ) -> None:
        self.shape = tuple(int(n) for n in shape)
        if top < 1:
            raise UsageError(f"top is {top}; at least one worst element is kept")
        if reference and expected_format is not None:
            raise UsageError(f"expected_format is {expected_format!r} although expected is real values; leave it out")
        self.cols = self.shape[-1] if self.shape else 1
        self.rows = math.prod(self.shape[:-1])
        self.actual = get_format(actual_format)
        self.expected = None if reference else get_format(expected_format or self.actual)
        self.overflow: Overflow = overflow or self.actual.overflow
        self.specs = tuple((float(r), float(a)) for r, a in allclose)
        self.top = top
        self._mode = k.REFERENCE if self.expected is None else k.SAME if self.expected == self.actual else k.VALUES
        self._ip, self._fp = parameters(self.actual, self.expected, self._mode, self.overflow)
        self._tables = tables(self.actual), tables(self.expected or self.actual)
        self._band, self._width = geometry(self.rows, self.cols)
        self._seen = 0
        self._held: tuple[Array, Array, Array | None] | None = None
        self._held_rows = 0
        self._budgeted: bool | None = None
        self._uses: AggregateMeter | None = None
        self._free: SimpleQueue[_Scratch] = SimpleQueue()
        self._all_scratch: list[_Scratch] = []
        self._histogram: Histogram | None = None
        self._start_totals()

    # ---- taking panels ----

    def update(self, first_row: int, actual: Array, expected: Array, budget: Values | None = None, typical: Values | None = None) -> None:
        """The rows first_row … of both sides, each [r, cols]; panels come in order and without gaps.

        budget  [r, cols], the error allowed of each element: with reference=True it limits the distance from e to the reals that
                round to a's code (0 if a is e rounded), else |a - e|. Given for every panel or for none; negative or NaN raises UsageError.
        typical [r, cols], with reference=True: what elements may come to together; for every panel or for none
        """
        if first_row != self._seen:
            raise UsageError(f"panel begins at row {first_row}, expected row {self._seen}; panels come in order and without gaps")
        count = actual.shape[0] if actual.ndim == 2 else -1
        for name, side in (("actual", actual), ("expected", expected), ("budget", budget)):
            if side is not None and side.shape != (count, self.cols):
                raise UsageError(f"{name} panel has shape {side.shape}; allowed: ({'r' if count < 0 else count}, {self.cols})")
        if first_row + count > self.rows:
            raise UsageError(f"panel ends at row {first_row + count} of an array of {self.rows} rows")
        if self._budgeted is None and count:
            self._budgeted = budget is not None
            self._ip[k.P_BUDGET] = int(self._budgeted)
        if count and self._budgeted != (budget is not None):
            raise UsageError(f"the panel at row {first_row} {'lacks' if self._budgeted else 'has'} a budget, unlike those before it")
        sides = (
            checked_codes(actual, self.actual, "actual"),
            checked_codes(expected, self.expected, "expected") if self.expected else np.asarray(expected, np.float64),
            None if budget is None else np.asarray(budget, np.float64),
        )
        if typical is not None:
            self._uses = self._uses or AggregateMeter(self.rows, self.cols, self.actual)
            self._uses.update(first_row, actual, sides[1], typical)
        self._seen += count
        at = 0
        while at < count and self.cols:
            band_rows = min(self._band, self.rows - (first_row + at - self._held_rows))
            if self._held_rows or count - at < band_rows:
                at += self._hold(sides, at, min(band_rows - self._held_rows, count - at), band_rows, first_row + at)
            else:
                whole = (count - at) // self._band * self._band
                if first_row + count == self.rows:
                    whole = count - at
                self._walk(tuple(None if s is None else s[at : at + whole] for s in sides), first_row + at)
                at += whole

    def _hold(self, sides: tuple[Any, ...], at: int, take: int, band_rows: int, row: int) -> int:
        """Keep `take` rows of a band that is not complete; walk it when it is."""
        if self._held is None:
            shape = (min(self._band, self.rows), self.cols)
            self._held = tuple(None if s is None else np.empty(shape, s.dtype) for s in sides)  # type: ignore[assignment]
        assert self._held is not None
        for held, side in zip(self._held, sides, strict=True):
            if held is not None:
                held[self._held_rows : self._held_rows + take] = side[at : at + take]
        self._held_rows += take
        if self._held_rows == band_rows:
            self._held_rows = 0
            self._walk(tuple(None if s is None else s[:band_rows] for s in self._held), row + take - band_rows)
        return take

    def _walk(self, sides: tuple[Any, ...], first_row: int) -> None:
        """Complete bands: cut into units, walk them on threads, join in order."""
        actual, expected, budget = sides
        kind_a, kind_e = int(self._ip[k.P_KIND_A]), int(self._ip[k.P_KIND_E])
        source_a, source_e = source(actual, kind_a), source(expected, kind_e)
        limit = readonly(budget) if budget is not None else DUMMIES[4]
        specs = np.array(self.specs, np.float64).reshape(-1, 2)

        def run(place: tuple[int, int, int, int]) -> _Unit:
            row, rows, col, cols = place
            try:
                scratch = self._free.get_nowait()
            except Empty:
                scratch = _spare()
                self._all_scratch.append(scratch)
            unit = _new_unit(first_row + row, rows, col, cols, self.top, len(self.specs))
            accumulators = (
                unit.sums, unit.counts, unit.row_parts, unit.col_parts, unit.tile_parts,
                unit.top_values, unit.top_codes, unit.records, unit.places, scratch.histogram,
            )  # fmt: skip
            with np.errstate(all="ignore"):
                walk(
                    self._ip, self._fp, source_a, source_e, self._tables[0], self._tables[1], limit, specs,
                    scratch.lanes, scratch.bins, accumulators, row, rows, col, cols, first_row, self.cols,
                )  # fmt: skip
            self._free.put(scratch)
            for i in EXTREMES:
                if unit.places[i] >= 0:
                    at = divmod(int(unit.places[i]) - first_row * self.cols, self.cols)
                    unit.extremes[i] = actual[at], expected[at], math.nan if budget is None else budget[at]
            return unit

        places = list(self._places(len(actual)))
        threads = min(thread_count(), len(places))
        if threads <= 1:
            for place in places:
                self._join(run(place))
            return
        # not map_threads: units are joined, in order, while later ones are still walked
        with ThreadPoolExecutor(threads) as pool:
            for unit in pool.map(run, places):
                self._join(unit)

    def _places(self, rows: int) -> Iterator[tuple[int, int, int, int]]:
        for row in range(0, rows, self._band):
            for col in range(0, self.cols, self._width):
                yield row, min(self._band, rows - row), col, min(self._width, self.cols - col)

    # ---- joining units ----

    def _start_totals(self) -> None:
        self._sums: list[Values] = []
        self._moments = np.zeros((3, 3))
        self._counts = np.zeros(k.C_ALLCLOSE + len(self.specs), np.int64)
        self._records, self._places_of = new_records()
        self._extremes: Extremes = {}
        self._tops: list[list[tuple[float, int, tuple[float, ...], int, int]]] = [[], []]
        self._row_parts = np.zeros((k.B_MAX, self.rows)) if self.rows <= MOST_PARTS else None
        self._col_parts = np.zeros((k.B_MAX, self.cols)) if self.cols <= MOST_PARTS else None
        tiles = (-(-self.rows // k.TILE), -(-self.cols // k.TILE))
        self._tile_parts = np.zeros((k.B_COUNT, *tiles)) if math.prod(tiles) <= MOST_TILES else None

    def _join(self, unit: _Unit) -> None:
        self._sums.append(unit.sums)
        if len(self._sums) == 4096:
            self._sums = [added(self._sums)]
        for b in range(3):
            merge_moments(self._moments[b], unit.sums[k.S_N : k.S_M2 + 1, b, 0])
        self._counts += unit.counts
        for i in range(k.M_COUNT):
            better(i, self._records, self._places_of, unit.records[i], int(unit.places[i]))
            if i in unit.extremes and self._places_of[i] == unit.places[i]:
                self._extremes[i] = unit.extremes[i]
        for which in range(2):
            top = self._tops[which]
            for values, codes in zip(unit.top_values[which], unit.top_codes[which], strict=True):
                if values[0] > 0:
                    top.append((-float(values[0]), int(codes[0]), tuple(map(float, values[1:])), int(codes[1]), int(codes[2])))
            top.sort(key=lambda t: t[:2])
            del top[self.top :]
        if self._row_parts is not None:
            self._row_parts[:, unit.row : unit.row + unit.rows] += unit.row_parts[: k.B_MAX]
        if self._col_parts is not None:
            self._col_parts[:, unit.col : unit.col + unit.cols] += unit.col_parts[: k.B_MAX]
        if self._tile_parts is not None:
            _, height, width = unit.tile_parts.shape
            row, col = unit.row // k.TILE, unit.col // k.TILE
            mine = self._tile_parts[:, row : row + height, col : col + width]
            mine[: k.B_MAX] += unit.tile_parts[: k.B_MAX]
            np.maximum(mine[k.B_MAX], unit.tile_parts[k.B_MAX], out=mine[k.B_MAX])

    # ---- the result ----

    def result(self) -> Measured:
        """What was found. UsageError if rows are missing or a budget was negative or NaN."""
        if self._seen != self.rows and self.cols:
            raise UsageError(
                f"rows {self._seen}…{self.rows - 1} of {self.rows} were never given; measure all of them before asking for a result"
            )
        if self._counts[k.C_BAD_BUDGET]:
            raise UsageError(f"{self._counts[k.C_BAD_BUDGET]} budgets are negative or NaN; a budget is a number >= 0")
        worst, worst_ulp = self._worst(0), self._worst(1)
        histogram = self._counted()
        rows, columns, tiles = (noise(parts) for parts in (self._row_parts, self._col_parts, self._tile_parts))
        totals = self._totals(worst_ulp, histogram, rows, columns, tiles)
        metrics: dict[str, Any] = {name: metric.value(totals) for name, metric in METRICS.items() if metric.value}
        for (rtol, atol), violations in zip(self.specs, self._counts[k.C_ALLCLOSE :], strict=True):
            metrics[allclose_name(rtol, atol)] = int(violations)
        return Measured(
            shape=self.shape,
            actual_format=self.actual.name,
            expected_format="float64" if self.expected is None else self.expected.name,
            reference=self.expected is None,
            metrics=metrics,
            classes=self._classes(),
            worst=worst,
            worst_ulp=worst_ulp,
            extremes=self._at_extremes(),
            ulp_histogram=histogram.octaves(),
            rows=rows,
            cols=columns,
            tiles=tiles,
            actual_range=_range(self._records[k.M_MIN_A], self._records[k.M_MAX_A]),
            expected_range=_range(self._records[k.M_MIN_E], self._records[k.M_MAX_E]),
        )

    def _counted(self) -> Histogram:
        """The histogram; the scratches go to other meters."""
        if self._histogram is None:
            self._histogram = Histogram.of((s.histogram for s in self._all_scratch), self._mode == k.SAME)
            for scratch in self._all_scratch[: max(0, MOST_SPARE - _SPARE.qsize())]:
                _SPARE.put(scratch)
            self._all_scratch.clear()
        return self._histogram

    def _totals(
        self, worst: tuple[WorstElement, ...], histogram: Histogram, rows: NoiseMap | None, columns: NoiseMap | None, tiles: NoiseMap | None
    ) -> Totals:
        counts = self._counts
        valid = int(counts[k.C_VALID])
        sums = added(self._sums)[:, :, 0] if self._sums else np.zeros((k.S_COUNT, 3))
        square = {q: joined(sums[q], 2) for q in (k.S_AA, k.S_EE, k.S_DD, k.S_AE, k.S_DE)}
        maximum: int | float | None = None
        if valid:
            maximum = 0 if self._mode == k.SAME else 0.0
            if worst:
                maximum = self._exact_ulp(worst[0]) if self._mode == k.SAME else abs(worst[0].ulp)

        countable = bool(np.isfinite(sums[[k.S_U, k.S_AU]]).all())

        def at(i: int) -> int | None:
            return int(self._places_of[i]) if self._places_of[i] >= 0 else None

        nonzero = valid - int(counts[k.C_ZERO_REFERENCE])
        n = self.rows * self.cols
        reference, budgeted = self._mode == k.REFERENCE and n > 0, bool(self._budgeted)
        return Totals(
            n=n,
            valid=valid,
            aa=square[k.S_AA],
            ee=square[k.S_EE],
            dd=square[k.S_DD],
            ae=square[k.S_AE],
            de=square[k.S_DE],
            bias=joined(sums[k.S_SG], 1),
            spread=spread(self._moments),
            ulp_sum=joined(sums[k.S_U], 1) if countable else None,
            ulp_abs=joined(sums[k.S_AU], 1) + histogram.exact_steps if countable else None,
            ulp_max=maximum,
            ulp_max_at=self._tops[1][0][1] if self._tops[1] else None,
            ulp_quantiles=histogram.quantiles(valid, maximum),
            max_abs=-self._tops[0][0][0] if self._tops[0] else 0.0,
            max_abs_at=self._tops[0][0][1] if self._tops[0] else None,
            max_rel=float(self._records[k.M_REL]) if nonzero else None,
            max_rel_at=at(k.M_REL),
            max_scaled=float(self._records[k.M_SCALED]),
            inner_max=float(self._records[k.M_INNER]) if reference else None,
            inner_max_at=at(k.M_INNER),
            budget_max=float(self._records[k.M_RATIO]) if budgeted else None,
            budget_max_at=at(k.M_RATIO) if budgeted else None,
            over_budget=int(counts[k.C_OVER_BUDGET]) if budgeted else None,
            mismatches=int(counts[k.C_MISMATCH]),
            up=int(counts[k.C_UP]),
            down=int(counts[k.C_DOWN]),
            zero_sign=int(counts[k.C_ZERO_SIGN]),
            nonzero_at_zero=int(counts[k.C_NONZERO_AT_ZERO]),
            zero_references=int(counts[k.C_ZERO_REFERENCE]),
            nonfinite=int(counts[k.C_NONFINITE]),
            worst_row=worst_of(rows) if valid else None,
            worst_col=worst_of(columns) if valid else None,
            worst_tile=self._worst_tile(tiles) if valid else None,
            uses=self._uses.result() if self._uses else NO_USES,
            shape=self.shape,
        )

    def _worst_tile(self, tiles: NoiseMap | None) -> tuple[tuple[int, int], float] | None:
        found = worst_of(tiles)
        if found is None:
            return None
        row, col = divmod(found[0], -(-self.cols // k.TILE))
        return (row, col), found[1]

    def _exact_ulp(self, element: WorstElement) -> int:
        """Code distance of an element; float64 codes lie up to 2^64 apart, which the walk's float64 rounds."""
        codes = np.array([element.actual_code, element.expected_code], self.actual.storage)
        return int(formats.ordinal_distance(codes[:1], codes[1:], self.actual)[0])

    def _classes(self) -> Classes:
        c = self._counts
        at_nan, at_inf = int(self._places_of[k.M_NAN]), int(self._places_of[k.M_INF])
        return Classes(
            actual=ClassCounts(*map(int, c[k.C_CLASS_A : k.C_CLASS_A + 7])),
            expected=ClassCounts(*map(int, c[k.C_CLASS_E : k.C_CLASS_E + 7])),
            nan_actual_only=int(c[k.C_NAN_A]),
            nan_expected_only=int(c[k.C_NAN_E]),
            inf_actual_only=int(c[k.C_INF_A]),
            inf_expected_only=int(c[k.C_INF_E]),
            first_nan_actual_only=at_nan if at_nan >= 0 else None,
            first_inf_actual_only=at_inf if at_inf >= 0 else None,
        )

    def _at_extremes(self) -> tuple[WorstElement, ...]:
        """The elements of EXTREMES; those that are not finite on both sides are infinitely far apart."""
        mask = (1 << 64) - 1
        found = []
        for i, (code, expected, budget) in self._extremes.items():
            codes = np.array([code], self.actual.storage)
            a = float(formats.decode(codes, self.actual)[0])
            e = float(formats.decode(np.array([expected], self.expected.storage), self.expected)[0]) if self.expected else float(expected)
            expected_code = int(expected) & mask if self.expected else self._rounded(e)
            ulp = math.inf
            if math.isfinite(a) and math.isfinite(e):
                with np.errstate(over="ignore"):
                    ulp = (a - e) / float(formats.ulp([e], self.actual)[0])
                if self._mode == k.SAME:
                    other = np.array([expected], self.actual.storage)
                    ulp = math.copysign(float(formats.ordinal_distance(codes, other, self.actual)[0]), a - e)
            found.append(
                WorstElement(
                    index=self._index(int(self._places_of[i])),
                    actual_code=int(code) & mask,
                    expected_code=expected_code,
                    actual=a,
                    expected=e,
                    error=abs(a - e) if math.isfinite(a) and math.isfinite(e) else math.inf,
                    ulp=ulp,
                    budget=None if math.isnan(budget) else float(budget),
                )
            )
        return tuple(found)

    def _rounded(self, value: float) -> int | None:
        """The code of a real value; None for what rounds to a NaN that the format does not have."""
        try:
            return int(formats.encode([value], self.actual, overflow=self.overflow)[0])
        except UsageError:
            return None

    def _index(self, flat: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()

    def _worst(self, which: int) -> tuple[WorstElement, ...]:
        top = self._tops[which]
        mask = (1 << 64) - 1
        expected_codes = [code_e & mask for *_, code_e in top]
        if self.expected is None and top:
            values = np.array([values[1] for _, _, values, _, _ in top])
            expected_codes = formats.encode(values, self.actual, overflow=self.overflow).tolist()
        places = np.unravel_index([flat for _, flat, *_ in top], self.shape) if top and self.shape else ()
        indices = list(zip(*(axis.tolist() for axis in places), strict=True)) or [()] * len(top)
        return tuple(
            WorstElement(
                index=index,
                actual_code=code_a & mask,
                expected_code=expected_code,
                actual=a,
                expected=e,
                error=abs(a - e),
                ulp=u,
                budget=None if math.isnan(b) else b,
            )
            for index, (_, _, (a, e, u, b), code_a, _), expected_code in zip(indices, top, expected_codes, strict=True)
        )


def _spare() -> _Scratch:
    try:
        return _SPARE.get_nowait()
    except Empty:
        return _Scratch()


def _new_unit(row: int, rows: int, col: int, cols: int, top: int, specs: int) -> _Unit:
    records, places = new_records()
    return _Unit(
        row=row,
        rows=rows,
        col=col,
        cols=cols,
        sums=np.zeros((k.S_COUNT, 3, 2)),
        counts=np.zeros(k.C_ALLCLOSE + specs, np.int64),
        row_parts=np.zeros((k.B_COUNT, rows)),
        col_parts=np.zeros((k.B_COUNT, cols)),
        tile_parts=np.zeros((k.B_COUNT, -(-rows // k.TILE), -(-cols // k.TILE))),
        top_values=np.zeros((2, top, 5)),
        top_codes=np.zeros((2, top, 3), np.int64),
        records=records,
        places=places,
        extremes={},
    )


def _range(low: float, high: float) -> Range:
    return Range(float(low), float(high)) if low <= high else Range(None, None)
