import pytest

from accuracy_eval.records import Attribution, GateResult, Verdict


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
