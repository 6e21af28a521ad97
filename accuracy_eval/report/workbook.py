"""A workbook written row by row: typed cells that never become formulas, styles, links, print setup, and the same bytes every time."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.hyperlink import Hyperlink

from accuracy_eval.messages import number, visible
from accuracy_eval.records import Verdict

MAX_ROWS = 1_048_576  # rows of a sheet
MAX_TEXT = 32_767  # characters of a cell
MAX_LINKS = 65_000  # a sheet holds 65,530
SHEET_NAME = 31
_SMALLEST = 2.2250738585072014e-308  # spreadsheets have no subnormal numbers
_EXACT = 1 << 53  # whole numbers a spreadsheet holds exactly
_ACTIVE = ("=", "+", "-", "@")  # editing such a cell would turn it into a formula: it gets the "text" mark (quotePrefix)
_FILLS = {  # fill, text; the word is always there, colour only helps to find it
    Verdict.PASS: ("E2F0D9", "1E5631"),
    Verdict.WARN: ("FFF2CC", "7F6000"),
    Verdict.FAIL: ("F8CBAD", "8B0000"),
    Verdict.ERROR: ("C00000", "FFFFFF"),
    Verdict.MISSING: ("FCE4D6", "833C0B"),
    Verdict.INPUTS_DIFFER: ("E4DFEC", "403151"),
    Verdict.INCONCLUSIVE: ("DDEBF7", "1F3864"),
    Verdict.UNSUPPORTED: ("EDEDED", "595959"),
}
_LINE = Side(style="thin", color="BFBFBF")


@dataclass(frozen=True)
class Style:
    """How a cell looks. `verdict` colours it as that verdict, `mark` as something to notice."""

    number_format: str = "General"
    bold: bool = False
    size: int = 10
    wrap: bool = False
    verdict: Verdict | None = None
    header: bool = False
    link: bool = False
    mark: bool = False
    mono: bool = False
    grey: bool = False
    center: bool = False
    text: bool = False  # set by the writer: quotePrefix


PLAIN = Style()
WRAP = Style(wrap=True)
HEADER = Style(bold=True, wrap=True, header=True)
NOTE = Style(grey=True)
CODE = Style(mono=True)
MARK = Style(mark=True)


@dataclass(frozen=True)
class Cell:
    """A value with a style and a link: "#Sheet" within the workbook, else a file name beside it."""

    value: Any
    style: Style = PLAIN
    link: str = ""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table sheet. Width in characters; None fits the content."""

    title: str
    style: Style = PLAIN
    width: float | None = None


