"""Charts and pictures of the workbooks: that they are there, what they are drawn from, and that another program shows them."""

from __future__ import annotations

import math
import struct
import subprocess
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import openpyxl
import pytest
from support_results import budget_gate, fail_result, gemm_case, gemm_results, pass_result, results_of, special_result
from test_report_libreoffice import convert

from accuracy_eval.records import Sketch
from accuracy_eval.report import write_reports
from accuracy_eval.report.drawings import FRAME, INFINITE, NOTHING, RAMP, map_png, shades

BOOK = "gemm-m512.n128.k256.xlsx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures")
    results = gemm_results()
    series = []
    for k, used in ((64, 0.05), (1024, 0.2)):
        result = pass_result(gemm_case("bfloat16", "tt", (512, 128, k)))
        series.append(replace(result, sides=tuple(replace(s, gates=(budget_gate(used),)) for s in result.sides)))
    write_reports(replace(results, tensors=(*results.tensors, special_result(), *series)), path, ("xlsx",))
    return path


def pixels(png: bytes) -> list[list[str]]:
    """Colours of a palette PNG without filters, read by the rules of the format."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (size,), name = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        data = png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + data)
        chunks[name] = data
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    palette = [chunks[b"PLTE"][i : i + 3].hex().upper() for i in range(0, len(chunks[b"PLTE"]), 3)]
    raw = zlib.decompress(chunks[b"IDAT"])
    lines = [raw[i * (width + 1) : (i + 1) * (width + 1)] for i in range(height)]
    assert all(line[0] == 0 for line in lines)
    return [[palette[v] for v in line[1:]] for line in lines]


def embedded(book: Path) -> list[bytes]:
    """The pictures in a workbook's container."""
    with zipfile.ZipFile(book) as container:
        return [container.read(n) for n in sorted(container.namelist()) if n.startswith("xl/media/")]


def test_shades_are_equal_steps_of_the_logarithm() -> None:
    assert shades([[1e-7, 1e-6, 1e-5, 1.0]]) == [[RAMP[0], RAMP[1], RAMP[2], RAMP[7]]]


def test_nothing_and_what_is_not_finite_have_colours_of_their_own() -> None:
    assert shades([[0.0, math.inf, 0.5]]) == [[NOTHING, INFINITE, RAMP[5]]]


def test_the_picture_of_a_map_has_a_square_a_cell_and_a_frame() -> None:
    found = pixels(map_png([[1e-3, 1.0], [0.0, math.inf]]))
    assert (len(found), len(found[0])) == (26, 26)
    assert set(found[0]) == set(found[-1]) == {FRAME}
    assert [found[1][1], found[1][24], found[24][1], found[24][24]] == [RAMP[0], RAMP[7], NOTHING, INFINITE]


def test_histograms_hold_the_counts_of_every_side_and_pair(folder: Path) -> None:
    rows = list(openpyxl.load_workbook(folder / BOOK)["Histograms"].iter_rows(min_row=2, values_only=True))
    assert rows[0] == ("verdict", "what", "0", "0.25", "0.5", "1", "64")
    assert rows[1] == ("FAIL", "gemm bfloat16 nt normal s42, d: h200 against reference", 90, 41000, 24000, 232, 214)
    assert rows[3] == ("FAIL", "gemm bfloat16 nt normal s42, d: h200 against cpu", 65322, None, None, None, 214)


def test_pictures_show_findings_with_map_grid_image_and_chart(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / BOOK)["Pictures"]
    assert [sheet.cell(3, c).value for c in (1, 2)] == ["FAIL", "gemm bfloat16 nt normal s42, d: h200 against reference"]
    grid = [[sheet.cell(r, c).value for c in range(2, 10)] for r in range(5, 21)]
    assert grid[3] == [0.4] * 8
    assert grid[5][6] == "Inf"
    scales = [(str(area.sqref), rule.type) for area in sheet.conditional_formatting for rule in area.rules]
    assert ("B5:I20", "colorScale") in scales
    assert len(sheet._charts) == 3  # bfloat16, fp8, the warning
    images = embedded(folder / BOOK)
    assert len(images) == 3
    assert len(pixels(images[0])) == 16 * 12 + 2


def test_charts_take_their_numbers_from_the_sheets_that_hold_them(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / BOOK)["Pictures"]
    series = sheet._charts[0].series[0]
    assert series.val.numRef.f == "'Histograms'!$C$3:$G$3"
    assert series.cat.numRef.f == "'Histograms'!$C$2:$G$2"
    special = openpyxl.load_workbook(folder / "special-n4096.xlsx")
    by_input = list(special["By input"].iter_rows(min_row=3, values_only=True))
    assert [row[1:] for row in by_input][-1] == (32, 64, 2.5, 0.6)
    chart = next(c for c in special["Pictures"]._charts if "By input" in c.series[0].val.numRef.f)
    assert chart.series[0].val.numRef.f == "'By input'!$D$3:$D$8"


def test_summary_draws_errors_by_k_and_values_by_gate(folder: Path) -> None:
    book = openpyxl.load_workbook(folder / "summary.xlsx")
    names = book.sheetnames
    assert names.index("Charts") + 1 == names.index("Error by k") == names.index("SNR by gate") - 1
    rows = list(book["Error by k"].iter_rows(min_row=3, values_only=True))
    own = [r for r in rows if r[0] == "cpu"]
    assert [r[1] for r in own] == sorted(r[1] for r in own)
    assert (own[0][1], own[0][3]) == (64, 0.05)
    assert [r[3:] for r in book["SNR by gate"].iter_rows(min_row=3, values_only=True)] == [(24.2, 25), (31.7, 25)]
    assert len(book["Charts"]._charts) == 3


def test_a_workbook_of_exact_results_has_no_pictures(tmp_path: Path) -> None:
    result = pass_result(gemm_case(), identical=True)
    exact = Sketch(((0.0, 65536),))
    result = replace(result, sides=tuple(replace(s, sketch=exact) for s in result.sides))
    write_reports(results_of((result,)), tmp_path, ("xlsx",))
    assert "Pictures" not in openpyxl.load_workbook(tmp_path / BOOK).sheetnames


def test_at_most_sixteen_subjects_are_drawn_and_the_rest_is_counted(tmp_path: Path) -> None:
    tensors = tuple(fail_result(replace(gemm_case(), seed=i)) for i in range(20))
    write_reports(results_of(tensors), tmp_path, ("xlsx",))
    sheet = openpyxl.load_workbook(tmp_path / BOOK)["Pictures"]
    assert len(embedded(tmp_path / BOOK)) == 16
    assert sheet.cell(sheet.max_row, 1).value == "4 more are not drawn here: report.html draws any case"


def test_another_program_shows_the_charts_with_their_titles(folder: Path, tmp_path: Path) -> None:
    pdf = convert(folder / "special-n4096.xlsx", "pdf", tmp_path)
    text = subprocess.run(["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    for part in ("errors in ulp", "largest error by input", "|error| in ulp, up to", "limit"):
        assert part in text
    images = subprocess.run(["pdfimages", "-list", str(pdf)], capture_output=True, text=True, check=True).stdout
    assert len(images.splitlines()) > 2  # the error map, below two lines of heading
