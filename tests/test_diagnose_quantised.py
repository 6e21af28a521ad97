"""Causes in scales and quantised products, over shapes, recipes and severities; healthy and nearly faulty data are named nothing."""

from __future__ import annotations

import numpy as np
import pytest
from support_coded_faults import coded_product
from support_quantised_faults import PARTS, data, diagnosed, encoded, maxima, product_of, scales

from accuracy_eval.diagnose import Context, diagnose, rows_of
from accuracy_eval.formats import decode, encode
from accuracy_eval.metrics import measure
from accuracy_eval.quantize import swizzle_scales
from accuracy_eval.records import Coded

SHAPES = ((64, 512), (96, 640), (160, 384))
RECIPES = ("rowwise", "rowwise_direct", "block1x128", "block1x128_ue8m0", "mxfp8", "mxfp4_even")
GRIDS = ("block1x128", "mxfp8", "mxfp4_rceil")
CAUSES = {"amax-stale", "scale-rounding-rule", "scale-index", "gain", "transposed", "scale-swapped", "scale-ignored", "fp8-encoding"}


def causes(found):
    return {d.code for d in found} & CAUSES


def values(codes):
    return decode(codes, "bfloat16")


# amax of a part


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_part_whose_amax_was_taken_is_named(shape, recipe, part):
    codes = data(shape)
    found = diagnosed(codes, scales(maxima(values(codes), recipe, PARTS[part]), recipe), recipe)
    assert causes(found) == {"amax-stale"}
    (d,) = [d for d in found if d.code == "amax-stale"]
    assert d.evidence == {"part": part}


@pytest.mark.parametrize("recipe", GRIDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("axis", "part"), [(1, "the block before along k"), (0, "the row before")])
def test_the_amax_of_the_block_before_is_named(shape, recipe, axis, part):
    codes = data(shape)
    amax = maxima(values(codes), recipe)
    found = diagnosed(codes, scales(np.roll(amax, 1, axis=axis), recipe), recipe)
    assert [d.evidence for d in found if d.code == "amax-stale"] == [{"part": part}]


@pytest.mark.parametrize("recipe", ["block128x128", "mxfp8_2d", "mxfp8_2d_even"])
@pytest.mark.parametrize("shape", [(256, 512), (384, 640), (128, 1024)], ids=str)
def test_the_amax_of_the_first_row_of_a_block_is_named(shape, recipe):
    codes = data(shape)
    found = diagnosed(codes, scales(maxima(values(codes), recipe, lambda b: np.abs(b[0]).max()), recipe), recipe)
    assert [d.evidence for d in found if d.code == "amax-stale"] == [{"part": "the first row of each block"}]


