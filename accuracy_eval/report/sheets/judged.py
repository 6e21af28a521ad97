"""Sheets of every side and pair of dumps: verdicts, metrics, worst elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accuracy_eval import messages
from accuracy_eval.records import GateResult, Results, Side, Verdict, WorstElement
from accuracy_eval.report.pictures import subject_title
from accuracy_eval.report.rows import (
    MARGIN_FORMAT,
    Row,
    findings_first,
    margin_format,
    metric_format,
    metric_names,
    of_budget,
    reproduce,
    reproduce_element,
)
from accuracy_eval.report.sheets.columns import (
    COLUMN,
    KEYS,
    VERDICT,
    column,
    metric_cells,
    metric_column,
    used,
    verdict_cell,
)
from accuracy_eval.report.styles import CODE, PLAIN, Cell, Style, TableColumn
from accuracy_eval.report.volumes import Volume
from accuracy_eval.report.workbook import Book

QUIET_WORST = 1  # elements listed for a row that passed; a finding gets all it has


def verdict_sheet(book: Book, results: Results, part: Volume) -> None:
    rows = findings_first(replace(part.only(results), not_compared=()))
    # what a printed page has room for comes first
    lead = ["who", "actual", "expected", "case_id", "reason", "causes", "gate_margin", *used(rows, KEYS), "contract"]
    lead += used(rows, ("off_contract", "scope"))
    tail = [*used(rows, ("errors_failed", "errors", "scales")), "gate_source", "resolution", "attribution"]
    gates = _gates_of(rows)
    columns = [VERDICT, *(replace(column(n), bar=n == "gate_margin") for n in lead)]
    for name, metric, comparison in gates:
        style = Style(metric_format(metric))
        columns += [TableColumn(f"{name} ({metric})", style), TableColumn(f"{name} limit {comparison}", style)]
        columns.append(TableColumn(f"{name} margin", Style(MARGIN_FORMAT), 18, bar=True))
    columns += [*map(column, tail), TableColumn("command", CODE, 40)]
    note = (
        f"{part.title}: who is off and by how much. "
        "margin: distance from the limit in its units (bar: up to 100 %), negative or “× beyond” is beyond it."
    )
    book.table("Verdict", columns, (_verdict_row(results, row, lead, gates, tail) for row in rows), note=note, freeze=4)


def _verdict_row(results: Results, row: Row, lead: Sequence[str], gates: Sequence[tuple[str, str, str]], tail: Sequence[str]) -> list[Any]:
    by_name = {g.gate: g for g in row.gates}
    cells: list[Any] = [verdict_cell(row.verdict), *(_margin_cell(row.gate) if n == "gate_margin" else COLUMN[n].get(row) for n in lead)]
    for name, metric, _ in gates:
        cells += _gate_cells(by_name.get(name), metric)
    return [*cells, *(COLUMN[n].get(row) for n in tail), reproduce(results, row.holder.case_id)]


def _gate_cells(gate: GateResult | None, metric: str) -> list[Any]:
    if gate is None:
        return [None, None, None]
    if gate.passed is None:
        return [Cell("not applied", Style(right=True, mark=True)), gate.limit, None]
    if gate.passed:
        return [gate.value, gate.limit, gate.margin]
    return [Cell(gate.value, _broken(metric_format(metric))), gate.limit, _margin_cell(gate)]


def _margin_cell(gate: GateResult | None) -> Any:
    if gate is None or gate.passed is not False:
        return gate and gate.margin
    return Cell(gate.margin, _broken(margin_format(gate.margin)))


@functools.cache
def _broken(number_format: str) -> Style:
    return Style(number_format, verdict=Verdict.FAIL)


def metric_sheet(book: Book, results: Results, part: Volume) -> None:
    rows = findings_first(replace(part.only(results), not_compared=()))
    lead = ["actual", "expected", "case_id", *used(rows, KEYS)]
    names = metric_names(rows)
    columns = [VERDICT, *map(column, lead), *map(metric_column, names)]
    data = ([verdict_cell(row.verdict), *(COLUMN[n].get(row) for n in lead), *metric_cells(row.flat, names)] for row in rows)
    note = f"{part.title}: every metric. Against the reference in real numbers, dump against dump by codes; ulp of the output format."
    book.table("Metrics", columns, data, note=note, freeze=3)


@dataclass(frozen=True)
class _Listed:
    """An element of a row in sheet Worst elements; rank 1 is the first of its row."""

    results: Results
    row: Row
    rank: int
    e: WorstElement

    @property
    def operands(self) -> str | None:
        """Of a finding's first element: what it was computed from."""
        return reproduce_element(self.results, self.row, self.e.index) if self.rank == 1 and self.row.verdict is not Verdict.PASS else None


_REAL, _SMALL = Style("0.000000E+00;-0.000000E+00;0"), Style("0.00E+00")
_ELEMENT: tuple[tuple[TableColumn, Callable[[_Listed], Any]], ...] = (
    (VERDICT, lambda x: verdict_cell(x.row.verdict)),
    (TableColumn("what", PLAIN, 60), lambda x: subject_title(x.row)),
    (TableColumn("rank", Style("0")), lambda x: x.rank),
    (TableColumn("index"), lambda x: messages.index_text(x.e.index)),
    (TableColumn("actual code", CODE), lambda x: messages.code_text(x.e.actual_code, x.row.format)),
    (TableColumn("actual value", _REAL), lambda x: x.e.actual),
    (TableColumn("expected code", CODE), lambda x: messages.code_text(x.e.expected_code, x.row.format)),
    (TableColumn("expected value", _REAL), lambda x: x.e.expected),
    (TableColumn("reference value", _REAL), lambda x: x.e.expected if isinstance(x.row.subject, Side) else x.e.reference),
    (TableColumn("error", Style("0.00E+00;-0.00E+00;0")), lambda x: x.e.signed_error),
    (TableColumn("error / ulp", Style("0.00")), lambda x: Cell(x.e.ulp, _ulp_style(x.e.ulp))),
    (TableColumn("budget", _SMALL), lambda x: x.e.budget),
    (TableColumn("error / budget", _SMALL), lambda x: of_budget(x.row, x.e)),
    (TableColumn("operands", CODE, 50), lambda x: x.operands),
)


def worst_sheet(book: Book, results: Results, part: Volume) -> None:
    rows = findings_first(replace(part.only(results), not_compared=()))
    tail = ["actual", "expected", *used(rows, KEYS), "case_id"]
    columns = [*(c for c, _ in _ELEMENT), *map(column, tail)]
    shown = ((row, row.worst if row.verdict is not Verdict.PASS else row.worst[:QUIET_WORST]) for row in rows)
    listed = (_Listed(results, row, rank, e) for row, worst in shown for rank, e in enumerate(worst, 1))
    data = ([*(cell(x) for _, cell in _ELEMENT), *(COLUMN[n].get(x.row) for n in tail)] for x in listed)
    note = f"{part.title}: of every finding the element that broke its limit, then the others by size of error; of what passed the largest."
    book.table("Worst elements", columns, data, note=note, freeze=2)


def _ulp_style(ulp: float | None) -> Style:
    size = abs(ulp or 0.0)
    return Style("0.00" if size < 100 else "#,##0" if size < 1e9 else "0.00E+00")


def _gates_of(rows: Iterable[Row]) -> list[tuple[str, str, str]]:
    """(name, metric, comparison) of every gate, in order of first appearance."""
    return list({g.gate: (g.gate, g.metric, g.comparison) for row in rows for g in row.gates}.values())
