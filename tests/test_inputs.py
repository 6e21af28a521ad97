from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import mpmath
import numpy as np
import pytest
from support_inputs import GOLDEN_SHAPES, OPERAND_FORMATS, name_words, philox, stream_words
from support_jit import printed

from accuracy_eval import inputs
from accuracy_eval.errors import CorruptFile, UsageError
from accuracy_eval.formats import FORMATS, decode, get_format, is_nan
from accuracy_eval.inputs import INPUT_CLASSES, generate, stream_key, tables
from accuracy_eval.inputs import philox as philox_module

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_inputs.json").read_text())
NUMPY_DTYPES = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
ZEROS = ((0, 0, 0, 0), (0, 0))
ONES = ((philox_module.MASK32,) * 4, (philox_module.MASK32,) * 2)
PI = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))


def q(u: int) -> Fraction:
    return Fraction(int(tables.normal_table()[u]), 2**20)


def values(input_class: str, fmt: str, shape: tuple[int, ...] = (40, 9), operand: str = "a", **more: object) -> np.ndarray:
    return decode(generate("gemm", operand, shape, input_class, 7, fmt, **more), fmt)  # type: ignore[arg-type]


# The stream.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (ZEROS, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ONES, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "pi"],
)
@pytest.mark.parametrize("form", ["numpy", "python"])
def test_philox_gives_its_authors_known_answers(form, arguments, expected):
    (c0, *rest), key = arguments
    words = philox_module.blocks(([c0], *rest), key)[0] if form == "numpy" else philox(*arguments)
    assert " ".join(f"{int(w):08x}" for w in words) == expected


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
@pytest.mark.parametrize(("stream", "bits"), [(0, 16), (1, 32), (2, 64), (16, 16)])
def test_words_of_a_stream_equal_the_same_stream_in_python_integers(stream, bits, compiled):
    key = stream_key("gemm", "a", (512, 256), "normal", -3)
    found = philox_module.words(key, stream, 0, 45, compiled=compiled)
    assert found.tolist() == stream_words("gemm/a/512x256/normal", 2**32 - 3, stream, bits, 45)


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
def test_a_stream_may_be_entered_at_any_block(compiled):
    key = stream_key("gemm", "a", (512, 256), "normal", 1)
    whole = philox_module.words(key, 0, 0, 200_000)
    assert np.array_equal(philox_module.words(key, 0, 99_992, 1000, compiled=compiled), whole[99_992:100_992])


def test_the_key_is_the_seed_and_the_hash_of_the_name():
    h = name_words("exp/x/1024/wide")
    assert stream_key("exp", "x", (1024,), "wide", 5 + 2**32) == inputs.StreamKey(5, *h[:4])
    assert stream_key("exp", "x", (), "wide", 5).h0 == name_words("exp/x//wide")[0]


def test_words_beyond_the_32_bit_block_counter_are_refused():
    key = stream_key("gemm", "a", (1,), "normal", 0)
    assert philox_module.words(key, 2, (2**32 - 1) * 2, 2).size == 2
    with pytest.raises(UsageError, match="beyond the generator's 8589934592 words"):
        philox_module.words(key, 2, (2**32 - 1) * 2, 3)


# The normal table.


def test_normal_table_entries_are_nearest_to_the_inverse_normal_distribution():
    # q is right where Φ((q - 1/2)/2^20) <= (u + 1/2)/65536 <= Φ((q + 1/2)/2^20); erfinv is not asked
    table = tables.normal_table()
    for u in [*range(32768, 65536, 97), *range(65500, 65536)]:
        with mpmath.workdps(40):
            low, high = (mpmath.ncdf((int(table[u]) + h) / mpmath.mpf(2**20)) for h in (mpmath.mpf(-0.5), mpmath.mpf(0.5)))
            assert low < mpmath.mpf(2 * u + 1) / 131072 < high, u


