"""judge: one output tensor of one case over all its sides.

Every side is measured against the reference, every pair of sides against each other (`measuring`); gates and structural checks turn the
measurements into verdicts, and the verdicts into an attribution: who is off. Nothing here reads files or runs devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from accuracy_eval.apart import Apart
from accuracy_eval.attribution import attribute, reported, worst_elements
from accuracy_eval.contracts import looser_contracts, parse_contract
from accuracy_eval.cpu_ref.flush import SMALLEST as FLUSHED
from accuracy_eval.diagnose import Context, context_of, diagnose, fails, named, origins, structural
from accuracy_eval.expectation import expectation_of
from accuracy_eval.formats import decode, get_format
from accuracy_eval.gates import Gate, Profile
from accuracy_eval.measuring import Found, SideTensor, kin_of, measure_pair, measure_sides
from accuracy_eval.messages import number
from accuracy_eval.metrics.aggregates import FEWEST, GATED, TILE
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.registry import DERIVED
from accuracy_eval.ops.spec import Inputs, Output, Reference, rows_and_columns
from accuracy_eval.quantize import layout_of
from accuracy_eval.records import Case, Diagnosis, Pair, Side, TensorResult, Verdict
from accuracy_eval.sketch import sketch_of

ZEROS_WITHIN = 0.7  # of the budget: zeros for subnormal values that use less are a flush, not a kernel that did nothing
FEW = 2.0**20  # terms of a sum all of which may have been subnormal, hence zero, in formats of float32's exponents
# metrics whose limit depends on what the contract allows
BY_CONTRACT = frozenset({"budget_max", "excess_db", "excess_row_db", *GATED})
# input classes that ask for NaN and Inf: a reference of nothing else is what they declare
MAY_BE_NONFINITE = frozenset({"specials", "codes", "wide", "huge", "negative-zero"})
NOTHING_FINITE = "no expected element is finite: NaN and Inf are where they should be, and there is nothing to measure"
UNBOUNDED = "elements have no bound: with these operands the contract lets them be any number"
NEAR_BUDGET = 0.7  # of a contract's budget: healthy units stay below (docs/budgets.md); above it a side warns


def facts_of(case: Case, family: str, output: Output, contract: str) -> dict[str, Any]:
    """What gates may ask about a tensor: see gates.FACTS."""
    rows, columns = rows_and_columns(output.shape)
    return {
        "op": case.op, "family": family, "format": case.format, "out_format": get_format(output.format).family, "recipe": case.recipe,
        "quantised": bool(case.recipe), "lane": case.lane, "input": case.input_class, "direction": case.direction, "tensor": output.name,
        "axis": case.option("axis", "last"), "exact": output.exact, "contract": contract, "long_rows": columns >= FEWEST,
        "long_columns": rows >= FEWEST, "large_tiles": min(rows, TILE) * min(columns, TILE) >= FEWEST,
    }  # fmt: skip


def judge_tensor(
    case: Case,
    case_name: str,
    family: str,
    candidate: str,
    output: Output,
    sides: Sequence[SideTensor],
    references: Mapping[str, Reference],
    profile: Profile,
    *,
    cross_format: bool = False,
    under: Callable[[str, str], Reference] | None = None,
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
    gates = profile.applicable(facts_of(case, family, output, sides[0].contract))
    if not case.recipe:
        gates = tuple(g.of_one_error for g in gates)
    fitting = [s for s in sides if misfit(s, output) is None]
    by_side: dict[str, Found] = {}
    by_pair: dict[tuple[str, str], Measured] = {}
    groups = kin_of(fitting, apart.meaning if apart else {s.label: id(references.get(s.label)) for s in fitting})
    for kin in groups:
        found, between = measure_sides(kin, references.get(kin[0].label), gates)
        by_side |= found
        by_pair |= between
    for a, b in itertools.combinations(fitting, 2):
        # kept apart above: other promises about the same numbers compare, other numbers only on request
        wanted = cross_format or (a.format == b.format and a.contract != b.contract)
        if wanted and (a.label, b.label) not in by_pair:
            by_pair[a.label, b.label] = measure_pair(a, b)
    judged: dict[str, Side] = {}
    for s in sides:
        side = _judge_side(s, output, by_side.get(s.label), gates, case.input_class)
        if side.verdict is Verdict.FAIL and s.label in by_side:
            side = _name_the_cause(side, s, case, output, by_side[s.label], inputs.get(s.label, {}))
            if under is not None:
                side = _name_the_contract(side, s, case, gates, under)
        judged[s.label] = _sketched(side, s, by_side.get(s.label), inputs.get(s.label, {}))
    together = {frozenset((a.label, b.label)) for kin in groups for a, b in itertools.combinations(kin, 2)}
    referenced = bool(references)
    held = {s.label: s for s in fitting}

    def pair(a: str, b: str) -> Pair:
        kin, measured = frozenset((a, b)) in together, by_pair.get((a, b))
        distance = apart.between(held[a], held[b], measured) if apart and measured and kin and not output.exact else None
        return attribute(output, judged[a], judged[b], measured, referenced=referenced, kin=kin, distance=distance)

    pairs = tuple(pair(a, b) for a, b in itertools.combinations(judged, 2))
    # without a reference no side passes by itself, but what was never written fails all the same
    verdicts = [s.verdict for s in judged.values() if references or not pairs or s.verdict is Verdict.FAIL]
    verdict = max([*verdicts, *(p.verdict for p in pairs)], key=lambda v: v.severity)
    return TensorResult(case_name, case, family, candidate, output.name, output.shape, verdict, tuple(judged.values()), pairs)


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


BROKEN_RUN = ("never-written", "operand-changed")


def broken_run(s: SideTensor, total: int) -> list[Diagnosis]:
    """What fails a run whatever it gave: elements nobody wrote, operands that somebody did."""
    found = [named("never-written", {"count": s.never_written}, total=total)] if s.never_written else []
    return [*found, *(named("operand-changed", {"operand": name}) for name in s.changed)]


def _judge_side(s: SideTensor, output: Output, found: Found | None, gates: Sequence[Gate], input_class: str) -> Side:
    wrong = misfit(s, output)
    if wrong is not None:
        return wrong
    base = Side(s.label, s.format, s.sha256, Verdict.INCONCLUSIVE, s.contract)
    total = math.prod(s.shape)
    first = broken_run(s, total)
    if len(s.variants) > 1 and not s.never_written:  # where the fills differ, so do the runs
        first.append(named("nondeterministic", {"count": len(s.variants)}, repeats=s.repeats))
    if found is None:
        verdict = Verdict.FAIL if fails(first) else Verdict.INCONCLUSIVE
        return replace(base, verdict=verdict, diagnoses=tuple(first), note="no reference: judged only against the other dumps")
    judged = [_judge_measured(m, r, t, gates, s) for m, r, t in zip(found.truth, found.rounded, found.total, strict=True)]
    side = max(judged, key=lambda j: j.verdict.severity)
    if any(g.metric == "budget_max" for g in gates):
        expected = expectation_of(found.problem, s.contract, s.format, side.metrics, normal=input_class == "normal")
        side = replace(side, expectation=expected)
    verdict, note = side.verdict, side.note
    if verdict is not Verdict.FAIL and total and found.truth[0].max_expected is None and input_class not in MAY_BE_NONFINITE:
        verdict, note = Verdict.INCONCLUSIVE, NOTHING_FINITE
    if fails(first):
        verdict = Verdict.FAIL
    elif len(s.variants) > 1 and verdict is Verdict.PASS:
        verdict = Verdict.WARN
    notes = [(count, why) for count, why in (found.exempt, (found.unbounded, UNBOUNDED)) if count]
    if notes and verdict is not Verdict.FAIL:
        nothing_else = found.unbounded and found.unbounded + found.trivial >= total
        if (nothing_else or sum(count for count, _ in notes) >= total) and verdict is Verdict.PASS:
            verdict = Verdict.WARN  # right, but nothing was measured
        note = "; ".join(filter(None, (*(f"{count} of {total} {why}" for count, why in notes), note)))
    if not note and len(s.variants) == 1 and s.repeats > 1:
        bound = f" (95 %: at most {number(3 / s.repeats, 2)} of all runs give others)" if s.repeats > 3 else ""
        note = f"{s.repeats} repeats gave the same bytes{bound}"
    return replace(side, verdict=verdict, diagnoses=(*first, *side.diagnoses), note=note, resolution=found.resolution)


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
        return replace(side, verdict=Verdict.INCONCLUSIVE, note="the output is empty: there is nothing to judge")
    return decided(side, fatal=bool(found))


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


def _name_the_cause(side: Side, s: SideTensor, case: Case, output: Output, found: Found, inputs: Inputs) -> Side:
    """A failed side with what its error's structure says; codes the judge itself gave stay in front."""
    worst = _worst_variant(found)
    context = context_of(
        case, found.truth[worst], output=output.name, actual=s.variants[worst], expected=found.expected, inputs=inputs, contract=s.contract,
        encoding="fnuz" if output.format.endswith("fnuz") else "ocp",
    )  # fmt: skip
    mine = [d for d in side.diagnoses if d.code in (*BROKEN_RUN, "nondeterministic")]
    return replace(side, diagnoses=(*mine, *diagnose(context)), note=side.note or origins(context))


