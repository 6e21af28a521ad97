"""The quantiser: against a plain second one, against rational arithmetic, and at every corner a block can have."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from support_jit import printed_either_way
from support_quantize import LARGEST, NAN, bf16, magnitudes, plain_quantise, round_to_element, values_of

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.quantize import RECIPES, dequantize, element_format, hadamard16, quantize

SMALL = np.zeros((2, 2), np.uint16)
SHAPE = (37, 200)  # ragged under every block size
ELEMENTS = [name for name in LARGEST if name != "int8"]


def operand(fmt, shape=SHAPE, seed=0):
    """Codes over many binades, with zeros, -0, a zero block, subnormals and an outlier; finite."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, shape))).astype(np.float32)
    x[:, 3::17] = 0
    x[1::2, 3::34] = -0.0
    if shape[0] > 32:
        x[:32, 32:64] = 0
        x[33] = 0
        x[34] = np.ldexp(x[34], -12)
    x[0, 0] = 1000.0
    dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}[fmt]
    return np.ascontiguousarray(x.astype(dtype)).view(np.uint32 if fmt == "float32" else np.uint16)


def plain(codes, fmt, recipe, element=None, encoding="ocp"):
    r = RECIPES[recipe]
    e = element_format(r, element, encoding=encoding)
    x = values_of(codes, fmt)
    if r.hadamard:
        x = values_of(hadamard16(codes, fmt), "float32")
    return plain_quantise(x, r.block, r.rule, e.name, floor=r.floor, top=r.limits.get(e.name))


def assert_equals_plain(q, p):
    assert np.array_equal(q.codes, p.codes)
    found = decode(q.scale, q.scale_format)
    assert np.array_equal(found.reshape(p.scale.shape), p.scale.astype(np.float64), equal_nan=True)
    if q.global_scale is not None:
        assert np.array_equal(decode(q.global_scale, "float32"), p.global_scale, equal_nan=True)


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("recipe", list(RECIPES))
def test_every_recipe_agrees_with_the_plain_quantiser(recipe, fmt):
    shape = (37, 208) if RECIPES[recipe].hadamard else SHAPE
    codes = operand(fmt, shape)
    assert_equals_plain(quantize(codes, fmt, recipe), plain(codes, fmt, recipe))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_direct", "block1x128_ue8m0", "mxfp8", "mxfp8_even", "mxfp4_2d_ceil"])
def test_recipes_carry_every_element_format(recipe, element):
    codes = operand("bfloat16", seed=1)
    q = quantize(codes, "bfloat16", recipe, element=element)
    assert q.format == element
    assert_equals_plain(q, plain(codes, "bfloat16", recipe, element))


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_nan_and_inf_agree_with_the_plain_quantiser(recipe):
    codes = operand("bfloat16", (3, 256), seed=2).copy()
    codes[0, 40], codes[1, 130], codes[2, 250], codes[2, 251] = 0x7FC1, 0x7F80, 0xFF80, 0xFFFF
    assert_equals_plain(quantize(codes, "bfloat16", recipe), plain(codes, "bfloat16", recipe))


@pytest.mark.parametrize("element", ELEMENTS)
def test_unit_scale_rounds_every_bfloat16_as_encode_does(element):
    codes = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    values = decode(codes, "bfloat16")
    nan = np.isnan(values)
    expected = encode(np.where(nan, 0.0, values), element, overflow="saturate")
    expected[nan] = NAN.get(element, 0)
    assert np.array_equal(quantize(codes, "bfloat16", "unit", element=element).codes, expected)


@pytest.mark.parametrize("element", ELEMENTS)
def test_unit_scale_is_right_one_float32_ulp_around_every_value_and_every_midpoint(element):
    table = magnitudes(element)
    points = np.concatenate([table, (table[1:] + table[:-1]) / 2]).astype(np.float32).view(np.int32)
    codes = np.concatenate([points[points > 0] + d for d in (-1, 0, 1)]).astype(np.uint32)[None]
    codes = np.concatenate([codes, codes | np.uint32(0x80000000)])
    expected = encode(decode(codes, "float32"), element, overflow="saturate")
    assert np.array_equal(quantize(codes, "float32", "unit", element=element).codes, expected)


