from __future__ import annotations

import math
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openpyxl
import pandas
import pytest
from support_results import (
    CPU,
    H200,
    MI300X,
    fail_result,
    gemm_case,
    gemm_results,
    hostile_results,
    id_of,
    many_results,
    pass_result,
    passing_results,
    results_of,
)

from accuracy_eval.records import Attribution, Case, Diagnosis, NotCompared, Results, Verdict, WorstElement
from accuracy_eval.report import write_reports
from accuracy_eval.report.sheet_rows import MAX_LINKS
from accuracy_eval.report.styles import Cell, Style, TableColumn
from accuracy_eval.report.workbook import Book

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    write_reports(gemm_results(), path, ("xlsx",))
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    write_reports(hostile_results(), path, ("xlsx",))
    return path


def table(path: Path, sheet: str, header: int = 2) -> list[dict[str, Any]]:
    """Rows of a table sheet as openpyxl reads them, by column title."""
    rows = list(openpyxl.load_workbook(path)[sheet].iter_rows(min_row=header, values_only=True))
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def texts(path: Path, sheet: str) -> list[str]:
    return [str(c) for row in openpyxl.load_workbook(path)[sheet].iter_rows(values_only=True) for c in row if c is not None]


def test_one_workbook_for_each_family_and_shape(folder: Path) -> None:
    assert {p.name for p in folder.glob("*.xlsx")} == {"summary.xlsx", "gemm-m512.n128.k256.xlsx", "gemm-m8192.n8192.k8192.xlsx"}


def test_workbook_has_its_sheets_in_reading_order(folder: Path) -> None:
    names = openpyxl.load_workbook(folder / "gemm-m512.n128.k256.xlsx").sheetnames
    assert names == [
        "Overview", "Verdict", "Metrics", "Worst elements", "Pictures", "Histograms", "Platforms", "Gates", "Not compared", "Definitions",
    ]  # fmt: skip
    assert "Not compared" not in openpyxl.load_workbook(folder / "gemm-m8192.n8192.k8192.xlsx").sheetnames


def test_overview_says_verdict_who_how_much_which_limit_why_and_what_next(folder: Path) -> None:
    text = "\n".join(texts(folder / "gemm-m512.n128.k256.xlsx", "Overview"))
    for part in (
        "gemm m512.n128.k256: h200 vs cpu",
        "h200 is off in 3 of 9 comparisons of h200 and cpu; for example: h200 is off by 6.9 × its budget; cpu keeps contract fp32acc.",
        "3 FAIL, 1 INPUTS_DIFFER, 1 MISSING, 1 WARN, 5 PASS, 1 UNSUPPORTED",
        "accuracy-eval compare h200.h5 cpu.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42",
        "error 6.9 × budget at [12, 301] (contract fp32acc, B 3.1e-4; gate budget)",
        "Limits from\ngate budget: running-error bound under the call's contract (docs/budgets.md)",
        "k-tail-missing: The last 8 of 256 products are missing in every row.",
        "NVIDIA H200 (sm_90)",
        "torch 2.13.0+cu130, CUDA 13.0, driver 580.95.05",
    ):
        assert part in text


def test_overview_says_the_same_of_several_cases_once_and_names_them_in_words(tmp_path: Path) -> None:
    gone = [replace(gemm_case("float32", letters), seed=0) for letters in ("nn", "nt", "tn", "tt")]
    skipped = [NotCompared(id_of(c), "gemm", "default", "cpu", Verdict.MISSING, "not in cpu.h5", c) for c in gone]
    write_reports(results_of((fail_result(gemm_case()),), tuple(skipped)), tmp_path, ("xlsx",))
    found = texts(tmp_path / "summary.xlsx", "Overview")
    assert "gemm m512.n128.k256 bfloat16 nt normal s42, d" in found
    assert "gemm m512.n128.k256 float32 nn normal s0\nand 3 more" in found
    assert found.count("not in cpu.h5") == 1


