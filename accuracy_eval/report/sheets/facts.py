"""Sheets of what the judged tensors share: scale factors, platforms, limits, cases left out, definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accuracy_eval import messages
from accuracy_eval.metrics.registry import KNOWN
from accuracy_eval.records import GateResult, Results, Verdict
from accuracy_eval.report.platforms import Fact, numerics_facts, platform_facts
from accuracy_eval.report.rows import MARGIN_FORMAT, margin_format, metric_names, tensor_rows
from accuracy_eval.report.scales import scale_agreements
from accuracy_eval.report.sheets.columns import BOLD, COUNT, VERDICT, verdict_cell
from accuracy_eval.report.styles import MARK, PLAIN, WRAP, Cell, Style, TableColumn
from accuracy_eval.report.volumes import Volume
from accuracy_eval.report.workbook import Book


def scale_sheet(book: Book, results: Results, part: Volume) -> None:
    count = Style("#,##0")
    columns = [
        TableColumn("recipe"), TableColumn("actual"), TableColumn("against"), TableColumn("tensors", count), TableColumn("scales", count),
        TableColumn("differ", count), TableColumn("largest relative difference", Style("0.00E+00")), TableColumn("rule"),
        TableColumn("expected rule"), TableColumn("what differs", PLAIN, 70),
    ]  # fmt: skip
    data = [
        [r.recipe, r.actual, r.expected, r.tensors, r.scales, Cell(r.differing, Style("#,##0", mark=True)) if r.differing else 0,
         r.max_rel, r.rule, r.expected_rule, Cell(r.sentence, MARK) if r.sentence else ""]
        for r in scale_agreements(part.tensors)
    ]  # fmt: skip
    book.table("Scales", columns, data, note="Scale factors by recipe: bytes that differ, and by which rounding rule.", freeze=3)


def platform_sheet(book: Book, results: Results, part: Volume) -> None:
    """One row per property, one column per dump; a row whose values differ says so and is marked."""
    note = "What each dump was made on, as far as any of them knows it. Filter the first column to see the differences."
    _fact_table(book, results, "Platforms", "property", platform_facts(results.dumps), note)


def numerics_sheet(book: Book, results: Results, part: Volume) -> None:
    """One row per way to multiply, then per answer, one column per dump."""
    sentences, answers = numerics_facts(results.dumps)
    note = "Numerics cards: what each probed device's products are made of. First a sentence per way to multiply, then every answer."
    _fact_table(book, results, "Numerics", "products of", [*sentences, *answers], note)


def _fact_table(book: Book, results: Results, name: str, title: str, facts: Sequence[Fact], note: str) -> None:
    data = []
    for fact in facts:
        style = Style(wrap=True, mark=fact.differs, left=True)
        mark = Cell("differs" if fact.differs else "same", MARK if fact.differs else PLAIN)
        data.append([mark, fact.name, *(Cell("unknown" if v is None else v, style) for v in fact.values)])
    width = max(22.0, min(46.0, 110 / max(len(results.dumps), 1)))
    labels = [TableColumn(messages.visible(d.label), WRAP, width) for d in results.dumps]
    book.table(name, [TableColumn("differs"), TableColumn(title, WRAP, 30), *labels], data, note=note, freeze=2)


def gate_sheet(book: Book, results: Results, part: Volume) -> None:
    """The profile's limits, and what became of each in this workbook."""
    used: dict[str, list[GateResult]] = {}
    for result in part.tensors:
        for row in tensor_rows(result):
            for gate in row.gates:
                used.setdefault(gate.gate, []).append(gate)
    data = [
        [g.gate, g.metric, g.comparison, _number(g.limit), g.applies_to, *_gate_counts(used.get(g.gate, ())), g.source]
        for g in results.gates
    ]
    known = {g.gate for g in results.gates}  # others: a user's rtol and atol, or what fails under every profile
    others = [gates for name, gates in used.items() if name not in known]
    data += [[g[0].gate, g[0].metric, g[0].comparison, g[0].limit, "", *_gate_counts(g), g[0].source] for g in others]
    columns = [
        TableColumn("gate", BOLD),
        TableColumn("metric"),
        TableColumn("comparison", Style(center=True)),
        TableColumn("limit", Style(right=True)),
        TableColumn("applies to", WRAP, 34),
        TableColumn("applied", COUNT),
        TableColumn("broken", COUNT),
        TableColumn("not applicable", COUNT),
        TableColumn("least margin", Style(MARGIN_FORMAT), 20),  # "76,235 × beyond" and longer
        TableColumn("limit from", WRAP, 60),
    ]
    note = f"Profile {messages.visible(results.profile)}. Every limit has a source; a gate that could not be applied never counts as kept."
    book.table("Gates", columns, data, note=note)


def _gate_counts(gates: Sequence[GateResult]) -> list[Any]:
    broken = sum(g.passed is False for g in gates)
    least = min((g.margin for g in gates if g.margin is not None), default=None)
    shown = Cell(broken, replace(COUNT, verdict=Verdict.FAIL)) if broken else broken
    return [sum(g.passed is not None for g in gates), shown, sum(g.passed is None for g in gates), Cell(least, Style(margin_format(least)))]


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def skipped_sheet(book: Book, results: Results, part: Volume) -> None:
    items = sorted(part.skipped, key=lambda n: -n.verdict.severity)
    columns = [VERDICT, TableColumn("dump"), TableColumn("candidate"), TableColumn("reason", WRAP, 90), TableColumn("case", PLAIN, 58)]
    data = ([verdict_cell(n.verdict), n.label, n.candidate, n.reason, n.case_id] for n in items)
    book.table(
        "Not compared", columns, data, note="Left out of the comparison. UNSUPPORTED is counted and allowed; the others are not a pass."
    )


def definition_sheet(book: Book, results: Results, part: Volume) -> None:
    names = set(metric_names(row for result in part.tensors for row in tensor_rows(result)))
    columns = [TableColumn("metric", BOLD), TableColumn("unit"), TableColumn("better"), TableColumn("definition", WRAP, 110)]
    data = [[m.name, m.unit, m.better, m.definition] for m in KNOWN.values() if m.name in names]
    note = "a is actual, e expected, d = a - e; sums run over the elements that are finite on both sides."
    book.table("Definitions", columns, data, note=note)
