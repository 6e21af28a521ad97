"""The measurement that a whole walk comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.aggregates import Aggregates
from accuracy_eval.metrics.compared import Compared
from accuracy_eval.metrics.histogram import Histogram
from accuracy_eval.metrics.joining import joined, noise, spread, worst_of
from accuracy_eval.metrics.ledger import Ledger
from accuracy_eval.metrics.measured import ClassCounts, Classes, Measured, NoiseMap, Range
from accuracy_eval.metrics.registry import METRICS, allclose_name
from accuracy_eval.metrics.totals import Totals
from accuracy_eval.records import WorstElement


@dataclass(frozen=True)
class _Noises:
    """Of rows, columns and tiles; None where there are too many."""

    rows: NoiseMap | None
    cols: NoiseMap | None
    tiles: NoiseMap | None


def measured(
    c: Compared, ledger: Ledger, histogram: Histogram, uses: Aggregates, specs: Sequence[tuple[float, float]], *, budgeted: bool
) -> Measured:
    """Every registered metric, and what else is said of the two arrays.

    uses   shares of their aggregate limits; specs: (rtol, atol) whose violations were counted
    """
    noises = _Noises(*(noise(parts) for parts in (ledger.row_parts, ledger.col_parts, ledger.tile_parts)))
    totals = _totals(c, ledger, histogram, uses, noises, budgeted=budgeted)
    metrics: dict[str, Any] = {name: metric.value(totals) for name, metric in METRICS.items() if metric.value}
    for (rtol, atol), violations in zip(specs, ledger.counts[k.C_ALLCLOSE :], strict=True):
        metrics[allclose_name(rtol, atol)] = int(violations)
    by_size, by_ulp = ledger.tops
    return Measured(
        shape=c.shape,
        actual_format=c.actual.name,
        expected_format="float64" if c.expected is None else c.expected.name,
        reference=c.expected is None,
        metrics=metrics,
        classes=_classes(ledger),
        worst=c.worst(by_size),
        worst_ulp=c.worst(by_ulp),
        extremes=tuple(c.element(int(ledger.places[i]), *found) for i, found in ledger.extremes.items()),
        ulp_histogram=histogram.octaves(),
        rows=noises.rows,
        cols=noises.cols,
        tiles=noises.tiles,
        actual_range=_range(ledger.records[k.M_MIN_A], ledger.records[k.M_MAX_A]),
        expected_range=_range(ledger.records[k.M_MIN_E], ledger.records[k.M_MAX_E]),
    )


def _totals(c: Compared, ledger: Ledger, histogram: Histogram, uses: Aggregates, noises: _Noises, *, budgeted: bool) -> Totals:
    counts, sums = ledger.counts, ledger.sums()
    by_size, by_ulp = ledger.tops
    valid = int(counts[k.C_VALID])
    square = {q: joined(sums[q], 2) for q in (k.S_AA, k.S_EE, k.S_DD, k.S_AE, k.S_DE)}
    maximum = _largest_ulp(c, c.worst(by_ulp[:1])) if valid else None
    countable = bool(np.isfinite(sums[[k.S_U, k.S_AU]]).all())
    nonzero = valid - int(counts[k.C_ZERO_REFERENCE])
    n = c.rows * c.cols
    reference = c.mode == k.REFERENCE and n > 0
    return Totals(
        n=n,
        valid=valid,
        aa=square[k.S_AA],
        ee=square[k.S_EE],
        dd=square[k.S_DD],
        ae=square[k.S_AE],
        de=square[k.S_DE],
        bias=joined(sums[k.S_SG], 1),
        spread=spread(ledger.moments),
        ulp_sum=joined(sums[k.S_U], 1) if countable else None,
        ulp_abs=joined(sums[k.S_AU], 1) + histogram.exact_steps if countable else None,
        ulp_max=maximum,
        ulp_max_at=by_ulp[0].flat if by_ulp else None,
        ulp_quantiles=histogram.quantiles(valid, maximum),
        max_abs=-by_size[0].minus_size if by_size else 0.0,
        max_abs_at=by_size[0].flat if by_size else None,
        max_rel=float(ledger.records[k.M_REL]) if nonzero else None,
        max_rel_at=ledger.place(k.M_REL),
        max_scaled=float(ledger.records[k.M_SCALED]),
        inner_max=float(ledger.records[k.M_INNER]) if reference else None,
        inner_max_at=ledger.place(k.M_INNER),
        budget_max=float(ledger.records[k.M_RATIO]) if budgeted else None,
        budget_max_at=ledger.place(k.M_RATIO) if budgeted else None,
        over_budget=int(counts[k.C_OVER_BUDGET]) if budgeted else None,
        mismatches=int(counts[k.C_MISMATCH]),
        up=int(counts[k.C_UP]),
        down=int(counts[k.C_DOWN]),
        zero_sign=int(counts[k.C_ZERO_SIGN]),
        nonzero_at_zero=int(counts[k.C_NONZERO_AT_ZERO]),
        zero_references=int(counts[k.C_ZERO_REFERENCE]),
        nonfinite=int(counts[k.C_NONFINITE]),
        worst_row=worst_of(noises.rows) if valid else None,
        worst_col=worst_of(noises.cols) if valid else None,
        worst_tile=_worst_tile(noises.tiles, c.cols) if valid else None,
        uses=uses,
        shape=c.shape,
    )


def _largest_ulp(c: Compared, worst: Sequence[WorstElement]) -> int | float:
    """Of the worst element, if any: between codes of one format exact, which the walk's float64 is not at distances beyond 2^53."""
    if c.mode == k.SAME:
        return c.code_distance(worst[0].actual_code, worst[0].expected_code) if worst else 0
    return abs(worst[0].ulp) if worst else 0.0


def _worst_tile(tiles: NoiseMap | None, cols: int) -> tuple[tuple[int, int], float] | None:
    found = worst_of(tiles)
    if found is None:
        return None
    row, col = divmod(found[0], -(-cols // k.TILE))
    return (row, col), found[1]


def _classes(ledger: Ledger) -> Classes:
    c = ledger.counts
    return Classes(
        actual=ClassCounts(*map(int, c[k.C_CLASS_A : k.C_CLASS_A + 7])),
        expected=ClassCounts(*map(int, c[k.C_CLASS_E : k.C_CLASS_E + 7])),
        nan_actual_only=int(c[k.C_NAN_A]),
        nan_expected_only=int(c[k.C_NAN_E]),
        inf_actual_only=int(c[k.C_INF_A]),
        inf_expected_only=int(c[k.C_INF_E]),
        first_nan_actual_only=ledger.place(k.M_NAN_A),
        first_nan_expected_only=ledger.place(k.M_NAN_E),
        first_inf_actual_only=ledger.place(k.M_INF_A),
        first_inf_expected_only=ledger.place(k.M_INF_E),
    )


def _range(low: float, high: float) -> Range:
    return Range(float(low), float(high)) if low <= high else Range(None, None)