@pytest.mark.parametrize("u", [32768, 40000, 49151, 65000, 65535])
def test_normal_entries_can_be_made_again(u):
    with mpmath.workdps(40):  # no entry is closer than 1.8e-5 to a rounding midpoint
        expected = int(mpmath.nint(mpmath.erfinv(mpmath.mpf(2 * u + 1) / 65536 - 1) * mpmath.sqrt(2) * 2**20))
    assert tables.normal_table()[u] == expected == -tables.normal_table()[65535 - u]


def test_normal_table_is_exactly_antisymmetric_and_strictly_ascending():
    table = tables.normal_table()
    assert table.shape == (65536,)
    assert np.array_equal(table, -table[::-1])
    assert (np.diff(table) > 0).all()


def test_normal_table_has_the_moments_of_a_normal():
    x = tables.normal_table() * 2.0**-20
    variance = float((x * x).mean())
    assert variance == pytest.approx(0.99998, abs=1e-5)
    assert float((x**4).mean()) / variance**2 == pytest.approx(2.9992, abs=1e-4)
    assert float(x.max()) == pytest.approx(4.3249, abs=1e-4)


def test_a_changed_normal_table_is_refused(monkeypatch):
    monkeypatch.setattr(tables, "NORMAL_TABLE_SHA256", "0" * 64)
    with pytest.raises(CorruptFile, match=r"data/normal_table.i32: sha256 7030c408.* != 0000.*Reinstall"):
        tables.normal_table.__wrapped__()


# Values by hand, from Python integers and Fractions.


def rounded(value: Fraction, dtype: type) -> float:
    """One rounding to nearest even of an exact value, by Python (float64) or numpy (float32 of an exact float64)."""
    wide = float(value)
    if dtype is np.float64:
        return wide
    assert Fraction(wide) == value
    return float(np.float32(wide))


def test_normal_values_of_16_bit_formats_are_table_entries_rounded_once():
    u = stream_words("gemm/a/40x9/normal", 7, 0, 16, 360)
    exact = np.array([float(q(i)) for i in u])
    assert np.array_equal(values("normal", "bfloat16").ravel(), exact.astype(ml_dtypes.bfloat16).astype(np.float64))
    assert np.array_equal(values("normal", "float16").ravel(), exact.astype(np.float16).astype(np.float64))


def test_normal_values_of_float32_carry_low_order_bits():
    w = stream_words("gemm/a/40x9/normal", 7, 1, 32, 360)
    expected = [rounded(q(i & 0xFFFF) + Fraction(2 * (i >> 16) + 1 - 2**16, 2**32), np.float32) for i in w]
    assert values("normal", "float32").ravel().tolist() == expected


def test_normal_values_of_float64_carry_low_order_bits():
    w = stream_words("gemm/a/40x9/normal", 7, 2, 64, 360)
    expected = [rounded(q(i & 0xFFFF) + Fraction(2 * (i >> 16) + 1 - 2**48, 2**64), np.float64) for i in w]
    assert values("normal", "float64").ravel().tolist() == expected


@pytest.mark.parametrize(("fmt", "stream", "bits", "kept"), [("float16", 0, 16, 16), ("float32", 1, 32, 24), ("float64", 2, 64, 53)])
def test_uniform_values_are_odd_dyadics(fmt, stream, bits, kept):
    w = stream_words("gemm/a/40x9/uniform", 7, stream, bits, 360)
    expected = [float(Fraction(2 * (i >> (bits - kept)) + 1 - 2**kept, 2**kept)) for i in w]
    if fmt == "float16":
        expected = np.array(expected).astype(np.float16).astype(np.float64).tolist()
    assert values("uniform", fmt).ravel().tolist() == expected


