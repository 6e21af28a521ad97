"""Sheets with charts: error maps, histograms and errors by input of a workbook; errors against k and against gates in the summary."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accuracy_eval import messages
from accuracy_eval.records import NotCompared, Results, Side, Sketch, TensorResult, Verdict
from accuracy_eval.report import drawings
from accuracy_eval.report.rows import Row, by_maker, case_words, findings_first, share_of_limit, tensor_rows
from accuracy_eval.report.styles import NOTE, PLAIN, WRAP, Cell, Style, TableColumn
from accuracy_eval.report.workbook import Book, Page

MAX_DRAWN = 16  # tensors of a workbook that get pictures: findings first
MAX_GATED = 60  # cases of a chart of values against their gate
MAX_SERIES = 6  # of a chart
NARROW = 2.6  # characters of the columns of sheet Pictures: cells of a map are about square
PIXELS, FIRST_PIXELS = 23, 103  # across such a column, and across the one before them
CHART = 24  # such columns across a chart
BLOCK = 22  # rows of a block of pictures: a chart of 7.5 cm is as high, a map has up to 32
FAR = 20  # times its limit: an error beyond leaves no room for the limit on an axis of equal steps
_COUNT = Style("#,##0")
_SHARE = Style("0.000E+00")
_ULP = Style("[>=100000]0.00E+0;0.000")  # a fault's errors do not fit a column in full


@dataclass(frozen=True)
class Drawn:
    """A side or pair with a sketch, and where its numbers lie: the row of sheet Histograms, the rows of sheet By input."""

    row: Row
    sketch: Sketch
    title: str
    histogram_row: int
    inputs: tuple[int, int] | None


def drawn_rows(tensors: Sequence[TensorResult]) -> list[tuple[Row, Sketch]]:
    """Sides and pairs that have something to draw, those of the worst tensors first."""
    found = []
    for t in sorted(tensors, key=lambda t: -t.verdict.severity):
        for row in tensor_rows(t):
            assert not isinstance(row.subject, NotCompared)
            if any(edge > 0 for edge, _ in row.subject.sketch.ulp_histogram):
                found.append((row, row.subject.sketch))
    return found


def picture_sheet_names(tensors: Sequence[TensorResult]) -> list[str]:
    """The sheets `picture_sheets` writes."""
    rows = drawn_rows(tensors)
    if not rows:
        return []
    return ["Pictures", "Histograms", *(["By input"] if any(s.by_input for _, s in rows) else [])]


def picture_sheets(book: Book, tensors: Sequence[TensorResult]) -> None:
    """Sheets Pictures, Histograms and, for special functions, By input; none where every element is exact."""
    rows = drawn_rows(tensors)
    if not rows:
        return
    inputs = list(_input_places(rows))
    pictures = book.page("Pictures", (14, *[NARROW] * 95), one_page=False)
    edges = _histogram_sheet(book, rows)
    if any(inputs):
        _input_sheet(book, rows)
    drawn = [Drawn(row, sketch, subject_title(row), 3 + i, inputs[i]) for i, (row, sketch) in enumerate(rows)]
    wanted = [d for d in drawn if d.row.verdict is not Verdict.PASS and isinstance(d.row.subject, Side)] or drawn
    pictures.line(Cell("Where errors are and how large: findings first; all histograms are on sheet Histograms.", NOTE))
    sizes = [_size(d) for d in wanted[:MAX_DRAWN]]
    for d, (height, _) in zip(wanted, sizes, strict=False):
        pictures.break_before(height, max(width for _, width in sizes))
        _block(book, pictures, d, edges)
    if len(wanted) > MAX_DRAWN:
        pictures.line(Cell(f"{len(wanted) - MAX_DRAWN} more are not drawn here: report.html draws any case", NOTE))


def subject_title(row: Row) -> str:
    """A row within its workbook: what distinguishes the case, the tensor, the candidate, actual and expected."""
    words = [row.case.op, *case_words(row.case, seed=row.case.seed != 0)] if row.case else [row.holder.case_id]
    tensor = row.result.tensor if row.result else ""
    subject = messages.of_candidate(f"{' '.join(words)}, {tensor}", row.holder.candidate)
    return messages.visible(f"{subject}: {row.actual} against {row.expected}")


def _histogram_sheet(book: Book, rows: Sequence[tuple[Row, Sketch]]) -> list[float]:
    """One line per side and pair, one column per bin; returns the upper edges."""
    edges = _edges({edge for _, s in rows for edge, _ in s.ulp_histogram})
    columns = [TableColumn("verdict", Style(verdict=Verdict.PASS), 12), TableColumn("what", PLAIN, 60)]
    columns += [TableColumn(edge_text(e), _COUNT, 9) for e in edges]
    data = []
    for row, s in rows:
        counts = dict(s.ulp_histogram)
        data.append([Cell(str(row.verdict), Style(verdict=row.verdict)), subject_title(row), *(counts.get(e) for e in edges)])
    note = "Elements by |error| in ulp: exactly 0, then up to each edge from half of it (powers of two); the edges are the titles."
    book.table("Histograms", columns, data, note=note, freeze=2)
    return edges


def _edges(found: set[float]) -> list[float]:
    """The edges of bins in order, and the powers of two between them: a gap of an axis is as wide as it is."""
    powers = [math.frexp(e)[1] - 1 for e in found if 0 < e < math.inf]
    between = {2.0**p for p in range(min(powers), max(powers))} if powers else set()
    return sorted(found | between)


def edge_text(edge: float) -> str:
    """The upper edge of a bin, 0 or a power of two: as a number near 1, else as a power."""
    near = edge == 0 or 0.1 < edge < 2048 or math.isinf(edge)
    return messages.number(edge) if near else f"2^{round(math.log2(edge))}"


def _input_places(rows: Sequence[tuple[Row, Sketch]]) -> Iterator[tuple[int, int] | None]:
    """First and last row of sheet By input for each subject."""
    at = 3
    for _, s in rows:
        yield (at, at + len(s.by_input) - 1) if s.by_input else None
        at += len(s.by_input)


def _input_sheet(book: Book, rows: Sequence[tuple[Row, Sketch]]) -> None:
    real = Style("0.00E+0;-0.00E+0;0")
    columns = [TableColumn("what", PLAIN, 60), TableColumn("input from", real, 14), TableColumn("input to", real, 14)]
    columns += [TableColumn("largest error / ulp", _ULP, 14), TableColumn("limit / ulp", _ULP, 14)]
    data = []
    for row, s in rows:
        for b in s.by_input:
            over = replace(_ULP, verdict=Verdict.FAIL) if b.ulp > b.limit else _ULP
            data.append([subject_title(row), b.low, b.high, Cell(b.ulp, over), b.limit])
    book.table(
        "By input", columns, data, note="Special functions: largest error by sign and octave of the input, with the least limit there."
    )


def _block(book: Book, page: Page, d: Drawn, edges: Sequence[float]) -> None:
    """A title, the map as a grid and as a picture, the charts, and room below them."""
    page.gap()
    top = page.line(Cell(str(d.row.verdict), Style(verdict=d.row.verdict)), Cell(d.title, Style(bold=True)))
    cells = d.sketch.error_map
    if cells:
        tall, wide = d.sketch.cell
        largest = max(v for row in cells for v in row)
        page.line(None, Cell(f"error map, {tall} × {wide} elements a cell; largest relative error {messages.number(largest, 3)}", NOTE))
        for i, (row, colours) in enumerate(zip(cells, drawings.shades(cells), strict=True)):
            page.line(Cell(f"row {i * tall}", NOTE), *map(_shaded, row, colours), height=11)
        page.picture(drawings.MapPicture(cells), top + 2, 4 + len(cells[0]))
    right = _chart_column(d)
    own = [edges.index(edge) for edge, _ in d.sketch.ulp_histogram]
    bins = 3 + min(own), 3 + max(own)
    counts = book.cells("Histograms", d.histogram_row, d.histogram_row, *bins)
    titles = book.cells("Histograms", 2, 2, *bins)
    page.picture(drawings.histogram_chart("errors in ulp", titles, counts), top + 2, right)
    if d.inputs:
        first, last = d.inputs
        errors, limits = (book.cells("By input", first, last, c, c) for c in (4, 5))
        far = any(b.ulp > FAR * b.limit for b in d.sketch.by_input)
        chart = drawings.input_chart("largest error by input", book.cells("By input", first, last, 2, 2), errors, limits, logarithmic=far)
        page.picture(chart, top + 2, right + CHART)
    while page.count < top + BLOCK:
        page.line(height=11)


@functools.cache
def _shade(colour: str) -> Style:
    return Style(";;;", fill=colour)


def _shaded(value: float, colour: str) -> Cell:
    """A cell of the map: its colour says it, the number is there for who clicks."""
    return Cell(value, _shade(colour))


def _size(d: Drawn) -> tuple[float, float]:
    """Height and width in points that a block takes."""
    columns = _chart_column(d) - 2 + CHART * (2 if d.inputs else 1)
    return 39 + 11 * max(len(d.sketch.error_map), BLOCK - 1), 0.75 * (FIRST_PIXELS + PIXELS * columns)


def _chart_column(d: Drawn) -> int:
    """The column in which the first chart begins: right of the grid and the picture of the map."""
    cells = d.sketch.error_map
    return 3 + (len(cells[0]) + 2 + -(-drawings.MapPicture(cells).width // PIXELS) if cells else 0)


# summary.xlsx

# title, unit, number format, column of sheet Error by k
_K_CHARTS = (
    ("error as a share of its limit", "times the limit", "0E+0", 4),
    ("relative error", "‖error‖/‖expected‖", "0E+0", 5),
)


def chart_sheets(book: Book, results: Results) -> None:
    """Sheets Charts and Chart data: errors against k and against their limits; none where no case has both."""
    sides = [row for row in findings_first(results) if isinstance(row.subject, Side)]
    by_k = _by_k(sides, [d.label for d in results.dumps])
    gated = _gated(sides)
    if not by_k and not gated:
        return
    page = book.page("Charts", [9] * 20)
    page.line(Cell("Errors of all shapes; the numbers are on the sheets after this one.", NOTE))
    column = 1
    if by_k:
        _k_sheet(book, by_k)
        for title, unit, number_format, value in _K_CHARTS:
            series, at = [], 3
            for name, points in by_k.items():
                x, y = (book.cells("Error by k", at, at + len(points) - 1, c, c) for c in (2, value))
                series.append((name, x, y))
                at += len(points)
            page.picture(drawings.scatter_chart(title, unit, number_format, series[:MAX_SERIES]), 3, column)
            column += 8
    if gated:
        count = len(gated)
        _gate_sheet(book, gated)
        ranks, values, limits = (book.cells("SNR by gate", 3, 2 + count, c, c) for c in (1, 4, 5))
        page.picture(drawings.gate_chart("SNR and its limit, by rank on sheet SNR by gate", ranks, values, limits), 20 if by_k else 3, 1)
    for _ in range(36):
        page.line(height=15)


def _by_k(sides: Sequence[Row], labels: Sequence[str]) -> dict[str, list[Row]]:
    """Sides with a k, a share of their limit and an error, by dump and candidate, in order of k. Empty where all have one k."""
    drawn = sorted((r for r in sides if _k(r) and share_of_limit(r.gate) and _error(r)), key=_k)
    return by_maker(drawn, labels) if len({_k(r) for r in drawn}) > 1 else {}


def _k(row: Row) -> int:
    return row.case.dims.get("k", 0) if row.case else 0


def _error(row: Row) -> float:
    value = row.flat.get("rel_fro")
    return value if isinstance(value, float) and 0 < value < float("inf") else 0.0


def _k_sheet(book: Book, by_k: dict[str, list[Row]]) -> None:
    columns = [TableColumn("dump"), TableColumn("k", Style("0")), TableColumn("what", PLAIN, 60), TableColumn("share of its limit", _SHARE)]
    columns += [TableColumn("relative error", _SHARE), TableColumn("case", PLAIN, 58)]
    data = [
        [name, _k(r), subject_title(r), share_of_limit(r.gate), _error(r), r.holder.case_id] for name, rows in by_k.items() for r in rows
    ]
    book.table(
        "Error by k", columns, data, note="Every side with an error and a limit, by dump, candidate and number of products per element."
    )


def _gated(sides: Sequence[Row]) -> list[tuple[Row, float, float]]:
    """Sides with a gate on an SNR: value and limit, the nearest to its limit first."""
    found = [
        (row, g.value, g.limit)
        for row in sides
        for g in row.gates
        if g.metric.endswith("snr_db") and g.value is not None and abs(g.value) < float("inf")
    ]
    return sorted(found, key=lambda x: x[1] - x[2])[:MAX_GATED]


def _gate_sheet(book: Book, gated: Sequence[tuple[Row, float, float]]) -> None:
    columns = [TableColumn("rank", Style("0")), TableColumn("case", PLAIN, 60), TableColumn("dump", WRAP, 20)]
    columns += [TableColumn("SNR / dB", Style("0.00"), 12), TableColumn("limit / dB", Style("0.00"), 12)]
    data = [[rank, row.holder.case_id, row.maker, value, limit] for rank, (row, value, limit) in enumerate(gated, 1)]
    book.table("SNR by gate", columns, data, note="Signal to noise of every side that a gate limits, the nearest to its limit first.")
