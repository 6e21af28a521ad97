"""Which composition made these bits: a search over the language, verified on elements it never saw.

The search looks at a few elements of one half of the matrix (a checkerboard), survivors are checked on the other half and the best
on every element. *Evidence* is the number of elements where the model agrees with the output and differs from the correctly rounded
truth: an element where everything sensible gives the same code says nothing. An output with fewer than 20 such elements is
consistent with the composition, which is then not identified: outputs of 16 bits mostly, so explain the float32 output and check the
cast. An explanation changes no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath.compositions import Composition, canonical
from accuracy_eval.datapath.elements import Elements
from accuracy_eval.datapath.evaluation import Problem, problem_of
from accuracy_eval.datapath.explanation import Explanation, Status
from accuracy_eval.datapath.rules import Rule
from accuracy_eval.datapath.search import TIES, Search
from accuracy_eval.datapath.units import UNITS, units_of
from accuracy_eval.errors import UsageError
from accuracy_eval.records import Coded

EVIDENCE = 20  # discriminating elements that identify
FULL = 1 << 33  # products up to which every element is checked; beyond, a sample of them
TIED = 1024  # elements ties are checked on
TRIES = 60_000
AGAIN_TRIES = 5_000  # where a step of the epilogue is taken to be left out


def explain(
    actual: Coded,
    a: Coded,
    b: Coded,
    *,
    layout: str = "nn",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Coded | None = None,
    bias: Coded | None = None,
    a_scale: Any = None,
    b_scale: Any = None,
    a_block: tuple[int, int] | None = None,
    b_block: tuple[int, int] | None = None,
    unit: str | None = None,
    tries: int = TRIES,
    full: int = FULL,
) -> Explanation:
    """The composition that reproduces `actual` [m, n] from the operands as stored (layout letters and scales as in `cpu_ref.Gemm`).

    unit   name of a unit or part: only its arithmetic is tried. None: every unit known
    tries  hypotheses after which the search gives up
    full   products (m·n·k) up to which every element is checked; beyond, 8192 elements spread over the matrix
    A batch or a group is explained matrix by matrix, a gradient as the GEMM it is (`cpu_ref.gemm.gradient`).
    """
    return explain_gemm(
        actual, Gemm(a, b, layout, alpha, beta, c, bias, a_scale, b_scale, a_block, b_block), unit=unit, tries=tries, full=full
    )


def explain_gemm(actual: Coded, gemm: Gemm, *, unit: str | None = None, tries: int = TRIES, full: int = FULL) -> Explanation:
    """As `explain`, for a problem already described."""
    if actual.shape != (gemm.m, gemm.n):
        raise UsageError(f"the output has shape {actual.shape}, the product {(gemm.m, gemm.n)}; batches are explained matrix by matrix")
    if gemm.m * gemm.n * gemm.k == 0:
        raise UsageError(f"nothing to explain in an empty product of m = {gemm.m}, n = {gemm.n}, k = {gemm.k}")
    found = _searched(actual, gemm, unit, tries, full)
    if found.status != "unexplained":
        return found
    for step, bare in _left_out(gemm):
        tried = _searched(actual, bare, unit, min(tries, AGAIN_TRIES), full)
        found = replace(found, tried=found.tried + tried.tried)
        if tried.status != "unexplained":
            return replace(found, without=(step, tried.description))
    return found


def _left_out(gemm: Gemm) -> Iterator[tuple[str, Gemm]]:
    """The product without each step of its epilogue."""
    if gemm.alpha != 1:
        yield "alpha", replace(gemm, alpha=1.0)
    if gemm.beta != 0:
        yield "C", replace(gemm, beta=0.0, c=None)
    if gemm.bias is not None:
        yield "bias", replace(gemm, bias=None)


def _searched(actual: Coded, gemm: Gemm, unit: str | None, tries: int, full: int) -> Explanation:
    search = Search(Elements(actual, gemm, full), problem_of(gemm), unit, tries)
    found = search.run()
    return _reproduced(search, found.winners, unit) if found.winners else _unexplained(search, found.best, unit)


def _unexplained(search: Search, best: Composition, unit: str | None) -> Explanation:
    matched = search.matched.get(best)
    if matched is None:
        matched = search.check.everywhere(best)
    return _explanation(search, best, matched, unit, loser=next((c for c in search.ranked_losers() if c != best), None))


def _reproduced(search: Search, winners: Sequence[Composition], unit: str | None) -> Explanation:
    """The first winner, with the others that are not the same in canonical form and hold on more elements."""
    elements, k = search.elements, search.problem.k
    first = canonical(winners[0], k)
    spelled: dict[str, Composition] = {}
    for winner in winners[1:]:
        c = canonical(winner, k)
        if c != first:
            spelled.setdefault(str(c), c)
    sample = elements.spread(np.arange(len(elements.i)), TIED)
    ties = tuple(text for text, c in list(spelled.items())[:TIES] if search.check.at(c, sample).all())
    found = _explanation(search, winners[0], search.matched[winners[0]], unit, loser=next(iter(search.ranked_losers()), None))
    alone = not elements.narrow or all(_same_sums(spelled[t], first) for t in ties)
    status: Status = "identified" if found.evidence >= EVIDENCE and alone else "consistent, not identified"
    return replace(found, status=status, ties=ties, more_ties=max(len(spelled) - TIES, 0))


def _explanation(
    search: Search, composition: Composition, matched: NDArray[np.bool_], unit: str | None, *, loser: Composition | None
) -> Explanation:
    """As unexplained: what composition reproduces how much, and the best one that fails."""
    elements, k = search.elements, search.problem.k
    wrong = np.flatnonzero(~matched)[:16]
    return Explanation(
        description=str(canonical(composition, k)),
        fraction=float(np.mean(matched)),
        status="unexplained",
        evidence=int(np.count_nonzero(matched & elements.differs)),
        checked=len(elements.i),
        total=elements.total,
        tried=search.tried,
        best_loser="" if loser is None else str(canonical(loser, k)),
        best_loser_fraction=0.0 if loser is None else search.losers[loser],
        unexplained=tuple((int(elements.i[w]), int(elements.j[w])) for w in wrong),
        units=_units(composition, search.problem, unit),
        correctly_rounded=not elements.differs.any(),
    )


def _units(composition: Composition, problem: Problem, unit: str | None) -> tuple[str, ...]:
    """The units, of those asked for, that may have worked by the composition's rule on such operands."""
    rows = units_of(unit) if unit is not None else UNITS
    scaled = composition.pre == "mx"

    def takes(formats: tuple[str, ...]) -> bool:
        wanted = {"tfloat32" if "tfloat32" in formats and f == "float32" else f for f in (problem.a_format, problem.b_format)}
        return wanted <= set(formats)

    found = (u.name for u in rows if u.rule and bool(u.scales) == scaled and _same_unit(u.rule, composition.rule) and takes(u.formats))
    return tuple(dict.fromkeys(found))


def _same_sums(x: Composition, y: Composition) -> bool:
    """Whether two compositions differ only after the chains of blocks: in the join or the epilogue."""
    return replace(x, join=y.join, epilogue=y.epilogue) == y


def _same_unit(unit: Rule, rule: Rule) -> bool:
    """Whether a unit may have worked by that rule: the same arithmetic, in blocks of its own width or, for T-FDPA, narrower ones."""
    return replace(unit, L=rule.L, e0=rule.e0) == rule and (unit.L == rule.L or (rule.kind in ("tfdpa", "half") and rule.L < unit.L))
