"""The router of expert layers in float64: scores of logits, the k best of each row, their weights, and the gradient of those.

    s = softmax(x) or sigmoid(x);  w = s[chosen], or w / Σ w;  dx follows from dw

Scores and weights are float32's arithmetic (float64's for float64 logits) whatever the logits' format, as training code keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.reduce import reduce, reduce_limit
from accuracy_eval.cpu_ref.special import evaluate, limit
from accuracy_eval.formats import Format, Values, arithmetic_format

Score = Literal["softmax", "sigmoid"]
Indices = NDArray[np.int64]

_NO_WARNING = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # Inf − Inf and 0·Inf are NaN


def best(x: Values, k: int) -> Indices:
    """[t, k]: columns of the k largest of each row, the largest first; NaN before all numbers, equal ones by their column."""
    nan = np.isnan(x)
    return np.lexsort((np.where(nan, 0.0, -x), ~nan), axis=1)[:, :k]


@dataclass(frozen=True)
class Routing:
    """Logits x [t, e] of `format`, and how chosen scores become weights."""

    x: Values
    score: Score
    normalised: bool
    format: str

    @property
    def inner(self) -> Format:
        """The format of the arithmetic."""
        return arithmetic_format(self.format)

    @cached_property
    def scores(self) -> tuple[Values, Values]:
        """s [t, e] and its error in the arithmetic's format."""
        with np.errstate(invalid="ignore"):
            if self.score == "softmax":
                s = reduce("softmax", self.x)
                return s, reduce_limit("softmax", self.x, s, self.inner)
            s = evaluate("sigmoid", self.x)
            return s, np.nan_to_num(limit("sigmoid", self.x, s, self.inner))

    def alike(self, a: Indices, b: Indices) -> NDArray[np.bool_]:
        """Which columns a and b [t, k] have scores that the arithmetic may not tell apart."""
        s, off = self.scores
        sa, sb, ea, eb = (np.take_along_axis(v, i, axis=1) for v, i in ((s, a), (s, b), (off, a), (off, b)))
        with np.errstate(invalid="ignore"):
            return np.asarray((np.abs(sa - sb) <= ea + eb) | (np.isnan(sa) & np.isnan(sb)))

    @_NO_WARNING
    def weights(self, chosen: Indices) -> tuple[Values, Values]:
        """w [t, k] and its error before it is rounded; another expert whose score is alike may stand for one."""
        s, off = (np.take_along_axis(v, chosen, axis=1) for v in self.scores)
        off = 3 * off
        if not self.normalised:
            return s, off
        total = s.sum(axis=1, keepdims=True)
        w = s / total
        return w, (off + w * off.sum(axis=1, keepdims=True)) / total + (2 + chosen.shape[1]) * self.inner.eps * w

    @_NO_WARNING
    def gradient(self, chosen: Indices, grad: Values) -> tuple[Values, Values]:
        """dx [t, e] and its error before it is rounded, for dw = grad [t, k]."""
        eps, k = self.inner.eps, chosen.shape[1]
        s, off = self.scores
        picked, picked_off = (np.take_along_axis(v, chosen, axis=1) for v in (s, off))
        ds, ds_off = grad, np.zeros_like(grad)
        if self.normalised:
            total = picked.sum(axis=1, keepdims=True)
            w, w_off = self.weights(chosen)
            mean = (grad * w).sum(axis=1, keepdims=True)
            mean_off = (np.abs(grad) * (w_off + k * eps * w)).sum(axis=1, keepdims=True)
            ds = (grad - mean) / total
            relative = picked_off.sum(axis=1, keepdims=True) / total + 4 * eps
            ds_off = (mean_off + (np.abs(grad) + np.abs(mean)) * relative) / total
        a, a_off = np.zeros_like(s), np.zeros_like(s)
        np.put_along_axis(a, chosen, ds, axis=1)
        np.put_along_axis(a_off, chosen, ds_off, axis=1)
        if self.score == "sigmoid":
            dx = a * s * (1 - s)
            return dx, np.abs(a) * (off + eps * s) + a_off * s + 3 * eps * np.abs(dx) + self.inner.smallest_normal * np.abs(a)
        dot = (a * s).sum(axis=1, keepdims=True)
        dot_off = (np.abs(a) * (off + k * eps * s) + a_off * s).sum(axis=1, keepdims=True)
        inner = a - dot
        dx = s * inner
        size = np.abs(a) + np.abs(dot)
        return dx, off * np.abs(inner) + s * (a_off + dot_off + 2 * eps * size) + eps * np.abs(dx) + self.inner.smallest_normal * size
