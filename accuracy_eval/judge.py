"""judge: one output tensor of one case over all its sides, in one pass over row panels.

Every side is measured against the reference, every pair of sides against each other; gates and structural checks turn the
measurements into verdicts, and the verdicts into an attribution: who is off. Nothing here reads files or runs devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.apart import Apart
from accuracy_eval.attribution import attribute, reported, worst_elements
from accuracy_eval.contracts import looser_contracts, parse_contract
from accuracy_eval.cpu_ref.flush import SMALLEST as FLUSHED
from accuracy_eval.diagnose import Context, context_of, diagnose, fails, named, origins, rows_of, structural
from accuracy_eval.expectation import expectation_of
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.gates import Gate, Profile
from accuracy_eval.messages import number
from accuracy_eval.metrics.aggregates import FEWEST, GATED, TILE
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import Meter
from accuracy_eval.metrics.registry import DERIVED
from accuracy_eval.metrics.total import TotalMeter
from accuracy_eval.ops.spec import Inputs, Output, Panel, Reference, row_blocks, rows_and_columns
from accuracy_eval.quantize import layout_of
from accuracy_eval.records import Case, Coded, Diagnosis, Pair, Side, TensorResult, Verdict
from accuracy_eval.resolution import ResolutionMeter
from accuracy_eval.sketch import sketch_of

Codes = NDArray[Any]
Rows = Callable[[int, int], Codes]  # (first, end) -> codes [end - first, columns] of the tensor's 2-D view
WORST = 16
ZEROS_WITHIN = 0.7  # of the budget: zeros for subnormal values that use less are a flush, not a kernel that did nothing
FEW = 2.0**20  # terms of a sum all of which may have been subnormal, hence zero, in formats of float32's exponents
KEPT_ELEMENTS = 1 << 22  # of a reference kept whole, so that a diagnosis may look at it again (32 MiB)
# metrics whose limit depends on what the contract allows
BY_CONTRACT = frozenset({"budget_max", "excess_db", "excess_row_db", *GATED})
# input classes that ask for NaN and Inf: a reference of nothing else is what they declare
MAY_BE_NONFINITE = frozenset({"specials", "codes", "wide", "huge", "negative-zero"})
NOTHING_FINITE = "no expected element is finite: NaN and Inf are where they should be, and there is nothing to measure"
NEAR_BUDGET = 0.7  # of a contract's budget: healthy units stay below (docs/budgets.md); above it a side warns


@dataclass(frozen=True)
class SideTensor:
    """One dump's tensor as the judge sees it.

    variants       every distinct result of the repeats, first first; all are judged
    never_written  elements that held the poison of both runs
    changed        operands that the run wrote to: what came later had others
    contract       what the call promised
    derived        metrics of metrics.registry.DERIVED that whoever sees all outputs and operands of the side has found
    """

    label: str
    format: str
    shape: tuple[int, ...]
    sha256: str
    variants: tuple[Rows, ...]
    contract: str = ""
    never_written: int = 0
    changed: tuple[str, ...] = ()
    repeats: int = 1
    derived: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """What measuring left of one side: a measurement per variant against the truth and against the rounded truth, its total error, the
    expected rows (codes or values) and their budgets where they were few enough to keep, what the reference could have shown, and how
    many elements differ from it and are right all the same, with the reason."""

    truth: tuple[Measured, ...]
    rounded: tuple[Measured, ...]
    total: tuple[Mapping[str, Any], ...]
    expected: Rows | None
    resolution: Mapping[str, Any]
    coded: bool
    budget: NDArray[np.float64] | None
    exempt: tuple[int, str]
    problem: Any


def side_of(label: str, tensor: Coded, sha256: str = "", contract: str = "") -> SideTensor:
    """A side held in memory."""
    rows = tensor.codes.reshape(rows_and_columns(tensor.shape))
    return SideTensor(label, tensor.format, tensor.shape, sha256, (lambda first, end: rows[first:end],), contract)


def facts_of(case: Case, family: str, output: Output, contract: str) -> dict[str, Any]:
    """What gates may ask about a tensor: see gates.FACTS."""
    rows, columns = rows_and_columns(output.shape)
    return {
        "op": case.op, "family": family, "format": case.format, "out_format": get_format(output.format).family, "recipe": case.recipe,
        "quantised": bool(case.recipe), "lane": case.lane, "input": case.input_class, "direction": case.direction, "tensor": output.name,
        "exact": output.exact, "contract": contract, "long_rows": columns >= FEWEST, "long_columns": rows >= FEWEST,
        "large_tiles": min(rows, TILE) * min(columns, TILE) >= FEWEST,
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
    by_side: dict[str, _Found] = {}
    by_pair: dict[tuple[str, str], Measured] = {}
    groups = _kin(fitting, apart.meaning if apart else {s.label: id(references.get(s.label)) for s in fitting})
    for kin in groups:
        _measure(kin, references.get(kin[0].label), gates, by_side, by_pair)
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


# measuring


def _kin(sides: Sequence[SideTensor], meaning: Mapping[str, Hashable]) -> list[list[SideTensor]]:
    """Sides that hold the same kind of number: one format, one meaning."""
    groups: dict[tuple[str, Hashable], list[SideTensor]] = {}
    for s in sides:
        groups.setdefault((s.format, meaning[s.label]), []).append(s)
    return list(groups.values())


def _measure(
    sides: Sequence[SideTensor],
    reference: Reference | None,
    gates: Sequence[Gate],
    by_side: dict[str, _Found],
    by_pair: dict[tuple[str, str], Measured],
) -> None:
    """All sides of one format against the reference and each other, one pass over the panels."""
    shape, fmt = sides[0].shape, sides[0].format
    tolerances = tuple(dict.fromkeys((g.rtol, g.atol) for g in gates if g.metric == "allclose_violations"))
    coded = reference is not None and reference.kind == "codes"
    rounded = reference is not None and not coded and any(g.round_expected for g in gates)

    def meter(truth: bool) -> Meter:
        if truth and not coded:
            return Meter(shape, fmt, reference=True, allclose=tolerances, top=WORST)
        return Meter(shape, fmt, expected_format=fmt, allclose=tolerances, top=WORST)

    lines = any(g.metric in GATED for g in gates)
    # equal bytes are measured once: the digest was verified when the side was read
    keys = {s.label: s.sha256 if s.sha256 and len(s.variants) == 1 else s.label for s in sides}
    distinct = {keys[s.label]: s for s in reversed(sides)}
    kept: list[Panel] | None = [] if reference and math.prod(shape) <= KEPT_ELEMENTS else None
    resolution = None if reference is None or coded else ResolutionMeter(rows_and_columns(shape)[1], fmt, reference.problem)
    truth = {k: [meter(True) for _ in s.variants] for k, s in distinct.items()} if reference else {}
    against_rounded = {k: [meter(False) for _ in s.variants] for k, s in distinct.items()} if rounded else {}
    total = {k: [TotalMeter(rows_and_columns(shape)[0], fmt) for _ in s.variants] for k, s in distinct.items()}
    unquantised = reference.unquantised() if reference and reference.unquantised else None
    unequal = [(a, b) for a, b in itertools.combinations(sides, 2) if keys[a.label] != keys[b.label]]
    pairs = {(a.label, b.label): meter(False) for a, b in unequal}
    exempt = dict.fromkeys(truth, 0)
    for panel in reference.panels() if reference else _panels(shape):
        first, end = panel.first_row, panel.first_row + len(panel.values)
        codes = {k: [rows(first, end) for rows in s.variants] for k, s in distinct.items()}
        expected = encode(panel.values, fmt) if rounded else panel.values
        for k in truth:
            settled = [_settled(c, panel, reference, fmt) for c in codes[k]]
            exempt[k] += max(count for _, count in settled)
            for m, (c, _) in zip(truth[k], settled, strict=True):
                m.update(first, c, panel.values, panel.budget, panel.typical)
            for m, (c, _) in zip(against_rounded.get(k, ()), settled, strict=False):
                m.update(first, c, expected)
        if unquantised is not None:
            source = next(unquantised)
            assert source.first_row == first
            assert source.values.shape == panel.values.shape
            for k in truth:
                for t, c in zip(total[k], codes[k], strict=True):
                    t.update(first, c, panel.values, source.values, panel.budget)
        for (a, b), m in pairs.items():
            m.update(first, codes[keys[a]][0], codes[keys[b]][0])
        if kept is not None:
            kept.append(panel)
        if resolution is not None and panel.budget is not None:
            resolution.update(first, panel.values, panel.budget, panel.typical if lines else None)
        elif panel.budget is None:
            resolution = None
    if reference is None:
        by_pair.update({pair: m.result() for pair, m in pairs.items()})
        return
    seen = reference.resolution if resolution is None else resolution.result().as_dict()
    expected_rows = rows_of(np.concatenate([p.values for p in kept])) if kept else None
    budgets = [p.budget for p in kept or () if p.budget is not None]
    budget = np.concatenate(budgets) if budgets else None
    results = {k: [m.result() for m in meters] for k, meters in truth.items()}
    roundeds = {k: [m.result() for m in meters] for k, meters in against_rounded.items()}
    why, problem = reference.exempt.why if reference.exempt else "", reference.problem
    for s in sides:
        k = keys[s.label]
        totals = tuple(t.result() if unquantised is not None else {} for t in total[k])
        against = tuple(roundeds.get(k, results[k]))
        by_side[s.label] = _Found(tuple(results[k]), against, totals, expected_rows, seen, coded, budget, (exempt[k], why), problem)
    by_pair.update({pair: m.result() for pair, m in pairs.items()})


def _settled(codes: Codes, panel: Panel, reference: Reference | None, fmt: str) -> tuple[Codes, int]:
    """The codes with the expected ones where others are right too; how many those are."""
    right = None if reference is None or reference.exempt is None else reference.exempt.mask(codes, panel.values, panel.first_row)
    if reference is None or right is None:
        return codes, 0
    settled = codes.copy()
    settled[right] = panel.values[right] if reference.kind == "codes" else encode(panel.values[right], fmt)
    return settled, int(right.sum())


def _panels(shape: tuple[int, ...]) -> Iterator[Panel]:
    for first, end in row_blocks(shape):
        yield Panel(first, np.empty((end - first, 0)))


def measure_pair(a: SideTensor, b: SideTensor) -> Measured:
    """One side against the other, whole."""
    m = Meter(a.shape, a.format, expected_format=b.format, top=WORST)
    for first, end in row_blocks(a.shape):
        m.update(first, a.variants[0](first, end), b.variants[0](first, end))
    return m.result()


# judging a side


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


def _judge_side(s: SideTensor, output: Output, found: _Found | None, gates: Sequence[Gate], input_class: str) -> Side:
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
    count, why = found.exempt
    if count and verdict is not Verdict.FAIL:
        if count == total and verdict is Verdict.PASS:
            verdict = Verdict.WARN  # right, but nothing was measured
        note = "; ".join(filter(None, (f"{count} of {total} {why}", note)))
    if not note and len(s.variants) == 1 and s.repeats > 1:
        bound = f" (95 %: at most {number(3 / s.repeats, 2)} of all runs do)" if s.repeats > 3 else ""
        note = f"0 of {s.repeats} repeats differ{bound}"
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


def _name_the_cause(side: Side, s: SideTensor, case: Case, output: Output, found: _Found, inputs: Inputs) -> Side:
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
        by_side: dict[str, _Found] = {}
        _measure([s], under(s.label, contract), gates, by_side, {})
        found = by_side[s.label]
        judged = [_judge_measured(m, r, t, gates, s) for m, r, t in zip(found.truth, found.rounded, found.total, strict=True)]
        if all(j.verdict in (Verdict.PASS, Verdict.WARN) for j in judged):
            used = max(float(m.metrics["budget_max"]) for m in found.truth)
            sentence = f"outside {s.contract}, which was promised, and inside {contract} ({number(used, 2)} × its budget)"
            return replace(side, off_contract=contract, note=sentence)
    return side


def _sketched(side: Side, s: SideTensor, found: _Found | None, inputs: Inputs) -> Side:
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


def _worst_variant(found: _Found) -> int:
    return max(range(len(found.truth)), key=lambda i: found.truth[i].metrics.get("budget_max") or 0.0)
