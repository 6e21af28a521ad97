"""Roots of sums of squares, wherever in float64's range their terms are: squared after their rows were divided by the largest of them."""

from __future__ import annotations

import numpy as np

from accuracy_eval.formats import Values


def norm(x: Values, axis: int) -> Values:
    """Euclidean norms along an axis that stays, of length 1."""
    unit = _largest(x, axis)
    found: Values = np.sqrt(((x / unit) ** 2).sum(axis=axis, keepdims=True)) * unit
    return found


def root(x: Values, y: Values) -> Values:
    """√(x²·y²), squares taken element by element: x [m, k], y [k, n]."""
    rows, columns = _largest(x, 1), _largest(y, 0)
    found: Values = np.sqrt((x / rows) ** 2 @ (y / columns) ** 2) * rows * columns
    return found


def _largest(x: Values, axis: int) -> Values:
    largest = np.abs(x).max(axis=axis, keepdims=True, initial=0.0)
    return np.asarray(np.where((largest > 0) & np.isfinite(largest), largest, 1.0))
