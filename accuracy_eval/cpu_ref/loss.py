"""Cross-entropy of rows of logits and its gradient in float64, with the error that roundings of their steps leave.

    l = x − log Σ e^x, L = −(1 − s)·l[target] − s·mean l
    dx = g·(e^l − (1 − s)·onehot − s/n)

s is the label smoothing, n the number of classes. Frameworks store l, and what the gradient of the loss puts into it, in the operands'
format; each such step counts in full (docs/budgets.md). Arithmetic in between is float32's, float64's for float64 operands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA, TYPICAL
from accuracy_eval.cpu_ref.reduce import reduce, reduce_limit
from accuracy_eval.cpu_ref.special import limit_ulps
from accuracy_eval.formats import Format, Values, arithmetic_format, round_to, ulp

_WALK = 0.3  # rms of one rounding in ulps

_NO_WARNING = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # Inf − Inf and 0·Inf are NaN; a budget may overflow


@dataclass(frozen=True)
class Logits:
    """Some rows of logits x [r, n], float64 values of `format`, their classes target [r] (negative: the row counts for nothing)."""

    x: Values
    target: NDArray[np.int64]
    smoothing: float
    format: str

    @property
    def inner(self) -> Format:
        """The format of the arithmetic."""
        return arithmetic_format(self.format)

    @property
    def counted(self) -> NDArray[np.bool_]:
        return self.target >= 0

    def at_target(self, values: Values) -> Values:
        """values [r, n] at each row's class, [r, 1]."""
        return np.take_along_axis(values, np.maximum(self.target, 0)[:, None], axis=1)

    def stored(self, values: Values) -> Values:
        """A step of the operands' format: half a step, doubled."""
        return ulp(values, self.format)

    def rounded(self, values: Values) -> Values:
        """Twice the error of a correct rounding of these values to the operands' format."""
        return TYPICAL * np.abs(round_to(values, self.format) - values)

    def log_softmax(self) -> tuple[Values, Values]:
        """l [r, n] and how far off the stored one may be, which log Σ e^(x − m) may be rounded for (torch's CPU does in 16 bits)."""
        top, log = self.x.max(axis=1, keepdims=True), reduce("logsumexp", self.x)[:, None]
        found = self.x - log
        off = reduce_limit("logsumexp", self.x, log[:, 0], self.inner)[:, None] + self.inner.eps * (top - self.x + np.abs(found))
        return found, off + self.stored(found) + self.stored(log - top) / 2


@dataclass(frozen=True)
class Label:
    """The target of n classes: 1 − smoothing at a row's own, and its share at all."""

    smoothing: float
    classes: int

    @property
    def share(self) -> float:
        return self.smoothing / max(self.classes, 1)

    @_NO_WARNING
    def stored(self, grad: Values, rows: int, fmt: Format) -> list[tuple[Values, Values]]:
        """What kernels that store steps put into a gradient, per unit of the row's factor grad / rows: (the sum of a row, its part at
        classes that are not the row's own), both [r]. grad [r]: of the loss, of which each row has its part if rows is not 1."""
        kept = partial(round_to, fmt=fmt)
        g, own, share = grad / rows, 1 - self.smoothing, np.full(len(grad), self.share)
        found = [(kept(g) / g, self.share * kept(g) / g), (np.ones(len(g)), kept(share))]
        for shares, owns in (
            (kept(g * share), kept(g * (own + share))),
            (kept(kept(grad * share) / rows), kept(kept(kept(grad * own) / rows) + kept(kept(grad * share) / rows))),
        ):
            found.append((((self.classes - 1) * shares + owns) / g, shares / g))
        return found


