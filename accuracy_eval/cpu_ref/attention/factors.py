"""A factor that all elements of a head share, of its values or of its scores: what roundings of 8-bit weights hide in each single one.

Let D be what such a factor moves O by, O itself for one of the values, Σ P·(S − Σ P·S)·V for one of the scores. The one that fits an output
best is 1 + ⟨out − O, D⟩/⟨D, D⟩. An error of a weight moves it by ⟨V, D⟩ of its key, or by ⟨V − O, D⟩ where the sum is of rounded weights.
Those errors are independent: the deviation of what they come to shrinks with the number of keys and queries, a factor does not.

What is not independent counts in full. Rounding is unbiased to first order alone: a smooth spread of weights gains up to the square of half
a step, 2^-8. Weights within a few steps of each other round alike: the fit of the roundings themselves counts, at the worst of eight places
that the largest weight may have in its binade, for it may be found late. Weights below the smallest of their format are lost together. The
largest weight of every row is p_scale, and what that is rounded by counts twice, for it is as large of those that were the largest before
it; so does the rounding of the output, which is known. Sums in few bits lose alike. Rows that are equal err alike too: none of this holds
for operands that repeat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.attention.head import Head
from accuracy_eval.cpu_ref.attention.problem import Attention, Narrow
from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.formats import Values, get_format, round_to, ulp
from accuracy_eval.threads import map_threads

FACTORS = ("values", "scores")
PLACES = 8  # of the largest weight within its binade


@dataclass(frozen=True)
class Factor:
    """The head, batch and number, whose factor is furthest from 1, in units of what healthy roundings of its weights allow."""

    use: float
    head: tuple[int, int]


def factors(a: Attention, out: Values, fmt: str) -> dict[str, Factor]:
    """Per factor the head that shows it most.

    out [b, h, s, d]: what a kernel gave, stored in `fmt`. A factor that no head's finite elements show has no entry.
    """
    narrow, heads = a.narrow, [(i, j) for i in range(a.q.shape[0]) for j in range(a.q.shape[1])]
    if narrow is None:
        return {}

    def found(at: tuple[int, int]) -> list[float]:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return _of_head(Head(a, *at), narrow, out[at], fmt)

    with one_thread():
        uses = list(map_threads(found, heads))
    largest = {}
    for name, of_heads in zip(FACTORS, zip(*uses, strict=True), strict=True):
        known = [Factor(use, at) for use, at in zip(of_heads, heads, strict=True) if math.isfinite(use)]
        if known:
            largest[name] = max(known, key=lambda f: f.use)
    return largest


def _of_head(head: Head, narrow: Narrow, out: Values, fmt: str) -> list[float]:
    scores = np.where(head.seen, head.s, 0.0)
    centred = head.p * (scores - (head.p * scores).sum(axis=1, keepdims=True))
    usable = np.isfinite(out).all(axis=1) & np.isfinite(head.o).all(axis=1) & ~head.coarse[:, 0] & np.isfinite(head.v).all()
    use = partial(_use, head, narrow, out, fmt)
    return [use(np.where(usable[:, None], d, 0.0)) for d in (head.o, centred @ head.v)]


def _use(head: Head, narrow: Narrow, out: Values, fmt: str, d: Values) -> float:
    """How much of the distance that is allowed from 1 the factor with the change `d` [s, d] uses; NaN where there is no change."""
    p, o, power = head.p, head.o, float((d * d).sum())
    if not 0.0 < power < math.inf:
        return math.nan
    here = d.any(axis=1)
    p, d, o, v, off = p[here], d[here], o[here], head.v, (out - head.o)[here]
    moves = d @ v.T  # ⟨V, D⟩ of every query and key; of a sum of rounded weights it is ⟨V − O, D⟩
    moves_both = moves - (d * o).sum(axis=1, keepdims=True)
    most = np.maximum(np.abs(moves), np.abs(moves_both))
    top = p == p.max(axis=1, keepdims=True)
    half = np.where(top | (p == 0.0), 0.0, narrow.half(p))
    of_output = (round_to(o, fmt) - o) * d
    variance = ((half * most) ** 2).sum() / 3 + ((p * head.random[here] * moves_both) ** 2).sum() + ((ulp(o, fmt) * d) ** 2).sum() / 12
    step, width = head.a.adding
    root = np.sqrt(p**2 @ v**2)
    fixed = (
        _together(np.where(top, 0.0, p), moves, moves_both) * (get_format(narrow.format).eps / 2) ** 2
        + _together(np.where(half > p, p, 0.0), moves, moves_both)
        + _alike(np.where(top, 0.0, p), p.max(axis=1, keepdims=True), narrow, moves, moves_both)
        + 2 * _together(np.where(top, p, 0.0), moves, moves_both) * _of_largest(narrow)
        + (p * head.common[here] * np.abs(moves_both)).sum()
        + step * p.shape[1] / (2 * width) * (np.abs(d) * np.maximum(root, np.abs(o))).sum()
        + 2 * abs(of_output.sum())
    )
    return float(abs((off * d).sum()) / (LAMBDA * math.sqrt(variance) + fixed))


def _together(weights: Values, *moves: Values) -> float:
    """What losing or gaining these weights [s, t] moves the fit by, row by row."""
    return float(np.maximum.reduce([np.abs((weights * m).sum(axis=1)) for m in moves]).sum())


def _alike(p: Values, largest: Values, narrow: Narrow, *moves: Values) -> float:
    """What the roundings of these weights [s, t] beside the largest of their rows move the fit by, where they are not independent."""
    worst = 0.0
    for place in range(PLACES):
        unit = largest / (narrow.scale * 2.0 ** (-place / PLACES))
        error = round_to(p / unit, narrow.format) * unit - p
        worst = max(worst, *(abs(float((error * m).sum())) for m in moves))
    return worst


def _of_largest(narrow: Narrow) -> float:
    """The relative rounding error of a weight of 1."""
    largest: NDArray[np.float64] = np.array([narrow.scale])
    return float(abs(round_to(largest, narrow.format)[0] / narrow.scale - 1))