@pytest.mark.parametrize("overflow", ["saturate", "nan", "inf"])
@pytest.mark.parametrize("element", [e for e in ELEMENTS if e.startswith("float8")])
def test_every_bfloat16_beyond_the_range_follows_the_overflow_policy(element, overflow):
    if overflow == "inf" and element != "float8_e5m2":
        with pytest.raises(UsageError, match=f"overflow policy 'inf': {element} has no Inf; allowed: saturate"):
            quantize(SMALL, "bfloat16", "unit", element=element, overflow=overflow)
        return
    codes = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    values = decode(codes, "bfloat16")
    nan = np.isnan(values)
    expected = encode(np.where(nan, 0.0, values), element, overflow=overflow)
    found = quantize(codes, "bfloat16", "unit", element=element, overflow=overflow).codes
    # a NaN is a NaN, whatever its sign
    both_nan = np.isnan(decode(found, element)) & (np.isnan(decode(expected, element)) | nan)
    assert np.array_equal(found[~both_nan], expected[~both_nan])
    assert both_nan[nan].all()


def test_formats_without_inf_and_nan_can_only_saturate():
    with pytest.raises(UsageError, match="overflow policy 'nan': float4_e2m1fn has no NaN; allowed: saturate"):
        quantize(SMALL, "bfloat16", "mxfp4", overflow="nan")


def test_the_floor_rule_overflows_where_the_block_maximum_is_just_under_a_power_of_two():
    codes = bf16([[500.0, 440.0, 1.0]])  # e = 0: 500 rounds to 512, beyond 448
    assert quantize(codes, "bfloat16", "mxfp8").codes.tolist() == [[0x7E, 0x7E, 0x38]]
    assert quantize(codes, "bfloat16", "mxfp8", overflow="nan").codes.tolist() == [[0x7F, 0x7E, 0x38]]


@pytest.mark.parametrize("recipe", [r for r in RECIPES if RECIPES[r].rule != "unit"])
def test_under_the_recipes_own_scales_the_codes_are_the_recipes_own(recipe):
    codes = operand("bfloat16", (37, 208))
    q = quantize(codes, "bfloat16", recipe)
    g = None if q.global_scale is None else float(decode(q.global_scale, "float32"))
    assert np.array_equal(quantize(codes, "bfloat16", recipe, scale=q.scale, global_scale=g).codes, q.codes)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_direct", "mxfp8", "mxfp8_2d", "block1x128_ue8m0"])
def test_under_other_scales_elements_are_rounded_against_those(recipe, axis):
    codes = operand("bfloat16", (40, 35 * 3)).reshape(40, 35, 3)
    q = quantize(codes, "bfloat16", recipe, axis=axis)
    step = 1 if q.scale_format == "float8_e8m0fnu" else 1 << 23  # every scale twice as large
    other = (q.scale + np.asarray(step, q.scale.dtype)).astype(q.scale.dtype)
    found = quantize(codes, "bfloat16", recipe, axis=axis, scale=other)
    index = np.ix_(*(np.arange(n) // b if b else np.zeros(n, int) for n, b in zip(codes.shape, q.blocks, strict=True)))
    scale = decode(other, q.scale_format).reshape(q.grid)[index]
    x = values_of(codes, "bfloat16")
    scaled = (x / scale.astype(np.float32)) if recipe.endswith("direct") else x * (np.float32(1) / scale.astype(np.float32))
    assert np.array_equal(found.codes, round_to_element(scaled.astype(np.float32).astype(np.float64), q.format, LARGEST[q.format]))


def test_scales_of_another_shape_are_refused():
    with pytest.raises(UsageError, match=r"scales of shape \(7, 37\); the recipe stores \(37, 7\) for this operand"):
        quantize(operand("bfloat16"), "bfloat16", "mxfp8", scale=np.zeros((7, 37), np.uint8))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "block1x128", "mxfp8", "mxfp4_even", "nvfp4"])
def test_quantising_takes_no_copy_of_the_operand(recipe):
    codes = np.random.default_rng(0).integers(0, 0x7F00, (1024, 4096)).astype(np.uint16)
    quantize(codes[:8], "bfloat16", recipe)  # compiled
    tracemalloc.start()
    q = quantize(codes, "bfloat16", recipe)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < q.codes.nbytes + codes.size * 2  # the codes, and less than the operand in bfloat16 beside them: scales, not elements


