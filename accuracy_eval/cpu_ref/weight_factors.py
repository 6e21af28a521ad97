"""Factors that all weights of a gradient share: what roundings of 16 bits hide in each element, and not in thousands.

The gradients of `logsumexp` and `cross_entropy` are d = g·(γ·e^(x − L) − c) but at targets: L is the logsumexp of a row, γ is 1, and c is
label smoothing / n or 0. The γ, and the factor of c, that fit a result best are linear in its errors. A kernel in 16 bits rounds L, x − L,
e^(x − L), c and d. Errors of single elements are independent but where x is the same; what they come to shrinks with their number. Those
of L are common to a row, and where rows are alike to all; those of c and g to everything. They are computed, for every way in which kernels
get there: a right result fits what some way gives, or lies between two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA, TYPICAL
from accuracy_eval.cpu_ref.reduce import reduce
from accuracy_eval.cpu_ref.special import evaluate
from accuracy_eval.formats import Format, Values, round_to, ulp

LEAST = 1024  # elements from which on something is said
ROWS, ELEMENTS = 1 << 12, 1 << 15  # that are looked at, in steps over the whole
_RMS = 1 / math.sqrt(12)  # of a rounding, in ulps

Logs = Iterator[Values]


@dataclass(frozen=True)
class Weights:
    """Rows of operands x [r, n], float64 values of `format`, and what their weights are put to.

    grad   [r] g
    share  c, of every element
    used   [r, n] or [r, 1]: elements that have this form
    logs   x -> L [r] in the ways kernels get to it, besides exactly
    ways   other (γ [r], c [r]) that stored steps give
    """

    x: Values
    grad: Values
    share: float
    used: NDArray[np.bool_]
    format: Format
    logs: Callable[[Values, Format], Logs]
    ways: Sequence[tuple[Values, Values]] = ()


def stored_logs(x: Values, fmt: Format) -> Logs:
    """L of a `logsumexp` that is stored, of terms, their sum and its logarithm of which each may be too."""
    top = x.max(axis=1)
    shifted = x - top[:, None]
    for terms in (evaluate("exp", shifted), round_to(evaluate("exp", round_to(shifted, fmt)), fmt)):
        total = terms.sum(axis=1)
        for log in (evaluate("log", t) for t in (total, round_to(total, fmt))):
            yield from (round_to(top + found, fmt) for found in (log, round_to(log, fmt)))


def stored_log_of_sum(x: Values, fmt: Format) -> Logs:
    """L where log Σ e^(x − max) is stored."""
    top = x.max(axis=1)
    yield top + round_to(reduce("logsumexp", x) - top, fmt)


def factors(a: Weights, actual: Values) -> dict[str, float]:
    """How far the factors that fit `actual` [r, n] best are from 1, in units of what healthy roundings allow: "weights" for γ, "smoothing"
    for c where there is one. Empty where too few elements say anything."""
    rows = np.flatnonzero(np.isfinite(a.x).all(axis=1) & (a.grad != 0))
    rows = rows[:: max(-(-len(rows) // ROWS), 1)]
    columns = slice(None, None, max(-(-len(rows) * a.x.shape[1] // ELEMENTS), 1))
    s = _Sample(replace(a, x=a.x[rows], grad=a.grad[rows], used=a.used[rows], ways=[(f[rows], c[rows]) for f, c in a.ways]), columns)
    given = actual[rows, columns]
    s.used &= np.isfinite(given)
    if s.used.sum() < LEAST:
        return {}
    fit = s.fit()
    found = _applied(fit, s.errors(given))
    uses = np.abs(found - np.clip(found, *s.ends(fit))) / s.allowed(fit)
    return dict(zip(("weights", "smoothing"), uses.tolist(), strict=False))


class _Sample:
    """Some rows, and of them columns at even distances."""

    def __init__(self, a: Weights, columns: slice) -> None:
        self.a, self.x, self.log, self.g = a, a.x[:, columns], reduce("logsumexp", a.x)[:, None], a.grad[:, None]
        self.p = evaluate("exp", self.x - self.log)
        self.truth = self.g * (self.p - a.share)
        # below the smallest normal number a rounding is no longer small
        small = (self.p < a.format.smallest_normal) | (np.abs(self.truth) < a.format.smallest_normal)
        self.used = np.broadcast_to(a.used, a.x.shape)[:, columns] & ~small

    def errors(self, values: Values) -> Values:
        """Of the elements that are used, in one line; so is what follows."""
        return np.asarray((values - self.truth)[self.used])

    @cached_property
    def steps(self) -> tuple[tuple[Values, NDArray[np.int64]], ...]:
        """Roundings of an element, in the root mean square, each with the number of what it follows from: one, where that is the same."""
        fmt, g = self.a.format, np.abs(self.g)
        shifted, out = self.x - self.log, self.truth
        found = (g * self.p * ulp(shifted, fmt), self.x), (g * ulp(self.p, fmt), round_to(self.p, fmt)), (ulp(out, fmt), round_to(out, fmt))
        return tuple((_RMS * step[self.used], np.unique(of[self.used], return_inverse=True)[1]) for step, of in found)

    def fit(self) -> Values:
        """[factors, elements]: times errors these are the factors that fit them best, less 1."""
        directions = [self.g * self.p, *([-self.g * self.a.share + 0 * self.p] if self.a.share else [])]
        # r elements that err alike say together what one does: the best weight of each is 1/r of its own
        deviation = np.sqrt(np.sum([step**2 * np.bincount(of)[of] for step, of in self.steps], axis=0))
        scaled = np.stack([d[self.used] for d in directions]) / deviation
        return np.asarray(np.linalg.pinv(_applied(scaled, scaled), rcond=1e-10, hermitian=True) @ scaled / deviation)

    def of_logs(self) -> Iterator[Values]:
        """Errors that the ways to L leave, where x − L and e^(x − L) are stored, and where they are not."""
        fmt = self.a.format
        for log in (self.log[:, 0], *self.a.logs(self.a.x, fmt)):
            shifted = self.x - log[:, None]
            for p in (evaluate("exp", shifted), evaluate("exp", round_to(shifted, fmt))):
                for weights in (p, round_to(p, fmt)):
                    yield self.errors(round_to(self.g * (weights - self.a.share), fmt))

    def of_ways(self) -> Iterator[Values]:
        """Errors that steps beside the weights leave."""
        for factor, share in self.a.ways:
            yield self.errors(self.g * (factor[:, None] * self.p - share[:, None]))

    def ends(self, fit: Values) -> tuple[Values, Values]:
        """[factors]: the lowest and the highest that these ways give."""
        none = np.zeros(len(fit))
        of_logs, of_ways = (np.stack([none, *(_applied(fit, e) for e in errors)]) for errors in (self.of_logs(), self.of_ways()))
        return of_logs.min(axis=0) + of_ways.min(axis=0), of_logs.max(axis=0) + of_ways.max(axis=0)

    def allowed(self, fit: Values) -> Values:
        """[factors]: eight standard deviations of elements, and two of an L that is stored in a way of its own."""
        elements = [np.linalg.norm(np.concatenate([np.bincount(of, np.abs(f) * step) for step, of in self.steps])) for f in fit]
        row, weight = np.nonzero(self.used)[0], (self.g * self.p)[self.used]
        step = _RMS * ulp(self.log[:, 0], self.a.format)
        rows = [np.linalg.norm(np.bincount(row, f * weight, minlength=len(step)) * step) for f in fit]
        return LAMBDA * np.array(elements) + TYPICAL * np.array(rows)


def _applied(fit: Values, errors: Values) -> Values:
    """[factors, ...] of errors [..., elements], in an order of addition that no library chooses."""
    return np.asarray((fit.reshape(len(fit), *[1] * (errors.ndim - 1), -1) * errors).sum(axis=-1))
