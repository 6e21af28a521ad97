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
from support_results import SKETCH, bad_side, budget_gate, fail_result, gemm_case, gemm_results, pass_result, results_of, special_result
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
    assert rows[0] == ("verdict", "what", "0", "0.25", "0.5", "1", "2", "4", "8", "16", "32", "64")
    none = (None,) * 5
    assert rows[1] == ("FAIL", "gemm bfloat16 nt normal s42, d: h200 against reference", 90, 41000, 24000, 232, *none, 214)
    assert rows[3] == ("FAIL", "gemm bfloat16 nt normal s42, d: h200 against cpu", 65322, None, None, None, *none, 214)


def test_edges_far_from_one_are_powers_and_a_chart_spans_the_bins_of_its_own_tensor(tmp_path: Path) -> None:
    base = fail_result(gemm_case())
    wide, narrow = (Sketch(bins) for bins in (((0.0, 1), (2.0**-13, 5), (2.0**20, 1), (math.inf, 2)), ((1.0, 9), (4.0, 1))))
    sides = (replace(base.sides[0], sketch=wide), replace(bad_side("cpu"), sketch=narrow))
    write_reports(results_of((replace(base, sides=sides, pairs=()),)), tmp_path, ("xlsx",))
    book = openpyxl.load_workbook(tmp_path / BOOK)
    heads = [c.value for c in book["Histograms"][2]][2:]
    assert heads[:4] == ["0", "2^-13", "2^-12", "2^-11"]
    assert heads[-2:] == ["2^20", "Inf"]
    one = 3 + heads.index("1")
    left, right = (openpyxl.utils.get_column_letter(c) for c in (one, one + 2))
    assert book["Pictures"]._charts[1].series[0].val.numRef.f == f"'Histograms'!${left}$4:${right}$4"


def test_no_printed_page_cuts_a_block_of_pictures(tmp_path: Path) -> None:
    tall = Sketch(((0.0, 1), (8.0, 5)), tuple((1e-3,) * 32 for _ in range(32)), (16, 4))
    tensors = []
    for seed in range(5):
        t = fail_result(replace(gemm_case(), seed=seed))
        tensors.append(replace(t, sides=(replace(t.sides[0], sketch=tall),), pairs=()))
    write_reports(results_of(tuple(tensors)), tmp_path, ("xlsx",))
    sheet = openpyxl.load_workbook(tmp_path / BOOK)["Pictures"]
    titles = [r for r in range(1, sheet.max_row + 1) if sheet.cell(r, 1).value == "FAIL"]
    breaks = [b.id for b in sheet.row_breaks.brk]
    assert breaks == [titles[2] - 2, titles[4] - 2]  # above the gap over a title, two blocks a page
    text = subprocess.run(["pdftotext", "-layout", str(convert(tmp_path / BOOK, "pdf", tmp_path)), "-"], capture_output=True, text=True)
    pages = [p for p in text.stdout.split("\f") if "error map," in p]
    assert [p.count("error map,") for p in pages] == [2, 2, 1]
    assert all(p.count("|error| in ulp, up to") == p.count("error map,") for p in pages)


def test_an_error_far_beyond_its_limit_is_drawn_on_an_axis_of_powers(tmp_path: Path) -> None:
    base = special_result()
    bins = base.sides[0].sketch.by_input
    far = replace(base.sides[0].sketch, by_input=(*bins[:-1], replace(bins[-1], ulp=1e6)))
    write_reports(results_of((replace(base, sides=(replace(base.sides[0], sketch=far), base.sides[1])),)), tmp_path, ("xlsx",))
    charts = openpyxl.load_workbook(tmp_path / "special-n4096.xlsx")["Pictures"]._charts
    (chart,) = (c for c in charts if "By input" in c.series[0].val.numRef.f)
    assert chart.y_axis.scaling.logBase == 10


def test_an_error_of_any_size_fits_its_column(tmp_path: Path) -> None:
    base = special_result()
    huge = tuple(replace(b, ulp=1.5e30) for b in base.sides[0].sketch.by_input)
    side = replace(base.sides[0], sketch=replace(base.sides[0].sketch, by_input=huge))
    write_reports(results_of((replace(base, sides=(side, base.sides[1])),)), tmp_path, ("xlsx",))
    pdf = convert(tmp_path / "special-n4096.xlsx", "pdf", tmp_path)
    text = subprocess.run(["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    assert "1.50E+30" in text
    assert "###" not in text


def test_pictures_show_findings_with_map_grid_image_and_chart(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / BOOK)["Pictures"]
    assert [sheet.cell(3, c).value for c in (1, 2)] == ["FAIL", "gemm bfloat16 nt normal s42, d: h200 against reference"]
    grid = [[sheet.cell(r, c).value for c in range(2, 10)] for r in range(5, 21)]
    assert grid[3] == [0.4] * 8
    assert grid[5][6] == "Inf"
    colours = [[sheet.cell(r, c).fill.fgColor.rgb for c in range(2, 10)] for r in range(5, 21)]
    assert [[c.removeprefix("FF") for c in row] for row in colours] == shades(SKETCH.error_map)  # those of the picture
    assert len(sheet._charts) == 3  # bfloat16, fp8, the warning
    images = embedded(folder / BOOK)
    assert len(images) == 3
    assert len(pixels(images[0])) == 16 * 12 + 2


def test_charts_take_their_numbers_from_the_sheets_that_hold_them(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / BOOK)["Pictures"]
    series = sheet._charts[0].series[0]
    assert series.val.numRef.f == "'Histograms'!$C$3:$L$3"
    assert series.cat.numRef.f == "'Histograms'!$C$2:$L$2"
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


def test_candidates_of_a_case_are_told_apart_in_titles_rows_and_series(tmp_path: Path) -> None:
    tensors = []
    for k, used in ((64, 0.05), (1024, 0.2)):
        result = pass_result(gemm_case(shape=(512, 128, k)))
        sides = tuple(replace(s, gates=(budget_gate(used),)) for s in result.sides)
        tensors += [replace(result, sides=sides[:1], candidate="mine"), replace(result, sides=sides)]
    write_reports(results_of(tuple(tensors)), tmp_path, ("xlsx",))
    titles = [row[1] for row in openpyxl.load_workbook(tmp_path / "gemm-m512.n128.k64.xlsx")["Pictures"].iter_rows(values_only=True)]
    assert "gemm bfloat16 nt normal s42, d (mine): h200 against reference" in titles
    assert "gemm bfloat16 nt normal s42, d: h200 against reference" in titles
    book = openpyxl.load_workbook(tmp_path / "summary.xlsx")
    rows = list(book["Error by k"].iter_rows(min_row=3, max_col=2, values_only=True))
    assert rows == [("h200", 64), ("h200", 1024), ("h200 (mine)", 64), ("h200 (mine)", 1024), ("cpu", 64), ("cpu", 1024)]
    series = book["Charts"]._charts[0].series
    assert [s.xVal.numRef.f for s in series] == [f"'Error by k'!$B${first}:$B${first + 1}" for first in (3, 5, 7)]
    assert [s.tx.v for s in series] == ["h200", "h200 (mine)", "cpu"]


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
