"""judge: one output tensor of one case over all its sides, in one pass over row panels.

Every side is measured against the reference, every pair of sides against each other; gates and structural checks turn the
measurements into verdicts, and the verdicts into an attribution: who is off. Nothing here reads files or runs devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import looser_contracts
from accuracy_eval.formats import encode, get_format
from accuracy_eval.gates import Gate, Profile
from accuracy_eval.messages import number
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import Meter
from accuracy_eval.ops.spec import Output, Panel, Reference, row_blocks, rows_and_columns
from accuracy_eval.records import Attribution, Case, Coded, Diagnosis, Pair, Side, TensorResult, Verdict

Codes = NDArray[Any]
Rows = Callable[[int, int], Codes]  # (first, end) -> codes [end - first, columns] of the tensor's 2-D view
WORST = 16
_ROUNDED = "rounded."
NEAR_BUDGET = 0.7  # of a contract's budget: healthy units stay below (docs/budgets.md); above it a side warns


@dataclass(frozen=True)
class SideTensor:
    """One dump's tensor as the judge sees it.

    variants       every distinct result of the repeats, first first; all are judged
    never_written  elements that held the poison of both runs
    contract       what the call promised
    """

    label: str
    format: str
    shape: tuple[int, ...]
    sha256: str
    variants: tuple[Rows, ...]
    contract: str = ""
    never_written: int = 0
    repeats: int = 1


def side_of(label: str, tensor: Coded, sha256: str = "", contract: str = "") -> SideTensor:
    """A side held in memory."""
    rows = tensor.codes.reshape(rows_and_columns(tensor.shape))
    return SideTensor(label, tensor.format, tensor.shape, sha256, (lambda first, end: rows[first:end],), contract)


def facts_of(case: Case, family: str, output: Output, contract: str) -> dict[str, Any]:
    """What gates may ask about a tensor: see gates.FACTS."""
    return {
        "op": case.op, "family": family, "format": case.format, "out_format": get_format(output.format).family, "recipe": case.recipe,
        "quantised": bool(case.recipe), "lane": case.lane, "input": case.input_class, "direction": case.direction, "tensor": output.name,
        "exact": output.exact, "contract": contract,
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
) -> TensorResult:
    """Verdicts of every side and pair of one output.

    references    by side label: sides of another encoding have their own. Empty: no reference, no side passes
    cross_format  compare a pair of two encodings of one family by value instead of calling it not comparable
    under         (side label, contract) -> the reference with the budget of another contract: names what a broken promise kept
    """
    gates = profile.applicable(facts_of(case, family, output, sides[0].contract))
    fitting = [s for s in sides if s.shape == output.shape and get_format(s.format).family == get_format(output.format).family]
    by_side: dict[str, list[Measured]] = {}
    by_pair: dict[tuple[str, str], Measured] = {}
    for kin in _kin(fitting, references):
        _measure(kin, references.get(kin[0].label), gates, by_side, by_pair)
    for a, b in itertools.combinations(fitting, 2):
        # kept apart above: other promises about the same numbers compare, other numbers only on request
        wanted = cross_format or (a.format == b.format and a.contract != b.contract)
        if wanted and (a.label, b.label) not in by_pair:
            by_pair[a.label, b.label] = _measure_pair(a, b)
    judged = {s.label: _judge_side(s, output, references.get(s.label), by_side.get(s.label, []), gates) for s in sides}
    if under is not None:
        for s in fitting:
            judged[s.label] = _name_the_contract(judged[s.label], s, case, gates, under)
    pairs = tuple(
        _judge_pair(output, judged[a.label], judged[b.label], by_pair.get((a.label, b.label)), bool(references))
        for a, b in itertools.combinations(sides, 2)
    )
    verdicts = [s.verdict for s in judged.values()] if references or not pairs else []
    verdict = max([*verdicts, *(p.verdict for p in pairs)], key=lambda v: v.severity)
    return TensorResult(case_name, case, family, candidate, output.name, output.shape, verdict, tuple(judged.values()), pairs)


# measuring


def _kin(sides: Sequence[SideTensor], references: Mapping[str, Reference]) -> list[list[SideTensor]]:
    """Sides that hold the same kind of number: one format, one reference."""
    groups: dict[tuple[str, int], list[SideTensor]] = {}
    for s in sides:
        groups.setdefault((s.format, id(references.get(s.label))), []).append(s)
    return list(groups.values())


def _measure(
    sides: Sequence[SideTensor],
    reference: Reference | None,
    gates: Sequence[Gate],
    by_side: dict[str, list[Measured]],
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

    # equal bytes are measured once: the digest was verified when the side was read
    distinct = {s.sha256 or s.label: s for s in reversed(sides)}
    keys = {s.label: s.sha256 or s.label for s in sides}
    truth = {k: [meter(True) for _ in s.variants] for k, s in distinct.items()} if reference else {}
    against_rounded = {k: [meter(False) for _ in s.variants] for k, s in distinct.items()} if rounded else {}
    pairs = {(a.label, b.label): meter(False) for a, b in itertools.combinations(sides, 2)}
    for panel in reference.panels() if reference else _panels(shape):
        first, end = panel.first_row, panel.first_row + len(panel.values)
        codes = {k: [rows(first, end) for rows in s.variants] for k, s in distinct.items()}
        expected = encode(panel.values, fmt) if rounded else panel.values
        for k in truth:
            for m, c in zip(truth[k], codes[k], strict=True):
                m.update(first, c, panel.values, panel.budget)
            for m, c in zip(against_rounded.get(k, ()), codes[k], strict=False):
                m.update(first, c, expected)
        for (a, b), m in pairs.items():
            m.update(first, codes[keys[a]][0], codes[keys[b]][0])
    for s in sides:
        found = [m.result() for m in truth.get(keys[s.label], ())]
        if rounded:
            found = [_with_rounded(m, r.result()) for m, r in zip(found, against_rounded[keys[s.label]], strict=True)]
        by_side[s.label] = found
    by_pair.update({pair: m.result() for pair, m in pairs.items()})


def _panels(shape: tuple[int, ...]) -> Iterator[Panel]:
    for first, end in row_blocks(shape):
        yield Panel(first, np.empty((end - first, 0)))


def _with_rounded(truth: Measured, rounded: Measured) -> Measured:
    """The truth's measurement with the metrics against the rounded truth under a prefix of their own."""
    return replace(truth, metrics={**truth.metrics, **{_ROUNDED + k: v for k, v in rounded.metrics.items()}})


