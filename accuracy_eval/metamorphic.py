"""Judging metamorphic cases: a dump's result of changed operands against its own result of the operands unchanged.

No right result is asked for. Relations that hold bit for bit allow no other code; the others allow what both runs may be off by: the
budgets of both products under the call's contract, and half an ulp of the result that was rounded before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.attribution import between
from accuracy_eval.diagnose import named
from accuracy_eval.formats import Values, decode, encode, get_format, ulp
from accuracy_eval.gates import Profile
from accuracy_eval.judge import Subject, judge_tensor, misfit
from accuracy_eval.measuring import SideTensor
from accuracy_eval.ops.relations import Relation
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.records import Attribution, Case, Coded, Pair, Side, TensorResult, Verdict

Budget = Callable[[Case], Values]  # case of the same base -> budgets of its result


@dataclass(frozen=True)
class Run:
    """What one dump holds of a relation.

    side     the result to judge
    base     its result of the unchanged operands; partner: of the other half, where the relation has one
    arch     of the part, which decides whether the relation holds bit for bit
    """

    side: SideTensor
    base: Coded
    partner: Coded | None
    arch: str


def judge_relation(subject: Subject, relation: Relation, runs: Sequence[Run], budget_of: Budget, profile: Profile) -> TensorResult:
    """Every dump's result against what the relation makes of its own base."""
    exact = all(relation.exact_on(r.arch) for r in runs)
    fitting = [r for r in runs if misfit(r.side, subject.output) is None]
    expected = {r.side.label: _expected(subject.case, subject.output, relation, r, budget_of, exact) for r in fitting}
    # the budgets here hold roundings besides: that one is nearly used says nothing about the contract
    sides = [replace(r.side, contract="") for r in runs]
    result = judge_tensor(replace(subject, output=replace(subject.output, exact=exact)), sides, expected, profile)
    judged = {s.label: _with_relation(s, relation, result) for s in result.sides}
    pairs = tuple(_by_relation(p, judged[p.a], judged[p.b]) for p in result.pairs)
    return replace(result, sides=tuple(judged.values()), pairs=pairs)


def _by_relation(pair: Pair, a: Side, b: Side) -> Pair:
    """Two dumps, each held against its own base: who breaks the relation. Their numbers are compared in the base's case."""
    if pair.attribution is not Attribution.NOT_COMPARABLE or not (a.gates and b.gates):
        return pair
    if Verdict.FAIL in (a.verdict, b.verdict):
        attribution, sentence = between(a, b, {})
        return replace(pair, attribution=attribution, sentence=sentence)
    return replace(pair, sentence="each dump is held against its own result of the unchanged operands, and keeps the relation")


def _expected(case: Case, output: Output, relation: Relation, run: Run, budget_of: Budget, exact: bool) -> Reference:
    base, values = _half_ulps(run.base), relation.result(_values(run.base))
    if exact:
        codes = _unless_subnormal(encode(values, output.format), values, relation, run)
        return Reference("codes", output.format, output.shape, "exact", lambda: iter((Panel(0, codes),)))
    budget = budget_of(case) + np.abs(relation.result(budget_of(relation.base(case)) + base))
    if run.partner is not None:
        values = values - _values(run.partner)
        _, other = relation.others(case)
        budget = budget + budget_of(other) + _half_ulps(run.partner)
    budget = np.where(np.isfinite(values), budget, 0.0)

    def panels() -> Iterator[Panel]:
        yield Panel(0, values, budget)

    return Reference("values", output.format, output.shape, run.side.contract, panels)


def _values(tensor: Coded) -> Values:
    return decode(tensor.codes, tensor.format)


def _half_ulps(tensor: Coded) -> Values:
    values = _values(tensor)
    return np.where(np.isfinite(values), ulp(np.where(np.isfinite(values), values, 0.0), tensor.format) / 2, 0.0)


def _unless_subnormal(codes: NDArray[Any], values: Values, relation: Relation, run: Run) -> NDArray[Any]:
    """The expected codes; where the base or the result is below the normal numbers and holds fewer digits, the run's own, if it is off by
    no more than what those digits, or a flush to zero, make of it."""
    least = get_format(run.base.format).smallest_normal
    own = np.asarray(run.side.variants[0](0, len(codes)))
    few = (np.abs(values) < least) | (np.abs(_values(run.base)[: len(codes)]) < least)
    with np.errstate(invalid="ignore"):
        near = np.abs(decode(own, run.side.format) - values) <= np.abs(relation.result(np.full_like(values, least))) + least
    return np.where(few & near, own, codes)


def _with_relation(side: Side, relation: Relation, result: TensorResult) -> Side:
    """A failed side with the relation that it breaks, before all else."""
    if side.verdict is not Verdict.FAIL:
        return side
    count, total = side.metrics.get("mismatch_count"), side.metrics.get("count")
    evidence: dict[str, Any] = {"relation": relation.name}
    if side.worst:
        evidence["index"] = list(side.worst[0].index)
    broken = named("relation-broken", evidence, sentence=relation.sentence, count=count, total=total)
    kept = tuple(d for d in side.diagnoses if d.code != "rounding-only")
    return replace(side, diagnoses=(broken, *kept))
