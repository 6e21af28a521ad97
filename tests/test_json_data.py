import json
import math

import pytest

from accuracy_eval.errors import UsageError
from accuracy_eval.json_data import from_json, to_json
from accuracy_eval.records import Case, Diagnosis, GateResult, Side, Verdict, WorstElement


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
