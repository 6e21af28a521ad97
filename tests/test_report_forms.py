from __future__ import annotations

import csv
import math
import re
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
    bad_side,
    fail_result,
    gemm_case,
    gemm_results,
    hostile_results,
    many_results,
    pass_result,
    passing_results,
    results_of,
)

from accuracy_eval.messages import causes
from accuracy_eval.records import Attribution, Diagnosis, GateResult, NotCompared, Results, TensorResult, Verdict, WorstElement
from accuracy_eval.report import console_table, markdown, to_frame, write_reports
from accuracy_eval.report.console import columns_of
from accuracy_eval.report.findings import findings
from accuracy_eval.report.limits import passing_limits
from accuracy_eval.report.markdown import MAX_BYTES
from accuracy_eval.report.rows import Row, of_budget, reproduce
from accuracy_eval.report.summaries import attribution_sentence, pair_summaries

FAILING = "gemm.m512.n128.k256.nt.bfloat16.normal.s42"


def rows_of(results: Results, folder: Path) -> list[dict[str, str]]:
    (path,) = write_reports(results, folder, ("csv",))
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_has_one_row_per_side_pair_and_case_left_out(tmp_path: Path) -> None:
    results = gemm_results()
    rows = rows_of(results, tmp_path)
    assert len(rows) == sum(len(t.sides) + len(t.pairs) for t in results.tensors) + len(results.not_compared)
    kinds = [r["kind"] for r in rows]
    assert (kinds.count("side"), kinds.count("pair"), kinds.count("not compared")) == (22, 11, 3)


def test_csv_numbers_come_back_bit_for_bit(tmp_path: Path) -> None:
    base = pass_result(gemm_case())
    values = {"rel_fro": 0.1 + 0.2, "max_abs": math.pi * 1e-300, "snr_db": math.inf, "rmse": -math.inf, "ulp_max": 2**60, "cosine": -0.0}
    write_reports(results_of((replace(base, sides=(replace(base.sides[0], metrics=values),), pairs=()),)), tmp_path, ("csv",))
    frame = pandas.read_csv(tmp_path / "results.csv")
    assert {name: frame[name][0] for name in values} == values
    assert math.copysign(1, frame["cosine"][0]) == -1


def test_a_frame_has_the_rows_and_columns_of_the_csv_with_numbers_as_numbers(tmp_path: Path) -> None:
    results = gemm_results()
    frame, text = to_frame(results), rows_of(results, tmp_path)
    assert list(frame.columns) == list(text[0])
    assert len(frame) == len(text)
    judged = frame[frame.kind == "side"]
    sides = [s for t in results.tensors for s in t.sides]
    known = [v for s in sides if (v := s.metrics.get("rel_fro")) is not None and v == v]
    assert [v for v in judged.rel_fro if v == v] == known != []
    assert list(judged.verdict) == [str(s.verdict) for s in sides]
    assert frame[frame.case_id == FAILING].m.eq(512).all()


def test_csv_text_that_a_spreadsheet_would_run_gets_an_apostrophe(tmp_path: Path) -> None:
    rows = rows_of(hostile_results(), tmp_path)
    numbers = {"NaN", "Inf", "-Inf"}
    for row in rows:
        for name, value in row.items():
            assert not [c for c in value if ord(c) < 32 and c not in "\n\t"]
            if value.startswith(("=", "+", "-", "@", "\t", "\r")):
                assert value in numbers or float(value) == float(value), name
    assert {r["candidate"] for r in rows} >= {"'=1+1", "'@SUM(A1)", "'+1", "'-1", r"a\x00b\x1b[31m\x07", "#N/A"}


def test_metric_with_the_name_of_a_column_does_not_hide_it(tmp_path: Path) -> None:
    base = pass_result(gemm_case())
    side = replace(base.sides[0], metrics={"gate": 5, "m": 6, "classes": {"nan": {"actual": 1}}, "index": [1, 2]})
    row = rows_of(results_of((replace(base, sides=(side,), pairs=()),)), tmp_path)[0]
    assert (row["gate"], row["metric_gate"], row["m"], row["metric_m"]) == ("budget", "5", "512", "6")
    assert (row["classes.nan.actual"], row["index"]) == ("1", "[1, 2]")