def test_int8_rounds_ties_to_even_and_stays_within_127():
    codes = bf16([[0.5, 1.5, 2.5, -0.5, -2.5, 127.0, -127.0, 200.0, -200.0, 126.5]])
    q = quantize(codes, "bfloat16", "unit", element="int8")
    assert q.codes.view(np.int8).tolist() == [[0, 2, 2, 0, -2, 127, -127, 127, -127, 126]]


def test_int8_has_no_code_for_nan_and_its_scale_says_so():
    q = quantize(bf16([[1.0, np.nan, 2.0]]), "bfloat16", "int8_rowwise")
    assert q.codes.tolist() == [[0, 0, 0]]
    assert np.isnan(dequantize(q)).all()


def test_tensorwise_by_hand():
    q = quantize(bf16([[1.0, -2.0], [3.5, 0.0]]), "bfloat16", "tensorwise")
    # 448 / 3.5 = 128 exactly: codes of 128, -256, 448, 0 and a scale of 2^-7
    assert q.codes.tolist() == [[0x70, 0xF8], [0x7E, 0x00]]
    assert q.scale.view(np.float32) == 2.0**-7
    assert q.inv_scale.view(np.float32) == 128.0
    assert dequantize(q).tolist() == [[1.0, -2.0], [3.5, 0.0]]


def test_scale_is_the_rounded_reciprocal_of_the_rounded_inverse_not_amax_over_max():
    codes = bf16(np.arange(1, 200) / 64)[:, None]
    q = quantize(codes, "bfloat16", "rowwise")
    inverse, scale = q.inv_scale.view(np.float32), q.scale.view(np.float32)
    assert np.array_equal(scale, np.float32(1) / inverse)
    assert (scale != values_of(codes, "bfloat16")[:, 0] / np.float32(448)).any()


def test_the_product_with_the_inverse_scale_is_rounded_to_float32_before_the_element():
    # numbers whose product with the inverse scale is next to a midpoint of the element: float32 makes it a tie, exactly it is none
    inverse = np.float32(448) / np.float32(3)
    table = magnitudes("float8_e4m3fn")
    near = ((table[1:] + table[:-1]) / 2 / float(inverse)).astype(np.float32).view(np.int32)
    bits = np.concatenate([[np.float32(3).view(np.int32)], *(near + d for d in (-1, 0, 1))]).astype(np.uint32)
    q = quantize(bits[None], "float32", "rowwise")
    x = bits.view(np.float32)
    assert q.inv_scale.view(np.float32).tolist() == [inverse]
    assert np.array_equal(q.codes[0], round_to_element((x * inverse).astype(np.float64), "float8_e4m3fn", 448.0))
    assert (q.codes[0] != round_to_element(x.astype(np.float64) * float(inverse), "float8_e4m3fn", 448.0)).any()


@pytest.mark.parametrize(("amax", "byte", "code"), [(480.0, 127, 0x7E), (496.0, 128, 0x78), (240.0, 126, 0x7E), (-480.0, 127, 0xFE)])
def test_even_rule_clips_a_block_maximum_just_under_a_power_of_two(amax, byte, code):
    q = quantize(bf16([[amax] + [1.0] * 31]), "bfloat16", "mxfp8_even")
    assert (q.scale.tolist(), q.codes[0, 0]) == ([[byte]], code)


def test_fnuz_saturates_at_240_has_no_negative_zero_and_one_nan():
    codes = bf16([[1000.0, -1000.0, -0.0, np.nan, -(2.0**-20)]])
    q = quantize(codes, "bfloat16", "unit", encoding="fnuz")
    assert q.format == "float8_e4m3fnuz"
    assert q.codes.tolist() == [[0x7F, 0xFF, 0x00, 0x80, 0x00]]
    assert dequantize(q)[0, :2].tolist() == [240.0, -240.0]


def test_ocp_saturates_at_448_and_keeps_negative_zero():
    q = quantize(bf16([[1000.0, -1000.0, -0.0, np.nan, -(2.0**-20)]]), "bfloat16", "unit")
    assert q.format == "float8_e4m3fn"
    assert q.codes.tolist() == [[0x7E, 0xFE, 0x80, 0x7F, 0x80]]