@pytest.mark.parametrize(("words", "orientation"), [(5, "landscape"), (60, "portrait")])
def test_the_overview_is_printed_the_way_that_shows_it_larger(words: int, orientation: str, tmp_path: Path) -> None:
    base = fail_result(gemm_case())
    causes = [Diagnosis("gain", f"{i} {'word ' * words}", {}) for i in range(8)]
    tensors = [replace(base, sides=(replace(base.sides[0], diagnoses=(c,)), base.sides[1])) for c in causes]
    write_reports(results_of(tuple(tensors)), tmp_path, ("xlsx",))
    page = openpyxl.load_workbook(tmp_path / "summary.xlsx")["Overview"].page_setup
    assert (page.orientation, page.fitToWidth, page.fitToHeight) == (orientation, 1, 1)


def test_a_dump_off_its_contract_is_named_in_matrix_and_overview(tmp_path: Path) -> None:
    base = fail_result(gemm_case())
    pair = replace(base.pairs[0], attribution=Attribution.OFF_CONTRACT, sentence="h200 keeps tf32 instead of fp32acc")
    write_reports(results_of((replace(base, pairs=(pair,)),)), tmp_path, ("xlsx",))
    assert texts(tmp_path / "summary.xlsx", "Overview").count("h200 keeps tf32 instead of fp32acc") == 2
    assert "FAIL: h200 keeps tf32 instead of fp32acc\n(1 off its contract)" in texts(tmp_path / "summary.xlsx", "Matrix")


def test_overview_of_a_passing_workbook_states_its_resolution(folder: Path) -> None:
    found = texts(folder / "gemm-m8192.n8192.k8192.xlsx", "Overview")
    assert found[1:3] == ["PASS", "Nobody is off in 2 comparisons of h200 and cpu: 2 equivalent."]
    assert "smallest faults that would have failed, for h200 bfloat16: element 3.1e-4, row 0.0022, gain 4e-5" in found
    assert "none: every tensor kept its limits" in found


@pytest.mark.parametrize(
    ("margin", "shown"),
    [
        (0.69, "0.0%;-0.0%;0.0%"),
        (-5.9, "0.0%;-0.0%;0.0%"),
        (-76235.9, '0.0%;#,##0" × beyond";0.0%'),
        (-3e12, '0.0%;0.00E+00" × beyond";0.0%'),
    ],
)
def test_a_margin_far_beyond_its_limit_is_shown_in_limits(margin: float, shown: str, tmp_path: Path) -> None:
    base = fail_result(gemm_case())
    gate = replace(base.sides[0].gates[0], value=1 - margin, passed=margin >= 0)
    write_reports(results_of((replace(base, sides=(replace(base.sides[0], gates=(gate,)),), pairs=()),)), tmp_path, ("xlsx",))
    sheet = openpyxl.load_workbook(tmp_path / "gemm-m512.n128.k256.xlsx")["Verdict"]
    column = next(c.column for c in sheet[2] if c.value == "budget margin")
    assert sheet.cell(3, column).value == pytest.approx(margin)
    assert sheet.cell(3, column).number_format == shown


def test_the_command_of_a_finding_is_on_the_printed_page(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / "summary.xlsx")["Findings"]
    command = next(c.column_letter for c in sheet[2] if c.value == "run next")
    assert sheet.print_area.split(":")[1].lstrip("$")[0] >= command
    assert sum(d.width for name, d in sheet.column_dimensions.items() if name <= command) <= 230


def test_the_margin_of_the_gate_that_decides_is_on_the_printed_page_however_many_gates_there_are(folder: Path) -> None:
    for book in ("gemm-m512.n128.k256.xlsx", "gemm-m8192.n8192.k8192.xlsx"):
        sheet = openpyxl.load_workbook(folder / book)["Verdict"]
        margin = next(c.column for c in sheet[2] if c.value == "margin")
        last = openpyxl.utils.cell.range_boundaries(sheet.print_area.split("!")[1])[2]
        assert margin < last
        assert sheet.page_setup.fitToWidth == 1