def test_junit_has_a_test_case_per_verdict_and_counts_that_add_up(tmp_path: Path) -> None:
    results = gemm_results()
    (path,) = write_reports(results, tmp_path, ("junit",))
    (suite,) = ElementTree.parse(path).getroot()
    assert suite.get("name") == "gemm"
    found = {tag: len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "error", "skipped", "system-out")}
    assert found == {"failure": 6, "error": 2, "skipped": 1, "system-out": 2}
    assert {k: int(suite.get(k, "")) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": 36,
        "failures": 6,
        "errors": 2,
        "skipped": 1,
    }
    assert len({(c.get("classname"), c.get("name")) for c in suite}) == 36


def test_junit_failure_is_the_text_a_person_reads(tmp_path: Path) -> None:
    (path,) = write_reports(gemm_results(), tmp_path, ("junit",))
    failure = ElementTree.parse(path).getroot().find("testsuite/testcase/failure")
    assert failure is not None
    head = "FAIL gemm.m512.n128.k256.nt.bfloat16.normal.s42 output 'd' (bfloat16)"
    first = f"{head}: error 6.9 × budget at [12, 301] (contract fp32acc, B 3.1e-4; gate budget)"
    assert failure.get("message") == first
    lines = (failure.text or "").split("\n")
    assert lines[0] == first
    assert lines[1].startswith("  actual 0x3F12 = 0.5703 (h200), expected 0.4629 (reference)")
    assert lines[-2] == "$ accuracy-eval compare h200.h5 cpu.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42 --explain"
    assert lines[-1].startswith("$ accuracy-eval inspect h200.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42 --element 12,301")


def test_every_form_carries_all_steps_of_a_finding(tmp_path: Path) -> None:
    absent = NotCompared("exp.n8.float32.normal.s0", "special", "default", "cpu", Verdict.MISSING, "not in cpu.h5")
    results = results_of((fail_result(gemm_case()),), (absent,))
    write_reports(results, tmp_path, ("html", "md", "junit", "xlsx"))
    sheet = openpyxl.load_workbook(tmp_path / "summary.xlsx")["Findings"]
    cells = "\n".join(str(c.value) for row in sheet.iter_rows() for c in row)
    junit = "".join(ElementTree.parse(tmp_path / "junit.xml").getroot().itertext())
    page = re.sub(r"</?wbr>", "", (tmp_path / "report.html").read_text())
    steps = [step for f in findings(results) for step in f.steps]
    assert [step.split()[1] for step in steps] == ["compare", "inspect", "the"]
    for text in (cells, junit, page, (tmp_path / "summary.md").read_text(), console_table(results)):
        assert [step for step in steps if " ".join(step.split()) not in " ".join(text.split())] == []


def test_junit_with_hostile_text_is_still_xml(tmp_path: Path) -> None:
    (path,) = write_reports(hostile_results(), tmp_path, ("junit",))
    root = ElementTree.parse(path).getroot()
    assert len(root) == 2
    assert r"a\x00b\x1b[31m\x07" in {t.get("classname", "").split(".", 1)[1] for t in root.iter("testcase")}


def test_markdown_says_findings_counts_and_pairs(tmp_path: Path) -> None:
    (path,) = write_reports(gemm_results(), tmp_path, ("md",))
    lines = path.read_text("utf-8").split("\n")
    assert lines[0] == "## ❌ FAIL: h200 vs cpu"
    assert "3 FAIL, 1 INPUTS_DIFFER, 1 MISSING, 1 WARN, 7 PASS, 1 UNSUPPORTED. Gates profile default; exit code 2." in lines
    assert "### Findings (6)" in lines
    assert "| gemm | fp8\\_e4m3 | random | 1 |  |  |  |  | 1 |" in lines
    assert "| h200 | cpu | ❌ FAIL | h200 is off | 7 equivalent, 3 h200 is off, 1 same bytes |" in lines
    finding = next(line for line in lines if line.startswith("| ❌ FAIL | `gemm.m512.n128.k256.nt.bfloat16.normal.s42 d` |"))
    assert "| h200 is off | error 6.9 × budget at \\[12, 301\\] (contract fp32acc, B 3.1e-4; gate budget) |" in finding
    case = "--case gemm.m512.n128.k256.nt.bfloat16.normal.s42"
    commands = f"compare h200.h5 cpu.h5 {case} --explain", f"inspect h200.h5 {case} --element 12,301 --tensor d"
    assert finding.endswith(f"| {'<br>'.join(f'`accuracy-eval {command}`' for command in commands)} |")