def test_ocp_and_fnuz_codes_of_a_power_of_two_scaled_operand_have_equal_values():
    codes = operand("bfloat16", (8, 64), seed=9)
    ocp, fnuz = (dequantize(quantize(codes, "bfloat16", "mxfp8_rceil", element="fp8_e5m2", encoding=e)) for e in ("ocp", "fnuz"))
    assert np.array_equal(ocp, fnuz)  # e5m2 has the largest value 57344 in both


def test_hybrid_gives_operands_e4m3_and_gradients_e5m2():
    codes = operand("bfloat16", (4, 16))
    assert quantize(codes, "bfloat16", "hybrid").format == "float8_e4m3fn"
    assert quantize(codes, "bfloat16", "hybrid", gradient=True).format == "float8_e5m2"
    assert quantize(codes, "bfloat16", "hybrid", gradient=True, encoding="fnuz").format == "float8_e5m2fnuz"
    assert quantize(codes, "bfloat16", "rowwise", gradient=True).format == "float8_e4m3fn"


def test_a_concrete_element_name_outranks_the_encoding():
    assert quantize(operand("bfloat16", (2, 32)), "bfloat16", "rowwise", element="float8_e5m2", encoding="fnuz").format == "float8_e5m2"


@pytest.mark.parametrize(
    ("recipe", "shape"),
    [
        ("tensorwise", ()),
        ("rowwise", (37,)),
        ("block1x128", (37, 2)),
        ("block128x128", (1, 2)),
        ("mxfp8", (37, 7)),
        ("mxfp8_2d", (2, 7)),
        ("nvfp4", (37, 13)),
    ],
)
def test_scale_shapes_with_partial_tail_blocks(recipe, shape):
    assert quantize(operand("bfloat16"), "bfloat16", recipe).scale.shape == shape


def test_a_tail_block_has_its_own_scale():
    codes = bf16(np.concatenate([np.full(32, 448.0), np.full(3, 7.0)])[None])
    q = quantize(codes, "bfloat16", "mxfp8")
    assert q.scale.tolist() == [[127, 127 - 6]]
    assert q.codes[0, 32:].tolist() == [0x7E] * 3


@pytest.mark.parametrize("recipe", [r for r in RECIPES if not RECIPES[r].hadamard])
def test_the_contraction_axis_may_come_first(recipe):
    codes = operand("bfloat16")
    last, first = quantize(codes, "bfloat16", recipe), quantize(np.ascontiguousarray(codes.T), "bfloat16", recipe, axis=0)
    assert np.array_equal(first.codes, last.codes.T)
    assert np.array_equal(first.scale, last.scale.T)
    assert np.array_equal(dequantize(first), dequantize(last).T, equal_nan=True)


@pytest.mark.parametrize("recipe", ["rowwise", "block1x128", "block128x128", "mxfp4", "mxfp8_2d"])
@pytest.mark.parametrize("axis", [1, 2])
def test_each_matrix_of_a_batch_is_quantised_by_itself(recipe, axis):
    codes = np.stack([operand("bfloat16", seed=s) for s in (1, 2, 3)])
    q = quantize(codes, "bfloat16", recipe, axis=axis)
    for i in range(3):
        one = quantize(codes[i], "bfloat16", recipe, axis=axis - 1)
        assert np.array_equal(q.codes[i], one.codes)
        assert np.array_equal(q.scale[i], one.scale)
        assert np.array_equal(dequantize(q)[i], dequantize(one))


def test_one_scale_serves_a_whole_batch_tensorwise():
    codes = np.stack([bf16([[1.0, 2.0]]), bf16([[448.0, 3.0]])])
    assert quantize(codes, "bfloat16", "tensorwise").scale.view(np.float32) == 1.0


def test_a_vector_is_one_row():
    codes = operand("bfloat16", (1, 64))
    for recipe, shape in (("tensorwise", ()), ("rowwise", ()), ("mxfp8", (2,)), ("block128x128", (1,)), ("nvfp4", (4,))):
        matrix, vector = quantize(codes, "bfloat16", recipe), quantize(codes[0], "bfloat16", recipe)
        assert vector.scale.shape == shape
        assert np.array_equal(vector.codes, matrix.codes[0])
        assert np.array_equal(dequantize(vector), dequantize(matrix)[0])


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_one_row_equals_that_row_of_one_row_blocks(recipe):
    codes = operand("bfloat16", (1, 208), seed=4)
    assert_equals_plain(quantize(codes, "bfloat16", recipe), plain(codes, "bfloat16", recipe))