def test_verdict_row_has_value_limit_and_margin_as_numbers(folder: Path) -> None:
    rows = table(folder / "gemm-m512.n128.k256.xlsx", "Verdict")
    row = rows[0]
    assert (row["verdict"], row["actual"], row["against"], row["format"], row["layout"]) == ("FAIL", "h200", "reference", "bfloat16", "nt")
    assert (row["budget (budget_max)"], row["budget limit <="]) == (6.9, 1.0)
    assert row["budget margin"] == row["margin"] == pytest.approx(-5.9)
    assert row["cause"] == "k-tail-missing"
    assert row["command"].endswith("--case gemm.m512.n128.k256.nt.bfloat16.normal.s42")
    pair = rows[2]
    assert (pair["who is off"], pair["attribution"], pair["against"]) == ("h200 is off", "a_off", "cpu")
    assert len(rows) == 9 * 3


def test_the_case_of_a_row_is_among_its_first_columns_and_on_the_printed_page(folder: Path) -> None:
    book = openpyxl.load_workbook(folder / "gemm-m512.n128.k256.xlsx")
    for name, column in (("Verdict", "E"), ("Metrics", "D")):
        assert book[name][f"{column}2"].value == "case"
        assert book[name][f"{column}3"].value == "gemm.m512.n128.k256.nt.bfloat16.normal.s42"
        assert openpyxl.utils.cell.range_boundaries(book[name].print_area.split("!")[1])[2] >= 5
    every = openpyxl.load_workbook(folder / "summary.xlsx")["All"]
    assert [c.value for c in every[1]][:7] == ["verdict", "attribution", "who", "kind", "actual", "expected", "case_id"]


def test_rows_of_the_worst_tensors_come_first_and_stay_together(folder: Path) -> None:
    rows = table(folder / "gemm-m512.n128.k256.xlsx", "Verdict")
    cases = [r["case"] for r in rows]
    assert cases == [c for c in dict.fromkeys(cases) for _ in range(3)]
    assert [r["verdict"] for r in rows][:12] == ["FAIL", "PASS", "FAIL"] * 3 + ["WARN", "PASS", "WARN"]


def test_unapplied_gate_says_so_where_its_value_would_be(folder: Path) -> None:
    row = next(
        r for r in table(folder / "gemm-m512.n128.k256.xlsx", "Verdict") if r["format"] == "float16" and r["cause"] == "nan-in-actual"
    )
    assert (row["budget (budget_max)"], row["budget limit <="], row["budget margin"]) == ("not applied", 1, None)


def test_metrics_are_numbers_and_what_is_not_finite_is_named_text(folder: Path) -> None:
    rows = table(folder / "gemm-m512.n128.k256.xlsx", "Metrics")
    good = next(r for r in rows if r["verdict"] == "PASS")
    assert (good["rel_fro"], good["mismatch_count"], good["max_rel_index"]) == (1.6e-3, 0, "[3, 17]")
    bad = next(r for r in rows if r["format"] == "float16" and r["nan_actual"] == 12)
    assert (bad["rel_fro"], bad["rmse"], bad["snr_db"], bad["bias_sigma"]) == ("NaN", "Inf", "-Inf", "-Inf")
    equal = next(r for r in rows if r["lane"] == "exact" and r["against"] == "cpu")
    assert (equal["rel_fro"], equal["snr_db"]) == (0, "Inf")


def test_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    values = [0.1 + 0.2, math.pi, 1 / 3, 1e-300, 1.7976931348623157e308, -2.5e-17, 9007199254740993.0]
    with Book(tmp_path / "x.xlsx", "x") as book:
        book.table("T", [TableColumn("v")], [[v] for v in values])
        book.save()
    assert [r["v"] for r in table(tmp_path / "x.xlsx", "T", header=1)] == values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "-0"),
        (5e-324, "5e-324"),
        (2**53 + 1, "9007199254740993"),
        (-(2**64), "-18446744073709551616"),
        (math.nan, "NaN"),
        (True, "yes"),
        (-math.inf, "-Inf"),
    ],
)
def test_what_a_spreadsheet_would_change_is_text(value: Any, text: str, tmp_path: Path) -> None:
    with Book(tmp_path / "x.xlsx", "x") as book:
        book.table("T", [TableColumn("v")], [[value]])
        book.save()
    cell = openpyxl.load_workbook(tmp_path / "x.xlsx")["T"]["A2"]
    assert (cell.value, cell.data_type) == (text, "s")


