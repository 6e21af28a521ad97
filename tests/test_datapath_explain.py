"""The search that names a composition: what it must find, what it must not, and what it says about how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from accuracy_eval.cpu_ref.gemm import gradient
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath import explain, explain_gemm
from accuracy_eval.datapath.compositions import canonical, parse
from accuracy_eval.datapath.evaluation import Problem, evaluate, problem_of
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.records import Coded


def operands(m: int, n: int, k: int, fmt: str, seed: int = 0, spread: int = 0) -> tuple[Coded, Coded]:
    """A [m, k] and B [n, k] of normal values, times powers of two up to 2^±spread."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-spread, spread + 1, (rows, k)) for rows in (m, n))
    return Coded(encode(a, fmt), fmt), Coded(encode(b, fmt), fmt)


def made_by(text: str, a: Coded, b: Coded) -> Coded:
    composition = parse(text)
    codes = evaluate(composition, Problem(a.codes, b.codes, a.format, b.format))
    return Coded(codes, composition.cast or composition.rule.accumulator)


# compositions that libraries were seen to use, at the shapes they used them for
SEEN = [
    ("T16.25.23 fwd", "bfloat16", 64, 64, 64), ("T16.25.23 fwd", "bfloat16", 256, 128, 1024),
    ("T16.25.23 fwd c1408 seq", "bfloat16", 16, 16, 4096), ("T8.25.23 fwd c8 seq", "bfloat16", 33, 65, 127),
    ("T16.25.23 res64", "float16", 33, 65, 127), ("tf32rne T8.25.23 fwd c32 seq", "float32", 64, 64, 64),
    ("tf32rne T8.25.23 fwd c192 seq", "float32", 16, 16, 4096), ("F fwd r5x8 seq", "float32", 128, 96, 512),
    ("F fwd c4 seq", "float32", 33, 65, 127), ("D fwd r4x32 seq", "float64", 256, 128, 1024), ("D fwd c256 seq", "float64", 16, 16, 4096),
    ("T8.25.23 fwd c200 res32 seq", "bfloat16", 17, 33, 2521), ("T16.25.23 fwd c400 res64 seq", "bfloat16", 17, 33, 1990),
    ("tf32rne T8.25.23 fwd c196 res32 seq", "float32", 17, 33, 2521), ("F fwd r16x1 seq", "float32", 1, 2048, 128),
    ("D fwd r16x1 seq", "float64", 1, 2048, 128), ("F fwd c9 half", "bfloat16", 1, 300, 257), ("F fwd c33 half", "float16", 300, 1, 129),
    ("D fwd r32x1 half", "float64", 1, 300, 257), ("F fwd r16x1 (c16 seq) seq", "bfloat16", 7, 33, 500),
    ("P fwd c256 (c2 half) seq", "float32", 1, 64, 1000), ("D fwd r3x32 half", "float64", 17, 33, 1990),
    ("D fwd r7x32 last", "float64", 16, 38, 2636),
    ("T32.13.13 fwd", "float8_e4m3fn", 256, 128, 1024), ("T32.13.13 fwd c128 seq", "float8_e4m3fn", 128, 96, 512),
    ("tf32rz TR4 lanes4x4.2 r2x32 seq", "float32", 64, 48, 256), ("TR8 fwd", "float16", 64, 48, 256),
    ("GTR16 fwd", "float8_e4m3fnuz", 64, 48, 256),
    ("E4 fwd", "float16", 24, 24, 128), ("Z4 fwd", "bfloat16", 24, 24, 128), ("W3 fwd", "float16", 24, 24, 128),
    ("W4 lanes2x8.4", "bfloat16", 24, 24, 128), ("M32 fwd", "float8_e5m2", 24, 24, 256), ("H16.25 fwd", "float16", 24, 24, 128),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fmt", "m", "n", "k"), SEEN, ids=[f"{t}-{f}-{m}x{n}x{k}" for t, f, m, n, k in SEEN])
def test_a_composition_is_recovered_from_its_output(text: str, fmt: str, m: int, n: int, k: int) -> None:
    a, b = operands(m, n, k, fmt, spread=5 if text.startswith(("GTR", "M")) else 0)  # fp8 sums of like size are exact in 24 bits
    e = explain(made_by(text, a, b), a, b, layout="nt", unit="hopper" if k > 1500 else None)
    assert e.fraction == 1.0
    assert str(canonical(parse(text), k)) in (e.description, *e.ties), str(e)
    assert e.checked == e.total == m * n
    assert not e.unexplained
    if not text.startswith("H"):
        assert e.status == "identified"
        assert e.evidence > m * n // 10


def test_a_split_contraction_whose_slices_promote_is_recovered_where_its_partial_sums_are_not_exact() -> None:
    """As an H200 does with 256 × 256 × 16384 in fp8; only operands of very different size show it in float32."""
    rng = np.random.default_rng(0)
    spread = (np.where(rng.random((r, 4096)) < 0.002, 2.0**10, 2.0**-6) for r in (48, 64))
    a, b = (Coded(encode(rng.standard_normal(s.shape) * s, "float8_e5m2"), "float8_e5m2") for s in spread)
    e = explain(made_by("T32.13.13 fwd c1408 (c128 seq) seq", a, b), a, b, layout="nt", unit="hopper")
    assert (e.status, e.description, e.ties) == ("identified", "T32.13.13 fwd c1408 (c128 seq) seq", ())


def random_composition(rng: np.random.Generator) -> tuple[str, str, int]:
    """A composition, the format of its operands, and k."""
    fmt, pre, rule = [
        ("bfloat16", "", "T16.25.23"), ("bfloat16", "", "T8.24.23"), ("float16", "", "T4.23.23"), ("float32", "tf32rne", "T8.25.23"),
        ("float32", "", "F"), ("float64", "", "D"), ("float8_e4m3fn", "", "T32.13.13"), ("bfloat16", "", "TR8"),
    ][rng.integers(8)]  # fmt: skip
    k = int(rng.choice([256, 320, 511, 1000]))
    residue = f"res{rng.choice([32, 64])}" if k % 32 and rng.random() < 0.5 else ""
    cut = [
        "",
        f"c{rng.choice([32, 64, 128])}",
        f"c{-(-k // (int(rng.integers(2, 5)) * 64)) * 64}",
        f"r{rng.integers(2, 5)}x{rng.choice([16, 32])}",
    ]
    pieces = cut[rng.integers(4)]
    join = f"{rng.choice(['seq', 'rev', 'tree', 'half', 'last'])}" if pieces else ""
    inside = pieces.startswith("c")  # a kernel takes the residue of its own slice of k first
    words = [pre, rule, "fwd" if inside else residue, pieces, residue if inside else "", join]
    return " ".join(w for w in words if w), fmt, k


@pytest.mark.parametrize("seed", range(24))
def test_a_random_composition_is_recovered_from_a_wide_output(seed: int) -> None:
    text, fmt, k = random_composition(np.random.default_rng(seed))
    a, b = operands(40, 50, k, fmt, seed)
    e = explain(made_by(text, a, b), a, b, layout="nt")
    expected = str(canonical(parse(text), k))
    assert e.status == "identified"
    assert expected in (e.description, *e.ties), (expected, str(e))
    # T32.13.13's coarse sums are often added without rounding: joins of few pieces may tie, nothing else may
    assert all(t.split()[:-1] == e.description.split()[:-1] for t in e.ties), str(e)


def test_the_part_narrows_the_search_and_names_the_instruction() -> None:
    a, b = operands(32, 32, 128, "bfloat16")
    d = made_by("T16.25.23 fwd", a, b)
    e = explain(d, a, b, layout="nt", unit="H200")
    assert e.units == ("hopper/wgmma", "hopper/mma.sync")
    assert e.tried < explain(d, a, b, layout="nt").tried
    wrong = explain(d, a, b, layout="nt", unit="A100", tries=300)
    assert wrong.status == "unexplained"
    assert wrong.fraction < 1


@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float8_e4m3fn"])
def test_permuted_k_is_not_explained(fmt: str) -> None:
    a, b = operands(24, 40, 256, fmt)
    order = np.random.default_rng(1).permutation(256)
    rule = {"bfloat16": "T16.25.23 fwd", "float32": "F fwd", "float8_e4m3fn": "T32.13.13 fwd"}[fmt]
    d = made_by(rule, Coded(a.codes[:, order], fmt), Coded(b.codes[:, order], fmt))
    e = explain(d, a, b, layout="nt", tries=2000)
    assert e.status == "unexplained"
    assert e.fraction < 0.9
    assert str(e).startswith("unexplained: at best 0.")
    assert len(e.unexplained) == 16


@pytest.mark.parametrize(("m", "k"), [(24, 256), (40, 1000)])
def test_a_cpu_librarys_float32_product_is_not_taken_for_a_matrix_units(m: int, k: int) -> None:
    a, b = operands(m, 48, k, "bfloat16")
    product = decode(a.codes, "bfloat16").astype(np.float32) @ decode(b.codes, "bfloat16").astype(np.float32).T
    e = explain(Coded(product.view(np.uint32), "float32"), a, b, layout="nt", unit="hopper", tries=1500)
    assert e.status != "identified" or e.description.startswith("F ")
    narrow = Coded(encode(product.astype(float), "bfloat16"), "bfloat16")
    e = explain(narrow, a, b, layout="nt", unit="hopper", tries=1500)
    assert e.status != "identified" or e.description.startswith("F ")


def test_the_exact_product_rounded_once_says_nothing_about_order() -> None:
    a, b = operands(24, 40, 256, "bfloat16")
    exact = decode(a.codes, "bfloat16") @ decode(b.codes, "bfloat16").T
    e = explain(Coded(encode(exact, "float32"), "float32"), a, b, layout="nt")
    assert e.correctly_rounded
    assert e.status != "identified"
    assert e.evidence == 0


def test_one_flipped_bit_is_named_and_nothing_is_identified() -> None:
    a, b = operands(128, 128, 128, "bfloat16")
    d = made_by("T16.25.23 fwd", a, b)
    d.codes[77, 5] ^= 1
    e = explain(d, a, b, layout="nt")
    assert e.status == "unexplained"
    assert e.description == "T16.25.23 fwd"
    assert e.unexplained == ((77, 5),)
    assert e.fraction == 1 - 1 / 128**2


@pytest.mark.parametrize("rule", ["T16.25.23 fwd", "F fwd"])
def test_a_bfloat16_output_is_consistent_but_not_identified(rule: str) -> None:
    a, b = operands(64, 48, 256, "bfloat16")
    e = explain(made_by(f"{rule} >bfloat16", a, b), a, b, layout="nt")
    assert e.status == "consistent, not identified"
    assert e.fraction == 1.0


def test_a_near_miss_on_a_narrow_output_does_not_end_the_search() -> None:
    a, b = operands(128, 128, 256, "bfloat16", seed=3)
    d = made_by("T16.25.23 fwd c64 seq >bfloat16", a, b)
    plain = evaluate(parse("T16.25.23 fwd >bfloat16"), Problem(a.codes, b.codes, "bfloat16", "bfloat16"))
    assert 0 < np.count_nonzero(plain != d.codes) < 20
    e = explain(d, a, b, layout="nt", unit="hopper")
    assert e.fraction == 1.0
    assert "T16.25.23 fwd c64 seq >bfloat16" in (e.description, *e.ties)


def test_a_bfloat16_output_of_permuted_k_is_never_identified() -> None:
    a, b = operands(64, 48, 512, "bfloat16")
    order = np.random.default_rng(1).permutation(512)
    d = made_by("T16.25.23 fwd >bfloat16", Coded(a.codes[:, order], "bfloat16"), Coded(b.codes[:, order], "bfloat16"))
    e = explain(d, a, b, layout="nt", tries=1500)
    assert e.status != "identified"
    assert e.evidence < 20


def test_ties_that_differ_after_the_sums_only_do_not_unsettle_a_narrow_output() -> None:
    rng = np.random.default_rng(8)
    a, b = operands(64, 64, 256, "float8_e4m3fn")
    gemm = Gemm(a, b, "nt", a_scale=rng.random((64, 1)).astype(np.float32), b_scale=rng.random((64, 1)).astype(np.float32))
    d = Coded(evaluate(parse("T32.13.13 fwd *(ab) >bfloat16"), problem_of(gemm)), "bfloat16")
    e = explain_gemm(d, gemm, unit="hopper")
    assert e.status == "identified"
    assert e.description.startswith("T32.13.13 fwd *")


def test_a_lost_k_is_not_explained() -> None:
    a, b = operands(32, 48, 256, "bfloat16")
    short = a.codes.copy()
    short[:, 100] = 0
    e = explain(made_by("T16.25.23 fwd", Coded(short, "bfloat16"), b), a, b, layout="nt", tries=500)
    assert e.status == "unexplained"
    assert e.fraction < 0.5


def scaled(a_scale: np.ndarray, b_scale: np.ndarray, text: str, k: int = 256) -> tuple[Coded, Gemm]:
    a, b = operands(40, 256, k, "float8_e4m3fn")
    gemm = Gemm(a, b, "nt", a_scale=a_scale, b_scale=b_scale)
    composition = parse(text)
    return Coded(evaluate(composition, problem_of(gemm)), composition.cast or "float32"), gemm


def test_scales_of_rows_and_of_the_tensor_are_found_in_the_epilogue() -> None:
    rng = np.random.default_rng(2)
    one = np.float32(0.37), np.float32(1.9)
    rows = rng.random((40, 1)).astype(np.float32), rng.random((256, 1)).astype(np.float32)
    for (sa, sb), text in ((one, "T32.13.13 fwd *(ab)"), (rows, "T32.13.13 fwd c128 seq *a*b"), (rows, "T32.13.13 fwd *b*a")):
        d, gemm = scaled(sa, sb, text)
        e = explain_gemm(d, gemm)
        assert e.status == "identified"
        assert text in (e.description, *e.ties)


def test_block_scales_are_found_in_the_promotion() -> None:
    rng = np.random.default_rng(3)
    sa, sb = rng.random((40, 4)).astype(np.float32), rng.random((2, 4)).astype(np.float32)
    d, gemm = scaled(sa, sb, "T32.13.13 fwd c128 blk", k=512)
    e = explain_gemm(d, gemm, unit="hopper")
    assert (e.status, e.description) == ("identified", "T32.13.13 fwd c128 blk")


def test_alpha_beta_and_bias_are_found_in_the_epilogue() -> None:
    rng = np.random.default_rng(4)
    a, b = operands(48, 40, 128, "float32")
    c, bias = (Coded(encode(rng.standard_normal(shape), "float32"), "float32") for shape in ((48, 40), (40,)))
    gemm = Gemm(a, b, "nt", alpha=1.2, beta=0.7, c=c, bias=bias)
    for text in ("F fwd *alpha +fma(c) +bias", "F fwd +fma(d) +bias"):
        e = explain_gemm(Coded(evaluate(parse(text), problem_of(gemm)), "float32"), gemm)
        assert (e.status, e.description) == ("identified", text)


@pytest.mark.parametrize("step", ["alpha", "C", "bias"])
def test_a_step_of_the_epilogue_that_was_left_out_is_named_and_nothing_is_identified(step: str) -> None:
    rng = np.random.default_rng(4)
    a, b = operands(48, 40, 128, "bfloat16")
    c, bias = (Coded(encode(rng.standard_normal(shape), "float32"), "float32") for shape in ((48, 40), (40,)))
    asked = {"alpha": {"alpha": 0.25}, "C": {"beta": 1.0, "c": c}, "bias": {"bias": bias}}[step]
    e = explain(made_by("T16.25.23 fwd", a, b), a, b, layout="nt", unit="hopper", tries=500, **asked)
    assert e.status == "unexplained"
    assert e.without == (step, "T16.25.23 fwd")
    assert str(e).endswith(f"; with {step} left out every element is T16.25.23 fwd")


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_an_output_that_no_rounding_could_make_is_given_up_early(out: str) -> None:
    a, b = operands(48, 40, 1000, "bfloat16")
    made = made_by(f"T16.25.23 fwd >{out}" if out == "bfloat16" else "T16.25.23 fwd", a, b)
    e = explain(Coded(encode(2 * decode(made.codes, out), out), out), a, b, layout="nt", unit="hopper")
    assert e.status == "unexplained"
    assert e.tried < 50


def test_a_lost_k_is_not_blamed_on_a_step_of_the_epilogue() -> None:
    a, b = operands(32, 48, 256, "bfloat16")
    short = a.codes.copy()
    short[:, 100] = 0
    e = explain(made_by("T16.25.23 fwd", Coded(short, "bfloat16"), b), a, b, layout="nt", alpha=2.0, unit="hopper", tries=300)
    assert (e.status, e.without) == ("unexplained", None)


def test_a_gradient_is_explained_as_the_product_it_is() -> None:
    a, b = operands(32, 48, 64, "bfloat16")
    grad = Coded(encode(np.random.default_rng(5).standard_normal((32, 48)), "bfloat16"), "bfloat16")
    back = gradient("da", Gemm(a, b, "nt"), grad)
    d = Coded(evaluate(parse("T16.25.23 fwd"), problem_of(back)), "float32")
    assert explain_gemm(d, back, unit="hopper").description == "T16.25.23 fwd"


def test_beyond_the_limit_a_sample_of_the_elements_is_checked() -> None:
    a, b = operands(160, 160, 64, "bfloat16")
    e = explain(made_by("T16.25.23 fwd", a, b), a, b, layout="nt", full=1000)
    assert (e.status, e.description, e.total, e.checked) == ("identified", "T16.25.23 fwd", 25600, 8192)


def test_nan_and_infinite_outputs_are_compared_by_class() -> None:
    a, b = operands(32, 32, 64, "bfloat16")
    a.codes[3, 7], b.codes[5, 60], a.codes[9, 9] = 0x7FC1, 0x7F80, 0xFF80
    d = made_by("T16.25.23 fwd", a, b)
    codes = d.codes.copy()
    codes[3] = 0xFFC00123  # another device's NaN
    e = explain(Coded(codes, "float32"), a, b, layout="nt")
    assert (e.status, e.description, e.fraction) == ("identified", "T16.25.23 fwd", 1.0)


@pytest.mark.torch
@pytest.mark.parametrize("k", [64, 256, 1024])
def test_a_cpu_librarys_float32_product_is_explained(k: int) -> None:
    import torch

    g = torch.Generator("cpu").manual_seed(k)
    a, b = torch.randn(96, k, generator=g), torch.randn(k, 80, generator=g)
    coded = [Coded(x.numpy().view(np.uint32), "float32") for x in (a @ b, a, b)]
    e = explain(*coded, layout="nn", unit="cpu")
    assert e.fraction == 1.0, str(e)
    assert e.status == "identified"


def test_what_cannot_be_explained_is_refused_with_the_reason() -> None:
    a, b = operands(8, 8, 16, "bfloat16")
    d = made_by("F", a, b)
    with pytest.raises(UsageError, match=r"the output has shape \(8, 7\), the product \(8, 8\)"):
        explain(Coded(d.codes[:, :7], "float32"), a, b, layout="nt")
    with pytest.raises(UsageError, match=r"nothing to explain in an empty product of m = 8, n = 8, k = 0"):
        explain(d, Coded(a.codes[:, :0], a.format), Coded(b.codes[:, :0], b.format), layout="nt")
    whole = Coded(np.zeros((8, 16), np.uint8), "int8")
    with pytest.raises(UsageError, match="nothing known multiplies int8 × int8"):
        explain(Coded(np.zeros((8, 8), np.uint32), "int32"), whole, whole, layout="nt")


def test_a_product_stored_in_16_bits_before_c_is_added_is_named() -> None:
    """torch.addmm with beta = 1 on an H200: two roundings, outside what the call promises, and explained all the same."""
    a, b = operands(64, 48, 96, "bfloat16")
    c = encode(np.random.default_rng(5).standard_normal((64, 48)), "bfloat16")
    scaled = made_by("T16.25.23 fwd", a, b).codes.view(np.float32) * np.float32(1.5)
    product = encode(scaled.astype(float), "bfloat16")
    d = Coded(encode(decode(product, "bfloat16") + decode(c, "bfloat16"), "bfloat16"), "bfloat16")
    e = explain(d, a, b, layout="nt", alpha=1.5, beta=1.0, c=Coded(c, "bfloat16"), unit="hopper")
    assert (e.fraction, e.description) == (1.0, "T16.25.23 fwd *alpha ~bfloat16 +fma(c) >bfloat16")
    assert e.evidence > 500
    # which sum it was hides behind the two roundings
    assert all(" ~bfloat16 +fma(c) >bfloat16" in tie for tie in e.ties)


def test_a_narrow_output_that_is_exact_though_a_plain_chain_would_not_be_is_searched_further() -> None:
    """As 85 × 137 × 1581 of an H200: slices of k give every correctly rounded code, one chain does not."""
    a, b = operands(16, 24, 1581, "bfloat16", seed=5)
    exact = encode(decode(a.codes, "bfloat16") @ decode(b.codes, "bfloat16").T, "bfloat16")
    assert (made_by("T16.25.23 fwd >bfloat16", a, b).codes != exact).any()
    e = explain(Coded(exact, "bfloat16"), a, b, layout="nt", unit="hopper")
    assert (e.fraction, e.correctly_rounded, e.status) == (1.0, True, "consistent, not identified")
