"""A sketch says how large errors are, where they are and for which inputs: expectations counted by hand."""

import math

import numpy as np
import pytest

from accuracy_eval.formats import encode
from accuracy_eval.metrics import measure
from accuracy_eval.records import Coded, InputBin
from accuracy_eval.sketch import sketch_of


def sketched(actual, expected, **more):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    codes = encode(actual, "float32")
    m = measure(Coded(codes, "float32"), expected)
    rows = codes.reshape(1, -1) if codes.ndim == 1 else codes
    return sketch_of(m, actual=rows, expected=expected.reshape(rows.shape), **more)


def test_a_small_tensor_has_a_cell_per_element():
    s = sketched([[1.0, 2.5], [4.0, 8.0]], [[1.0, 2.0], [4.0, 8.0]])
    assert s.cell == (1, 1)
    assert s.error_map == ((0.0, 0.25), (0.0, 0.0))


def test_a_cell_is_the_norm_of_its_error_over_the_norm_of_its_expected_values():
    actual, expected = np.ones((64, 32)), np.ones((64, 32))
    actual[2, 5], actual[3, 5] = 4.0, 5.0  # both in rows 2–3, column 5: √(9 + 16)/√2
    s = sketched(actual, expected)
    assert s.cell == (2, 1)
    assert len(s.error_map) == 32
    assert s.error_map[1][5] == 3.54
    assert sum(v != 0 for row in s.error_map for v in row) == 1


def test_what_passed_gets_a_coarser_map():
    actual = np.ones((64, 64))
    actual[0, 0] = 1.5
    s = sketched(actual, np.ones((64, 64)), finding=False)
    assert s.cell == (8, 8)
    assert (len(s.error_map), len(s.error_map[0])) == (8, 8)
    assert s.error_map[0][0] == 0.0625  # 0.5/√64


def test_a_value_that_is_not_finite_is_an_infinite_error_unless_it_was_expected():
    s = sketched([[math.nan, math.inf, math.nan, -math.inf]], [[1.0, math.inf, math.nan, math.inf]])
    assert s.error_map == ((math.inf, 0.0, 0.0, math.inf),)


def test_an_error_where_zero_was_expected_is_infinite():
    assert sketched([[1e-30, 1.0]], [[0.0, 1.0]]).error_map == ((math.inf, 0.0),)


@pytest.mark.parametrize("scale", [2.0**-120, 2.0**120])
def test_the_map_does_not_depend_on_the_scale_of_the_values(scale):
    assert sketched([[3 * scale, scale]], [[2 * scale, scale]]).error_map == ((0.5, 0.0),)


def test_equal_tensors_have_nothing_to_draw():
    s = sketched([[1.0, 2.0]], [[1.0, 2.0]])
    assert s.error_map == ()
    assert s.ulp_histogram == ((0.0, 2),)


def test_large_tensors_are_drawn_from_their_tiles():
    actual, expected = np.ones((256, 512)), np.ones((256, 512))
    actual[200, 300] = 1 + 128.0  # one element of the 128 × 128 tile (1, 2): 128/√16384
    s = sketch_of(measure(Coded(encode(actual, "float32"), "float32"), expected))
    assert s.cell == (128, 128)
    assert s.error_map == ((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0))


def test_errors_by_input_are_the_largest_of_each_octave_and_sign():
    x = np.array([-3.0, -2.0, -0.75, 0.0, 0.5, 0.9, 1.0, math.inf])
    expected = np.ones(8)
    step = 2.0**-23
    actual = expected + step * np.array([1, 2, 0, 9, 3, 4, 0, 9])
    budget = step * np.array([1.5, 1.0, 0.5, 0, 2.5, 3.5, 0.5, 0])
    s = sketched(actual, expected, budget=budget.reshape(1, -1), inputs={"x": Coded(encode(x, "float32"), "float32")})
    assert s.by_input == (
        InputBin(-4.0, -2.0, 2.0, 1.5),
        InputBin(-1.0, -0.5, 0.0, 1.0),
        InputBin(0.5, 1.0, 4.0, 3.0),
        InputBin(1.0, 2.0, 0.0, 1.0),
    )


def test_an_empty_tensor_has_an_empty_sketch():
    empty = np.zeros((0, 4))
    s = sketch_of(measure(Coded(encode(empty, "float32"), "float32"), empty), actual=encode(empty, "float32"), expected=empty)
    assert (s.ulp_histogram, s.error_map) == ((), ())