def test_number_formats_follow_the_metric(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / "gemm-m512.n128.k256.xlsx")["Metrics"]
    columns = {c.value: c.column for c in sheet[2]}
    row = next(r for r in range(3, sheet.max_row + 1) if sheet.cell(r, 1).value == "PASS")
    formats = {name: sheet.cell(row, columns[name]).number_format for name in ("rel_fro", "mismatch_count", "mismatch_fraction", "ulp_max")}
    assert formats == {"rel_fro": "0.00E+00", "mismatch_count": "#,##0", "mismatch_fraction": "0.0000%", "ulp_max": "#,##0.00"}


def test_whole_distances_in_ulp_have_no_decimals(tmp_path: Path) -> None:
    base = pass_result(gemm_case())
    pair = replace(base.pairs[0], metrics=dict(base.pairs[0].metrics) | {"ulp_max": 3.0})
    write_reports(results_of((replace(base, pairs=(pair,)),)), tmp_path, ("xlsx",))
    sheet = openpyxl.load_workbook(tmp_path / "gemm-m512.n128.k256.xlsx")["Metrics"]
    column = next(c.column for c in sheet[2] if c.value == "ulp_max")
    assert [sheet.cell(r, column).number_format for r in (3, 4, 5)] == ["#,##0.00", "#,##0.00", "#,##0"]


def test_worst_elements_show_index_codes_values_truth_and_ulp(folder: Path) -> None:
    rows = table(folder / "gemm-m512.n128.k256.xlsx", "Worst elements")
    first = rows[0]
    assert (first["rank"], first["index"], first["actual code"], first["actual value"]) == (1, "[12, 301]", "0x3F12", 0.5703125)
    assert (first["expected code"], first["reference value"], first["error / ulp"], first["budget"]) == (None, 0.46288, 55, 3.1e-4)
    pair = next(r for r in rows if r["against"] == "cpu" and r["verdict"] == "FAIL")
    assert (pair["expected code"], pair["expected value"], pair["reference value"]) == ("0x3EED", 0.462890625, 0.46288123)
    negative_zero = next(r for r in rows if r["actual code"] == "0xFC00")
    assert (negative_zero["actual value"], negative_zero["expected value"]) == ("-Inf", "-0")


def test_passing_rows_list_one_worst_element_and_findings_all(tmp_path: Path) -> None:
    element = WorstElement((0, 0), 1, None, 1.0, 0.5, 0.5, 1.0)
    base = pass_result(gemm_case())
    fails = replace(base.sides[0], verdict=Verdict.FAIL, worst=(element,) * 16)
    passes = replace(base.sides[1], worst=(element,) * 16)
    write_reports(results_of((replace(base, sides=(fails, passes)),)), tmp_path, ("xlsx",))
    rows = table(tmp_path / "gemm-m512.n128.k256.xlsx", "Worst elements")
    assert [r["verdict"] for r in rows] == ["FAIL"] * 16 + ["PASS"]


def test_platforms_stand_side_by_side_and_differences_are_marked(folder: Path) -> None:
    path = folder / "gemm-m512.n128.k256.xlsx"
    rows = {r["property"]: r for r in table(path, "Platforms")}
    assert (rows["device_name"]["differs"], rows["device_name"]["h200"]) == ("differs", "NVIDIA H200")
    assert (rows["driver_version"]["differs"], rows["driver_version"]["cpu"]) == ("differs", "unknown")
    assert "torch_rocm" not in rows  # no dump knows it
    assert (rows["flags.allow_tf32"]["differs"], rows["flags.fp16_reduced_precision"]["differs"]) == ("same", "differs")
    sheet = openpyxl.load_workbook(path)["Platforms"]
    fills = {r[1].value: r[2].fill.fill_type for r in sheet.iter_rows(min_row=3)}
    assert (fills["device_name"], fills["python"]) == ("solid", None)