@pytest.mark.parametrize("results", [many_results(20_000), hostile_results()], ids=["many", "hostile"])
def test_markdown_stays_under_its_size_and_says_what_it_left_out(results: Results, tmp_path: Path) -> None:
    (path,) = write_reports(results, tmp_path, ("md",))
    assert len(path.read_bytes()) <= MAX_BYTES
    if len(results.tensors) == 20_000:
        (left,) = re.findall(
            r"^(\d+) more findings do not fit here: see summary\.xlsx or results\.json\.$", path.read_text("utf-8"), re.MULTILINE
        )
        assert int(left) + path.read_text("utf-8").count("| ❌ FAIL | `gemm") == 400


def test_markdown_tables_keep_their_columns_and_hostile_text_is_no_markup(tmp_path: Path) -> None:
    (path,) = write_reports(hostile_results(), tmp_path, ("md",))
    text = path.read_text("utf-8")
    outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text.replace(r"\`", ""))
    assert "&lt;b&gt;" in outside_code
    assert "<b>" not in outside_code
    rows = [line for line in text.split("\n") if line.startswith("| ❌ FAIL | `")]
    assert len(rows) == 12
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 7


CONSOLE = """\
FAIL h200 vs cpu · 1 FAIL, 1 PASS · profile default
h200 is off in 1 of 2 comparisons of h200 and cpu; for example: h200 is off by
6.9 × its budget; cpu keeps contract fp32acc.

Findings (1)
  FAIL gemm.m512.n128.k256.nt.bfloat16.normal.s42 d
    h200 is off: error 6.9 × budget at [12, 301] (contract fp32acc, B 3.1e-4;
    gate budget)
    actual 0x3F12 = 0.5703 (h200), expected 0.4629 (reference)
    cause k-tail-missing: The last 8 of 256 products are missing in every row.
    $ accuracy-eval compare h200.h5 cpu.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42 --explain
    $ accuracy-eval inspect h200.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42 --element 12,301 --tensor d
gate budget: budget_max <= 6.9 would pass, the limit is 1 (broken by 1)

Counts                 FAIL   PASS
gemm bfloat16 random      1      ·
gemm float32 random       ·      1
"""


def test_console_says_verdict_findings_and_counts_in_80_columns() -> None:
    assert console_table(results_of((fail_result(gemm_case("bfloat16")), pass_result(gemm_case("float32"))))) == CONSOLE


def test_verbose_console_holds_the_whole_text_of_every_finding() -> None:
    results = many_results(2000)
    text = console_table(results, verbose=True)
    assert text.count("\n  FAIL gemm") == 40
    assert text.count("    FAIL gemm.m512.n128.k256.") == 80  # a side and a pair each
    assert "actual 0x3F12 = 0.5703 (h200), expected 0x3EED = 0.4629 (cpu), reference" in " ".join(text.split())
    assert max(map(columns_of, (line for line in text.split("\n") if " $ " not in line))) <= 80


def test_verbose_console_says_nothing_of_a_finding_twice() -> None:
    side = replace(bad_side("h200"), off_contract="tf32", note="outside fp32acc, which was promised, and inside tf32 (0.2 × its budget)")
    base = fail_result(gemm_case())
    text = " ".join(console_table(results_of((replace(base, sides=(side, *base.sides[1:])),)), verbose=True).split())
    for once in ("error 6.9 × budget at [12, 301]", "actual 0x3F12 = 0.5703 (h200), expected 0.4629 (reference)", "inside tf32"):
        assert text.count(once) == 1
    assert "breaks fp32acc, keeps tf32" not in text