@_NO_WARNING
def losses(a: Logits) -> tuple[Values, Values]:
    """L of each row and the error before it is rounded, both [r]; 0 for rows that count for nothing.

    x − x[target] comes before the logarithm: where a class is almost certain its loss keeps its digits.
    """
    if not a.x.size:
        return np.zeros(len(a.x)), np.zeros(len(a.x))
    kept, n = a.at_target(a.x), a.x.shape[1]
    plain = np.isfinite(a.x).all(axis=1, keepdims=True)
    loss = np.where(plain, reduce("logsumexp", np.where(plain, a.x - kept, 0.0))[:, None], reduce("logsumexp", a.x)[:, None] - kept)
    logs, off = a.log_softmax()
    error = a.at_target(off) + a.stored((1 - a.smoothing) * loss)
    if a.smoothing:
        loss = loss + a.smoothing * (kept - reduce("mean", a.x)[:, None])
        total = logs.sum(axis=1, keepdims=True)
        adding = LAMBDA * _WALK * math.sqrt(n) * a.inner.eps * np.sqrt((logs**2).sum(axis=1, keepdims=True))
        error = error + a.smoothing / n * (off.sum(axis=1, keepdims=True) + adding + 2 * a.stored(total)) + a.stored(loss)
    return tuple(np.where(a.counted, v[:, 0], 0.0) for v in (loss, error))  # type: ignore[return-value]


@_NO_WARNING
def gradient(a: Logits, grad: Values) -> tuple[Values, Values, Values]:
    """dx [r, n], its error before it is rounded and what many elements may be off by together, in the root mean square; grad [r]: what
    multiplies each row's loss, the 1/rows of a mean included."""
    n, g = a.x.shape[1], np.where(a.counted, grad, 0.0)[:, None]
    hit = np.arange(n) == a.target[:, None]
    p = reduce("softmax", a.x)
    label = np.where(hit, 1 - a.smoothing, 0.0) + a.smoothing / max(n, 1)
    dx = np.where(a.counted[:, None], g * (p - label), 0.0)
    logs, off = a.log_softmax()
    arithmetic = p * (limit_ulps("exp", a.inner) + 2) * a.inner.eps
    moved = _moved(p, logs, off) + arithmetic
    scale = np.where(g == 0, 0.0, a.stored(g) / np.abs(g))  # of the row's factor, which may be a quotient that was stored
    put = scale * np.abs(g) * label + np.where(hit, a.stored(g), 0.0) + (2 * a.stored(g * a.smoothing / max(n, 1)) if a.smoothing else 0.0)
    put = put + a.inner.eps * np.abs(g) * label
    weight = np.abs(g) * (moved + p * scale + a.inner.smallest_normal)
    # what is put in is added up: under smoothing n terms of one sign and size, whose roundings may agree, as in the budget of a sum
    adding = a.inner.eps * (n / 4 + LAMBDA * _WALK * math.sqrt(n)) * np.abs(g) if a.smoothing else 0.0
    besides = put + p * (put.sum(axis=1, keepdims=True) + adding) + a.inner.eps * np.abs(dx)
    # roundings of l, of the log Σ in it and of e^l: two standard deviations; those that rows have in common, twice what they are
    log = a.x.max(axis=1, keepdims=True) - reduce("logsumexp", a.x)[:, None]
    of_logs = np.hypot(TYPICAL * a.stored(logs) / math.sqrt(12), np.hypot(TYPICAL * a.stored(log) / math.sqrt(12), a.rounded(log)))
    own = np.where(g == 0, 0.0, a.rounded(g) / np.abs(g)) + a.stored(np.ones(1)) / math.sqrt(3)
    together = besides + np.abs(g) * (p * (of_logs + own) + arithmetic + a.inner.smallest_normal)
    return dx, *(np.where(a.counted[:, None], e, 0.0) for e in (besides + weight, together))  # type: ignore[return-value]


def _moved(p: Values, logs: Values, off: Values) -> Values:
    """How far e^(l ± off) goes from p = e^l: not below 0 nor above 1, however large `off` is. Of −Inf it is 0."""
    up = np.where(p > 0, np.minimum(p * np.expm1(off), 1 - p), np.minimum(np.exp(logs + off), 1.0))
    return np.where(logs == -np.inf, 0.0, np.maximum(up, -p * np.expm1(-off)))
