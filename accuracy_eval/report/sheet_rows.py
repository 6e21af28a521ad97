"""The rows of a sheet as XML text: typed cells that never become formulas."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from openpyxl.utils import get_column_letter
from openpyxl.worksheet.hyperlink import Hyperlink

from accuracy_eval.report.cell_text import typed
from accuracy_eval.report.styles import PLAIN, Cell, Style, styled

MAX_LINKS = 65_000  # a sheet holds 65,530
LINE = 13.5  # points of a row of no stated height
_ACTIVE = ("=", "+", "-", "@")  # editing such a cell would turn it into a formula: it gets the "text" mark (quotePrefix)


class Rows:
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
            number = self._ids[full] = styled(self.sheet, full).style_id
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
