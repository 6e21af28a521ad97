"""Element by element: the largest errors that may pass, and what must be added to a rounded value to leave the codes it may have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accuracy_eval.formats import Format, Values
from accuracy_eval.jit import kernel


@kernel
def _ulp(x: float, bits: int, emin: int) -> float:
    if x == 0.0:
        return math.ldexp(1.0, emin - bits)
    _, e = math.frexp(x)
    return math.ldexp(1.0, max(e - 1, emin) - bits)


@kernel
def thresholds(values: Any, budget: Any, bits: int, emin: int, top: float, rows: Any, columns: Any, allowed: Any) -> float:
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
def least_changes(values: Any, budget: Any, bits: int, emin: int, top: float, away: Any, toward: Any) -> None:
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


def ulps(x: Values, f: Format) -> Values:
    """Units in the last place of the format at x ≥ 0; of its largest number beyond that."""
    if f.kind == "int":
        return np.ones_like(x)
    safe = np.where(np.isfinite(x), x, f.max)
    e = np.where(safe == 0, f.emin, np.maximum(np.frexp(safe)[1] - 1, f.emin))
    return np.asarray(np.ldexp(1.0, e - f.fraction_bits))
