"""Bins of |ulp error|: their edges, octaves and quantiles. Integral bins are for distances between codes of one format."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.metrics import walk as k
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


@cache
def _octave_starts(integral: bool) -> tuple[NDArray[np.int64], Values]:
    """(first bin, upper edge) of every power of two: bins up to that edge and above the one before belong to it."""
    edges = _edges(integral)
    upper = np.zeros(k.HISTOGRAM)
    upper[1:-1] = 2.0 ** np.ceil(np.log2(edges[1:-1]))
    upper[-1] = np.inf
    starts = np.flatnonzero(np.diff(upper, prepend=-1.0))
    return starts, upper[starts]


def quantiles(counts: NDArray[np.int64], valid: int, maximum: int | float | None, *, integral: bool) -> dict[str, int | float]:
    """Nearest-rank quantiles of |ulp error|: the upper edge of the bin that holds the element, never above the maximum."""
    if not valid or maximum is None:
        return {}
    reached = np.cumsum(counts)
    uppers = _edges(integral)
    out: dict[str, int | float] = {}
    for name, share in QUANTILES.items():
        rank = -(-valid * share.numerator // share.denominator)
        edge = min(float(uppers[np.searchsorted(reached, rank)]), maximum)
        out[name] = int(edge) if integral else edge
    return out


def octaves(counts: NDArray[np.int64], *, integral: bool) -> tuple[tuple[float, int], ...]:
    """(upper edge, count) of every power of two that holds something."""
    starts, uppers = _octave_starts(integral)
    found = np.add.reduceat(counts, starts)
    return tuple((float(uppers[i]), int(found[i])) for i in np.flatnonzero(found))