def test_verbose_console_holds_the_errors_of_quantised_results_that_passed() -> None:
    errors = ("conversion", "scale", "kernel", "total")
    gates = tuple(GateResult(e, "rel_fro", 0.0, "<=", 1.0, True, error=e) for e in errors)
    more = {"conversion_mismatch_count": 0, "scale_mismatch_count": 0, "total_snr_db": 31.5}
    base = pass_result(gemm_case("fp8_e4m3"))
    sides = tuple(replace(s, gates=gates, metrics=s.metrics | more) for s in base.sides)
    by_default = replace(base, sides=sides)
    results = results_of((by_default, replace(by_default, candidate="mine", sides=sides[:1])))
    assert "Errors of quantised" not in console_table(results)
    assert console_table(results, verbose=True, width=120).split("\n")[3:8] == [
        "Errors of quantised results that passed",
        "  PASS gemm.m512.n128.k256.nt.fp8_e4m3.normal.s42 d",
        "    h200, cpu: conversion 0 wrong codes, scale 0 wrong scales, kernel 0.31 × budget, total 31.5 dB",
        "  PASS gemm.m512.n128.k256.nt.fp8_e4m3.normal.s42 d (mine)",
        "    h200: conversion 0 wrong codes, scale 0 wrong scales, kernel 0.31 × budget, total 31.5 dB",
    ]


def test_candidates_are_listed_where_that_is_asked_for() -> None:
    results = replace(passing_results(), candidates=("h200: gemm: default 9; not asked for: triton",))
    assert "triton" not in console_table(results)
    assert "\ncandidates: h200: gemm: default 9; not asked for: triton\n" in console_table(results, verbose=True)


def gated(*values: float, comparison: str = "<=", limit: float = 1.0) -> Results:
    gates = [GateResult("g", "rel_fro", v, comparison, limit, False) for v in values]
    base = fail_result(gemm_case())
    return results_of(tuple(replace(base, sides=(replace(base.sides[0], gates=(g,)),)) for g in gates))


@pytest.mark.parametrize(
    ("values", "comparison", "limit", "line"),
    [
        ((6.904, 2.0), "<=", 1.0, "gate g: rel_fro <= 6.91 would pass, the limit is 1 (broken by 2)"),
        ((24.29,), ">", 25.0, "gate g: rel_fro >= 24.2 would pass, the limit is 25 (broken by 1)"),
        ((1.2e-7,), "<", 1e-7, "gate g: rel_fro <= 1.2e-7 would pass, the limit is 1e-7 (broken by 1)"),
        ((3.0,), "==", 0.0, "gate g: nothing but rel_fro == 0 passes; found up to 3"),
    ],
)
def test_the_limit_that_would_pass_is_rounded_so_that_it_does(values: tuple[float, ...], comparison: str, limit: float, line: str) -> None:
    assert passing_limits(gated(*values, comparison=comparison, limit=limit)) == [line]


@pytest.mark.parametrize(("value", "comparison", "limit"), [(5e4, "<=", 1.0), (math.inf, "<=", 1.0), (2.4, ">", 25.0)])
def test_no_limit_is_named_that_would_pass_a_value_ten_times_beyond_it(value: float, comparison: str, limit: float) -> None:
    assert passing_limits(gated(2.0, value, comparison=comparison, limit=limit)) == []


def test_notes_follow_the_findings() -> None:
    text = console_table(replace(results_of((fail_result(gemm_case("bfloat16")),)), notes=("candidates of gemm: default 2",)))
    assert text.index("Findings (1)") < text.index("note: candidates of gemm") < text.index("Counts")


def test_console_of_a_clean_comparison_is_short() -> None:
    assert console_table(passing_results()) == (
        "PASS h200 vs cpu · 9 PASS · profile default\n"
        "Nobody is off in 9 comparisons of h200 and cpu: 9 equivalent.\n"
        "\n"
        "Counts                 PASS\n"
        "gemm float32 random       3\n"
        "gemm bfloat16 random      3\n"
        "gemm float16 random       3\n"
    )


@pytest.mark.parametrize("width", [40, 60, 80, 132])
@pytest.mark.parametrize("results", [gemm_results(), hostile_results(), results_of(())], ids=["gemm", "hostile", "empty"])
def test_console_lines_fit_and_nothing_is_coloured_unasked(results: Results, width: int) -> None:
    text = console_table(results, width=width)
    for line in text.split("\n"):
        assert columns_of(line) <= width or line.startswith("    $ accuracy-eval ")
    assert "\x1b" not in text


