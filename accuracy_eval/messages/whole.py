"""The whole text about a tensor: of a side, of a pair, of all of them."""

from __future__ import annotations

from collections.abc import Iterable

from accuracy_eval.messages.gates import deciding_gate, failed_gates, gate_clause, place_of
from accuracy_eval.messages.measurements import counts_text, element_text, errors_text, expectation_text, scales_text
from accuracy_eval.messages.reasons import pair_reason, side_reason
from accuracy_eval.messages.resolution import side_resolution
from accuracy_eval.messages.values import REFERENCE, USUAL_CANDIDATES, index_text, number, visible
from accuracy_eval.records import Attribution, Pair, Side, TensorResult, Verdict, WorstElement


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
    if expected := expectation_text(side.expectation):
        lines.append(f"  expected: {expected}")
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
