"""Sheets of summary.xlsx alone: findings, workbooks, dump against dump, one flat table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from accuracy_eval import messages
from accuracy_eval.records import Results, Verdict
from accuracy_eval.report.counts import counts_sentence
from accuracy_eval.report.findings import findings
from accuracy_eval.report.rows import COLUMNS, dimension_letters, findings_first, metric_names
from accuracy_eval.report.sheets.columns import (
    BOLD,
    COUNT,
    VERDICT,
    WIDTHS,
    metric_cells,
    metric_column,
    verdict_cell,
)
from accuracy_eval.report.styles import PLAIN, WRAP, Cell, Style, TableColumn
from accuracy_eval.report.summaries import PairSummary, dump_summaries, pair_summaries
from accuracy_eval.report.volumes import Volume
from accuracy_eval.report.workbook import Book


def finding_sheet(book: Book, results: Results, files: Mapping[int, str]) -> None:
    columns = [
        VERDICT,
        TableColumn("case", WRAP, 40),
        TableColumn("tensor", WRAP, 12),
        TableColumn("who is off", WRAP, 18),
        TableColumn("how much, against which limit", WRAP, 46),
        TableColumn("cause", WRAP, 40),
        TableColumn("run next", Style(mono=True, wrap=True), 48),
        TableColumn("limit from", PLAIN, 60),
        TableColumn("candidate"),
        TableColumn("workbook", PLAIN, 30),
    ]
    data = []
    for f in findings(results):
        file = files.get(id(f.row.result or f.row.subject), "")
        texts = (f.case_id, f.tensor, f.who, f.what, f.cause, "\n".join(f.steps), f.source, f.candidate)
        data.append([verdict_cell(f.verdict), *texts, Cell(file, PLAIN, file and f"{file}#Verdict")])
    book.table("Findings", columns, data, note="Everything a person has to look at, the worst verdict first.", freeze=2)


def workbook_sheet(book: Book, parts: Iterable[Volume]) -> None:
    ordered = sorted(parts, key=lambda p: -p.verdict.severity)
    columns = [VERDICT, TableColumn("workbook"), TableColumn("family"), TableColumn("shape"), TableColumn("tensors", COUNT)]
    columns += [TableColumn("not compared", COUNT), TableColumn("verdicts", PLAIN, 60)]
    data = []
    for p in ordered:
        counts = counts_sentence(p.counts)
        data.append([verdict_cell(p.verdict), Cell(p.file, PLAIN, p.file), p.family, p.shape, len(p.tensors), len(p.skipped), counts])
    book.table("Workbooks", columns, data, note="One workbook per op family and shape.", freeze=2)


def matrix_sheet(book: Book, results: Results) -> None:
    """Dump against dump: the worst verdict and who is off there; the first column is each dump against the reference."""
    labels = [d.label for d in results.dumps]
    pairs, sides = pair_summaries(results.tensors), dump_summaries(results.tensors)
    data = []
    for a in labels:
        counts = sides.get(a)
        worst = max(counts, key=lambda v: v.severity) if counts else None
        cells: list[Any] = [Cell(a, BOLD), _matrix_cell(worst, counts_sentence(counts) if counts else "not judged")]
        for b in labels:
            s = pairs.get((a, b)) or pairs.get((b, a))
            cells.append(_pair_cell(s) if s and a != b else "—" if a == b else "not compared")
        data.append(cells)
    columns = [TableColumn("dump", WRAP, 24), TableColumn("against the reference", WRAP, 34)]
    columns += [TableColumn(messages.visible(b), WRAP, 34) for b in labels]
    note = "Worst verdict of every pair of dumps, who is off there, and how often each answer came."
    book.table("Matrix", columns, data, note=note)


def _pair_cell(s: PairSummary) -> Cell:
    return _matrix_cell(s.verdict, f"{s.named}\n({s.answers})")


def _matrix_cell(verdict: Verdict | None, text: str) -> Cell:
    return Cell(f"{verdict}: {text}" if verdict else text, Style(verdict=verdict, wrap=True))


def flat_sheet(book: Book, results: Results, files: Mapping[int, str]) -> None:
    """One flat row per verdict, header in the first row: made for filters, pivot tables and data frames."""
    rows = findings_first(results)
    letters, names = dimension_letters(rows), metric_names(rows)
    columns = [TableColumn(c.name, Style(c.number_format), WIDTHS.get(c.name)) for c in COLUMNS if c.name != "verdict"]
    columns = [replace(VERDICT, title="verdict"), *columns, *(TableColumn(d, Style("0")) for d in letters)]
    columns += [*map(metric_column, names), TableColumn("workbook", PLAIN, 30)]
    data = []
    for row in rows:
        dims = row.case.dims if row.case else {}
        file = files.get(id(row.result or row.subject), "")
        cells = [verdict_cell(row.verdict), *(c.get(row) for c in COLUMNS if c.name != "verdict"), *(dims.get(d) for d in letters)]
        data.append([*cells, *metric_cells(row.flat, names), Cell(file, PLAIN, file and f"{file}#Verdict")])
    book.table("All", columns, data)
