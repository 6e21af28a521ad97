"""Causes inside a matrix product: a sample of elements is computed again under each hypothesis, and one must explain the error.

A hypothesis with prediction P explains the error when ‖X - P‖² is at most 1 % of D (plus 2F; see `sampling`), or when P rounded gives
the output's very codes. If two different hypotheses explain it, none is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import numpy as np

from accuracy_eval.diagnose.coded import lost_places, misplaced_scales
from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.diagnose.hypotheses import Hypothesis, layouts, narrow_sums, overread, simple_hypotheses
from accuracy_eval.diagnose.sampling import Sample, sample

REST = 0.01  # of the error's energy may remain unexplained
FEWEST_ELEMENTS = 16  # of a sample
CLEAR = 10.0  # the error must have this many times the energy of output rounding before energies are compared


def explanations(look: Look) -> list[Hypothesis]:
    """The hypothesis that explains the sampled error, alone or, for the last k, with its twin; empty where none does or two differ."""
    if look.context.lane == "coded":
        return lost_places(look) or misplaced_scales(look)
    s = sample(look)
    if s is None:
        return []
    forward = look.context.op == "gemm" and look.context.direction != "bwd"
    found = _fitting(s, chain(simple_hypotheses(s), layouts(s) if forward else ()))
    if not found:  # what no other explains: many hypotheses, or such that do not predict every element
        found = [f for h in overread(s) for f in _fitting_in_part(s, h)] or _fitting(s, narrow_sums(s))
    found.sort(key=lambda f: f[0])
    named: list[Hypothesis] = []
    for rest, h in found:
        if not named or (h.code != named[0].code and _twins(s, h, named[0])):
            named.append(h)
        elif h.code != named[0].code and rest <= 4 * found[0][0] + s.rounding:
            return []
    return named[:2]


Fit = tuple[float, Hypothesis]  # ‖X - P‖² of a hypothesis that explains the error


def _fitting(s: Sample, hypotheses: Iterable[Hypothesis]) -> list[Fit]:
    """Those that explain the error of the sample."""
    if not np.isfinite(s.x).all() or s.energy == 0 or s.x.size < FEWEST_ELEMENTS:
        return []
    wrong = ~s.matches(s.t)
    clear = s.energy >= CLEAR * s.rounding
    narrow = s.fmt.bits <= 16 and int(wrong.sum()) >= 24
    if not clear and not narrow:
        return []
    found: list[Fit] = []
    for h in hypotheses:
        rest = s.rest(h.prediction)
        by_energy = clear and rest <= REST * s.energy + 2 * s.rounding and s.explains(h.prediction)
        same = s.matches(h.prediction)
        by_codes = (
            narrow and rest < s.energy / 2 and same[wrong].mean() >= 0.9 and (same[~wrong].mean() >= 0.9 if not wrong.all() else True)
        )
        if by_energy or by_codes:
            found.append((rest, h))
    return found


def _fitting_in_part(s: Sample, h: Hypothesis) -> list[Fit]:
    """The hypothesis if it explains the error of those rows and columns whose result it predicts."""
    known = np.isfinite(h.prediction)
    rows, cols = (np.asarray(known.any(axis=axis)) for axis in (1, 0))
    return _fitting(s.part(rows, cols), [replace(h, prediction=h.prediction[np.ix_(rows, cols)])])


def _twins(s: Sample, one: Hypothesis, other: Hypothesis) -> bool:
    """The last k alone is both a lost k and a missing tail."""
    last = s.problem.k - 1
    return {one.code, other.code} == {"lost-k", "k-tail-missing"} and [*one.evidence.values(), *other.evidence.values()] == [last, last]


def _named(look: Look, code: str) -> Finding | None:
    if look.hypotheses is None:
        look.hypotheses = explanations(look)
    return next((Finding(h.evidence, h.words) for h in look.hypotheses if h.code == code), None)


def tf32_like(look: Look) -> Finding | None:
    return _named(look, "tf32-like")


def bf16_inputs_like(look: Look) -> Finding | None:
    return _named(look, "bf16-inputs-like")


def wrong_layout(look: Look) -> Finding | None:
    return _named(look, "wrong-layout")


def k_tail_missing(look: Look) -> Finding | None:
    return _named(look, "k-tail-missing")


def lost_one_k(look: Look) -> Finding | None:
    return _named(look, "lost-k")


def scale_ignored(look: Look) -> Finding | None:
    return _named(look, "scale-ignored")


def scale_swapped(look: Look) -> Finding | None:
    return _named(look, "scale-swapped")


def scale_index(look: Look) -> Finding | None:
    return _named(look, "scale-index")


def reduced_partials(look: Look) -> Finding | None:
    return _named(look, "reduced-partials")


def accumulator_rounded(look: Look) -> Finding | None:
    return _named(look, "accumulator-rounded")


def operands_flushed(look: Look) -> Finding | None:
    return _named(look, "flush-to-zero")
