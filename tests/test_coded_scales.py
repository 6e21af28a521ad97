"""The coded lane with scales: every block a power of two of its own, padded and swizzled storage read back by the documented formula."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from test_gemm_recipes import SHAPE, case_of, dequantised, inputs_of, values

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.quantised import GEMM_RECIPES, coded_companion
from accuracy_eval.ops.registry import OPS
from accuracy_eval.quantize import RECIPES, get_recipe, pad_scales, swizzle_scales

GEMM = OPS["gemm"]
SCALED = [r for r in GEMM_RECIPES if r != "unit"]
LARGE = (("m", 160), ("n", 144), ("k", 256))  # two row tiles and several column tiles of 128×4 scales


def expected_of(case):
    reference = GEMM.reference(case, inputs_of(case), "ocp", GEMM.contract(case))["d"]
    codes = np.concatenate([p.values for p in reference.panels()])
    return codes.view(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize("recipe", SCALED)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_the_coded_result_is_the_exact_product_of_codes_and_scales_in_every_layout(recipe, layout):
    case, row = case_of(recipe, lane="coded", layout=layout), get_recipe(recipe)
    weights = RECIPES[row.weights] if row.weights else row
    inputs = dict(inputs_of(case))
    for name, turned in (("a", layout[0] == "t"), ("b", layout[1] == "n")):
        if turned:
            for part in (name, f"{name}_scale"):
                inputs[part] = type(inputs[part])(np.ascontiguousarray(inputs[part].codes.T), inputs[part].format)
    a, b = dequantised(inputs, "a", row.block), dequantised(inputs, "b", weights.block)
    assert (np.count_nonzero(a, axis=1) == 1).all()
    assert (a @ b.T == expected_of(case)).all()
    assert (values(inputs["a_source"]) == a).all()
    assert (values(inputs["b_source"]) == b).all()


@pytest.mark.parametrize("recipe", SCALED)
def test_neighbouring_blocks_differ_and_all_do_where_the_exponents_reach(recipe):
    made = coded_companion(case_of(recipe, lane="coded"), "ocp")
    for side in (made.a, made.b):
        grid = side.exponents
        assert (np.diff(grid, axis=0) != 0).all()
        assert (np.diff(grid, axis=1) != 0).all()
        assert len(np.unique(grid)) == min(grid.size, side.capacity)
    pairs = {int(x + y) for x, y in itertools.product(np.unique(made.a.exponents), np.unique(made.b.exponents))}
    assert len(pairs) == len(np.unique(made.a.exponents)) * len(np.unique(made.b.exponents))


def read(flat, row, column, columns):
    """The code of scale [row, column] in 128×4 tiles: row r and column c of a tile lie at (r mod 32)·16 + (r div 32)·4 + c."""
    tile = (row // 128) * -(-columns // 4) + column // 4
    return flat[tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4]


def product_with(case, scale_of):
    """D when the scale of every element is looked up by `scale_of(name, codes, row, block column)`."""
    inputs, block = inputs_of(case), get_recipe(case.recipe).block
    found = {}
    for name in "ab":
        codes, scale = inputs[name], inputs[f"{name}_scale"]
        grid = np.array([[scale_of(scale.codes, r, c) for c in range(-(-case.dims["k"] // block[1]))] for r in range(codes.shape[0])])
        factor = decode(grid.astype(np.uint8), scale.format)
        found[name] = values(codes) * np.repeat(factor, block[1], axis=1)[:, : case.dims["k"]]
    return found["a"] @ found["b"].T


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp6", "mxfp4", "nvfp4"])
def test_swizzled_scales_read_by_the_documented_formula_give_the_coded_result_and_unswizzled_ones_do_not(recipe):
    case = case_of(recipe, lane="coded", shape=LARGE)
    expected = expected_of(case)
    right = product_with(case, lambda s, r, c: read(swizzle_scales(s), r, c, s.shape[1]))
    assert (right == expected).all()
    plain = product_with(case, lambda s, r, c: read(pad_scales(s, 128, 4).reshape(-1), r, c, s.shape[1]))
    # 15 pairs of e4m3 powers of two repeat, and some misread scales are right by chance
    assert np.mean(plain != expected) > (0.2 if recipe == "nvfp4" else 0.9)


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4", "nvfp4"])
def test_padded_row_major_scales_read_by_row_and_column_give_the_coded_result(recipe):
    case = case_of(recipe, lane="coded", shape=(("m", 48), ("n", 32), ("k", 144)))
    padding = get_recipe(recipe).scale_padding
    right = product_with(case, lambda s, r, c: pad_scales(s, *padding)[r, c])
    assert (right == expected_of(case)).all()
    flat = product_with(case, lambda s, r, c: s.reshape(-1)[(r * pad_scales(s, *padding).shape[1] + c) % s.size])
    assert np.mean(flat != expected_of(case)) > 0.2


def test_blocks_swapped_between_factors_or_neighbours_change_the_exponent_by_what_names_them():
    case = case_of("block1x128", lane="coded", shape=(("m", 16), ("n", 256), ("k", 256)))
    made = coded_companion(case, "ocp")
    expected = made.d()
    other = np.log2(np.abs(expected / decode(made.b.codes, made.b.format).T[made.sigma]))
    rows, k = np.arange(16), made.sigma
    named = made.a.exponents[rows, k // 128][:, None] + made.b.exponents[np.arange(256)[None, :] // 128, k[:, None] // 128]
    assert (other == named).all()


def test_the_operands_of_a_coded_case_are_the_same_for_both_encodings():
    case = case_of("mxfp8", lane="coded", options={"source": "float16"}, out_format="fp8_e4m3")
    codes = operand_codes(GEMM, case, "ocp"), operand_codes(GEMM, case, "fnuz")
    assert all((codes[0][n] == codes[1][n]).all() for n in "ab")
    formats = [stored_inputs(GEMM, case, e, c)["b"].format for e, c in zip(("ocp", "fnuz"), codes, strict=True)]
    assert formats == ["float8_e4m3fn", "float8_e4m3fnuz"]


@pytest.mark.parametrize(
    ("recipe", "more", "message"), [("unit", {}, "has no scales whose place"), ("rowwise", {"direction": "bwd"}, "forward only")]
)
def test_coded_cases_without_scales_or_backward_are_refused(recipe, more, message):
    with pytest.raises(UsageError, match=message):
        case_of(recipe, lane="coded", shape=SHAPE, **more)
