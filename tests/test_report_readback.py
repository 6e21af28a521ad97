"""Awkward strings, numbers and sizes, read back from a workbook by a program that did not write it."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest
from python_calamine import CalamineWorkbook

from accuracy_eval.report.styles import Cell, TableColumn
from accuracy_eval.report.workbook import MAX_ROWS, Book

STRINGS = ("=1+1", "@x", "+1", "-1", "a/b:c?[d]*", "'q'", "History", "#N/A", "TRUE", "1e5", "_x0041_", "x" * 40, " lead and trail ", "a\nb")


def write(folder: Path, rows: list[list[Any]], name: str = "T") -> tuple[list[str], list[list[Any]]]:
    with Book(folder / "x.xlsx", "x") as book:
        book.table(name, [TableColumn("v")], rows)
        book.save()
    found = CalamineWorkbook.from_path(folder / "x.xlsx")
    return found.sheet_names, found.get_sheet_by_index(0).to_python()[1:]


@pytest.mark.parametrize("text", STRINGS)
def test_text_comes_back_as_it_was(text: str, tmp_path: Path) -> None:
    assert write(tmp_path, [[text]])[1] == [[text]]


@pytest.mark.parametrize(
    ("value", "text"),
    [("a\x00b", r"a\x00b"), ("\x1b[31m", r"\x1b[31m"), (math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf"), (-0.0, "-0")],
)
def test_what_a_cell_cannot_hold_is_visible_text(value: Any, text: str, tmp_path: Path) -> None:
    assert write(tmp_path, [[value]])[1] == [[text]]


def test_a_date_with_a_time_zone_is_text_with_its_zone(tmp_path: Path) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    assert write(tmp_path, [[datetime.datetime(2026, 11, 30, 7, 8, 9, tzinfo=zone)]])[1] == [["2026-11-30 07:08:09+05:30"]]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("a/b:c?[d]*", "a_b_c__d__"), ("'q'", "q"), ("History", "History_"), ("x" * 40, "x" * 31), ("=1+1", "=1+1"), ("a\x00", r"a_x00")],
)
def test_sheet_names_are_made_acceptable(wanted: str, name: str, tmp_path: Path) -> None:
    assert write(tmp_path, [[1]], wanted)[0] == [name]


def test_1_100_000_rows_go_on_in_a_second_sheet(tmp_path: Path) -> None:
    with Book(tmp_path / "x.xlsx", "x") as book:
        names = book.table("T", [TableColumn("v")], [[i] for i in range(1_100_000)])
        book.save()
    found = CalamineWorkbook.from_path(tmp_path / "x.xlsx")
    assert found.sheet_names == names == ["T", "T (2)"]
    first, second = (found.get_sheet_by_name(n).to_python() for n in names)
    assert len(first) == MAX_ROWS
    assert second[0] == ["v"]
    assert [first[1], first[-1], second[1], second[-1]] == [[0], [MAX_ROWS - 2], [MAX_ROWS - 1], [1_099_999]]


def test_text_longer_than_a_cell_says_how_much_is_missing(tmp_path: Path) -> None:
    ((text,),) = write(tmp_path, [["y" * 40_000]])[1]
    assert len(text) <= 32_767
    assert text.endswith("… (+7273 characters)")


def test_a_link_with_an_apostrophe_leads_to_its_sheet(tmp_path: Path) -> None:
    import openpyxl

    with Book(tmp_path / "x.xlsx", "x") as book:
        book.table("it's", [TableColumn("v")], [[Cell("here", link="#it's")], [Cell("there", link="other book.xlsx#it's")]])
        book.save()
    sheet = openpyxl.load_workbook(tmp_path / "x.xlsx").active
    assert sheet is not None
    found = [(sheet.cell(r, 1).hyperlink.target, sheet.cell(r, 1).hyperlink.location) for r in (2, 3)]
    assert found == [(None, "'it''s'!A1"), ("other%20book.xlsx", "'it''s'!A1")]
