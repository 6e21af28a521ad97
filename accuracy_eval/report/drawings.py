"""Charts and pictures in a workbook: native charts over cells of a sheet, and an error map as a PNG made here from its numbers."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from openpyxl.chart import BarChart, LineChart, Reference, ScatterChart, Series
from openpyxl.chart.legend import Legend
from openpyxl.chart.text import RichText, Text
from openpyxl.chart.title import Title
from openpyxl.drawing.image import Image
from openpyxl.drawing.line import LineProperties
from openpyxl.drawing.text import CharacterProperties, Paragraph, ParagraphProperties, RegularTextRun

RAMP = ("FFF5D6", "FEE391", "FEC44F", "FE9929", "EC7014", "CC4C02", "993404", "5B1A06")  # from little to much error
NOTHING, INFINITE, FRAME = "F3F4F6", "111111", "BFBFBF"
COLOURS = ("1F6FB4", "D9720B", "2E8B57", "8E44AD", "946B2D", "C2408A")
LIMIT = "C02626"
C = TypeVar("C", BarChart, ScatterChart)
MAP_PIXELS = 264  # of the longer side of a map's picture
_CELL = 12  # pixels of a cell of the map


def shades(cells: Sequence[Sequence[float]]) -> list[list[str]]:
    """The colour of every cell: equal steps of the logarithm from the least to the largest error that is finite and not zero."""
    logs = [math.log10(v) for row in cells for v in row if 0 < v < math.inf]
    low, high = min(logs, default=0.0), max(logs, default=0.0)

    def shade(v: float) -> str:
        if v == 0:
            return NOTHING
        if not math.isfinite(v):
            return INFINITE
        step = len(RAMP) - 3 if high == low else round((math.log10(v) - low) / (high - low) * (len(RAMP) - 1))
        return RAMP[step]

    return [[shade(v) for v in row] for row in cells]


def map_png(cells: Sequence[Sequence[float]]) -> bytes:
    """The error map as a PNG: a square a cell, a thin frame around it."""
    colours = shades(cells)
    palette = list(dict.fromkeys((FRAME, NOTHING, INFINITE, *RAMP)))
    edge = bytes([palette.index(FRAME)])
    width = len(colours[0]) * _CELL + 2
    lines = [edge * width]
    for row in colours:
        line = edge + b"".join(bytes([palette.index(c)]) * _CELL for c in row) + edge
        lines += [line] * _CELL
    lines.append(edge * width)
    pixels = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    header = struct.pack(">IIBBBBB", width, len(lines), 8, 3, 0, 0, 0)  # 8 bits a pixel, palette
    chunks = ((b"IHDR", header), (b"PLTE", bytes.fromhex("".join(palette))), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


class MapPicture(Image):
    """A PNG of ours as openpyxl places pictures: without reading it again with an imaging library."""

    def __init__(self, cells: Sequence[Sequence[float]], *, most: int = MAP_PIXELS) -> None:
        self._png = map_png(cells)
        tall, wide = len(cells), len(cells[0])
        scale = min(2 * _CELL, most / max(tall, wide))
        self.width, self.height = round(wide * scale), round(tall * scale)
        self.format = "png"

    def _data(self) -> bytes:
        return self._png


@dataclass(frozen=True)
class Cells:
    """A rectangle of a sheet: rows first … last, columns left … right, counted from 1."""

    sheet: Any
    first: int
    last: int
    left: int
    right: int

    @property
    def reference(self) -> Reference:
        return Reference(self.sheet, min_col=self.left, max_col=self.right, min_row=self.first, max_row=self.last)


def histogram_chart(title: str, edges: Cells, counts: Cells) -> BarChart:
    """Counts by upper edge of the bin, on a logarithmic axis."""
    chart = BarChart()
    chart.series.append(_series(counts, "elements"))
    chart.set_categories(edges.reference)
    chart.gapWidth = 20
    chart.legend = None
    finished = _finished(chart, title, "|error| in ulp, up to", "elements", "#,##0")
    finished.y_axis.scaling.logBase, finished.y_axis.scaling.min = 10, 0.5  # a single element has a height
    return finished


def input_chart(title: str, inputs: Cells, errors: Cells, limits: Cells, *, logarithmic: bool) -> BarChart:
    """Largest error by input, with the limit as a line."""
    chart = _bars_and_limit(title, "input, from", "ulp", inputs, _series(errors, "largest error"), limits)
    if logarithmic:
        chart.y_axis.scaling.logBase, chart.y_axis.number_format = 10, "0E+0"
    return chart


def gate_chart(title: str, ranks: Cells, values: Cells, limits: Cells) -> BarChart:
    """Values of a metric in dB beside the limits they must keep, by rank."""
    return _bars_and_limit(title, "rank", "dB", ranks, _series(values, "SNR"), limits)


def scatter_chart(title: str, y_title: str, number_format: str, series: Sequence[tuple[str, Cells, Cells]]) -> ScatterChart:
    """Points by k, both axes logarithmic: (name, k, values) a dump."""
    chart = ScatterChart()
    chart.scatterStyle = "lineMarker"
    for i, (name, x, y) in enumerate(series):
        points = Series(y.reference, x.reference, title=name)
        points.marker.symbol, points.marker.size = "circle", 5
        points.marker.graphicalProperties.solidFill = points.marker.graphicalProperties.line.solidFill = COLOURS[i % len(COLOURS)]
        points.graphicalProperties.line.noFill = True
        chart.series.append(points)
    finished = _finished(chart, title, "k", y_title, number_format)
    finished.x_axis.number_format = "0"
    finished.x_axis.scaling.logBase, finished.y_axis.scaling.logBase = 2, 10
    finished.x_axis.crosses = finished.y_axis.crosses = "min"
    return finished


def _bars_and_limit(title: str, x_title: str, y_title: str, categories: Cells, bars: Any, limits: Cells) -> BarChart:
    chart, line = BarChart(), LineChart()
    chart.series.append(bars)
    chart.set_categories(categories.reference)
    chart.gapWidth = 10
    limit = _series(limits, "limit")
    limit.graphicalProperties.line = LineProperties(solidFill=LIMIT, w=19050)
    limit.smooth = False
    line.series.append(limit)
    finished = _finished(chart, title, x_title, y_title, "General")
    finished += line
    return finished


def _series(cells: Cells, title: str) -> Any:
    series = Series(cells.reference, title=title)
    series.graphicalProperties.solidFill = COLOURS[0]
    return series


def _finished(chart: C, title: str, x_title: str, y_title: str, number_format: str) -> C:
    chart.title = _title(title)
    chart.x_axis.title, chart.y_axis.title = x_title, y_title
    chart.x_axis.delete = chart.y_axis.delete = False  # openpyxl hides axes otherwise
    chart.x_axis.tickLblPos = "low"
    chart.y_axis.number_format = number_format
    chart.width, chart.height = 14, 7.5
    if chart.legend is not None:
        chart.legend = Legend(legendPos="b")
    return chart


def _title(text: str) -> Title:
    small = CharacterProperties(sz=1200, b=True)
    line = Paragraph(pPr=ParagraphProperties(defRPr=small), r=[RegularTextRun(rPr=small, t=text)])
    return Title(tx=Text(rich=RichText(p=[line])), overlay=False)
