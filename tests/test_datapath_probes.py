"""Probes through a matmul callable: the whole table of expected answers, trees, and cards."""

from __future__ import annotations

import json

import numpy as np
import pytest

from accuracy_eval.datapath import Call, FormatCard, NumericsCard, numerics_card
from accuracy_eval.datapath.card import format_card, model_matmul
from accuracy_eval.datapath.expectations import EXPECTATIONS, Expectation, same_answer
from accuracy_eval.datapath.probes import PROBES, order_counts, probe
from accuracy_eval.datapath.trees import summation_tree
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.formats import decode, encode

TABLE = [(e, f) for e in EXPECTATIONS for f in e.formats]


def width_of(e: Expectation, fmt: str) -> str:
    return e.out or ("float64" if fmt == "float64" else "float32")


@pytest.mark.parametrize(("row", "fmt"), TABLE, ids=[f"{e.name}-{f}" for e, f in TABLE])
def test_the_model_of_a_unit_gives_every_answer_of_the_table(row: Expectation, fmt: str) -> None:
    out = width_of(row, fmt)
    found = probe(model_matmul(row.model, fmt, out), fmt, out).answers
    expected = row.answers(fmt)
    assert {k: found[k] for k in expected if not same_answer(found[k], expected[k])} == {}
    assert set(found) == set(PROBES)
    assert len(expected) >= 8


@pytest.mark.parametrize(
    ("fmt", "out", "model", "match"),
    [
        ("bfloat16", "float32", "hopper", "hopper"), ("bfloat16", "bfloat16", "hopper", "hopper"),
        ("float16", "bfloat16", "hopper", "hopper"),
        ("float16", "float16", "hopper", "hopper, float16 accumulator"), ("float16", "float16", "T16.25.23 >float16", "hopper"),
        ("bfloat16", "bfloat16", "MI300X", "cdna3"), ("float16", "float32", "gfx1100", "rdna3/wmma"),
        ("float16", "float32", "rdna4/wmma.w64", "rdna4/wmma.w64"), ("float8_e4m3fnuz", "bfloat16", "gfx942", "cdna3"),
        ("float8_e4m3fn", "bfloat16", "H100", "hopper"), ("float32", "float32", "F", "fused multiply-adds in order"),
        ("float32", "float32", "tf32rne T8.25.23", "hopper, operands rounded to TF32"),
    ],
)  # fmt: skip
def test_a_card_names_the_unit_from_a_wide_or_a_narrow_output(fmt: str, out: str, model: str, match: str) -> None:
    card = format_card(model_matmul(model, fmt, out), fmt, out)
    assert match in card.matches
    assert card.sentence.startswith("matches ")


def test_hopper_and_blackwell_16_bit_units_cannot_be_told_apart_but_ampere_can() -> None:
    assert format_card(model_matmul("hopper", "float16"), "float16", "float32").matches == ("hopper", "blackwell")
    assert format_card(model_matmul("ampere", "float16"), "float16", "float32").matches == ("turing", "ampere", "ada")


@pytest.mark.parametrize(
    ("model", "fmt", "match"),
    [
        ("tf32rne T8.25.23 c32 seq", "float32", "hopper, operands rounded to TF32"),
        ("F c8 seq", "float32", "fused multiply-adds in order"),
        ("T16.25.23 c32 seq", "bfloat16", "hopper"), ("F r2x8 seq", "float32", "fused multiply-adds in order"),
    ],
)  # fmt: skip
def test_a_unit_is_known_though_the_library_cuts_the_questions_k(model: str, fmt: str, match: str) -> None:
    card = format_card(model_matmul(model, fmt), fmt, "float32")
    assert match in card.matches
    assert card.sentence.endswith(", k in pieces that are added to nearest")
    assert not set(card.matches) & {"ampere", "ada", "cdna3", "ampere, operands rounded to TF32"}


def test_an_unknown_unit_is_said_to_be_unknown_with_what_differs_from_the_closest() -> None:
    card = format_card(model_matmul("T16.26.23", "bfloat16"), "bfloat16", "float32")
    assert card.matches == ()
    assert card.sentence == ("unknown: closest hopper (alignment_bits 26, expected 25; alignment_bits_apart 26, expected 25)")