def _name_the_contract(side: Side, s: SideTensor, case: Case, gates: Sequence[Gate], under: Callable[[str, str], Reference]) -> Side:
    """A side that breaks nothing but limits that follow from its contract, with the tightest looser contract it keeps, if it keeps one."""
    broken = {g.metric for g in side.gates if g.passed is False}
    if side.verdict is not Verdict.FAIL or broken.isdisjoint({"budget_max", *GATED}) or broken - BY_CONTRACT or s.never_written:
        return side
    for contract in looser_contracts(s.contract, case.format.split("+")):
        found = measure_sides([s], under(s.label, contract), gates)[0][s.label]
        judged = [_judge_measured(m, r, t, gates, s) for m, r, t in zip(found.truth, found.rounded, found.total, strict=True)]
        if all(j.verdict in (Verdict.PASS, Verdict.WARN) for j in judged):
            used = max(float(m.metrics["budget_max"]) for m in found.truth)
            sentence = f"outside {s.contract}, which was promised, and inside {contract} ({number(used, 2)} × its budget)"
            return replace(side, off_contract=contract, note=sentence)
    return side


def _sketched(side: Side, s: SideTensor, found: Found | None, inputs: Inputs) -> Side:
    """The side with what pictures of its error need, taken from its worst variant."""
    if found is None:
        return side
    i = _worst_variant(found)
    finding = side.verdict is not Verdict.PASS
    if found.expected is None:
        return replace(side, sketch=sketch_of(found.truth[i], finding=finding))
    rows = rows_and_columns(s.shape)[0]
    expected = found.expected(0, rows)
    sketch = sketch_of(
        found.truth[i], actual=s.variants[i](0, rows), expected=decode(expected, s.format) if found.coded else expected,
        budget=found.budget, inputs=inputs, finding=finding,
    )  # fmt: skip
    return replace(side, sketch=sketch)


def _worst_variant(found: Found) -> int:
    return max(range(len(found.truth)), key=lambda i: found.truth[i].metrics.get("budget_max") or 0.0)