def test_console_colours_only_verdicts_and_changes_no_text() -> None:
    plain, coloured = console_table(gemm_results()), console_table(gemm_results(), color=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert set(re.findall(r"\x1b\[[\d;]+m *(\S+?)\x1b\[0m", coloured)) >= {"FAIL", "WARN", "INPUTS_DIFFER", "MISSING"}


def test_console_with_many_findings_names_the_causes_of_the_rest() -> None:
    results = many_results(2000)
    # another dump is off each time: the findings are not alike
    tensors = tuple(
        replace(t, sides=tuple(replace(s, label=f"h200-{i}") for s in t.sides), pairs=()) for i, t in enumerate(results.tensors)
    )
    text = console_table(replace(results, tensors=tensors), limit=5)
    assert "Findings (40)\n" in text
    assert text.count("\n  FAIL gemm") == 5
    assert "  and 35 more (35 k-tail-missing): see the Verdict sheets or results.json" in text


def test_console_says_the_same_of_several_cases_once() -> None:
    results = gemm_results()
    skipped = tuple(
        NotCompared(f"gemm.m{m}.n8.k8.nt.float32.normal.s0", "gemm", "default", "h200", Verdict.ERROR, "RuntimeError: out of memory")
        for m in range(1, 13)
    )
    text = console_table(replace(results, tensors=(), not_compared=(*skipped, replace(skipped[0], label="cpu"))), width=200)
    assert text.count("RuntimeError: out of memory") == 2  # once for either dump
    assert "Findings (13)" in text
    assert (
        "  ERROR gemm.m1.n8.k8.nt.float32.normal.s0\n"
        "    and 11 more: gemm.m2.n8.k8.nt.float32.normal.s0, gemm.m3.n8.k8.nt.float32.normal.s0, gemm.m4.n8.k8.nt.float32.normal.s0, …\n"
        "    h200: RuntimeError: out of memory\n"
    ) in text


def test_the_verbose_console_says_how_a_product_that_passed_was_made() -> None:
    base = pass_result(gemm_case())
    said = Diagnosis("explained-by-datapath", "identified: F fwd, 9 of 9 elements bit for bit", {})
    results = results_of((replace(base, sides=(replace(base.sides[0], diagnoses=(said,)), *base.sides[1:])),))
    told = f"\nProducts explained\n  PASS {base.case_id} d\n    h200: identified: F fwd, 9 of 9 elements bit for bit\n"
    assert told in console_table(results, verbose=True)
    assert "Products explained" not in console_table(results)


def test_the_arithmetic_that_made_a_result_is_no_cause_of_a_pass_and_named_only_where_identified() -> None:
    one, several = (Diagnosis("explained-by-datapath", "", {"status": s}) for s in ("identified", "consistent, not identified"))
    pair = Diagnosis("explained-by-datapath", "", {"identified": False})
    assert [causes([d], Verdict.PASS) for d in (one, several, pair)] == [""] * 3
    said = ["explained-by-datapath", "consistent, not identified", "consistent, not identified"]
    assert [causes([d], Verdict.FAIL) for d in (one, several, pair)] == said


def test_console_has_a_line_a_reason_why_cases_did_not_run() -> None:
    def skipped(label: str, op: str, k: int, reason: str) -> NotCompared:
        return NotCompared(f"{op}.k{k}", op, "default", label, Verdict.UNSUPPORTED, reason)

    why = "no fp8 on this part"
    found = [skipped("cpu", "gemm", k, why) for k in range(3)] + [skipped("h200", "cast", 7, why), skipped("h200", "cast", 1, "no torch")]
    results = results_of((pass_result(gemm_case()),), tuple(found))
    text = console_table(results)
    assert text.endswith("Unsupported\n  3 × cpu, 1 × h200 (gemm, cast): no fp8 on this part\n  1 × h200 (cast): no torch\n")
    assert "| gemm, cast | 3 × cpu, 1 × h200 | no fp8 on this part |" in markdown.render(results)
    many = tuple(skipped("cpu", "gemm", k, f"reason {k}") for k in range(11))
    assert console_table(results_of((), many)).endswith("and 3 more reasons: sheet Not compared of the workbooks, or results.json\n")


def test_console_of_three_dumps_lists_all_pairs() -> None:
    one = pass_result(gemm_case())
    other = pass_result(gemm_case(), labels=("h200", "mi300x"))
    text = console_table(results_of((replace(one, pairs=(*one.pairs, *other.pairs)),), dumps=(H200, CPU, MI300X)))
    assert text.endswith("Pairs\n  PASS h200 against cpu: 1 equivalent\n  PASS h200 against mi300x: 1 equivalent\n")


def test_command_to_reproduce_is_quoted_and_keeps_the_profile() -> None:
    dumps = (replace(H200, file="my h200.h5", platform={"label": "h200"}), CPU)
    assert reproduce(results_of((), dumps=dumps), "exp.n8;rm") == "accuracy-eval compare 'my h200.h5' cpu.h5 --case 'exp.n8;rm'"
    assert reproduce(results_of((), profile="l3"), "x") == "accuracy-eval compare h200.h5 cpu.h5 --case x --gates l3"


def test_command_to_reproduce_gives_the_names_that_were_given() -> None:
    dumps = (replace(H200, label="nvidia"), replace(CPU, label="my cpu"))
    assert reproduce(results_of((), dumps=dumps), "x") == "accuracy-eval compare h200.h5 cpu.h5 --case x --label nvidia --label 'my cpu'"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attribution": Attribution.BOTH_OFF, "verdict": Verdict.FAIL}, "Both off in 1 of 1 comparison of h200 and cpu; for example: why"),
        ({"attribution": Attribution.B_OFF, "verdict": Verdict.FAIL}, "cpu is off in 1 of 1 comparison of h200 and cpu; for example: why"),
        ({"attribution": Attribution.IDENTICAL}, "Nobody is off in 1 comparison of h200 and cpu: 1 same bytes."),
    ],
)
def test_attribution_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    base = pass_result(gemm_case())
    assert attribution_sentence([replace(base, pairs=(replace(base.pairs[0], sentence="why", **change),))]) == sentence