@pytest.mark.parametrize(
    ("recipe", "scale_shape"),
    [("tensorwise", ()), ("rowwise", (3,)), ("block1x128", (3, 0)), ("mxfp8", (3, 0)), ("mxfp8_2d", (1, 0)), ("nvfp4", (3, 0))],
)
def test_an_operand_without_contraction_has_no_codes_and_floor_scales(recipe, scale_shape):
    q = quantize(np.zeros((3, 0), np.uint16), "bfloat16", recipe)
    assert (q.codes.shape, q.scale.shape, dequantize(q).shape) == ((3, 0), scale_shape, (3, 0))
    if recipe in ("tensorwise", "rowwise"):
        assert np.unique(q.inv_scale.view(np.float32)).tolist() == [np.float32(448) / np.float32(1e-12)]


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_an_operand_without_rows_is_empty(recipe):
    q = quantize(np.zeros((0, 64), np.uint16), "bfloat16", recipe)
    assert q.codes.shape == (0, 64)
    assert dequantize(q).shape == (0, 64)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_zeros_stay_zero_and_keep_their_sign(recipe):
    codes = np.where(np.arange(64) % 2 == 0, 0x0000, 0x8000).astype(np.uint16)[None].repeat(2, 0)
    values = dequantize(quantize(codes, "bfloat16", recipe))
    assert (values == 0).all()
    if RECIPES[recipe].element != "int8" and not RECIPES[recipe].hadamard:
        assert np.array_equal(np.signbit(values), codes == 0x8000)


