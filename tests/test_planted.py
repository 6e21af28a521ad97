"""A planted fault of every kind: each report names its cause, who is off and what to run next."""

from __future__ import annotations

import csv
from pathlib import Path

import openpyxl
import pytest
from support_planted import fault_codes, planted_results

from accuracy_eval.records import Attribution, Results, Verdict
from accuracy_eval.report import console_table, load_results, write_reports

CODES = fault_codes()


@pytest.fixture(scope="module")
def results() -> Results:
    return planted_results()


@pytest.fixture(scope="module")
def folder(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted")
    write_reports(results, path, ("xlsx", "html", "json", "csv", "md", "junit"))
    return path


def test_every_fault_is_named_and_the_healthy_side_is_not(results: Results) -> None:
    for code, t in zip(CODES, results.tensors, strict=True):
        bad, good = t.sides
        assert code in [d.code for d in bad.diagnoses]
        assert (good.verdict, good.diagnoses) == (Verdict.PASS, ())
        wanted = Verdict.WARN if code == "nondeterministic" else Verdict.FAIL
        assert bad.verdict is wanted


def test_who_is_off_is_said_of_every_fault_that_can_be_compared(results: Results) -> None:
    said = {code: t.pairs[0].attribution for code, t in zip(CODES, results.tensors, strict=True)}
    special = dict.fromkeys(("shape-mismatch", "format-mismatch"), Attribution.NOT_COMPARABLE)
    special["nondeterministic"] = Attribution.EQUIVALENT
    assert said == {code: special.get(code, Attribution.A_OFF) for code in CODES}


def test_the_workbook_alone_answers_what_fails_who_by_how_much_where_and_what_next(results: Results, folder: Path) -> None:
    rows = list(openpyxl.load_workbook(folder / "summary.xlsx")["Findings"].iter_rows(min_row=2, values_only=True))
    found = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert len(found) == len(CODES)
    for t, code in zip(results.tensors, CODES, strict=True):
        (row,) = [r for r in found if r["case"] == t.case_id]
        assert code in row["cause"]
        assert row["who is off"]
        assert row["how much, against which limit"]
        assert t.case_id in row["run next"]
        assert (folder / row["workbook"]).exists()


def test_every_form_names_every_cause(results: Results, folder: Path) -> None:
    with (folder / "results.csv").open(encoding="utf-8", newline="") as stream:
        in_csv = {cause for row in csv.DictReader(stream) for cause in row["causes"].split(", ")}
    page, text, junit = ((folder / name).read_text() for name in ("report.html", "summary.md", "junit.xml"))
    console = console_table(results, limit=100)
    for code in CODES:
        assert code in in_csv
        assert code in page
        assert code in text
        assert code in junit or code == "nondeterministic"
        assert f"cause {code}" in console


def test_the_sample_report_can_be_read_and_its_dumps_pass() -> None:
    example = load_results(Path(__file__).parent.parent / "reports" / "example")
    assert [d.label for d in example.dumps] == ["model-cdna3", "h200", "epyc-cpu"]
    assert example.verdict is Verdict.PASS
