"""Metrics on small arrays with answers worked out by hand, and their corner cases."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support_jit import printed_either_way

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FORMATS, encode
from accuracy_eval.metrics import METRICS, Meter, measure
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.records import Coded

NUMPY_OF = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "uint8": np.uint8, "int8": np.int8, "int32": np.int32}


COUNTS = (
    "count finite_pairs mismatch_count value_mismatch_count flips_up flips_down zero_sign_mismatch nonfinite_mismatch "
    "nonzero_where_expected_zero"
)


def coded(x: Any, name: str = "float32") -> Coded:
    dtype = NUMPY_OF.get(name) or getattr(ml_dtypes, name)
    return Coded(np.asarray(x).astype(dtype).view(FORMATS[name].storage), name)


def of(actual: Any, expected: Any, name: str = "float32", **more: Any) -> Measured:
    return measure(coded(actual, name), coded(expected, name), **more)


def test_a_gain_is_invisible_to_cosine_and_visible_to_everything_else() -> None:
    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    m = of(a * np.float32(0.05), a).metrics
    assert m["cosine"] == pytest.approx(1.0, abs=1e-12)
    assert m["cosine"] <= 1.0
    assert m["rel_fro"] == pytest.approx(0.95, rel=1e-6)
    assert m["snr_db"] == pytest.approx(-20 * math.log10(0.95), rel=1e-6)
    assert m["gain"] == pytest.approx(float(np.float32(0.05)), rel=1e-8)
    assert m["gain_se"] < 1e-9


def test_zero_rows_are_found_by_the_row_map() -> None:
    a = np.random.default_rng(1).standard_normal((100, 64)).astype(np.float32)
    b = a.copy()
    b[:17] = 0
    m = of(b, a)
    assert m.metrics["cosine"] == pytest.approx(0.9116, rel=1e-3)
    assert m.rows is not None
    np.testing.assert_array_equal(m.rows.nsr, [1.0] * 17 + [0.0] * 83)
    assert (m.metrics["worst_row"], m.metrics["worst_row_nsr"]) == (0, 1.0)
    assert m.rows is not None
    np.testing.assert_array_equal(m.rows.mismatches, [64] * 17 + [0] * 83)


def test_a_non_zero_where_zero_is_expected_is_counted_and_not_divided_by() -> None:
    m = of([1e-30, 2.0], [0, 2.0]).metrics
    assert m["max_rel"] == 0.0
    assert m["nonzero_where_expected_zero"] == 1
    assert m["max_rel_index"] is None


def test_unsigned_differences_do_not_wrap() -> None:
    m = of([10, 10], [9, 14], "uint8").metrics
    assert (m["max_abs"], m["ulp_max"], m["max_abs_index"], m["flips_up"], m["flips_down"]) == (4, 4, 1, 1, 1)
    assert m["mse"] == 8.5


def test_ulps_are_counted_across_zero() -> None:
    m = of([-2.0, -4.0, 0.0], [2.0, 4.0, -0.0], "bfloat16")
    assert m.metrics["ulp_max"] == 33024
    assert m.metrics["ulp_max_index"] == 1
    assert m.metrics["zero_sign_mismatch"] == 1
    assert m.metrics["mismatch_count"] == 3
    assert m.worst_ulp[0].ulp == -33024


def test_float64_ulps_are_exact_beyond_53_bits() -> None:
    assert of([-1.0], [np.nextafter(1.0, 2)], "float64").metrics["ulp_max"] == 2 * 0x3FF0000000000000 + 1


def test_a_nan_is_counted_before_anything_is_measured() -> None:
    m = of([1, np.nan, 3, 4], [1, 2, 3, 4])
    assert m.metrics["max_abs"] == 0
    assert (m.metrics["nonfinite_mismatch"], m.metrics["mismatch_count"], m.metrics["finite_pairs"]) == (1, 1, 3)
    assert not m.classes.nan_sets_equal
    assert (m.classes.inf_actual_only, m.classes.inf_expected_only) == (0, 0)
    assert m.classes.first_nan_actual_only == 1


@pytest.mark.parametrize("kind", [np.nan, np.inf])
def test_the_first_element_that_only_one_side_has_as_nan_or_inf_is_told_of_either_side(kind: float) -> None:
    wrong, right = np.ones((300, 400)), np.ones((300, 400))
    wrong[200, 17] = wrong[299, 399] = kind
    name = "nan" if np.isnan(kind) else "inf"
    for m, side, other in ((of(wrong, right), "actual", "expected"), (of(right, wrong), "expected", "actual")):
        assert getattr(m.classes, f"first_{name}_{side}_only") == 200 * 400 + 17
        assert getattr(m.classes, f"first_{name}_{other}_only") is None


def test_all_zero_output_has_relative_error_one() -> None:
    m = of(np.zeros((4, 6144)), np.full((4, 6144), 1 / 393216), allclose=[(1e-2, 1e-2)])
    assert m.metrics["rel_fro"] == 1.0
    assert m.metrics["cosine"] == 0.0
    assert m.metrics["gain"] == 0.0
    assert m.metrics["allclose_violations[rtol=0.01,atol=0.01]"] == 0
    assert m.all_zero
    assert m.constant


def test_scale_codes_one_step_apart_mismatch() -> None:
    m = of(2.0 ** np.array([-1, 0, -2, 0, 0]), 2.0 ** np.array([-1, 0, -2, -1, -1]), "float8_e8m0fnu").metrics
    assert (m["mismatch_count"], m["ulp_max"], m["mismatch_fraction"]) == (2, 1, 0.4)


def test_equal_arrays_have_infinite_snr_and_a_cosine_of_exactly_one() -> None:
    m = of([0.1, 0.2, -0.3], [0.1, 0.2, -0.3]).metrics
    assert (m["rel_fro"], m["snr_db"], m["cosine"], m["sym_diff"], m["gain"], m["gain_se"]) == (0.0, math.inf, 1.0, 0.0, 1.0, 0.0)
    assert (m["max_abs"], m["max_abs_index"], m["ulp_max"], m["bias_sigma"]) == (0.0, None, 0, None)


def test_a_zero_reference_that_is_not_met_has_no_relative_metrics() -> None:
    m = of([1.0, 0.0], [0.0, 0.0]).metrics
    assert (m["rel_fro"], m["snr_db"], m["max_rel"], m["gain"], m["gain_se"]) == (None,) * 5
    assert (m["zero_reference"], m["cosine"], m["sym_diff"], m["max_abs"], m["worst_row_nsr"]) == (1, 0.0, 1.0, 1.0, math.inf)


def test_a_zero_reference_that_is_met_is_equality() -> None:
    m = of([0.0, 0.0], [0.0, 0.0]).metrics
    assert (m["rel_fro"], m["snr_db"], m["cosine"], m["zero_reference"], m["max_rel"]) == (0.0, math.inf, 1.0, 1, None)


def test_all_nan_arrays_are_equal_and_have_no_numbers() -> None:
    m = of([np.nan] * 3, [np.nan] * 3)
    assert (m.metrics["mismatch_count"], m.metrics["nonfinite_mismatch"], m.metrics["finite_pairs"]) == (0, 0, 0)
    assert (m.metrics["rel_fro"], m.metrics["max_abs"], m.metrics["cosine"], m.metrics["ulp_max"]) == (None,) * 4
    assert m.classes.nan_sets_equal
    assert m.expected_range.low is None
    assert m.max_expected is None


def test_infinities_of_one_sign_are_equal_and_of_two_signs_are_not() -> None:
    m = of([np.inf, -np.inf, np.inf, 1], [np.inf, -np.inf, -np.inf, np.inf], allclose=[(0, 0)])
    assert (m.metrics["mismatch_count"], m.metrics["nonfinite_mismatch"]) == (2, 2)
    assert (m.classes.inf_actual_only, m.classes.inf_expected_only) == (1, 2)
    assert (m.classes.first_inf_actual_only, m.classes.first_inf_expected_only) == (2, 2)
    assert m.metrics["allclose_violations[rtol=0,atol=0]"] == 2
    assert m.classes.actual.pos_inf == 2


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_empty_arrays_have_counts_only(shape: tuple[int, ...]) -> None:
    m = of(np.zeros(shape), np.zeros(shape))
    counts = {name for name, value in m.metrics.items() if value is not None}
    assert {m.metrics[name] for name in counts} == {0}
    assert counts == set(COUNTS.split())
    assert not m.constant
    assert not m.all_zero


def test_a_scalar_has_an_index_of_no_axes() -> None:
    m = of(np.float32(3), np.float32(2))
    assert m.worst[0].index == ()
    assert m.metrics["max_abs_index"] == []
    assert m.metrics["rel_fro"] == 0.5


@pytest.mark.parametrize(
    ("name", "size"), [("float32", 1e20), ("float64", 1e200), ("float64", 1e-200), ("float64", 5e-324), ("float32", 2.8e-45)]
)
def test_norms_of_any_size_neither_overflow_nor_vanish(name: str, size: float) -> None:
    e = np.full((3, 200), size)
    a = e.copy()
    a[1] *= 2
    m = of(a, e, name)
    assert m.metrics["rel_fro"] == pytest.approx(math.sqrt(1 / 3), rel=1e-15)
    assert m.metrics["cosine"] == pytest.approx(4 / math.sqrt(3 * 6), rel=1e-15)
    assert m.metrics["rmse"] == pytest.approx(float(coded(size, name).codes.view(NUMPY_OF[name])) * math.sqrt(1 / 3), rel=1e-15)
    assert m.metrics["gain"] == pytest.approx(4 / 3, rel=1e-15)
    assert m.rows is not None
    np.testing.assert_allclose(m.rows.nsr, [0, 1, 0], rtol=1e-15)
    assert of(e, e, name).metrics["cosine"] == 1.0


def test_a_difference_beyond_float64_is_infinite_and_its_ratio_is_not() -> None:
    m = of([1.5e308, 1.5e308], [-1.5e308, -1.5e308], "float64").metrics
    assert m["max_abs"] == math.inf
    assert m["rel_fro"] == 2.0
    assert m["cosine"] == -1.0
    assert m["max_rel"] == 2.0


def test_small_errors_beside_huge_equal_values_are_not_lost() -> None:
    m = of([1e200, 1.0], [1e200, 1.0 + 2**-52], "float64").metrics
    assert m["rmse"] == pytest.approx(2**-52 / math.sqrt(2), rel=1e-15)
    assert m["snr_db"] == pytest.approx(20 * (200 + 52 * math.log10(2)), rel=1e-15)


def test_a_constant_offset_has_no_spread() -> None:
    x = np.arange(-300.0, 300.0)
    m = of(x + 0.5, x, "float64").metrics
    assert m["bias_sigma"] is None
    assert m["gain"] != 1


def test_bias_sigma_is_the_mean_error_away_from_zero_in_standard_deviations() -> None:
    # d·sgn(e) = 1, 1, 1, -1: mean 1/2; d = 1, -1, 1, 1: std √3/2
    m = of([3.0, -3.0, 3.0, -1.0], [2.0, -2.0, 2.0, -2.0], "float64").metrics
    assert m["bias_sigma"] == pytest.approx(1 / math.sqrt(3), rel=1e-15)


def test_gain_and_its_standard_error_are_those_of_a_regression_through_the_origin() -> None:
    # e = 1, 2; a = 1, 3: gain 7/5, residuals -0.4, 0.2: se = √(0.2 / (1·5))
    m = of([1.0, 3.0], [1.0, 2.0]).metrics
    assert m["gain"] == pytest.approx(1.4, rel=1e-15)
    assert m["gain_se"] == pytest.approx(0.2, rel=1e-14)


def test_quantiles_are_nearest_rank() -> None:
    steps = np.arange(1000)
    m = measure(Coded((0x3F800000 + steps).astype(np.uint32), "float32"), Coded(np.full(1000, 0x3F800000, np.uint32), "float32"))
    assert (m.metrics["ulp_p50"], m.metrics["ulp_p99"], m.metrics["ulp_p999"], m.metrics["ulp_max"]) == (499, 989, 998, 999)
    assert m.metrics["ulp_mean"] == m.metrics["bias_ulp"] == 499.5
    assert m.ulp_histogram == (
        (0, 1),
        (1, 1),
        (2, 1),
        (4, 2),
        (8, 4),
        (16, 8),
        (32, 16),
        (64, 32),
        (128, 64),
        (256, 128),
        (512, 256),
        (1024, 487),
    )


def test_against_the_truth_the_ulp_error_is_real_valued_and_rounding_is_the_meters() -> None:
    # bfloat16 near 1: spacing 2^-7. 1.0 for 1 + 2^-9 is a quarter ulp off and rounded right; 1 + 2^-7 is not
    m = measure(coded([1.0, 1 + 2**-7], "bfloat16"), np.full(2, 1 + 2**-9))
    assert m.metrics["ulp_max"] == 0.75
    assert m.metrics["bias_ulp"] == 0.25
    assert m.metrics["mismatch_count"] == 1
    assert m.metrics["inner_err_max"] == 2**-8 - 2**-9
    assert m.metrics["inner_err_index"] == 1
    assert m.worst[0].expected_code == 0x3F80


def test_the_budget_is_compared_with_the_error_before_rounding() -> None:
    actual = coded([1.0, 1 + 2**-7, 1.0], "bfloat16")
    m = measure(actual, np.full(3, 1 + 2**-9), budget=np.array([0.0, 2**-10, 1.0]))
    assert m.metrics["budget_max"] == 2.0
    assert m.metrics["budget_max_index"] == 1
    assert m.metrics["over_budget"] == 1
    assert m.worst[0].budget == 2**-10


def test_an_overflow_to_inf_is_near_the_largest_value() -> None:
    # float16: max 65504, boundary 65520. Inf for 65519 is 1 off; 65504 for 65521 likewise
    m = measure(coded([np.inf, 65504.0], "float16"), np.array([65519.0, 65521.0]))
    assert m.metrics["inner_err_max"] == 1.0
    assert m.metrics["nonfinite_mismatch"] == 2
    assert (m.classes.inf_actual_only, m.classes.inf_expected_only) == (1, 1)


def test_a_saturating_format_takes_everything_beyond_its_range() -> None:
    m = measure(coded([448.0, -448.0], "float8_e4m3fn"), np.array([1e30, -np.inf]))
    assert m.metrics["mismatch_count"] == 0
    assert m.metrics["inner_err_max"] == 0


def test_nan_for_an_overflow_is_right_where_the_cast_says_so() -> None:
    actual = coded([np.nan, 448.0], "float8_e4m3fn")
    assert measure(actual, np.array([500.0, 464.0]), overflow="nan").metrics["mismatch_count"] == 0
    assert measure(actual, np.array([500.0, 464.0])).metrics["nonfinite_mismatch"] == 1
    assert measure(actual, np.array([460.0, 1.0]), overflow="nan").metrics["inner_err_max"] == 432 - 1


def test_different_formats_are_compared_by_value_in_ulps_of_the_actual() -> None:
    m = measure(coded([1 + 2**-23, 2.0]), coded([1.0, 2.0], "bfloat16"))
    assert (m.metrics["ulp_max"], m.metrics["mismatch_count"], m.metrics["inner_err_max"]) == (1.0, 1, None)


def test_one_byte_read_in_two_encodings_has_twice_the_value() -> None:
    codes = np.array([0x38, 0x40], np.uint8)
    m = measure(Coded(codes, "float8_e4m3fn"), Coded(codes, "float8_e4m3fnuz")).metrics
    assert (m["gain"], m["gain_se"], m["mismatch_count"]) == (2.0, 0.0, 2)


def test_the_class_table_counts_both_sides() -> None:
    m = of([0.0, -0.0, 1e-45, np.nan, np.inf, -np.inf, 1], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.0])
    a, e = m.classes.actual, m.classes.expected
    assert (a.zero, a.neg_zero, a.subnormal, a.nan, a.pos_inf, a.neg_inf, a.finite) == (2, 1, 1, 1, 1, 1, 4)
    assert (e.zero, e.neg_zero, e.subnormal, e.finite) == (7, 1, 0, 7)


def test_the_worst_elements_come_largest_first_with_codes_and_indices() -> None:
    e = np.zeros((2, 3, 4), np.float32)
    a = e.copy()
    a[1, 2, 3], a[0, 1, 0] = -2.0, 1.0
    m = of(a, e, top=5)
    assert [(w.index, w.error, w.actual, w.actual_code) for w in m.worst] == [
        ((1, 2, 3), 2.0, -2.0, 0xC0000000),
        ((0, 1, 0), 1.0, 1.0, 0x3F800000),
    ]
    assert m.metrics["max_abs_index"] == [1, 2, 3]


def test_of_equal_errors_the_first_is_named() -> None:
    e = np.zeros((300, 300), np.float32)
    m = of(e + 1, e, top=3)
    assert [w.index for w in m.worst] == [(0, 0), (0, 1), (0, 2)]


def test_the_tile_map_names_the_tile() -> None:
    e = np.ones((300, 400), np.float32)
    a = e.copy()
    a[130:140, 260:270] = 3
    m = of(a, e)
    assert m.tiles is not None
    assert m.tiles.error.shape == (3, 4)
    assert m.metrics["worst_tile"] == [1, 2]
    assert m.tiles.error[1, 2] == 20.0
    assert m.tiles.mismatches.sum() == m.tiles.mismatches[1, 2] == 100
    assert m.tiles.max_abs is not None
    assert m.tiles.max_abs[1, 2] == 2.0
    assert m.metrics["worst_tile_nsr"] == 20 / 128


def test_ranges_and_constancy_are_those_of_finite_values() -> None:
    m = of([2.0, 2.0, 2.0], [1.0, -5.0, np.nan])
    assert m.constant
    assert (m.actual_range.low, m.actual_range.high) == (2.0, 2.0)
    assert (m.expected_range.low, m.expected_range.high, m.max_expected) == (-5.0, 1.0, 5.0)
    assert not of([2.0, np.nan], [2.0, 2.0]).constant


def test_every_registered_metric_is_given() -> None:
    assert set(METRICS) == set(of([1.0], [1.0]).metrics)


def test_the_registry_needs_no_numba() -> None:
    script = "import sys; from accuracy_eval.metrics import METRICS; assert METRICS; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"


def test_kernels_run_without_compilation_too() -> None:
    script = (
        "import numpy as np; from accuracy_eval.metrics import measure; from accuracy_eval.records import Coded; "
        "c = np.arange(0x3F70, 0x3F70 + 260, dtype=np.uint16).reshape(2, 130); c[0, 0] = 0x7F80; "
        "m = measure(Coded(c, 'bfloat16'), np.ones((2, 130)), allclose=[(0, 1)]).metrics; "
        "n = measure(Coded(c, 'bfloat16'), Coded(c[::-1].copy(), 'bfloat16')).metrics; "
        "print(m['mismatch_count'], m['inner_err_max'], n['ulp_max'], n['mismatch_count'])"
    )
    assert printed_either_way(script)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match=r"actual has shape \(2,\), expected \(3,\)"):
        of([1, 2], [1, 2, 3])


def test_codes_of_the_wrong_width_are_refused() -> None:
    with pytest.raises(UsageError, match="actual codes have dtype uint8; codes of bfloat16 are uint16"):
        measure(Coded(np.zeros(2, np.uint8), "bfloat16"), np.zeros(2))


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_a_budget_that_is_no_limit_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="1 budgets are negative or NaN"):
        measure(coded([1.0, 2.0]), np.array([1.0, 2.0]), budget=np.array([0.0, bad]))


def test_panels_out_of_order_or_missing_are_refused() -> None:
    meter = Meter((4, 2), "float32")
    codes = np.zeros((2, 2), np.uint32)
    with pytest.raises(UsageError, match="panel begins at row 2, expected row 0"):
        meter.update(2, codes, codes)
    meter.update(0, codes, codes)
    with pytest.raises(UsageError, match="rows 2…3 of 4 were never given"):
        meter.result()
    with pytest.raises(UsageError, match="panel ends at row 5 of an array of 4 rows"):
        meter.update(2, np.zeros((3, 2), np.uint32), np.zeros((3, 2), np.uint32))


def test_inputs_are_not_modified() -> None:
    a, e = encode(np.ones((3, 3)), "float32"), np.ones((3, 3))
    measure(Coded(a, "float32"), e, budget=e)
    assert a.flags.writeable
    assert e.flags.writeable
    assert (e == 1).all()


@pytest.mark.parametrize("panel", [1, 3, 40])
def test_the_element_that_uses_most_of_its_budget_is_kept_with_its_values_however_many_errors_are_larger(panel: int) -> None:
    # bfloat16: 60 elements are 0.5 off of 2, where 1 is allowed; one is 2^-8 off of 2^-6, where 2^-12 is: 16 budgets
    rows, cols = 40, 10
    expected, budget = np.full((rows, cols), 2.0), np.ones((rows, cols))
    values = expected.copy()
    values[:6] = 2.5
    expected[29, 3], values[29, 3], budget[29, 3] = 2**-6, 2**-6 + 2**-8, 2**-12
    codes = encode(values, "bfloat16")
    meter = Meter((rows, cols), "bfloat16", expected_format="bfloat16")
    for first in range(0, rows, panel):
        end = min(first + panel, rows)
        meter.update(first, codes[first:end], encode(expected[first:end], "bfloat16"), budget[first:end])
    m = meter.result()
    assert (m.metrics["budget_max"], m.metrics["budget_max_index"]) == (16.0, [29, 3])
    assert (29, 3) not in [w.index for w in m.worst]
    found = m.element((29, 3))
    # 2^-6 is exponent 121 of bfloat16 (0x3C80); a quarter more is 32 codes on
    assert found is not None
    assert (found.actual_code, found.expected_code, found.actual, found.expected) == (0x3CA0, 0x3C80, 2**-6 + 2**-8, 2**-6)
    assert (found.error, found.ulp, found.budget) == (2**-8, 32.0, 2**-12)


def test_an_inf_beyond_every_budget_is_kept_with_its_code() -> None:
    m = measure(coded([2.5, np.inf], "bfloat16"), np.array([2.0, 1.0]), budget=np.array([1.0, 1.0]))
    found = m.element((1,))
    assert found is not None
    assert (found.actual_code, found.expected_code, found.error, found.ulp, found.budget) == (0x7F80, 0x3F80, np.inf, np.inf, 1.0)