def test_the_scale_of_an_all_zero_block():
    codes = np.zeros((1, 32), np.uint16)
    assert quantize(codes, "bfloat16", "mxfp8").scale.tolist() == [[0]]
    assert quantize(codes, "bfloat16", "block1x128").inv_scale.view(np.float32).tolist() == [[4480000.0]]
    assert quantize(codes, "bfloat16", "rowwise_direct").scale.view(np.float32).tolist() == [np.float32(1e-12)]
    q = quantize(codes, "bfloat16", "nvfp4")
    assert (q.scale.tolist(), q.global_scale.view(np.float32)) == ([[0, 0]], 1.0)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_all_negative_data_mirror_all_positive_data(recipe):
    codes = operand("bfloat16", (5, 208), seed=6) & np.uint16(0x7FFF)
    plus, minus = quantize(codes, "bfloat16", recipe), quantize(codes | np.uint16(0x8000), "bfloat16", recipe)
    assert np.array_equal(plus.scale, minus.scale)
    assert np.array_equal(dequantize(plus), -dequantize(minus))


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "unit"])
@pytest.mark.parametrize("code", [0x7FC0, 0xFF81, 0x7F80, 0xFF80])
def test_a_block_with_nan_or_inf_is_nan_as_a_whole_and_spoils_no_other(recipe, code):
    r = RECIPES[recipe]
    codes = bf16(np.ones((256, 256)))
    codes[130, 140] = code
    q = quantize(codes, "bfloat16", recipe)
    nan = np.zeros((256, 256), bool)
    rows, columns = (256 if n == 0 else n for n in r.block)
    if r.rule == "nvfp4" or r.block == (0, 0):
        nan[:] = True  # the global scale is the tensor's
    else:
        if r.block[0]:
            first = 130 // rows * rows
            rows = slice(first, first + rows)
        columns = slice(140 // columns * columns, (140 // columns + 1) * columns)
        nan[rows, columns] = True
    assert np.array_equal(np.isnan(dequantize(q)), nan)


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp8_rceil", "mxfp8_even", "mxfp8_ceil", "mxfp4"])
def test_subnormal_data_use_the_smallest_scale_exactly(recipe):
    codes = np.arange(64, dtype=np.uint32)[None] * np.uint32(0x1FFFF)  # float32 subnormals
    q = quantize(codes, "float32", recipe)
    assert q.scale.tolist() == [[0, 0]]
    values = decode(codes, "float32") * 2.0**127
    expected = encode(values, q.format, overflow="saturate")
    assert np.array_equal(q.codes, expected)


def test_tiny_data_lie_under_the_block_floor():
    codes = bf16(np.full((1, 128), 1e-12))
    assert (dequantize(quantize(codes, "bfloat16", "block1x128")) == 0).all()
    assert dequantize(quantize(codes, "bfloat16", "rowwise")) == pytest.approx(1e-12, rel=0.04)


@pytest.mark.parametrize("source", ["bfloat16", "float32"])
def test_nvfp4_elements_round_the_rational_quotient_once(source):
    codes = operand(source, (4, 64), seed=7)
    q = quantize(codes, source, "nvfp4")
    g = Fraction(float(decode(q.global_scale, "float32")))
    middles = [Fraction(m) for m in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)]
    scale = decode(q.scale, "float8_ue4m3")
    for index, value in np.ndenumerate(decode(codes, source)):
        s = Fraction(float(scale[index[0], index[1] // 16])) * g
        x = abs(Fraction(float(value)))
        magnitude = sum(x > m * s or (x == m * s and i % 2 == 1) for i, m in enumerate(middles)) if s else 0
        assert q.codes[index] == magnitude | (8 if np.signbit(value) else 0)


def test_nvfp4_midpoints_go_to_the_even_code():
    midpoints = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    q = quantize(bf16([[6.0, *midpoints, *(-m for m in midpoints), 0.0]]), "bfloat16", "nvfp4", global_scale=1.0)
    assert (q.scale.tolist(), q.codes[0].tolist()) == ([[0x38]], [7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 10, 12, 12, 14, 14, 0])


def test_nvfp4_takes_a_global_scale():
    codes = bf16(np.full((1, 16), 12.0))
    q = quantize(codes, "bfloat16", "nvfp4", global_scale=0.5)
    assert (q.scale.tolist(), q.codes[0, 0], float(q.global_scale.view(np.float32))) == ([[0x48]], 7, 0.5)  # 12 = 6 · 4 · 0.5


@pytest.mark.parametrize("recipe", ["rowwise", "int8_rowwise", "mxfp4_even", "nvfp4", "block128x128"])
def test_dequantised_values_are_exact_products(recipe):
    q = quantize(operand("bfloat16", (40, 160), seed=8), "bfloat16", recipe)
    values, element = dequantize(q), decode(q.codes, q.format)
    scale = decode(q.scale, q.scale_format).reshape(q.grid)
    g = Fraction(1) if q.global_scale is None else Fraction(float(decode(q.global_scale, "float32")))
    for i, j in np.ndindex(8, 160):
        s = scale[tuple(k // b if b else 0 for k, b in zip((i * 5, j), q.blocks, strict=True))]
        assert Fraction(values[i * 5, j]) == Fraction(element[i * 5, j]) * Fraction(float(s)) * g


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "mxfp8", "mxfp8_2d", "nvfp4"])
def test_a_part_of_the_first_axis_dequantises_to_that_part(recipe, axis):
    q = quantize(operand("bfloat16", (40, 35 * 3)).reshape(40, 35, 3), "bfloat16", recipe, axis=axis)
    assert np.array_equal(dequantize(q, rows=(5, 36)), dequantize(q)[5:36])


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "block128x128", "mxfp4", "nvfp4"])
def test_the_bits_do_not_depend_on_the_number_of_threads(recipe):
    codes = operand("bfloat16", (700, 640), seed=3)  # several panels
    one, many = (quantize(codes, "bfloat16", recipe, threads=n) for n in (1, 5))
    assert np.array_equal(one.codes, many.codes)
    assert np.array_equal(one.scale, many.scale)
    assert_equals_plain(one, plain(codes, "bfloat16", recipe))


def test_inputs_are_not_modified_and_views_are_taken():
    codes = operand("bfloat16", (64, 128))
    before = codes.copy()
    q = quantize(codes[3:40, 5:101], "bfloat16", "mxfp8")
    assert np.array_equal(codes, before)
    assert np.array_equal(q.codes, quantize(np.ascontiguousarray(codes[3:40, 5:101]), "bfloat16", "mxfp8").codes)


def test_hadamard_is_the_sylvester_matrix_by_a_quarter_on_small_integers():
    sylvester = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(16)] for i in range(16)])
    x = np.random.default_rng(0).integers(-64, 65, (3, 48)).astype(np.float64)
    expected = (x.reshape(3, 3, 16) @ sylvester * 0.25).reshape(3, 48)
    assert np.array_equal(decode(hadamard16(bf16(x), "bfloat16"), "float32"), expected)
    assert np.array_equal(decode(hadamard16(bf16(x.T), "bfloat16", axis=0), "float32"), expected.T)


