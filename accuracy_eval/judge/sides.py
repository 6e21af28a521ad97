"""The verdict of one side: gates, structural checks, and what its runs say whatever they gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from accuracy_eval.attribution import reported, worst_elements
from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.flush import SMALLEST as FLUSHED
from accuracy_eval.diagnose import Context, fails, named, structural
from accuracy_eval.expectation import expectation_of
from accuracy_eval.formats import get_format
from accuracy_eval.gates import Gate
from accuracy_eval.judge.subject import Subject
from accuracy_eval.measuring import Found, SideTensor
from accuracy_eval.messages import number
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.registry import DERIVED
from accuracy_eval.ops.spec import Output
from accuracy_eval.quantize import layout_of
from accuracy_eval.records import Diagnosis, Side, Verdict

ZEROS_WITHIN = 0.7  # of the budget: zeros for subnormal values that use less are a flush, not a kernel that did nothing
FEW = 2.0**20  # terms of a sum all of which may have been subnormal, hence zero, in formats of float32's exponents
# input classes that ask for NaN and Inf: a reference of nothing else is what they declare
MAY_BE_NONFINITE = frozenset({"specials", "codes", "wide", "huge", "negative-zero"})
NOTHING_FINITE = "no expected element is finite: NaN and Inf are where they should be, and there is nothing to measure"
UNBOUNDED = "elements have no bound: with these operands the contract lets them be any number"
NO_REFERENCE = "no reference: judged only against the other dumps"
NEAR_BUDGET = 0.7  # of a contract's budget: healthy units stay below (docs/budgets.md); above it a side warns


def misfit(s: SideTensor, output: Output) -> Side | None:
    """The FAIL of a tensor whose shape or format is not what the case asks for; None for one that can be judged."""
    if s.shape != output.shape:
        lies = layout_of(s.shape, output.shape) if output.name == "scale" else ""
        wrong = named("shape-mismatch", found=str(list(s.shape)) + (f" ({lies})" if lies else ""), asked=str(list(output.shape)))
    elif get_format(s.format).family != get_format(output.format).family:
        wrong = named("format-mismatch", found=s.format, asked=output.format)
    else:
        return None
    return Side(s.label, s.format, s.sha256, Verdict.FAIL, s.contract, diagnoses=(wrong,), note=wrong.sentence)


def broken_run(s: SideTensor) -> list[Diagnosis]:
    """What fails a run whatever it gave: elements nobody wrote, operands that somebody did."""
    found = [named("never-written", {"count": s.never_written}, total=math.prod(s.shape))] if s.never_written else []
    return [*found, *(named("operand-changed", {"operand": name}) for name in s.changed)]


def judge_side(s: SideTensor, subject: Subject, found: Found | None, gates: Sequence[Gate]) -> Side:
    """The side's verdict, with what its gates and its structure say; `found` None: no reference, so it cannot pass."""
    wrong = misfit(s, subject.output)
    if wrong is not None:
        return wrong
    of_runs = _of_runs(s)
    if found is None:
        verdict = Verdict.FAIL if fails(of_runs) else Verdict.INCONCLUSIVE
        return Side(s.label, s.format, s.sha256, verdict, s.contract, diagnoses=tuple(of_runs), note=NO_REFERENCE)
    side = max(judge_variants(s, found, gates), key=lambda j: j.verdict.severity)
    if any(g.metric == "budget_max" for g in gates):
        normal = subject.case.input_class == "normal"
        side = replace(side, expectation=expectation_of(found.problem, s.contract, s.format, side.metrics, normal=normal))
    side = _with_something_finite(side, s, found, subject.case.input_class)
    if fails(of_runs):
        side = replace(side, verdict=Verdict.FAIL)
    elif len(s.variants) > 1 and side.verdict is Verdict.PASS:
        side = replace(side, verdict=Verdict.WARN)
    side = _with_unmeasured(side, s, found)
    return replace(side, diagnoses=(*of_runs, *side.diagnoses), note=side.note or _repeats(s), resolution=found.resolution)


def judge_variants(s: SideTensor, found: Found, gates: Sequence[Gate]) -> list[Side]:
    """A side for every distinct result of the repeats, by its measurements alone."""
    return [_judge_measured(m, r, t, gates, s) for m, r, t in zip(found.truth, found.rounded, found.total, strict=True)]


