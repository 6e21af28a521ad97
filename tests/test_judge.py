"""judge: what the interval of a budget settles, and what fails whatever the gates say."""

import numpy as np
import pytest

from accuracy_eval.cases import make_case
from accuracy_eval.formats import encode, get_format
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import SideTensor, side_of
from accuracy_eval.messages import place_of, side_reason
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.records import Coded, Verdict

CASE = make_case("gemm", (("m", 2), ("n", 2), ("k", 8)), format="float16")


def judge(actual, values, budget, fmt="float16", profile="default"):
    values, budget = np.asarray(values, float), np.asarray(budget, float)
    reference = Reference("values", fmt, values.shape, "fp32acc", lambda: iter((Panel(0, values, budget),)))
    side = side_of("me", Coded(np.asarray(actual, np.uint16), fmt), contract="fp32acc")
    output = Output("d", values.shape, fmt)
    return judge_tensor(Subject.of(CASE, output), [side], {"me": reference}, load_profile(profile)).sides[0]


@pytest.mark.parametrize(("budget", "verdict"), [(1.0, Verdict.PASS), (0.05, Verdict.FAIL)])
def test_inf_beside_the_largest_value_is_settled_by_the_budget(budget, verdict):
    # 65519.9 rounds to 65504; from 65520 on the result is Inf: 0.1 away
    side = judge([[0x7C00, 0x3C00]], [[65519.9, 1.0]], [[budget, budget]])
    assert side.verdict is verdict


@pytest.mark.parametrize(("budget", "verdict"), [(1.0, Verdict.PASS), (0.05, Verdict.FAIL)])
def test_the_largest_value_where_the_truth_just_overflows_is_settled_by_the_budget(budget, verdict):
    assert judge([[0x7BFF, 0x3C00]], [[65520.1, 1.0]], [[budget, budget]]).verdict is verdict


def test_nan_is_never_settled_by_a_budget():
    assert judge([[0x7E00, 0x3C00]], [[1.0, 1.0]], [[1e9, 1e9]]).verdict is Verdict.FAIL


def test_a_code_at_the_edge_of_its_interval_passes_and_one_beyond_fails():
    one, up, up2 = (encode([v], "float16")[0] for v in (1.0, 1 + 2.0**-10, 1 + 2.0**-9))
    values = [[1.0, 1.0]]
    budget = [[2.0**-11, 2.0**-11]]  # half a step: 1 + 2^-10 is what reals from 1 + 2^-11 on round to
    assert judge([[up, one]], values, budget).verdict is Verdict.WARN  # at 100 % of its budget
    assert judge([[up2, one]], values, budget).verdict is Verdict.FAIL


def test_a_result_near_its_budget_warns():
    value = encode([1 + 3 * 2.0**-10], "float16")[0]
    side = judge([[value, 0x3C00]], [[1.0, 1.0]], [[3 * 2.0**-10, 3 * 2.0**-10]])
    assert side.verdict is Verdict.WARN
    assert "of its budget" in side.note


def test_zeros_are_right_where_the_truth_rounds_to_zero():
    assert judge([[0, 0]], [[1e-12, -1e-12]], [[0.0, 0.0]]).verdict is Verdict.PASS
    assert judge([[0, 0]], [[1.0, 1.0]], [[0.1, 0.1]]).verdict is Verdict.FAIL


def test_an_empty_output_is_inconclusive():
    side = judge(np.empty((0, 4), np.uint16), np.empty((0, 4)), np.empty((0, 4)))
    assert (side.verdict, side.note) == (Verdict.INCONCLUSIVE, "the output is empty: there is nothing to judge")
    assert [d.code for d in side.diagnoses] == ["empty"]


def test_a_profile_without_an_applicable_gate_passes_nothing(tmp_path):
    (tmp_path / "p.toml").write_text(
        '[[gate]]\nname = "g"\nmetric = "rel_fro"\nlimit = 1\nsource = "nothing applies"\napplies = { op = ["exp"] }\n'
    )
    side = judge([[0x3C00, 0x3C00]], [[1.0, 1.0]], [[0.1, 0.1]], profile=str(tmp_path / "p.toml"))
    assert (side.verdict, side.note) == (Verdict.INCONCLUSIVE, "no gate of the profile could be applied")