class Book:
    """A workbook being written to `path`."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self._book = Workbook(write_only=True)
        self._book.properties.creator = "accuracy-eval"
        self._book.properties.title = visible(title)[:255]
        self._names: set[str] = set()

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

    def page(self, name: str, widths: Sequence[float]) -> Page:
        """A free sheet of fixed column widths that prints on one page."""
        return Page(self._sheet(self.sheet_name(name), widths, one_page=True))

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
        names = []
        for start in range(0, max(len(data), 1), per_sheet):
            names.append(self.sheet_name(name))
            sheet = self._sheet(names[-1], widths, one_page=False)
            part = data[start : start + per_sheet]
            last = get_column_letter(len(columns))
            sheet.freeze_panes = f"{get_column_letter(freeze + 1)}{lead + 1}"
            sheet.auto_filter.ref = f"A{lead}:{last}{lead + len(part)}"
            sheet.print_title_rows = f"{lead}:{lead}"
            writer = _Rows(sheet)
            if note:
                writer.append([Cell(note, NOTE)])
            lines = max(math.ceil(_length(c.title) / max(w - 3, 4)) for c, w in zip(columns, widths, strict=True))
            writer.append([Cell(c.title, HEADER) for c in columns], height=13.5 * min(lines, 3) + 3)
            styles = [c.style for c in columns]
            for row in part:
                writer.append([v if isinstance(v, Cell) else Cell(v, s) for v, s in zip(row, styles, strict=True)])
        return names

    def _sheet(self, name: str, widths: Sequence[float], *, one_page: bool) -> Any:
        sheet = self._book.create_sheet(name)
        for i, width in enumerate(widths, 1):
            sheet.column_dimensions[get_column_letter(i)].width = width
        sheet.page_setup.orientation = "landscape"
        sheet.page_setup.paperSize = 9 if one_page else 8  # A4; tables A3
        sheet.sheet_properties.pageSetUpPr.fitToPage = True
        sheet.page_setup.fitToWidth = 1
        sheet.page_setup.fitToHeight = 1 if one_page else 0
        sheet.page_margins.left = sheet.page_margins.right = 0.4
        sheet.page_margins.top, sheet.page_margins.bottom = 0.5, 0.6
        sheet.oddFooter.left.text = "&A"
        sheet.oddFooter.right.text = "&P / &N"
        sheet.sheet_view.showGridLines = not one_page
        return sheet

    def save(self) -> Path:
        """Write the file: same content, same bytes, whatever the time, the system and the user."""
        raw = self.path.with_suffix(".raw")
        self._book.save(raw)
        with zipfile.ZipFile(raw) as source, zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED) as target:
            for entry in source.infolist():
                fixed = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
                fixed.compress_type, fixed.create_system, fixed.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
                if entry.filename == "docProps/core.xml":
                    target.writestr(fixed, re.sub(rb"(<dcterms:(\w+)[^>]*>)[^<]*", rb"\g<1>1980-01-01T00:00:00Z", source.read(entry)))
                    continue
                with source.open(entry) as old, target.open(fixed, "w", force_zip64=entry.file_size > 1 << 31) as new:
                    while block := old.read(1 << 20):
                        new.write(block)
        raw.unlink()
        return self.path


class Page:
    """A sheet filled line by line, with merged text lines."""

    def __init__(self, sheet: Any) -> None:
        self._sheet = sheet
        self._rows = _Rows(sheet)
        self._widths = [sheet.column_dimensions[get_column_letter(i + 1)].width for i in range(len(sheet.column_dimensions))]

    def line(self, *cells: Any, height: float | None = None) -> None:
        """One row of cells; wrapped ones make it as high as their text needs."""
        made = [c if isinstance(c, Cell) else Cell(c) for c in cells]
        self._rows.append(made, height=height or self._height([(c, w) for c, w in zip(made, self._widths, strict=False)]))

    def text(self, label: Any, cell: Cell) -> None:
        """A row of a label and one text over all other columns."""
        first = label if isinstance(label, Cell) else Cell(label, Style(bold=True))
        row = self._rows.count + 1
        self._sheet.merged_cells.add(f"B{row}:{get_column_letter(len(self._widths))}{row}")
        self._rows.append([first, cell], height=self._height([(cell, sum(self._widths[1:]))]))

    def gap(self) -> None:
        self._rows.append([], height=7)

    def _height(self, cells: Iterable[tuple[Cell, float]]) -> float:
        lines = 1
        for cell, width in cells:
            if cell.style.wrap:
                text = shown_text(cell.value, cell.style.number_format)
                per_line = max(width * 1.05 * 10 / cell.style.size - 1, 4)
                lines = max(lines, sum(_wrapped_lines(part, per_line) for part in text.split("\n")))
        size = max((c.style.size for c, _ in cells if c.value is not None), default=10) if isinstance(cells, list) else 10
        return lines * (size * 1.3) + 3


class _Rows:
    """Appends rows to a write-only sheet, one reused cell object per style: styles are looked up once, not per cell."""

    def __init__(self, sheet: Any) -> None:
        self._sheet = sheet
        self._cells: dict[Style, Any] = {}
        self._links = 0
        self.count = 0

    def append(self, cells: Sequence[Cell], height: float | None = None) -> None:
        self.count += 1
        if height is not None:
            self._sheet.row_dimensions[self.count].height = height
        self._sheet.append(self._bound(cells))

    def _bound(self, cells: Sequence[Cell]) -> Iterator[Any]:
        # lazy: openpyxl writes each cell before it asks for the next, so one object per style serves all cells of a row
        for cell in cells:
            value, kind = typed(cell.value)
            style = cell.style
            if value is None:
                if style.header or style.verdict:
                    yield self._cell(style, "", "s")
                else:
                    yield None
                continue
            if kind == "s" and value.startswith(_ACTIVE):
                style = replace(style, text=True)
            if cell.link and self._links < MAX_LINKS:
                yield self._linked(replace(style, link=True), value, kind, cell.link)
            else:
                yield self._cell(style, value, kind)

    def _cell(self, style: Style, value: str, kind: str) -> Any:
        made = self._cells.get(style)
        if made is None:
            made = self._cells[style] = _styled(self._sheet, style)
        made.value = value
        made.data_type = kind  # after the value: "=1+1" is text, "0.1" is a number written with all its digits
        return made

    def _linked(self, style: Style, value: str, kind: str, link: str) -> Any:
        self._links += 1
        made = self._cell(style, value, kind)
        if link.startswith("#"):
            inner = link[1:].replace("'", "''")
            made.hyperlink = Hyperlink(ref="A1", location=f"'{inner}'!A1")
        else:
            made.hyperlink = Hyperlink(ref="A1", target=quote(link))
        made.value = value
        made.data_type = kind
        # a cell object keeps its link, so it must not serve a second cell
        del self._cells[style]
        return made


def _styled(sheet: Any, style: Style) -> Any:
    cell = WriteOnlyCell(sheet)
    fill, color = _FILLS[style.verdict] if style.verdict else ("", "000000")
    if style.header:
        fill, color = "1F3864", "FFFFFF"
    elif style.mark:
        fill = "FFE699"
    if style.link:
        color = "0563C1"
    elif style.grey:
        color = "595959"
    bold = style.bold or style.verdict is not None
    name = "Consolas" if style.mono else "Calibri"
    cell.font = Font(name=name, size=style.size, bold=bold, color=f"FF{color}", underline="single" if style.link else None)
    if fill:
        cell.fill = PatternFill("solid", fgColor=f"FF{fill}")
    if style.header or style.verdict:
        cell.border = Border(bottom=_LINE)
    horizontal = "center" if style.center or style.verdict else None
    cell.alignment = Alignment(horizontal=horizontal, vertical="center" if style.header else "top", wrap_text=style.wrap or None)
    cell.number_format = style.number_format
    if style.text:
        cell.quotePrefix = True
    return cell


def typed(value: Any) -> tuple[Any, str]:
    """A value as (text, cell type): "n" for numbers a spreadsheet can hold, with all digits; "s" for text, None for nothing.

    NaN and infinities are the texts NaN, Inf, -Inf; so are subnormal numbers and -0, which a spreadsheet would turn into 0,
    and whole numbers beyond 2^53, which it would round.
    """
    if value is None or value == "":
        return None, "s"
    if isinstance(value, bool):
        return ("yes" if value else "no"), "s"
    if isinstance(value, int):
        return str(value), "n" if abs(value) <= _EXACT else "s"
    if isinstance(value, float):
        if not math.isfinite(value):
            return number(value), "s"
        if (value == 0 and math.copysign(1, value) < 0) or 0 < abs(value) < _SMALLEST:
            return ("-0" if value == 0 else repr(value)), "s"
        return repr(value), "n"
    return cell_text(str(value)), "s"


def cell_text(text: str) -> str:
    """Text as a cell can hold it: control characters visible, at most 32,767 characters, "_x0041_" kept from being read as "A"."""
    text = re.sub(r"_(?=x[0-9A-Fa-f]{4}_)", "_x005F_", visible(text, lines=True))
    if len(text) > MAX_TEXT:
        tail = f"… (+{len(text) - MAX_TEXT + 40} characters)"
        text = text[: MAX_TEXT - 40] + tail
    return text


def fitting_width(column: TableColumn, values: Iterable[Any]) -> float:
    """Width that shows the header in at most three lines and the first 500 values, between 6 and 60 characters."""
    title = max((len(word) for word in re.split(r"[\s_]", column.title)), default=0)
    longest = float(max(title, math.ceil(len(column.title) / 2)) + 3)  # the filter button
    for i, value in enumerate(values):
        if i == 500:
            break
        inner = value.value if isinstance(value, Cell) else value
        style = value.style if isinstance(value, Cell) else column.style
        longest = max(longest, _length(shown_text(inner, style.number_format)) * (1.15 if style.mono or style.verdict else 1.0) + 1.5)
    return float(min(max(longest, 6), 60))


def shown_text(value: Any, number_format: str) -> str:
    """About what a spreadsheet shows, for widths."""
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value):
        if "E+" in number_format:
            return f"{value:.2e}"
        decimals = number_format.split(";")[0].partition(".")[2].count("0")
        return f"{value:,.{decimals}f}" if number_format != "General" else f"{value:.9g}"
    return f"{value:,}" if isinstance(value, int) and "," in number_format else visible(str(value), lines=True)


def _length(text: str) -> int:
    return max((len(part) for part in text.split("\n")), default=0)


def _wrapped_lines(text: str, per_line: float) -> int:
    lines, used = 1, 0
    for word in text.split(" "):
        size = len(word)
        if used and used + 1 + size > per_line:
            lines, used = lines + 1, 0
        while size > per_line:
            lines, size = lines + 1, size - int(per_line)
        used += size + (1 if used else 0)
    return lines
