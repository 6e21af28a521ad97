from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import support_units as units

from accuracy_eval.budget import distance, interval, within_budget
from accuracy_eval.contracts import CONTRACTS, Accumulator, parse_contract
from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.cpu_ref.running import RunningSums, element_budget
from accuracy_eval.cpu_ref.statistics import sampled_products
from accuracy_eval.expectation import expected_bias, expected_flips, expected_nsr, expected_snr_db, gamma, probable_gamma, share_of_bounds
from accuracy_eval.formats import FORMATS, decode, encode
from accuracy_eval.metrics import measure
from accuracy_eval.records import Coded
from accuracy_eval.resolution import Resolution, ResolutionMeter

LENGTHS = (64, 1000, 8192)
SIZE = 6


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("unit", units.HEALTHY, ids=lambda u: u.name.replace(" ", "-"))
def test_healthy_units_stay_below_seven_tenths_of_the_budget(unit, k):
    found = {}
    for kind in units.KINDS:
        fmt = unit.formats[len(found) % len(unit.formats)]
        a, b = units.operands(kind, SIZE, k, fmt, seed=k)
        values, budget = units.reference(a, b, fmt, unit.contract)
        error = np.abs(units.pairs(unit.run, a, b, fmt) - values)
        found[kind] = units.ratio(error, budget).max()
    assert max(found.values()) <= 0.7, found


@pytest.mark.parametrize("k", [2, 5, 31])
@pytest.mark.parametrize("unit", units.HEALTHY, ids=lambda u: u.name.replace(" ", "-"))
def test_healthy_units_stay_within_budget_on_short_products(unit, k):
    for kind in units.KINDS:
        for fmt in unit.formats:
            a, b = units.operands(kind, SIZE, k, fmt, seed=k)
            values, budget = units.reference(a, b, fmt, unit.contract)
            error = np.abs(units.pairs(unit.run, a, b, fmt) - values)
            assert units.ratio(error, budget).max() <= 0.7, (kind, fmt)


@pytest.mark.parametrize("fmt", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["normal", "spike", "heavy tail", "cancellation", "outlier", "tiny"])
def test_faults_exceed_the_budget_of_float32_accumulation(kind, fmt):
    for k in (64, 1000):
        a, b = units.operands(kind, SIZE, k, fmt, seed=k)
        values, budget = units.reference(a, b, fmt, "fp32acc")
        for unit in units.FAULTS:
            if unit.contract == "fp32acc" and fmt in unit.formats:
                error = np.abs(units.pairs(unit.run, a, b, fmt) - values)
                assert units.ratio(error, budget).max() > 1.5, (unit.name, k)


def test_a_budget_of_random_data_is_far_below_the_worst_case_bound():
    a, b = units.operands("normal", 16, 4096, "bfloat16")
    problem = Gemm(Coded(a, "bfloat16"), Coded(b, "bfloat16"), "nt")
    panel = next(panels(problem, contract="fp32acc"))
    rms = np.sqrt(np.mean(panel.values**2))
    assert 3e-5 < np.median(panel.budget) / rms < 1e-4  # 5.7e-5 by the formula
    bounds = share_of_bounds(problem, "fp32acc", 3, 5, panel.budget[3, 5])
    assert bounds["worst_case"] < 0.02  # the worst case is far above every budget
    size = np.abs(decode(a, "bfloat16")[3]) @ np.abs(decode(b, "bfloat16")[5])
    unit = 2.0**-23  # a truncating unit
    assert bounds["worst_case"] == pytest.approx(panel.budget[3, 5] / (4096 * unit / (1 - 4096 * unit) * size), rel=1e-12)
    # theorem 2.4 of Higham and Mary: exp(λ·sqrt(K)·u + K·u²/(1 - u)) - 1
    probable = math.expm1(6 * 64 * unit + 4096 * unit**2 / (1 - unit))
    assert bounds["probable"] == pytest.approx(panel.budget[3, 5] / (probable * size), rel=1e-12)


