"""A workbook written row by row: typed cells that never become formulas, styles, links, print setup, and the same bytes every time.

openpyxl writes everything but the rows: styles, sheet properties, links, the container. The rows are written here as text, ten times
as fast, and put into the sheets when the container is copied with fixed dates, which has to be done anyway.
"""

from __future__ import annotations

import itertools
import math
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.drawing.image import Image
from openpyxl.formatting.rule import DataBarRule
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from accuracy_eval.messages import visible
from accuracy_eval.report.cell_text import fitting_width, row_height, text_width
from accuracy_eval.report.drawings import Cells
from accuracy_eval.report.sheet_rows import Rows
from accuracy_eval.report.styles import HEADER, NOTE, PLAIN, Cell, Style, TableColumn

MAX_ROWS = 1_048_576  # rows of a sheet
SHEET_NAME = 31
PRINT_WIDTH = 230  # characters across a landscape page, about 6 point
LANDSCAPE, PORTRAIT = (784.0, 505.0), (537.0, 752.0)  # points across and down an A4 page within its margins
CHARACTER = 6.6  # points of a column's width unit, where the default font is replaced by a wider one


class Book:
    """A workbook being written to `path`; a context manager, which drops what was not saved."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self._book = Workbook(write_only=True)
        self._book.properties.creator = "accuracy-eval"
        self._book.properties.title = visible(title)[:255]
        self._names: set[str] = set()
        self._sheets: list[Rows] = []
        self._single: list[tuple[Rows, float]] = []  # those printed on one page, and how wide they are in points

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        for sheet in self._sheets:
            sheet.close()

    def sheet_name(self, wanted: str) -> str:
        """A sheet name a spreadsheet accepts, not yet used here: at most 31 characters, no []:*? or slash, no apostrophe at the ends."""
        text = re.sub(r"[\[\]:*?/\\]", "_", visible(wanted)).strip("' ") or "Sheet"
        if text.lower() == "history":
            text = "History_"
        name, i = text[:SHEET_NAME].rstrip("' "), 1
        while name.lower() in self._names:
            i += 1
            tail = f" ({i})"
            name = text[: SHEET_NAME - len(tail)].rstrip("' ") + tail
        self._names.add(name.lower())
        return name

    def cells(self, name: str, first: int, last: int, left: int, right: int) -> Cells:
        """Rows first … last and columns left … right of a sheet written before, for a chart."""
        return Cells(self._book[name], first, last, left, right)

    def page(self, name: str, widths: Sequence[float], *, one_page: bool = True) -> Page:
        """A free sheet of fixed column widths that prints on one page, or one page wide."""
        rows = self._sheet(self.sheet_name(name), widths, one_page=one_page)
        rows.sheet.sheet_view.showGridLines = False
        if one_page:
            self._single.append((rows, CHARACTER * sum(widths)))
        return Page(rows, widths)

    def table(
        self,
        name: str,
        columns: Sequence[TableColumn],
        rows: Iterable[Sequence[Any]],
        *,
        note: str = "",
        freeze: int = 1,
        max_rows: int = MAX_ROWS,
    ) -> list[str]:
        """A table: an optional note line, a header, filters, the header and `freeze` columns frozen. Returns the names of its sheets.

        Rows that do not fit into `max_rows` go to further sheets, "Name (2)" and so on, each with the header.
        """
        data = list(rows)
        lead = (1 if note else 0) + 1
        per_sheet = max_rows - lead
        widths = [c.width or fitting_width(c, (row[i] for row in data)) for i, c in enumerate(columns)]
        lines = max(math.ceil(text_width(c.title) / max(w - 3, 4)) for c, w in zip(columns, widths, strict=True))
        header = [Cell(c.title, replace(HEADER, right=c.style.numeric or c.style.right, indent=True)) for c in columns]
        styles = [c.style if c.style.numeric else replace(c.style, indent=True) for c in columns]
        wraps = any(c.style.wrap for c in columns)
        names = []
        for start in range(0, max(len(data), 1), per_sheet):
            names.append(self.sheet_name(name))
            out = self._sheet(names[-1], widths, one_page=False)
            part = data[start : start + per_sheet]
            self._table_view(out.sheet, columns, widths, lead, len(part), freeze)
            if note:
                out.append([Cell(note, NOTE)], [PLAIN])
            out.append(header, styles, height=13.5 * min(lines, 3) + 3)
            for row in part:
                out.append(row, styles, height=row_height(row, widths, styles) if wraps else None)
        return names

    def _table_view(self, sheet: Any, columns: Sequence[TableColumn], widths: Sequence[float], lead: int, count: int, freeze: int) -> None:
        last = get_column_letter(len(columns))
        sheet.freeze_panes = f"{get_column_letter(freeze + 1)}{lead + 1}"
        sheet.auto_filter.ref = f"A{lead}:{last}{lead + count}"
        sheet.print_title_rows = f"{lead}:{lead}"
        for i, column in enumerate(columns, 1):
            if column.bar and count:
                place = f"{get_column_letter(i)}{lead + 1}:{get_column_letter(i)}{lead + count}"
                sheet.conditional_formatting.add(place, DataBarRule("num", 0, "num", 1, color="FF9DC3E6"))  # type: ignore[no-untyped-call]
        printed = sum(total <= PRINT_WIDTH for total in itertools.accumulate(widths)) or 1
        if printed < len(columns):  # a line of 60 columns on one page cannot be read: print what comes first, and say so
            shown = get_column_letter(printed)
            sheet.print_area = f"A1:{shown}{lead + count}"
            sheet.oddFooter.left.text = f"&A, columns A to {shown} of {last}"

    def _sheet(self, name: str, widths: Sequence[float], *, one_page: bool) -> Rows:
        sheet = self._book.create_sheet(name)
        for i, width in enumerate(widths, 1):
            sheet.column_dimensions[get_column_letter(i)].width = width
        sheet.page_setup.orientation = "landscape"
        sheet.page_setup.paperSize = 9  # A4
        sheet.sheet_properties.pageSetUpPr.fitToPage = True
        sheet.page_setup.fitToWidth = 1
        sheet.page_setup.fitToHeight = 1 if one_page else 0
        sheet.page_margins.left = sheet.page_margins.right = 0.4
        sheet.page_margins.top, sheet.page_margins.bottom, sheet.page_margins.footer = 0.5, 0.75, 0.35
        sheet.oddFooter.left.text = "&A"
        sheet.oddFooter.right.text = "&P / &N"
        self._sheets.append(Rows(sheet, self.path.parent))
        return self._sheets[-1]

    def save(self) -> Path:
        """Write the file: same content, same bytes, whatever the time, the system and the user."""
        raw = self.path.with_suffix(".raw")
        for rows, width in self._single:
            if _scale(PORTRAIT, width, rows.height) > _scale(LANDSCAPE, width, rows.height):
                rows.sheet.page_setup.orientation = "portrait"
        for rows in self._sheets:
            rows.hand_over_links()
        self._book.save(raw)
        parts = {f"xl/worksheets/sheet{i}.xml": sheet for i, sheet in enumerate(self._sheets, 1)}
        with zipfile.ZipFile(raw) as source, zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED) as target:
            for entry in source.infolist():
                fixed = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
                fixed.compress_type, fixed.create_system, fixed.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
                data = source.read(entry)
                if entry.filename == "docProps/core.xml":
                    data = re.sub(rb"(<dcterms:\w+[^>]*>)[^<]*", rb"\g<1>1980-01-01T00:00:00Z", data)
                if entry.filename not in parts:
                    target.writestr(fixed, data)
                    continue
                head, tail = re.split(rb"<sheetData\s*/>|<sheetData>\s*</sheetData>", data)
                with target.open(fixed, "w", force_zip64=True) as stream:
                    stream.write(head + b"<sheetData>")
                    parts[entry.filename].copy_to(stream)
                    stream.write(b"</sheetData>" + tail)
        raw.unlink()
        return self.path


class Page:
    """A sheet filled line by line, with merged text lines."""

    def __init__(self, rows: Rows, widths: Sequence[float]) -> None:
        self._rows = rows
        self._widths = list(widths)
        self._plain = [PLAIN] * len(widths)
        self._broken = 0.0  # height above the last page break

    @property
    def count(self) -> int:
        """Rows written so far."""
        return self._rows.count

    def line(self, *cells: Any, height: float | None = None) -> int:
        """One row of cells, and its number; wrapped ones make it as high as their text needs, where no height (points) is given."""
        self._rows.append(cells, self._plain, height=height or row_height(cells, self._widths, self._plain))
        return self.count

    def picture(self, drawing: Any, row: int, column: int) -> None:
        """A chart or picture whose upper left corner lies in a cell, counted from 1."""
        anchor = f"{get_column_letter(column)}{row}"
        if isinstance(drawing, Image):
            self._rows.sheet.add_image(drawing, anchor)
        else:
            self._rows.sheet.add_chart(drawing, anchor)

    def break_before(self, height: float, width: float) -> None:
        """Go on with a new printed page unless `height` points still fit on this one, where `width` points fit across."""
        room = 0.97 * LANDSCAPE[1] * width / LANDSCAPE[0]  # programs differ by a few points
        if self._rows.height - self._broken + height > room:
            self._rows.sheet.row_breaks.append(Break(id=self._rows.count))
            self._broken = self._rows.height

    def text(self, label: Any, cell: Cell) -> None:
        """A row of a label and one text over all other columns."""
        first = label if isinstance(label, Cell) else Cell(label, Style(bold=True))
        row = self._rows.count + 1
        self._rows.sheet.merged_cells.add(f"B{row}:{get_column_letter(len(self._widths))}{row}")
        self._rows.append([first, cell], self._plain, height=row_height([cell], [sum(self._widths[1:])], self._plain))

    def gap(self) -> None:
        self._rows.append([], [], height=7)


def _scale(paper: tuple[float, float], width: float, height: float) -> float:
    """How large a sheet of that size is on a page that must hold it whole."""
    return min(paper[0] / width, paper[1] / max(height, 1.0))