def _measure_pair(a: SideTensor, b: SideTensor) -> Measured:
    m = Meter(a.shape, a.format, expected_format=b.format, top=WORST)
    for first, end in row_blocks(a.shape):
        m.update(first, a.variants[0](first, end), b.variants[0](first, end))
    return m.result()


# judging a side


def _judge_side(s: SideTensor, output: Output, reference: Reference | None, measured: Sequence[Measured], gates: Sequence[Gate]) -> Side:
    base = Side(s.label, s.format, s.sha256, Verdict.INCONCLUSIVE, s.contract)
    if s.shape != output.shape:
        sentence = f"the output is {list(s.shape)}; the case asks for {list(output.shape)}"
        return replace(base, verdict=Verdict.FAIL, diagnoses=(Diagnosis("shape-mismatch", sentence),), note=sentence)
    if get_format(s.format).family != get_format(output.format).family:
        sentence = f"the output is {s.format}; the case asks for {output.format}"
        return replace(base, verdict=Verdict.FAIL, diagnoses=(Diagnosis("format-mismatch", sentence),), note=sentence)
    found: list[Diagnosis] = []
    if s.never_written:
        sentence = f"{s.never_written} of {math.prod(s.shape)} elements were never written: they held the fill of both runs"
        found.append(Diagnosis("never-written", sentence, {"count": s.never_written}))
    if not measured:
        note = "no reference: judged only against the other dumps" if reference is None else ""
        return replace(base, verdict=Verdict.FAIL if found else Verdict.INCONCLUSIVE, diagnoses=tuple(found), note=note)
    worst_of_repeats = max((_judge_measured(m, gates, s) for m in measured), key=lambda side: side.verdict.severity)
    if len(measured) > 1:
        sentence = f"{len(measured)} different results in {s.repeats} runs of the same call; every one was judged"
        found.append(Diagnosis("nondeterministic", sentence, {"count": len(measured)}))
    verdict = worst_of_repeats.verdict
    if s.never_written:
        verdict = Verdict.FAIL
    elif len(measured) > 1 and verdict is Verdict.PASS:
        verdict = Verdict.WARN
    note = worst_of_repeats.note
    if not note and len(measured) == 1 and s.repeats > 1:
        note = f"0 of {s.repeats} repeats differ (95 %: at most {number(min(1.0, 3 / s.repeats), 2)} of all runs do)"
    return replace(worst_of_repeats, verdict=verdict, diagnoses=(*found, *worst_of_repeats.diagnoses), note=note)


