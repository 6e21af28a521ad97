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
from fractions import Fraction
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval import formats
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Overflow, get_format
from accuracy_eval.jit import thread_count
from accuracy_eval.metrics import walk as k
from accuracy_eval.metrics.measured import ClassCounts, Classes, Measured, NoiseMap, Range, Values
from accuracy_eval.metrics.registry import METRICS, allclose_name
from accuracy_eval.metrics.totals import Totals
from accuracy_eval.records import Coded, WorstElement

Array = NDArray[Any]

UNIT = 1 << 19  # elements of a unit of work
WIDEST_BAND = 1 << 23  # elements of a band of several rows: bounds what is kept of rows that do not fill a band yet
THIN = 1 << 14  # elements of a band of narrow arrays, so that a call does something
MOST_PARTS = 1 << 20  # longest per-row and per-column array
MOST_TILES = 1 << 18
QUANTILES = {"ulp_p50": Fraction(1, 2), "ulp_p99": Fraction(99, 100), "ulp_p999": Fraction(999, 1000)}
_KINDS = {
    "float64": k.FP64, "float32": k.FP32, "tfloat32": k.TF32, "float16": k.FP16, "bfloat16": k.BF16, "int32": k.INT32,
}  # fmt: skip
_POLICIES = {"saturate": k.SATURATE, "inf": k.INF, "nan": k.NAN}
_BUCKET_EXPONENT = (0, -600, 600)  # of the middle, small and big bucket, for sums of d; twice that for sums of products


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
    """A rectangle of the array and what the walk found in it. Row and column arrays are [quantity, place]; see walk.py."""

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


