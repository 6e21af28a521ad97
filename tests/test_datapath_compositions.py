"""The language of compositions: reading, printing, one spelling for one arithmetic, and what it makes of operands."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import support_datapath as exact

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath.compositions import canonical, parse
from accuracy_eval.datapath.evaluation import Problem, evaluate, problem_of
from accuracy_eval.datapath.orders import FWD, Order, Pieces, cut, ordered
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.records import Coded

TEXTS = [
    "F fwd", "D fwd r4x32 seq", "T16.25.23 fwd", "T16.25.23 res64", "T8.25.23 fwd c8 seq", "tf32rne T8.25.23 fwd c192 seq",
    "tf32rz TR4 lanes4x4.2 r2x32 seq", "T32.13.13 fwd *(ab)", "T32.13.13 fwd c128 seq *a*b", "T32.13.13 fwd c128 blk >bfloat16",
    "fp16 T16.25.23 fwd c64 tree *b*a *alpha +fma(c) +bias >float16", "H16.25@-20 fwd", "T8.24.23@-132 fwd c32 rev", "GTR16 fwd", "E4 fwd",
    "Z2 fwd", "W3 fwd", "W4 lanes2x8.4", "M32 fwd", "M32h fwd", "F res16 c4 seq", "T16.25.23 res64 lanes4x8.4 c128 seq",
    "T8.25.23 fwd c200 res32 seq", "T16.25.23 fwd c400 res64 ~bfloat16 seq >bfloat16", "F fwd r16x1 (c16 seq) seq",
    "P fwd c256 (c2 half) seq", "D fwd r7x32 last",
    "T16.25.23 fwd *alpha ~bfloat16 +fma(c) >bfloat16",
    "F fwd r32x1 res4 (c8 tree) ~float16 half >float16",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_composition_prints_as_it_is_written(text: str) -> None:
    assert str(parse(text)) == text


def test_words_that_say_nothing_may_be_left_out() -> None:
    assert parse("T16.25.23") == parse("T16.25.23 fwd")
    assert parse("F c32 seq") == parse("F fwd c32 seq")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "composition '' names no rule"),
        ("Q16", "unknown arithmetic rule 'Q16'; allowed: TL.F.P, HL.F, D, E2, E4, F, "),
        ("T5.25.23", "rule 'T5.25.23' is out of range; allowed: L 4, 8, 16, 32 or 64, F 1 to 32, P 1 to 23"),
        ("F c32", "composition 'F c32': pieces need a join, one of seq, rev, tree, half, last, blk"),
        ("F seq", "composition 'F seq': 'seq' cannot stand there; the order is"),
        ("F c0 seq", "'c0': sizes start at 1"),
        ("F lanes4x4.3", "order 'lanes4x4.3': an instruction takes 3 of 4 k's a lane group holds; it must divide them"),
        ("F c32 (c8 blk) seq", "composition 'F c32 (c8 blk) seq': '(c8 blk)' cuts no piece; there go cG or rSxG and a join but blk"),
        ("F (c8 seq)", "composition 'F (c8 seq)': '(c8 seq)' cannot stand there; the order is"),
        ("F >bf17", "unknown format 'bf17'"),
    ],
)
def test_a_text_that_is_no_composition_is_refused_with_what_may_stand_there(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        ("F c64 seq", 64, "F fwd"), ("F c128 rev", 64, "F fwd"), ("F c32 rev", 64, "F fwd c32 seq"), ("F c32 tree", 96, "F fwd c32 seq"),
        ("F c32 tree", 128, "F fwd c32 tree"), ("F r4x16 seq", 64, "F fwd c16 seq"), ("F r3x16 seq", 64, "F fwd r3x16 seq"),
        ("T16.25.23 res64", 128, "T16.25.23 fwd"), ("T16.25.23 res64", 127, "T16.25.23 res64"), ("F res64", 127, "F fwd"),
        ("F res64 c32 seq", 127, "F res64 c32 seq"), ("T16.25.23 c8 seq", 127, "T8.25.23 fwd c8 seq"), ("T32.13.13", 5, "T8.13.13 fwd"),
        ("T8.25.23 c64 res32 seq", 128, "T8.25.23 fwd c64 seq"), ("T8.25.23 c96 res32 seq", 100, "T8.25.23 fwd c96 seq"),
        ("T16.25.23 c96 res128 seq", 100, "T16.25.23 fwd c96 seq"), ("T8.25.23 c90 res32 seq", 100, "T8.25.23 fwd c90 res32 seq"),
        ("F c32 half", 64, "F fwd c32 seq"), ("F c32 last", 96, "F fwd c32 half"), ("F c32 half", 96, "F fwd c32 half"),
        ("F c64 res16 ~bfloat16 half >bfloat16", 64, "F fwd >bfloat16"),
        ("W4 lanes2x8.8", 64, "W4 fwd"), ("T32.13.13 c128 blk", 128, "T32.13.13 fwd c128 blk"),
    ],
)  # fmt: skip
def test_one_arithmetic_has_one_spelling(text: str, k: int, expected: str) -> None:
    assert str(canonical(parse(text), k)) == expected


def small_problem(k: int, fmt: str = "bfloat16", m: int = 6, n: int = 5, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    a, b = (encode(rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-3, 4, (rows, k)), fmt) for rows in (m, n))
    return Problem(a, b, fmt, fmt)


@pytest.mark.parametrize("k", [64, 100, 127])
@pytest.mark.parametrize(
    "text",
    [
        "F c64 tree",
        "F r3x16 tree",
        "T16.25.23 res64",
        "T8.25.23 c8 seq",
        "T16.25.23 c24 rev",
        "W4 lanes2x8.8",
        "T8.25.23 c40 res32 half",
        "F c32 last",
        "T16.25.23 c24 res64 seq",
    ],
)
def test_canonical_spelling_keeps_the_bits(text: str, k: int) -> None:
    p = small_problem(k)
    np.testing.assert_array_equal(evaluate(parse(text), p), evaluate(canonical(parse(text), k), p))


def test_residue_first_puts_the_short_tile_and_its_zeros_in_front() -> None:
    assert ordered(10, Order(residue=4)).tolist() == [0, 1, 10, 10, 2, 3, 4, 5, 6, 7, 8, 9]
    assert ordered(8, Order(residue=4)).tolist() == list(range(8))


def test_an_mfma_tile_takes_some_of_every_lane_groups_k_at_a_time() -> None:
    assert ordered(16, Order(lanes=(4, 4, 2))).tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]


def dot_by_hand(a: list[Fraction], b: list[Fraction]) -> Fraction:
    """Chain of correctly rounded float32 fused multiply-adds."""
    return exact.fma(a, b, Fraction(0), bits=23, emin=-126, limit=exact.two(128))


@pytest.mark.parametrize(
    ("text", "pieces", "join"),
    [
        ("F c5 seq", [range(5), range(5, 10), range(10, 13)], "seq"),
        ("F c5 rev", [range(5), range(5, 10), range(10, 13)], "rev"),
        ("F c4 tree", [range(4), range(4, 8), range(8, 12), range(12, 13)], "tree"),
        ("F r2x3 seq", [[0, 1, 2, 6, 7, 8, 12], [3, 4, 5, 9, 10, 11]], "seq"),
        ("F c7 res4 seq", [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]], "seq"),
        ("F c3 half", [range(3), range(3, 6), range(6, 9), range(9, 12), [12]], "half"),
        ("F c3 last", [range(3), range(3, 6), range(6, 9), range(9, 12), [12]], "last"),
        ("F res4 c4 rev", [[0], range(1, 5), range(5, 9), range(9, 13)], "rev"),
    ],
)
def test_pieces_are_chains_of_their_own_joined_with_one_rounding_each(text: str, pieces: list, join: str) -> None:
    p = small_problem(13, "float32")
    got = decode(evaluate(parse(text), p), "float32")
    for i, j in np.ndindex(6, 5):
        a, b = (exact.operand_values(x, "float32")[0] for x in (p.a[i], p.b[j]))
        sums = [dot_by_hand([a[k] for k in ks], [b[k] for k in ks]) for ks in pieces]
        if join == "tree":
            total = exact.add32(exact.add32(sums[0], sums[1]), exact.add32(sums[2], sums[3]))
        elif join == "half":  # of eight lanes five hold something: 0 + 4, then 0 + 2 and 1 + 3, then both
            low = exact.add32(exact.add32(sums[0], sums[4]), sums[2])
            total = exact.add32(low, exact.add32(sums[1], sums[3]))
        elif join == "last":  # three buffers: 0 + 3, 1, 2; the last piece takes them in turn
            total = exact.add32(exact.add32(exact.add32(sums[4], exact.add32(sums[0], sums[3])), sums[1]), sums[2])
        else:
            sums = sums[::-1] if join == "rev" else sums
            total = sums[0]
            for s in sums[1:]:
                total = exact.add32(total, s)
        assert exact.same(got[i, j], total)


def test_the_ks_that_do_not_fill_a_tile_come_first_in_every_piece() -> None:
    assert [x.tolist() for x in cut(ordered(11, FWD), Pieces(0, 6, 4), 11)] == [[0, 1, 11, 11, 2, 3, 4, 5], [6, 11, 11, 11, 7, 8, 9, 10]]


def test_a_piece_may_be_cut_itself() -> None:
    p = small_problem(24, "float32")
    got = evaluate(parse("F c12 (c4 half) seq"), p)
    parts = [evaluate(parse("F c4 half"), small_part(p, first, first + 12)).view(np.float32) for first in (0, 12)]
    np.testing.assert_array_equal(got.view(np.float32), parts[0] + parts[1])


def small_part(p: Problem, first: int, end: int) -> Problem:
    return Problem(np.ascontiguousarray(p.a[:, first:end]), np.ascontiguousarray(p.b[:, first:end]), p.a_format, p.b_format)


def test_partial_sums_may_be_rounded_before_they_are_joined() -> None:
    p = small_problem(24)
    parts = [encode(decode(evaluate(parse("F"), small_part(p, first, first + 12)), "float32"), "bfloat16") for first in (0, 12)]
    summed = (decode(parts[0], "bfloat16") + decode(parts[1], "bfloat16")).astype(np.float32)
    np.testing.assert_array_equal(evaluate(parse("F c12 ~bfloat16 seq >bfloat16"), p), encode(summed.astype(float), "bfloat16"))


def test_products_may_be_rounded_before_they_are_added() -> None:
    p = small_problem(9, "float32")
    a, b = (decode(x, "float32").astype(np.float32) for x in (p.a, p.b))
    total = np.zeros((6, 5), np.float32)
    for k in range(9):
        total = total + a[:, k, None] * b[None, :, k]
    np.testing.assert_array_equal(evaluate(parse("P"), p).view(np.float32), total)


def test_scales_alpha_c_and_bias_are_applied_in_float32_in_the_order_written() -> None:
    rng = np.random.default_rng(4)
    p = small_problem(8, "float8_e4m3fn")
    p.a_scale, p.b_scale = (rng.random((rows, 1)).astype(np.float32) for rows in (6, 5))
    p.alpha, p.beta, p.c, p.bias = 1.7, 0.3, rng.standard_normal((6, 5)), rng.standard_normal(5).astype(np.float32).astype(np.float64)
    p.c = p.c.astype(np.float32).astype(np.float64)
    r = decode(evaluate(parse("T32.25.23"), p), "float32").astype(np.float32)
    sa, sb, alpha, beta = p.a_scale, p.b_scale.T, np.float32(1.7), np.float32(0.3)
    c, bias = p.c.astype(np.float32), p.bias.astype(np.float32)
    for text, expected in (
        ("*(ab)", r * (sa * sb)), ("*a*b", (r * sa) * sb), ("*b*a", (r * sb) * sa), ("*alpha", r * alpha),
        ("*alpha +bias", r * alpha + bias),
        ("*alpha +fma(c)", (np.float64(beta) * c + (r * alpha)).astype(np.float32)),
        ("+fma(d)", (np.float64(alpha) * r + beta * c).astype(np.float32)),
    ):  # fmt: skip
        np.testing.assert_array_equal(evaluate(parse(f"T32.25.23 {text}"), p).view(np.float32), expected, text)


def test_block_scales_promote_each_piece_with_a_fused_multiply_add() -> None:
    rng = np.random.default_rng(5)
    p = small_problem(256, "float8_e4m3fn")
    p.a_scale, p.b_scale, p.block = rng.random((6, 2)).astype(np.float32), rng.random((5, 2)).astype(np.float32), 128
    got = evaluate(parse("T32.13.13 c128 blk"), p).view(np.float32)
    halves = [Problem(p.a[:, s], p.b[:, s], "float8_e4m3fn", "float8_e4m3fn") for s in (slice(0, 128), slice(128, 256))]
    r = [decode(evaluate(parse("T32.13.13"), h), "float32") for h in halves]
    for i, j in np.ndindex(6, 5):
        total = Fraction(0)
        for part in (0, 1):
            scale = Fraction(float(p.a_scale[i, part] * p.b_scale[j, part]))
            total = exact.rne32(Fraction(r[part][i, j]) * scale + total)
        assert exact.same(float(got[i, j]), total)


def test_a_cast_rounds_the_float32_result_once() -> None:
    p = small_problem(64)
    wide = decode(evaluate(parse("T16.25.23"), p), "float32")
    np.testing.assert_array_equal(evaluate(parse("T16.25.23 >bfloat16"), p), encode(wide, "bfloat16"))


@pytest.mark.parametrize(
    "text", ["T16.25.23 c32 seq", "F r3x16 tree", "tf32rne T8.25.23 c64 seq", "TR8 lanes4x8.4 r2x32 seq", "E4", "M32 c64 seq"]
)
def test_chosen_elements_have_the_bits_of_the_whole_matrix(text: str) -> None:
    fmt = {"t": "float32", "M": "float8_e4m3fn", "E": "float16"}.get(text[0], "bfloat16")
    p = small_problem(150, fmt, 40, 50)
    i, j = np.array([0, 39, 7, 7]), np.array([49, 0, 3, 3])
    np.testing.assert_array_equal(evaluate(parse(text), p.at(i, j)), evaluate(parse(text), p)[i, j])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts_and_scales_of_a_stored_gemm_reach_the_right_rows(layout: str) -> None:
    rng = np.random.default_rng(6)
    a, b = encode(rng.standard_normal((4, 256)), "e4m3"), encode(rng.standard_normal((3, 256)), "e4m3")
    sa, sb = rng.random((4, 2)).astype(np.float32), rng.random((1, 2)).astype(np.float32)
    stored_a, scale_a, block_a = (a, sa, (1, 128)) if layout[0] == "n" else (a.T, sa.T, (128, 1))
    stored_b, scale_b, block_b = (b.T, sb.T, (128, 3)) if layout[1] == "n" else (b, sb, (3, 128))
    gemm = Gemm(
        Coded(stored_a, "float8_e4m3fn"), Coded(stored_b, "float8_e4m3fn"), layout, a_scale=scale_a, b_scale=scale_b, a_block=block_a,
        b_block=block_b,
    )  # fmt: skip
    p = problem_of(gemm)
    np.testing.assert_array_equal(p.a, a)
    np.testing.assert_array_equal(p.b, b)
    np.testing.assert_array_equal(p.a_scale, sa)
    np.testing.assert_array_equal(p.b_scale, np.repeat(sb, 3, axis=0))
    assert p.block == 128


def test_what_a_problem_lacks_is_named() -> None:
    p = small_problem(32)
    with pytest.raises(UsageError, match=r"composition 'F fwd \*\(ab\)' applies scales; the problem has none"):
        evaluate(parse("F *(ab)"), p)
    with pytest.raises(UsageError, match=r"composition 'F fwd \+fma\(c\)' adds C; the problem has none"):
        evaluate(parse("F +fma(c)"), p)
    with pytest.raises(UsageError, match=r"composition 'F fwd \+bias' adds a bias; the problem has none"):
        evaluate(parse("F +bias"), p)
    with pytest.raises(UsageError, match="needs at least one product"):
        evaluate(parse("F"), small_problem(0))


# ---------------------------------------------------------------------------- records of an MI300X

# Published statistics of TF32 products on an MI300X (ROCm 7.2, torch 2.13), inputs from seeded torch CPU generators; the largest
# relative error and the mean are float32 numbers there. github.com/jeffdaily/tf32_analysis
RECORDS = {
    "addmm_sizes": (0.0074214935302734375, 0.09009882062673569, 0.002113586425421506, -0.00011694811109919101, 8.802356719970703),
    "compile_kernel_advanced": (
        0.00817108154296875,
        0.0009185004746541381,
        0.005401435013365584,
        -0.005330145359039307,
        11.878828048706055,
    ),
    "broadcast_batched_matmul": (
        0.00814056396484375,
        0.10682284086942673,
        0.0022232903063499686,
        -5.981560025247745e-05,
        11.140080451965332,
    ),
    "linear_no_bias_module": (0.003993511199951172, 0.010240182280540466, 0.0018085805944219934, 0.00037716852966696024, 5.790457725524902),
    "tensordot": (0.01287841796875, 0.07308538258075714, 0.003282697231248906, -0.00011258668382652104, 15.776664733886719),
    "inductor_padding_like": (0.15484619140625, 461.98785400390625, 0.024637423178344914, -2.3721528123132885e-05, 164.6207275390625),
}


def record_inputs(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A [m, k] and B [n, k] float32 of every product of a record."""
    import torch

    def generator(seed: int) -> torch.Generator:
        return torch.Generator("cpu").manual_seed(seed)

    def normal(g: torch.Generator, *shape: int) -> np.ndarray:
        return torch.randn(*shape, generator=g).numpy()

    if name == "addmm_sizes":
        g = generator(7)
        _, a, b = normal(g, 10, 25), normal(g, 10, 8), normal(g, 8, 25)  # the addend is drawn first; the record is of the product
        return [a], [b.T]
    if name == "compile_kernel_advanced":
        g = generator(11)
        a, b = torch.rand(64, 32, generator=g).numpy(), torch.rand(32, 48, generator=g).numpy()
        return [a], [b.T]
    if name == "broadcast_batched_matmul":
        g = generator(13)
        a, b = normal(g, 3, 2, 8, 8), normal(g, 3, 2, 8, 8)
        return list(a.reshape(-1, 8, 8)), [x.T for x in b.reshape(-1, 8, 8)]
    if name == "linear_no_bias_module":
        g = generator(155216)
        return [normal(g, 4, 10)], [normal(g, 8, 10)]
    if name == "tensordot":
        g = generator(31)
        a, b = normal(g, 2, 3, 4, 5), normal(g, 4, 5, 6, 7)
        return [a.reshape(6, 20)], [b.reshape(20, 42).T]
    g = generator(8888)
    a, b = normal(g, 1024, 1024), normal(g, 1024, 1024)
    return [a], [b.T]


