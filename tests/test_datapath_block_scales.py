"""Explanations of products whose block scales the instruction takes itself: MXFP8, MXFP4 and NVFP4."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from accuracy_eval.backends.open import open_backend
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath import dot, explain_gemm
from accuracy_eval.datapath.compositions import canonical, parse
from accuracy_eval.datapath.evaluation import Problem, evaluate, problem_of
from accuracy_eval.datapath.hypotheses import takes
from accuracy_eval.datapath.planes import factored
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.explained import explain_dump
from accuracy_eval.formats import decode, encode
from accuracy_eval.records import Coded
from accuracy_eval.suite import parse_suite

SCALE_FORMAT = {32: "float8_e8m0fnu", 16: "float8_ue4m3"}


def scaled_product(fmt: str, width: int, m: int, n: int, k: int, seed: int = 0, factors: tuple[float, float] = (1.0, 1.0)) -> Gemm:
    """Operands of normal values under scales of very different size, so that sums are not exact in float32."""
    rng = np.random.default_rng(seed)
    a, b = (Coded(encode(rng.standard_normal((r, k)), fmt), fmt) for r in (m, n))
    low, high = (127 - 9, 127 + 9) if width == 32 else (8, 120)
    scales = [decode(rng.integers(low, high, (r, -(-k // width))).astype(np.uint8), SCALE_FORMAT[width]) for r in (m, n)]
    scales = [s * np.float64(np.float32(f)) for s, f in zip(scales, factors, strict=True)]
    return Gemm(a, b, "nt", a_scale=scales[0], b_scale=scales[1], a_block=(1, width), b_block=(1, width))


def made_by(text: str, gemm: Gemm) -> Coded:
    composition = parse(text)
    return Coded(evaluate(composition, problem_of(gemm)), composition.cast or composition.rule.accumulator)


def random_composition(rng: np.random.Generator) -> tuple[str, str, int, int]:
    """A composition, the operands' format, the width of a scale block, and k."""
    fmt, width, rule = [
        ("float8_e4m3fn", 32, "T32.25.23"), ("float8_e5m2", 32, "T32.25.23"), ("float6_e2m3fn", 32, "T32.25.23"),
        ("float4_e2m1fn", 32, "T32.25.23"), ("float4_e2m1fn", 32, "G64.35.23"), ("float4_e2m1fn", 16, "G64.35.23"),
    ][rng.integers(6)]  # fmt: skip
    k = int(rng.choice([512, 608, 1024]))
    cut = [
        "",
        f"c{rng.choice([64, 128, 256])}",
        f"c{-(-k // (int(rng.integers(2, 5)) * 64)) * 64}",
        f"r{rng.integers(2, 5)}x{rng.choice([64, 128])}",
    ]
    pieces = cut[rng.integers(4)]
    join = f"{rng.choice(['seq', 'rev', 'tree', 'half', 'last'])}" if pieces else ""
    return " ".join(x for x in ("mx", rule, "fwd", pieces, join) if x), fmt, width, k


@pytest.mark.parametrize("seed", range(12))
def test_random_compositions_are_recovered(seed: int) -> None:
    text, fmt, width, k = random_composition(np.random.default_rng([seed, 77]))
    gemm = scaled_product(fmt, width, 24, 40, k, seed)
    e = explain_gemm(made_by(text, gemm), gemm, unit="blackwell")
    assert e.fraction == 1.0, str(e)
    assert str(canonical(parse(text), k)) in (e.description, *e.ties), str(e)
    assert e.status == "identified"


@pytest.mark.parametrize(("fmt", "width", "instruction"), [("float8_e4m3fn", 32, "mxf8f6f4"), ("float4_e2m1fn", 16, "mxf4nvf4")])
def test_the_instruction_that_takes_the_scales_is_named(fmt: str, width: int, instruction: str) -> None:
    gemm = scaled_product(fmt, width, 32, 32, 512)
    text = "mx T32.25.23 fwd" if width == 32 else "mx G64.35.23 fwd"
    e = explain_gemm(made_by(text, gemm), gemm)
    assert (e.status, e.description, e.units) == ("identified", text, (f"blackwell/{instruction}",))


def test_the_composition_is_what_the_unit_returns_row_by_row() -> None:
    for fmt, width, text in (("float8_e5m2", 32, "mx T32.25.23 fwd"), ("float4_e2m1fn", 16, "mx G64.35.23 fwd")):
        gemm = scaled_product(fmt, width, 6, 6, 200)
        scales = [encode(np.asarray(s), SCALE_FORMAT[width]) for s in (gemm.a_scale, gemm.b_scale)]
        expected = dot("blackwell", gemm.a.codes, gemm.b.codes, format=fmt, a_scale=scales[0], b_scale=scales[1])
        np.testing.assert_array_equal(np.diag(made_by(text, gemm).codes), expected)


def test_scales_applied_outside_the_instruction_are_told_from_its_own() -> None:
    gemm = scaled_product("float8_e4m3fn", 32, 24, 40, 512)
    e = explain_gemm(made_by("T32.25.23 fwd c32 blk", gemm), gemm)
    assert e.status == "identified"
    assert e.description.endswith("fwd c32 blk")


