"""Workbooks: summary.xlsx, and one per op family and shape. What their sheets hold is in `sheets`."""

from __future__ import annotations

from pathlib import Path

from accuracy_eval.records import Results
from accuracy_eval.report import overview, sheets
from accuracy_eval.report.pictures import chart_sheets
from accuracy_eval.report.volumes import SUMMARY, Volume, volumes
from accuracy_eval.report.workbook import Book


def write(results: Results, folder: Path) -> list[Path]:
    """Write summary.xlsx and one workbook per volume into `folder`."""
    parts = volumes(results)
    return [_summary(results, parts, folder), *(_workbook(results, part, folder) for part in parts)]


def _workbook(results: Results, part: Volume, folder: Path) -> Path:
    names = sheets.table_names(results, part)
    with Book(folder / part.file, part.title) as book:
        overview.overview(book, results, part, names)
        for name in names:
            if name in sheets.TABLES:
                sheets.TABLES[name](book, results, part)
        return book.save()


def _summary(results: Results, parts: list[Volume], folder: Path) -> Path:
    whole = Volume(f"{SUMMARY}.xlsx", "", "", results.tensors, results.not_compared)
    files = {id(item): part.file for part in parts for item in (*part.tensors, *part.skipped)}
    with Book(folder / whole.file, "accuracy-eval summary") as book:
        overview.summary_overview(book, results, whole, parts)
        sheets.finding_sheet(book, results, files)
        sheets.workbook_sheet(book, parts)
        sheets.matrix_sheet(book, results)
        sheets.flat_sheet(book, results, files)
        chart_sheets(book, results)
        for name in sheets.summary_tables(results):
            sheets.TABLES[name](book, results, whole)
        return book.save()