def test_the_budget_of_a_known_case_is_the_formula_by_hand():
    # K = 4 ones: running sums 1 2 3 4, V = 4, N = 4; fp64: one RNE accumulator without alignment
    sums = RunningSums(4, *(np.full((1, 1), x) for x in (4.0, 2.5, math.sqrt(7.5), 2.0, 4.0, 0.0, 0.0)))
    rne = 8 * 0.3 * math.sqrt(4) * 2.0**-52 * math.sqrt(7.5)
    assert element_budget(CONTRACTS["fp64"], sums)[0, 0] == pytest.approx(rne, rel=1e-12)
    # M = max(2.5, 4·2/2) = 4; one step of four, whole ulps because N = K
    rz = 0.5 * 2 * (1 * 2.0**-23 + 4 * 2.0**-23) * 4 + 2.4 * (1 + 2) * 2.0**-23 * math.sqrt(7.5)
    assert element_budget(CONTRACTS["fp32acc"], sums)[0, 0] == pytest.approx(rz, rel=1e-12)
    tf32 = rz + 8 * 2.0**-11 * 2 + 6 * 2.0**-11 * 4
    assert element_budget(CONTRACTS["tf32"], sums)[0, 0] == pytest.approx(tf32, rel=1e-12)
    partial = element_budget(parse_contract("partials(bfloat16,3)"), sums)[0, 0]
    assert partial == pytest.approx(rz + 3 * 2.0**-8 * 4, rel=1e-12)


def test_gemm_statistics_give_the_same_budget_as_running_sums_kept_one_by_one():
    rng = np.random.default_rng(3)
    a, b = encode(rng.standard_normal((3, 40)), "float16"), encode(rng.standard_normal((5, 40)), "float16")
    p = decode(a, "float16")[:, None, :] * decode(b, "float16")[None, :, :]
    s = np.cumsum(p, axis=2)
    zero = np.zeros((3, 5))
    sums = RunningSums(
        40, s[:, :, -1], np.abs(s).mean(2), np.sqrt((s**2).mean(2)), np.sqrt((p**2).sum(2)), np.abs(np.sign(p).sum(2)), zero, zero
    )
    want = element_budget(CONTRACTS["fp32acc"], sums) + 2.0**-22 * np.abs(s[:, :, -1])
    _, got = units.reference(a, b, "float16", "fp32acc")
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("k", [300, 4000])
def test_blocked_statistics_stay_near_those_of_every_running_sum(k):
    a, b = units.operands("normal", 12, k, "bfloat16", seed=4)
    p = decode(a, "bfloat16")[:, None, :] * decode(b, "bfloat16")[None, :, :]
    s = np.cumsum(p, axis=2)
    zero = np.zeros((12, 12))
    sums = RunningSums(
        k, s[:, :, -1], np.abs(s).mean(2), np.sqrt((s**2).mean(2)), np.sqrt((p**2).sum(2)), np.abs(np.sign(p).sum(2)), zero, zero
    )
    want = element_budget(CONTRACTS["fp32acc"], sums)
    _, got = units.reference(a, b, "bfloat16", "fp32acc")
    # above 512 products N is estimated from a sample, which loosens single budgets and tightens none by much
    assert 0.85 < (got / want).min()
    assert np.median(got / want) < 1.1
    assert (got / want).max() < 1.5


def test_the_budget_scales_with_powers_of_two_of_either_operand():
    a, b = units.operands("heavy tail", 8, 500, "float32", seed=1)
    _, plain = units.reference(a, b, "float32", "fp32acc")
    _, scaled = units.reference(encode(decode(a, "float32") * 2.0**40, "float32"), b, "float32", "fp32acc")
    np.testing.assert_allclose(scaled, plain * 2.0**40, rtol=1e-5)


def test_huge_and_tiny_float64_operands_keep_a_finite_budget():
    rng = np.random.default_rng(2)
    a = encode(rng.standard_normal((4, 100)) * 1e200, "float64")
    b = encode(rng.standard_normal((4, 100)) * 1e-190, "float64")
    values, budget = units.reference(a, b, "float64", "fp64")
    assert (budget > 0).all()
    assert (budget / np.abs(values).max() < 1e-12).all()


def test_alpha_c_and_bias_add_their_own_rounding():
    one = Coded(encode(np.ones((1, 1)), "float32"), "float32")
    c = Coded(encode(np.full((1, 1), 1e6), "float32"), "float32")
    plain = next(panels(Gemm(one, one), contract="fp32acc")).budget[0, 0]
    with_c = next(panels(Gemm(one, one, beta=-1.0, c=c), contract="fp32acc")).budget[0, 0]
    # the scalar arithmetic, and a sum that starts at C: one truncation of it, half an ulp on average and 8·0.3 ulps of a walk
    assert with_c == pytest.approx(plain + (4 * 2.0**-24 + (0.5 + 8 * 0.3) * 2.0**-23) * 1e6, rel=1e-12)
    doubled = next(panels(Gemm(one, one, alpha=2.0), contract="fp32acc")).budget[0, 0]
    assert doubled == pytest.approx(2 * plain, rel=1e-12)