def test_hadamard_twice_is_the_identity_on_small_integers():
    x = np.random.default_rng(1).integers(-64, 65, (2, 32)).astype(np.float32)
    assert np.array_equal(hadamard16(hadamard16(x.view(np.uint32), "float32"), "float32").view(np.float32), x)


def test_hadamard_refuses_a_ragged_axis():
    with pytest.raises(UsageError, match="length 24 along axis -1 is not a multiple of 16"):
        hadamard16(np.zeros((2, 24), np.uint16), "bfloat16")


@pytest.mark.parametrize(
    ("codes", "fmt", "recipe", "options", "message"),
    [
        (np.zeros((2, 2), np.uint8), "float8_e4m3fn", "mxfp8", {}, "operands are codes of float32, bfloat16, float16, found float8_e4m3fn"),
        (np.zeros((2, 2)), "float32", "mxfp8", {}, "codes of float32 are uint32, found dtype float64"),
        (SMALL, "bfloat16", "mxfp8", {"axis": 2}, r"no axis 2 in an operand of shape \(2, 2\)"),
        (np.zeros((), np.uint16), "bfloat16", "mxfp8", {}, r"no axis -1 in an operand of shape \(\)"),
        (SMALL, "bfloat16", "mxfp8", {"element": "int8"}, "recipe mxfp8 cannot carry int8; allowed families: fp8_e4m3, "),
        (SMALL, "bfloat16", "nvfp4", {"element": "fp8_e4m3"}, "recipe nvfp4 cannot carry float8_e4m3fn"),
        (SMALL, "bfloat16", "mxfp8", {"global_scale": 1.0}, "recipe mxfp8 has no global scale"),
        (SMALL, "bfloat16", "rowwise", {"element": "float16"}, "recipe rowwise cannot carry float16"),
    ],
)
def test_what_cannot_be_quantised_is_refused(codes, fmt, recipe, options, message):
    with pytest.raises(UsageError, match=message):
        quantize(codes, fmt, recipe, **options)


def test_importing_the_package_does_not_load_numba():
    code = "import sys, accuracy_eval.quantize; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_kernels_give_the_same_bits_uncompiled():
    code = (
        "import hashlib, numpy as np\n"
        "from accuracy_eval.quantize import RECIPES, quantize\n"
        "x = np.random.default_rng(0).integers(0, 1 << 16, (3, 64)).astype(np.uint16)\n"
        "for name in RECIPES:\n"
        "    q = quantize(x, 'bfloat16', name, threads=1); y = quantize(x & np.uint16(0xBFFF), 'bfloat16', name, threads=2)\n"
        "    print(name, *(hashlib.sha256(a.tobytes()).hexdigest() for z in (q, y) for a in (z.codes, z.scale)))\n"
    )
    assert printed_either_way(code).count("\n") == len(RECIPES)


def test_element_formats_follow_family_and_encoding():
    assert element_format("mxfp8").name == "float8_e4m3fn"
    assert element_format("mxfp8", encoding="fnuz").name == "float8_e4m3fnuz"
    assert element_format("mxfp4", encoding="fnuz").name == "float4_e2m1fn"
    assert element_format("mxfp6", "fp6_e3m2") is get_format("float6_e3m2fn")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float32"])
def test_numpy_gives_the_bits_of_the_compiled_loops(recipe, fmt):
    rng = np.random.default_rng(5)
    bits = 32 if fmt == "float32" else 16
    every = rng.permutation(1 << 16).astype(np.uint32) << (bits - 16)  # with NaN, infinities and subnormals of either sign
    tame = encode(rng.standard_normal((96, 176)) * 10.0 ** rng.integers(-6, 3, (96, 1)), fmt)
    for x in (every.astype(f"u{bits // 8}").reshape(256, 256), tame, tame[:1], tame[:0]):
        for element in RECIPES[recipe].elements or ("fp8_e4m3", "fp8_e5m2"):
            for encoding in ("ocp", "fnuz"):
                a, b = (quantize(x, fmt, recipe, element=element, encoding=encoding, compiled=c) for c in (True, False))
                assert (a.codes == b.codes).all()
                assert (a.scale == b.scale).all()
                assert a.global_scale == b.global_scale
                values = [dequantize(a, compiled=c) for c in (True, False)]
                np.testing.assert_array_equal(*values)
