"""Every built-in limit, judged at it and on both sides of it with data made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accuracy_eval.formats import encode
from accuracy_eval.gates import builtin_profiles, load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.quantize import RECIPES, element_format
from accuracy_eval.records import Case, Coded, Verdict

SHAPE = (("m", 1), ("n", 4), ("k", 8))


def judge(profile, actual, expected, *, fmt="float32", out="float32", budget=0.0, exact=False, **case):
    """The judged side of one row of values against a truth given by hand."""
    given = Case(**{"op": "gemm", "shape": SHAPE, "layout": "nt", "format": fmt, **case})
    a, e = np.atleast_2d(np.asarray(actual, np.float64)), np.atleast_2d(np.asarray(expected, np.float64))
    output = Output("d", a.shape, out, exact=exact)
    coded = exact or given.lane != "random"
    panel = Panel(0, encode(e, out)) if coded else Panel(0, e, np.full(e.shape, budget))
    reference = Reference("codes" if coded else "values", out, a.shape, "", lambda: iter((panel,)))
    side = side_of("me", Coded(encode(a, out), out))
    return judge_tensor(Subject(given, output, "by hand", "gemm"), [side], {"me": reference}, load_profile(profile)).sides[0]


def gates(side):
    return {g.gate: g.passed for g in side.gates}


def values(side):
    return {g.gate: g.value for g in side.gates}


def with_error(relative, count=4):
    """Expected values and actual ones whose error is orthogonal to them and of that relative norm."""
    e = np.ones(count)
    d = np.resize([1.0, -1.0], count) * relative
    return e + d, e


# --- default


@pytest.mark.parametrize(("error", "passes"), [(0.25, True), (0.25 + 2.0**-20, False)])
def test_the_budget_gate_allows_its_budget_and_no_more(error, passes):
    # 1 + 0.25 and the budget are exact in float64; the code's interval reaches half an ulp further: 2^-24
    side = judge("default", [1, 2 + error, 3, 4], [1, 2, 3, 4], out="float64", budget=0.25)
    assert gates(side) == {"budget": passes}
    assert values(side)["budget"] == pytest.approx(error / 0.25, abs=1e-9)


def test_the_exact_lane_allows_no_other_value_but_either_zero():
    e = [256, -3, 0, 1]
    assert gates(judge("default", [256, -3, -0.0, 1], e, lane="exact")) == {"exact-lane": True}
    assert gates(judge("default", [256, -3, 0, 1 + 2.0**-23], e, lane="exact")) == {"exact-lane": False}


def test_the_coded_lane_is_judged_like_the_exact_one():
    assert gates(judge("default", [1, 2, 3, 4], [1, 2, 3, 4], lane="coded")) == {"exact-lane": True}
    assert gates(judge("default", [1, 2, 4, 3], [1, 2, 3, 4], lane="coded")) == {"exact-lane": False}


@pytest.mark.parametrize("profile", ["default", "turbo", "strict", "l3"])
def test_one_code_step_of_an_exact_output_fails_whatever_the_tolerance(profile):
    more = {"op": "cast", "layout": "", "out": "float8_e4m3fn", "exact": True}
    assert gates(judge(profile, [1, 2, 3, 4], [1, 2, 3, 4], **more)) == {"exact-output": True}
    assert gates(judge(profile, [1, 2, 3, 4.5], [1, 2, 3, 4], **more)) == {"exact-output": False}


# --- exact


@pytest.mark.parametrize(("truth", "passes"), [(1 + 2.0**-25, True), (1 + 1.5 * 2.0**-24, False)])
def test_exact_wants_the_correctly_rounded_result(truth, passes):
    assert gates(judge("exact", [1, 1, 1, 1], [1, 1, 1, truth])) == {"bitwise": passes}


# --- turbo


@pytest.mark.parametrize(("fmt", "tolerance"), [("float64", 1e-4), ("float32", 1e-4), ("bfloat16", 1e-2), ("float16", 1e-2)])
@pytest.mark.parametrize("profile", ["turbo", "strict"])
def test_allclose_allows_absolute_and_relative_tolerance_together(profile, fmt, tolerance):
    for e in (0.0, 1.0, -40.0):
        allowed = tolerance + tolerance * abs(e)
        for factor, passes in ((0.999, True), (1.001, False)):
            side = judge(profile, [1, e + factor * allowed, 1, 1], [1, e, 1, 1], fmt=fmt, out="float64")
            (gate,) = side.gates
            assert (gate.gate, gate.passed) == ("allclose-16-bit" if tolerance == 1e-2 else "allclose-float32", passes)
            assert gate.value == (0 if passes else 1)


@pytest.mark.parametrize("profile", ["turbo", "strict"])
def test_attention_in_eight_bits_has_a_limit_of_its_own_and_products_and_functions_keep_theirs(profile):
    for db, passes in ((19.99, False), (20.01, True)):
        actual, expected = with_error(10 ** (-db / 20))
        more = {"fmt": "fp8_e4m3", "recipe": "tensorwise", "out": "float64"}
        assert gates(judge(profile, actual, expected, op="attention_fp8", **more)) == {"snr-attention-fp8": passes}
        assert gates(judge(profile, actual, expected, op="my_function", **more)) == {"snr-e4m3": False}


SNR = [
    # format, recipe, direction, limit in turbo and in strict
    ("fp8_e4m3", "tensorwise", "fwd", 25, 25),
    ("fp8_e4m3", "", "fwd", 25, 25),
    ("fp8_e5m2", "tensorwise", "fwd", 20, 20),
    ("fp8_e4m3+fp8_e5m2", "tensorwise", "fwd", 20, 20),
    ("fp8_e5m2+fp8_e4m3", "rowwise", "bwd", 20, 20),
    ("fp8_e4m3", "hybrid", "fwd", 20, 25),
    ("fp8_e4m3", "hybrid", "bwd", 20, 20),
    ("fp4_e2m1", "mxfp4", "fwd", 10, 10),
]


@pytest.mark.parametrize(("fmt", "recipe", "direction", "turbo", "strict"), SNR)
@pytest.mark.parametrize("profile", ["turbo", "strict"])
def test_snr_must_be_above_the_limit_of_the_operands(profile, fmt, recipe, direction, turbo, strict):
    limit = {"turbo": turbo, "strict": strict}[profile]
    for snr, passes in ((limit - 0.01, False), (limit + 0.01, True)):
        actual, expected = with_error(10 ** (-snr / 20))
        side = judge(profile, actual, expected, fmt=fmt, recipe=recipe, direction=direction, out="float64")
        assert side.gates
        assert all(g.passed for g in side.gates) == passes
        assert [g.value for g in side.gates] == pytest.approx([snr] * len(side.gates), abs=1e-6)


def test_an_snr_equal_to_the_limit_fails():
    # ‖e‖/‖d‖ = 10
    side = judge("turbo", [10, 0, 0, 1], [10, 0, 0, 0], fmt="fp8_e5m2", recipe="tensorwise")
    assert values(side) == {"snr-e5m2": 20.0}
    assert gates(side) == {"snr-e5m2": False}


def test_a_16_bit_output_of_fp8_operands_is_gated_by_the_operands():
    actual, expected = with_error(0.04)
    assert gates(judge("turbo", actual, expected, fmt="fp8_e4m3", recipe="tensorwise", out="bfloat16")) == {"snr-e4m3": True}


@pytest.mark.parametrize(("fmt", "recipe", "limit", "allclose"), [
    ("bfloat16", "", 45, "allclose-16-bit"), ("float16", "", 50, "allclose-16-bit"), ("fp4_e2m1", "mxfp4", 8, None),
    ("fp8_e4m3", "tensorwise", 25, None), ("fp8_e5m2", "tensorwise", 20, None),
])  # fmt: skip
def test_grouped_products_have_limits_of_their_own(fmt, recipe, limit, allclose):
    for snr, passes in ((limit - 0.01, False), (limit + 0.01, True)):
        actual, expected = with_error(10 ** (-snr / 20))
        side = judge("turbo", actual, expected, op="grouped_gemm", fmt=fmt, recipe=recipe, out="float64")
        found = gates(side)
        if allclose:
            assert found.pop(allclose) is True
        assert list(found.values()) == [passes]


@pytest.mark.parametrize("profile", ["turbo", "strict"])
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_of_the_library_has_a_limit(profile, recipe):
    """fp6 and int8 recipes are not the library's: nothing there judges them, which is no pass."""
    facts = {"op": "gemm", "family": "gemm", "recipe": recipe, "quantised": True, "exact": False, "direction": "fwd", "lane": "random"}
    own = element_format(recipe).family
    found = load_profile(profile).applicable({**facts, "format": own})
    assert bool(found) == (own not in ("int8", "fp6_e2m3")), own