def test_numerics_cards_are_a_sheet_where_devices_were_probed(tmp_path: Path) -> None:
    card = {"format": "float16", "out": "float32", "mode": "tf32", "sentence": "matches cdna3", "answers": {"tiny": [0, 1]}}
    probed = replace(H200, numerics={"formats": [card]})
    write_reports(results_of((pass_result(gemm_case()),), dumps=(probed, CPU)), tmp_path, ("xlsx",))
    for name in ("summary.xlsx", "gemm-m512.n128.k256.xlsx"):
        rows = table(tmp_path / name, "Numerics")
        assert [(r["products of"], r["h200"], r["cpu"]) for r in rows] == [
            ("float16 → float32, tf32", "matches cdna3", "unknown"), ("float16 → float32, tf32: tiny", "0 1", "unknown"),
        ]  # fmt: skip


def test_gates_list_limit_source_and_what_became_of_them(folder: Path) -> None:
    rows = {r["gate"]: r for r in table(folder / "gemm-m512.n128.k256.xlsx", "Gates")}
    budget = rows["budget"]
    assert (budget["limit"], budget["limit from"]) == (1, "running-error bound under the call's contract (docs/budgets.md)")
    assert (budget["applied"], budget["broken"], budget["not applicable"]) == (17, 1, 1)
    assert rows["exact-lane"]["applied"] == 0


def test_gate_that_is_not_in_the_profile_is_listed_too(tmp_path: Path) -> None:
    base = pass_result(gemm_case())
    gate = replace(base.sides[0].gates[0], gate="user-tolerance")
    write_reports(results_of((replace(base, sides=(replace(base.sides[0], gates=(gate,)),)),)), tmp_path, ("xlsx",))
    assert table(tmp_path / "gemm-m512.n128.k256.xlsx", "Gates")[-1]["gate"] == "user-tolerance"


def test_broken_numbers_are_coloured_and_stay_aligned_as_numbers(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / "gemm-m512.n128.k256.xlsx")["Verdict"]
    cell = next(c for c in sheet[3] if c.value == 6.9)
    assert (cell.fill.fill_type, cell.alignment.horizontal) == ("solid", None)


def test_definitions_explain_the_metrics_there_are(folder: Path) -> None:
    path = folder / "gemm-m512.n128.k256.xlsx"
    rows = {r["metric"]: r for r in table(path, "Definitions")}
    assert (rows["snr_db"]["unit"], rows["snr_db"]["better"]) == ("dB", "higher")
    assert set(rows) <= set(table(path, "Metrics")[0])
    assert len(rows) > 15


def test_left_out_cases_have_their_reasons(folder: Path) -> None:
    rows = table(folder / "gemm-m512.n128.k256.xlsx", "Not compared")
    assert [r["verdict"] for r in rows] == ["INPUTS_DIFFER", "MISSING", "UNSUPPORTED"]
    assert rows[2]["reason"] == "mxfp8 needs capability 10.0, this device has 9.0"


def test_summary_has_one_flat_row_for_every_verdict(folder: Path) -> None:
    frame = pandas.read_excel(folder / "summary.xlsx", sheet_name="All", engine="calamine", keep_default_na=False, na_values=[""])
    results = gemm_results()
    assert len(frame) == sum(len(t.sides) + len(t.pairs) for t in results.tensors) + len(results.not_compared)
    assert list(frame.columns[:4]) == ["verdict", "attribution", "who", "kind"]
    assert frame.pivot_table(index="format", columns="verdict", values="seed", aggfunc="count").loc["bfloat16", "FAIL"] == 2
    assert frame["gate_margin"].min() == pytest.approx(-5.9)
    assert set(frame["m"]) == {512, 8192}
    assert set(frame["workbook"]) == {"gemm-m512.n128.k256.xlsx", "gemm-m8192.n8192.k8192.xlsx"}