def _judge_measured(m: Measured, gates: Sequence[Gate], s: SideTensor) -> Side:
    """Gates and structural checks on one measurement."""
    rounded = {k.removeprefix(_ROUNDED): v for k, v in m.metrics.items() if k.startswith(_ROUNDED)} or m.metrics
    results = tuple(g.judge(rounded if g.round_expected else m.metrics) for g in gates)
    found = structural(m)
    side = Side(
        s.label, s.format, s.sha256, Verdict.PASS, s.contract, metrics=_reported(m),
        gates=results, diagnoses=tuple(found), worst=tuple(m.worst),
    )  # fmt: skip
    if math.prod(s.shape) == 0:
        return replace(side, verdict=Verdict.INCONCLUSIVE, note="the output is empty: there is nothing to judge")
    if found or any(g.passed is False for g in results):
        return replace(side, verdict=Verdict.FAIL)
    if not any(g.passed for g in results):
        return replace(side, verdict=Verdict.INCONCLUSIVE, note="no gate of the profile could be applied")
    near = m.metrics.get("budget_max")
    if s.contract and near is not None and near > NEAR_BUDGET and any(g.metric == "budget_max" for g in gates):
        return replace(side, verdict=Verdict.WARN, note=f"the worst element uses {number(100 * near, 3)} % of its budget")
    return side


def _reported(m: Measured) -> dict[str, Any]:
    """The metrics a report shows: those of the truth, and the NaN and Inf counts of both sides."""
    counts: dict[str, Any] = {}
    for side, c in (("actual", m.classes.actual), ("expected", m.classes.expected)):
        counts[f"nan_{side}"], counts[f"inf_{side}"] = c.nan, c.pos_inf + c.neg_inf
    return {**{k: v for k, v in m.metrics.items() if not k.startswith(_ROUNDED)}, **counts}


def _name_the_contract(side: Side, s: SideTensor, case: Case, gates: Sequence[Gate], under: Callable[[str, str], Reference]) -> Side:
    """A side that breaks nothing but its budget, with the tightest looser contract it keeps, if it keeps one."""
    broken = {g.metric for g in side.gates if g.passed is False}
    if side.verdict is not Verdict.FAIL or broken != {"budget_max"} or s.never_written:
        return side
    limit = next(g.limit for g in side.gates if g.metric == "budget_max")
    for contract in looser_contracts(s.contract, case.format.split("+")):
        by_side: dict[str, list[Measured]] = {}
        _measure([s], under(s.label, contract), gates, by_side, {})
        used = max(float(m.metrics["budget_max"]) for m in by_side[s.label])
        if used <= limit:
            sentence = f"outside {s.contract}, which was promised, and inside {contract} ({number(used, 2)} × its budget)"
            return replace(side, off_contract=contract, note=sentence)
    return side


def structural(m: Measured) -> list[Diagnosis]:
    """What fails under every profile: NaN and Inf sets that differ, and an all-zero output where something else was expected."""
    found = []
    classes, metrics = m.classes, m.metrics
    for kind, here, there, first in (
        ("nan", classes.nan_actual_only, classes.nan_expected_only, classes.first_nan_actual_only),
        ("inf", classes.inf_actual_only, classes.inf_expected_only, classes.first_inf_actual_only),
    ):
        name = {"nan": "NaN", "inf": "Inf"}[kind]
        if here and first is not None:
            index = _index(first, m.shape)
            sentence = f"{here} of {metrics['count']} elements are {name} where the other side is not, the first at {index}"
            found.append(Diagnosis(f"{kind}-in-actual", sentence, {"index": index, "count": here}))
        elif there:
            sentence = f"{there} of {metrics['count']} expected elements are {name} and the output has other values there"
            found.append(Diagnosis(f"{kind}-in-expected", sentence, {"count": there}))
    if m.all_zero and classes.expected.zero < metrics["count"]:  # zeros of the rounded truth: tiny values may well round to 0
        found.append(Diagnosis("all-zero", f"all {metrics['count']} elements are zero; the largest expected is {number(m.max_expected)}"))
    return found


