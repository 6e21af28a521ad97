"""Tables on a terminal: columns as wide as their content where there is room, text wrapped within its column where there is not."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

GAP = 2  # columns of the terminal between two of the table
NARROW = 8  # characters that a column of longer text keeps

Rows = Sequence[Sequence[str]]


def terminal_width() -> int:
    """Columns to write for: the terminal's, 80 where there is none."""
    import shutil

    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80


def table(head: Sequence[str], rows: Rows, width: int) -> list[str]:
    """Lines of at most `width` characters: a table, or where its words have no room side by side a paragraph for each row."""
    whole = [head, *rows]
    if sum(_least(whole)) + GAP * (len(head) - 1) <= width:
        return wrapped(whole, width)
    lines = []
    for first, *others in rows:
        text = "; ".join(f"{name} {value}" for name, value in zip(head[1:], others, strict=True) if value)
        lines += [first, *textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)]
    return lines


def wrapped(rows: Rows, width: int) -> list[str]:
    """The rows, every cell within its column; no word is broken where the longest of all columns fit side by side."""
    widths = _fitted(rows, width)
    lines = []
    for row in rows:
        cells = [_lines(cell, w) for cell, w in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append((" " * GAP).join(part.ljust(w) for part, w in zip(parts, widths, strict=True)).rstrip())
    return lines


def _lines(cell: str, width: int) -> list[str]:
    lead = cell[: len(cell) - len(cell.lstrip())]
    return textwrap.wrap(cell, width, subsequent_indent=lead, break_on_hyphens=False) or [""]


def _least(rows: Rows) -> list[int]:
    """The longest word of each column, and NARROW where there is as much text."""
    columns = zip(*rows, strict=True)
    return [max(min(NARROW, max(map(len, column))), *(len(w) for cell in column for w in cell.split())) for column in columns]


def _fitted(rows: Rows, width: int) -> list[int]:
    """Widths of the columns: the widest give way, down to their longest word."""
    widths, least = [max(map(len, column)) for column in zip(*rows, strict=True)], _least(rows)
    while sum(widths) + GAP * (len(widths) - 1) > width:
        loose = [i for i, w in enumerate(widths) if w > least[i]]
        if not loose:
            break
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths
