"""Coded products: every scale that is read at the wrong place is named, for every recipe and layout, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from accuracy_eval.cases import make_case
from accuracy_eval.diagnose import diagnose, origins
from accuracy_eval.formats import decode
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.quantize import RECIPES
from tests.support_coded_faults import coded_product, product_context, swizzled

SHAPES = ((96, 64, 512), (160, 192, 1024), (256, 128, 640))
BLOCKED = [("fp8_e4m3", "block1x128"), ("fp8_e5m2", "mxfp8"), ("fp4_e2m1", "mxfp4_rceil"), ("fp4_e2m1", "nvfp4"), ("fp8_e4m3", "mxfp8_2d")]
CODED = [r for r in RECIPES if not RECIPES[r].hadamard and RECIPES[r].rule != "unit"]


def scale_codes(found):
    return {d.code for d in found if d.code.startswith("scale-")}


def scale_index(found):
    (d,) = [d for d in found if d.code == "scale-index"]
    return d


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("recipe", CODED)
def test_nothing_is_said_about_a_right_result(recipe, layout):
    p = coded_product(SHAPES[0], RECIPES[recipe].element, recipe, layout)
    assert p.diagnosed(p.result()) == []


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("recipe", CODED)
@pytest.mark.parametrize("operand", ["a", "b"])
def test_a_block_that_meets_its_neighbours_scale_is_named_in_every_recipe_and_layout(recipe, layout, operand):
    p = coded_product(SHAPES[0], RECIPES[recipe].element, recipe, layout)
    grid = getattr(p, operand).grid
    if grid.size == 1:
        return  # one scale has no neighbour
    moved = np.roll(grid, -1, axis=1 if grid.shape[1] > 1 else 0)
    found = scale_index(p.diagnosed(p.result(**{operand: moved})))
    assert found.evidence["blocks"] == (moved != grid).sum()
    assert f"scales of operand {operand} were read at the wrong place" in found.sentence


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("fmt", "recipe"), BLOCKED)
@pytest.mark.parametrize("fault", ["first", "next", "row", "transposed", "columnwise"])
def test_every_misreading_of_a_grid_is_named(fmt, recipe, shape, fault):
    p = coded_product(shape, fmt, recipe)
    grid = p.a.grid
    moved = {
        "first": lambda: np.repeat(grid[:, :1], grid.shape[1], axis=1),
        "next": lambda: np.concatenate([grid[:, 1:], grid[:, -1:]], axis=1),
        "row": lambda: np.roll(grid, 1, axis=0),
        "transposed": lambda: grid.T.reshape(grid.shape),
        "columnwise": lambda: grid.reshape(-1).reshape(grid.shape[::-1]).T,
    }[fault]()
    words = {"first": "first block along k", "next": "next block along k", "row": "row of scales before", "transposed": "read transposed",
             "columnwise": "stored column by column"}  # fmt: skip
    if np.array_equal(moved, grid):
        assert p.diagnosed(p.result(a=moved)) == []
        return
    found = scale_index(p.diagnosed(p.result(a=moved)))
    assert found.evidence == {"blocks": int((moved != grid).sum())}
    assert words[fault] in found.sentence


@pytest.mark.parametrize(("fmt", "recipe"), [("fp8_e4m3", "mxfp8"), ("fp4_e2m1", "nvfp4"), ("fp4_e2m1", "mxfp4")])
@pytest.mark.parametrize("shape", [(128, 64, 512), (256, 32, 1024), (128, 16, 2048)], ids=str)
def test_scales_in_tiles_read_as_plain_rows_are_named_with_the_block_that_was_met(fmt, recipe, shape):
    p = coded_product(shape, fmt, recipe)
    moved = swizzled(p.a.grid)
    found = scale_index(p.diagnosed(p.result(a=moved)))
    assert "scales stored in 32_4_4 tiles were read as plain rows" in found.sentence
    # in a tile row 0 is followed by row 32: the scale that lies fifth belongs to block [32, 0]
    assert "met the scale of block [32, 0]" in found.sentence or (p.a.grid[0, 4] == p.a.grid[32, 0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("fmt", "recipe"), [*BLOCKED, ("fp8_e4m3", "rowwise"), ("int8", "int8_rowwise"), ("fp8_e4m3", "tensorwise")])
@pytest.mark.parametrize("operands", ["a", "b", "a, b"])
def test_scales_that_were_not_applied_are_named(fmt, recipe, shape, operands):
    p = coded_product(shape, fmt, recipe)
    grids = {n: getattr(p, n).grid for n in operands.split(", ")}
    scaled = [n for n, grid in grids.items() if (grid != 1).any()]
    found = p.diagnosed(p.result(**{n: np.ones_like(grid) for n, grid in grids.items()}))
    if not scaled:
        assert found == []
    elif len(scaled) == 1 and grids[scaled[0]].shape[1] > 1 and (grids[scaled[0]][:, :1] == 1).all():
        assert scale_codes(found) == set()  # the same as the first block along k for all of k: neither is said
    else:
        assert {d.code: d.evidence["operand"] for d in found if d.code in scale_codes(found)} == {"scale-ignored": ", ".join(scaled)}


@pytest.mark.parametrize("size", [96, 128, 160])
@pytest.mark.parametrize(("fmt", "recipe"), [("fp8_e4m3", "mxfp8"), ("fp4_e2m1", "mxfp4"), ("fp4_e2m1", "nvfp4")])
def test_exchanged_scales_are_named(fmt, recipe, size):
    p = coded_product((size, size, 512), fmt, recipe)
    assert scale_codes(p.diagnosed(p.result(a=p.b.grid, b=p.a.grid))) == {"scale-swapped"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("fmt", "recipe"), BLOCKED[:4])
def test_one_block_that_met_anothers_scale_is_located(fmt, recipe, shape):
    p = coded_product(shape, fmt, recipe)
    moved = p.a.grid.copy()
    k = int(np.flatnonzero(p.a.codes[7])[0]) // p.a.block[1]  # the block of row 7 that its one element lies in
    other = next(j for j in range(moved.shape[1]) if moved[7, j] != moved[7, k])
    moved[7, k] = moved[7, other]
    found = scale_index(p.diagnosed(p.result(a=moved)))
    assert found.evidence == {"blocks": 1}
    assert f"block [7, {k}] met the scale of block [" in found.sentence


@pytest.mark.parametrize(("fmt", "recipe"), BLOCKED)
def test_elements_that_moved_are_no_scale_fault(fmt, recipe):
    p = coded_product(SHAPES[0], fmt, recipe)
    d = p.result()
    assert scale_codes(p.diagnosed(np.roll(d, 1, axis=1))) == set()


@pytest.mark.parametrize(("fmt", "recipe"), BLOCKED)
def test_a_single_doubled_element_is_no_scale_fault(fmt, recipe):
    p = coded_product(SHAPES[0], fmt, recipe)
    d = p.result()
    d[3, 5] *= 2
    assert scale_codes(p.diagnosed(d)) == set()


# elements that moved


def moved_codes(p, move):
    """The result where B's elements, each under its own scale, lie elsewhere: `move` of B [n, k]."""
    return p.a.under(p.a.grid) @ move(p.b.under(p.b.grid)).T


