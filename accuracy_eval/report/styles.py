"""How cells of a workbook look, and what a table column holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side

from accuracy_eval.records import Verdict

Horizontal = Literal["left", "center", "right"] | None
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


def styled(sheet: Any, style: Style) -> Any:
    """A cell of openpyxl that looks so: what it makes of the style is shared by all that do."""
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