@pytest.mark.parametrize(("fmt", "stream", "bits"), [("bfloat16", 0, 16), ("float32", 1, 32), ("float64", 2, 64)])
def test_integers_lie_on_minus_8_to_8(fmt, stream, bits):
    w = stream_words("gemm/a/40x9/integers", 7, stream, bits, 360)
    top = [i >> 32 if bits == 64 else i for i in w]
    expected = [17 * i // 2 ** min(bits, 32) - 8 for i in top]
    assert values("integers", fmt).ravel().tolist() == expected
    assert set(expected) == set(range(-8, 9))


def test_absmax_divides_by_multiplying_with_the_rounded_reciprocal():
    u = stream_words("gemm/a/40x9/absmax", 7, 0, 16, 360)
    x = [float(q(i)) for i in u]
    inverse = 1.0 / max(abs(i) for i in x)
    expected = np.array([i * inverse for i in x], np.float64).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    found = values("absmax", "bfloat16").ravel()
    assert np.array_equal(found, expected)
    assert np.abs(found).max() == 1.0


@pytest.mark.parametrize("fmt", ["float32", "float64"])
def test_absmax_of_wide_formats_reaches_one_and_no_further(fmt):
    largest = np.abs(values("absmax", fmt, (64, 63))).max()
    assert 1 - 2**-23 <= largest <= 1


def test_outliers_are_a_hundred_times_where_the_selection_says_so():
    shape = (64, 65)
    u = np.array(stream_words("gemm/a/64x65/outlier", 7, 0, 16, 4160))
    chosen = np.array(stream_words("gemm/a/64x65/outlier", 7, 16, 16, 4160)) < 66
    x = tables.normal_table()[u] * 2.0**-20 * np.where(chosen, 100.0, 1.0)
    expected = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(values("outlier", "bfloat16", shape).ravel(), expected)
    assert 1 <= chosen.sum() <= 15


def test_spike_is_one_hundred_among_halves_at_the_place_the_name_gives():
    found = values("spike", "bfloat16").ravel()
    place = name_words("gemm/a/40x9/spike")[3] % 360
    assert found[place] == 100
    assert (np.delete(found, place) == 0.5).all()


@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("length", [8, 9])
def test_cancellation_of_a_gemm_repeats_a_and_nearly_negates_b(fmt, length):
    a, b = (values("cancellation", fmt, (6, length), operand, axes=(m, "k")) for operand, m in (("a", "m"), ("b", "n")))
    assert np.array_equal(a[:, 4:8], a[:, :4])
    ratio = b[:, 4:8] / b[:, :4]
    assert (np.abs(ratio + 127 / 128) <= 2.0**-7).all()
    assert (np.abs(a[:, :8] @ b[:, :8].T) <= 2.0**-7 * (np.abs(a[:, :8]) @ np.abs(b[:, :8]).T)).all()
    if length == 9:
        assert (a[:, 8] != a[:, 4]).all()


def test_cancellation_pairs_along_the_axis_named_k_and_rounds_the_partner_once():
    found = values("cancellation", "float32", (6, 5), "b", axes=("k", "n"))
    expected = (-found[:3] * (1 - 2.0**-7)).astype(np.float32).astype(np.float64)
    assert np.array_equal(found[3:6], expected)


def test_tiny_falls_by_row_from_2_to_the_minus_20_to_minus_40():
    u = np.array(stream_words("gemm/a/40x9/tiny", 7, 0, 16, 360)).reshape(40, 9)
    x = tables.normal_table()[u] * 2.0**-20
    exponent = np.array([20 + row % 21 for row in range(40)])[:, None]
    expected = np.ldexp(x.astype(ml_dtypes.bfloat16).astype(np.float64), -exponent)
    assert np.array_equal(values("tiny", "bfloat16"), expected)


@pytest.mark.parametrize(("fmt", "stream", "bits", "power"), [("bfloat16", 0, 16, 12), ("float32", 1, 32, 40), ("float64", 2, 64, 300)])
def test_huge_is_a_power_of_two_times_normal(fmt, stream, bits, power):
    w = np.array(stream_words("gemm/a/40x9/huge", 7, stream, bits, 360), np.uint64)
    near = np.ldexp(tables.normal_table()[w & np.uint64(0xFFFF)], power - 20)
    assert np.allclose(values("huge", fmt).ravel(), near, rtol=2.0**-8, atol=2.0 ** (power - 15))


def test_every_fourth_row_is_plus_zero_and_no_other():
    codes = generate("gemm", "a", (41, 9), "zero-rows", 7, "bfloat16")
    assert (codes[::4] == 0).all()
    assert (np.delete(codes, np.s_[::4], axis=0) & 0x7FFF).all()


def test_heavy_tails_follow_the_trailing_zeros_of_the_selection():
    u = np.array(stream_words("gemm/a/64x65/heavy-tailed", 7, 0, 16, 4160))
    power = [min((i & -i).bit_length() - 1, 15) if i else 15 for i in stream_words("gemm/a/64x65/heavy-tailed", 7, 16, 16, 4160)]
    x = np.ldexp(tables.normal_table()[u] * 2.0**-20, power)
    assert np.array_equal(values("heavy-tailed", "float16", (64, 65)).ravel(), x.astype(np.float16).astype(np.float64))


@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float64"])
def test_relu_keeps_positive_values_and_has_no_negative_zero(fmt):
    codes = generate("gemm", "a", (40, 9), "relu", 7, fmt)
    found = decode(codes, fmt)
    assert 100 < (found > 0).sum() < 260
    assert (codes[found <= 0] == 0).all()


@pytest.mark.parametrize("name", [f for f in OPERAND_FORMATS if FORMATS[f].kind == "float"])
def test_subnormal_codes_have_exponent_field_zero(name):
    f = get_format(name)
    codes = generate("gemm", "a", (64, 64), "subnormal", 7, f)
    assert not is_nan(codes, f).any()
    fraction = codes & f.storage.type(f.magnitude_mask)
    assert (fraction < 1 << f.fraction_bits).all()
    if f.fraction_bits <= 3:
        assert set(fraction.ravel().tolist()) == set(range(1 << f.fraction_bits))
    assert 1500 < ((codes & f.storage.type(f.sign_mask)) != 0).sum() < 2600 or f.specials == "fnuz"


def test_subnormal_of_an_integer_format_is_refused():
    with pytest.raises(UsageError, match="int8 is an integer format and has no subnormals"):
        generate("gemm", "a", (4, 4), "subnormal", 0, "int8")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float16", [0x7E00, 0x7C00, 0xFC00, 0, 0x8000, 0x7BFF, 1]),
        ("float8_e4m3fn", [0x7F, 0x7F, 0x7F, 0, 0x80, 0x7E, 1]),
        ("float8_e4m3fnuz", [0x80, 0x80, 0x80, 0, 0, 0x7F, 1]),
        ("float4_e2m1fn", [7, 7, 15, 0, 8, 7, 1]),
        ("int8", [0x7F, 0x7F, 0x80, 0, 0, 0x7F, 1]),
        ("uint8", [0xFF, 0xFF, 0, 0, 0, 0xFF, 1]),
    ],
)
def test_specials_of_each_kind_of_format(name, expected):
    assert inputs.special_codes(get_format(name)).tolist() == expected


