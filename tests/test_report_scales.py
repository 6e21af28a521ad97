"""The table of scale factors: a device that rounds scales by another rule is named, recipe by recipe, in every report."""

from dataclasses import replace

import numpy as np
import openpyxl
import pytest
from test_quantised_errors import case_of, dump_of

from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.formats import decode
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.quantize import quantize
from accuracy_eval.report import console, markdown, write_reports
from accuracy_eval.report.scales import ScaleAgreement, scale_agreements, scale_lines
from accuracy_eval.suite import parse_suite

RECIPES = ("mxfp8", "rowwise")


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory):
    """Results of a right quantiser ("cpu") and of one whose MX scales are rounded up where elements would saturate ("gpu")."""
    folder = tmp_path_factory.mktemp("dumps")

    def rounds_up(made):
        q = quantize(operand_codes(get_op("quantize"), case_of("mxfp8"), "ocp")["x"], "bfloat16", "mxfp8_rceil")
        return {"scale": q.scale, "codes": q.codes}

    for recipe in RECIPES:
        dump_of(folder, "cpu", case_of(recipe))
        dump_of(folder, "gpu", case_of(recipe), rounds_up if recipe == "mxfp8" else lambda made: made)
    return compare_dumps(folder / "gpu", folder / "cpu")


@pytest.fixture(scope="module")
def more():
    """How many scales of the case another rule makes one exponent larger, and how many there are, counted on plain values."""
    x = decode(operand_codes(get_op("quantize"), case_of("mxfp8"), "ocp")["x"], "bfloat16").reshape(160, -1, 32)
    amax = np.abs(x).max(axis=2)
    floor, up = np.floor(np.log2(amax)) - 8, np.ceil(np.log2(amax / 448))
    return int((up != floor).sum()), amax.size


def test_each_recipe_has_a_row_for_each_dump_against_its_rule_and_for_the_pair(two_devices, more):
    differ, scales = more
    found = {(r.recipe, r.actual, r.expected): r for r in scale_agreements(two_devices.tensors)}
    assert set(found) == {
        (recipe, *who) for recipe in RECIPES for who in (("gpu", "reference"), ("cpu", "reference"), ("gpu", "cpu"))
    }  # fmt: skip
    steps = ((0, scales - differ), (1, differ))
    assert found["mxfp8", "gpu", "cpu"] == ScaleAgreement("mxfp8", "gpu", "cpu", 1, scales, differ, steps, 0, 1.0, "rceil", "floor")
    assert found["mxfp8", "cpu", "reference"].differing == 0
    assert found["rowwise", "gpu", "cpu"].sentence == ""
    assert found["mxfp8", "gpu", "reference"].sentence == f"exponent +1 ({differ}); rule rceil, expected floor"


def test_the_console_says_what_agrees_and_names_what_does_not(two_devices, more):
    differ, scales = more
    total = 3 * (scales + 160)  # a row of 160 has one scale, of three comparisons
    wrong = f"{differ} of {scales} differ; exponent +1 ({differ}); rule rceil, expected floor"
    assert scale_lines(scale_agreements(two_devices.tensors)) == [
        f"scale factors of 2 recipes: {total - 2 * differ} of {total} the same bytes (cpu and gpu against their rules and each other)",
        f"mxfp8, gpu against its rule: {wrong}",
        f"mxfp8, gpu against cpu: {wrong}",
    ]
    assert f"mxfp8, gpu against cpu: {wrong}" in console.render(two_devices, width=200)


def test_scales_that_one_dump_alone_made_are_of_it_against_its_rules(two_devices, more):
    alone = [replace(t, sides=t.sides[1:], pairs=()) for t in two_devices.tensors]
    total = more[1] + 160
    assert scale_lines(scale_agreements(alone)) == [
        f"scale factors of 2 recipes: {total} of {total} the same bytes (cpu against its rules)"
    ]


def test_workbook_and_markdown_hold_the_table(two_devices, more, tmp_path):
    differ, scales = more
    write_reports(two_devices, tmp_path, ["xlsx"])
    rows = list(openpyxl.load_workbook(tmp_path / "summary.xlsx")["Scales"].iter_rows(min_row=3, values_only=True))
    assert len(rows) == 6
    what = f"exponent +1 ({differ}); rule rceil, expected floor"
    assert ("mxfp8", "gpu", "cpu", 1, scales, differ, 1, "rceil", "floor", what) in rows
    assert f"| mxfp8 | gpu | cpu | {scales} | {differ} | exponent +1 ({differ}); rule rceil, expected floor |" in markdown.render(
        two_devices
    )


def test_a_rule_is_named_only_where_it_gives_every_tensor(two_devices):
    (pair,) = (t for t in two_devices.tensors if t.tensor == "scale" and t.case.recipe == "mxfp8")

    def with_rule(rule):
        side = pair.sides[0]
        return replace(pair, sides=(replace(side, scales=replace(side.scales, rule=rule)),), pairs=())

    both = scale_agreements([with_rule("floor or even"), with_rule("even or ceil")])
    assert (both[0].rule, both[0].tensors) == ("even", 2)
    none = scale_agreements([with_rule("floor"), with_rule("ceil")])
    assert none[0].sentence.endswith("rule unknown, expected floor")


def test_reports_without_quantisers_have_no_such_table(tmp_path):
    dump(parse_suite({"name": "s", "cases": [{"op": "gemm", "shape": "8x8x8"}]}, "s"), ReferenceBackend(), tmp_path / "a.h5")
    results = compare_dumps(tmp_path / "a.h5")
    assert scale_agreements(results.tensors) == scale_lines(scale_agreements(results.tensors)) == []
    assert "Scale factors" not in markdown.render(results)
    write_reports(results, tmp_path / "r", ["xlsx"])
    assert "Scales" not in openpyxl.load_workbook(tmp_path / "r" / "summary.xlsx").sheetnames
