"""`judge_sampled`: every side by its exact lines and its projections, every pair whole."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import Literal

from accuracy_eval.attribution import attribute
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.sampling import LINES, full_reference, sampled_reference
from accuracy_eval.gates import Profile
from accuracy_eval.judge import Subject, Under, judge_tensor, misfit
from accuracy_eval.measuring import SideTensor, measure_pair
from accuracy_eval.ops.spec import Inputs, Reference
from accuracy_eval.records import Pair, Side, TensorResult
from accuracy_eval.sampled.parts import Part
from accuracy_eval.sampled.views import View


def scoped(reference: Reference, mode: Literal["full", "sampled", "auto"]) -> Reference:
    """The reference as `mode` wants it: whole, or with a sample to judge by. "auto" samples products over 2^41 operations.

    Only products are sampled, and only where a sample is less than the whole; anything else costs little.
    """
    p = reference.problem
    if mode == "full" or not isinstance(p, Gemm) or reference.kind == "codes" or min(p.m, p.n) <= LINES:
        return reference
    if mode == "auto" and full_reference(p):
        return reference
    return replace(reference, sample=cache(partial(sampled_reference, p, contract=reference.contract, out_format=reference.format)))


def judge_sampled(
    subject: Subject,
    sides: Sequence[SideTensor],
    references: Mapping[str, Reference],
    profile: Profile,
    *,
    cross_format: bool = False,
    under: Under | None = None,
    inputs: Mapping[str, Inputs] = MappingProxyType({}),
) -> TensorResult:
    """As `judge.judge_tensor`, for references that have a `sample`. Pairs are measured whole: they need no reference."""
    judged: dict[str, Side] = {}
    for s in sides:
        part_of = partial(_judge_part, subject, s, profile, inputs.get(s.label, {}), looser=under is not None)
        judged[s.label] = misfit(s, subject.output) or View(subject.output, references[s.label], s).judged(part_of)

    def pair(a: SideTensor, b: SideTensor) -> Pair:
        kin = a.format == b.format and references[a.label].problem is references[b.label].problem
        fit = all(misfit(s, subject.output) is None for s in (a, b)) and (kin or cross_format)
        measured = measure_pair(a, b) if fit and not (kin and a.sha256 and a.sha256 == b.sha256) else None
        return attribute(subject.output, judged[a.label], judged[b.label], measured, referenced=True, kin=kin)

    return subject.result(list(judged.values()), [pair(a, b) for a, b in itertools.combinations(sides, 2)])


def _judge_part(subject: Subject, s: SideTensor, profile: Profile, inputs: Inputs, part: Part, *, looser: bool) -> Side:
    """The side of some lines, as a tensor of their own; `looser`: also the contract that it keeps where it breaks the promised one."""
    result = judge_tensor(
        replace(subject, output=part.output), [part.side(s)], {s.label: part.reference(part.contract)}, profile,
        under=(lambda _, contract: part.reference(contract)) if looser else None, inputs={s.label: part.inputs(inputs)},
    )  # fmt: skip
    return result.sides[0]
