from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.cpu_ref.operands import scale_blocks
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FORMATS, decode, encode
from accuracy_eval.records import Coded

LAYOUTS = ("nn", "nt", "tn", "tt")


def whole(a, a_format, b, b_format, **options):
    return np.concatenate([p.values for p in panels(Gemm(Coded(a, a_format), Coded(b, b_format), **options))])


def stored(logical, letter):
    return np.ascontiguousarray(logical if letter == "n" else logical.T)


def normal_codes(shape, fmt, seed=0):
    return encode(np.random.default_rng(seed).standard_normal(shape) * (8 if FORMATS[fmt].kind == "int" else 1), fmt)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float32", "tfloat32", "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn", "int8"])
def test_the_reference_is_the_exact_product_of_the_decoded_codes(fmt, layout):
    m, n, k = 5, 7, 13
    a, b = normal_codes((m, k), fmt, 1), normal_codes((k, n), fmt, 2)
    got = whole(stored(a, layout[0]), fmt, stored(b, layout[1]), fmt, layout=layout)
    x, y = decode(a, fmt), decode(b, fmt)
    for i, j in itertools.product(range(m), range(n)):
        exact = sum(Fraction(x[i, t]) * Fraction(y[t, j]) for t in range(k))
        size = sum(abs(Fraction(x[i, t]) * Fraction(y[t, j])) for t in range(k))
        assert abs(Fraction(got[i, j]) - exact) <= (k + 4) * Fraction(1, 2**53) * size


def test_panels_cover_all_rows_in_order_and_hold_whole_tiles():
    a, b = normal_codes((300, 8), "bfloat16"), normal_codes((8, 4), "bfloat16")
    parts = list(panels(Gemm(Coded(a, "bfloat16"), Coded(b, "bfloat16")), rows=100))
    assert [(p.first_row, p.values.shape) for p in parts] == [(0, (128, 4)), (128, (128, 4)), (256, (44, 4))]


def test_alpha_beta_c_and_bias_follow_blas_with_float32_scalars():
    a, b = np.array([[2.0]]), np.array([[3.0]])
    bias = Coded(encode(np.array([0.5]), "float32"), "float32")
    c = Coded(encode(np.array([[10.0]]), "bfloat16"), "bfloat16")
    got = whole(encode(a, "bfloat16"), "bfloat16", encode(b, "bfloat16"), "bfloat16", alpha=0.1, beta=-0.3, c=c, bias=bias)
    want = Fraction(float(np.float32(0.1))) * 6 + Fraction(float(np.float32(-0.3))) * 10 + Fraction(1, 2)
    assert abs(Fraction(got[0, 0]) - want) < Fraction(1, 2**50)
    assert abs(got[0, 0] - (0.1 * 6 - 0.3 * 10 + 0.5)) > 1e-8  # not the double-precision scalars


def test_a_nan_in_c_does_not_pass_through_beta_zero():
    c = Coded(encode(np.full((2, 2), np.nan), "float32"), "float32")
    one = encode(np.ones((2, 2)), "float32")
    assert np.array_equal(whole(one, "float32", one, "float32", c=c, beta=0.0), np.full((2, 2), 2.0))
    assert np.isnan(whole(one, "float32", one, "float32", c=c, beta=1.0)).all()


def test_alpha_zero_drops_the_product_unread():
    nan = encode(np.full((2, 2), np.nan), "float32")
    assert np.array_equal(whole(nan, "float32", nan, "float32", alpha=0.0), np.zeros((2, 2)))


