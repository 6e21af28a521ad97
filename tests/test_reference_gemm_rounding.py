from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from support_arrays import coded

from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.cpu_ref.rounding import correctly_rounded, exact_dot, exact_element, round_exact, to_odd
from accuracy_eval.formats import FORMATS, decode, encode
from accuracy_eval.records import Coded


def rounded(problem, fmt, **options):
    return np.concatenate([correctly_rounded(problem, p, fmt, **options) for p in panels(problem)])


def neighbours_decide(exact: Fraction, code: int, fmt: str) -> bool:
    """Whether `code` is nearest to `exact`, judged by the two neighbouring codes of the format."""
    f = FORMATS[fmt]
    value = Fraction(float(decode(np.array([code], f.storage), f)[0]))
    for step in (-1, 1):
        other = decode(np.array([code + step], f.storage), f)[0]
        if np.isfinite(other):
            d = abs(Fraction(float(other)) - exact) - abs(value - exact)
            if d < 0 or (d == 0 and code % 2 == 1):
                return False
    return True


@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float8_e5m2"])
def test_every_element_is_the_exact_sum_rounded_once(fmt, out):
    rng = np.random.default_rng(1)
    problem = Gemm(coded(rng.standard_normal((9, 40)), fmt), coded(rng.standard_normal((40, 11)), fmt), "nn", alpha=0.7)
    codes = rounded(problem, out)
    for i in range(9):
        for j in range(11):
            assert neighbours_decide(exact_element(problem, i, j), int(codes[i, j]), out)


def test_a_sum_that_float64_cannot_tell_from_a_midpoint_is_rounded_by_its_exact_value():
    # 1 + 2^-8 is halfway between two bfloat16; a term of 2^-70 decides, and is lost in float64
    one = np.array([[1.0, 1.0, 1.0]])
    for tail, want in ((2.0**-70, 0x3F81), (-(2.0**-70), 0x3F80), (0.0, 0x3F80)):
        problem = Gemm(coded(one, "float32"), coded(np.array([[1.0], [2.0**-8], [tail]]), "float32"))
        assert rounded(problem, "bfloat16")[0, 0] == want


def test_a_midpoint_below_doubled_precision_is_decided_in_integers():
    one = np.ones((1, 4))
    for tail, want in ((2.0**-140, 0x3F81), (-(2.0**-140), 0x3F80)):
        problem = Gemm(coded(one, "float32"), coded(np.array([[1.0], [2.0**-8], [0.0], [tail]]), "float32"))
        assert rounded(problem, "bfloat16")[0, 0] == want


def test_bias_c_and_alpha_take_part_in_the_single_rounding():
    problem = Gemm(
        coded(np.ones((1, 1)), "float32"), coded(np.ones((1, 1)), "float32"), "nn", 1.0, 2.0**-60,
        Coded(encode(np.ones((1, 1)), "float32"), "float32"), coded(np.array([2.0**-8]), "float32"),
    )  # fmt: skip
    assert rounded(problem, "bfloat16")[0, 0] == 0x3F81  # 1 + 2^-8 + 2^-60


def test_float64_products_are_rounded_correctly_to_float64():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((6, 30)), rng.standard_normal((30, 5))
    got = decode(rounded(Gemm(coded(a, "float64"), coded(b, "float64")), "float64"), "float64")
    for i in range(6):
        for j in range(5):
            assert got[i, j] == float(sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True)))


def test_the_error_of_a_float64_product_is_far_below_an_ulp():
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 200)) * 2.0 ** rng.integers(-200, 200, (3, 200)), rng.standard_normal((200, 3))
    p = next(panels(Gemm(coded(a, "float64"), coded(b, "float64"))))
    for i in range(3):
        for j in range(3):
            exact = exact_dot(a[i], b[:, j])
            assert abs(Fraction(p.values[i, j]) + Fraction(p.low[i, j]) - exact) <= 200**2 * Fraction(1, 2**104) * abs(exact) * 2**10


def test_int32_products_beyond_53_bits_are_exact_in_two_numbers():
    a, b = np.array([[2**31 - 1, 3]]), np.array([[2**31 - 1], [5]])
    p = next(panels(Gemm(coded(a, "int32"), coded(b, "int32"))))
    assert Fraction(p.values[0, 0]) + Fraction(p.low[0, 0]) == (2**31 - 1) ** 2 + 15


def test_infinities_nan_and_overflow_keep_their_codes():
    a = np.array([[np.inf], [np.nan], [3e38], [-3e38]])
    problem = Gemm(coded(a, "float32"), coded(np.array([[2.0]]), "float32"))
    f = FORMATS["float32"]
    assert rounded(problem, "float32")[:, 0].tolist() == [f.inf_code, f.nan_code, f.inf_code, f.inf_code | f.sign_mask]
    assert exact_element(problem, 0, 0) == np.inf


def test_to_odd_keeps_the_side_of_a_midpoint():
    got = to_odd(np.array([1.0, 1.0, 1.0]), np.array([2.0**-60, 0.0, -(2.0**-60)]))
    assert got.tolist() == [1.0 + 2.0**-52, 1.0, 1.0 - 2.0**-53]


def test_round_exact_agrees_with_ml_dtypes_on_values_float64_holds():
    x = np.random.default_rng(2).standard_normal(200) * 10
    for name in ("bfloat16", "float8_e5m2"):
        want = x.astype(getattr(ml_dtypes, name)).view(FORMATS[name].storage)
        assert [round_exact(Fraction(v), name) for v in x] == want.tolist()
    assert round_exact(Fraction(10) ** 400, "float32") == 0x7F800000