def _index(flat: int, shape: tuple[int, ...]) -> int | list[int]:
    index = [int(i) for i in np.unravel_index(flat, shape)] if shape else []
    return index[0] if len(index) == 1 else index


# judging a pair


def _judge_pair(output: Output, a: Side, b: Side, measured: Measured | None, referenced: bool) -> Pair:
    """Who is off, from the verdicts of both sides and their bytes; without a reference, from the bytes and the distance alone."""
    common = {"metrics": _reported(measured), "worst": measured.worst} if measured else {}

    def pair(verdict: Verdict, attribution: Attribution, sentence: str, found: Sequence[Diagnosis] = ()) -> Pair:
        return Pair(a.label, b.label, verdict, attribution, sentence, diagnoses=tuple(found), **common)  # type: ignore[arg-type]

    sides = max(a.verdict, b.verdict, key=lambda v: v.severity)
    if measured is None:
        if any(d.code in ("shape-mismatch", "format-mismatch") for d in (*a.diagnoses, *b.diagnoses)):
            return pair(Verdict.FAIL, Attribution.NOT_COMPARABLE, "a shape or format is not what the case asks for")
        what = f"formats {a.format} and {b.format}" if a.format != b.format else "outputs for two fp8 encodings"
        return pair(sides, Attribution.NOT_COMPARABLE, f"{what} hold different numbers; each side was judged by its own reference")
    same = a.sha256 == b.sha256 and bool(a.sha256)
    found = [] if referenced else structural(measured)
    if not referenced:
        if same:
            return pair(Verdict.PASS, Attribution.IDENTICAL, "same bytes; nothing says whether they are right")
        limit = _distance_limit(output, measured)
        verdict = Verdict.FAIL if found or not limit[0] else Verdict.PASS
        return pair(verdict, Attribution.UNDETERMINED, f"{limit[1]}; without a reference nobody can be named", found)
    if same:
        return pair(sides, Attribution.IDENTICAL, f"same bytes; both {sides}")
    good_a, good_b = (s.verdict in (Verdict.PASS, Verdict.WARN) for s in (a, b))
    if a.contract != b.contract:
        return pair(
            sides, Attribution.DIFFERENT_CONTRACTS, f"{a.label} promises {a.contract}, {b.label} {b.contract}; each was judged by its own"
        )
    named = [s for s in (a, b) if s.off_contract]
    if named and all(s.off_contract or s.verdict in (Verdict.PASS, Verdict.WARN) for s in (a, b)):
        text = "; ".join(f"{s.label} keeps {s.off_contract} instead of {s.contract}" for s in named)
        return pair(sides, Attribution.OFF_CONTRACT, text)
    if a.verdict is Verdict.FAIL and b.verdict is Verdict.FAIL:
        return pair(sides, Attribution.BOTH_OFF, f"{a.label} and {b.label} are both off the reference")
    if a.verdict is Verdict.FAIL and good_b:
        return pair(sides, Attribution.A_OFF, f"{a.label} is off; {b.label} is right")
    if b.verdict is Verdict.FAIL and good_a:
        return pair(sides, Attribution.B_OFF, f"{b.label} is off; {a.label} is right")
    if good_a and good_b:
        count, total = measured.metrics.get("mismatch_count"), measured.metrics.get("count")
        return pair(sides, Attribution.EQUIVALENT, f"{number(count)} of {number(total)} elements differ, both sides within their limits")
    return pair(sides, Attribution.UNDETERMINED, f"{a.label} {a.verdict}, {b.label} {b.verdict}")


# rtol and atol under which two arrays of one format are taken for roundings of one result: those of torch.testing.assert_close
_CLOSE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}


def _distance_limit(output: Output, m: Measured) -> tuple[bool, str]:
    """Whether two outputs are as near as roundings of one result are, and how near that is, in words."""
    fmt = get_format(output.format)
    if output.exact or fmt.kind == "int":
        return m.metrics["mismatch_count"] == 0, f"{m.metrics['mismatch_count']} codes differ; integers and codes must be equal"
    rel, steps = m.metrics.get("rel_fro"), m.metrics.get("ulp_max")
    if fmt.bits <= 8:
        return bool(steps is not None and steps <= 1), f"the largest difference is {number(steps)} code steps; allowed 1"
    allowed = 2 * _CLOSE[fmt.name][0]
    return bool(rel is not None and rel <= allowed), f"relative difference {number(rel)}; allowed {number(allowed)}"