def test_shape_and_format_family_are_checked_first():
    values = np.ones((2, 2))
    reference = Reference("values", "float16", (2, 2), "fp32acc", lambda: iter((Panel(0, values, values),)))
    output = Output("d", (2, 2), "float16")
    rows = (lambda first, end: np.zeros((end - first, 3), np.uint16),)
    wrong_shape = SideTensor("a", "float16", (2, 3), "", rows, "fp32acc")
    wrong_format = SideTensor("b", "bfloat16", (2, 2), "", rows, "fp32acc")
    result = judge_tensor(Subject.of(CASE, output), [wrong_shape, wrong_format], {"a": reference, "b": reference}, load_profile("default"))
    assert [s.diagnoses[0].code for s in result.sides] == ["shape-mismatch", "format-mismatch"]
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize("fmt", ["float64", "float32"])
@pytest.mark.parametrize("input_class", ["huge", "wide", "codes", "specials"])
def test_zeros_for_products_of_any_range_fail_without_an_overflow_of_the_judges_own(fmt, input_class):
    case, spec = make_case("gemm", (("m", 40), ("n", 36), ("k", 70)), format=fmt, input_class=input_class), get_op("gemm")
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
    (output,) = spec.outputs(case, "ocp")
    reference = spec.reference(case, inputs, "ocp", spec.contract(case))["d"]
    zeros = Coded(np.zeros(output.shape, get_format(output.format).storage), output.format)
    truth = np.concatenate([p.values for p in reference.panels()])
    for codes, passes in ((zeros, False), (Coded(encode(truth, output.format), output.format), True)):
        side = side_of("x", codes, contract=reference.contract)
        result = judge_tensor(Subject.of(case, output), [side], {"x": reference}, load_profile("default"), inputs={"x": inputs})
        assert (result.verdict in (Verdict.PASS, Verdict.WARN)) is passes


def test_a_count_of_wrong_codes_names_one_of_them_though_rounding_errs_more_elsewhere():
    values = np.full((4, 8), 1000.24)  # 0.24 from the nearest float16
    values[2, 5] = 1.0
    codes = np.full((4, 8), 0x63D0)  # 1000
    codes[2, 5] = 0x3C01  # one step from 1, 2^-10
    side = judge(codes, values, np.full((4, 8), 10.0), profile="exact")
    assert side.verdict is Verdict.FAIL
    gate = next(g for g in side.gates if g.metric == "mismatch_count")
    assert gate.value == 1
    element = place_of(gate, side.metrics, side.worst)
    assert (element.index, element.actual_code, element.expected_code) == ((2, 5), 0x3C01, 0x3C00)
    assert "mismatch_count 1 at [2, 5], must be 0" in side_reason(side)


def test_the_element_that_broke_the_budget_comes_first_with_its_values():
    values, budget = np.full((8, 8), 2.0), np.ones((8, 8))
    actual = values + 0.5
    values[6, 5], actual[6, 5], budget[6, 5] = 2**-6, 2**-6 + 2**-8, 2**-12
    side = judge(encode(actual, "float16"), values, budget)
    first = side.worst[0]
    assert (first.index, first.actual, first.expected, first.budget) == ((6, 5), 2**-6 + 2**-8, 2**-6, 2**-12)
    assert len({w.index for w in side.worst}) == len(side.worst) == 17
    assert side_reason(side) == "error 16 × budget at [6, 5] (contract fp32acc, B 2.4e-4; gate budget)"


@pytest.mark.parametrize(("budget", "verdict"), [(np.inf, Verdict.WARN), (0.1, Verdict.PASS)])
def test_zeros_that_nothing_could_miss_are_no_measurement_beside_elements_without_a_bound(budget, verdict):
    side = judge([[0x0000, 0x3C00]], [[0.0, 1.0]], [[0.0, budget]])
    assert side.verdict is verdict
    assert side.note.startswith("1 of 2 elements have no bound: ") is (verdict is Verdict.WARN)
