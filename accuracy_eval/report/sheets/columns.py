"""Columns and cells that several sheets share."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accuracy_eval.records import Verdict
from accuracy_eval.report.rows import COLUMNS, Row, metric_format
from accuracy_eval.report.styles import Cell, Style, TableColumn

COLUMN = {c.name: c for c in COLUMNS}
# what tells one row of a workbook from another; its op and shape are in its name
KEYS = ("format", "out_format", "layout", "recipe", "lane", "input_class", "direction", "options", "seed", "candidate", "tensor")
_TITLES = {
    "who": "who is off",
    "expected": "against",
    "input_class": "inputs",
    "tensor_format": "codes",
    "causes": "cause",
    "gate_margin": "margin",
    "gate_source": "limit from",
    "out_format": "output",
    "off_contract": "keeps instead",
    "resolution": "would have failed from",
    "expectation": "expected and seen",
    "case_id": "case",
}
WIDTHS = {
    "reason": 64,
    "gate_margin": 18,
    "explanation": 60,
    "gate_source": 45,
    "resolution": 40,
    "expectation": 40,
    "case_id": 50,
    "sha256": 20,
}
_USUAL = {"direction": "fwd", "candidate": "default", "lane": "random", "scope": "full"}
BOLD = Style(bold=True)
COUNT = Style("#,##0")
VERDICT = TableColumn("verdict", Style(verdict=Verdict.PASS), 16)


@functools.cache
def verdict_cell(verdict: Verdict) -> Cell:
    return Cell(str(verdict), Style(verdict=verdict))


def column(name: str) -> TableColumn:
    """The column of a field of Row, under the title that people read."""
    return TableColumn(_TITLES.get(name, name), Style(COLUMN[name].number_format), WIDTHS.get(name))


def metric_column(name: str) -> TableColumn:
    return TableColumn(name, Style(metric_format(name)))


def metric_cells(table: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Values of the metrics, whole distances in ulp shown without decimals."""
    return [Cell(v, COUNT) if n.startswith("ulp") and _whole(v) else v for n, v in ((n, table.get(n)) for n in names)]


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and float(value).is_integer()


def used(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """The columns that hold anything but the usual value; a seed that all rows share tells nothing."""
    found = []
    for name in names:
        values = {COLUMN[name].get(row) for row in rows} - {None, ""}
        if values - {_USUAL.get(name)} and not (name == "seed" and len(values) == 1):
            found.append(name)
    return found
