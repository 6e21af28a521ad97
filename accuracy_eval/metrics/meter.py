"""Measuring two arrays in one pass: `measure` for whole arrays, `Meter` for panels of rows that arrive in order.

An array of any shape is seen as [rows, cols] with cols = shape[-1]. Work is cut by the shape alone into bands of rows and, across a
band, units of about 2^19 elements; units run on threads and are joined in order. Results do not depend on the height of the panels
nor on the number of threads. Memory: the panel, one band for rows that do not fill one yet, and a few MB a thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Overflow, get_format
from accuracy_eval.jit import thread_count
from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.aggregates import NO_USES, AggregateMeter
from accuracy_eval.metrics.arguments import DUMMIES, Array, checked_codes, geometry, parameters, readonly, source, tables
from accuracy_eval.metrics.compared import Compared
from accuracy_eval.metrics.histogram import Histogram
from accuracy_eval.metrics.ledger import Ledger
from accuracy_eval.metrics.measured import Measured, Values
from accuracy_eval.metrics.outcome import measured
from accuracy_eval.metrics.units import EXTREMES, Scratch, Unit, give_back, new_unit, spare
from accuracy_eval.metrics.walk import walk
from accuracy_eval.records import Coded


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
        if top < 1:
            raise UsageError(f"top is {top}; at least one worst element is kept")
        if reference and expected_format is not None:
            raise UsageError(f"expected_format is {expected_format!r} although expected is real values; leave it out")
        actual = get_format(actual_format)
        expected = None if reference else get_format(expected_format or actual)
        self.compared = c = Compared(tuple(int(n) for n in shape), actual, expected, overflow or actual.overflow)
        self.rows, self.cols = c.rows, c.cols
        self._specs = tuple((float(r), float(a)) for r, a in allclose)
        self._top = top
        self._ip, self._fp = parameters(actual, expected, c.mode, c.overflow)
        self._tables = tables(actual), tables(expected or actual)
        self._band, self._width = geometry(self.rows, self.cols)
        self._seen = 0
        self._held: tuple[Array, Array, Array | None] | None = None
        self._held_rows = 0
        self._budgeted: bool | None = None
        self._uses: AggregateMeter | None = None
        self._free: SimpleQueue[Scratch] = SimpleQueue()
        self._all_scratch: list[Scratch] = []
        self._histogram: Histogram | None = None
        self._ledger = Ledger(self.rows, self.cols, specs=len(self._specs), top=top)

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
            checked_codes(actual, self.compared.actual, "actual"),
            checked_codes(expected, self.compared.expected, "expected") if self.compared.expected else np.asarray(expected, np.float64),
            None if budget is None else np.asarray(budget, np.float64),
        )
        if typical is not None:
            self._uses = self._uses or AggregateMeter(self.rows, self.cols, self.compared.actual)
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
        specs = np.array(self._specs, np.float64).reshape(-1, 2)

        def run(place: tuple[int, int, int, int]) -> Unit:
            row, rows, col, cols = place
            try:
                scratch = self._free.get_nowait()
            except Empty:
                scratch = spare()
                self._all_scratch.append(scratch)
            unit = new_unit(first_row + row, rows, col, cols, self._top, len(self._specs))
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
                self._ledger.join(run(place))
            return
        # not map_threads: units are joined, in order, while later ones are still walked
        with ThreadPoolExecutor(threads) as pool:
            for unit in pool.map(run, places):
                self._ledger.join(unit)

    def _places(self, rows: int) -> Iterator[tuple[int, int, int, int]]:
        for row in range(0, rows, self._band):
            for col in range(0, self.cols, self._width):
                yield row, min(self._band, rows - row), col, min(self._width, self.cols - col)

    def result(self) -> Measured:
        """What was found. UsageError if rows are missing or a budget was negative or NaN."""
        if self._seen != self.rows and self.cols:
            raise UsageError(
                f"rows {self._seen}…{self.rows - 1} of {self.rows} were never given; measure all of them before asking for a result"
            )
        bad = self._ledger.counts[k.C_BAD_BUDGET]
        if bad:
            raise UsageError(f"{bad} budgets are negative or NaN; a budget is a number >= 0")
        uses = self._uses.result() if self._uses else NO_USES
        return measured(self.compared, self._ledger, self._counted(), uses, self._specs, budgeted=bool(self._budgeted))

    def _counted(self) -> Histogram:
        """The histogram; the scratches go to other meters."""
        if self._histogram is None:
            self._histogram = Histogram.of((s.histogram for s in self._all_scratch), self.compared.mode == k.SAME)
            give_back(self._all_scratch)
            self._all_scratch.clear()
        return self._histogram
