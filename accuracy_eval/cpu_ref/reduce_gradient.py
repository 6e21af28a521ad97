"""The error that the gradient of a reduction may have before it is rounded to its format.

What a framework computes step by step is rounded to the operands' format at every step where that has 16 bits; the gradients of softmax,
logsumexp and norm are made from the stored result of the forward pass. A stored step costs half a step of its format, doubled
(docs/budgets.md). Arithmetic in between is float32's (float64's for float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accuracy_eval.contracts import LAMBDA, TYPICAL
from accuracy_eval.cpu_ref.reduce import Reduction, log_steps, reduce, reduce_limit
from accuracy_eval.cpu_ref.special import limit_ulps
from accuracy_eval.formats import Format, Values, arithmetic_format, get_format, round_to, ulp

WALK = LAMBDA * 0.3  # what a random walk of roundings reaches, in ulps of its size: the rms of one is 0.3


@dataclass(frozen=True)
class _Gradient:
    """x [r, n], grad [r, 1] or [r, n], truth [r, n]: the gradient; float64 values of `format`."""

    x: Values
    grad: Values
    truth: Values
    format: Format

    @property
    def inner(self) -> Format:
        """The format of the arithmetic."""
        return arithmetic_format(self.format)

    @property
    def steps(self) -> Values:
        """Two roundings of the arithmetic: a product or quotient by a number that is itself rounded."""
        return self.inner.eps * np.abs(self.truth)

    @property
    def unit(self) -> float:
        """A relative step where something may be stored: of the operands' format if that has 16 bits."""
        return (self.format if self.format.bits <= 16 else self.inner).eps

    def stored(self, values: Values) -> Values:
        """A step of the operands' format at these values."""
        return ulp(values, self.format) if self.format.bits <= 16 else self.inner.eps * np.abs(values)

    def kept(self, values: Values) -> Values:
        """What these values are once they are stored."""
        return round_to(values, self.format)

    def forward(self, r: Reduction) -> tuple[Values, Values]:
        """The stored result of the forward pass, [r, 1] or [r, n], and its error."""
        y = reduce(r, self.x)
        error = reduce_limit(r, self.x, y, self.format) + log_steps(r, self.x, y, self.format) + ulp(y, self.format) / 2
        return (y, error) if r.keeps_axis else (y[:, None], error[:, None])


def gradient_limit(r: Reduction, x: Values, grad: Values, truth: Values, fmt: str) -> Values:
    """Allowed |actual − truth| before the gradient is rounded to `fmt`, float64 [r, n]; Inf where nothing is promised.

    x [r, n], grad [r] or [r, n]: the exact operand values; truth [r, n]: `reduce_gradient`'s.
    """
    g = grad if r.keeps_axis else grad[:, None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return _LIMITS[r.name](r, _Gradient(x, g, truth, get_format(fmt)))


def gradient_typical(r: Reduction, x: Values, grad: Values, truth: Values, fmt: str) -> Values | None:
    """What many elements of rows that are drawn independently may be off by together, in the root mean square; None: nothing is known.

    Two standard deviations of every rounding, of logsumexp in 16 bits: of the stored y twice its own rounding, which rows of one size have
    in common; of the sum and the logarithm it is made of; of x − y and of the exponential. Arguments as in `gradient_limit`.
    """
    if r.name != "logsumexp" or get_format(fmt).bits > 16:
        return None
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        a = _Gradient(x, grad[:, None], truth, get_format(fmt))
        y = reduce(r, x)[:, None]
        own = TYPICAL * (round_to(y, a.format) - y)
        step = TYPICAL * a.unit / math.sqrt(12)
        forward = step * np.hypot(math.sqrt(2), np.abs(y - x.max(axis=1, keepdims=True)))
        off = np.hypot(np.hypot(own, forward), step * np.hypot(1.0, x - y))
        return np.where(truth == 0.0, 0.0, np.abs(truth) * off) + a.steps + np.abs(a.grad) * _lost_weight(a)


def _copied(r: Reduction, a: _Gradient) -> Values:
    return np.zeros_like(a.truth)


def _divided(r: Reduction, a: _Gradient) -> Values:
    return a.steps


def _shared(r: Reduction, a: _Gradient) -> Values:
    """The number of largest elements may be rounded to the operands' format before it divides."""
    count = (a.x == a.x.max(axis=1, keepdims=True, initial=-math.inf)).sum(axis=1, keepdims=True)
    return np.asarray(a.steps + np.abs(a.truth) * a.stored(count.astype(np.float64)) / np.maximum(count, 1))


def _weighted(r: Reduction, a: _Gradient) -> Values:
    """grad · e^(x − y): what y and the difference are off by, the exponential multiplies with."""
    y, error = a.forward(r)
    off = np.expm1(error + a.unit * np.abs(a.x - y)) + limit_ulps("exp", a.inner) * a.inner.eps + a.unit
    return a.steps + np.where(a.truth == 0.0, 0.0, np.abs(a.truth) * off) + np.abs(a.grad) * _lost_weight(a)


def _lost_weight(a: _Gradient) -> float:
    """A weight below the smallest normal value may be flushed, and is coarse among the subnormals of a short format."""
    return a.inner.smallest_normal + (a.format.smallest_subnormal if a.format.bits <= 16 else 0.0)


def _centred(r: Reduction, a: _Gradient) -> Values:
    """s·(grad − Σ grad·s), or grad·s − s·Σ grad·s with products that are stored first. Roundings of the stored s and of the products are
    independent but where elements of x are equal; what the arithmetic of s is off by may be common to a row."""
    s, off = a.forward(r)
    rounding = ulp(s, a.format)
    common = np.maximum(off - rounding, 0.0)
    terms, kept = a.grad * s, a.kept(s)
    product = ulp(np.abs(a.grad) * (s + off), a.format) / 2
    dot = terms.sum(axis=1, keepdims=True)
    spread = np.sqrt((((a.grad * rounding) ** 2 + product**2) / 3).sum(axis=1, keepdims=True))
    equal = [np.abs((found - terms).sum(axis=1, keepdims=True)) for found in (a.grad * kept, a.kept(a.grad * kept))]
    walk = math.sqrt(a.x.shape[1]) * a.inner.eps * np.sqrt((terms**2).sum(axis=1, keepdims=True))
    level = LAMBDA * spread + 2 * np.maximum(*equal) + WALK * walk
    level = level + (np.abs(a.grad) * common).sum(axis=1, keepdims=True) + a.inner.eps * np.abs(dot)
    difference = np.abs(a.grad - dot)
    allowed: Values = off * (difference + level) + s * (level + 2 * a.inner.eps * (np.abs(a.grad) + np.abs(dot))) + product + a.steps
    return allowed


def _normalised(r: Reduction, a: _Gradient) -> Values:
    """grad / y or x / y may be stored; y may be anything where its error reaches it."""
    y, error = a.forward(r)
    relative = np.where(error < y, error / (y - error), np.inf)
    quotient = np.maximum(np.abs(a.x) * a.stored(a.grad / y), np.abs(a.grad) * a.stored(a.x / y))
    return np.where(y == 0.0, 0.0, a.steps + np.abs(a.truth) * relative + quotient)


_LIMITS: dict[str, Callable[[Reduction, _Gradient], Values]] = {
    "sum": _copied,
    "mean": _divided,
    "max": _shared,
    "logsumexp": _weighted,
    "softmax": _centred,
    "norm": _normalised,
}
