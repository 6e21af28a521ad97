"""One flat row per verdict, every metric a column; results.csv: UTF-8, LF, numbers in full precision."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accuracy_eval import messages
from accuracy_eval.records import Results
from accuracy_eval.report.rows import COLUMNS, Row, all_rows, dimension_letters, metric_names, reproduce

NAME = "results.csv"
_ACTIVE = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a cell that begins so


def table(results: Results) -> tuple[list[str], Iterator[list[Any]]]:
    """Names of columns, and a row per verdict in their order: facts, sizes, metrics, the command that repeats it; None for no value."""
    rows = list(all_rows(results))
    letters, metrics = dimension_letters(rows), metric_names(rows)
    fixed = [c.name for c in COLUMNS]
    names = [m if m not in (*fixed, *letters, "command") else f"metric_{m}" for m in metrics]

    def values(row: Row) -> list[Any]:
        dims = row.case.dims if row.case else {}
        found = [c.get(row) for c in COLUMNS] + [dims.get(d) for d in letters] + [row.flat.get(m) for m in metrics]
        return [*found, reproduce(results, row.holder.case_id)]

    return [*fixed, *letters, *names, "command"], map(values, rows)


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.csv into `folder`."""
    names, rows = table(results)
    path = folder / NAME
    with path.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(map(cell, names))
        out.writerows(map(cell, row) for row in rows)
    return [path]


def cell(value: Any) -> str:
    """A value as CSV text: numbers in full, NaN, Inf, -Inf, "" for none; text that a spreadsheet would run gets a leading apostrophe."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = messages.visible(value, lines=True)
        return f"'{text}" if text.startswith(_ACTIVE) else text
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return repr(value)
    return messages.number(value)
