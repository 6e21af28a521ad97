"""What a person reads about a result: one wording for the command line, reports, JUnit and `check().message`.

Everything is built from records alone. Numbers are printed with as many digits as it takes to tell them from what they are compared
with; codes in hex at the width of their format; characters a terminal or an XML file cannot show are replaced by visible ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import get_format
from accuracy_eval.records import ERRORS, Attribution, Diagnosis, GateResult, Pair, ScaleFacts, Side, TensorResult, Verdict, WorstElement

REFERENCE = "reference"  # what a side is judged by, where a dump's label would stand
USUAL_CANDIDATES = ("", "default")  # not named: the framework's own choice
COMPARISON_WORDS = {"<=": "must be at most", "<": "must be under", ">=": "must be at least", ">": "must be over", "==": "must be"}
# metrics of many elements: of lines and tiles, of a head of attention
LINES = {"row_budget": "row", "col_budget": "column", "tile_budget": "128×128 tile"}
FACTORS = {"values_factor": "factor of V", "scores_factor": "factor of the scores"}
OF_MANY = frozenset({*LINES, *FACTORS})
# the worst element is an example of these
LOCATED = ("budget_max", "max_abs", "max_scaled", "ulp_max")
MISMATCHES = ("mismatch_count", "value_mismatch_count")  # and the worst element with other codes of these
CONSISTENT = "consistent, not identified"  # of an explanation: as its status says
ATTRIBUTION_WORDS = {
    Attribution.NOT_COMPARABLE: "not comparable",
    Attribution.IDENTICAL: "same bytes",
    Attribution.DIFFERENT_CONTRACTS: "each by its own contract",
    Attribution.OFF_CONTRACT: "off its contract",
    Attribution.BOTH_OFF: "both off",
    Attribution.A_OFF: "{a} is off",
    Attribution.B_OFF: "{b} is off",
    Attribution.EQUIVALENT: "equivalent",
    Attribution.UNDETERMINED: "undetermined",
}
# C0, DEL, C1, surrogates, bidirectional overrides, BOM and non-characters: invisible, or illegal in XML 1.0, or able to rewrite a line
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""`text` on one line, unprintable characters written as escapes: \n, \t, \x1b, \u202e.

    With `lines`, tabs and line feeds stay as they are (CR LF becomes LF).
    """
    if text.isascii() and text.isprintable():
        return text
    text = _INVISIBLE.sub(_escape, text.replace("\r\n", "\n"))
    return text if lines else text.replace("\n", r"\n").replace("\t", r"\t")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def number(value: Any, digits: int = 4) -> str:
    """`value` with up to `digits` significant digits: 0.5703, 3.1e-4, 214, NaN, Inf, -Inf; "n/a" for None."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return visible(value)
    x = float(value)
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else ("Inf" if x > 0 else "-Inf")
    if not 0 < abs(x) < 1e-3:
        return re.sub(r"e\+?(-?)0*(\d)", r"e\1\2", f"{x:.{digits}g}")
    mantissa, _, exponent = f"{x:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def of_candidate(text: str, candidate: str) -> str:
    """Text about a result, followed by the candidate that made it where that is not the framework's own choice."""
    return visible(text) + ("" if candidate in USUAL_CANDIDATES else f" ({visible(candidate)})")


def exact(value: float) -> str:
    """A number that is compared for equality: a count in full, anything else as `number` prints it."""
    return str(int(value)) if float(value).is_integer() else number(value)


def numbers_apart(value: Any, other: Any, digits: int = 4) -> tuple[str, str]:
    """Both numbers with the fewest digits (at least `digits`) that print them differently, if they differ."""
    for n in range(digits, 18):
        texts = number(value, n), number(other, n)
        if texts[0] != texts[1]:
            return texts
    return number(value, digits), number(other, digits)


def code_text(code: int | None, fmt: str) -> str:
    """A code in hex at the width of its format ("0x3F12"); "" for None. A format this version does not know gets the digits it needs."""
    if code is None:
        return ""
    try:
        digits = get_format(fmt).code_digits
    except UsageError:
        digits = 1
    return f"0x{code:0{digits}X}"


def index_text(index: Iterable[int]) -> str:
    return "[" + ", ".join(str(i) for i in index) + "]"


def failed_gates(gates: Sequence[GateResult]) -> list[GateResult]:
    """The gates that were broken, furthest beyond the limit first (a limit of 0 has no margin and comes before all); those on many
    elements come last, since a single one is easier to look at."""
    broken = (g for g in gates if g.passed is False)
    return sorted(broken, key=lambda g: (g.metric in OF_MANY, -math.inf if g.margin is None else g.margin))


def deciding_gate(gates: Sequence[GateResult]) -> GateResult | None:
    """The gate to show when there is room for one: the one broken worst, else one not applied, else the one with least margin."""
    broken = failed_gates(gates)
    if broken:
        return broken[0]
    unapplied = [g for g in gates if g.passed is None]
    if unapplied:
        return unapplied[0]
    return min(gates, key=lambda g: math.inf if g.margin is None else g.margin) if gates else None


def gate_clause(gate: GateResult, contract: str = "", place: WorstElement | Sequence[int] | None = None) -> str:
    """One gate in words: value, limit, place, contract: "error 6.9 × budget at [12, 301] (contract fp32acc, B 3.1e-4; gate budget)".

    place  where the value was found: an element, or an index alone
    """
    name, context = visible(gate.gate), [f"contract {visible(contract)}"] if contract else []
    if gate.value is None:
        text = f"gate {name} was not applied: {visible(gate.note) or 'no value'}"
        return f"{text} ({context[0]})" if context else text
    equal = gate.comparison == "=="
    value, limit = (exact(gate.value), exact(gate.limit)) if equal else numbers_apart(gate.value, gate.limit, 3)
    limit = limit if equal else max(limit, number(gate.limit, 6), key=len)  # stated limits in full: 0.9999 is not 1
    index = place.index if isinstance(place, WorstElement) else place
    at = f" at {index_text(index)}" if index is not None else ""
    must = COMPARISON_WORDS.get(gate.comparison, gate.comparison)
    if gate.metric == "budget_max":
        text = f"{gate.error} error {value} × budget{at}".lstrip() + (f", {must} {limit} ×" if gate.limit != 1 else "")
        if isinstance(place, WorstElement) and place.budget is not None:
            context.append(f"B {number(place.budget, 2)}")
    elif gate.metric in LINES:
        where = "" if index is None else f" {index_text(index) if len(index) > 1 else index[0]}"
        text = f"{LINES[gate.metric]}{where} uses {value} × its typical budget, {must} {limit}"
    elif gate.metric in FACTORS:
        where = "" if index is None else f" in head {index_text(index)}"
        text = f"the {FACTORS[gate.metric]}{where} is off by {value} × what the contract allows, {must} {limit}"
    else:
        text = f"{visible(gate.metric)} {value}{at}, {must} {limit}"
    if gate.error and gate.metric != "budget_max":
        text = f"{gate.error} error: {text}"
    return f"{text} ({', '.join(context)}{'; ' if context else ''}gate {name})"


def place_of(gate: GateResult | None, metrics: Mapping[str, Any], worst: Sequence[WorstElement]) -> WorstElement | tuple[int, ...] | None:
    """Where a broken gate's value was found: the element if it is among the worst, else its index alone; None for sums and means."""
    if gate is None or gate.passed is not False:
        return None
    index = index_of(gate.metric, metrics)
    if index is None and gate.metric in MISMATCHES:
        return next((e for e in worst if e.expected_code != e.actual_code), None)
    if index is None:
        return worst[0] if worst and gate.metric in LOCATED else None
    return index if gate.metric in OF_MANY else next((e for e in worst if e.index == index), index)


def broken_element(side: Side) -> WorstElement | None:
    """The element at which a side's deciding gate was broken, where that is one element."""
    place = place_of(deciding_gate(side.gates), side.metrics, side.worst)
    return place if isinstance(place, WorstElement) else None