class _Scratch:
    """What one thread writes to while it walks; counts of the histogram stay until the result."""

    def __init__(self) -> None:
        self.lanes = np.zeros(k.SCRATCH)
        self.bins = np.zeros(k.LANES, np.int64)
        self.histogram = np.zeros(k.COUNTERS, np.int64)


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
        self._ip, self._fp = _parameters(self.actual, self.expected, self._mode, self.overflow)
        self._tables = _tables(self.actual), _tables(self.expected or self.actual)
        self._band, self._width = _geometry(self.rows, self.cols)
        self._seen = 0
        self._held: tuple[Array, Array, Array | None] | None = None
        self._held_rows = 0
        self._budgeted: bool | None = None
        self._free: SimpleQueue[_Scratch] = SimpleQueue()
        self._all_scratch: list[_Scratch] = []
        self._start_totals()

    # ---- taking panels ----

    def update(self, first_row: int, actual: Array, expected: Array, budget: Values | None = None) -> None:
        """The rows first_row … of both sides, each [r, cols]; panels come in order and without gaps.

        budget  [r, cols], the error allowed of each element: with reference=True it limits the distance from e to the reals that
                round to a's code (0 if a is e rounded), else |a - e|. Given for every panel or for none; negative or NaN raises UsageError.
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
            _codes(actual, self.actual, "actual"),
            _codes(expected, self.expected, "expected") if self.expected else np.asarray(expected, np.float64),
            None if budget is None else np.asarray(budget, np.float64),
        )
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
        source_a, source_e = _source(actual, kind_a), _source(expected, kind_e)
        limit = _readonly(budget) if budget is not None else _DUMMIES[4]
        specs = np.array(self.specs, np.float64).reshape(-1, 2)

        def run(place: tuple[int, int, int, int]) -> _Unit:
            row, rows, col, cols = place
            try:
                scratch = self._free.get_nowait()
            except Empty:
                scratch = _Scratch()
                self._all_scratch.append(scratch)
            unit = _new_unit(first_row + row, rows, col, cols, self.top, len(self.specs))
            accumulators = (
                unit.sums, unit.counts, unit.row_parts, unit.col_parts, unit.tile_parts,
                unit.top_values, unit.top_codes, unit.records, unit.places, scratch.histogram,
            )  # fmt: skip
            with np.errstate(all="ignore"):
                k.walk(
                    self._ip, self._fp, source_a, source_e, self._tables[0], self._tables[1], limit, specs,
                    scratch.lanes, scratch.bins, accumulators, row, rows, col, cols, first_row, self.cols,
                )  # fmt: skip
            self._free.put(scratch)
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
        self._records, self._places_of = _new_records()
        self._tops: list[list[tuple[float, int, tuple[float, ...], int, int]]] = [[], []]
        self._row_parts = np.zeros((k.B_MAX, self.rows)) if self.rows <= MOST_PARTS else None
        self._col_parts = np.zeros((k.B_MAX, self.cols)) if self.cols <= MOST_PARTS else None
        tiles = (-(-self.rows // k.TILE), -(-self.cols // k.TILE))
        self._tile_parts = np.zeros((k.B_COUNT, *tiles)) if math.prod(tiles) <= MOST_TILES else None

    def _join(self, unit: _Unit) -> None:
        self._sums.append(unit.sums)
        if len(self._sums) == 4096:
            self._sums = [_added(self._sums)]
        for b in range(3):
            _merge_moments(self._moments[b], unit.sums[k.S_N : k.S_M2 + 1, b, 0])
        self._counts += unit.counts
        for i in range(k.M_COUNT):
            _better(i, self._records, self._places_of, unit.records[i], int(unit.places[i]))
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
        histogram = self._histogram()
        totals = self._totals(worst_ulp, histogram)
        metrics: dict[str, Any] = {name: metric.value(totals) for name, metric in METRICS.items()}
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
            ulp_histogram=self._octaves(histogram),
            rows=_noise(self._row_parts),
            cols=_noise(self._col_parts),
            tiles=_noise(self._tile_parts),
            actual_range=_range(self._records[k.M_MIN_A], self._records[k.M_MAX_A]),
            expected_range=_range(self._records[k.M_MIN_E], self._records[k.M_MAX_E]),
        )

    def _histogram(self) -> NDArray[np.int64]:
        total = np.zeros(k.HISTOGRAM, np.int64)
        for scratch in self._all_scratch:
            total += scratch.histogram[k.GROUPS * k.NEAR :]
            total[: k.NEAR] += scratch.histogram[: k.GROUPS * k.NEAR].reshape(k.GROUPS, k.NEAR).sum(axis=0)
        return total

    def _totals(self, worst: tuple[WorstElement, ...], histogram: NDArray[np.int64]) -> Totals:
        counts = self._counts
        valid = int(counts[k.C_VALID])
        sums = _added(self._sums)[:, :, 0] if self._sums else np.zeros((k.S_COUNT, 3))
        square = {q: _joined(sums[q], 2) for q in (k.S_AA, k.S_EE, k.S_DD, k.S_AE, k.S_DE)}
        maximum: int | float | None = None
        if valid:
            maximum = 0 if self._mode == k.SAME else 0.0
            if worst:
                maximum = self._exact_ulp(worst[0]) if self._mode == k.SAME else abs(worst[0].ulp)

        # between codes the histogram holds small errors exactly, and the walk sums the others only
        exact_steps = int(np.arange(k.EXACT) @ histogram[: k.EXACT]) if self._mode == k.SAME else 0

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
            bias=_joined(sums[k.S_SG], 1),
            spread=_spread(self._moments),
            ulp_sum=_joined(sums[k.S_U], 1) if countable else None,
            ulp_abs=_joined(sums[k.S_AU], 1) + exact_steps if countable else None,
            ulp_max=maximum,
            ulp_max_at=self._tops[1][0][1] if self._tops[1] else None,
            ulp_quantiles=self._quantiles(histogram, valid, maximum),
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
            worst_row=_worst_of(_noise(self._row_parts)) if valid else None,
            worst_col=_worst_of(_noise(self._col_parts)) if valid else None,
            worst_tile=self._worst_tile() if valid else None,
            shape=self.shape,
        )

    def _worst_tile(self) -> tuple[tuple[int, int], float] | None:
        found = _worst_of(_noise(self._tile_parts))
        if found is None:
            return None
        row, col = divmod(found[0], -(-self.cols // k.TILE))
        return (row, col), found[1]

    def _exact_ulp(self, element: WorstElement) -> int:
        """Code distance of an element; float64 codes lie up to 2^64 apart, which the walk's float64 rounds."""
        codes = np.array([element.actual_code, element.expected_code], self.actual.storage)
        return int(formats.ordinal_distance(codes[:1], codes[1:], self.actual)[0])

    def _quantiles(self, histogram: NDArray[np.int64], valid: int, maximum: int | float | None) -> dict[str, int | float]:
        """Nearest-rank quantiles of |ulp error|: the upper edge of the bin that holds the element, never above the maximum."""
        if not valid or maximum is None:
            return {}
        reached = np.cumsum(histogram)
        edges = _edges(self._mode == k.SAME)
        out: dict[str, int | float] = {}
        for name, share in QUANTILES.items():
            rank = -(-valid * share.numerator // share.denominator)
            edge = min(float(edges[np.searchsorted(reached, rank)]), maximum)
            out[name] = int(edge) if self._mode == k.SAME else edge
        return out

    def _octaves(self, histogram: NDArray[np.int64]) -> tuple[tuple[float, int], ...]:
        starts, uppers = _octave_starts(self._mode == k.SAME)
        counts = np.add.reduceat(histogram, starts)
        return tuple((float(uppers[i]), int(counts[i])) for i in np.flatnonzero(counts))

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

    def _worst(self, which: int) -> tuple[WorstElement, ...]:
        top = self._tops[which]
        mask = (1 << 64) - 1
        expected_codes = [code_e & mask for *_, code_e in top]
        if self.expected is None and top:
            values = np.array([values[1] for _, _, values, _, _ in top])
            expected_codes = formats.encode(values, self.actual, overflow=self.overflow).tolist()
        return tuple(
            WorstElement(
                index=tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else (),
                actual_code=code_a & mask,
                expected_code=expected_code,
                actual=a,
                expected=e,
                error=abs(a - e),
                ulp=u,
                budget=None if math.isnan(b) else b,
            )
            for (_, flat, (a, e, u, b), code_a, _), expected_code in zip(top, expected_codes, strict=True)
        )


@cache
def _edges(integral: bool) -> Values:
    """Upper edge of every histogram bin; that of the last is +inf, since it holds all beyond it."""
    first, key = (k.EXACT, k.BIN_EXACT) if integral else (1, k.BIN_ONE_REAL)
    out = np.arange(k.HISTOGRAM, dtype=np.float64)
    out[first:] = ((np.arange(k.HISTOGRAM - first) + key + 1) << k.SHIFT).view(np.float64)
    out[-1] = np.inf
    return out


@cache
def _octave_starts(integral: bool) -> tuple[NDArray[np.int64], Values]:
    """(first bin, upper edge) of every power of two: bins up to that edge and above the one before belong to it."""
    edges = _edges(integral)
    upper = np.zeros(k.HISTOGRAM)
    upper[1:-1] = 2.0 ** np.ceil(np.log2(edges[1:-1]))
    upper[-1] = np.inf
    starts = np.flatnonzero(np.diff(upper, prepend=-1.0))
    return starts, upper[starts]


# ---- parameters of the walk ----


def _kind(f: Format | None) -> int:
    if f is None:
        return k.REAL
    if f.bits <= 8:
        return k.TABLE8
    if f.name not in _KINDS:
        raise UsageError(f"{f.name} has no decoder in accuracy_eval.metrics; formats over 8 bits that have: {', '.join(_KINDS)}")
    return _KINDS[f.name]


def _tables(f: Format) -> Values:
    """[2, 256]: value and ordinal of every 8-bit code; zeros for wider formats. Bits above a format's own are ignored."""
    out = np.zeros((2, 256))
    if f.bits <= 8:
        codes = np.arange(256, dtype=f.storage) & f.storage.type((1 << f.bits) - 1)
        out[0] = formats.decode(codes, f)
        out[1] = formats.ordinals(codes, f)
    return out


def _parameters(actual: Format, expected: Format | None, mode: int, overflow: Overflow) -> tuple[NDArray[np.int64], Values]:
    ip, fp = np.zeros(k.P_COUNT, np.int64), np.zeros(k.F_COUNT)
    floating = actual.kind == "float"
    ip[k.P_KIND_A], ip[k.P_KIND_E], ip[k.P_MODE] = _kind(actual), _kind(expected), mode
    ip[k.P_FRACTION], ip[k.P_EMIN], ip[k.P_FLOAT] = actual.fraction_bits, actual.emin if floating else 0, floating
    ip[k.P_POLICY] = _POLICIES[overflow]
    ip[k.P_NEG_ZERO] = actual.has_negative_zero and (expected is None or expected.has_negative_zero)
    ip[k.P_SIGNED], ip[k.P_HAS_ZERO] = actual.signed, actual.has_zero
    ip[k.P_ZERO_FAST] = actual.has_zero and actual.name != "float64"

    fp[k.F_HIGH_A] = fp[k.F_HIGH_E] = k.WIDE_HIGH
    fp[k.F_LOW_A] = fp[k.F_LOW_E] = k.WIDE_LOW
    fp[k.F_FLOOR_E] = -np.inf
    fp[k.F_MAX], fp[k.F_SMALLEST] = actual.max, actual.smallest_subnormal
    fp[k.F_LOWEST] = -actual.max - (0 if floating else 1) if actual.signed else 0.0
    fp[k.F_THRESHOLD], fp[k.F_EDGE] = _overflow_edge(actual)
    if mode == k.REFERENCE:
        fp[k.F_HIGH_E] = min(k.WIDE_HIGH, actual.max)
        if not actual.signed:
            fp[k.F_FLOOR_E] = 0.0
        if not actual.has_zero:
            fp[k.F_LOW_E] = actual.smallest_normal
    fp[k.F_NORMAL_A] = actual.smallest_normal
    fp[k.F_NORMAL_E] = (expected or actual).smallest_normal
    return ip, fp


def _overflow_edge(f: Format) -> tuple[float, float]:
    """(least magnitude that rounds beyond the largest finite value, boundary between the two)."""
    if f.name == "float64":
        return math.inf, math.inf
    edge = f.max + float(formats.ulp(f.max, f)) / 2
    # a tie at an even code stays; e8m0 has no fraction and ties up
    stays = f.max_code % 2 == 0 and f.fraction_bits > 0
    return math.nextafter(edge, math.inf) if stays else edge, edge


def _geometry(rows: int, cols: int) -> tuple[int, int]:
    """(rows of a band, columns of a unit), from the shape alone. Bands are 128 rows; fewer where rows are very wide, more where thin."""
    band = k.TILE
    while band > 1 and band * cols > WIDEST_BAND:
        band //= 2
    if cols * band < THIN:
        band *= -(-THIN // (max(cols, 1) * band))
    height = max(1, min(band, rows))
    return band, max(k.LANES, UNIT // height // k.LANES * k.LANES)


# ---- arrays for the walk: one type each, so that one compiled signature serves all ----


def _readonly(a: Array) -> Array:
    """The array itself or a copy: C order, aligned, plain ndarray, marked read-only whatever it was."""
    out = np.ascontiguousarray(a)
    if not out.flags.aligned:
        out = out.copy()
    out = out.view(np.ndarray)
    out.flags.writeable = False
    return out


_DUMMIES = tuple(_readonly(np.zeros((1, 1), t)) for t in (np.uint8, np.uint16, np.uint32, np.uint64, np.float64))
_SLOT = {k.TABLE8: 0, k.BF16: 1, k.FP16: 1, k.FP32: 2, k.TF32: 2, k.INT32: 2, k.FP64: 3, k.REAL: 4}


def _source(a: Array, kind: int) -> tuple[Array, ...]:
    out = list(_DUMMIES)
    out[_SLOT[kind]] = _readonly(a)
    return tuple(out)


def _codes(a: Array, f: Format, side: str) -> Array:
    if a.dtype != f.storage:
        raise UsageError(f"{side} codes have dtype {a.dtype}; codes of {f.name} are {f.storage.name}")
    return a


def _new_records() -> tuple[Values, NDArray[np.int64]]:
    records = np.zeros(k.M_COUNT)
    records[[k.M_MIN_A, k.M_MIN_E]] = np.inf
    records[[k.M_MAX_A, k.M_MAX_E]] = -np.inf
    return records, np.full(k.M_COUNT, -1, np.int64)


def _new_unit(row: int, rows: int, col: int, cols: int, top: int, specs: int) -> _Unit:
    records, places = _new_records()
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
    )


# ---- joining ----


def _added(parts: list[Values]) -> Values:
    """Sums of all parts, each bucket added with one rounding; shape of one part, low words 0."""
    stacked = np.stack(parts)
    out = np.zeros_like(parts[0])
    for q in range(k.S_COUNT):
        for b in range(3):
            terms = stacked[:, q, b, :].ravel()
            # an ulp error beyond float64 leaves an infinite high word and a meaningless low one
            out[q, b, 0] = math.fsum(terms) if np.isfinite(terms).all() else stacked[:, q, b, 0].sum()
    return out


def _joined(buckets: Values, power: int) -> Fraction:
    """Σ of the three buckets of sums of d (power 1) or of products (power 2)."""
    total = Fraction(0)
    for value, exponent in zip(buckets, _BUCKET_EXPONENT, strict=True):
        if value:
            total += Fraction(float(value)) * Fraction(2) ** (exponent * power)
    return total


def _merge_moments(into: Values, part: Values) -> None:
    """(count, mean, Σ(d-mean)²) of a part into that of the whole."""
    n = into[0] + part[0]
    if part[0] == 0:
        return
    delta = part[1] - into[1]
    into[2] += part[2] + delta * delta * (into[0] * part[0] / n)
    into[1] += delta * (part[0] / n)
    into[0] = n


def _spread(moments: Values) -> Fraction:
    """Σ(d - mean)² over all buckets, each of which holds its own scale."""
    n = Fraction(float(moments[:, 0].sum()))
    if n == 0:
        return Fraction(0)
    scale = [Fraction(2) ** e for e in _BUCKET_EXPONENT]
    means = [Fraction(float(m)) * s for m, s in zip(moments[:, 1], scale, strict=True)]
    counts = [Fraction(float(c)) for c in moments[:, 0]]
    mean = sum((c * m for c, m in zip(counts, means, strict=True)), Fraction(0)) / n
    within = sum((Fraction(float(v)) * s * s for v, s in zip(moments[:, 2], scale, strict=True)), Fraction(0))
    return within + sum((c * (m - mean) ** 2 for c, m in zip(counts, means, strict=True)), Fraction(0))


def _better(i: int, records: Values, places: NDArray[np.int64], value: float, place: int) -> None:
    """Take a unit's record if it beats the one held: larger, smaller for minima, first for places alone."""
    if i in (k.M_NAN, k.M_INF):
        if place >= 0 and (places[i] < 0 or place < places[i]):
            places[i] = place
        return
    smaller = i in (k.M_MIN_A, k.M_MIN_E)
    ahead = value < records[i] if smaller else value > records[i]
    if ahead or (value == records[i] and 0 <= place < places[i]):
        records[i], places[i] = value, place


def _noise(parts: Values | None) -> NoiseMap | None:
    """Norms from sums of squares in three buckets."""
    if parts is None:
        return None

    with np.errstate(all="ignore"):
        (e, e_exponent), (r, r_exponent) = _norm(parts[k.B_DD : k.B_DD + 3]), _norm(parts[k.B_EE : k.B_EE + 3])
        ratio = np.ldexp(e / r, e_exponent - r_exponent)
        return NoiseMap(
            error=np.ldexp(e, e_exponent),
            reference=np.ldexp(r, r_exponent),
            nsr=np.where(e == 0, 0.0, np.where(r == 0, np.inf, ratio)),
            mismatches=parts[k.B_MIS].astype(np.int64),
            max_abs=parts[k.B_MAX].copy() if len(parts) > k.B_MAX else None,
        )


def _norm(buckets: Values) -> tuple[Values, NDArray[np.int64]]:
    """(mantissa, exponent) of the square root of three buckets of squares: the norm is mantissa·2^exponent."""
    if not buckets[1:].any():  # ordinary magnitudes: nothing near overflow or underflow
        return np.sqrt(buckets[0]), np.zeros(1, np.int64)
    middle, small, big = np.sqrt(buckets)
    mantissa = np.where(big > 0, np.hypot(big, middle * 2.0**-600), np.where(middle > 0, np.hypot(middle, small * 2.0**-600), small))
    return mantissa, np.where(big > 0, 600, np.where(middle > 0, 0, -600))


def _worst_of(noise: NoiseMap | None) -> tuple[int, float] | None:
    """(flat index, NSR) of the noisiest part; the first of equals."""
    if noise is None or not noise.error.size:
        return None
    nsr = noise.nsr.ravel()
    at = int(np.argmax(nsr))
    return at, float(nsr[at])


def _range(low: float, high: float) -> Range:
    return Range(float(low), float(high)) if low <= high else Range(None, None)