@pytest.mark.parametrize("factors", [(0.00123, 1.7), (1.0, 3.3e-5)])
def test_the_float32_factors_of_nvfp4_operands_are_found_in_the_epilogue(factors: tuple[float, float]) -> None:
    gemm = scaled_product("float4_e2m1fn", 16, 24, 40, 512, factors=factors)
    problem = problem_of(gemm)
    assert (problem.a_factor, problem.b_factor) == tuple(float(np.float32(f)) for f in factors)
    for text in ("mx G64.35.23 fwd *(ab)", "mx G64.35.23 fwd c128 seq *a*b"):
        e = explain_gemm(made_by(text, gemm), gemm, unit="blackwell")
        assert e.status == "identified"
        assert text in (e.description, *e.ties)


def test_scales_that_are_no_factor_times_a_format_stay_as_they_are() -> None:
    scales = np.array([[1.0, 0.7], [0.3, 2.0]])
    assert factored(scales, "float8_ue4m3")[1] == 1.0
    assert factored(np.array([[448.0, 9.0]]) * 1.25, "float8_ue4m3")[1] == 1.25
    held, factor = factored(np.array([[3.0, 5.0], [np.nan, 0.25]]), "float8_ue4m3")
    assert (factor, held[0, 1]) == (1.0, 5.0)


@pytest.mark.parametrize(("fmt", "width"), [("float8_e4m3fn", 32), ("float4_e2m1fn", 16)])
def test_permuted_blocks_and_a_wrong_scale_are_not_explained(fmt: str, width: int) -> None:
    gemm = scaled_product(fmt, width, 24, 40, 512)
    rule = "mx T32.25.23 fwd" if width == 32 else "mx G64.35.23 fwd"
    order = np.random.default_rng(1).permutation(512 // width)
    ks = (order[:, None] * width + np.arange(width)).reshape(-1)
    a, b = (Coded(x.codes[:, ks], fmt) for x in (gemm.a, gemm.b))
    moved = replace(gemm, a=a, b=b, a_scale=gemm.a_scale[:, order], b_scale=gemm.b_scale[:, order])
    wrong = np.array(gemm.a_scale)
    wrong[:, 3] *= 2
    for faulty in (moved, replace(gemm, a_scale=wrong)):
        e = explain_gemm(made_by(rule, faulty), gemm, unit="blackwell", tries=300)
        assert (e.status, e.without) == ("unexplained", None)
        assert e.fraction < 0.9


def test_groups_that_a_piece_would_tear_apart_and_scales_of_no_instruction_are_refused() -> None:
    gemm = scaled_product("float4_e2m1fn", 16, 4, 4, 128)
    with pytest.raises(UsageError, match="groups of 16 k's kept together"):
        made_by("mx G64.35.23 fwd c24 seq", gemm)
    with pytest.raises(UsageError, match="block scales of operand a are not values of float8_e8m0fnu, which the instruction takes"):
        made_by("mx T32.25.23 fwd", replace(scaled_product("float8_e4m3fn", 32, 4, 4, 128), a_scale=np.full((4, 4), 1.3)))
    bare = Problem(gemm.a.codes, gemm.b.codes, "float4_e2m1fn", "float4_e2m1fn")
    with pytest.raises(UsageError, match="'mx' stands for block scales of 32 or 16 k's; the problem has none"):
        evaluate(parse("mx G64.35.23 fwd"), bare)


def test_a_part_whose_instruction_nobody_knows_is_not_guessed_and_its_dump_is_tried_with_every_known_rule() -> None:
    gemm = scaled_product("float8_e4m3fn", 32, 8, 8, 128)
    d = made_by("mx T32.25.23 fwd", gemm)
    with pytest.raises(UsageError, match="unit 'MI355X': nothing is known of its arithmetic for float8_e4m3fn × float8_e4m3fn"):
        explain_gemm(d, gemm, unit="MI355X")
    assert not takes("MI355X", ("float8_e4m3fn", "float8_e4m3fn"))
    assert takes("MI355X", ("float32", "float32"))
    assert takes("MI300X", ("float8_e4m3fnuz", "float8_e4m3fnuz"))
    assert explain_gemm(d, gemm).fraction == 1.0


def test_dumps_of_a_blackwell_model_are_explained(tmp_path: Path) -> None:
    case = {"op": "gemm", "shape": "48x64x512", "layout": "nt", "out_format": "float32"}
    recipes = (("fp8_e4m3", "mxfp8"), ("fp6_e2m3", "mxfp6"), ("fp4_e2m1", "mxfp4"), ("fp4_e2m1", "nvfp4"))
    suite = parse_suite({"name": "s", "cases": [{**case, "format": f, "recipe": r} for f, r in recipes]}, "s")
    dump(suite, open_backend("model:blackwell"), tmp_path / "b200.h5")
    found = {e.case_id.split(".")[-3]: e.explanation for e in explain_dump(tmp_path / "b200.h5")}
    assert set(found) == {"mxfp8", "mxfp6", "mxfp4", "nvfp4"}
    for recipe, e in found.items():
        assert e.fraction == 1.0
        words = "mx G64.35.23 fwd *(ab)" if recipe == "nvfp4" else "mx T32.25.23 fwd"
        assert words in (e.description, *e.ties)
    assert found["mxfp8"].status == found["nvfp4"].status == "identified"