def test_summary_lists_findings_first_and_names_their_workbook(folder: Path) -> None:
    rows = table(folder / "summary.xlsx", "Findings")
    assert [r["verdict"] for r in rows] == ["FAIL", "FAIL", "FAIL", "INPUTS_DIFFER", "MISSING", "WARN"]
    assert rows[0]["workbook"] == "gemm-m512.n128.k256.xlsx"
    assert rows[0]["who is off"] == "h200 is off"


def test_matrix_holds_every_pair_of_three_dumps(tmp_path: Path) -> None:
    labels = ("h200", "cpu"), ("h200", "mi300x"), ("cpu", "mi300x")
    parts = [pass_result(gemm_case(), labels=p) for p in labels]
    failing = replace(parts[1].pairs[0], verdict=Verdict.FAIL, attribution="b_off")
    from accuracy_eval.records import Attribution

    failing = replace(failing, attribution=Attribution.B_OFF)
    one = replace(parts[0], sides=(*parts[0].sides, parts[1].sides[1]), pairs=(parts[0].pairs[0], failing, parts[2].pairs[0]))
    write_reports(results_of((one,), dumps=(H200, CPU, MI300X)), tmp_path, ("xlsx",))
    rows = {r["dump"]: r for r in table(tmp_path / "summary.xlsx", "Matrix")}
    assert rows["h200"]["mi300x"] == rows["mi300x"]["h200"] == "FAIL: mi300x is off\n(1 mi300x is off)"
    assert rows["h200"]["cpu"] == "PASS: equivalent\n(1 equivalent)"
    assert [rows[x][x] for x in ("h200", "cpu", "mi300x")] == ["—"] * 3
    assert rows["cpu"]["against the reference"] == "PASS: 1 PASS"


def test_a_dump_whose_candidate_fails_is_not_shown_as_passing(tmp_path: Path) -> None:
    right = pass_result(gemm_case())
    right = replace(right, sides=right.sides[:1], pairs=())
    mine = replace(right, candidate="mine", verdict=Verdict.FAIL, sides=(replace(right.sides[0], verdict=Verdict.FAIL),))
    write_reports(results_of((right, mine), dumps=(H200,)), tmp_path, ("xlsx",))
    (row,) = table(tmp_path / "summary.xlsx", "Matrix")
    assert row["against the reference"] == "FAIL: 1 FAIL, 1 PASS"


def test_the_command_for_the_worst_element_names_its_candidate(tmp_path: Path) -> None:
    result = replace(fail_result(gemm_case()), candidate="my kernel")
    write_reports(results_of((result,)), tmp_path, ("xlsx",))
    commands = [r["operands"] for r in table(tmp_path / "gemm-m512.n128.k256.xlsx", "Worst elements") if r["operands"]]
    assert commands
    assert all("--candidate 'my kernel' --element" in c for c in commands)


def links(path: Path, sheet: str) -> list[tuple[str, str]]:
    """(target file or "", place in the workbook) of every link of a sheet."""
    return [
        (c.hyperlink.target or "", c.hyperlink.location or "")
        for row in openpyxl.load_workbook(path)[sheet].iter_rows()
        for c in row
        if c.hyperlink
    ]


def test_links_lead_to_sheets_and_workbooks_that_exist(folder: Path) -> None:
    for path in folder.glob("*.xlsx"):
        names = openpyxl.load_workbook(path).sheetnames
        found = [link for sheet in ("Overview", *(s for s in ("Findings", "Workbooks") if s in names)) for link in links(path, sheet)]
        assert len(found) > 6
        for target, place in found:
            assert (folder / target).is_file() if target else place[1:].split("'!")[0] in names


def test_links_beyond_what_a_sheet_holds_become_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINKS < 65_530
    monkeypatch.setattr("accuracy_eval.report.sheet_rows.MAX_LINKS", 3)
    with Book(tmp_path / "x.xlsx", "x") as book:
        book.table("T", [TableColumn("v")], [[Cell(f"f{i}", link="f.xlsx")] for i in range(5)])
        book.save()
    assert len(links(tmp_path / "x.xlsx", "T")) == 3
    assert [r["v"] for r in table(tmp_path / "x.xlsx", "T", 1)] == [f"f{i}" for i in range(5)]


