"""Arithmetic of rows of scores and weights, of any size, Inf and NaN among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.attention.problem import Flags
from accuracy_eval.cpu_ref.special import evaluate
from accuracy_eval.formats import Values


def beside(x: NDArray[Any], last: Any) -> NDArray[Any]:
    """x [m, n] with one more column of that value."""
    return np.concatenate([x, np.full((len(x), 1), last, x.dtype)], axis=1)


def product_of_seen(p: Values, seen: Flags, v: Values) -> Values:
    """p·v, p [s, t] and v [t, d], in which Inf and NaN of v count where their key is seen alone, whatever its weight."""
    finite = np.isfinite(v)
    found: Values = p @ np.where(finite, v, 0.0)
    if finite.all():
        return found
    for end in (np.inf, -np.inf, np.nan):
        here = np.isnan(v) if np.isnan(end) else v == end
        found = np.where(seen.astype(np.float32) @ here.astype(np.float32) > 0, found + end, found)
    return found


def log_sum_exp(s: Values) -> Values:
    """log Σ e^s of rows, [m, 1]; ±Inf where the largest is."""
    top: Values = s.max(axis=1, keepdims=True)
    from_zero = np.where(np.isinf(top), 0.0, top)
    sums = evaluate("exp", s - from_zero).sum(axis=1, keepdims=True)
    return np.asarray(np.where(np.isinf(top), top, top + evaluate("log", sums)))


def log_sum_exp_of_others(s: Values) -> Values:
    """log Σ e^s over the other elements of a row, for each element."""
    first = s.argmax(axis=1)[:, None]
    rest = s.copy()
    np.put_along_axis(rest, first, -np.inf, axis=1)
    every = log_sum_exp(s)
    with np.errstate(invalid="ignore"):
        found = every + evaluate("log1p", -evaluate("exp", s - every))
    found = np.where(np.isinf(every), every, found)
    np.put_along_axis(found, first, log_sum_exp(rest), axis=1)
    return np.asarray(found)
