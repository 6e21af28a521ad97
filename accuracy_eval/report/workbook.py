"""A workbook written row by row: typed cells that never become formulas, styles, links, print setup, and the same bytes every time.

openpyxl writes everything but the rows: styles, sheet properties, links, the container. The rows are written here as text, ten times
as fast, and put into the sheets when the container is copied with fixed dates, which has to be done anyway.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import quote
from xml.sax.saxutils import escape

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.drawing.image import Image
from openpyxl.formatting.rule import DataBarRule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.pagebreak import Break

from accuracy_eval.messages import number, visible
from accuracy_eval.records import Verdict
from accuracy_eval.report.drawings import Cells

Horizontal = Literal["left", "center", "right"] | None
MAX_ROWS = 1_048_576  # rows of a sheet
MAX_TEXT = 32_767  # characters of a cell
MAX_LINKS = 65_000  # a sheet holds 65,530
SHEET_NAME = 31
MAX_HEIGHT = 409.0  # points of a row
PRINT_WIDTH = 230  # characters across a landscape page, about 6 point
LANDSCAPE, PORTRAIT = (784.0, 505.0), (537.0, 752.0)  # points across and down an A4 page within its margins
CHARACTER = 6.6  # points of a column's width unit, where the default font is replaced by a wider one
LINE = 13.5  # points of a row of no stated height
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
    """How a cell looks. `verdict` colours it as that verdict, `mark` as something to notice, `fill` is a colour by itself."""

    number_format: str = "General"
    bold: bool = False
    size: int = 10
    wrap: bool = False
    verdict: Verdict | None = None
    header: bool = False
    link: bool = False
    mark: bool = False
    fill: str = ""
    mono: bool = False
    grey: bool = False
    center: bool = False
    right: bool = False  # also set by the writer for text in a column of numbers
    left: bool = False
    indent: bool = False  # set by the writer for text in a table: it may follow a number
    text: bool = False  # set by the writer for text that starts like a formula: quotePrefix

    @property
    def numeric(self) -> bool:
        """Whether a column of this style holds numbers."""
        return self.number_format not in ("General", "@")


PLAIN = Style()
WRAP = Style(wrap=True)
HEADER = Style(bold=True, wrap=True, header=True)
INSET, INSET_HEADER = (replace(style, indent=True) for style in (WRAP, HEADER))  # beside other text
NOTE = Style(grey=True)
CODE = Style(mono=True)
MARK = Style(mark=True)


@dataclass(frozen=True)
class Cell:
    """A value with a style and a link: "#Sheet" within the workbook, else a file beside it, "book.xlsx" or "book.xlsx#Sheet"."""

    value: Any
    style: Style = PLAIN
    link: str = ""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table sheet. Width in characters; None fits the content. `bar` draws a bar in each cell, full from 1 on."""

    title: str
    style: Style = PLAIN
    width: float | None = None
    bar: bool = False