def test_tables_freeze_filter_repeat_their_header_and_print_landscape_to_width(folder: Path) -> None:
    book = openpyxl.load_workbook(folder / "gemm-m512.n128.k256.xlsx")
    sheet = book["Verdict"]
    assert sheet.freeze_panes == "E3"
    assert sheet.auto_filter.ref == f"A2:{openpyxl.utils.get_column_letter(sheet.max_column)}{sheet.max_row}"
    assert sheet.print_title_rows == "$2:$2"
    for name in book.sheetnames:
        page = book[name]
        assert page.page_setup.orientation == "landscape"
        assert page.sheet_properties.pageSetUpPr.fitToPage
        assert (page.page_setup.fitToWidth, page.page_setup.fitToHeight) == (1, 1 if name == "Overview" else 0)


def test_columns_are_as_wide_as_their_content(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / "gemm-m512.n128.k256.xlsx")["Verdict"]
    for column in sheet.iter_cols(min_row=3, max_col=12):
        longest = max((len(c.value) for c in column if isinstance(c.value, str)), default=0)
        wordy = 1.25 if longest > 40 else 1.0  # letters are narrower than the digits that a width counts
        assert longest <= wordy * sheet.column_dimensions[column[0].column_letter].width <= wordy * 64


def test_verdicts_are_words_with_a_colour_of_their_own(folder: Path) -> None:
    sheet = openpyxl.load_workbook(folder / "summary.xlsx")["All"]
    colours = {row[0].value: row[0].fill.fgColor.rgb for row in sheet.iter_rows(min_row=2)}
    assert set(colours) == {"PASS", "WARN", "FAIL", "INPUTS_DIFFER", "UNSUPPORTED", "MISSING"}
    assert len(set(colours.values())) == len(colours)


