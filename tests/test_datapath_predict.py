"""The model of a part as a device: whole GEMMs with scales, alpha, C, bias and the output's rounding."""

from __future__ import annotations

import numpy as np
import pytest

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath import dot, explain_gemm, predict
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, decode, encode
from accuracy_eval.records import Coded


def operands(m: int, n: int, k: int, fmt: str) -> tuple[Codes, Codes]:
    rng = np.random.default_rng(0)
    return encode(rng.standard_normal((m, k)), fmt), encode(rng.standard_normal((n, k)), fmt)


def described(a: Codes, b: Codes, fmt: str, layout: str = "nt", **more: object) -> Gemm:
    a, b = a if layout[0] == "n" else a.T, b if layout[1] == "t" else b.T
    return Gemm(Coded(a, fmt), Coded(b, fmt), layout, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_layout_gives_the_dot_products_of_the_unit(layout: str) -> None:
    a, b = operands(7, 9, 100, "bfloat16")
    d = predict(described(a, b, "bfloat16", layout), "MI300X", "float32")
    rows = np.repeat(np.arange(7), 9), np.tile(np.arange(9), 7)
    np.testing.assert_array_equal(d.reshape(-1), dot("cdna3", a[rows[0]], b[rows[1]], format="bfloat16"))


def test_the_output_is_the_float32_result_rounded_once() -> None:
    a, b = operands(7, 9, 100, "float16")
    wide = decode(predict(described(a, b, "float16"), "A100", "float32"), "float32")
    np.testing.assert_array_equal(predict(described(a, b, "float16"), "A100", "bfloat16"), encode(wide, "bfloat16"))


@pytest.mark.parametrize(("unit", "expected"), [("H200", 1 + 2.0**-10), ("MI300X", 1.0)])
def test_tf32_operands_are_rounded_on_nvidia_and_cut_on_cdna3(unit: str, expected: float) -> None:
    x = encode(np.array([[1 + 2.0**-11 + 2.0**-12]]), "float32")
    one = encode(np.array([[1.0]]), "float32")
    assert decode(predict(described(x, one, "float32"), unit, "float32", tf32=True), "float32")[0, 0] == expected
    assert decode(predict(described(x, one, "float32"), unit, "float32"), "float32")[0, 0] == 1 + 2.0**-11 + 2.0**-12


def test_wide_block_scales_multiply_the_sums_of_their_blocks() -> None:
    a, b = operands(6, 130, 256, "float8_e4m3fn")
    rng = np.random.default_rng(1)
    sa, sb = rng.random((6, 2)).astype(np.float32), rng.random((2, 2)).astype(np.float32)
    gemm = described(a, b, "float8_e4m3fn", a_scale=sa, b_scale=sb, a_block=(1, 128), b_block=(128, 128))
    e = explain_gemm(Coded(predict(gemm, "hopper", "float32"), "float32"), gemm, unit="hopper")
    assert (e.status, e.description) == ("identified", "T32.13.13 fwd c128 blk")


@pytest.mark.parametrize(("fmt", "width", "scale"), [("float8_e4m3fn", 32, "float8_e8m0fnu"), ("float4_e2m1fn", 16, "float8_ue4m3")])
def test_narrow_block_scales_are_the_instructions_own(fmt: str, width: int, scale: str) -> None:
    a, b = operands(5, 8, 128, fmt)
    rng = np.random.default_rng(2)
    codes = [rng.integers(50 if width == 16 else 120, 60 if width == 16 else 134, (r, 128 // width)).astype(np.uint8) for r in (5, 8)]
    values = [decode(c, scale) for c in codes]
    gemm = described(a, b, fmt, a_scale=values[0], b_scale=values[1], a_block=(1, width), b_block=(1, width), alpha=2.0)
    d = decode(predict(gemm, "B200", "float32"), "float32")
    i, j = np.repeat(np.arange(5), 8), np.tile(np.arange(8), 5)
    plain = dot("blackwell", a[i], b[j], format=fmt, a_scale=codes[0][i], b_scale=codes[1][j])
    np.testing.assert_array_equal(d.reshape(-1), 2 * decode(plain, "float32"))


def test_scales_alpha_c_and_bias_follow_in_float32() -> None:
    a, b = operands(4, 3, 64, "bfloat16")
    rng = np.random.default_rng(3)
    c, bias = encode(rng.standard_normal((4, 3)), "bfloat16"), encode(rng.standard_normal(3), "float32")
    gemm = described(a, b, "bfloat16", alpha=1.5, beta=0.5, c=Coded(c, "bfloat16"), bias=Coded(bias, "float32"))
    plain = predict(described(a, b, "bfloat16"), "hopper", "float32").view(np.float32)
    scaled = (plain * np.float32(1.5)).astype(np.float64)
    expected = (scaled + 0.5 * decode(c, "bfloat16")).astype(np.float32) + bias.view(np.float32)
    np.testing.assert_array_equal(predict(gemm, "hopper", "float32").view(np.float32), expected)


def test_what_a_unit_cannot_do_is_refused() -> None:
    a, b = operands(4, 4, 64, "bfloat16")
    with pytest.raises(UsageError, match="the arithmetic of cdna4/mfma for bfloat16 × bfloat16 is not known"):
        predict(described(a, b, "bfloat16"), "MI355X", "float32")
    scale = np.full((4, 2), 1.3)
    x, y = operands(4, 4, 64, "float8_e4m3fn")
    gemm = described(x, y, "float8_e4m3fn", a_scale=scale, b_scale=scale, a_block=(1, 32), b_block=(1, 32))
    with pytest.raises(UsageError, match="block scales of operand a are not values of float8_e8m0fnu, which the instruction takes"):
        predict(gemm, "B200", "float32")
