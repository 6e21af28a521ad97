"""Sums of rows that meet at one place, as where tokens share a word or experts give their results back: out[i] = Σ weight[t]·rows[t] over
the t with place[t] = i, each addition (and a product before it) rounded as the contract says, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from accuracy_eval.contracts import Contract
from accuracy_eval.cpu_ref.hops import growth
from accuracy_eval.cpu_ref.overflow import Indices, Reached
from accuracy_eval.cpu_ref.reduce import reduce
from accuracy_eval.formats import Values, get_format, ulp

ELEMENTS = 1 << 22  # of rows held at a time


@dataclass(frozen=True)
class RowSums:
    """What is added.

    rows      numbers [u] of rows -> their values [u, columns]
    place     int64 [t]: where each row is added
    weights   float64 [t], each of which multiplies its row; None: rows are added as they are
    count     rows of the result
    format    of the result
    """

    rows: Callable[[Indices], Values]
    place: Indices
    weights: Values | None
    count: int
    columns: int
    contract: Contract
    format: str

    @cached_property
    def _order(self) -> tuple[Indices, Indices, Indices]:
        """Row numbers sorted by place; the first of each place among them, and how many there are."""
        repeats = np.bincount(self.place, minlength=self.count)
        return np.argsort(self.place, kind="stable"), np.cumsum(repeats) - repeats, repeats

    def _terms(self, places: Indices) -> Iterator[tuple[Indices, Values]]:
        """Some of the places and the terms that meet at each: [places, terms, columns]; those that nothing meets are left out."""
        order, first, repeats = self._order
        for many in np.unique(repeats[places]):
            step = max(1, ELEMENTS // max(int(many) * self.columns, 1))
            alike = places[repeats[places] == many]
            for start in range(0, len(alike) if many else 0, step):
                some = alike[start : start + step]
                which = order[first[some][:, None] + np.arange(many)]
                terms = self.rows(which.ravel()).reshape(*which.shape, self.columns)
                with np.errstate(invalid="ignore", over="ignore"):
                    yield some, terms if self.weights is None else terms * self.weights[which][:, :, None]

    def part(self, first: int, end: int) -> tuple[Values, Values]:
        """Rows first … end - 1 of the result and their error before they are rounded, [r, columns]; 0 where nothing is added."""
        values, error = np.zeros((2, end - first, self.columns))
        for places, terms in self._terms(np.arange(first, end)):
            growth, total = self._growth(terms.shape[1]), reduce("sum", np.moveaxis(terms, 1, 2))
            with np.errstate(invalid="ignore", over="ignore"):
                off = growth * np.abs(terms).sum(axis=1) + terms.shape[1] * self._coarse
            if growth and self.format == "float64":  # the truth itself is rounded
                off += ulp(total, self.format) / 2
            values[places - first], error[places - first] = total, off
        return values, error

    @property
    def _coarse(self) -> float:
        """A rounding of a product among the subnormal numbers of what is added."""
        return 0.0 if self.weights is None else get_format(self.contract.partial or "float64").smallest_subnormal / 2

    def _growth(self, terms: int) -> float:
        return growth(self.contract, self.format, terms + (self.weights is not None))

    def overflows(self, rows: Indices, columns: Indices) -> Reached:
        """What additions in some order may become, at elements of the result."""
        some, at = np.unique(rows, return_inverse=True)
        high, low, given = np.zeros((3, len(some), self.columns))
        for places, terms in self._terms(some):
            here, finite = np.searchsorted(some, places), np.where(np.isfinite(terms), terms, 0.0)
            high[here], low[here] = np.maximum(finite, 0.0).sum(axis=1), np.maximum(-finite, 0.0).sum(axis=1)
            given[here] = (~np.isfinite(terms)).any(axis=1)
            kept = (self.contract.largest or np.inf) * (1.0 - min(0.5, self._growth(terms.shape[1] + 1)))
            high[here], low[here] = high[here] / kept, low[here] / kept
        up, down, odd = (v[at, columns] for v in (high >= 1.0, low >= 1.0, given > 0))
        return Reached(up, down, odd, np.zeros(len(rows), np.bool_))