# --- l3


@pytest.mark.parametrize(("actual", "passes"), [(27.0, True), (27 + 2.0**-10, False)])
def test_l3_allows_a_scaled_error_of_eight_hundredths_where_values_are_large(actual, passes):
    # 2/25 = 0.08; the other elements keep norm and cosine within their limits
    side = judge("l3", [actual, 1000, 1000, 1000], [25, 1000, 1000, 1000])
    assert gates(side) == {"l3-max-scaled": passes, "l3-rel-fro": True, "l3-cosine": True}


@pytest.mark.parametrize(("error", "passes"), [(0.0799, True), (0.0801, False)])
def test_l3_allows_an_error_of_eight_hundredths_where_values_are_below_one(error, passes):
    side = judge("l3", [0.5 + error, 20, 20, 20], [0.5, 20, 20, 20])
    assert gates(side) == {"l3-max-scaled": passes, "l3-rel-fro": True, "l3-cosine": True}


@pytest.mark.parametrize(("gain", "passes"), [(1.05, True), (0.95, True), (1.0501, False), (0.9499, False)])
def test_l3_allows_a_gain_of_five_percent(gain, passes):
    e = np.array([20.0, 40.0, 60.0, 80.0])
    side = judge("l3", gain * e, e, out="float64")
    assert gates(side) == {"l3-max-scaled": True, "l3-rel-fro": passes, "l3-cosine": True}