def test_specials_are_placed_where_the_selection_says_so():
    chosen = np.array(stream_words("gemm/a/64x65/specials", 7, 16, 16, 4160))
    codes = generate("gemm", "a", (64, 65), "specials", 7, "bfloat16").ravel()
    special = np.array([0x7FC0, 0x7F80, 0xFF80, 0, 0x8000, 0x7F7F, 1])
    assert {int(c) >> 8 for c in chosen if c < 1792} == set(range(7))
    assert np.array_equal(codes[chosen < 1792], special[chosen[chosen < 1792] >> 8])
    u = np.array(stream_words("gemm/a/64x65/specials", 7, 0, 16, 4160))[chosen >= 1792]
    normal = (tables.normal_table()[u] * 2.0**-20).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(codes[chosen >= 1792], normal)


@pytest.mark.parametrize("name", [f for f in OPERAND_FORMATS if FORMATS[f].bits <= 16])
def test_class_codes_counts_through_every_code(name):
    f = get_format(name)
    codes = generate("exp", "x", (2**f.bits + 3,), "codes", 0, f)
    assert codes.tolist() == [*range(2**f.bits), 0, 1, 2]


@pytest.mark.parametrize(("name", "step"), [("float32", 0x9E3779B1), ("float64", 0x9E3779B97F4A7C15), ("tfloat32", 0x9E3779B1)])
def test_class_codes_of_wide_formats_meets_every_exponent_of_both_signs(name, step):
    f = get_format(name)
    codes = generate("exp", "x", (1 << 14,), "codes", 0, f)
    assert [int(c) for c in codes[:100]] == [i * step % 2**f.bits for i in range(100)]
    assert len(set((codes >> f.storage.type(f.fraction_bits)).tolist())) == 2 ** (f.exponent_bits + 1)


