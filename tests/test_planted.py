"""A planted fault of every kind: each report names its cause, who is off and what to run next."""

from __future__ import annotations

import csv
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from python_calamine import CalamineWorkbook
from support_planted import NOT_IN_REPORTS, PlantedResults, planted_results

from accuracy_eval.cli.compare import compare_command
from accuracy_eval.diagnose.codes import CODES
from accuracy_eval.records import Attribution, Verdict
from accuracy_eval.report import console_table, load_results, write_reports

VERDICTS = {"nondeterministic": Verdict.WARN, "explained-by-datapath": Verdict.PASS}
ATTRIBUTIONS = {
    "shape-mismatch": Attribution.NOT_COMPARABLE,
    "format-mismatch": Attribution.NOT_COMPARABLE,
    "nondeterministic": Attribution.EQUIVALENT,
    "explained-by-datapath": Attribution.EQUIVALENT,
    "operand-changed": Attribution.IDENTICAL,
    "accumulator-overflow": Attribution.OFF_CONTRACT,
}
NO_ELEMENT = ("shape-mismatch", "format-mismatch")  # nothing was measured
NOT_MEASURED = (
    *NO_ELEMENT,
    "never-written",
    "nondeterministic",
    "operand-changed",
)  # no limit on a number decides, and no element is wrong


@pytest.fixture(scope="module")
def planted() -> PlantedResults:
    return planted_results()


