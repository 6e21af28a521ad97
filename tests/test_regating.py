"""Judging again from results.json: the verdicts are those of a comparison of the dumps under that profile, or there is one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.errors import UsageError
from accuracy_eval.records import Attribution, Diagnosis, Verdict
from accuracy_eval.regating import regated

LOOSE = """
name = "loose"
description = "a relative norm alone"
[[gate]]
name = "norm"
metric = "rel_fro"
limit = 0.5
source = "chosen for the test"
"""
KERNEL = """
import accuracy_eval as ae
@ae.candidate("gemm", name="mine")
def mine(case, t):
    a, b = t["a"].float(), t["b"].float()
    if {lost} and case.format == "float32":
        a = a.clone()
        a[:, -1] = 0
    return (a @ b.T).to(t["a"].dtype)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Two dumps of one kernel, the second of which loses a k of float32 products, and a profile that minds it little."""
    folder = tmp_path_factory.mktemp("regating")
    (folder / "loose.toml").write_text(LOOSE)
    for name, lost in (("good", False), ("bad", True)):
        (folder / f"{name}.py").write_text(KERNEL.format(lost=lost))
        command = ["dump", "--op", "gemm", "--shape", "24x16x64", "--layout", "nt", "--format", "float32", "--format", "bfloat16"]
        command += ["--lane", "random", "--device", "cpu", "--plugin", str(folder / f"{name}.py"), "-o", str(folder / f"{name}.h5"), "-q"]
        subprocess.run([sys.executable, "-m", "accuracy_eval", *command], check=True)
    return folder


def said(results):
    """Every verdict, gate and attribution."""
    return [
        (t.case_id, t.candidate, t.verdict, [(s.label, s.verdict, s.gates) for s in t.sides],
         [(p.verdict, p.attribution, p.sentence) for p in t.pairs])
        for t in results.tensors
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "then"),
    [("default", "exact"), ("exact", "default"), ("default", "loose.toml"), ("loose.toml", "default"), ("turbo", "default")],
)
def test_verdicts_are_those_of_a_comparison_under_the_other_profile(dumps, first, then):
    first, then = (str(dumps / p) if p.endswith(".toml") else p for p in (first, then))
    paths = dumps / "good.h5", dumps / "bad.h5"
    expected, found = compare_dumps(*paths, gates=then), regated(compare_dumps(*paths, gates=first), then)
    assert {t.verdict for t in compare_dumps(*paths).tensors} >= {Verdict.PASS, Verdict.FAIL}
    if first == "exact":  # a looser contract was not looked for where more than the budget was broken
        assert [(i, c, v) for i, c, v, *_ in said(found)] == [(i, c, v) for i, c, v, *_ in said(expected)]
    else:
        assert said(found) == said(expected)
    assert (found.verdict, found.exit_code, found.profile, found.gates) == (
        expected.verdict, expected.exit_code, expected.profile, expected.gates,
    )  # fmt: skip


def test_a_pass_keeps_no_cause_and_a_note_says_what_was_done(dumps):
    found = regated(compare_dumps(dumps / "good.h5", dumps / "bad.h5"), str(dumps / "loose.toml"))
    assert found.verdict is Verdict.PASS
    assert all(not s.diagnoses and not s.off_contract for t in found.tensors for s in t.sides)
    assert found.notes[-1] == (
        "judged again under loose, from the metrics of a comparison under default; new failures have no causes named"
    )


@pytest.mark.parametrize(
    ("gates", "reason"),
    [
        (
            "turbo",
            r"limits allclose_violations\[rtol=0.01,atol=0.01\], which was not measured; compare the dumps with --gates turbo$",
        ),
        (
            "l3",
            "judges by the rounded expected values, against which nothing was measured; compare the dumps with --gates l3$",
        ),
    ],
)
def test_what_the_results_do_not_hold_is_refused_with_the_gate(dumps, gates, reason):
    with pytest.raises(UsageError, match=rf"gemm\.m24\.n16\.k64\.nt\.bfloat16\.normal\.s0 \(.*\): gate \S+ {reason}"):
        regated(compare_dumps(dumps / "good.h5"), gates)


def test_results_without_a_reference_are_refused(dumps):
    with pytest.raises(UsageError, match="judged without a reference"):
        regated(compare_dumps(dumps / "good.h5", dumps / "bad.h5", reference="none"), "exact")


def edited(results, **changes):
    """The results with the first side of every tensor changed."""
    tensors = tuple(replace(t, sides=(replace(t.sides[0], **changes), *t.sides[1:])) for t in results.tensors)
    return replace(results, tensors=tensors)


def test_what_fails_under_every_profile_fails_under_a_loose_one(dumps):
    found = Diagnosis("nan-in-actual", "1 NaN", {"index": [0, 0], "count": 1})
    again = regated(edited(compare_dumps(dumps / "good.h5", dumps / "bad.h5"), diagnoses=(found,)), str(dumps / "loose.toml"))
    assert {t.sides[0].verdict for t in again.tensors} == {Verdict.FAIL}
    assert {p.attribution for t in again.tensors for p in t.pairs} <= {Attribution.A_OFF, Attribution.IDENTICAL}


def test_repeats_that_differ_are_not_passed_by_the_metrics_of_one(dumps):
    found = Diagnosis("nondeterministic", "2 results", {"count": 2})
    again = regated(edited(compare_dumps(dumps / "good.h5"), diagnoses=(found,), verdict=Verdict.WARN), str(dumps / "loose.toml"))
    assert {t.sides[0].verdict for t in again.tensors} == {Verdict.INCONCLUSIVE}


def test_sampled_results_are_refused(dumps):
    with pytest.raises(UsageError, match="judged by a sampled reference"):
        regated(edited(compare_dumps(dumps / "good.h5"), scope="sampled"), "exact")


def test_what_would_have_failed_is_kept_only_under_the_same_limits(dumps):
    results = compare_dumps(dumps / "good.h5")
    sides = [s for t in results.tensors for s in t.sides]
    assert all(s.resolution["gain"] for s in sides)
    assert [s.resolution for t in regated(results, "default").tensors for s in t.sides] == [s.resolution for s in sides]
    assert not any(s.resolution for t in regated(results, "exact").tensors for s in t.sides)


def test_the_command_judges_again_and_returns_the_new_exit_code(dumps, tmp_path, capsys):
    arguments = ["compare", str(dumps / "good.h5"), str(dumps / "bad.h5"), "--to", "json", "-q", "-o", str(tmp_path)]
    assert run(arguments) == 1
    again = ["report", str(tmp_path), "--gates", str(dumps / "loose.toml"), "--to", "json", "-q", "-o", str(tmp_path / "again")]
    assert run(again) == 0
    assert json.loads((tmp_path / "again" / "results.json").read_text())["profile"] == "loose"
    assert run([*again[:3], "turbo"]) == 2
    assert "compare the dumps with --gates turbo\n" in capsys.readouterr().err


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """A dump of a quantiser, whose values follow from its outputs, and a profile that says nothing about those values."""
    folder = tmp_path_factory.mktemp("quantised")
    (folder / "scales.toml").write_text(LOOSE.replace('"loose"', '"scales"') + 'applies = { tensor = ["scale"] }\n')
    arguments = ["dump", "--op", "quantize", "--shape", "8x128", "--recipe", "block1x128", "--format", "bfloat16", "--device", "cpu"]
    assert run([*arguments, "-o", str(folder / "cpu.h5"), "-q"]) == 0
    return folder


@pytest.mark.parametrize(("gates", "tensors"), [("exact", ["scale", "codes", "values"]), ("scales.toml", ["scale", "codes"])])
def test_derived_values_are_judged_again_where_the_other_profile_limits_them(quantised, gates, tensors):
    other = str(quantised / gates) if gates.endswith(".toml") else gates
    found = regated(compare_dumps(quantised / "cpu.h5"), other)
    assert [t.tensor for t in found.tensors] == tensors
    assert said(found) == said(compare_dumps(quantised / "cpu.h5", gates=other))


def test_derived_values_that_were_not_measured_are_refused_where_the_other_profile_limits_them(quantised):
    results = compare_dumps(quantised / "cpu.h5", gates=str(quantised / "scales.toml"))
    with pytest.raises(UsageError, match="default limits values, which were not measured; compare the dumps with --gates default$"):
        regated(results, "default")
