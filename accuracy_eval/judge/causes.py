"""Why a side fails: the causes its error shows, the looser contract it keeps, and the sketch that pictures are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from accuracy_eval.contracts import looser_contracts
from accuracy_eval.diagnose import context_of, diagnose, origins
from accuracy_eval.formats import decode
from accuracy_eval.gates import Gate
from accuracy_eval.judge.sides import judge_variants
from accuracy_eval.judge.subject import Subject
from accuracy_eval.measuring import Found, SideTensor, measure_sides
from accuracy_eval.messages import number
from accuracy_eval.metrics.registry import AGGREGATES, KNOWN, OF_MANY
from accuracy_eval.ops.spec import Inputs, Reference, rows_and_columns
from accuracy_eval.records import Side, Verdict
from accuracy_eval.sketch import sketch_of

Under = Callable[[str, str], Reference]  # (side label, contract) -> the reference with that contract's budget
BY_CONTRACT = frozenset(m.name for m in KNOWN.values() if m.by_contract)
# said of the runs themselves: no cause of an error replaces them
OF_RUNS = ("never-written", "operand-changed", "nondeterministic")


@dataclass(frozen=True)
class Evidence:
    """One measured side: its tensor, what was found against the reference, its operands as stored."""

    tensor: SideTensor
    found: Found
    inputs: Inputs

    @property
    def worst(self) -> int:
        """Of the distinct results of the repeats the one that is furthest off."""
        truth = self.found.truth
        return max(range(len(truth)), key=lambda i: truth[i].metrics.get("budget_max") or 0.0)


def with_cause(side: Side, subject: Subject, e: Evidence) -> Side:
    """A failed side with what its error's structure says; what its runs say stays in front."""
    output, worst = subject.output, e.worst
    context = context_of(
        subject.case, e.found.truth[worst], output=output.name, actual=e.tensor.variants[worst], expected=e.found.expected,
        inputs=e.inputs, contract=e.tensor.contract, encoding="fnuz" if output.format.endswith("fnuz") else "ocp", budget=e.found.budget,
    )  # fmt: skip
    of_runs = [d for d in side.diagnoses if d.code in OF_RUNS]
    found = [d for d in diagnose(context) if d.code != "rounding-only" or not _broken_by_many(side)]
    return replace(side, diagnoses=(*of_runs, *found), note=side.note or origins(context))


def _broken_by_many(side: Side) -> bool:
    """Whether a limit on many elements is broken: what explains each single one does not explain them all."""
    return any(g.passed is False and g.metric in OF_MANY for g in side.gates)


def with_kept_contract(side: Side, subject: Subject, s: SideTensor, gates: Sequence[Gate], under: Under) -> Side:
    """A side that breaks nothing but limits that follow from its contract, with the tightest looser contract it keeps, if it keeps one."""
    broken = {g.metric for g in side.gates if g.passed is False}
    if side.verdict is not Verdict.FAIL or broken.isdisjoint({"budget_max", *AGGREGATES}) or broken - BY_CONTRACT or s.never_written:
        return side
    for contract in looser_contracts(s.contract, subject.case.format.split("+")):
        found = measure_sides([s], under(s.label, contract), gates)[0][s.label]
        if all(j.verdict in (Verdict.PASS, Verdict.WARN) for j in judge_variants(s, found, gates)):
            used = max(float(m.metrics["budget_max"]) for m in found.truth)
            sentence = f"outside {s.contract}, which was promised, and inside {contract} ({number(used, 2)} × its budget)"
            return replace(side, off_contract=contract, note=sentence)
    return side


def with_sketch(side: Side, e: Evidence) -> Side:
    """The side with what pictures of its error need, taken from its worst variant."""
    found, worst = e.found, e.worst
    finding = side.verdict is not Verdict.PASS
    if found.expected is None:
        return replace(side, sketch=sketch_of(found.truth[worst], finding=finding))
    rows = rows_and_columns(e.tensor.shape)[0]
    expected = found.expected(0, rows)
    sketch = sketch_of(
        found.truth[worst], actual=e.tensor.variants[worst](0, rows),
        expected=decode(expected, e.tensor.format) if found.coded else expected, budget=found.budget, inputs=e.inputs, finding=finding,
    )  # fmt: skip
    return replace(side, sketch=sketch)