def index_of(metric: str, metrics: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The index at which a metric has its value; None for those of many elements that give no place."""
    index = metrics.get("inner_err_index" if metric == "inner_err_max" else f"{metric}_index")
    return None if index is None else (index,) if isinstance(index, int) else tuple(index)


EXPLAINED = "explained-by-datapath"


def causes(diagnoses: Iterable[Diagnosis], verdict: Verdict) -> str:
    """The named causes in one line: "k-tail-missing, gain"; "" when there are none. The arithmetic that made a PASS is no cause of it."""
    told = (d for d in diagnoses if d.code != EXPLAINED or verdict is not Verdict.PASS)
    return ", ".join(dict.fromkeys(visible(_cause_name(d)) for d in told))


def _cause_name(d: Diagnosis) -> str:
    """A diagnosis' code; of an explanation that does not tell one arithmetic from another, that."""
    identified = d.evidence.get("identified", d.evidence.get("status") != CONSISTENT)
    return d.code if d.code != EXPLAINED or identified else CONSISTENT


def who_is_off(pair: Pair) -> str:
    """The attribution in words: "mi300x is off", "same bytes", …"""
    return ATTRIBUTION_WORDS[pair.attribution].format(a=visible(pair.a), b=visible(pair.b))


def kept_contract(side: Side, name: str = "") -> str:
    """What a side off its contract keeps: "h200 keeps tf32 instead of fp32acc"."""
    return f"{name or visible(side.label)} keeps {visible(side.off_contract)} instead of {visible(side.contract)}"


def side_reason(side: Side) -> str:
    """Why a side has its verdict, in one clause."""
    gate = deciding_gate(side.gates)
    if gate is not None and (gate.passed is False or side.verdict is Verdict.PASS):
        return gate_clause(gate, side.contract, place_of(gate, side.metrics, side.worst))
    return _found(side.diagnoses, side.note) or (gate_clause(gate, side.contract) if gate else _NO_REASON)


def pair_reason(pair: Pair) -> str:
    """Why a pair has its verdict, in one sentence: the comparison's own, else its deciding gate."""
    gate = deciding_gate(pair.gates)
    clause = gate_clause(gate, place=place_of(gate, pair.metrics, pair.worst)) if gate else _NO_REASON
    return visible(pair.sentence) or _found(pair.diagnoses, "") or clause


_NO_REASON = "no gate applies and no reason was recorded"


def _found(diagnoses: Sequence[Diagnosis], note: str) -> str:
    """What was found, where no gate decided: the first sentence there is."""
    return next((visible(text) for text in (*(d.sentence for d in diagnoses), note) if text), "")


def element_text(element: WorstElement, fmt: str, actual: str, expected: str) -> str:
    """One element: "actual 0x3F12 = 0.5703 (mi300x), expected 0x3EED = 0.4629 (h200)"; the truth of a pair follows where known."""
    left, right = numbers_apart(element.actual, element.expected)
    text = f"actual {code_text(element.actual_code, fmt)} = {left}{_of(actual)}, expected "
    text += f"{code_text(element.expected_code, fmt)} = {right}" if element.expected_code is not None else right
    text += _of(expected)
    return text if element.reference is None else f"{text}, {REFERENCE} {number(element.reference, 9)}"


def _of(label: str) -> str:
    return f" ({visible(label)})" if label else ""


def counts_text(metrics: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """What differs and what is not finite: "214 of 65536 differ, NaN 0/0, Inf 0/0" (actual/expected); parts not measured are left out."""
    parts = []
    if metrics.get("mismatch_count") is not None:
        total = metrics.get("count", math.prod(shape))  # fewer than the shape holds where a part was looked at
        parts.append(f"{number(metrics['mismatch_count'])} of {number(total)} differ")
    for name, title in (("nan", "NaN"), ("inf", "Inf")):
        pair = metrics.get(f"{name}_actual"), metrics.get(f"{name}_expected")
        if pair != (None, None):
            parts.append(f"{title} {number(pair[0])}/{number(pair[1])}")
    return ", ".join(parts)


# how each error of a quantised result reads: what it is measured by, and the words around it
_ERROR_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "conversion": lambda m: f"{number(m.get('conversion_mismatch_count'))} wrong codes",
    "scale": lambda m: f"{number(m.get('scale_mismatch_count'))} wrong scales",
    "kernel": lambda m: f"{number(m.get('budget_max'), 3)} × budget",
    "total": lambda m: (
        f"{number(m.get('total_snr_db'))} dB"
        + (f" (ideal {number(m['ideal_snr_db'])} dB, excess {number(m['excess_db'], 2)} dB, of a row {number(m['excess_row_db'], 2)} dB)"
           if "excess_db" in m else "")
    ),
}  # fmt: skip


def failed_errors(side: Side) -> list[str]:
    """Which of the errors of a quantised result broke a limit, in the order of records.ERRORS."""
    broken = {g.error for g in side.gates if g.passed is False}
    return [e for e in ERRORS if e in broken]


def errors_text(side: Side) -> str:
    """The errors of a quantised result, each with its own verdict: "conversion 0 wrong codes, scale 0 wrong scales, kernel …"; "" where
    nothing was quantised, or the operands before that are not known."""
    judged = {g.error for g in side.gates}
    if judged <= {"", "kernel"}:
        return ""
    broken = failed_errors(side)
    return ", ".join(f"{e} {_ERROR_WORDS[e](side.metrics)}{' FAIL' if e in broken else ''}" for e in ERRORS if e in judged)


def scales_text(facts: ScaleFacts) -> str:
    """How scale factors differ: "exponent 0 (200), +1 (56); at most 1 of itself apart; rule rceil, expected floor"."""
    steps = ", ".join(f"{step:+d} ({count})" if step else f"0 ({count})" for step, count in facts.steps)
    parts = [f"exponent {steps}" if steps else "no finite pair"]
    if facts.nan_actual or facts.nan_expected:
        parts.append(f"NaN on one side {facts.nan_actual}/{facts.nan_expected}")
    if facts.max_rel is not None:
        parts.append(f"at most {number(facts.max_rel, 2)} of itself apart")
    parts.append(f"rule {facts.rule or 'unknown'}, expected {facts.expected_rule or 'unknown'}")
    return "; ".join(parts)


_EXPECTED = (("snr_db", "SNR", " dB"), ("bias_sigma", "bias", " σ"), ("mismatch_fraction", "flips", ""))


def expectation_text(expectation: Mapping[str, Any]) -> str:
    """Expected of normal data beside what was seen: "SNR 55.5 to 55.6 dB, seen 55.6; bias …; largest error 1e-5 of γ_K·|A||B|"."""
    parts = []
    for name, title, unit in _EXPECTED:
        if name in expectation and expectation[name][2] is not None:
            low, high, seen = (number(x, 3) for x in expectation[name])
            parts.append(f"{title} {low}{'' if low == high else f' to {high}'}{unit}, seen {seen}")
    bounds = expectation.get("bounds") or {}
    if bounds:
        shares = number(bounds["worst_case"], 2), number(bounds["probable"], 2)
        parts.append(f"largest error {shares[0]} of the worst case γ_K·|A||B|, {shares[1]} of its probable form")
    return "; ".join(parts)


def resolution_text(resolution: Mapping[str, Any]) -> str:
    """The smallest faults that would have failed: "element 3.1e-4, row 2.2e-3, gain 4e-6, the loss of any of 256 k".

    Kinds that no gate looks at (absent, or NaN in older files) are left out.
    """
    found = {k: resolution.get(k) for k in ("element", "row", "column", "tile", "gain")}
    parts = [f"{k} {_short(v)}" for k, v in found.items() if v is not None and v == v]
    if "probes" in resolution:  # lines were seen by random projections: no size of fault in them is certain to be caught
        parts[1:1] = [f"{k} {_short(resolution[f'{k}_95'])} (19 of 20)" for k in ("row", "column")]
    seen, total = resolution.get("k_seen", 0), resolution.get("k_total", 0)
    if total and seen == total:
        parts.append(f"the loss of any of {total} k")
    elif total:
        parts.append(f"the loss of {seen} of {total} k (not of k = {resolution.get('k_unseen')})")
    if "probes" in resolution:
        exact = f"{resolution['exact_rows']} rows and {resolution['exact_columns']} columns exactly"
        parts.append(f"by {exact}, all by {resolution['probes']} projections (standard error {_short(resolution['standard_error'])})")
    return ", ".join(parts)


def side_resolution(side: Side) -> str:
    """What would have failed the side; where its gates let nothing be stated, that, with their limits."""
    if side.resolution:
        return resolution_text(side.resolution)
    limits = dict.fromkeys(f"{g.metric} {g.comparison} {number(g.limit)}" for g in side.gates if g.passed)
    return f"not stated: the limits that judged ({', '.join(limits)}) gave no size of a fault" if limits else ""


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{visible(str(k))}: {_short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_short(v) for v in value[:8]) + (", …]" if len(value) > 8 else "]")
    return number(value, 3)


def side_message(result: TensorResult, side: Side) -> str:
    """The whole text about one dump's tensor judged by the reference.

    First line: verdict, case, output, why. Then, indented: the worst element and the counts, the source of the limit, other broken
    gates, gates that could not be applied, causes, and for a PASS the smallest faults that would have failed.
    """
    subject = f"output '{visible(result.tensor)}' ({visible(side.format)})"
    head = f"{_head(side.verdict, result)} {subject}: {side_reason(side)}"
    if side.scope != "full":
        head += f" [scope {visible(side.scope)}]"
    lines = [head]
    lines += _evidence(side, side.format, (side.label, REFERENCE), result.shape)
    lines += _gate_lines(side)
    parts = errors_text(side)
    lines += [f"  errors: {parts}"] if parts else []
    lines += [f"  scales: {scales_text(side.scales)}"] if side.scales and side.verdict is not Verdict.PASS else []
    lines += [f"  cause {visible(d.code)}: {visible(d.sentence)}" for d in side.diagnoses]
    if side.off_contract and side.off_contract not in side.note:
        lines.append(f"  off contract: breaks {visible(side.contract)}, keeps {visible(side.off_contract)}")
    if side.note and visible(side.note) not in head:
        lines.append(f"  note: {visible(side.note)}")
    if side.verdict in (Verdict.PASS, Verdict.WARN) and (seen := side_resolution(side)):
        lines.append(f"  would have failed: {seen}")
    if side.expectation:
        lines.append(f"  expected: {expectation_text(side.expectation)}")
    return "\n".join(lines)


def sides_message(judged: Iterable[tuple[TensorResult, Side]]) -> list[str]:
    """Lines on several outputs of one call, what failed first: of those that pass how near they are and what would have failed, of the
    others all but what healthy units show; limits and notes that were said before are not said again."""
    lines: list[str] = []
    for result, side in sorted(judged, key=lambda item: -item[1].verdict.severity):
        head, *more = side_message(result, side).split("\n")
        if side.verdict is Verdict.PASS:
            more = [line for line in more if line.startswith("  would have failed:")]
        said = [line for line in lines if line.startswith(("  limit ", "  note: "))]
        lines += [head, *(line for line in more if line not in said and not line.startswith("  expected: "))]
    return lines


def pair_message(result: TensorResult, pair: Pair) -> str:
    """The whole text about two dumps against each other; laid out as `side_message`."""
    fmt = next((s.format for s in result.sides if s.label == pair.a), "")
    subject = f"output '{visible(result.tensor)}'" + (f" ({visible(fmt)})" if fmt else "")
    a, b = visible(pair.a), visible(pair.b)
    lines = [f"{_head(pair.verdict, result)} {subject}, {a} against {b}: {pair_reason(pair)} [{pair.attribution}]"]
    lines += _evidence(pair, fmt, (pair.a, pair.b), result.shape)
    lines += _gate_lines(pair)
    lines += [f"  scales: {scales_text(pair.scales)}"] if pair.scales and pair.attribution is not Attribution.IDENTICAL else []
    lines += [f"  cause {visible(d.code)}: {visible(d.sentence)}" for d in pair.diagnoses]
    return "\n".join(lines)


def result_message(result: TensorResult) -> str:
    """Every side and pair of a tensor, the worst verdict first."""
    parts: list[tuple[int, str]] = [(-s.verdict.severity, side_message(result, s)) for s in result.sides]
    parts += [(-p.verdict.severity, pair_message(result, p)) for p in result.pairs]
    return "\n".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _head(verdict: Verdict, result: TensorResult) -> str:
    candidate = "" if result.candidate in USUAL_CANDIDATES else f" candidate '{visible(result.candidate)}'"
    return f"{verdict} {visible(result.case_id)}{candidate}"


def _evidence(subject: Side | Pair, fmt: str, labels: tuple[str, str], shape: tuple[int, ...]) -> list[str]:
    """The element the first line speaks of (else the one of largest error, with its index), and the counts."""
    counts = counts_text(subject.metrics, shape)
    actual, expected = labels
    if not subject.worst or subject.verdict is Verdict.PASS:
        return [f"  {visible(actual) or 'actual'} against {visible(expected)}: {counts}"] if counts else []
    place = place_of(deciding_gate(subject.gates), subject.metrics, subject.worst)
    said = isinstance(place, WorstElement) and isinstance(subject, Side)
    element = place if isinstance(place, WorstElement) else subject.worst[0]
    lead = "" if said else f"largest error at {index_text(element.index)}: "
    return [f"  {lead}{element_text(element, fmt, actual, expected)}{'; ' + counts if counts else ''}"]


def _gate_lines(subject: Side | Pair) -> list[str]:
    decided = deciding_gate(subject.gates)
    lines = []
    if decided is not None and decided.value is not None and decided.source:
        limit = f"{visible(decided.metric)} {decided.comparison} {number(decided.limit)}"
        lines.append(f"  limit {limit}: {visible(decided.source)}")
    for gate in failed_gates(subject.gates)[1:]:
        lines.append(f"  also broken: {gate_clause(gate, place=place_of(gate, subject.metrics, subject.worst))}")
    lines += [f"  {gate_clause(g)}" for g in subject.gates if g.passed is None and g is not decided]
    return lines


def wrong_product(found: Mapping[str, Any]) -> str:
    """What a certificate noted about one run of an exact product: "run 2: row 17, column 300 wrong"."""

    def named(word: str) -> str:
        at, count = found[f"{word}s"], found[f"{word}_count"]
        more = f" and {count - len(at)} more" if count > len(at) else ""
        return f"{word}{'' if count == 1 else 's'} {', '.join(map(str, at)) or 'none'}{more}"

    return f"run {found['run'] + 1}: {named('row')}; {named('column')} wrong"