@pytest.mark.parametrize(("name", "stream", "bits"), [("bfloat16", 0, 16), ("float32", 1, 32), ("float64", 2, 64)])
def test_wide_spreads_ordinals_evenly_over_the_domain(name, stream, bits):
    f = get_format(name)
    unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
    low, high = (int(np.array(x).astype(NUMPY_DTYPES[name]).view(unsigned)) for x in (2.0, 2.0**10))
    w = stream_words("log/x/300/wide", 7, stream, bits, 300)
    expected = [-low + (u * (high + low + 1) >> bits) for u in w]
    codes = generate("log", "x", (300,), "wide", 7, f, domain=(-2.0, 1024.0))
    sign = 1 << (bits - 1)
    assert [int(c) for c in codes] == [e if e >= 0 else sign | -e for e in expected]


def test_wide_rounds_its_domain_inward():
    found = values("wide", "bfloat16", (4000,), domain=(1.001, 1.1))
    assert found.min() == 1 + 2**-7
    assert found.max() == 1.09375


def test_wide_without_a_domain_covers_the_finite_line():
    found = values("wide", "float8_e4m3fn", (4000,))
    assert np.isfinite(found).all()
    assert len(set(found.tolist())) == 253


@pytest.mark.parametrize("domain", [(2.0, 1.0), (1.001, 1.002), (math.nan, 1.0), (math.inf, math.inf)])
def test_a_domain_without_values_is_refused(domain):
    with pytest.raises(UsageError, match=r"domain \("):
        generate("log", "x", (3,), "wide", 0, "bfloat16", domain=domain)


def test_int8_normals_are_32_times_the_value_saturated():
    u = stream_words("gemm/a/40x9/normal", 7, 0, 16, 360)
    assert values("normal", "int8").ravel().tolist() == [max(-128, min(127, round(32 * q(i)))) for i in u]


def test_int8_uniforms_are_the_top_bits_of_the_word():
    u = stream_words("gemm/a/40x9/uniform", 7, 0, 16, 360)
    assert generate("gemm", "a", (40, 9), "uniform", 7, "int8").ravel().tolist() == [i >> 8 for i in u]
    assert generate("gemm", "a", (40, 9), "uniform", 7, "int32").ravel().tolist() == stream_words("gemm/a/40x9/uniform", 7, 1, 32, 360)


# Relations between formats, shapes and forms.


@pytest.mark.parametrize("input_class", [c for c, row in INPUT_CLASSES.items() if not row.by_codes and row.finite])
def test_narrow_formats_round_the_same_values(input_class):
    # float16 keeps three bits more than bfloat16: both must lie within half a unit of one another's
    wide, narrow = values(input_class, "float16"), values(input_class, "bfloat16")
    assert (np.abs(wide - narrow) <= np.abs(wide) * 2.0**-8 + 2.0**-20).all()


