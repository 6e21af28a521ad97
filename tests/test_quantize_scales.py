"""Scale rules: against integer arithmetic over every bfloat16 amax, and the tools that name a rule."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from support_quantize import EMAX, LARGEST, integer_exponent, magnitudes, values_of

from accuracy_eval.errors import UsageError
from accuracy_eval.quantize import RECIPES, SCALE_RULES, exponent_step_histogram, get_recipe, reference_scale, scale_rule

MX_RULES = {"floor": "mxfp8", "ceil": "mxfp8_ceil", "rceil": "mxfp8_rceil", "even": "mxfp8_even"}
POSITIVE = np.arange(1, 0x7F80, dtype=np.uint16)  # every positive finite bfloat16
LOG_UNIFORM = np.exp2(np.arange(100_000) / 100_000 * 8 - 4).astype(np.float32)


def e8m0(exponents):
    return (np.asarray(exponents) + 127).astype(np.uint8)


@pytest.mark.parametrize("element", list(EMAX))
@pytest.mark.parametrize("rule", list(MX_RULES))
def test_e8m0_rules_agree_with_integer_arithmetic_on_every_bfloat16_amax(rule, element):
    amax = values_of(POSITIVE, "bfloat16")
    expected = [integer_exponent(a, rule, element) for a in amax]
    assert np.array_equal(reference_scale(amax, MX_RULES[rule], element), e8m0(expected))


@pytest.mark.parametrize("rule", list(MX_RULES))
def test_e8m0_rules_agree_with_integer_arithmetic_next_to_every_breakpoint(rule):
    element = "float4_e2m1fn"
    points = np.float32([1.0, 1.5, 1.75, 2.0]).view(np.int32)
    bits = np.concatenate([points + d for d in (-2, -1, 0, 1, 2)]).astype(np.int32)
    amax = bits.view(np.float32)
    expected = [integer_exponent(a, rule, element) for a in amax]
    assert np.array_equal(reference_scale(amax, MX_RULES[rule], element), e8m0(expected))


def test_e8m0_rules_on_five_block_maxima_worked_by_hand():
    amax = np.float32([2.7, 5.5, 1.2, 3.3, 3.9])
    by_hand = {
        "mxfp4": [-1, 0, -2, -1, -1],
        "mxfp4_rceil": [-1, 0, -2, 0, 0],
        "mxfp4_even": [-1, 0, -2, -1, 0],
        "mxfp4_ceil": [0, 1, -1, 0, 0],
    }
    for recipe, exponents in by_hand.items():
        assert reference_scale(amax, recipe).tolist() == e8m0(exponents).tolist(), recipe


@pytest.mark.parametrize(("amax", "e"), [(448, 0), (449, 0), (480, 0), (495.9, 0), (496, 1), (511, 1), (512, 1)])
def test_even_rule_on_e4m3_keeps_the_exponent_up_to_half_an_element_ulp_under_the_next_power(amax, e):
    assert int(reference_scale(np.float32([amax]), "mxfp8_even")[0]) - 127 == e


def test_all_rules_share_the_corner_cases():
    amax = np.float32([0.0, 2.0**-149, 2.0**-127, np.nan, np.inf, -1.0])
    for recipe in MX_RULES.values():
        scale = reference_scale(amax, recipe)
        assert scale[:3].tolist() == [0, 0, 0], recipe
        assert scale[3:5].tolist() == [0xFF, 0xFF], recipe
        assert scale[5] == reference_scale(np.float32([1.0]), recipe)[0], recipe


def test_largest_float32_amax_stays_below_the_upper_clamp():
    top = np.float32([np.finfo(np.float32).max])
    assert [int(reference_scale(top, r)[0]) - 127 for r in ("mxfp8", "mxfp8_ceil", "mxfp8_rceil", "mxfp8_even")] == [119, 120, 120, 120]


@pytest.mark.parametrize(
    ("recipe", "element", "share"),
    [("mxfp8", "fp8_e4m3", 0.046), ("mxfp4", "fp4_e2m1", 0.193), ("mxfp8_rceil", "fp8_e4m3", 0.147), ("mxfp4_rceil", "fp4_e2m1", 0.222)],
)
def test_share_of_blocks_on_which_the_even_rule_differs_on_log_uniform_amax(recipe, element, share):
    even = reference_scale(LOG_UNIFORM, recipe.split("_")[0] + "_even", element)
    other = reference_scale(LOG_UNIFORM, recipe, element)
    assert np.mean(even != other) == pytest.approx(share, abs=6e-4)


@pytest.mark.parametrize("element", list(LARGEST))
@pytest.mark.parametrize("recipe", ["rowwise", "block1x128"])
def test_max_over_amax_is_two_float32_roundings_on_every_bfloat16_amax(recipe, element):
    amax = values_of(POSITIVE, "bfloat16")
    floored = np.maximum(amax, np.float32({"rowwise": 1e-12, "block1x128": 1e-4}[recipe])).astype(np.float64)
    # a float64 quotient of two float32 numbers rounds on to float32 as the exact quotient does: 53 >= 2·24 + 2
    inverse = (LARGEST[element] / floored).astype(np.float32)
    expected = (1.0 / inverse.astype(np.float64)).astype(np.float32)
    assert np.array_equal(reference_scale(amax, recipe, element).view(np.float32), expected)


def test_max_over_amax_and_amax_over_max_differ_by_their_roundings_only():
    amax = values_of(POSITIVE[0x3000:], "bfloat16")
    two, one = (reference_scale(amax, r).view(np.float32) for r in ("rowwise", "rowwise_direct"))
    assert np.array_equal(one, (amax.astype(np.float64) / 448).astype(np.float32))
    steps = two.view(np.uint32).astype(np.int64) - one.view(np.uint32)
    assert steps.any()
    assert np.abs(steps).max() == 1


def test_scale_floor_of_amax_over_max_is_on_the_scale():
    assert reference_scale([1e-30, 0.0], "rowwise_direct").view(np.float32).tolist() == [np.float32(1e-12)] * 2


@pytest.mark.parametrize("element", ["fp8_e4m3", "fp8_e5m2", "fp4_e2m1"])
def test_pow2_scales_are_the_rceil_exponents_as_float32(element):
    amax = values_of(POSITIVE[POSITIVE >= 0x3000], "bfloat16")  # above every floor, below every clamp
    exponent = reference_scale(amax, "mxfp8_rceil", element).astype(int) - 127
    assert np.array_equal(reference_scale(amax, "rowwise_pow2", element).view(np.float32), np.ldexp(np.float32(1), exponent))


def test_fnuz_maps_amax_to_240_and_ocp_to_448():
    assert reference_scale([240.0], "rowwise", encoding="fnuz").view(np.float32)[0] == 1.0
    assert reference_scale([448.0], "rowwise", encoding="ocp").view(np.float32)[0] == 1.0
    assert int(reference_scale([448.0], "mxfp8", encoding="fnuz")[0]) - 127 == 1


def test_a_recipe_may_use_less_than_the_largest_value_of_one_format():
    assert reference_scale([224.0], "rowwise_max224", encoding="fnuz").view(np.float32)[0] == 1.0
    assert reference_scale([448.0], "rowwise_max224", encoding="ocp").view(np.float32)[0] == 1.0


def test_nvfp4_scales_saturate_and_tie_to_even_at_unit_global_scale():
    quotients = np.float64([464, 480, 512, 65536, 448, 17, 19, 2.0**-10, 2.0**-10 * 1.5, 0])
    codes = reference_scale(6 * quotients, "nvfp4", global_scale=1.0)
    # 17 lies between 16 and 18, 19 between 18 and 20; 2^-9 is the smallest subnormal
    assert codes.tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x58, 0x5A, 0x00, 0x01, 0x00]


def test_nvfp4_scales_round_the_rational_quotient_once():
    amax = values_of(POSITIVE[5::37], "bfloat16")
    amax = amax[(amax > 1e-8) & (amax < 1e4)]
    g = float(np.float32(float(amax.max()) / 2688))
    table = [Fraction(float(v)) for v in magnitudes("float8_e4m3fn")]
    middles = [(a + b) / 2 for a, b in pairwise(table)]

    def code(a):
        q = Fraction(float(a)) / (6 * Fraction(g))
        return sum(q > m or (q == m and i % 2 == 1) for i, m in enumerate(middles))

    assert reference_scale(amax, "nvfp4").tolist() == [code(a) for a in amax]


def test_nvfp4_derives_its_global_scale_from_the_largest_amax():
    assert reference_scale(np.float32([3.0, 1.5, 0.0]), "nvfp4").tolist() == [0x7E, 0x76, 0x00]


@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float4_e2m1fn", "float6_e2m3fn"])
@pytest.mark.parametrize("rule", list(MX_RULES))
def test_scale_rule_names_the_one_rule_that_made_the_scales(rule, element):
    amax = LOG_UNIFORM[::97]
    scale = reference_scale(amax, MX_RULES[rule], element)
    assert scale_rule(amax, scale, element) == [rule]


def test_scale_rule_lists_every_rule_that_fits_few_blocks():
    amax = np.float32([2.7, 5.5, 1.2])
    assert scale_rule(amax, reference_scale(amax, "mxfp4"), "fp4_e2m1") == ["floor", "rceil", "even"]


def test_scale_rule_names_none_when_one_scale_is_off_by_one():
    amax = LOG_UNIFORM[::97]
    scale = reference_scale(amax, "mxfp8_even").copy()
    scale[500] += 1
    assert scale_rule(amax, scale, "fp8_e4m3") == []


def test_scale_rule_tells_an_fnuz_exponent_from_an_ocp_one():
    amax = LOG_UNIFORM[::97]
    scale = reference_scale(amax, "mxfp8_even", encoding="fnuz")
    assert scale_rule(amax, scale, "float8_e4m3fn") == []
    assert scale_rule(amax, scale, "float8_e4m3fnuz") == ["even"]


@pytest.mark.parametrize(("recipe", "rule"), [("rowwise", "max_over_amax"), ("rowwise_direct", "amax_over_max"), ("rowwise_pow2", "pow2")])
def test_scale_rule_names_float32_rules(recipe, rule):
    amax = LOG_UNIFORM[::97]
    assert scale_rule(amax, reference_scale(amax, recipe), "fp8_e4m3", scale_format="float32") == [rule]


def test_scale_rule_refuses_a_different_number_of_scales():
    with pytest.raises(UsageError, match=r"amax has shape \(2,\), scales \(3,\)"):
        scale_rule([1.0, 2.0], np.zeros(3, np.uint8), "fp8_e4m3")


def test_exponent_steps_are_counted_by_sign_and_nan_apart():
    actual = np.uint8([10, 11, 9, 10, 255, 255, 3])
    expected = np.uint8([10, 10, 10, 10, 255, 7, 255])
    steps = exponent_step_histogram(actual, expected)
    assert steps.steps == {-1: 1, 0: 2, 1: 1}
    assert (steps.nan_both, steps.nan_actual, steps.nan_expected) == (1, 1, 1)


def test_exponent_steps_of_float32_scales_are_binades():
    actual, expected = (np.float32(v).view(np.uint32) for v in ([1.9, 0.5, 4.0], [1.0, 1.0, 1.0]))
    assert exponent_step_histogram(actual, expected, scale_format="float32").steps == {-1: 1, 0: 1, 2: 1}


def test_scales_of_the_floor_rule_are_ml_dtypes_powers_of_two():
    amax = np.float32([1.0, 448.0, 3e38])
    values = reference_scale(amax, "mxfp8").view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    assert values.tolist() == [2.0**-8, 1.0, 2.0**119]


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_names_a_rule_and_only_recipes_that_exist(name):
    recipe = RECIPES[name]
    assert recipe.name == name
    assert recipe.rule in SCALE_RULES
    assert not recipe.weights or recipe.weights in RECIPES
    assert recipe.floor > 0 or SCALE_RULES[recipe.rule].scale_format != "float32" or recipe.rule == "unit"


def test_an_unknown_recipe_is_refused_with_the_names_there_are():
    with pytest.raises(
        UsageError,
        match=r"unknown recipe 'mxfp7' \(did you mean mxfp8 or mxfp6 or mxfp4\?\); allowed: mxfp8, .* more: accuracy-eval list recipes",
    ):
        get_recipe("mxfp7")


def test_granularity_is_readable():
    found = {name: RECIPES[name].granularity for name in ("hybrid", "rowwise", "block1x128", "mxfp4_2d", "nvfp4")}
    assert found == {"hybrid": "tensor", "rowwise": "row", "block1x128": "1x128", "mxfp4_2d": "32x32", "nvfp4": "1x16"}


def test_scale_rule_names_nvfp4_scales_under_the_global_scale_they_were_made_with():
    amax = LOG_UNIFORM[::97]
    scale = reference_scale(amax, "nvfp4", global_scale=0.01)
    assert scale_rule(amax, scale, "fp4_e2m1", scale_format="float8_ue4m3", global_scale=0.01) == ["nvfp4"]
    assert scale_rule(amax, scale, "fp4_e2m1", scale_format="float8_ue4m3", global_scale=0.02) == []