def _apart(differ: int, ulp: int, norm: float, budgets: tuple[float | None, float | None], fmt: str = "bfloat16") -> TensorResult:
    """Two right sides of 200 elements that differ in some."""
    base = pass_result(gemm_case())
    metrics = {"count": 200, "mismatch_count": differ, "ulp_max": ulp, "rel_fro": norm}
    sides = tuple(replace(s, format=fmt, metrics={"budget_max": b}) for s, b in zip(base.sides, budgets, strict=True))
    return replace(base, sides=sides, pairs=(replace(base.pairs[0], attribution=Attribution.EQUIVALENT, metrics=metrics),))


def test_how_far_two_right_devices_are_apart_is_said_by_format_in_console_and_markdown() -> None:
    said = "Equivalent ones differ: bfloat16 in 12 % of elements, by at most 2 ulp; all within 45 % of their budgets."
    alike = [_apart(8, 1, 1e-3, (0.2, 0.45)), _apart(40, 2, 2e-3, (0.1, None))]  # 48 of 400
    assert attribution_sentence(alike) == f"Nobody is off in 2 comparisons of h200 and cpu: 2 equivalent. {said}"
    near_zero = _apart(200, 70000, 3e-7, (None, None), "float32")
    assert attribution_sentence([alike[0], near_zero]).endswith(
        "bfloat16 in 4 % of elements, by at most 1 ulp; float32 in 100 % of elements, by at most 3e-7 of a tensor's norm; "
        "all within 45 % of their budgets."
    )
    few, most = (attribution_sentence([_apart(n, 1, 1e-3, (None, None))]) for n in (1, 199))
    assert few.endswith("bfloat16 in 0.5 % of elements, by at most 1 ulp.")
    assert most.endswith("bfloat16 in 99 % of elements, by at most 1 ulp.")
    results = results_of(tuple(alike))
    assert said in " ".join(console_table(results).split())
    assert "by at most 2 ulp; all within 45 % of their budgets." in markdown.render(results)
    same = pass_result(gemm_case(), identical=True)
    assert "differ" not in attribution_sentence([same])


def test_right_results_that_differ_in_codes_of_nan_alone_are_said_to() -> None:
    codes, numbers = _apart(0, 0, 0.0, (None, None), "float8_e4m3fn"), _apart(8, 1, 1e-3, (None, None))
    said = attribution_sentence([codes, numbers])
    assert said.endswith("Equivalent ones differ: float8_e4m3fn in codes of NaN alone; bfloat16 in 4 % of elements, by at most 1 ulp.")


def test_the_largest_errors_are_in_budgets_as_the_gate_counts_them() -> None:
    base = fail_result(gemm_case())
    wrong = WorstElement((0, 1), 0x3F81, 0x3F80, 1 + 2**-7, 1 + 2**-9, 2**-7 - 2**-9, 0.75, budget=2**-10)
    right = WorstElement((0, 0), 0x3F80, 0x3F80, 1.0, 1 + 2**-9, 2**-9, -0.25, budget=2**-10)
    unknown = WorstElement((0, 0), 0x3F80, 0x3F80, 1.0, 1 + 2**-9, 2**-9, -0.25)
    assert [of_budget(Row(base.sides[0], base), e) for e in (wrong, right, unknown)] == [2.0, 0.0, None]