@pytest.fixture(scope="module")
def folder(planted: PlantedResults, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted")
    write_reports(planted.results, path, ("xlsx", "html", "json", "csv", "md", "junit"))
    return path


def table(book: Path, sheet: str) -> list[dict[str, Any]]:
    """A table sheet, read by a program that did not write it: a line of explanation, titles, rows."""
    _, heads, *rows = CalamineWorkbook.from_path(book).get_sheet_by_name(sheet).to_python(skip_empty_area=False)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_every_code_is_planted_or_cannot_be_in_a_report(planted: PlantedResults) -> None:
    assert set(planted.codes.values()) == CODES.keys() - NOT_IN_REPORTS.keys()
    assert not planted.results.not_compared


def test_every_fault_is_named_and_the_healthy_side_is_not(planted: PlantedResults) -> None:
    for code, t in planted:
        bad, good = t.sides
        assert code in [d.code for d in bad.diagnoses]
        assert good.verdict is Verdict.PASS
        assert {d.code for d in good.diagnoses} <= {"explained-by-datapath"}
        assert bad.verdict is VERDICTS.get(code, Verdict.FAIL)


def test_who_is_off_is_said_of_every_fault_that_can_be_compared(planted: PlantedResults) -> None:
    said = [(code, t.pairs[0].attribution) for code, t in planted]
    assert said == [(code, ATTRIBUTIONS.get(code, Attribution.A_OFF)) for code, _ in said]


def test_a_pair_of_equal_bytes_says_which_side_fails_for_another_reason(planted: PlantedResults) -> None:
    (pair,) = [t.pairs[0] for code, t in planted if code == "operand-changed"]
    assert pair.sentence == "same bytes; h200 FAIL, cpu PASS"


INDEX = re.compile(r" at \[(?P<place>\d+(?:, \d+)*)\]|first (?:is )?at (?P<number>\d+)")  # of a vector's element: its number alone


def place(row: dict[str, Any], worst: list[dict[str, Any]]) -> tuple[int, ...] | None:
    """The element that a finding's texts name, else the first of its case on sheet Worst elements."""
    said = INDEX.search(f"{row['how much, against which limit']} {row['cause']}")
    if said:
        return tuple(map(int, (said["place"] or said["number"]).split(", ")))
    same = ("case", "tensor")
    mine = [w for w in worst if all(w[n] == row[n] for n in same) and (w["actual"], w["against"]) == ("h200", "reference")]
    return tuple(map(int, mine[0]["index"].strip("[]").split(", "))) if mine else None


SAID_BY_ANOTHER = "not-explained"  # beside a named cause, as the planted one is, findings leave it out; tables hold it


def test_the_workbooks_alone_answer_what_fails_who_is_off_how_much_at_which_element_and_what_next(
    planted: PlantedResults, folder: Path
) -> None:
    found = {(row["case"], row["tensor"]): row for row in table(folder / "summary.xlsx", "Findings")}
    assert len(found) == sum(t.verdict in (Verdict.FAIL, Verdict.WARN) for t in planted.results.tensors)
    worst = {book: table(folder / book, "Worst elements") for book in {row["workbook"] for row in found.values()}}
    for code, t in planted:
        if t.verdict is Verdict.PASS:
            continue
        key = t.case_id, t.tensor
        row = found[key]
        assert row["verdict"] == VERDICTS.get(code, "FAIL")
        assert (f"{code}: " in row["cause"]) == (code != SAID_BY_ANOTHER)
        assert row["who is off"].startswith("not comparable" if code in NO_ELEMENT else "h200")
        if code in NOT_MEASURED:
            assert row["how much, against which limit"]
        else:
            assert re.search(r"error \S+ × budget|\S+ [\d.]+.*, must be ", row["how much, against which limit"]), code
            assert row["limit from"]
        assert (key in planted.wrong) == (code not in NOT_MEASURED)
        if key in planted.wrong:
            index = place(row, worst[row["workbook"]])
            assert index is not None, code
            assert planted.wrong[key][index], f"{code}: {index} is right"
        program, command, *arguments = shlex.split(row["run next"].split("\n")[0])
        assert program == "accuracy-eval"
        if command == "inspect":  # --explain was asked already
            assert code in ("explained-by-datapath", "not-explained")
            assert arguments[:4] == ["h200.h5", "--case", t.case_id, "--element"]
            continue
        context = compare_command.make_context(command, arguments)
        assert (command, context.params["dumps"]) == ("compare", ("h200.h5", "cpu.h5"))
        assert context.params["cases"] == (t.case_id,)


def test_counts_are_whole_numbers(folder: Path) -> None:
    said = [row["how much, against which limit"] for row in table(folder / "summary.xlsx", "Findings")]
    assert "mismatch_count 65536, must be 0 (contract exact; gate exact-output)" in said


def test_the_page_shows_no_part_of_a_limit_that_a_failure_does_not_break(planted: PlantedResults) -> None:
    from accuracy_eval.report.html import _lines

    shares = {(line.item.case_id, line.tensor): (line.share, line.share_text) for line in _lines(planted.results, {})}
    by_code = {code: shares[key] for key, code in planted.codes.items()}
    assert by_code["never-written"] == by_code["shape-mismatch"] == (None, "")
    assert by_code["nan-in-expected"] == (math.inf, "Inf ×")
    assert by_code["overflow-policy"] == (math.inf, "65536, not 0")
    assert by_code["tf32-like"][0] == pytest.approx(308, rel=0.01)


def test_every_form_names_every_cause(planted: PlantedResults, folder: Path) -> None:
    with (folder / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    in_csv = {cause for row in rows for cause in row["causes"].split(", ")}
    page, text, junit = ((folder / name).read_text() for name in ("report.html", "summary.md", "junit.xml"))
    console = console_table(planted.results, limit=100)
    for code, t in planted:
        if t.verdict is Verdict.PASS:  # what made it is no cause
            assert any(row["case_id"] == t.case_id and row["explanation"] and not row["causes"] for row in rows)
            continue
        assert code in in_csv
        assert code in page
        assert code in text or code == SAID_BY_ANOTHER
        assert code in junit or code == "nondeterministic"
        assert f"cause {t.sides[0].diagnoses[0].code}" in console


def test_the_sample_report_can_be_read_and_its_dumps_pass() -> None:
    example = load_results(Path(__file__).parent.parent / "reports" / "example")
    assert [d.label for d in example.dumps] == ["model-cdna3", "h200", "epyc-cpu"]
    assert example.verdict is Verdict.PASS
