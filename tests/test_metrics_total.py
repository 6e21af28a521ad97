"""Total error of quantised results: the SNR against the unquantised truth, the ideal one, and what lies between them."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from accuracy_eval.metrics.total import TotalMeter

DTYPES = {
    "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def total(actual, exact, truth, budget=None, fmt="float32", panels=1, typical=None):
    """The metrics of values given as they are, rounded to `fmt`."""
    dtype = DTYPES[fmt]
    actual, exact, truth = (np.atleast_2d(np.asarray(x, np.float64)) for x in (actual, exact, truth))
    codes = actual.astype(dtype).view(f"u{np.dtype(dtype).itemsize}")
    allowed = [None if x is None else np.broadcast_to(x, truth.shape) for x in (budget, typical)]
    meter = TotalMeter(len(truth), fmt)
    for part in np.array_split(np.arange(len(truth)), panels):
        if len(part):
            rows = slice(part[0], part[-1] + 1)
            meter.update(part[0], codes[rows], exact[rows], truth[rows], *(None if x is None else x[rows] for x in allowed))
    return meter.result()


def test_a_result_by_hand():
    # noise of the ideal result 4, of the actual one 16, signal 100
    found = total([6, 10], [8, 8], [8, 6])
    assert found["total_snr_db"] == pytest.approx(10 * math.log10(100 / 20))
    assert found["ideal_snr_db"] == pytest.approx(10 * math.log10(100 / 4))
    assert found["excess_db"] == pytest.approx(10 * math.log10(20 / 4))
    assert (found["excess_row_db"], found["excess_row"]) == (found["excess_db"], 0)


def test_the_ideal_result_has_no_excess_and_one_step_of_rounding_is_its_own():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((8, 512))
    exact = truth * (1 + 0.03 * rng.standard_normal(truth.shape))
    ideal = exact.astype(ml_dtypes.bfloat16).astype(np.float64)
    found = total(ideal, exact, truth, fmt="bfloat16")
    assert (found["excess_db"], found["excess_row_db"]) == (0.0, 0.0)
    # rounding to bfloat16 adds to the ideal's own noise: 55.6 dB beside 30.5 dB
    assert found["ideal_snr_db"] == pytest.approx(10 * math.log10(np.sum(truth**2) / np.sum((ideal - truth) ** 2)))


def test_a_scale_twice_as_large_in_one_row_of_many_is_seen_in_that_row():
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((1000, 256)) * np.exp2(-np.arange(1000) % 20)[:, None]
    exact = truth * (1 + 0.03 * rng.standard_normal(truth.shape))
    actual = exact.copy()
    actual[499] *= 2  # its values are 2^-19 of the largest
    found = total(actual, exact, truth)
    assert found["excess_db"] < 0.001
    assert found["excess_row"] == 499
    assert found["excess_row_db"] == pytest.approx(20 * math.log10(1 / 0.03), abs=1)


def test_less_noise_than_the_ideal_result_is_a_negative_excess():
    assert total([1.0, 2.0], [1.1, 2.2], [1.0, 2.1])["excess_db"] < 0


@pytest.mark.parametrize(
    ("actual", "exact", "truth", "excess"),
    [
        ([1, 2], [1, 2], [1, 2], 0.0),  # nothing is off
        ([1, 2.5], [1, 2], [1, 2], math.inf),  # where quantisation costs nothing
        ([1, 2], [1, 2.5], [1, 2], -math.inf),
        ([0, 0], [0, 0], [0, 0], 0.0),
    ],
)
def test_corner_cases_have_values(actual, exact, truth, excess):
    assert total(actual, exact, truth)["excess_db"] == excess


def test_the_snr_of_a_zero_truth_is_undefined_and_that_of_an_exact_result_infinite():
    assert total([1.0], [0.0], [0.0])["total_snr_db"] is None
    assert total([1.0], [1.0], [1.0])["total_snr_db"] == math.inf


def test_what_is_not_finite_on_any_side_is_left_out():
    found = total([6, 10, math.nan, 1, math.inf], [8, 8, 1, math.nan, 1], [8, 6, 1, 1, math.inf])
    assert found == total([6, 10], [8, 8], [8, 6])


@pytest.mark.parametrize(("fmt", "dtype"), DTYPES.items(), ids=list(DTYPES))
def test_the_ideal_result_is_the_exact_product_rounded_once(fmt, dtype):
    rng = np.random.default_rng(3)
    exact = rng.standard_normal((64, 300)) * np.exp2(rng.integers(-24, 8, (64, 300)))
    truth = exact * 1.01
    with np.errstate(over="ignore"):
        ideal = exact.astype(np.float32).astype(dtype).astype(np.float64)  # to float32 first: no double rounding on 53 random bits
    keep = np.isfinite(ideal)
    expected = 10 * math.log10(np.sum(truth[keep] ** 2) / np.sum((ideal - truth)[keep] ** 2))
    assert total(np.where(keep, ideal, 0), exact, truth, fmt=fmt)["ideal_snr_db"] == pytest.approx(expected, abs=1e-3)


def test_integers_are_one_apart_whatever_their_size():
    codes = np.array([[1000, -70001]], np.int32).view(np.uint32)
    meter = TotalMeter(1, "int32")
    meter.update(0, codes, np.array([[1000.4, -70000.6]]), np.array([[1003.0, -70000.0]]))
    assert meter.result()["ideal_snr_db"] == pytest.approx(10 * math.log10((1003.0**2 + 70000.0**2) / (9 + 1)))


def test_an_output_without_elements_has_no_excess():
    found = total(np.empty((0, 4)), np.empty((0, 4)), np.empty((0, 4)))
    assert (found["excess_db"], found["excess_row_db"], found["excess_row"]) == (None, None, None)


def test_panels_do_not_matter():
    rng = np.random.default_rng(2)
    truth, exact, actual = (rng.standard_normal((100, 700)) for _ in range(3))
    assert total(actual, exact, truth, 0.01, panels=7) == total(actual, exact, truth, 0.01)


@pytest.mark.parametrize(
    ("exact", "truth", "moved"),
    [
        ([8, -8], [9, -9], [7, -7]),  # toward zero
        ([8, 8], [9, 9], [7, 7]),  # down: of one sign that is toward zero
        ([8, -8], [9, -7], [7, -9]),  # down
        ([8, -8], [7, -9], [9, -7]),  # up
    ],
)
def test_a_bias_that_the_contract_allows_adds_up_with_an_error_of_quantisation_of_its_direction(exact, truth, moved):
    """A budget and a typical budget of 10/7 are a bias of 10/7 and no random walk; seven tenths of it are a step of 1."""
    found = total(moved, exact, truth, 10 / 7, typical=10 / 7)
    s2 = (10 / 7 / 8) * (10 / 7 / 8 + 0.8 * 2.0**-20)  # 8 has a float32 ulp of 2^-20
    allowed = 2 * 4 + 2 * s2 + 3 * math.sqrt(2 * s2 * (4 + 2 * s2)) + 2 * 2.0**-20
    assert found["excess_db"] == pytest.approx(10 * math.log10(8 / allowed), abs=1e-9)
    assert total(moved, exact, truth, 10 / 7)["excess_db"] > 3  # without a bias there is no reason for it


def test_a_bias_is_nothing_beside_errors_of_quantisation_of_no_common_sign():
    rng = np.random.default_rng(4)
    truth = rng.standard_normal((200, 1024))
    exact = truth + 0.037 * rng.standard_normal(truth.shape)
    actual = exact * 1.02
    without, with_bias = (total(actual, exact, truth, 1e-3, typical=t)["excess_db"] for t in (None, 1e-3))
    assert 0 < without - with_bias < 0.005  # (0.7e-3/0.037)²


def test_an_element_without_a_bound_has_no_bias():
    found = total([1.0, 2.0], [1.5, 2.0], [1.0, 2.0], [math.inf, 0.0], typical=[math.inf, 0.0])
    assert found["excess_db"] == -math.inf


@pytest.mark.parametrize("columns", [1, 2, 16, 128, 1024])
@pytest.mark.parametrize("deviation", [1e-5, 1e-3, 5e-3, 0.05])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float8_e4m3fn"])
def test_arithmetic_within_its_contract_raises_no_alarm_in_any_of_many_rows(columns, deviation, fmt):
    """Healthy units use a quarter of their budget at most: half of the standard deviation it stands for."""
    rng = np.random.default_rng([columns, round(deviation * 1e6)])
    truth = rng.standard_normal((2000, columns))
    exact = truth + 0.037 * rng.standard_normal(truth.shape)
    actual = exact + deviation * rng.standard_normal(truth.shape)
    found = total(actual, exact, truth, 16 * deviation, fmt=fmt)
    assert found["excess_row_db"] <= 0.3
    assert found["excess_db"] <= 0.3


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [128, 1024])
@pytest.mark.parametrize("factor", [2.0, 0.5, 1.1])
def test_a_wrong_scale_of_one_row_is_seen_beside_a_14_bit_accumulator(columns, fmt, factor):
    rng = np.random.default_rng(columns)
    truth = rng.standard_normal((500, columns))
    exact = truth + 0.037 * rng.standard_normal(truth.shape)
    actual = exact + 1.2e-3 * rng.standard_normal(truth.shape)  # 58 dB: K = 4096 in 14 bits
    actual[77] *= factor
    found = total(actual, exact, truth, 0.03, fmt=fmt)
    assert found["excess_row_db"] > 0.3
    assert found["excess_row"] == 77
