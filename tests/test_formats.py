"""Every format against ml_dtypes or against its definition in fractions."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import (
    ALIASES,
    FAMILIES,
    FORMATS,
    arithmetic_format,
    concrete,
    decode,
    decode_table,
    differing,
    encode,
    get_family,
    get_format,
    is_nan,
    ordinal_distance,
    ordinals,
    round_to,
    ulp,
)  # fmt: skip

NARROW = [f for f in FORMATS.values() if f.kind == "float" and f.bits <= 16]
IN_ML_DTYPES = [f for f in NARROW if hasattr(ml_dtypes, f.name)]
FLOATS = [f for f in FORMATS.values() if f.kind == "float"]
by_name = pytest.mark.parametrize


def every_code(f):
    return np.arange(1 << f.bits).astype(f.storage)


def sampled_codes(f):
    """All codes of narrow formats; of wide ones a step through the patterns plus every edge."""
    if f.bits <= 16:
        return every_code(f)
    steps = (np.arange(1 << 12, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - f.bits)
    edges = [
        0,
        1,
        f.max_code,
        f.max_code - 1,
        f.inf_code,
        f.nan_code,
        f.sign_mask,
        f.sign_mask | 1,
        f.sign_mask | f.max_code,
        f.sign_mask | f.inf_code,
    ]
    powers = [(e << f.fraction_bits) + d for e in range(1, 1 << f.exponent_bits) for d in (-1, 0, 1)]
    return np.array([*steps.tolist(), *edges, *powers], np.uint64).astype(f.storage)


def library_values(codes, f):
    with np.errstate(invalid="ignore"):
        return codes.view(getattr(ml_dtypes, f.name)).astype(np.float64)


def exact_neighbours(x, f):
    """Codes whose value is nearest to the Fraction x, by exhaustive search over the decode table."""
    table = decode_table(f.name)
    finite = [(abs(Fraction(v) - x), c) for c, v in enumerate(table) if math.isfinite(v)]
    best = min(d for d, _ in finite)
    return {c for d, c in finite if d == best}


@by_name("f", IN_ML_DTYPES, ids=lambda f: f.name)
def test_every_code_decodes_as_in_ml_dtypes(f):
    codes = every_code(f)
    np.testing.assert_array_equal(decode(codes, f), library_values(codes, f))
    numbers = ~is_nan(codes, f)
    np.testing.assert_array_equal(np.signbit(decode(codes, f)[numbers]), np.signbit(library_values(codes, f)[numbers]))


@by_name("name", ["float32", "float16", "float64"])
def test_ieee_formats_decode_as_numpy_views(name):
    f = get_format(name)
    codes = sampled_codes(f)
    with np.errstate(invalid="ignore"):
        expected = codes.view(name).astype(np.float64)
    np.testing.assert_array_equal(decode(codes, f), expected)


def test_ue4m3_decodes_as_e4m3fn_without_its_sign():
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(decode(codes, "float8_ue4m3"), decode(codes & 0x7F, "float8_e4m3fn"))


def test_tfloat32_codes_are_the_upper_19_bits_of_float32():
    codes = np.array([0x3F800000 >> 13, 0xBF800000 >> 13, (0x3F800000 >> 13) + 1], np.uint32)
    np.testing.assert_array_equal(decode(codes, "tfloat32"), [1.0, -1.0, 1 + 2.0**-10])


@by_name("f", FLOATS, ids=lambda f: f.name)
def test_decode_then_encode_gives_the_code_back(f):
    codes = sampled_codes(f)
    codes = codes[~is_nan(codes, f)]
    if not f.signed:
        codes = codes[codes <= f.magnitude_mask]
    np.testing.assert_array_equal(encode(decode(codes, f), f, overflow="inf" if f.has_inf else "saturate"), codes)


def test_mx_scale_exceptions_are_documented_ones():
    # 0x00 is 2^-127 and 0xFF NaN; there is no zero: zero saturates to 2^-127, or is NaN under the policy "nan"
    assert decode(np.array([0, 254, 255], np.uint8), "float8_e8m0fnu").tolist()[:2] == [2.0**-127, 2.0**127]
    assert np.isnan(decode(np.array([255], np.uint8), "float8_e8m0fnu"))[0]
    assert encode([0.0, 1e-300, -1.0, 1.5, 3.0, 1e39], "float8_e8m0fnu", overflow="saturate").tolist() == [0, 0, 255, 128, 129, 254]
    assert encode([0.0, 1e39, 1.0], "float8_e8m0fnu", overflow="nan").tolist() == [255, 255, 127]


@by_name("f", [f for f in NARROW if f.bits <= 8 and f.specials != "e8m0" and f.signed], ids=lambda f: f.name)
def test_encode_picks_the_nearest_value_and_breaks_ties_to_the_even_code(f):
    table = decode_table(f.name)
    finite = np.unique(table[np.isfinite(table)])
    middles = (finite[1:] + finite[:-1]) / 2
    inputs = np.concatenate([middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), finite])
    for x, code in zip(inputs, encode(inputs, f, overflow="saturate"), strict=True):
        nearest = exact_neighbours(Fraction(x), f)
        assert int(code) in nearest
        if len({table[c] for c in nearest}) > 1:  # ±0 are one value
            assert int(code) % 2 == 0


@by_name("f", [f for f in IN_ML_DTYPES if f.name != "float8_e8m0fnu"], ids=lambda f: f.name)
def test_encode_agrees_with_ml_dtypes_on_float32_values(f):
    # ml_dtypes rounds float64 through float32: only float32 values compare
    x = (np.arange(1 << 17, dtype=np.uint64) * 32749 % (1 << 32)).astype(np.uint32).view(np.float32)
    x = x[~np.isnan(x)] if f.specials == "finite" else x
    with np.errstate(invalid="ignore", over="ignore"):
        library = x.astype(getattr(ml_dtypes, f.name)).view(f.storage)
        ours = encode(x, f, overflow="inf" if f.has_inf else "nan" if f.has_nan else "saturate")
    differs = (library != ours) & ~(is_nan(library, f) & is_nan(ours, f))
    assert not differs.any(), (x[differs][:5], library[differs][:5], ours[differs][:5])


def test_float64_rounds_to_bfloat16_once_and_not_through_float32():
    # just above the midpoint of 1 and 1 + 2^-7: float32 would first drop to the midpoint and then tie to even
    assert encode([1 + 2.0**-8 + 2.0**-40], "bfloat16").tolist() == [0x3F81]
    assert encode([1 + 2.0**-11 + 2.0**-40], "float16").tolist() == [0x3C01]


@by_name(
    ("name", "policy", "expected"),
    [
        ("float8_e4m3fn", "saturate", [0x7E, 0x7E, 0x7E, 0xFE, 0x7E]),
        ("float8_e4m3fn", "nan", [0x7E, 0x7F, 0x7F, 0x7F, 0x7F]),
        ("float8_e5m2", "inf", [0x5F, 0x5F, 0x64, 0xE4, 0x7C]),
        ("float8_e4m3fnuz", "saturate", [0x7F, 0x7F, 0x7F, 0xFF, 0x7F]),
        ("float8_e4m3fnuz", "nan", [0x80, 0x80, 0x80, 0x80, 0x80]),
        ("float64", "saturate", [0x407D000000000000, 0x407D100000000000, 0x408F400000000000, 0xC08F400000000000, 0x7FEFFFFFFFFFFFFF]),
        ("float64", "nan", [0x407D000000000000, 0x407D100000000000, 0x408F400000000000, 0xC08F400000000000, 0x7FF8000000000000]),
        ("float16", "inf", [0x5F40, 0x5F44, 0x63D0, 0xE3D0, 0x7C00]),
        ("float16", "saturate", [0x5F40, 0x5F44, 0x63D0, 0xE3D0, 0x7BFF]),
    ],
)
def test_overflow_follows_the_stated_policy(name, policy, expected):
    assert encode([464.0, 465.0, 1000.0, -1000.0, math.inf], name, overflow=policy).tolist() == expected


def test_a_policy_the_format_cannot_follow_is_an_error():
    with pytest.raises(UsageError, match=r"float8_e4m3fn has no Inf; allowed: saturate, nan"):
        encode([1.0], "float8_e4m3fn", overflow="inf")


@by_name("f", [f for f in FLOATS if f.has_nan], ids=lambda f: f.name)
def test_nan_becomes_the_canonical_code(f):
    assert encode([math.nan, -math.nan], f).tolist() == [f.nan_code] * 2
    assert np.isnan(decode(np.array([f.nan_code], f.storage), f)).all()


def test_nan_has_no_code_in_a_format_without_one():
    with pytest.raises(UsageError, match="NaN has no code in float4_e2m1fn"):
        encode([math.nan], "float4_e2m1fn")
    with pytest.raises(UsageError, match="NaN has no code in int8"):
        encode([math.nan], "int8")


def test_integers_round_to_even_and_saturate():
    assert encode([2.5, 3.5, -2.5, 1e9, -1e9], "int8").view(np.int8).tolist() == [2, 4, -2, 127, -128]
    assert encode([-1.0, 255.5], "uint8").tolist() == [0, 255]
    assert decode(np.array([0xFF, 0x80], np.uint8), "int8").tolist() == [-1.0, -128.0]


@by_name("f", [f for f in NARROW if f.signed], ids=lambda f: f.name)
def test_ordinals_number_the_values_in_order_without_gaps(f):
    codes = every_code(f)
    codes = codes[~is_nan(codes, f)]
    values, places = decode(codes, f), ordinals(codes, f)
    order = np.argsort(values, kind="stable")
    steps = np.diff(places[order])
    assert set(steps.tolist()) <= {0, 1}  # 0 only between -0 and +0
    assert (steps == 0).sum() == (1 if f.has_negative_zero else 0)


def test_ordinal_distance_crosses_zero_and_the_whole_float64_line():
    four = encode([4.0, -4.0, -0.0, 0.0], "bfloat16")
    assert int(ordinal_distance(four[:1], four[1:2], "bfloat16")[0]) == 33024
    assert int(ordinal_distance(four[2:3], four[3:], "bfloat16")[0]) == 0
    ends = np.array([math.inf, -math.inf]).view(np.uint64)
    assert int(ordinal_distance(ends[:1], ends[1:], "float64")[0]) == 2 * 0x7FF0000000000000


@by_name("f", FLOATS, ids=lambda f: f.name)
def test_ulp_is_the_distance_to_the_next_value_away_from_zero(f):
    codes = np.unique(sampled_codes(f) & f.storage.type(f.magnitude_mask))
    codes = codes[codes < f.max_code]
    values = decode(codes, f)
    gap = decode(codes + f.storage.type(1), f) - values
    if f.specials == "e8m0":
        assert (ulp(values, f) == values).all()
    else:
        np.testing.assert_array_equal(ulp(values, f), gap)


def test_limits_are_those_of_the_specifications():
    limits = {n: (f.max, f.smallest_subnormal) for n, f in FORMATS.items() if f.bits <= 16 and f.kind == "float"}
    assert limits["float8_e4m3fn"] == (448.0, 2.0**-9)
    assert limits["float8_e4m3fnuz"] == (240.0, 2.0**-10)
    assert limits["float8_e5m2"] == (57344.0, 2.0**-16)
    assert limits["float8_e5m2fnuz"] == (57344.0, 2.0**-17)
    assert limits["float4_e2m1fn"] == (6.0, 0.5)
    assert limits["float6_e2m3fn"] == (7.5, 0.125)
    assert limits["float6_e3m2fn"] == (28.0, 0.0625)
    assert limits["float16"] == (65504.0, 2.0**-24)


def test_families_hold_the_encodings_of_one_number():
    assert FAMILIES["fp8_e4m3"] == ("float8_e4m3fn", "float8_e4m3fnuz")
    assert concrete("fp8_e4m3", "fnuz").name == "float8_e4m3fnuz"
    assert concrete("bfloat16", "fnuz").name == "bfloat16"
    assert {get_family(a) for a in ALIASES} <= set(FAMILIES)


def test_an_unknown_format_names_what_is_allowed():
    with pytest.raises(UsageError, match=r"unknown format 'bf17' \(did you mean bf16\?\); allowed: bf16, .*bfloat16, .*fp8_e4m3, "):
        get_format("bf17")


def test_codes_must_be_integers():
    with pytest.raises(UsageError, match=r"codes of bfloat16 must be integers, found dtype float64"):
        decode(np.zeros(2), "bfloat16")


@by_name("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_shapes_survive_conversion(shape):
    codes = encode(np.ones(shape), "bfloat16")
    assert codes.shape == shape
    assert decode(codes, "bfloat16").shape == shape


def test_codes_differ_unless_they_are_equal_or_both_nan():
    a, b = (x.astype(np.uint8) for x in np.meshgrid(np.arange(256), np.arange(256)))
    values = [decode(x, "float8_e5m2") for x in (a, b)]
    same = (a == b) | (np.isnan(values[0]) & np.isnan(values[1]))
    assert np.array_equal(differing(a, b, "float8_e5m2"), ~same)
    assert np.array_equal(differing(a, b, "int8"), a != b)


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32"])
def test_rounding_to_a_format_is_that_of_ml_dtypes(fmt):
    values = np.random.default_rng(0).standard_normal(4096)
    assert np.array_equal(round_to(values, fmt), values.astype(np.dtype(getattr(ml_dtypes, fmt, fmt))).astype(np.float64))


@pytest.mark.parametrize(("fmt", "computed"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")])
def test_only_float64_is_computed_in_float64(fmt, computed):
    assert arithmetic_format(fmt).name == computed
