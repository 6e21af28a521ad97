"""Layer norm and RMS norm over the last axis and their gradients in float64, with the error that roundings of their steps leave.

    h = (x − μ)·r, r = 1/√(mean (x − μ)² + eps), y = h·w + b        (RMS norm: μ = 0, no b)
    q = g·w, dx = r·(q − mean q − h·mean(q·h)), dw = Σ g·h, db = Σ g   (RMS norm: no mean q)

Sums run in float32 (float64 for such operands). h, q and the products under dw may be rounded to the operands' format, as unfused code
does, and so may the mean that a backward pass takes from the forward one; each such error is independent of the others.

dx may as well be made as r·q + b·x − b·μ − r·mean q with b = −r³·Σ q·(x − μ)/n, whose terms may be far larger than what is left of
them, and overflow or vanish where it does not.

Where squares or their sum leave the range of those sums, or are Inf, r is 0 on a healthy device, or NaN (of a running mean: Inf − Inf):
so are h, and what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.flush import lost_steps, stored, vanishing
from accuracy_eval.cpu_ref.magnitudes import norm
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import Values, arithmetic_format

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
        return arithmetic_format(self.format).eps

    @property
    def largest(self) -> float:
        """Of the sums."""
        return arithmetic_format(self.format).max

    def stored(self, values: Values) -> Values:
        """What a rounding to the operands' format may cost; wider formats are the arithmetic's own."""
        return stored(np.abs(values), self.format)


@dataclass(frozen=True)
class Result:
    """A tensor's values and the largest error of each; and what it may hold instead, asked for where it does.

    undetermined  whose NaN may as well be an Inf, and whose Inf any number
    """

    values: Values
    budget: Values
    reach: Callable[[], Reach]
    undetermined: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class _Steps:
    """mean [r, 1]; r [r, 1] with its relative error; h [r, n] with its error; rows [r, 1] whose squares may overflow."""

    mean: Values
    scale: Values
    relative: float
    h: Values
    error: Values
    beyond: NDArray[np.bool_]

    @property
    def scale_reach(self) -> Reach:
        return Reach.around(self.scale, self.scale * self.relative, self.beyond).or_zero(self.beyond)

    @property
    def h_reach(self) -> Reach:
        return Reach.around(self.h, self.error, self.beyond).or_zero(self.beyond)


def _walk(a: Norm, length: int, root: Values, value: Values) -> Values:
    """A float32 sum of `length` terms, the root of whose squares' sum is given."""
    allowed: Values = a.unit * (WALK * math.sqrt(length) * (root + np.abs(value)) + 2 * np.abs(value))
    return allowed + lost_steps(length, flushes=a.format != "float64")


def _mean(x: Values) -> Values:
    """Of rows, [r, 1]; of finite ones finite."""
    unit = np.abs(x).max(axis=1, keepdims=True)
    unit = np.where((unit > 0) & np.isfinite(unit), unit, 1.0)
    found: Values = (x / unit).mean(axis=1, keepdims=True) * unit
    return found


def _steps(a: Norm, *, saved: bool) -> _Steps:
    """saved: with a mean that was stored in the operands' format."""
    n = a.x.shape[1]
    mean = _mean(a.x) if a.centred else np.zeros((len(a.x), 1))
    c = a.x - mean
    scale = 1.0 / np.hypot(norm(c, 1) / math.sqrt(n), math.sqrt(a.eps))
    relative = a.unit * (WALK * math.sqrt(n) / 2 + 4)
    off = _walk(a, n, norm(c, 1) / math.sqrt(n), mean * math.sqrt(n)) / math.sqrt(n) if a.centred else np.zeros_like(mean)
    if a.centred and saved:
        off = off + a.stored(mean)
    h = c * scale
    size = norm(a.x, 1)
    beyond = size >= math.sqrt(a.largest) * (1 - n * a.unit)
    error = scale * (off + 2 * a.unit * np.abs(c)) + np.abs(h) * relative
    # h = 0 there leaves the bias; without one the result is 0, which `reach` lets pass by itself
    return _Steps(mean, scale, relative, h, np.where(beyond & a.centred, np.abs(h) + error, error), beyond)


_NO_WARNING = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # Inf − Inf and 0·Inf are NaN; a budget may overflow


@_NO_WARNING
def forward(a: Norm) -> Result:
    """y [r, n]."""
    s = _steps(a, saved=False)
    product = s.h * a.weight
    y = product if a.bias is None else product + a.bias
    budget = np.abs(a.weight) * (s.error + a.stored(s.h)) + a.unit * (np.abs(product) + np.abs(y))

    def reach() -> Reach:
        found = (s.h_reach.stored(a.format) * Reach.exactly(a.weight)).stored(a.format)
        return found if a.bias is None else found + Reach.exactly(a.bias)

    return Result(y, budget, reach)