@pytest.mark.parametrize("size", [256, 1024, 8192])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensors_amax_that_stops_early_is_named_with_where_it_stops(shape, size):
    codes = data(shape)
    codes[-1, -1] = 0x4380  # 256: larger than all before
    flat = np.abs(values(codes)).reshape(-1)
    flat[size - 1] = flat.max() / 2
    codes = (flat.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(shape)
    found = diagnosed(codes, scales(flat[:size].max().reshape(1, 1), "tensorwise"), "tensorwise")
    (d,) = [d for d in found if d.code == "amax-stale"]
    assert f"the first {size} elements" in d.evidence["part"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_scales_and_scales_a_step_off_here_and_there_name_no_part(shape, recipe):
    codes = data(shape)
    made = scales(maxima(values(codes), recipe), recipe)
    assert diagnosed(codes, made, recipe) == []
    made.reshape(-1)[:: max(2, made.size // 5)] += made.dtype.type(1 if made.dtype == np.uint8 else 1 << 23)
    assert "amax-stale" not in causes(diagnosed(codes, made, recipe))


# rounding rules and layouts


@pytest.mark.parametrize(("recipe", "rule"), [
    ("mxfp8", "even"), ("mxfp8", "rceil"), ("mxfp8", "ceil"), ("mxfp8_even", "floor"), ("mxfp4_rceil", "floor"), ("mxfp4", "even"),
    ("rowwise", "amax_over_max"), ("rowwise_direct", "max_over_amax"), ("block1x128", "pow2"), ("block1x128_ue8m0", "max_over_amax"),
])  # fmt: skip
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_another_rounding_rule_is_named(shape, recipe, rule):
    codes = data(shape)
    found = diagnosed(codes, scales(maxima(values(codes), recipe), recipe, rule), recipe)
    assert causes(found) == {"scale-rounding-rule"}
    (d,) = [d for d in found if d.code == "scale-rounding-rule"]
    assert d.evidence["actual"] == rule


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4_even", "block1x128"])
@pytest.mark.parametrize(("shape", "layout"), [
    ((128, 512), "tiles"), ((256, 1024), "tiles"), ((128, 2048), "tiles"), ((64, 512), "transposed"), ((96, 640), "transposed"),
    ((160, 1152), "transposed"),
])  # fmt: skip
def test_scales_in_another_layout_are_named(shape, layout, recipe):
    codes = data(shape)
    right = scales(maxima(values(codes), recipe), recipe)
    wrong = swizzle_scales(right)[: right.size].reshape(right.shape) if layout == "tiles" else right.T.reshape(right.shape).copy()
    if layout == "tiles" and right.shape[1] % 4:
        assert "scale-index" not in causes(diagnosed(codes, wrong, recipe)) or (wrong != 0).all()
        return
    (d,) = [d for d in diagnosed(codes, wrong, recipe) if d.code == "scale-index"]
    assert ("32_4_4 tiles" if layout == "tiles" else "transposed") in d.sentence


# encodings


@pytest.mark.parametrize("operands", ["a", "b", "ab"])
@pytest.mark.parametrize("family", [("float8_e4m3fn", "float8_e4m3fnuz"), ("float8_e5m2", "float8_e5m2fnuz")], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(40, 48, 64), (64, 96, 128), (33, 65, 127)], ids=str)
def test_operands_read_in_the_other_encoding_are_named(shape, out, family, operands):
    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    ocp, fnuz = family
    sides = [encoded(rng.standard_normal((rows, k)), ocp) for rows in (m, n)]
    for side, place in zip(sides, ((3, 5), (7, 11)), strict=True):
        side[place] = 0x80  # -0 in OCP, NaN in FNUZ: what tells an encoding from a scale
    truth = product_of(tuple(sides), (ocp, ocp))
    read = product_of(tuple(sides), tuple(fnuz if name in operands else ocp for name in "ab"))
    actual = encode(read, out)
    inputs = {name: Coded(c, ocp) for name, c in zip("ab", sides, strict=True)}
    found = diagnose(Context(measure(Coded(actual, out), truth), rows_of(actual), rows_of(truth), op="gemm", layout="nt", inputs=inputs))
    (d,) = [d for d in found if d.code == "fp8-encoding"]
    assert d.evidence == {"gain": 0.25 if operands == "ab" else 0.5}
    assert "gain" not in causes(found)


@pytest.mark.parametrize(("options", "factor", "words"), [
    ({"result_scale": 0.25}, 4.0, "as if result_scale 0.25 were not applied"),
    ({"result_scale": 0.25}, 16.0, "as if result_scale 0.25 were taken as a divisor"),
    ({"result_scale": 0.3}, 1 / 0.3, "as if result_scale 0.3 were not applied"),
    ({"alpha": -3.0}, -1 / 3, "as if alpha -3 were not applied"),
    ({"alpha": -3.0, "beta": 1.0}, -1 / 3, ""),  # C is not multiplied by alpha
    ({"alpha": -3.0}, 1.5, ""),
])  # fmt: skip
def test_a_factor_that_an_option_explains_names_the_option(options, factor, words):
    rng = np.random.default_rng(3)
    truth = rng.standard_normal((40, 48))
    actual = encode(factor * truth, "float8_e4m3fn")
    m = measure(Coded(actual, "float8_e4m3fn"), truth)
    (d,) = [d for d in diagnose(Context(m, rows_of(actual), rows_of(truth), op="gemm", layout="nt", options=options)) if d.code == "gain"]
    assert ("as if" in d.sentence) == bool(words)
    assert words in d.sentence


@pytest.mark.parametrize(("factor", "words"), [
    (0.5, "an operand was read in the other fp8 encoding"), (2.0, "an operand was read in the other fp8 encoding"),
    (0.25, "both operands were read in the other fp8 encoding"), (4.0, "both operands were read in the other fp8 encoding"), (8.0, ""),
])  # fmt: skip
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
@pytest.mark.parametrize("shape", [(40, 48, 64), (64, 96, 128), (33, 65, 127)], ids=str)
def test_a_factor_of_two_per_operand_says_what_it_may_be_where_no_byte_tells(shape, fmt, factor, words):
    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    sides = [np.maximum(encoded(np.abs(rng.standard_normal((rows, k))) + 0.1, fmt), 1) for rows in (m, n)]
    truth = product_of(tuple(sides), (fmt, fmt))
    actual = encode(factor * truth, "float32")
    inputs = {name: Coded(c, fmt) for name, c in zip("ab", sides, strict=True)}
    found = diagnose(
        Context(measure(Coded(actual, "float32"), truth), rows_of(actual), rows_of(truth), op="gemm", layout="nt", inputs=inputs)
    )
    assert causes(found) == {"gain"}
    (d,) = [d for d in found if d.code == "gain"]
    assert d.evidence == {"value": pytest.approx(factor), "power_of_two": True}
    said = "as if" in d.sentence
    assert said == bool(words and fmt.startswith("float8"))
    assert not said or words in d.sentence


# products of random operands with recipes

PRODUCT_SHAPES = ((96, 64, 512), (64, 160, 640), (160, 96, 384))
PRODUCTS = (("fp8_e4m3", "block1x128"), ("fp8_e5m2", "mxfp8_even"), ("fp4_e2m1", "mxfp4"), ("fp4_e2m1", "nvfp4"), ("fp8_e4m3", "rowwise"))


@pytest.mark.parametrize("shape", PRODUCT_SHAPES, ids=str)
@pytest.mark.parametrize(("fmt", "recipe"), PRODUCTS)
def test_a_right_product_names_no_scale(shape, fmt, recipe):
    p = coded_product(shape, fmt, recipe, lane="random")
    assert causes(p.diagnosed(p.result())) == set()


@pytest.mark.parametrize("shape", PRODUCT_SHAPES, ids=str)
@pytest.mark.parametrize(("fmt", "recipe"), PRODUCTS)
@pytest.mark.parametrize("operands", ["a", "b", "a, b"])
def test_scales_a_product_ignores_are_named(shape, fmt, recipe, operands):
    p = coded_product(shape, fmt, recipe, lane="random")
    ones = {n: np.ones_like(getattr(p, n).grid) for n in operands.split(", ")}
    found = p.diagnosed(p.result(**ones))
    assert [d.evidence["operand"] for d in found if d.code == "scale-ignored"] == [operands]
    assert causes(found) <= {"scale-ignored", "gain"}


@pytest.mark.parametrize("shape", PRODUCT_SHAPES, ids=str)
@pytest.mark.parametrize(("fmt", "recipe"), PRODUCTS[:4])
@pytest.mark.parametrize("shift", [(0, 1), (0, -1), (1, 0)], ids=str)
def test_scales_of_other_blocks_are_named(shape, fmt, recipe, shift):
    p = coded_product(shape, fmt, recipe, lane="random")
    moved = np.roll(p.a.grid, shift, axis=(0, 1))
    found = p.diagnosed(p.result(a=moved))
    assert [d.evidence for d in found if d.code == "scale-index"] == [{"blocks": int((moved != p.a.grid).sum())}]
    assert causes(found) <= {"scale-index", "gain"}


@pytest.mark.parametrize("size", [64, 96, 160])
@pytest.mark.parametrize(("fmt", "recipe"), [PRODUCTS[1], PRODUCTS[2], PRODUCTS[3], PRODUCTS[4]])
@pytest.mark.parametrize("k", [256, 512, 640])
def test_scales_that_changed_sides_are_named(size, fmt, recipe, k):
    p = coded_product((size, size, k), fmt, recipe, lane="random")
    assert causes(p.diagnosed(p.result(a=p.b.grid, b=p.a.grid))) == {"scale-swapped"}


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_the_layout_of_the_operands_does_not_matter(layout):
    p = coded_product((96, 64, 512), "fp8_e4m3", "mxfp8", layout, lane="random")
    assert causes(p.diagnosed(p.result(b=np.roll(p.b.grid, 1, axis=1)))) == {"scale-index"}


@pytest.mark.parametrize(("fmt", "recipe"), PRODUCTS[:4])
def test_one_block_off_by_a_power_of_two_is_no_misplaced_scale(fmt, recipe):
    p = coded_product((96, 64, 512), fmt, recipe, lane="random")
    grid = p.a.grid.copy()
    grid[5, 1] *= 2
    assert causes(p.diagnosed(p.result(a=grid))) == set()


# rows of scales read further apart than they lie: what torch._scaled_mm did on an H200 with K/128 = 2 and 6 (docs/findings.md)


def read_as_padded(grid, behind):
    """Rows read at multiples of 4, element by element; `behind` stands where the buffer has ended."""
    rows, columns = grid.shape
    stride = {1: 4, 2: 4, 3: 4, 5: 8, 6: 8}[columns]
    flat = grid.reshape(-1)
    moved = np.full(grid.shape, behind)
    for i, j in np.ndindex(rows, columns):
        if i * stride + j < flat.size:
            moved[i, j] = flat[i * stride + j]
    return moved


PADDED = [
    ((64, 1024, 256), 4, 2, "4 of 8"),
    ((48, 1024, 768), 8, 6, "2 of 8"),
    ((64, 640, 640), 8, 5, "2 of 5"),
    ((96, 768, 384), 4, 3, "2 of 6"),
]


@pytest.mark.parametrize(("shape", "stride", "columns", "behind"), PADDED, ids=lambda x: str(x).replace(" ", ""))
@pytest.mark.parametrize("unknown", [0.0, 1.0, 1e-30, np.nan])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_scales_read_as_if_their_rows_were_padded_are_named_whatever_lies_behind_them(shape, stride, columns, behind, unknown, fmt):
    p = coded_product(shape, "fp8_e4m3", "block1x128", lane="random", out_format=fmt)
    moved = read_as_padded(p.b.grid, unknown)
    found = p.diagnosed(p.result(b=moved))
    (d,) = [d for d in found if d.code == "scale-index"]
    assert d.evidence == {"blocks": int((moved != p.b.grid).sum())}
    where = f"the wrong place ({d.evidence['blocks']} of {moved.size} blocks)"
    what = f"rows of {columns} scales were read {stride} apart, {behind} from behind the last scale"
    assert d.sentence == f"scales of operand b were read at {where}: {what}"
    assert causes(found) == {"scale-index"}
    assert {d.code for d in found} <= {"scale-index", "nan-in-actual"}


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_padding_of_the_left_operand_and_of_other_layouts_is_named_too(layout):
    p = coded_product((640, 96, 768), "fp8_e4m3", "block128x128", layout, lane="random")
    (d,) = [d for d in p.diagnosed(p.result(a=read_as_padded(p.a.grid, 3.0))) if d.code == "scale-index"]
    assert "operand a " in d.sentence
    assert "rows of 6 scales were read 8 apart, 1 of 5" in d.sentence


def test_a_fault_behind_the_last_scale_alone_is_not_said_to_be_one_of_padding():
    """Rows within the buffer are right: another fault, of which only the columns are known."""
    p = coded_product((64, 1024, 256), "fp8_e4m3", "block1x128", lane="random")
    grid = p.b.grid.copy()
    grid[4:] *= 1.7
    assert causes(p.diagnosed(p.result(b=grid))) == set()


def test_rows_read_apart_by_another_distance_are_not_said_to_be_padded():
    p = coded_product((64, 1024, 256), "fp8_e4m3", "block1x128", lane="random")
    flat = p.b.grid.reshape(-1)
    moved = np.array([[flat[(3 * i + j) % flat.size] for j in range(2)] for i in range(8)])
    assert causes(p.diagnosed(p.result(b=moved))) == set()
