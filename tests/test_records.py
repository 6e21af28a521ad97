import json
import math

import pytest

from accuracy_eval.errors import UsageError
from accuracy_eval.records import Attribution, Case, Diagnosis, GateResult, Side, Verdict, WorstElement, from_json, to_json


def roundtrip(record):
    return from_json(type(record), json.loads(json.dumps(to_json(record), allow_nan=False)))


def test_a_case_survives_json():
    case = Case("gemm", (("m", 5), ("n", 6), ("k", 7)), "nt", options=(("alpha", 1.5), ("bias", True)), seed=3)
    assert roundtrip(case) == case


def test_nan_and_infinities_survive_json_as_strings():
    worst = WorstElement((1, 2), 3, None, math.inf, -math.inf, math.nan, 1.0)
    data = to_json(worst)
    assert (data["actual"], data["expected"], data["error"]) == ("Inf", "-Inf", "NaN")
    back = roundtrip(worst)
    assert (back.actual, back.expected, back.index) == (math.inf, -math.inf, (1, 2))
    assert math.isnan(back.error)


def test_a_side_with_everything_in_it_survives_json():
    side = Side(
        "h200", "bfloat16", "ab" * 32, Verdict.FAIL, "fp32acc", {"snr_db": math.inf, "worst": None, "index": [1, 2]},
        (GateResult("g", "m", None, "<=", 1.0, None, "s", "n"),), (Diagnosis("gain", "a gain", {"value": 0.5}),),
        (WorstElement((0,), 1, 2, 0.5, 0.25, 0.25, 3.0),), {"element": 1e-3},
    )  # fmt: skip
    assert roundtrip(side) == side


def test_unknown_keys_of_a_newer_minor_schema_are_ignored():
    assert from_json(Diagnosis, {"code": "gain", "sentence": "s", "colour": "red"}) == Diagnosis("gain", "s")


def test_what_has_no_json_form_is_refused():
    with pytest.raises(UsageError, match="a complex cannot be written to JSON"):
        to_json(1j)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("PASS", 0), ("WARN", 0), ("UNSUPPORTED", 0), ("FAIL", 1), ("MISSING", 1), ("ERROR", 1), ("INPUTS_DIFFER", 2), ("INCONCLUSIVE", 2)],
)
def test_exit_codes_by_verdict(verdict, code):
    assert Verdict(verdict).exit_code == code


def test_every_verdict_has_a_place_in_the_order_of_severity():
    assert {v.severity for v in Verdict} == set(range(len(Verdict)))
    assert max(Verdict, key=lambda v: v.severity) is Verdict.FAIL


@pytest.mark.parametrize(
    ("comparison", "value", "limit", "margin"),
    [
        ("<=", 0.25, 1.0, 0.75),
        ("<=", 3.0, 1.0, -2.0),
        (">", 28.0, 25.0, 0.12),
        (">=", 10.0, 20.0, -0.5),
        ("==", 1.0, 0.0, None),
        ("<=", None, 1.0, None),
    ],
)
def test_margin_is_positive_inside_the_limit(comparison, value, limit, margin):
    found = GateResult("g", "m", value, comparison, limit, True).margin
    assert found == (None if margin is None else pytest.approx(margin))


def test_attributions_are_in_the_order_they_are_tried():
    assert [a.value for a in Attribution][:3] == ["not_comparable", "identical", "different_contracts"]
