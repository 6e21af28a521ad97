"""Causes inside a matrix product: a sample of elements is computed again under each hypothesis, and one must explain the error.

A hypothesis with prediction P explains the error when ‖X - P‖² is at most 1 % of D (plus 2F; see `sampling`), or when P rounded gives
the output's very codes. If two different hypotheses explain it, none is named.
"""

from __future__ import annotations

import numpy as np

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.diagnose.hypotheses import Hypothesis, partial_sums, roundest, simple_hypotheses
from accuracy_eval.diagnose.sampling import Indices, Sample, problem_of, sample

REST = 0.01  # of the error's energy may remain unexplained
CLEAR = 10.0  # the error must have this many times the energy of output rounding before energies are compared


def explanations(look: Look) -> list[Hypothesis]:
    """The hypothesis that explains the sampled error, alone or, for the last k, with its twin; empty where none does or two differ."""
    if look.context.lane == "coded":
        return _coded_loss(look)
    s = sample(look)
    if s is None or not np.isfinite(s.x).all() or s.energy == 0 or s.x.size < 16:
        return []
    wrong = ~s.matches(s.t)
    clear = s.energy >= CLEAR * s.rounding
    narrow = s.fmt.bits <= 16 and int(wrong.sum()) >= 24
    if not clear and not narrow:
        return []
    found: list[tuple[float, Hypothesis]] = []

    def keep(h: Hypothesis) -> None:
        rest = s.rest(h.prediction)
        by_energy = clear and rest <= REST * s.energy + 2 * s.rounding and s.explains(h.prediction)
        same = s.matches(h.prediction)
        by_codes = (
            narrow and rest < s.energy / 2 and same[wrong].mean() >= 0.9 and (same[~wrong].mean() >= 0.9 if not wrong.all() else True)
        )
        if by_energy or by_codes:
            found.append((rest, h))

    for h in simple_hypotheses(s):
        keep(h)
    if not found:  # many compositions: tried only where nothing simple explains the error
        for h in partial_sums(s):
            keep(h)
    found.sort(key=lambda f: f[0])
    named: list[Hypothesis] = []
    for rest, h in found:
        if not named or (h.code != named[0].code and _twins(s, h, named[0])):
            named.append(h)
        elif h.code != named[0].code and rest <= 4 * found[0][0] + s.rounding:
            return []
    return named[:2]


def _twins(s: Sample, one: Hypothesis, other: Hypothesis) -> bool:
    """The last k alone is both a lost k and a missing tail."""
    last = s.problem.k - 1
    return {one.code, other.code} == {"lost-k", "k-tail-missing"} and [*one.evidence.values(), *other.evidence.values()] == [last, last]


def _coded_loss(look: Look) -> list[Hypothesis]:
    """A one-hot A gives each row one k: the rows that are zero say which k never arrived.

    Of the k between the last that arrived and the first that did not, unseen by every row, the roundest is where kernels end.
    """
    p, noise = problem_of(look), look.m.rows
    if p is None or noise is None or look.quiet:
        return []
    wrong = noise.mismatches > 0
    gone = wrong & (noise.error == noise.reference) & (noise.reference > 0)
    if not gone.any() or (wrong != gone).any():
        return []
    seen = _single_k(p)
    if seen is None:
        return []
    lost, kept = np.unique(seen[gone]), np.unique(seen[~gone])
    nothing = np.empty((0, 0))
    found = []
    if lost.size == 1 and lost[0] not in kept:
        found.append(Hypothesis("lost-k", {"k": int(lost[0])}, {"total": str(p.k)}, nothing))
    if kept.size and kept[-1] < lost[0] and (lost.size > 1 or lost[0] == p.k - 1):
        from_k = roundest(int(kept[-1]) + 1, int(lost[0]), int(lost[0]))
        found.append(Hypothesis("k-tail-missing", {"from_k": from_k}, {"k": str(p.k)}, nothing))
    return found


def _single_k(p: Gemm) -> Indices | None:
    """The k of the only nonzero element of each row of op(A); None if A is not one-hot."""
    codes = p.a.codes
    places = []
    for i in range(0, p.m, 128):
        part = codes[i : i + 128] if p.layout[0] == "n" else codes[:, i : i + 128].T
        if (np.count_nonzero(part, axis=1) != 1).any():
            return None
        places.append(np.argmax(part != 0, axis=1))
    return np.concatenate(places)


def _named(look: Look, code: str) -> Finding | None:
    if look.hypotheses is None:
        look.hypotheses = explanations(look)
    return next((Finding(h.evidence, h.words) for h in look.hypotheses if h.code == code), None)


def tf32_like(look: Look) -> Finding | None:
    return _named(look, "tf32-like")


def bf16_inputs_like(look: Look) -> Finding | None:
    return _named(look, "bf16-inputs-like")


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


def operands_flushed(look: Look) -> Finding | None:
    return _named(look, "flush-to-zero")
