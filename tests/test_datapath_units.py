"""Models of matrix units against their rules in exact arithmetic, and against results worked out by hand."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import support_datapath as exact

from accuracy_eval.datapath import CERTAINTIES, UNITS, Unit, dot, find_unit, gemm, units_of
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode, get_format

ROWS = 40
KNOWN = [u for u in UNITS if u.rule is not None]
BARE = [u for u in KNOWN if not u.scales]


def identity(u: Unit) -> str:
    return f"{u.name}-{u.formats[0]}-{u.out}"


def reference(unit: Unit, fmt: str) -> tuple[int, Callable[..., exact.Value]]:
    """Products a block and the block function of a unit, chosen by architecture from the published tables, not from the registry."""
    arch, name = unit.arch, unit.name
    wide = unit.out == "float32"
    if fmt == "float32":
        return 1, lambda a, b, c, ea, eb: exact.fma(a, b, c, bits=23, emin=-126, limit=exact.two(128))
    if fmt == "float64":
        return 1, lambda a, b, c, ea, eb: exact.fma(a, b, c, bits=52, emin=-1022, limit=exact.two(1024))
    if arch == "cdna1":
        return (4 if fmt == "float16" else 2), exact.exact_block
    if arch == "cdna2":
        return (2 if name == "cdna2/mfma.bf16" else 4), exact.flushing_block(exact.two(get_format(fmt).emin))
    if arch == "cdna3":
        if fmt.endswith("fnuz"):
            return 16, exact.truncating_block(2)
        return (4 if fmt == "tfloat32" else 8), exact.truncating_block(1)
    if arch == "rdna4":
        return 4, exact.rdna4_block
    fp8 = fmt.startswith("float8")
    if fp8 and unit.instruction == "mma.sync":
        return 32, partial(exact.emulated_block, half=not wide)
    small = fp8 or fmt.startswith(("float6", "float4"))
    L = {"volta": 4, "turing": 8, "ampere": 8, "ada": 8, "hopper": 16, "blackwell": 16}[arch]
    F = {"volta": 23, "turing": 24, "ampere": 24, "ada": 24, "hopper": 25, "blackwell": 25}[arch]
    e0 = {"volta": (-131, -19), "turing": (-132, -20), "ampere": (-132, -20), "ada": (-132, -20)}.get(arch, (-133, -21))[0 if wide else 1]
    rho = "RZ32" if wide else "RNE16"
    if fmt == "tfloat32":
        L //= 2
    if small:
        L *= 2
        if arch != "blackwell":
            F, rho = 13, ("RZ14" if wide else rho)
    return L, partial(exact.tfdpa, F=F, rho=rho, e0=e0)


def draw(rng: np.random.Generator, fmt: str, shape: tuple[int, int], kind: str) -> np.ndarray:
    """Codes: "ordinary" values near one, "wide" every finite pattern, "any" every pattern."""
    f = get_format(fmt)
    if kind == "ordinary":
        return encode(rng.standard_normal(shape), f)
    codes = rng.integers(0, 1 << f.bits, shape, dtype=np.uint64).astype(f.storage)
    if kind == "wide":
        codes = np.where(np.isfinite(decode(codes, f)), codes, 0).astype(f.storage)
    zeros = rng.random(shape) < 0.1
    return np.where(zeros, 0, codes).astype(f.storage)


@pytest.mark.parametrize("kind", ["ordinary", "wide", "any", "close"])
@pytest.mark.parametrize("unit", [u for u in BARE if u.arch != "rdna3"], ids=identity)
def test_a_unit_computes_its_rule(unit: Unit, kind: str) -> None:
    fmt = unit.formats[-1]
    L, block = reference(unit, fmt)
    k = max(2 * L, 4)  # of rdna4/wmma both blocks lie in one lane group: its order of k does not show
    rng = np.random.default_rng(zlib.crc32(f"{unit.name} {fmt} {unit.out} {kind}".encode()))
    drawn = "ordinary" if kind == "close" else kind
    a, b, c = draw(rng, fmt, (ROWS, k), drawn), draw(rng, fmt, (ROWS, k), drawn), draw(rng, unit.out, (ROWS, 1), drawn)[:, 0]
    if kind == "close":  # products and accumulator that nearly cancel, at random distances of exponent
        a[:, 1::2] = a[:, ::2]
        b[:, 1::2] = encode(-decode(b[:, ::2], fmt), fmt)
        c = encode(decode(c, unit.out) * 2.0 ** rng.integers(-30, 10, ROWS), unit.out)
    d = dot(unit, a, b, c, format=fmt, out=unit.out)
    got = decode(d, unit.out)
    for r in range(ROWS):
        va, ea = exact.operand_values(a[r], fmt)
        vb, eb = exact.operand_values(b[r], fmt)
        expected = exact.by_blocks(L, block, va, vb, exact.value(decode(c[r : r + 1], unit.out)[0]), ea, eb)
        assert exact.same(got[r], expected), (r, float(expected), got[r])


@pytest.mark.parametrize("fmt", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["ordinary", "wide", "any"])
def test_rdna3_counts_terms_against_the_accumulators_sign_in_ones_complement(fmt: str, kind: str) -> None:
    rng = np.random.default_rng(11)
    a, b = draw(rng, fmt, (ROWS, 8), kind), draw(rng, fmt, (ROWS, 8), kind)
    a[:, 2] = a[:, 3]
    b[:, 2] = encode(-decode(b[:, 3], fmt), fmt)
    c = draw(rng, "float32", (ROWS, 1), kind)[:, 0]
    got = decode(dot("rdna3", a, b, c, format=fmt), "float32")
    for r in range(ROWS):
        ea, eb = exact.operand_values(a[r], fmt)[1], exact.operand_values(b[r], fmt)[1]
        expected = exact.by_blocks(
            2, exact.rdna3_block(fmt == "bfloat16"), decode(a[r], fmt).tolist(), decode(b[r], fmt).tolist(),
            float(decode(c[r : r + 1], "float32")[0]), ea, eb,
        )  # fmt: skip
        assert exact.same(got[r], expected), (r, expected, got[r])


def packed(words: str, fmt: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """a, b [r, 2], c, d [r] of lines "AAAA.AAAA BBBB.BBBB CCCCCCCC DDDDDDDD", the low half of a word first in k."""
    rows = [[int(x, 16) for x in line.split()] for line in words.split("|")]
    w = np.array(rows, np.uint64)
    a, b = (np.stack([w[:, i] & 0xFFFF, w[:, i] >> 16], axis=1).astype(np.uint16) for i in (0, 1))
    return a, b, w[:, 2].astype(np.uint32), w[:, 3].astype(np.uint32)


# Results read off a Radeon PRO W7900 and a Radeon AI PRO R9700: two products and an accumulator.
W7900 = {
    "float16": "48004200 44004800 bf800000 425c0001|3c00bc00 3c003c00 3f800000 3f7fffff|3c003c00 3c003c00 c0000000 34000000|"
    "4800c800 48004800 3f800000 3f7fffc0|3c00bc00 3c000000 00000000 3f7fffff|00000001 3c008001 00000000 a7880000|"
    "058ef3f3 2b241c4a b8eed486 c2886106|cd6c4d6c 78af78af 00000000 bd000000|84950495 3d283d28 80000000 2c800000",
    "bfloat16": "00800000 3f808000 00000001 00000000|00000700 3f803f80 00000000 07000000|ff7f7f7f 7f7f7f7f 00000000 ff800000|"
    "c395629b d9633359 dc60025c 5d504185|afb72fb7 0d170d17 00000000 00000000|c4014401 33463346 00000000 ab800000",
}
R9700 = {
    "float16": "48004200 44004800 bf800000 425c0000|3c00bc00 3c003c00 3f800000 3f800000|00000001 3c008001 00000000 a7800000|"
    "058ef3f3 2b241c4a b8eed486 c2886106|cd6c4d6c 78af78af 00000000 00000000",
    "bfloat16": "00800000 3f808000 00000001 00800001|c395629b d9633359 dc60025c 5d504184|2061bc39 96b40093 0056dd77 00553463|"
    "37d6ba90 8901852c 80800007 81674c04|0364bc8c 3c468385 807ffffe 0069a402|8129061c bfaab964 007ffffd 017db7fe|"
    "0d040199 b3fb3e6b 807ffff8 817c9e7c|2dd81116 924aaedf 807ffffa 81568cfd",
}


@pytest.mark.parametrize("fmt", W7900)
def test_rdna3_gives_the_bits_read_off_a_w7900(fmt: str) -> None:
    a, b, c, d = packed(W7900[fmt], fmt)
    np.testing.assert_array_equal(dot("gfx1100", a, b, c, format=fmt), d)


@pytest.mark.parametrize("fmt", R9700)
def test_rdna4_gives_the_bits_read_off_an_r9700(fmt: str) -> None:
    a, b, c, d = packed(R9700[fmt], fmt)
    np.testing.assert_array_equal(dot("gfx1201", a, b, c, format=fmt), d)


def hexadecimal(text: str) -> np.ndarray:
    return np.array([[int(x, 16) for x in text.split()]], np.uint16)


@pytest.mark.parametrize(
    ("fmt", "a", "b", "c", "wave32", "wave64"),
    [
        (
            "float16",
            "c6e1 b1ea d31d 2d4f 4a45 d1f1 3362 c244 4a75 443e 5623 4ec3 57c7 b82e cf34 3660",
            "d36c c886 2f3d 30a3 d070 b2cb 4759 cf27 4ed4 3c97 ae37 b63f 35f0 3a25 b0d8 405a",
            0xBF6BA3B9, 0x43DFC44B, 0x43DFC44A,
        ),
        (
            "bfloat16",
            "bfaa 3ed7 3d5c be3a c0f4 4255 c246 40b2 3d20 40f9 bee9 42d9 3eba 3fb4 bd8a bd6d",
            "c028 417c c28c 41e8 bdf2 c057 428f 4029 3e28 bce5 c0c7 3e6f 40cc 3cd8 42a2 be64",
            0x3F4725A9, 0xC565BD89, 0xC565BD8A,
        ),
        (
            "float16",
            "9844 3f7a 606f c18c be5b 891f bbfb 93b8 c3c6 32f2 f44e 15cf 5eeb 2b55 8bef a075",
            "8e88 ec18 d3c2 f6ae 0cdb 87c5 4587 5825 6e7d 8ab5 8773 4108 91c2 3987 62ab fbad",
            0x48E26837, 0x48E6175E, 0x48E6175F,
        ),
    ],
    ids=["float16", "bfloat16", "float16-wide"],
)  # fmt: skip
def test_rdna4_orders_k_by_the_wave_size(fmt: str, a: str, b: str, c: int, wave32: int, wave64: int) -> None:
    start = np.array([c], np.uint32)
    assert dot("rdna4/wmma", hexadecimal(a), hexadecimal(b), start, format=fmt)[0] == wave32
    assert dot("rdna4/wmma.w64", hexadecimal(a), hexadecimal(b), start, format=fmt)[0] == wave64


def spread(terms: dict[int, float], k: int) -> np.ndarray:
    row = np.zeros((1, k))
    for index, x in terms.items():
        row[0, index] = x
    return row


@pytest.mark.parametrize(
    ("unit", "fmt", "kept"),
    [
        ("volta", "float16", 23), ("turing", "float16", 24), ("ampere", "bfloat16", 24), ("ampere", "tfloat32", 24), ("ada", "float16", 24),
        ("ada", "float8_e4m3fn", 13), ("hopper", "bfloat16", 25), ("hopper", "tfloat32", 25), ("hopper", "float8_e5m2", 13),
        ("blackwell", "float16", 25), ("blackwell", "float8_e4m3fn", 25), ("cdna3", "bfloat16", 24), ("cdna3", "tfloat32", 24),
    ],
)  # fmt: skip
def test_a_product_kept_bits_below_the_largest_counts_and_one_below_that_does_not(unit: str, fmt: str, kept: int) -> None:
    # 2^h·2^h − 2^h·2^h + 2^(2h − j): the small product survives alignment as long as j ≤ F
    h = 7
    for j, expected in ((kept, 2.0 ** (2 * h - kept)), (kept + 1, 0.0)):
        e = 2 * h - j
        a = spread({0: 2.0**h, 1: 2.0**h, 2: 2.0 ** (e // 2)}, 32)
        b = spread({0: 2.0**h, 1: -(2.0**h), 2: 2.0 ** (e - e // 2)}, 32)
        assert decode(dot(unit, a, b, format=fmt), "float32")[0] == expected


def test_cdna1_adds_four_products_and_the_accumulator_exactly_and_rounds_once_a_block() -> None:
    large, tiny = 2.0**15, 2.0**-24
    together = {0: large, 1: large, 3: tiny}, {0: large, 1: -large, 3: tiny}  # 2^30 − 2^30 + 2^-48 in one block
    carried = {0: large, 5: large, 6: tiny}, {0: large, 5: -large, 6: tiny}  # the accumulator holds 2^30, exactly
    lost = {0: large, 3: tiny, 5: large}, {0: large, 3: tiny, 5: -large}  # 2^30 + 2^-48 is rounded before −2^30 comes
    for (a, b), expected in ((together, tiny**2), (carried, tiny**2), (lost, 0.0)):
        assert decode(dot("MI100", spread(a, 8), spread(b, 8), format="float16"), "float32")[0] == expected


def test_a_negative_accumulator_far_below_pulls_a_cdna3_result_down_but_a_positive_one_does_not() -> None:
    one, tiny = np.ones((1, 1)), 2.0**-40
    for fmt in ("float16", "bfloat16", "tfloat32"):
        assert dot("MI300X", one, one, np.array([-tiny]), format=fmt)[0] == 0x3F7FFFFF
        assert dot("MI300X", one, one, np.array([tiny]), format=fmt)[0] == 0x3F800000
        assert dot("cdna2", one, one, np.array([-tiny]), format="float16")[0] == 0x3F800000


def test_cdna3_fp8_drops_an_accumulator_more_than_25_binades_below() -> None:
    one = np.ones((1, 1))
    codes = [dot("gfx942", one, one, np.array([-(2.0**-e)]), format="float8_e4m3fnuz")[0] for e in (25, 26)]
    assert codes == [0x3F7FFFFF, 0x3F800000]


def test_cdna3_takes_a_product_of_2_to_the_128_as_infinite_and_two_of_opposite_signs_as_nan() -> None:
    big = 2.0**64
    assert dot("cdna3", spread({0: big}, 8), spread({0: big}, 8), format="bfloat16")[0] == 0x7F800000
    both = dot("cdna3", spread({0: big, 1: big}, 8), spread({0: big, 1: -big}, 8), format="bfloat16")
    assert np.isnan(decode(both, "float32"))[0]


def test_nvidia_products_beyond_float32_cancel_because_exponents_are_wide() -> None:
    a, b = spread({0: 2.0**80, 1: 2.0**80, 2: 1.0}, 16), spread({0: 2.0**80, 1: -(2.0**80), 2: 1.0}, 16)
    assert dot("hopper", a, b, format="bfloat16")[0] == 0  # the 1 lies below the alignment
    assert np.isnan(decode(dot("cdna2", a, b, format="bfloat16"), "float32"))[0]
    assert dot("cdna1", a, b, format="bfloat16")[0] == 0x3F800000  # exact: nothing is lost


def test_cdna2_reads_and_writes_subnormals_as_zero_and_hopper_keeps_them() -> None:
    small = spread({0: 2.0**-24}, 4), spread({0: 1.0}, 4)
    assert dot("gfx90a", *small, format="float16")[0] == 0
    assert decode(dot("hopper", *small, format="float16"), "float32")[0] == 2.0**-24
    deep = spread({0: 2.0**-70}, 4), spread({0: 2.0**-70}, 4)
    assert dot("gfx90a", *deep, format="bfloat16")[0] == 0
    # a zero among the terms aligns at 2^-133, which leaves 2^-158: 2^-140 is kept
    assert decode(dot("hopper", *deep, format="bfloat16"), "float32")[0] == 2.0**-140


def test_the_exponent_of_zero_terms_cuts_what_is_smaller_still() -> None:
    # 1.984375·2^-66 squared = 3.9376… ·2^-132; aligned at Hopper's 2^-133 nothing of it is lost, at Volta's neither: look 25 bits down
    for unit, bits in (("hopper", 133 + 25), ("ampere", 132 + 24)):
        e = -bits + 1
        kept = dot(unit, spread({0: 2.0 ** (e // 2)}, 16), spread({0: 2.0 ** (e - e // 2)}, 16), format="bfloat16")
        assert decode(kept, "float32")[0] == 0.0  # above the alignment but below float32's smallest value 2^-149
    a, b = spread({0: 2.0**-75}, 16), spread({0: 2.0**-74}, 16)
    assert dot("hopper", a, b, format="bfloat16")[0] == 1


@pytest.mark.parametrize("unit", [u for u in BARE if u.arch not in ("rdna3", "rdna4")], ids=identity)
def test_a_sum_of_negative_zeros_is_positive_zero_except_in_a_chain_of_fused_operations(unit: Unit) -> None:
    fmt = unit.formats[0]
    if not get_format(fmt).has_negative_zero:
        fmt_zero = np.zeros((1, 32))
    else:
        fmt_zero = -np.zeros((1, 32))
    d = dot(unit, fmt_zero, np.ones((1, 32)), -np.zeros(1), format=fmt, out=unit.out)
    negative = fmt in ("float32", "float64") or unit.arch == "cdna2"
    assert bool(d[0]) == negative


@pytest.mark.parametrize("unit", [u for u in BARE if get_format(u.formats[0]).has_inf], ids=identity)
def test_infinities_and_nan_follow_ieee_classes(unit: Unit) -> None:
    fmt = unit.formats[0]
    inf, nan = math.inf, math.nan
    cases = [  # a0, b0, a1, b1, c → result
        (inf, 1.0, 1.0, 1.0, 0.0, inf), (-inf, 2.0, 1.0, 1.0, 0.0, -inf), (inf, 0.0, 1.0, 1.0, 0.0, nan), (inf, 1.0, -inf, 1.0, 0.0, nan),
        (inf, 1.0, 1.0, 1.0, -inf, nan), (1.0, 1.0, 1.0, 1.0, inf, inf), (1.0, 1.0, 1.0, 1.0, -inf, -inf), (nan, 0.0, 1.0, 1.0, 0.0, nan),
        (1.0, 1.0, 1.0, nan, inf, nan), (1.0, 1.0, 1.0, 1.0, nan, nan), (inf, 1.0, 1.0, 1.0, inf, inf),
    ]  # fmt: skip
    a, b = np.zeros((len(cases), 32)), np.zeros((len(cases), 32))
    a[:, 0], b[:, 0], a[:, 1], b[:, 1] = np.array([x[:4] for x in cases]).T
    d = dot(unit, a, b, np.array([x[4] for x in cases]), format=fmt, out=unit.out)
    np.testing.assert_array_equal(decode(d, unit.out), [x[5] for x in cases])


def test_nvidia_units_write_one_nan() -> None:
    nan = np.full((1, 4), math.nan)
    assert dot("hopper", nan, nan, format="float16")[0] == 0x7FFFFFFF
    assert dot("hopper", nan, nan, format="float16", out="float16")[0] == 0x7FFF


def test_float32_results_overflow_to_infinity_and_float16_ones_at_65520() -> None:
    big = np.full((1, 4), 2.0**64)
    assert dot("hopper", big, big, format="bfloat16")[0] == 0x7F800000
    x = spread({0: 65504.0, 1: 8.0}, 16)
    ones = spread({0: 1.0, 1: 1.0}, 16)
    assert dot("hopper", x, ones, format="float16", out="float16")[0] == 0x7BFF
    x[0, 1] = 16.0
    assert dot("hopper", x, ones, format="float16", out="float16")[0] == 0x7C00


def test_hoppers_fp8_accumulator_keeps_14_significant_bits() -> None:
    c = np.array([1.0 + 2.0**-13, 1.0 + 2.0**-14])
    zero = np.zeros((2, 32))
    np.testing.assert_array_equal(decode(dot("hopper", zero, zero, c, format="float8_e4m3fn"), "float32"), [1.0 + 2.0**-13, 1.0])


def test_mma_sync_adds_the_accumulator_to_a_rounded_product_sum() -> None:
    # three halves of an ulp of 2^8: the two fp16 blocks hold them exactly, the addition rounds to nearest even: 2 ulp
    a, b = spread({0: 2.0**-8, 1: 2.0**-8, 2: 2.0**-8}, 32), spread({0: 2.0**-8, 1: 2.0**-8, 2: 2.0**-8}, 32)
    c = np.array([256.0])
    assert decode(dot("hopper/mma.sync", a, b, c, format="float8_e4m3fn"), "float32")[0] == 256.0 + 2.0**-14
    assert decode(dot("hopper/wgmma", a, b, c, format="float8_e4m3fn"), "float32")[0] == 256.0


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "float8_ue4m3"])
def test_block_scaled_fp4_follows_the_group_rule(scale: str) -> None:
    rng = np.random.default_rng(3)
    width = 16 if scale == "float8_ue4m3" else 32
    emin = -6 if scale == "float8_ue4m3" else -127
    a, b = draw(rng, "float4_e2m1fn", (ROWS, 128), "wide"), draw(rng, "float4_e2m1fn", (ROWS, 128), "wide")
    a[:8, 16:32] = 0
    low, high = (0, 127) if width == 16 else (90, 160)
    sa, sb = (rng.integers(low, high, (ROWS, 128 // width)).astype(np.uint8) for _ in range(2))
    c = encode(rng.standard_normal(ROWS) * 2.0 ** rng.integers(-40, 20, ROWS), "float32")
    got = decode(dot("sm_100", a, b, c, format="fp4", a_scale=sa, b_scale=sb), "float32")
    for r in range(ROWS):
        va, vb = exact.operand_values(a[r], "float4_e2m1fn")[0], exact.operand_values(b[r], "float4_e2m1fn")[0]
        scales = [[exact.value(x) for x in np.repeat(decode(s[r], scale), width // 16).tolist()] for s in (sa, sb)]
        expected = exact.value(decode(c[r : r + 1], "float32")[0])
        for i in (0, 1):
            part = slice(64 * i, 64 * i + 64), slice(4 * i, 4 * i + 4)
            expected = exact.grouped_block(va[part[0]], vb[part[0]], expected, scales[0][part[1]], scales[1][part[1]], emin)
        assert exact.same(got[r], expected), (r, float(expected), got[r])


def test_e8m0_scales_move_exponents_and_a_nan_scale_makes_the_row_nan() -> None:
    x = np.full((2, 32), 2.0**-9)  # e4m3's smallest subnormal: aligned by exponent −6, not −9
    sa = np.array([[127 + 10], [255]], np.uint8)
    d = decode(dot("B200", x, x, format="e4m3", a_scale=sa, b_scale=np.array([[127], [127]], np.uint8)), "float32")
    assert d[0] == 32 * 2.0**-18 * 2.0**10
    assert math.isnan(d[1])


def test_scales_may_be_given_as_values_and_a_missing_one_is_one() -> None:
    x = np.ones((1, 64))
    assert decode(dot("sm_120", x, x, format="e2m1", a_scale=np.array([[2.0, 4.0]])), "float32")[0] == 32 * 2 + 32 * 4
    assert decode(dot("sm_120", x, x, format="e2m1", a_scale=np.full((1, 4), 1.5), b_scale=np.full((1, 4), 2.0)), "float32")[0] == 192


@pytest.mark.parametrize("unit", [u for u in BARE if u.arch in ("hopper", "volta", "cdna1", "cdna2", "cdna3", "rdna4")], ids=identity)
def test_a_matrix_is_its_rows_and_columns_one_by_one(unit: Unit) -> None:
    fmt = unit.formats[0]
    rng = np.random.default_rng(5)
    a, b = draw(rng, fmt, (35, 67), "ordinary"), draw(rng, fmt, (131, 67), "ordinary")
    a[3], b[129] = encode(np.full(67, 0.5), fmt), encode(np.full(67, -0.25), fmt)
    d = gemm(unit, a, b, format=fmt, out=unit.out)
    i, j = np.array([0, 3, 34, 17, 34]), np.array([0, 129, 130, 64, 128])
    np.testing.assert_array_equal(d[i, j], dot(unit, a[i], b[j], format=fmt, out=unit.out))


def test_an_operand_of_each_format_of_a_pair_is_decoded_by_its_own() -> None:
    a = np.array([[0x38, 0x40]], np.uint8)  # e4m3: 1, 2
    b = np.array([[0x3C, 0xC0]], np.uint8)  # e5m2: 1, −2
    assert decode(dot("hopper", a, b, format=("float8_e4m3fn", "float8_e5m2")), "float32")[0] == 1 - 4


def test_float_operands_are_rounded_to_the_format_but_tf32_ones_are_cut() -> None:
    x, one = np.array([[1 + 2.0**-11 + 2.0**-12]]), np.ones((1, 1))
    assert decode(dot("cdna3", x.astype(np.float32), one, format="tfloat32"), "float32")[0] == 1.0
    assert decode(dot("hopper", x, one, format="float16"), "float32")[0] == 1 + 2.0**-10


def test_ml_dtypes_arrays_are_taken_as_they_are() -> None:
    import ml_dtypes

    x = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    assert decode(dot("hopper", x, x, format="bfloat16"), "float32")[0] == 2.25 + 4.0


def test_the_result_may_be_rounded_once_to_a_narrower_format() -> None:
    x, y = np.array([[1.0, 1.0]]), np.array([[1.0, 2.0**-8 + 2.0**-9]])
    assert decode(dot("hopper", x, y, format="bfloat16", out="bfloat16"), "bfloat16")[0] == 1 + 2.0**-7


def test_an_empty_contraction_returns_the_accumulator() -> None:
    empty = np.zeros((2, 0))
    np.testing.assert_array_equal(decode(dot("hopper", empty, empty, np.array([1.5, -2.0]), format="bfloat16"), "float32"), [1.5, -2.0])


@pytest.mark.parametrize("name", ["cdna4", "MI355X", "gfx950"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn"])
def test_an_unknown_unit_is_named_as_unknown_and_not_invented(name: str, fmt: str) -> None:
    with pytest.raises(UsageError, match=r"the arithmetic of cdna4/mfma for .* is not known .*; probe the device"):
        find_unit(name, fmt)


def test_a_format_a_unit_does_not_take_is_refused_with_what_it_takes() -> None:
    with pytest.raises(UsageError, match=r"unit 'volta' has no instruction for bfloat16 × bfloat16; it has: volta/dfma float64; "):
        find_unit("volta", "bfloat16")
    with pytest.raises(
        UsageError,
        match=r"unknown matrix instruction 'hopper/wmma' \(did you mean hopper/wgmma or .*\); allowed: hopper/dmma, hopper/ffma, ",
    ):
        units_of("hopper/wmma")


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 4))
    with pytest.raises(UsageError, match="dot works row by row: a has 2 rows, b 3"):
        dot("hopper", x, np.zeros((3, 4)), format="float16")
    with pytest.raises(UsageError, match="a and b have different k: 4 and 5"):
        gemm("hopper", x, np.zeros((2, 5)), format="float16")
    with pytest.raises(UsageError, match=r"c has shape \(3,\), expected \(2,\)"):
        dot("hopper", x, x, np.zeros(3), format="float16")
    with pytest.raises(UsageError, match=r"block scales of shape \(2, 3\) do not fit an operand of shape \(2, 4\)"):
        dot("blackwell", x, x, format="e4m3", a_scale=np.ones((2, 3)))


def test_rows_of_the_registry_are_distinct_and_say_where_they_come_from() -> None:
    keys = [(u.name, f, u.out, bool(u.scales)) for u in UNITS for f in u.formats]
    assert len(keys) == len(set(keys))
    for u in UNITS:
        assert u.source
        assert u.certainty in CERTAINTIES
        assert (u.rule is None) == (u.certainty == "unknown")
        for f in u.formats:
            get_format(f)


def test_every_unit_stands_in_the_documentation_with_its_rule_and_certainty() -> None:
    text = (Path(__file__).parent.parent / "docs" / "datapath.md").read_text()
    for u in UNITS:
        start, end = f"| {u.name} | {', '.join(u.formats)}", f"| {u.rule or '–'} | {u.out or '–'} | {u.certainty} | {u.source} |"
        assert any(line.startswith(start) and line.endswith(end) for line in text.splitlines()), u.name