def pairs_swapped(b):
    return b.reshape(len(b), -1, 2)[:, :, ::-1].reshape(b.shape)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize(("fmt", "recipe"), [*BLOCKED, ("fp8_e4m3", "rowwise"), ("int8", "int8_rowwise")])
@pytest.mark.parametrize(("move", "said"), [
    (pairs_swapped, ("column +0, k +1", "column +0, k -1")),
    (lambda b: np.roll(b, -1, axis=0), ("column +1, k +0",)),
    (lambda b: np.roll(b, 3, axis=1), ("column +0, k -3",)),
], ids=["nibbles", "next column", "three k before"])  # fmt: skip
def test_the_origin_of_moved_elements_is_said(fmt, recipe, layout, move, said):
    p = coded_product(SHAPES[0], fmt, recipe, layout)
    text = origins(p.context(moved_codes(p, move)))
    assert any(words in text for words in said), text
    assert text.startswith("D[")


def test_a_right_result_and_a_result_of_sums_have_no_origin():
    p = coded_product(SHAPES[0], "fp8_e4m3", "mxfp8")
    assert origins(p.context(p.result())) == ""
    assert origins(p.context(p.result() * 1.3)) == ""


def lost_sentences(rows, lost):
    """What is said of a coded product of this many rows and K = 96 to which these k, chosen from those its rows select, never came."""
    case = make_case("gemm", (("m", rows), ("n", 32), ("k", 96)), layout="nt", format="bfloat16", lane="coded")
    inputs = stored_inputs(get_op("gemm"), case, "ocp", operand_codes(get_op("gemm"), case, "ocp"))
    a = decode(inputs["a"].codes, "bfloat16")
    seen = sorted(a.argmax(axis=1).tolist())
    a[:, list(lost(seen))] = 0.0
    found = diagnose(product_context(case, inputs, a @ decode(inputs["b"].codes, "bfloat16").T))
    return seen, [d.sentence for d in found if d.code in ("k-tail-missing", "lost-k")]


def test_a_lost_end_of_k_begins_where_the_rows_show():
    assert lost_sentences(96, lambda seen: range(93, 96)) == ([*range(96)], ["products from k = 93 of 96 on are missing"])


def test_of_k_that_no_row_selects_nothing_is_claimed():
    seen, said = lost_sentences(20, lambda seen: range(seen[-3], 96))
    assert seen[-4] + 1 < seen[-3]
    assert said == [f"products from k = {seen[-4] + 1} … {seen[-3]} of 96 on are missing"]


def test_one_lost_k_between_neighbours_that_no_row_selects_is_said_to_be_so():
    seen, said = lost_sentences(20, lambda seen: [seen[7]])
    assert seen[6] + 1 < seen[7]
    assert said == [f"the products of k = {seen[7]} (and maybe of its neighbours, which no row shows) of 96 are missing"]


def test_a_wrong_element_by_itself_is_called_one():
    case = make_case("gemm", (("m", 96), ("n", 32), ("k", 96)), layout="nt", format="bfloat16", lane="coded")
    inputs = stored_inputs(get_op("gemm"), case, "ocp", operand_codes(get_op("gemm"), case, "ocp"))
    a, b = (decode(inputs[n].codes, "bfloat16") for n in "ab")
    values = a @ b.T
    values[3, 2] *= 3
    (found,) = [d.sentence for d in diagnose(product_context(case, inputs, values)) if d.code == "block"]
    assert found.startswith("only the element [3, 2] is wrong")
