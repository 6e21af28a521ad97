"""Layer norm and RMS norm over the last axis and their gradients in float64, with the error that roundings of their steps leave.

    h = (x − μ)·r, r = 1/√(mean (x − μ)² + eps), y = h·w + b        (RMS norm: μ = 0, no b)
    q = g·w, dx = r·(q − mean q − h·mean(q·h)), dw = Σ g·h, db = Σ g   (RMS norm: no mean q)

Sums run in float32 (float64 for such operands). h, q and the products under dw may be rounded to the operands' format, as unfused code
does; each such error is independent of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.formats import Values, get_format, ulp

WALK = LAMBDA * 0.3  # what a random walk of roundings reaches, in ulps of its size: the rms of one is 0.3


@dataclass(frozen=True)
class Norm:
    """x [r, n], weight [n], bias [n] or None: float64 values of `format`. centred: subtract the mean."""

    x: Values
    weight: Values
    bias: Values | None
    centred: bool
    eps: float
    format: str

    @property
    def unit(self) -> float:
        """A relative step of the arithmetic in between."""
        return 2.0**-52 if self.format == "float64" else 2.0**-23

    def stored(self, values: Values) -> Values:
        """What a rounding to the operands' format may cost: half a step, doubled (docs/budgets.md); wider formats are the arithmetic's."""
        return ulp(values, self.format) if get_format(self.format).bits <= 16 else np.abs(values) * self.unit


@dataclass(frozen=True)
class _Steps:
    """r [r, 1] with its relative error; h [r, n] with its error."""

    scale: Values
    relative: float
    h: Values
    error: Values


def _walk(a: Norm, length: int, energy: Values, value: Values) -> Values:
    """A float32 sum of `length` terms whose squares add up to `energy`."""
    allowed: Values = a.unit * (WALK * math.sqrt(length) * (np.sqrt(energy) + np.abs(value)) + 2 * np.abs(value))
    return allowed


def _steps(a: Norm) -> _Steps:
    n = a.x.shape[1]
    mean = a.x.mean(axis=1, keepdims=True) if a.centred else np.zeros((len(a.x), 1))
    c = a.x - mean
    scale = 1.0 / np.sqrt((c**2).mean(axis=1, keepdims=True) + a.eps)
    relative = a.unit * (WALK * math.sqrt(n) / 2 + 4)
    off = _walk(a, n, (c**2).sum(axis=1, keepdims=True) / n, mean * math.sqrt(n)) / math.sqrt(n) if a.centred else np.zeros_like(mean)
    h = c * scale
    return _Steps(scale, relative, h, scale * (off + 2 * a.unit * np.abs(c)) + np.abs(h) * relative)


_NO_WARNING = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # Inf − Inf and 0·Inf are NaN; a budget may overflow


@_NO_WARNING
def forward(a: Norm) -> tuple[Values, Values]:
    """y [r, n] and the error before it is rounded."""
    s = _steps(a)
    product = s.h * a.weight
    y = product if a.bias is None else product + a.bias
    return y, np.abs(a.weight) * (s.error + a.stored(s.h)) + a.unit * (np.abs(product) + np.abs(y))


@_NO_WARNING
def backward(a: Norm, g: Values) -> dict[str, tuple[Values, Values]]:
    """dx [r, n], dweight [n], and with a bias dbias [n], each with its error, for the upstream gradient g [r, n]."""
    s, (rows, n) = _steps(a), a.x.shape
    q = g * a.weight
    q_error, h_error = a.stored(q), s.error + a.stored(s.h)

    def mean(terms: Values, error: Values) -> tuple[Values, Values]:
        value = terms.mean(axis=1, keepdims=True)
        spread = LAMBDA * np.sqrt((error**2).sum(axis=1, keepdims=True) / 3)
        adding = _walk(a, n, (terms**2).sum(axis=1, keepdims=True), n * value)
        return value, (spread + adding) / n

    along, along_error = mean(q * s.h, np.sqrt((q * h_error) ** 2 + (s.h * q_error) ** 2))
    along_error = along_error + s.relative * np.abs(q * s.h).mean(axis=1, keepdims=True)
    level, level_error = mean(q, q_error) if a.centred else (np.zeros((rows, 1)), np.zeros((rows, 1)))
    inner = q - level - s.h * along
    size = np.abs(q) + np.abs(level) + np.abs(s.h * along)
    dx_error = s.scale * (q_error + level_error + np.abs(s.h) * along_error + np.abs(along) * h_error + a.stored(inner) + 4 * a.unit * size)
    terms = g * s.h
    spread = np.sqrt(((g * h_error) ** 2 + a.stored(terms) ** 2).sum(axis=0) / 3 + ((s.relative * terms) ** 2).sum(axis=0))
    dw = terms.sum(axis=0)
    found = {
        "dx": (s.scale * inner, dx_error + np.abs(s.scale * inner) * s.relative),
        "dweight": (dw, LAMBDA * spread + _walk(a, rows, (terms**2).sum(axis=0), dw)),
    }
    if a.bias is not None:
        db = g.sum(axis=0)
        found["dbias"] = (db, _walk(a, rows, (g**2).sum(axis=0), db))
    return found