@pytest.mark.parametrize("shape", [(1, 1, 5), (1, 9, 40), (9, 1, 40), (130, 33, 70)], ids=lambda s: "x".join(map(str, s)))
def test_nan_and_infinities_reach_exactly_their_rows_and_columns(shape):
    m, n, k = shape
    a, b = np.ones((m, k)), np.ones((k, n))
    a[m // 2, 1], b[2, n // 2] = np.inf, -np.inf
    got = whole(encode(a, "float32"), "float32", encode(b, "float32"), "float32")
    want = np.full((m, n), float(k))
    want[m // 2, :] = np.inf
    want[:, n // 2] = -np.inf
    want[m // 2, n // 2] = np.nan
    np.testing.assert_array_equal(got, want)
    b[1, :] = 0  # 0 · Inf
    got = whole(encode(a, "float32"), "float32", encode(b, "float32"), "float32")
    assert np.isnan(got[m // 2]).all()


@pytest.mark.parametrize("k", [0, 1])
def test_an_empty_contraction_leaves_beta_c_and_bias(k):
    a, b = np.zeros((3, k), np.uint16), np.zeros((k, 2), np.uint16)
    bias = Coded(encode(np.array([1.0, 2.0]), "float32"), "float32")
    assert np.array_equal(whole(a, "bfloat16", b, "bfloat16", bias=bias), np.tile([1.0, 2.0], (3, 1)))


def test_no_rows_give_no_panels():
    assert list(panels(Gemm(Coded(np.zeros((0, 4), np.uint16), "bfloat16"), Coded(np.zeros((4, 2), np.uint16), "bfloat16")))) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_column_and_block_scales_multiply_the_values(layout):
    m, n, k = 6, 5, 64
    rng = np.random.default_rng(3)
    a, b = normal_codes((m, k), "float8_e4m3fn", 1), normal_codes((k, n), "float8_e4m3fn", 2)
    sa, sb = rng.uniform(0.5, 2, (m, 2)).astype(np.float32), rng.uniform(0.5, 2, n).astype(np.float32)
    want = (decode(a, "float8_e4m3fn") * np.repeat(sa.astype(float), 32, axis=1)) @ (decode(b, "float8_e4m3fn") * sb.astype(float))
    got = whole(
        stored(a, layout[0]), "float8_e4m3fn", stored(b, layout[1]), "float8_e4m3fn",
        layout=layout, a_scale=stored(sa, layout[0]), b_scale=sb,
    )  # fmt: skip
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "scale", "want"),
    [
        ((64, 256), (), (64, 256)),
        ((64, 256), (64, 2), (1, 128)),
        ((64, 256), (64, 8), (1, 32)),
        ((64, 130), (64, 2), (1, 128)),
        ((200, 300), (2, 3), (128, 128)),
        ((200, 300), (200, 3), (1, 128)),
        ((64, 256), (64, 1), (1, 256)),
        ((6, 100), (6, 4), (1, 32)),
        ((6, 100), (6, 10), (1, 10)),
    ],
)
def test_block_widths_follow_from_the_shape_of_the_scale(shape, scale, want):
    assert scale_blocks(shape, scale) == want


def test_a_scale_that_fits_no_block_width_is_refused():
    with pytest.raises(UsageError, match="no block width cuts 100 into 99 blocks"):
        scale_blocks((6, 100), (6, 99))


def test_operands_that_do_not_contract_are_refused():
    with pytest.raises(UsageError, match=r"a \(2, 3\) and b \(4, 5\) with layout nn contract 3 with 4"):
        whole(np.zeros((2, 3), np.uint16), "bfloat16", np.zeros((4, 5), np.uint16), "bfloat16")


def test_blocked_and_single_panels_agree_beyond_one_block_of_columns(monkeypatch):
    from accuracy_eval.cpu_ref import gemm

    a, b = normal_codes((140, 96), "bfloat16", 1), normal_codes((96, 50), "bfloat16", 2)
    want = decode(a, "bfloat16") @ decode(b, "bfloat16")
    monkeypatch.setattr(gemm, "COLUMNS", 16)
    monkeypatch.setattr(gemm, "OPERAND_ELEMENTS", 128 * 20)
    np.testing.assert_allclose(whole(a, "bfloat16", b, "bfloat16"), want, rtol=0, atol=1e-13)