def _expanded(a: Norm, s: _Steps, g: Values, along: Values) -> tuple[Values, NDArray[np.bool_]]:
    """What dx [r, n] made as r·q + b·x − b·μ − … is off by, and where a step of it may leave the range of the arithmetic."""
    n, q, mean = a.x.shape[1], g * a.weight, np.abs(s.mean)
    inner = arithmetic_format(a.format)
    cube, b, size = s.scale**3 / n, s.scale**2 * np.abs(along), np.abs(a.x) + mean

    def adding(terms: Values) -> Values:
        return _walk(a, n, norm(terms, 1), terms.sum(axis=1, keepdims=True))

    def below(size: Values) -> Values:
        return vanishing(size, inner.name)

    # b·t is made as (r·along)·(r·t): float64 has no r² of the largest operands either
    arm, spread = s.scale * np.abs(along), np.abs(a.x - s.mean)
    b_spread, b_size = arm * (s.scale * spread), arm * (s.scale * size)
    gone = 3 * s.relative + np.where(cube < inner.smallest_normal, 2.0, 0.0)
    added = cube * (adding(q * a.x) + mean * adding(q)) + below(b)
    error = added * spread + b_spread * gone + 2 * a.unit * (b_size * (1 + gone) + added * size)
    error = error + below(g * s.scale) * np.abs(a.weight) + below(q * s.scale) + below(b_size)
    sums = [np.abs(t).sum(axis=1, keepdims=True) for t in (g * a.x, q, q * a.x, q * mean, q * a.x * cube, q * mean * cube)]
    steps = [np.broadcast_to(t, q.shape) for t in (*sums, b_size * (1 + gone) + added * size, g * s.scale, n * q)]
    beyond = np.any([np.abs(t) >= inner.max for t in steps], axis=0)
    return error, np.asarray(beyond)


@_NO_WARNING
def backward(a: Norm, g: Values) -> dict[str, Result]:
    """dx [r, n], dweight [n], and with a bias dbias [n], for the upstream gradient g [r, n]."""
    s = _steps(a, saved=True)
    found = {"dx": _dx(a, s, g), "dweight": _dweight(a, s, g)}
    if a.bias is not None:
        db = g.sum(axis=0)
        db_error = _walk(a, len(g), norm(g, 0)[0], db)
        found["dbias"] = Result(db, db_error, lambda: _summed(a, Reach.exactly(g), 0, db, db_error))
    return found


def _summed(a: Norm, terms: Reach, axis: int, values: Values, error: Values) -> Reach:
    return terms.total(axis).in_sums(a.largest).narrowed(values, error)


def _dx(a: Norm, s: _Steps, g: Values) -> Result:
    rows, n = a.x.shape
    q = g * a.weight
    q_error, h_error = a.stored(q), s.error + a.stored(s.h)

    def mean(terms: Values, error: Values) -> tuple[Values, Values]:
        value = _mean(terms)
        spread = LAMBDA * norm(error, 1) / math.sqrt(3)
        adding = _walk(a, n, norm(terms, 1), n * value)
        return value, (spread + adding) / n

    along, along_error = mean(q * s.h, np.hypot(q * h_error, s.h * q_error))
    along_error = along_error + s.relative * np.abs(q * s.h).mean(axis=1, keepdims=True)
    level, level_error = mean(q, q_error) if a.centred else (np.zeros((rows, 1)), np.zeros((rows, 1)))
    inner = q - level - s.h * along
    size = np.abs(q) + np.abs(level) + np.abs(s.h * along)
    inner_error = q_error + level_error + np.abs(s.h) * along_error + np.abs(along) * h_error + a.stored(inner) + 4 * a.unit * size
    dx = s.scale * inner
    dx_error = s.scale * inner_error + np.abs(dx) * s.relative + np.where(s.beyond, np.abs(dx) + s.scale * size, 0.0)
    expanded, overflows = _expanded(a, s, g, along)
    dx_error = dx_error + expanded
    # Inf − Inf of the formula: another order of its steps gives Inf, and where no operand is Inf, the exact dx may be any number
    finite = (np.isfinite(a.x) & np.isfinite(g) & np.isfinite(a.weight)).all(axis=1, keepdims=True)
    given = np.isnan(a.x).any(axis=1, keepdims=True) | np.isnan(q).any(axis=1, keepdims=True)
    undetermined = (np.isnan(dx) & ~given) | (np.isinf(dx) & ~np.isfinite(inner) & finite)

    @_NO_WARNING
    def reach() -> Reach:
        upstream, h_reach = Reach.exactly(g), s.h_reach.stored(a.format)
        q_reach, one = (upstream * Reach.exactly(a.weight)).stored(a.format), Reach.exactly(np.full((1, 1), 1.0 / n))
        along_reach = _summed(a, q_reach * h_reach, 1, n * along, n * along_error) * one
        level_reach = _summed(a, q_reach, 1, n * level, n * level_error) * one if a.centred else Reach.exactly(np.zeros((1, 1)))
        found = (q_reach + -level_reach + -(h_reach * along_reach)).narrowed(inner, inner_error).stored(a.format) * s.scale_reach
        return Reach(np.where(overflows, -np.inf, found.low), np.where(overflows, np.inf, found.high), found.nan | overflows)

    return Result(dx, dx_error, reach, undetermined)


def _dweight(a: Norm, s: _Steps, g: Values) -> Result:
    terms, h_error = g * s.h, s.error + a.stored(s.h)
    spread = np.hypot(np.hypot(norm(g * h_error, 0), norm(a.stored(terms), 0)) / math.sqrt(3), norm(s.relative * terms, 0))
    dw = terms.sum(axis=0)
    dw_error = LAMBDA * spread[0] + _walk(a, len(g), norm(terms, 0)[0], dw) + np.where(s.beyond, np.abs(terms), 0.0).sum(axis=0)
    sign_open = np.isinf(g) & (np.abs(s.h) <= s.error)  # Inf times what is 0 but for its error
    undetermined = np.isnan(dw) & sign_open.any(axis=0) & ~np.isnan(np.where(sign_open, 0.0, terms).sum(axis=0))

    @_NO_WARNING
    def reach() -> Reach:
        return _summed(a, (Reach.exactly(g) * s.h_reach.stored(a.format)).stored(a.format), 0, dw, dw_error)

    return Result(dw, dw_error, reach, undetermined[None, :])