@pytest.mark.torch
@pytest.mark.parametrize("name", RECORDS)
def test_the_xf32_unit_reproduces_the_statistics_of_an_mi300x(name: str) -> None:
    a, b = record_inputs(name)
    text = "tf32rz TR4 lanes4x4.2 r2x32 seq" if name == "inductor_padding_like" else "tf32rz TR4 fwd"
    actual, truth = [], []
    for x, y in zip(a, b, strict=True):
        p = Problem(x.view(np.uint32), np.ascontiguousarray(y).view(np.uint32), "float32", "float32")
        d = evaluate(parse(text), p).view(np.float32)
        product = x.astype(np.float64) @ y.astype(np.float64).T
        actual.append(d.reshape(-1))
        truth.append(product.astype(np.float32).reshape(-1))
    d, t = np.concatenate(actual), np.concatenate(truth)
    error = d.astype(np.float64) - t
    max_abs, max_rel, rms, mean, largest = RECORDS[name]
    assert np.abs(error).max() == max_abs
    assert np.abs(d).max() == largest
    assert np.float32((np.abs(d - t) / np.abs(t)).max()) == np.float32(max_rel)
    np.testing.assert_allclose(np.sqrt(np.mean(error**2)), rms, rtol=1e-12)
    np.testing.assert_allclose(np.mean(error), mean, rtol=2e-4 if name == "inductor_padding_like" else 1e-4, atol=1e-9)
