"""Workbooks: summary.xlsx, and one per op family and shape. What their sheets hold is in `sheets`."""

from __future__ import annotations

from pathlib import Path

from accuracy_eval.records import Results
from accuracy_eval.report import overview
from accuracy_eval.report.pictures import chart_sheets
from accuracy_eval.report.sheets import summary
from accuracy_eval.report.sheets.registry import wanted, wanted_in_summary
from accuracy_eval.report.volumes import SUMMARY, Volume, volumes
from accuracy_eval.report.workbook import Book


def write(results: Results, folder: Path) -> list[Path]:
    """Write summary.xlsx and one workbook per volume into `folder`."""
    parts = volumes(results)
    return [_summary(results, parts, folder), *(_workbook(results, part, folder) for part in parts)]


def _workbook(results: Results, part: Volume, folder: Path) -> Path:
    sheets = wanted(results, part)
    with Book(folder / part.file, part.title) as book:
        overview.overview(book, results, part, sheets)
        for sheet in sheets.values():
            if sheet.write:
                sheet.write(book, results, part)
        return book.save()


def _summary(results: Results, parts: list[Volume], folder: Path) -> Path:
    whole = Volume(f"{SUMMARY}.xlsx", "", "", tuple(results.tensors), results.not_compared)
    sheets = wanted_in_summary(results, whole)
    files = {id(item): part.file for part in parts for item in (*part.tensors, *part.skipped)}
    with Book(folder / whole.file, "accuracy-eval summary") as book:
        overview.summary_overview(book, results, whole, parts, sheets)
        summary.finding_sheet(book, results, files)
        summary.workbook_sheet(book, parts)
        summary.matrix_sheet(book, results)
        summary.flat_sheet(book, results, files)
        chart_sheets(book, results)
        for sheet in sheets.values():
            if sheet.write:
                sheet.write(book, results, whole)
        return book.save()