def decided(side: Side, *, fatal: bool) -> Side:
    """The side with the verdict its gates give; `fatal`: something was found that fails under every profile."""
    if fatal or any(g.passed is False for g in side.gates):
        return replace(side, verdict=Verdict.FAIL)
    if not any(g.passed for g in side.gates):
        return replace(side, verdict=Verdict.INCONCLUSIVE, note="no gate of the profile could be applied")
    near = side.metrics.get("budget_max")
    if (
        side.contract
        and not parse_contract(side.contract).certain
        and near is not None
        and near > NEAR_BUDGET
        and any(g.metric == "budget_max" for g in side.gates)
    ):
        return replace(side, verdict=Verdict.WARN, note=f"the worst element uses {number(100 * near, 3)} % of its budget")
    return replace(side, verdict=Verdict.PASS)


def _of_runs(s: SideTensor) -> list[Diagnosis]:
    """What the runs say together, before any is measured."""
    found = broken_run(s)
    if len(s.variants) > 1 and not s.never_written:  # where the fills differ, so do the runs
        found.append(named("nondeterministic", {"count": len(s.variants)}, repeats=s.repeats))
    return found


def _judge_measured(m: Measured, rounded: Measured, total: Mapping[str, Any], gates: Sequence[Gate], s: SideTensor) -> Side:
    """Gates and structural checks on one measurement: `m` against the truth, `rounded` against the rounded truth.

    A limit on a derived metric applies where that was found; without the unquantised operands the error against the exact product of
    the codes is all there is.
    """
    derived = {**total, **s.derived}
    known = {"total_snr_db": m.metrics["snr_db"], **derived}
    gates = [g for g in gates if g.key in known or g.key not in DERIVED]
    results = tuple(g.judge({**(rounded if g.round_expected else m).metrics, **known}) for g in gates)
    found = tuple(d for d in structural(Context(m)) if not _within_the_edge(d, m))
    worst = worst_elements(m, results)
    side = Side(s.label, s.format, s.sha256, Verdict.PASS, s.contract, {**reported(m), **derived}, results, found, worst)
    if math.prod(s.shape) == 0:
        empty = named("empty")
        return replace(side, verdict=Verdict.INCONCLUSIVE, diagnoses=(empty,), note=empty.sentence)
    return decided(side, fatal=bool(found))


def _within_the_edge(d: Diagnosis, m: Measured) -> bool:
    """What a budget settles although the structure differs: an Inf beside the largest finite value where the budget spans the overflow
    threshold, and zeros for values that all are subnormal, or sums of such, and use no more of the budget than a flush."""
    if m.metrics.get("over_budget") != 0 or not m.classes.nan_sets_equal:
        return False
    if d.code == "all-zero":
        largest = m.max_expected
        normal = get_format(m.actual_format).smallest_normal
        flush = largest is not None and largest < (FEW * normal if normal == FLUSHED else normal)
        return flush and m.metrics["budget_max"] < ZEROS_WITHIN
    return d.code in ("inf-in-actual", "inf-in-expected")


def _with_something_finite(side: Side, s: SideTensor, found: Found, input_class: str) -> Side:
    """The side, INCONCLUSIVE where no finite element was expected of operands that are finite."""
    if side.verdict is Verdict.FAIL or not math.prod(s.shape) or found.truth[0].max_expected is not None or input_class in MAY_BE_NONFINITE:
        return side
    return replace(side, verdict=Verdict.INCONCLUSIVE, note=NOTHING_FINITE)


def _with_unmeasured(side: Side, s: SideTensor, found: Found) -> Side:
    """A side that does not fail with what could not be off: elements that more than one answer suits, and such without a bound."""
    notes = [(count, why) for count, why in (found.exempt, (found.unbounded, UNBOUNDED)) if count]
    if not notes or side.verdict is Verdict.FAIL:
        return side
    total = math.prod(s.shape)
    nothing_else = found.unbounded and found.unbounded + found.trivial >= total
    if (nothing_else or sum(count for count, _ in notes) >= total) and side.verdict is Verdict.PASS:
        side = replace(side, verdict=Verdict.WARN)  # right, but nothing was measured
    return replace(side, note="; ".join(filter(None, (*(f"{count} of {total} {why}" for count, why in notes), side.note))))


def _repeats(s: SideTensor) -> str:
    """What equal repeats prove: '0 of n differ' leaves at most 3/n at 95 %."""
    if len(s.variants) > 1 or s.repeats <= 1:
        return ""
    bound = f" (95 %: at most {number(3 / s.repeats, 2)} of all runs give others)" if s.repeats > 3 else ""
    return f"{s.repeats} repeats gave the same bytes{bound}"