def test_products_in_tf32_are_no_float32_where_the_distance_is_told() -> None:
    single, tf32 = _apart(40, 9, 2e-7, (0.1, 0.1), "float32"), _apart(200, 70000, 8.8e-4, (0.2, 0.2), "float32")
    tf32 = replace(tf32, case=replace(tf32.case, format="tfloat32"))
    said = "float32 in 20 % of elements, by at most 9 ulp; tfloat32 in 100 % of elements, by at most 8.8e-4 of a tensor's norm"
    assert said in attribution_sentence([single, tf32])


def test_why_passing_results_are_not_compared_is_said_once() -> None:
    base = _apart(8, 1, 1e-3, (None, None))
    why = replace(base.pairs[0], attribution=Attribution.NOT_COMPARABLE, sentence="two encodings hold different numbers")
    found = attribution_sentence([base, replace(base, pairs=(why,)), replace(base, pairs=(why,))])
    told = "2 not comparable (two encodings hold different numbers), 1 equivalent."
    assert found.startswith(f"Nobody is off in 3 comparisons of h200 and cpu: {told} Equivalent ones differ: ")
    off = replace(why, attribution=Attribution.B_OFF, verdict=Verdict.FAIL, sentence="cpu is off; h200 is right")
    found = attribution_sentence([base, replace(base, pairs=(why,)), replace(base, pairs=(off,))])
    assert found.startswith("cpu is off in 1 of 3 comparisons of h200 and cpu; for example: cpu is off; h200 is right.")
    assert found.endswith("Not comparable: two encodings hold different numbers.")


def test_of_more_than_two_dumps_the_sentence_is_of_all_pairs() -> None:
    result = pass_result(gemm_case())
    same = pass_result(gemm_case(), labels=("h200", "mi300x"), identical=True)
    third = pass_result(gemm_case(), labels=("cpu", "mi300x"))
    every = replace(result, pairs=(*result.pairs, *same.pairs, *third.pairs))
    assert attribution_sentence([every, every]).startswith(
        "Nobody is off in 6 comparisons of 3 pairs of dumps: 4 equivalent, 2 same bytes."
    )
    off = replace(third.pairs[0], attribution=Attribution.A_OFF, verdict=Verdict.FAIL, sentence="cpu is off; mi300x is right")
    one = replace(every, pairs=(*every.pairs[:2], off))
    assert attribution_sentence([one, every]).startswith(
        "cpu is off in 1 of 2 comparisons of cpu and mi300x, the worst of 3 pairs of dumps (2 with nobody off); "
        "for example: cpu is off; mi300x is right"
    )


def test_a_sentence_on_who_is_off_ends_before_the_next() -> None:
    off = replace(_apart(8, 1, 1e-3, (None, None)))
    pair = replace(off.pairs[0], attribution=Attribution.B_OFF, verdict=Verdict.FAIL, sentence="cpu is off; h200 is right")
    found = attribution_sentence([off, replace(off, pairs=(pair,))])
    assert "for example: cpu is off; h200 is right. Equivalent ones differ: bfloat16 in 4 % of elements, by at most 1 ulp." in found


def test_pairs_that_pass_and_in_part_cannot_be_compared_are_headed_by_nobody() -> None:
    equal = pass_result(gemm_case(), identical=True)
    apart = replace(equal, pairs=(replace(equal.pairs[0], attribution=Attribution.NOT_COMPARABLE, sentence="two encodings"),))
    (summary,) = pair_summaries([equal, apart, equal]).values()
    assert [summary.named, summary.answers] == ["nobody is off", "2 same bytes, 1 not comparable"]
    assert next(iter(pair_summaries([equal]).values())).named == "same bytes"
    row = next(line for line in markdown.render(results_of((equal, apart))).split("\n") if line.startswith("| h200 | cpu |"))
    assert "PASS | nobody is off | 1 not comparable, 1 same bytes |" in row


