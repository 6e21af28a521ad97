"""`judge_tensor`: the sides of one output measured, judged, and held against each other."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from accuracy_eval.apart import Apart
from accuracy_eval.attribution import attribute
from accuracy_eval.gates import Gate, Profile
from accuracy_eval.judge.causes import Evidence, Under, with_cause, with_kept_contract, with_sketch
from accuracy_eval.judge.sides import judge_side, misfit
from accuracy_eval.judge.subject import Subject
from accuracy_eval.measuring import Found, SideTensor, kin_of, measure_pair, measure_sides
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.ops.spec import Inputs, Reference
from accuracy_eval.records import Pair, Side, TensorResult, Verdict


def judge_tensor(
    subject: Subject,
    sides: Sequence[SideTensor],
    references: Mapping[str, Reference],
    profile: Profile,
    *,
    cross_format: bool = False,
    under: Under | None = None,
    inputs: Mapping[str, Inputs] = MappingProxyType({}),
    apart: Apart | None = None,
) -> TensorResult:
    """Verdicts of every side and pair of one output.

    references    by side label: sides of another encoding have their own. Empty: no reference, no side passes
    apart         without references: how far apart the sides may be
    cross_format  compare a pair of two encodings of one family by value instead of calling it not comparable
    under         (side label, contract) -> the reference with the budget of another contract: names what a broken promise kept
    inputs        by side label: operands as stored, for causes that only they show
    """
    gates = subject.gates(profile, sides[0].contract)
    fitting = {s.label: s for s in sides if misfit(s, subject.output) is None}
    meaning = apart.meaning if apart else {label: id(references.get(label)) for label in fitting}
    measured = _measured(list(fitting.values()), meaning, references, gates, cross_format=cross_format)
    judged: dict[str, Side] = {}
    for s in sides:
        found = measured.sides.get(s.label)
        side = judge_side(s, subject, found, gates)
        judged[s.label] = _explained(side, subject, Evidence(s, found, inputs.get(s.label, {})), gates, under) if found else side

    def pair(a: str, b: str) -> Pair:
        kin, between = frozenset((a, b)) in measured.kin, measured.pairs.get((a, b))
        distance = apart.between(fitting[a], fitting[b], between) if apart and between and kin and not subject.output.exact else None
        return attribute(subject.output, judged[a], judged[b], between, referenced=bool(references), kin=kin, distance=distance)

    pairs = [pair(a, b) for a, b in itertools.combinations(judged, 2)]
    return subject.result(list(judged.values()), pairs, referenced=bool(references))


@dataclass(frozen=True)
class _Measurements:
    """Of the sides by label, of pairs of them by both labels; `kin`: pairs that hold the same kind of number."""

    sides: Mapping[str, Found]
    pairs: Mapping[tuple[str, str], Measured]
    kin: frozenset[frozenset[str]]


def _measured(
    sides: Sequence[SideTensor], meaning: Mapping[str, Hashable], references: Mapping[str, Reference], gates: Sequence[Gate], *,
    cross_format: bool,
) -> _Measurements:  # fmt: skip
    """Kin against their reference and each other, in one pass; then pairs of other kin whose numbers compare."""
    found: dict[str, Found] = {}
    pairs: dict[tuple[str, str], Measured] = {}
    groups = kin_of(sides, meaning)
    for group in groups:
        of_sides, of_pairs = measure_sides(group, references.get(group[0].label), gates)
        found |= of_sides
        pairs |= of_pairs
    for a, b in itertools.combinations(sides, 2):
        # other promises about the same numbers compare, other numbers only on request
        wanted = cross_format or (a.format == b.format and a.contract != b.contract)
        if wanted and (a.label, b.label) not in pairs:
            pairs[a.label, b.label] = measure_pair(a, b)
    kin = frozenset(frozenset((a.label, b.label)) for group in groups for a, b in itertools.combinations(group, 2))
    return _Measurements(found, pairs, kin)


def _explained(side: Side, subject: Subject, evidence: Evidence, gates: Sequence[Gate], under: Under | None) -> Side:
    """A measured side with its sketch and, where it fails, with causes and with the contract that it keeps all the same."""
    if side.verdict is Verdict.FAIL:
        side = with_cause(side, subject, evidence)
        if under is not None:
            side = with_kept_contract(side, subject, evidence.tensor, gates, under)
    return with_sketch(side, evidence)