class Book:
    """A workbook being written to `path`; a context manager, which drops what was not saved."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self._book = Workbook(write_only=True)
        self._book.properties.creator = "accuracy-eval"
        self._book.properties.title = visible(title)[:255]
        self._names: set[str] = set()
        self._sheets: list[_Rows] = []
        self._single: list[tuple[_Rows, float]] = []  # those printed on one page, and how wide they are in points

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
        lines = max(math.ceil(_length(c.title) / max(w - 3, 4)) for c, w in zip(columns, widths, strict=True))
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

    def _sheet(self, name: str, widths: Sequence[float], *, one_page: bool) -> _Rows:
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
        self._sheets.append(_Rows(sheet, self.path.parent))
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

    def __init__(self, rows: _Rows, widths: Sequence[float]) -> None:
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


class _Rows:
    """The rows of one sheet, as XML text in a temporary file until the workbook is saved."""

    def __init__(self, sheet: Any, folder: Path) -> None:
        self.sheet = sheet
        self.count = 0
        self.height = 0.0  # points
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder)  # noqa: SIM115 - closed with the book
        self._ids: dict[Style, int] = {}
        self._by_identity: dict[tuple[int, str], tuple[Style, int]] = {}
        self._links: list[Hyperlink] = []

    def append(self, values: Sequence[Any], styles: Sequence[Style], height: float | None = None) -> None:
        """One row: values, or Cells with a style of their own."""
        self.count += 1
        self.height += height or LINE
        r = self.count
        parts = [f'<row r="{r}">' if height is None else f'<row r="{r}" ht="{height:.1f}" customHeight="1">']
        for i, value in enumerate(values):
            cell = value if type(value) is Cell else None
            style = (cell.style if cell else styles[i]) if cell or i < len(styles) else PLAIN
            text, kind = typed(cell.value if cell else value)
            if text is None:
                if cell and (style.header or style.verdict):
                    parts.append(f'<c r="{_letters(i)}{r}" s="{self._id(style, "n")}"/>')
                continue
            if cell and cell.link and len(self._links) < MAX_LINKS:
                style = _linked(style)
                self._link(f"{_letters(i)}{r}", cell.link)
            if kind == "n":
                parts.append(f'<c r="{_letters(i)}{r}" s="{self._id(style, "n")}"><v>{text}</v></c>')
            else:
                mark = "q" if text.startswith(_ACTIVE) else "s"
                parts.append(f'<c r="{_letters(i)}{r}" s="{self._id(style, mark)}" t="inlineStr"><is>{_inline(text)}</is></c>')
        parts.append("</row>\n")
        self._file.write("".join(parts))

    def _id(self, style: Style, kind: str) -> int:
        """Index of the style in the workbook; `kind`: "n" number, "s" text, "q" text that starts like a formula."""
        known = self._by_identity.get((id(style), kind))
        if known is not None:  # by identity: hashing a style costs more than the cell; the value holds it, so its id stays its own
            return known[1]
        full = style
        if kind != "n":
            full = replace(style, text=kind == "q", right=style.right or style.numeric)
        number = self._ids.get(full)
        if number is None:
            number = self._ids[full] = _styled(self.sheet, full).style_id
        self._by_identity[id(style), kind] = (style, number)
        return number

    def _link(self, place: str, link: str) -> None:
        file, _, sheet = link.partition("#")
        inner = sheet.replace("'", "''")
        target = ({"target": quote(file)} if file else {}) | ({"location": f"'{inner}'!A1"} if sheet else {})
        self._links.append(Hyperlink(ref=place, **target))

    def hand_over_links(self) -> None:
        """Give openpyxl the links: it collects them from cells it writes itself, in a list it empties when it starts."""
        self.sheet._get_writer()
        self.sheet._hyperlinks.extend(self._links)

    def copy_to(self, stream: IO[bytes]) -> None:
        """Write the rows, UTF-8."""
        self._file.flush()
        self._file.seek(0)
        while block := self._file.read(1 << 20):
            stream.write(block.encode())

    def close(self) -> None:
        """Drop the rows."""
        self._file.close()


def _scale(paper: tuple[float, float], width: float, height: float) -> float:
    """How large a sheet of that size is on a page that must hold it whole."""
    return min(paper[0] / width, paper[1] / max(height, 1.0))


@functools.cache
def _linked(style: Style) -> Style:
    return replace(style, link=True)


@functools.cache
def _letters(i: int) -> str:
    return get_column_letter(i + 1)


@functools.lru_cache(1 << 14)
def _inline(text: str) -> str:
    space = ' xml:space="preserve"' if text != text.strip() or "\n" in text else ""
    return f"<t{space}>{escape(text)}</t>"


def row_height(values: Sequence[Any], widths: Sequence[float], styles: Sequence[Style]) -> float:
    """Height in points that shows all lines of the wrapped cells."""
    lines, size = 1, 10
    for value, width, style in zip(values, widths, styles, strict=False):
        cell = value if isinstance(value, Cell) else Cell(value, style)
        if cell.value is not None:
            size = max(size, cell.style.size)
        if cell.style.wrap:
            # 1.25: letters are narrower than the digits a column's width is measured in
            per_line = max(width * (1.0 if cell.style.mono else 1.25) * 10 / cell.style.size - 1, 4)
            lines = max(lines, sum(_wrapped_lines(part, per_line) for part in shown_text(cell.value, cell.style.number_format).split("\n")))
    return min(lines * size * 1.3 + 3, MAX_HEIGHT)


def _styled(sheet: Any, style: Style) -> Any:
    cell = WriteOnlyCell(sheet)
    fill, color = _FILLS[style.verdict] if style.verdict else (style.fill, "000000")
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
    if style.center or (style.verdict and not style.numeric):
        horizontal: Horizontal = "center"
    elif style.right:
        horizontal = "right"
    else:
        horizontal = "left" if style.left or style.indent else None
    indent = 1 if style.indent and horizontal == "left" else 0
    cell.alignment = Alignment(horizontal, "center" if style.header else "top", wrap_text=style.wrap or None, indent=indent)
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


@functools.lru_cache(1 << 14)
def cell_text(text: str) -> str:
    """Text as a cell can hold it: control characters visible, at most 32,767 characters, "_x0041_" kept from being read as "A"."""
    text = re.sub(r"_(?=x[0-9A-Fa-f]{4}_)", "_x005F_", visible(text, lines=True))
    if len(text) > MAX_TEXT:
        tail = f"… (+{len(text) - MAX_TEXT + 40} characters)"
        text = text[: MAX_TEXT - 40] + tail
    return text


def fitting_width(column: TableColumn, values: Iterable[Any]) -> float:
    """Width that shows the header in at most three lines and the first 500 values, between 6 and 60 characters."""
    title = max((len(word) for word in column.title.split()), default=0)
    longest = max(title, math.ceil(len(column.title) / 2)) * 1.1 + 3  # bold, beside the filter button
    for i, value in enumerate(values):
        if i == 500:
            break
        inner = value.value if isinstance(value, Cell) else value
        style = value.style if isinstance(value, Cell) else column.style
        longest = max(
            longest,
            _length(shown_text(inner, style.number_format)) * (1.15 if style.mono or style.verdict else 1.0)
            + (1.5 if style.numeric else 2.5),
        )
    return float(min(max(longest, 6), 60))


def shown_text(value: Any, number_format: str) -> str:
    """About what a spreadsheet shows, for widths."""
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value):
        decimals = number_format.split(";")[0].partition("E")[0].partition(".")[2].count("0")
        if "E+" in number_format:
            return f"{value:.{decimals}e}"
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