def test_pairs_of_more_dumps_say_each_how_far_they_are_apart() -> None:
    base = _apart(8, 1, 1e-3, (0.2, 0.45))
    third = replace(base.sides[0], label="mi300x")
    one = replace(base, sides=(*base.sides, third), pairs=(base.pairs[0], replace(base.pairs[0], b="mi300x")))
    text = console_table(results_of((one,), dumps=(H200, CPU, replace(H200, label="mi300x"))), width=200)
    assert "h200 against mi300x: 1 equivalent; equivalent ones differ: bfloat16 in 4 % of elements, by at most 1 ulp" in text
    assert "Equivalent ones" not in text


def test_two_causes_on_two_dumps_are_both_told_with_whose_they_are() -> None:
    base = fail_result(gemm_case())
    gain = Diagnosis("gain", "the output is 0.5 × the expected values", {"value": 0.5})
    one, other = bad_side("h200"), replace(bad_side("cpu"), diagnoses=(gain,))
    both = replace(base.pairs[0], attribution=Attribution.BOTH_OFF, sentence="both off")
    lost = "k-tail-missing: The last 8 of 256 products are missing in every row."
    (found,) = findings(results_of((replace(base, sides=(one, other), pairs=(both,)),)))
    assert found.cause == f"{lost} (h200); gain: the output is 0.5 × the expected values (cpu)"
    (found,) = findings(results_of((replace(base, sides=(one, bad_side("cpu")), pairs=(both,)),)))
    assert found.cause == lost
    third = replace(other, label="mi<300>")
    (found,) = findings(results_of((replace(base, sides=(one, other, third), pairs=(both,)),)))
    assert found.cause == f"{lost} (h200); gain: the output is 0.5 × the expected values (cpu, mi<300>)"
    text = " ".join(console_table(results_of((replace(base, sides=(one, other), pairs=(both,)),))).split())
    assert f"cause {lost} (h200); gain: the output is 0.5 × the expected values (cpu)" in text


def test_what_some_dumps_lack_is_said_beside_who_is_off() -> None:
    both = pass_result(gemm_case(), identical=True)
    alone = replace(both, sides=both.sides[:1], pairs=())
    said = "Nobody is off in 1 comparison of h200 and cpu: 1 same bytes."
    assert attribution_sentence([both, alone, alone]) == f"{said} 1 of 3 tensors is in both dumps, 2 in h200 alone."
    third = replace(both, sides=(replace(both.sides[0], label="mi300x"),), pairs=())
    assert attribution_sentence([both, third]) == f"{said} 0 of 2 tensors are in all 3 dumps, 1 in mi300x alone."


def test_a_finding_is_followed_by_its_worst_element_which_comes_first_where_its_arithmetic_was_asked_about() -> None:
    element = f"accuracy-eval inspect h200.h5 --case {FAILING} --element 12,301 --tensor d"
    base = fail_result(gemm_case())
    commands = [line for line in console_table(results_of((base,))).split("\n") if "$" in line]
    assert commands == [f"    $ accuracy-eval compare h200.h5 cpu.h5 --case {FAILING} --explain", f"    $ {element}"]
    said = Diagnosis("not-explained", "no known order of operations gives these bits", {"status": "unexplained"})
    side = replace(base.sides[0], diagnoses=(*base.sides[0].diagnoses, said))
    text = console_table(results_of((replace(base, sides=(side, base.sides[1])),)))
    assert [line for line in text.split("\n") if "$" in line] == [f"    $ {element}"]
    assert "k-tail-missing" in text
    assert "not-explained" not in text
    alone = replace(side, diagnoses=(said,))
    assert "cause not-explained: no known order" in console_table(results_of((replace(base, sides=(alone, base.sides[1])),)))


def test_counts_say_of_what_they_are_where_cases_were_not_compared() -> None:
    assert "\ncounted: 11 tensors, and 3 results not compared\n" in console_table(gemm_results())
    assert "counted:" not in console_table(passing_results())


def test_attribution_without_pairs_speaks_of_the_reference() -> None:
    good, bad = replace(pass_result(gemm_case()), pairs=()), replace(fail_result(gemm_case()), pairs=())
    assert attribution_sentence([good]) == "No dump fails against the reference; no pair of dumps was compared."
    assert attribution_sentence([good, bad]) == "h200 fails 1 of 2 against the reference; no pair of dumps was compared."
    assert attribution_sentence([]) == "Nothing was judged."