@pytest.mark.parametrize("input_class", [c for c, row in INPUT_CLASSES.items() if row.finite])
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fnuz", "float32", "float64"])
def test_finite_classes_hold_no_nan_and_no_inf(input_class, fmt):
    assert np.isfinite(values(input_class, fmt)).all()


def test_seed_operand_shape_and_class_each_change_the_stream():
    base = generate("gemm", "a", (8, 8), "normal", 0, "float32")
    for other in (
        generate("gemm", "a", (8, 8), "normal", 1, "float32"),
        generate("gemm", "b", (8, 8), "normal", 0, "float32"),
        generate("gemm", "a", (8, 8), "strided", 0, "float32"),
        generate("conv", "a", (8, 8), "normal", 0, "float32"),
        generate("gemm", "a", (4, 16), "normal", 0, "float32").reshape(8, 8),
    ):
        assert (base != other).mean() > 0.9


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("input_class", INPUT_CLASSES)
def test_empty_and_scalar_shapes_are_operands_too(input_class, shape):
    for fmt in ("bfloat16", "float32"):
        codes = generate("gemm", "a", shape, input_class, 0, fmt)
        assert codes.shape == shape
        assert codes.dtype == get_format(fmt).storage


@pytest.mark.parametrize("input_class", INPUT_CLASSES)
def test_compiled_and_numpy_forms_give_the_same_codes(input_class):
    for fmt in OPERAND_FORMATS:
        if input_class == "subnormal" and FORMATS[fmt].kind == "int":
            continue
        plain, fast = (generate("gemm", "b", (19, 23), input_class, 3, fmt, compiled=c) for c in (False, True))
        assert np.array_equal(plain, fast), fmt