def test_no_string_becomes_a_formula_an_error_or_a_link(hostile: Path) -> None:
    for path in hostile.glob("*.xlsx"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "worksheets/sheet" in name and name.endswith(".xml"):
                    root = ElementTree.fromstring(archive.read(name))
                    cells = list(root.iter(f"{MAIN}c"))
                    assert cells
                    assert not list(root.iter(f"{MAIN}f"))
                    assert {c.get("t") for c in cells} <= {"inlineStr", None}
                    for c in cells:
                        value = c.find(f"{MAIN}v")
                        assert value is None or math.isfinite(float(value.text or ""))


def test_text_that_starts_like_a_formula_is_marked_as_text(hostile: Path) -> None:
    sheet = openpyxl.load_workbook(hostile / "gemm-m512.n128.k256.xlsx")["Verdict"]
    marked = {c.value: c.quotePrefix for row in sheet.iter_rows(min_row=3) for c in row if isinstance(c.value, str)}
    assert marked["=1+1"]
    assert marked["@SUM(A1)"]
    assert not marked["reference"]


def test_hostile_text_is_shown_as_it_is_with_escapes(hostile: Path) -> None:
    found = set(texts(hostile / "summary.xlsx", "Not compared"))
    for text in (
        "=1+1",
        "@SUM(A1)",
        "+1",
        "-1",
        "=cmd|' /C calc'!A0",
        r"a\x00b\x1b[31m\x07",
        "<b>&\"'|`x`",
        r"\u202egnp.exe",
        "#N/A",
        "\nx",
    ):
        assert text in found
    assert "_x005F_x0041_" in found  # a spreadsheet decodes this to _x0041_, and would decode _x0041_ to A
    longest = max(found, key=len)
    assert len(longest) <= 32_767
    assert longest.endswith("characters)")


def test_sheet_names_are_what_a_spreadsheet_accepts(tmp_path: Path) -> None:
    book = Book(tmp_path / "x.xlsx", "x")
    wanted = ["History", "a" * 40, "A" * 40, "a/b:c*d?e[f]g\\h", "'quoted'", "", "x\x00y", "Verdict", "verdict", "a" * 30 + "'b"]
    names = [book.sheet_name(w) for w in wanted]
    assert len({n.lower() for n in names}) == len(wanted)
    for name in names:
        assert 0 < len(name) <= 31
        assert not re.search(r"[\[\]:*?/\\\x00-\x1f]", name)
        assert name.strip("'") == name
        assert name.lower() != "history"


def test_rows_beyond_a_sheet_go_to_numbered_sheets_with_their_header(tmp_path: Path) -> None:
    with Book(tmp_path / "x.xlsx", "x") as book:
        names = book.table("Rows", [TableColumn("i"), TableColumn("j")], ([i, str(i)] for i in range(25)), note="note", max_rows=12)
        book.save()
    assert names == ["Rows", "Rows (2)", "Rows (3)"]
    parts = [table(tmp_path / "x.xlsx", n) for n in names]
    assert [len(p) for p in parts] == [10, 10, 5]
    assert [r["i"] for p in parts for r in p] == list(range(25))


def test_empty_table_still_has_its_header(tmp_path: Path) -> None:
    with Book(tmp_path / "x.xlsx", "x") as book:
        book.table("Rows", [TableColumn("i")], [])
        book.save()
    assert texts(tmp_path / "x.xlsx", "Rows") == ["i"]


@pytest.mark.parametrize("results", [results_of(()), passing_results()], ids=["nothing", "passing"])
def test_summary_is_written_whatever_there_is(results: Results, tmp_path: Path) -> None:
    write_reports(results, tmp_path, ("xlsx",))
    assert openpyxl.load_workbook(tmp_path / "summary.xlsx").sheetnames[:5] == ["Overview", "Findings", "Workbooks", "Matrix", "All"]


def test_long_and_colliding_shapes_get_their_own_workbooks(tmp_path: Path) -> None:
    shapes = (tuple((c, 10**9 + i) for c in "abcdefghijkl") for i in range(2))
    cases = [*(Case("special", s) for s in shapes), Case("special", (("m", 1),)), Case("special", (("M", 1),))]
    tensors = tuple(replace(pass_result(gemm_case()), case=c, case_id=id_of(c), family="special") for c in cases)
    paths = write_reports(results_of(tensors), tmp_path, ("xlsx",))
    assert len({p.name.lower() for p in paths}) == 5
    assert max(len(p.name) for p in paths) <= 85


def test_case_known_by_id_alone_is_in_the_summary(tmp_path: Path) -> None:
    results = gemm_results()
    lone = replace(results.not_compared[0], case=None, case_id="odd.id", family="odd")
    write_reports(replace(results, not_compared=(lone,)), tmp_path, ("xlsx",))
    assert [r["case"] for r in table(tmp_path / "summary.xlsx", "Not compared")] == ["odd.id"]
    assert not list(tmp_path.glob("odd*"))


def test_container_has_fixed_dates_and_no_user(folder: Path) -> None:
    for path in folder.glob("*.xlsx"):
        with zipfile.ZipFile(path) as archive:
            assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
            core = archive.read("docProps/core.xml").decode()
        assert re.findall(r"<dcterms:\w+[^>]*>([^<]*)<", core) == ["1980-01-01T00:00:00Z"] * 2
        assert "<dc:creator>accuracy-eval</dc:creator>" in core


def test_thousands_of_rows_are_all_there(tmp_path: Path) -> None:
    write_reports(many_results(700), tmp_path, ("xlsx",))
    assert len(table(tmp_path / "gemm-m512.n128.k256.xlsx", "Verdict")) == 2100
    assert openpyxl.load_workbook(tmp_path / "summary.xlsx", read_only=True)["All"].max_row in (None, 2101)


def test_cell_styles_of_a_table_can_be_given_per_cell(tmp_path: Path) -> None:
    with Book(tmp_path / "x.xlsx", "x") as book:
        book.table("T", [TableColumn("v", Style("0.00"))], [[Cell(1.5, Style("0.0%", verdict=Verdict.FAIL))], [1.5]])
        book.save()
    sheet = openpyxl.load_workbook(tmp_path / "x.xlsx")["T"]
    assert [sheet.cell(r, 1).number_format for r in (2, 3)] == ["0.0%", "0.00"]
    assert sheet["A2"].font.bold
