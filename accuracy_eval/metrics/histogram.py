"""Bins of |ulp error|: their edges, octaves and quantiles. Integral bins are for distances between codes of one format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.measured import Values

QUANTILES = {"ulp_p50": Fraction(1, 2), "ulp_p99": Fraction(99, 100), "ulp_p999": Fraction(999, 1000)}


@cache
def _edges(integral: bool) -> Values:
    """Upper edge of every histogram bin; that of the last is +inf, since it holds all beyond it."""
    first, key = (k.EXACT, k.BIN_EXACT) if integral else (1, k.BIN_ONE_REAL)
    out = np.arange(k.HISTOGRAM, dtype=np.float64)
    out[first:] = ((np.arange(k.HISTOGRAM - first) + key + 1) << k.SHIFT).view(np.float64)
    out[-1] = np.inf
    return out


@dataclass(frozen=True)
class Histogram:
    """Bins that hold something, ascending, and how many elements each holds."""

    bins: NDArray[np.int64]
    counts: NDArray[np.int64]
    integral: bool

    @classmethod
    def of(cls, parts: Iterable[NDArray[np.int64]], integral: bool) -> Histogram:
        """The sum of the walks' counts [GROUPS·NEAR + HISTOGRAM]: near bins are counted in groups, lest counts wait for each other.

        Takes the counts away: they are 0 afterwards.
        """
        found = []
        for part in parts:
            at = _occupied(part)
            found.append((at, part[at]))
            part[at] = 0
        at = np.concatenate([np.zeros(0, np.int64), *(a for a, _ in found)])
        counts = np.concatenate([np.zeros(0, np.int64), *(c for _, c in found)])
        bins, place = np.unique(np.where(at < k.GROUPS * k.NEAR, at % k.NEAR, at - k.GROUPS * k.NEAR), return_inverse=True)
        total = np.zeros(len(bins), np.int64)
        np.add.at(total, place, counts)
        return cls(bins, total, integral)

    @property
    def exact_steps(self) -> int:
        """Sum of the code distances that have a bin of their own; 0 where bins are not integral."""
        exact = self.bins < k.EXACT
        return int(self.bins[exact] @ self.counts[exact]) if self.integral else 0

    def quantiles(self, valid: int, maximum: int | float | None) -> dict[str, int | float]:
        """Nearest-rank quantiles of |ulp error|: the upper edge of the bin that holds the element, never above the maximum."""
        if not valid or maximum is None:
            return {}
        reached = np.cumsum(self.counts)
        out: dict[str, int | float] = {}
        for name, share in QUANTILES.items():
            rank = -(-valid * share.numerator // share.denominator)
            edge = min(float(_edges(self.integral)[self.bins[np.searchsorted(reached, rank)]]), maximum)
            out[name] = int(edge) if self.integral else edge
        return out

    def octaves(self) -> tuple[tuple[float, int], ...]:
        """(upper edge, count) of every power of two that holds something."""
        edges = _octave_edges(self.integral)[self.bins]
        if not len(edges):
            return ()
        starts = np.flatnonzero(np.concatenate([[True], edges[1:] != edges[:-1]]))
        return tuple(zip(edges[starts].tolist(), np.add.reduceat(self.counts, starts).tolist(), strict=True))


def _occupied(counters: NDArray[np.int64]) -> NDArray[np.int64]:
    """np.flatnonzero of counters that are nearly all 0, in a fifth of the time: the fold of sixteen rows says which columns to look at."""
    rows = counters.reshape(16, -1)
    columns = np.flatnonzero(np.bitwise_or.reduce(rows, axis=0))
    row, column = np.nonzero(rows[:, columns])
    found: NDArray[np.int64] = row * rows.shape[1] + columns[column]
    return found


@cache
def _octave_edges(integral: bool) -> Values:
    """The power of two at or above the upper edge of every bin."""
    edges = _edges(integral)
    upper = np.zeros(k.HISTOGRAM)
    upper[1:-1] = 2.0 ** np.ceil(np.log2(edges[1:-1]))
    upper[-1] = np.inf
    return upper