@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("input_class", ["normal", "absmax", "outlier", "tiny", "specials"])
def test_several_pieces_equal_one_stream_for_any_number_of_threads(monkeypatch, input_class, fmt):
    shape = (3, 131_101)  # four pieces, the last one ragged
    found = []
    for threads, compiled in (("1", False), ("1", True), ("3", False), ("3", True)):
        monkeypatch.setenv("ACCURACY_EVAL_THREADS", threads)
        found.append(hashlib.sha256(generate("gemm", "a", shape, input_class, 3, fmt, compiled=compiled).tobytes()).hexdigest())
    assert len(set(found)) == 1
    if input_class == "normal":
        bits = {"bfloat16": 16, "float32": 32, "float64": 64}[fmt]
        key = stream_key("gemm", "a", shape, "normal", 3)
        w = philox_module.blocks(([393_300 * bits // 128], get_stream(bits), key.h1, key.h2), (3, key.h0))[0].view(f"<u{bits // 8}")
        last = decode(generate("gemm", "a", shape, input_class, 3, fmt), fmt).ravel()[393_300]
        assert last == pytest.approx(float(q(int(w[393_300 % (128 // bits)]) & 0xFFFF)), rel=2**-8, abs=2**-15)


def get_stream(bits: int) -> int:
    return {16: 0, 32: 1, 64: 2}[bits]


@pytest.mark.parametrize("fmt", OPERAND_FORMATS)
@pytest.mark.parametrize("input_class", INPUT_CLASSES)
def test_codes_equal_those_of_every_release(input_class, fmt):
    if input_class == "subnormal" and FORMATS[fmt].kind == "int":
        assert fmt not in GOLDEN[input_class]
        return
    found = {
        "x".join(map(str, shape)): hashlib.sha256(generate("gemm", "b", shape, input_class, 42, fmt).tobytes()).hexdigest()
        for shape in GOLDEN_SHAPES
    }
    assert found == GOLDEN[input_class][fmt]


# Statistics.


@pytest.mark.parametrize("spread", ["uniform", "skewed"])
@pytest.mark.parametrize("below", [1, 7, 202048])
def test_indices_are_scaled_words_of_a_stream_of_their_own(spread, below):
    words = stream_words(f"embedding/ids/50x3/{spread}{below}", 9, 1, 32, 150)
    expected = [((w * w >> 32) if spread == "skewed" else w) * below >> 32 for w in words]
    found = inputs.indices("embedding", "ids", (50, 3), below, 9, spread)
    assert (found.dtype, found.shape, found.ravel().tolist()) == (np.uint32, (50, 3), expected)


def test_equal_indices_are_the_middle_one():
    assert inputs.indices("embedding", "ids", (2, 2), 9, 0, "one").tolist() == [[4, 4], [4, 4]]


def test_float32_normals_use_their_lowest_bit():
    codes = generate("gemm", "a", (256, 256), "normal", 11, "float32")
    assert (codes & 1).mean() == pytest.approx(0.5, abs=0.01)


def test_float64_normals_use_their_lowest_bits():
    codes = generate("gemm", "a", (256, 256), "normal", 11, "float64")
    x = decode(codes, "float64")
    large = codes[np.abs(x) > 2.0**-6]  # below, the 2^-64 grid is coarser than the last bit
    assert (large & np.uint64(1)).mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float64"])
def test_normals_have_mean_zero_variance_one_and_kurtosis_three(fmt):
    x = values("normal", fmt, (512, 512))
    n = x.size
    assert abs(x.mean()) < 4 / math.sqrt(n)
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((x**4).mean() / x.var() ** 2 - 3) < 4 * math.sqrt(24 / n)


def test_neighbours_are_uncorrelated():
    x = values("normal", "float32", (512, 512))
    for other in (x[:, 1:], x[:, 4:], x[1:]):
        part = x[: other.shape[0], : other.shape[1]]
        assert abs((part * other).mean()) < 4 / math.sqrt(part.size)


# Refusals and loading.


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (("gemm", "a", (2, 2), "gaussian", 0, "float32"), {}, "unknown input class 'gaussian'; allowed: normal, uniform"),
        (("gemm", "a", (2, 2), "normal", 0, "float8_e8m0fnu"), {}, "float8_e8m0fnu is a format of scale factors"),
        (("gemm", "a", (2, -1), "normal", 0, "float32"), {}, r"shape \(2, -1\) has a negative size"),
        (("gemm", "a", (2, 2), "normal", 0, "float32"), {"axes": ("k",)}, r"1 axis names \('k',\) for shape \(2, 2\)"),
        (("gemm", "a", (2, 2), "normal", 0, "float32"), {"domain": (0, 1)}, "a domain is for class wide, not for 'normal'"),
    ],
    ids=["class", "format", "shape", "axes", "domain"],
)
def test_arguments_that_mean_nothing_are_refused(arguments, more, message):
    with pytest.raises(UsageError, match=message):
        generate(*arguments, **more)


def test_small_operands_are_made_without_numba():
    program = (
        "import sys; from accuracy_eval import inputs;"
        "[inputs.generate('gemm', 'a', (50, 50), c, 0, f) for c in inputs.INPUT_CLASSES for f in ('bfloat16', 'float32', 'float64')];"
        "assert 'numba' not in sys.modules; assert 'torch' not in sys.modules; print('ok')"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "ok\n"


def test_compiled_forms_run_as_plain_python_too():
    program = (
        "import numpy as np; from accuracy_eval import inputs;"
        "f = lambda c, t, k: inputs.generate('gemm', 'a', (5, 7), c, 1, t, compiled=k);"
        "print(all(np.array_equal(f(c, t, True), f(c, t, False))"
        " for c in ('normal', 'uniform', 'tiny') for t in ('bfloat16', 'float32', 'float64')))"
    )
    assert printed(program, compiled=False) == "True\n"
