"""Values as a spreadsheet holds them, and the room that their text takes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from accuracy_eval.messages import number, visible
from accuracy_eval.report.styles import Cell, Style, TableColumn

MAX_TEXT = 32_767  # characters of a cell
MAX_HEIGHT = 409.0  # points of a row
_SMALLEST = 2.2250738585072014e-308  # spreadsheets have no subnormal numbers
_EXACT = 1 << 53  # whole numbers a spreadsheet holds exactly


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
            text_width(shown_text(inner, style.number_format)) * (1.15 if style.mono or style.verdict else 1.0)
            + (1.5 if style.numeric else 2.5),
        )
    return float(min(max(longest, 6), 60))


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


def text_width(text: str) -> int:
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