@pytest.mark.parametrize(
    ("model", "fmt", "k", "i", "left"),
    [  # measured on an H200: fp8 with use_fast_accum False and True
        ("T32.13.13 c128 seq", "float8_e4m3fn", 256, 128, 0), ("T32.13.13", "float8_e4m3fn", 256, 128, 96),
        ("T32.13.13 c128 seq", "float8_e4m3fn", 4096, 2048, 1920), ("T32.13.13", "float8_e4m3fn", 4096, 2048, 2016),
    ],
)  # fmt: skip
def test_promotion_every_128_shows_in_the_order_counts(model: str, fmt: str, k: int, i: int, left: int) -> None:
    assert order_counts(model_matmul(model, fmt), fmt, "float32", k)[i] == left


def test_a_split_contraction_leaves_units_behind_the_last_k() -> None:
    assert order_counts(model_matmul("T16.25.23", "bfloat16"), "bfloat16", "float32", 512)[511] == 0
    assert order_counts(model_matmul("T16.25.23 c256 seq", "bfloat16"), "bfloat16", "float32", 512)[511] > 0


def test_summation_trees_show_blocks_pairs_and_pieces() -> None:
    def tree(model: str, fmt: str, k: int) -> object:
        return summation_tree(model_matmul(model, fmt), fmt, "float32", k, m=40, n=8).nested()

    assert tree("F", "float32", 4) == (((0, 1), 2), 3)
    assert tree("F c2 seq", "float32", 6) == (((0, 1), (2, 3)), (4, 5))
    assert tree("F c2 tree", "float32", 8) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert tree("hopper", "tfloat32", 20) == (((0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, 12, 13, 14, 15), 16, 17, 18, 19)
    assert tree("cdna2", "bfloat16", 8) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert tree("F r2x2 seq", "float32", 8) == ((((0, 1), 4), 5), (((2, 3), 6), 7))


@pytest.mark.parametrize(("m", "n"), [(96, 2), (1, 96)])
def test_a_tree_is_read_from_rows_or_columns_and_at_lengths_beyond_one_product(m: int, n: int) -> None:
    tree = summation_tree(model_matmul("F c100 seq", "float32"), "float32", "float32", 300, m=m, n=n)
    chains = [tree.parents[leaf] for leaf in (1, 101, 201)]  # each meets its piece's first leaf at a node of its own
    assert len(set(chains)) == 3
    assert len(tree.parents) == 2 * 300 - 1
    assert tree.uniform


def test_fp8_trees_need_the_question_in_both_operands() -> None:
    tree = summation_tree(model_matmul("hopper", "float8_e4m3fn"), "float8_e4m3fn", "float32", 64, m=40, n=24)
    assert tree.nested() == (tuple(range(32)), *range(32, 64))


def test_elements_of_one_product_with_different_trees_are_noticed() -> None:
    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        d = model_matmul("F", "float32")(a, b)
        d[:, 3:] = model_matmul("F c4 seq", "float32")(a, b[3:])
        return d

    assert not summation_tree(matmul, "float32", "float32", 16, m=20, n=6).uniform


def test_what_is_no_tree_of_additions_is_refused() -> None:
    def forgetful(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return encode(decode(model_matmul("F", "float32")(a, b), "float32") + 0.5, "float32")

    with pytest.raises(UsageError, match=r"the pair \[0, 1\] left 14.5 of 16 units: no tree of additions does that"):
        summation_tree(forgetful, "float32", "float32", 16)
    with pytest.raises(UsageError, match="bfloat16 counts to 256; ask for a wider output or a smaller k"):
        summation_tree(forgetful, "bfloat16", "bfloat16", 300)


def test_a_card_prints_as_text_and_as_json() -> None:
    calls = []

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        calls.append(a.shape)
        return model_matmul("hopper", "float8_e4m3fn")(a, b)

    card = numerics_card([Call("float8_e4m3fn", "float32", matmul)], device="a model of an H200", lengths=(256,))
    assert card.text == (
        "numerics of a model of an H200: matches hopper in 1 of 1 ways to multiply\n"
        "\n"
        "float8_e4m3fn → float32: matches hopper\n"
        "  alignment_bits           13\n"
        "  alignment_bits_apart     13\n"
        "  survivors                32 32 32 32 32 32 0\n"
        "  rounding                 0 0\n"
        "  alignment_rounding       1 -1\n"
        "  tiny_accumulator         0 0\n"
        "  input_subnormals         yes\n"
        "  fp8_encoding             ocp\n"
        "  negative_zero            +0\n"
        "  integers_exact           yes\n"
        "  survivors at k = 256     1: 224, 2: 224, 4: 224, 8: 224, 16: 224, 32: 192, 64: 160, 128: 96, 255: 0\n"
        "  additions at k = 64      64 in order, 32 at a time"
    )
    data = json.loads(json.dumps(card.to_json()))
    assert data["formats"][0]["matches"] == ["hopper"]
    assert data["formats"][0]["answers"]["survivors"] == [32, 32, 32, 32, 32, 32, 0]
    assert data["formats"][0]["sentence"] == "matches hopper"
    assert all(shape[0] % 16 == 0 for shape in calls)
    calls.clear()
    format_card(matmul, "float8_e4m3fn", "float32", lengths=(256,), repeats=3)
    assert len(calls) <= 8  # few products, whatever the number of questions


def test_what_a_device_refuses_is_listed_with_its_reason() -> None:
    def refusing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise UnsupportedCase("no such product")

    calls = [Call("float8_e5m2", "float32", refusing), Call("float32", "float32", model_matmul("F", "float32"), "tf32")]
    card = numerics_card(calls, lengths=(), long=False)
    assert card.text.endswith("\nnot probed:\n  float8_e5m2 → float32: no such product")
    assert [c.name for c in card.formats] == ["float32 → float32, tf32"]
    assert card.to_json()["refused"] == {"float8_e5m2 → float32": "no such product"}


def test_results_that_change_from_run_to_run_are_seen() -> None:
    rng = np.random.default_rng(0)

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        d = decode(model_matmul("hopper", "bfloat16")(a, b), "float32")
        d[1, 0] = rng.random()
        return encode(d, "float32")

    card = numerics_card([Call("bfloat16", "float32", matmul)], lengths=(), long=False)
    assert not card.formats[0].deterministic
    assert card.text.endswith("  repeated products differ: the order of operations is not fixed")


def test_fp8_bytes_read_in_the_other_encoding_are_named() -> None:
    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # takes bytes for FNUZ, whatever the caller thinks they are
        return model_matmul("cdna3", "float8_e4m3fnuz")(a, b)

    found = probe(matmul, "float8_e4m3fn", "float32").answers
    assert found["fp8_encoding"] == "fnuz"
    assert format_card(matmul, "float8_e4m3fn", "float32").matches == ()


def test_a_mapping_fault_shows_as_inexact_integers() -> None:
    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        wrong = b.copy()
        wrong[1] = b[0]
        return model_matmul("hopper", "bfloat16")(a, wrong)

    assert probe(matmul, "bfloat16", "float32").answers["integers_exact"] is False


def test_a_summary_counts_the_ways_that_nothing_known_matches() -> None:
    unknown = FormatCard("bfloat16", "float32", {}, closest="cdna2")
    chain = FormatCard("float32", "float32", {}, matches=("fused multiply-adds in order",))
    assert NumericsCard("x", (unknown, unknown, chain)).summary == "unknown in 2 ways to multiply, fused multiply-adds in order in 1"
    assert NumericsCard("x", (unknown,)).summary == "unknown in 1 way to multiply"


def test_a_format_nothing_takes_is_said_so() -> None:
    card = FormatCard("float8_e4m3fnuz", "float32", {}, {})
    assert card.sentence == "unknown: nothing known takes this format"


def test_a_matmul_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"matmul returned shape \(1, 1\) for operands \(\d+, 64\) and \(\d+, 64\); expected"):
        probe(lambda a, b: np.zeros((1, 1), np.uint32), "bfloat16", "float32")


@pytest.mark.torch
def test_the_cpus_float32_product_is_a_chain_of_fused_multiply_adds_or_is_described() -> None:
    import torch

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (torch.from_numpy(np.array(v, np.uint32).view(np.float32)) for v in (a, b))
        return (x @ y.T).numpy().view(np.uint32)

    card = format_card(matmul, "float32", "float32")
    assert card.answers["operand_rounding"] == (6, 4, 12, 1)
    assert card.answers["integers_exact"] is True
    assert card.sentence