@pytest.mark.parametrize(("noise", "passes"), [(0.01414, True), (0.01415, False)])
def test_l3_allows_noise_of_one_point_four_percent(noise, passes):
    # cosine = 1/sqrt(1 + noise²) = 0.9999 at 1.41425 %
    assert (1 / math.sqrt(1 + noise**2) >= 0.9999) == passes
    actual, expected = with_error(noise)
    side = judge("l3", actual, expected, out="float64")
    assert gates(side) == {"l3-max-scaled": True, "l3-rel-fro": True, "l3-cosine": passes}


def test_l3_judges_against_the_rounded_expectation():
    # 2.6 % rms of e4m3 rounding: a correct result fails an unrounded expectation (cosine) and equals the rounded one
    truth = np.array([1.06, 2.12, 4.24, 8.48, 1.18, 2.36])
    rounded = [1.0, 2.0, 4.0, 8.0, 1.125, 2.25]
    side = judge("l3", rounded, truth, out="float8_e4m3fn")
    assert side.verdict is Verdict.PASS
    assert values(side) == {"l3-max-scaled": 0.0, "l3-rel-fro": 0.0, "l3-cosine": 1.0}
    assert side.metrics["rel_fro"] > 0.05  # the truth itself is further away than the limit


def test_l3_takes_zero_against_zero_for_equal_and_zero_against_anything_for_wrong():
    assert judge("l3", [0, 0, 0, 0], [0, 0, 0, 0]).verdict is Verdict.PASS
    side = judge("l3", [0, 0, 0, 1e-3], [0, 0, 0, 0])
    assert gates(side)["l3-cosine"] is False


# --- all


@pytest.mark.parametrize("profile", builtin_profiles())
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_fails_under_every_profile(profile, value):
    side = judge(profile, [1, 2, 3, value], [1, 2, 3, 4], budget=1e30)
    assert side.verdict is Verdict.FAIL


@pytest.mark.parametrize("profile", builtin_profiles())
def test_all_zero_against_anything_fails_under_every_profile(profile):
    side = judge(profile, [0, 0, 0, 0], [1e-30, 1e-30, 1e-30, -1e-30], budget=1e30)
    assert side.verdict is Verdict.FAIL
    assert "all-zero" in {d.code for d in side.diagnoses}


def test_zeros_for_subnormal_values_or_sums_of_such_inside_the_budget_are_a_flush_and_for_others_are_not():
    smallest = 2.0**-126  # normal in float32
    assert judge("default", [0, 0], [smallest / 2, smallest / 4], budget=2 * smallest).verdict is Verdict.PASS
    assert judge("default", [0, 0], [smallest / 2, smallest / 4], budget=smallest / 2).verdict is Verdict.FAIL
    assert judge("default", [0, 0], [3 * smallest, smallest / 4], budget=8 * smallest).verdict is Verdict.PASS  # four terms of at most one
    large = 2.0**20 * smallest  # more terms than a sum has
    assert judge("default", [0, 0], [large, smallest / 4], budget=8 * large).verdict is Verdict.FAIL
    normal = 2.0**-14  # in float16, whose subnormals no sum loses
    assert judge("default", [0, 0], [normal, normal / 4], budget=8 * normal, out="float16").verdict is Verdict.FAIL


@pytest.mark.parametrize("profile", builtin_profiles())
def test_every_limit_names_its_source(profile):
    for gate in load_profile(profile).gates:
        assert len(gate.source.split()) >= 3, gate.name
