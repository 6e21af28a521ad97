from __future__ import annotations

import math

import numpy as np
import pytest
import support_units as units

from accuracy_eval.cpu_ref.gemm import Gemm
from accuracy_eval.expectation import expectation_of, expected_of_normal_data
from accuracy_eval.formats import encode
from accuracy_eval.messages import expectation_text
from accuracy_eval.metrics import measure
from accuracy_eval.records import Coded


@pytest.mark.parametrize(
    ("fmt", "out", "contract", "run"),
    [
        ("float16", "float16", "fp32acc", units.fdpa(4, 23, 23)),
        ("float16", "float32", "fp32acc", units.fdpa(4, 23, 23)),
        ("float32", "float32", "fp32acc", units.fma32),
        ("float8_e4m3fn", "float32", "fp8fast", units.fdpa(32, 13, 13)),
        ("float8_e4m3fn", "float32", "fp8promoted", units.pieces(units.fdpa(32, 13, 13), 128)),
        ("float32", "float32", "tf32", lambda a, b, e: units.fdpa(4, 23, 23)(units.to_bits(a, 10), units.to_bits(b, 10), e)),
    ],
)
def test_a_unit_at_the_coarse_end_of_its_contract_shows_the_expected_snr_and_bias(fmt, out, contract, run):
    a, b = units.operands("normal", 32, 2048, fmt, seed=8)
    problem = Gemm(Coded(a, fmt), Coded(b, fmt), "nt")
    values, _ = units.reference(a, b, fmt, contract)
    codes = encode(units.pairs(run, a, b, fmt), out)
    m = measure(Coded(codes, out), values).metrics
    expected = expected_of_normal_data(problem, contract, out)
    low, high = expected["snr_db"]
    assert low - 2.5 <= m["snr_db"] <= high + 2.5
    least, largest = expected["bias_sigma"]
    assert least - 0.35 <= m["bias_sigma"] <= largest + 0.2  # Volta's -0.3: both signs are truncated alike, but not the sum's own
    if "mismatch_fraction" in expected:
        assert 0.5 * expected["mismatch_fraction"][0] <= m["mismatch_fraction"] <= 2 * expected["mismatch_fraction"][1]
    assert ("mismatch_fraction" in expected) == (out == "float16")


def test_nothing_is_expected_where_nothing_is_known():
    a = Coded(encode(np.ones((2, 4)), "int8"), "int8")
    assert expected_of_normal_data(Gemm(a, a, "nt"), "int32acc", "int32") == {}
    x = Coded(encode(np.ones((2, 4)), "float16"), "float16")
    assert expected_of_normal_data(Gemm(x, x, "nt"), "partials(float16,2)", "float16") == {}
    with_c = Gemm(x, x, "nt", beta=1.0, c=Coded(encode(np.ones((2, 2)), "float16"), "float16"))
    assert expected_of_normal_data(with_c, "fp32acc", "float16") == {}
    assert expectation_of(None, "fp32acc", "float16", {}, normal=True) == {}


def test_expected_and_seen_stand_beside_each_other():
    x = Coded(encode(np.full((2, 4), 0.5), "bfloat16"), "bfloat16")
    seen = {"snr_db": 55.31, "bias_sigma": -0.01, "mismatch_fraction": 0.001, "inner_err_index": [1, 0], "inner_err_max": 1e-7}
    found = expectation_of(Gemm(x, x, "nt"), "fp32acc", "bfloat16", seen, normal=True)
    assert found["snr_db"][2] == 55.31
    size = 4 * 0.25  # |A||B|
    assert found["bounds"]["worst_case"] == pytest.approx(1e-7 / (4 * 2.0**-23 / (1 - 4 * 2.0**-23) * size), rel=1e-12)
    assert found["bounds"]["probable"] == pytest.approx(1e-7 / (math.expm1(12 * 2.0**-23 + 4 * 2.0**-46 / (1 - 2.0**-23)) * size), rel=1e-9)
    text = expectation_text(found)
    assert text.startswith("SNR 55.6 dB, seen 55.3; bias ")
    assert text.endswith("largest error 0.21 of the worst case γ_K·|A||B|, 0.07 of its probable form")
    assert set(expectation_of(Gemm(x, x, "nt"), "fp32acc", "bfloat16", seen, normal=False)) == {"bounds"}