def test_nan_and_infinite_references_have_no_budget():
    a = np.array([[np.inf, 1.0], [np.nan, 1.0], [1.0, 1.0]])
    panel = next(
        panels(Gemm(Coded(encode(a, "float32"), "float32"), Coded(encode(np.ones((2, 2)), "float32"), "float32")), contract="tf32")
    )
    assert (panel.budget[:2] == 0).all()
    assert (panel.budget[2] > 0).all()


def test_exact_and_integer_contracts_allow_no_error():
    a = Coded(encode(np.full((2, 8), 100.0), "int8"), "int8")
    problem = Gemm(a, a, "nt")
    assert (next(panels(problem, contract="int32acc", out_format="int32")).budget == 0).all()
    assert (next(panels(problem, contract="exact")).budget == 0).all()
    assert (next(panels(problem, contract="int32acc", out_format="bfloat16")).budget == 4 * 2.0**-24 * 80000).all()


@pytest.mark.parametrize("k", [1, 512, 513, 8192, 100_001])
def test_the_products_behind_the_sign_coherence_are_spread_and_distinct(k):
    chosen = sampled_products(k)
    assert len(chosen) == min(k, 512)
    assert (np.diff(chosen) > 0).all()
    assert chosen[-1] < k
    assert len(chosen) < 512 or np.diff(chosen).max() <= 2 * (k // 512 + 1)


# --- the gate


def test_a_code_passes_iff_some_real_within_the_budget_rounds_to_it():
    f = FORMATS["float8_e4m3fn"]
    codes = np.arange(256, dtype=np.uint8)
    for c, b in ((3.3, 0.4), (0.001, 0.01), (-17.0, 0.5), (447.0, 20.0), (2.0, 0.0), (0.0, 0.0)):
        allowed = within_budget(codes, np.full(256, c), np.full(256, b), f)
        reached = encode(c + b * np.linspace(-1, 1, 4001), f)
        both_zeros = np.isin([0x00, 0x80], reached).any() & np.isin(codes, [0x00, 0x80])  # one place on the number line
        want = np.isin(codes, reached) | both_zeros
        assert np.array_equal(allowed, want), (c, b)


def test_nan_and_infinity_pass_only_where_the_reference_has_them():
    codes = encode(np.array([np.nan, np.inf, -np.inf, 1.0, np.nan]), "float32")
    values = np.array([np.nan, np.inf, np.inf, np.nan, 1.0])
    assert within_budget(codes, values, np.full(5, 1e30), "float32").tolist() == [True, True, False, False, False]


def test_an_overflow_the_budget_reaches_passes():
    low, high = interval(np.array([3.4e38]), np.array([1e36]), "float32")
    assert decode(high, "float32")[0] == np.inf
    assert within_budget(encode(np.array([np.inf]), "float32"), np.array([3.4e38]), 1e36, "float32")[0]
    assert np.isfinite(decode(low, "float32")[0])


# --- the resolution


def measured(problem, contract, fmt) -> tuple[Resolution, np.ndarray, np.ndarray]:
    meter = ResolutionMeter(problem.n, fmt, problem)
    parts = list(panels(problem, contract=contract, rows=128))
    for p in parts:
        meter.update(p.first_row, p.values, p.budget)
    return meter.result(), np.concatenate([p.values for p in parts]), np.concatenate([p.budget for p in parts])


def fails(actual, values, budget, fmt) -> bool:
    return not within_budget(encode(actual, fmt), values, budget, fmt).all()


RESOLVED = [
    (kind, k, fmt, out)
    for kind in ("normal", "relu", "spike", "tiny")
    for k, fmt, out in ((64, "bfloat16", "bfloat16"), (300, "float16", "float32"), (64, "float8_e4m3fn", "bfloat16"))
]


@pytest.fixture(params=RESOLVED, ids=lambda p: "-".join(map(str, p)))
def resolved(request):
    kind, k, fmt, out = request.param
    a, b = units.operands(kind, 140, k, fmt, seed=7)
    problem = Gemm(Coded(a, fmt), Coded(b[:20], fmt), "nt")
    return problem, out, *measured(problem, "fp32acc" if fmt != "float8_e4m3fn" else "fp8fast", out)


def test_an_element_off_by_more_than_the_stated_error_fails_wherever_it_is(resolved):
    _, out, resolution, values, budget = resolved
    for sign in (-1, 1):
        codes = encode(values + sign * resolution.element, out)
        for _ in range(100):
            # the nearest output that is off by more than the statement
            moved = np.abs(decode(codes, out) - values) > resolution.element
            if moved.all():
                break
            codes = np.where(moved, codes, _next(codes, out, sign))
        assert moved.all()
        assert not within_budget(codes, values, budget, out).any()


def _next(codes, fmt, sign):
    f = FORMATS[fmt]
    value = decode(codes, f)
    bits = codes.astype(np.int64)
    up = np.where(value >= 0, bits + 1, bits - 1)
    down = np.where(value > 0, bits - 1, bits + 1)
    down = np.where(value == 0, f.sign_mask + 1, down)
    return (up if sign > 0 else down).astype(codes.dtype)


def test_a_gain_of_the_stated_size_fails(resolved):
    _, out, resolution, values, budget = resolved
    assert 0 < resolution.gain < 0.1 or resolution.gain == math.inf or not np.any(values)
    if math.isfinite(resolution.gain):
        for sign in (-1, 1):
            assert fails(values * (1 + sign * resolution.gain * 1.0001), values, budget, out)


def test_a_row_with_an_error_of_the_stated_norm_fails(resolved):
    _, out, resolution, values, budget = resolved
    rng = np.random.default_rng(1)
    for i in rng.integers(0, len(values), 20):
        if np.isnan(resolution.row) or not np.any(values[i]):
            continue
        error = rng.standard_normal(values.shape[1])
        error *= 1.0001 * resolution.row * np.linalg.norm(values[i]) / np.linalg.norm(error)
        actual = decode(encode(values[i] + error, out), out)
        if np.linalg.norm(actual - values[i]) > resolution.row * np.linalg.norm(values[i]):
            assert fails(actual, values[i], budget[i], out)


def test_every_k_counted_as_seen_fails_when_its_products_are_lost(resolved):
    problem, out, resolution, values, budget = resolved
    x, y = problem.a_values(slice(0, problem.m), slice(0, problem.k)), problem.b_values(slice(0, problem.k), slice(0, problem.n))
    missed = [k for k in range(problem.k) if not fails(values - np.outer(x[:, k], y[k]), values, budget, out)]
    changing = [k for k in range(problem.k) if np.outer(x[:, k], y[k]).any()]
    assert resolution.k_total == len(changing)
    # what counts as seen is seen; a k may be seen by chance beyond that
    assert resolution.k_seen <= len(set(changing) - set(missed))
    if resolution.k_unseen is None:
        assert not set(missed) & set(changing)


def test_a_resolution_of_ordinary_data_sees_every_k_and_small_gains():
    a, b = units.operands("normal", 128, 256, "bfloat16")
    resolution, _, _ = measured(Gemm(Coded(a, "bfloat16"), Coded(b, "bfloat16"), "nt"), "fp32acc", "bfloat16")
    assert resolution.k_seen == resolution.k_total == 256
    assert resolution.gain < 0.01
    assert resolution.element_median <= resolution.element
    certain = {"element", "element_median", "row", "column", "gain", "k_seen", "k_total", "k_unseen"}  # and no tile: no gate looks at one
    assert set(resolution.as_dict()) == certain | {"element_95", "row_95", "column_95", "gain_95"}


@pytest.mark.parametrize("k", [64, 512, 8192])
def test_the_widest_promise_of_partials_still_fails_gross_faults_and_says_what_it_sees(k):
    rng = np.random.default_rng(9)
    a, b = (encode(rng.standard_normal(shape), "bfloat16") for shape in ((48, k), (40, k)))
    problem = Gemm(Coded(a, "bfloat16"), Coded(b, "bfloat16"), "nt")
    panel = next(panels(problem, contract="partials(bfloat16,128)"))
    half = problem.take_rows(np.arange(48))
    lost = replace(half, a=Coded(a[:, : k // 2], "bfloat16"), b=Coded(b[:, : k // 2], "bfloat16"))
    faults = {"gain 2": 2 * panel.values, "sign": -panel.values, "half the contraction": next(panels(lost)).values}
    for name, values in faults.items():
        assert not within_budget(encode(values, "bfloat16"), panel.values, panel.budget, "bfloat16").all(), name
    resolution, _, _ = measured(problem, "partials(bfloat16,128)", "bfloat16")
    size = np.sqrt(np.mean(panel.values**2))
    assert 0.1 * size < resolution.element < 4 * size
    assert resolution.gain < 1


def test_an_all_zero_reference_has_no_relative_resolution():
    zero = Coded(np.zeros((4, 4), np.uint16), "bfloat16")
    resolution, _, _ = measured(Gemm(zero, zero), "fp32acc", "bfloat16")
    assert math.isnan(resolution.row)
    assert resolution.gain == math.inf
    assert resolution.k_total == 0


# --- expectations


@pytest.mark.parametrize(
    ("name", "unit", "fmt", "bits", "run"),
    [
        ("fma", Accumulator("RNE", 23, None, 1), "float32", 48, units.fma32),
        ("hopper", Accumulator("RZ", 23, 25, 16), "float16", 22, units.fdpa(16, 25, 23)),
        ("ampere", Accumulator("RZ", 23, 24, 8), "float16", 22, units.fdpa(8, 24, 23)),
        ("volta", Accumulator("RZ", 23, 23, 4), "float16", 22, units.fdpa(4, 23, 23)),
        ("hopper fp8", Accumulator("RZ", 13, 13, 32), "float8_e4m3fn", 8, units.fdpa(32, 13, 13)),
    ],
)
def test_expected_noise_and_bias_agree_with_simulated_units(name, unit, fmt, bits, run):
    k = 2048
    a, b = units.operands("normal", 32, k, fmt, seed=5)
    values, _ = units.reference(a, b, fmt, "fp32acc")
    error = units.pairs(run, a, b, fmt) - values
    rms = np.sqrt(np.mean(values**2))
    assert np.sqrt(np.mean(error**2)) / rms == pytest.approx(expected_nsr(unit, k, product_bits=bits), rel=0.25)
    bias = np.mean(error * np.sign(values)) / rms
    assert bias == pytest.approx(expected_bias(unit, k), abs=0.2 * expected_nsr(unit, k, product_bits=bits))


def test_expected_snr_of_one_rounding_is_the_textbook_value():
    assert expected_snr_db(0.0, "bfloat16") == pytest.approx(55.6, abs=0.05)
    assert expected_snr_db(0.0, "float8_e5m2") == pytest.approx(25.5, abs=0.05)


def test_expected_flips_agree_with_two_noisy_copies_of_normal_data():
    rng = np.random.default_rng(1)
    x = rng.standard_normal(400_000)
    y = x + 1e-5 * rng.standard_normal(x.size)
    flips = np.mean(encode(x, "float16") != encode(y, "float16"))
    assert expected_flips(1e-5, "float16") == pytest.approx(flips, rel=0.25)
    assert expected_flips(0.0, "float16") == 0


def test_worst_case_factors():
    assert gamma(1000, 2.0**-24) == pytest.approx(1000 * 2.0**-24, rel=1e-4)
    assert gamma(2**24, 2.0**-24) == math.inf
    assert probable_gamma(10_000, 2.0**-24) == pytest.approx(6 * 100 * 2.0**-24, rel=1e-3)


@pytest.mark.parametrize(
    ("fmt", "actual", "expected", "off"),
    [
        ("bfloat16", 1 + 2**-7, 1 + 2**-9, 2**-8 - 2**-9),  # from 1 + 2^-8 on reals round to it
        ("bfloat16", 1.0, 1 + 2**-9, 0.0),
        ("bfloat16", 1.0, 1 - 2**-8, 2**-9),  # below a power of two they begin at half the distance
        ("bfloat16", -1.0, -1 + 2**-8, 2**-9),
        ("float16", 0.0, 2.0**-24, 2.0**-25),
        ("float16", math.inf, 65519.0, 1.0),  # rounding overflows from 65520 on
        ("float16", -math.inf, -65519.0, 1.0),
        ("float16", math.inf, -65504.0, 131024.0),
        ("float16", math.nan, 1.0, math.inf),
        ("float8_e5m2", 1.0, math.nan, math.inf),
        ("int8", 3.0, 1.0, 1.5),
    ],
)
def test_an_element_is_as_far_off_as_its_reals_are(fmt, actual, expected, off):
    assert distance(actual, expected, fmt) == off


def test_the_distance_of_an_element_is_the_one_that_the_meter_counts():
    rng = np.random.default_rng(3)
    for fmt in ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"):
        for truth in rng.standard_normal(200):
            actual = truth * (1 + rng.uniform(-0.3, 0.3))
            codes = encode(np.array([actual]), fmt)
            found = measure(Coded(codes, fmt), np.array([truth]), budget=np.array([1.0])).metrics["budget_max"]
            right = codes[0] == encode(np.array([truth]), fmt)[0]
            assert found == (0.0 if right else distance(float(decode(codes, fmt)[0]), truth, fmt)), (fmt, truth, actual)
