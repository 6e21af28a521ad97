"""Faults are named with the right evidence, near misses and healthy data are not: every code over shapes, formats and severities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from accuracy_eval.diagnose import CODES, Context, diagnose, rows_of, rows_of_panels
from accuracy_eval.diagnose.context import Limits
from accuracy_eval.formats import decode, encode
from accuracy_eval.metrics import measure
from accuracy_eval.ops.spec import Panel
from accuracy_eval.records import Coded, Diagnosis
from tests import support_faults as faults
from tests.support_faults import CONTRACTS, FORMATS, HEALTHY, SHAPES, Fault, Product, codes, context, product

SEVERITIES = (0, 1, 2)
DRAWS = ("normal", "cancellation", "tiny", "relu", "integers")


@lru_cache(maxsize=64)
def made(shape: tuple[int, int, int], fmt: str, out: str = "", draw: str = "normal") -> Product:
    return product(shape, fmt, out=out, draw=draw)


@lru_cache(maxsize=16)
def scaled(shape: tuple[int, int, int], fmt: str) -> Product:
    m, n, k = shape
    rng = np.random.default_rng(k)
    scales = {"a_scale": 2.0 ** rng.integers(-3, 4, (m, k // 32)), "b_scale": 2.0 ** rng.integers(-3, 4, (n, k // 32))}
    return product(shape, fmt, out="float32", scales=scales)


def names(found: list[Diagnosis]) -> list[str]:
    return [d.code for d in found]


def agrees(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(math.isclose(found[k], v, rel_tol=0.01) if isinstance(v, float) else found[k] == v for k, v in wanted.items())


def assert_named(fault: Fault, found: list[Diagnosis]) -> None:
    mine = [d for d in found if d.code == fault.code]
    assert mine, f"{fault.code} not named; found {[(d.code, dict(d.evidence)) for d in found]}"
    assert agrees(mine[0].evidence, fault.evidence), (mine[0].evidence, fault.evidence)
    assert [c for c in names(found) if c != fault.code and c not in fault.beside] == []


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("code", faults.ANYWHERE)
def test_a_fault_is_named_with_its_evidence_and_nothing_else_is(code: str, shape: tuple[int, int, int], fmt: str) -> None:
    p = made(shape, fmt)
    for severity in SEVERITIES:
        fault = faults.ANYWHERE[code](p, severity)
        assert_named(fault, diagnose(context(p, fault.actual)))


@pytest.mark.parametrize("fmt", [*FORMATS, "float16"])
@pytest.mark.parametrize("code", faults.ANYWHERE)
def test_plain_arrays_have_the_same_faults_named(code: str, fmt: str) -> None:
    p = made(SHAPES[0], fmt)
    for severity in SEVERITIES:
        fault = faults.ANYWHERE[code](p, severity)
        assert_named(fault, diagnose(context(p, fault.actual, "plain")))


@pytest.mark.parametrize(
    ("fmt", "out"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float8_e4m3fn", "float32")]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("code", faults.IN_PRODUCTS)
def test_a_fault_inside_a_product_is_named_when_the_operands_are_known(code: str, shape: tuple[int, int, int], fmt: str, out: str) -> None:
    p = made(shape, fmt, out)
    for severity in SEVERITIES:
        fault = faults.IN_PRODUCTS[code](p, severity)
        assert_named(fault, diagnose(context(p, fault.actual, "budget")))
        assert_named(fault, diagnose(context(p, fault.actual, "codes")))
        assert diagnose(context(p, fault.actual, "plain")) == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("code", faults.NARROWED)
def test_narrowed_operands_are_named_by_the_width_they_were_narrowed_to(code: str, shape: tuple[int, int, int]) -> None:
    p = made(shape, "float32")
    for severity in SEVERITIES:
        fault = faults.NARROWED[code](p, severity)
        assert_named(fault, diagnose(context(p, fault.actual)))


@pytest.mark.parametrize(("fmt", "out"), [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float16")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_partial_sums_rounded_to_sixteen_bits_are_named(shape: tuple[int, int, int], fmt: str, out: str) -> None:
    p = made(shape, fmt, out)
    for severity in SEVERITIES[: 2 if out == "float16" else 3]:
        fault = faults.partials(p, severity)
        assert_named(fault, diagnose(context(p, fault.actual)))


@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fault", [faults.dealt_partials, faults.narrow_accumulator, faults.rounded_result], ids=lambda f: f.__name__)
def test_a_float32_output_that_was_rounded_on_its_way_says_where(
    fault: Callable[[Product, int], Fault], shape: tuple[int, int, int], fmt: str
) -> None:
    p = made(shape, fmt, "float32")
    for severity in SEVERITIES:
        planted = fault(p, severity)
        assert_named(planted, diagnose(context(p, planted.actual)))


@pytest.mark.parametrize("how", ["budget", "plain"])
def test_a_rounded_result_is_named_where_the_operands_are_unknown_too(how: str) -> None:
    p = made(SHAPES[0], "float32")
    for severity in SEVERITIES:
        planted = faults.rounded_result(p, severity)
        c = context(p, planted.actual, how)
        assert_named(planted, diagnose(Context(c.measured, c.actual, c.expected, contract=c.contract)))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(64, 96, 128), (96, 64, 256), (130, 33, 96)], ids=str)
@pytest.mark.parametrize("code", faults.SCALED)
def test_scales_that_miss_their_data_are_named(code: str, shape: tuple[int, int, int], fmt: str) -> None:
    p = scaled(shape, fmt)
    for severity in SEVERITIES:
        fault = faults.SCALED[code](p, severity)
        assert_named(fault, diagnose(context(p, fault.actual)))


@pytest.mark.parametrize(("fmt", "out"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float32")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_truncation_beyond_the_contract_is_named(shape: tuple[int, int, int], fmt: str, out: str) -> None:
    p = made(shape, fmt, out)
    for severity in SEVERITIES:
        fault = faults.truncated(p, severity)
        found = names(diagnose(context(p, fault.actual)))
        # a cut float32 output is what a truncating matrix unit gives, and 14 bits hide under the rounding of a 16-bit output
        must = (severity == 0) != (out == "float32")
        assert found == ["truncation-bias"] if must else found in ([], ["rounding-only"], ["truncation-bias"])


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("fmt", [*FORMATS, "float16", "float8_e5m2"])
def test_healthy_arithmetic_has_no_diagnosis_but_rounding(fmt: str, draw: str) -> None:
    for shape in ((48, 64, 130), (1, 100, 64), (70, 1, 257), (5, 7, 3)):
        for out in {fmt, "float32"}:
            p = made(shape, fmt, out, draw)
            for name, sums in HEALTHY.items():
                if name == "fp8 unit" and CONTRACTS[fmt] != "fp8fast":
                    continue
                actual = codes(p, sums(p))
                for how in ("budget", "plain"):
                    found = [d for d in diagnose(context(p, actual, how)) if d.code not in ("rounding-only", "zero-reference")]
                    assert found == [], (shape, out, name, how)


@pytest.mark.parametrize("fmt", FORMATS)
def test_equal_tensors_have_no_diagnosis(fmt: str) -> None:
    p = made(SHAPES[0], fmt)
    assert diagnose(context(p, encode(p.truth, fmt))) == []


# near misses


def said(p: Product, values: np.ndarray[Any, Any], how: str = "budget") -> list[str]:
    return names(diagnose(context(p, codes(p, values), how)))


@pytest.mark.parametrize("how", ["budget", "plain"])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_a_lost_part_of_k_is_no_gain_and_no_truncation_where_the_operands_are_unknown(fmt: str, how: str) -> None:
    p = made(SHAPES[0], fmt)
    a, b = p.operands
    for keep in (slice(0, 40), slice(32, None), slice(0, 100)):
        c = context(p, codes(p, a[:, keep] @ b[:, keep].T), how)
        assert names(diagnose(Context(c.measured, c.actual, c.expected, contract=c.contract))) == []


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_a_middle_part_of_k_that_is_missing_is_neither_a_tail_nor_a_single_k(fmt: str) -> None:
    p = made(SHAPES[0], fmt)
    a, b = p.operands
    a[:, 32:64] = 0
    assert said(p, a @ b.T) == []


@pytest.mark.parametrize("code", ["lost-k", "k-tail-missing", "rows"])
def test_integers_that_fit_a_narrower_format_are_not_a_rounded_result(code: str) -> None:
    """Small integers leave the low bits empty by themselves, and so does their truth."""
    p = made(SHAPES[0], "float32", draw="integers")
    fault = (faults.ANYWHERE | faults.IN_PRODUCTS)[code](p, 1)
    held = decode(fault.actual, "float32")
    assert np.array_equal(held, faults.rounded(held, "bfloat16"))
    assert_named(fault, diagnose(context(p, fault.actual)))


def test_a_result_of_narrowed_operands_that_is_rounded_too_is_not_called_rounded_only() -> None:
    p = made(SHAPES[0], "float32")
    a, b = (faults.narrowed(x, 7) for x in p.operands)
    assert "result-rounded" not in said(p, faults.rounded(a @ b.T, "bfloat16"))


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_result_that_is_rounded_in_part_is_not_called_rounded(share: float) -> None:
    p = made(SHAPES[0], "float32")
    values = faults.result(p)
    where = np.random.default_rng(0).random(values.shape) < share
    assert said(p, np.where(where, faults.rounded(values, "bfloat16"), values)) == []


def test_sums_rounded_to_twelve_bits_on_their_way_are_no_sixteen_bit_accumulator() -> None:
    p = made(SHAPES[0], "float32")
    a, b = p.operands
    total = np.zeros(p.truth.shape)
    for i in range(0, p.k, 16):
        total = faults.narrowed(total + a[:, i : i + 16] @ b[:, i : i + 16].T, 11)
    assert said(p, total) == []


def test_two_lost_k_are_not_called_one() -> None:
    p = made(SHAPES[2], "float32")
    a, b = p.operands
    a[:, [17, 250]] = 0
    assert said(p, a @ b.T) == []


def test_a_k_that_counts_twice_is_not_lost() -> None:
    p = made(SHAPES[2], "float32")
    a, b = p.operands
    a[:, 17] *= 2
    assert said(p, a @ b.T) == []


def test_scattered_wrong_rows_are_not_called_a_run() -> None:
    p = made(SHAPES[0], "float32")
    values = faults.result(p)
    values[[3, 17, 60, 61]] = 0
    assert said(p, values) == []


def test_two_blocks_are_not_called_one() -> None:
    p = made(SHAPES[0], "float32")
    values = faults.result(p)
    values[8:16, 8:16] = 0
    values[16:24, 40:48] = 0
    assert said(p, values) == []


def test_one_scale_block_off_by_a_power_of_two_is_neither_gain_nor_scale_index() -> None:
    p = scaled((64, 96, 128), "float8_e4m3fn")
    a, b = p.operands
    a[:, 32:64] *= 2
    assert said(p, a @ b.T) == []


def test_a_gain_on_most_rows_is_not_a_gain_of_the_tensor() -> None:
    p = made(SHAPES[0], "float32")
    values = faults.result(p)
    values[:90] *= 1.5
    assert said(p, values) == ["rows"]


def test_a_gain_within_the_bias_of_the_contract_is_not_named() -> None:
    p = made(SHAPES[2], "float32")
    assert said(p, faults.result(p) * (1 - 2.0**-20)) in ([], ["rounding-only"])


def test_a_gain_hidden_by_noise_is_not_named() -> None:
    p = made(SHAPES[0], "float32")
    noise = np.random.default_rng(1).standard_normal(p.truth.shape) * np.std(p.truth) * 0.1
    assert said(p, p.truth * 1.001 + noise) == []


def test_an_almost_transposed_result_is_not_called_transposed() -> None:
    p = made(SHAPES[2], "float32")
    values = faults.result(p).T.copy()
    values[:60] = np.random.default_rng(0).standard_normal((60, 96))
    assert "transposed" not in said(p, values)


def test_operands_cut_to_eleven_bits_are_not_tf32() -> None:
    p = made(SHAPES[0], "float32")
    a, b = (faults.narrowed(x, 11) for x in p.operands)
    assert said(p, a @ b.T) == []


def test_constant_data_do_not_tell_a_missing_tail_from_a_gain() -> None:
    one = Coded(encode(np.ones((16, 64)), "float32"), "float32")
    expected, actual = encode(np.full((16, 16), 64.0), "float32"), encode(np.full((16, 16), 48.0), "float32")
    m = measure(Coded(actual, "float32"), Coded(expected, "float32"))
    found = diagnose(Context(m, rows_of(actual), rows_of(expected), op="gemm", layout="nt", inputs={"a": one, "b": one}))
    assert [(d.code, dict(d.evidence)) for d in found] == [("gain", {"value": 0.75, "power_of_two": False})]


def test_operands_that_do_not_give_the_expectation_explain_nothing() -> None:
    p, other = made(SHAPES[0], "float32"), product(SHAPES[0], "float32", seed=9)
    c = context(p, faults.k_tail(p, 0).actual, "codes")
    wrong = Context(c.measured, c.actual, c.expected, op="gemm", layout="nt", inputs={"a": other.a, "b": other.b})
    assert diagnose(wrong) == []


# what little is known


@pytest.mark.parametrize("code", ["rows", "columns", "gain", "constant", "all-zero", "nan-in-actual"])
def test_the_measurement_alone_names_what_needs_no_second_look(code: str) -> None:
    p = made(SHAPES[0], "float32")
    fault = faults.ANYWHERE[code](p, 0)
    c = context(p, fault.actual)
    found = diagnose(Context(c.measured))
    assert [d.code for d in found if d.code not in fault.beside] == [code]
    assert agrees(next(d.evidence for d in found if d.code == code), fault.evidence)


@pytest.mark.parametrize("code", ["gain", "rows", "columns", "block", "periodic", "zero-tail", "transposed", "nan-in-actual"])
def test_large_tensors_are_looked_at_in_part_with_the_same_answer(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = made(SHAPES[2], "float32")
    seen = []
    for severity in SEVERITIES:
        fault = faults.ANYWHERE[code](p, severity)
        monkeypatch.setattr(Limits, "elements", 96 * 64)
        c = context(p, fault.actual)

        def counting(rows: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
            def take(first: int, end: int) -> Any:
                seen.append(end - first)
                return rows(first, end)

            return take

        assert c.actual is not None
        assert c.expected is not None
        limited = Context(c.measured, counting(c.actual), counting(c.expected), contract=c.contract, contraction=c.contraction)
        assert_named(fault, diagnose(limited))
    assert max(seen, default=0) <= 64


@pytest.mark.parametrize("code", ["rows", "columns", "block", "zero-tail", "transposed", "k-tail-missing"])
def test_the_rows_of_a_products_truth_are_computed_where_nobody_holds_them(code: str) -> None:
    p = made(SHAPES[0], "bfloat16")
    for severity in SEVERITIES:
        fault = (faults.ANYWHERE | faults.IN_PRODUCTS)[code](p, severity)
        assert_named(fault, diagnose(replace(context(p, fault.actual), expected=None)))


def test_rows_of_a_streamed_reference_are_the_rows_whatever_the_order_they_are_asked_for_in() -> None:
    whole = np.arange(50.0).reshape(10, 5)
    runs = []

    def panels() -> Iterator[Panel]:
        runs.append(1)
        yield from (Panel(i, whole[i : i + 4]) for i in range(0, 10, 4))

    rows = rows_of_panels(panels)
    for first, end in ((0, 2), (1, 4), (3, 9), (8, 10), (0, 10), (5, 6)):
        assert np.array_equal(rows(first, end), whole[first:end])
    assert len(runs) == 3


def test_a_vector_has_its_wrong_run_and_its_period_named() -> None:
    rng = np.random.default_rng(0)
    e = encode(rng.standard_normal(1000), "float32")
    run, lanes, tail = e.copy(), e.copy(), e.copy()
    run[100:164] = encode(np.full(64, 9.0), "float32")
    lanes[5::16] = 0
    tail[900:] = 0

    def found(a: Any) -> list[tuple[str, dict[str, Any]]]:
        m = measure(Coded(a, "float32"), Coded(e, "float32"))
        return [(d.code, dict(d.evidence)) for d in diagnose(Context(m, rows_of(a), rows_of(e)))]

    assert found(run) == [("block", {"row_first": 0, "row_last": 0, "col_first": 100, "col_last": 163})]
    assert found(lanes) == [("periodic", {"axis": 0, "modulus": 16, "offset": 5})]
    assert found(tail) == [("zero-tail", {"from_index": 900})]


@pytest.mark.parametrize(
    ("wrong", "sentence"), [(slice(5, None, 16), "row 5 of every 16 is wrong"), (slice(1, 32), "rows 1 to 31 of every 32 are wrong")]
)
def test_lines_that_are_wrong_at_a_fixed_distance_read_as_a_sentence(wrong: slice, sentence: str) -> None:
    e = encode(np.random.default_rng(9).standard_normal((128, 24)), "float32")
    a = e.copy()
    (a if wrong.step else a.reshape(4, 32, 24).swapaxes(0, 1))[wrong] ^= 1 << 22
    (only,) = diagnose(Context(measure(Coded(a, "float32"), Coded(e, "float32")), rows_of(a), rows_of(e)))
    assert only.code == "periodic"
    assert only.sentence.startswith(sentence)


def test_every_diagnosis_holds_the_evidence_its_row_promises_and_reads_as_a_sentence() -> None:
    p = made(SHAPES[0], "float32")
    for make in (faults.ANYWHERE | faults.IN_PRODUCTS | faults.NARROWED).values():
        for d in diagnose(context(p, make(p, 1).actual)):
            assert set(CODES[d.code].evidence) <= set(d.evidence)
            assert d.sentence
            assert "{" not in d.sentence


def test_causes_come_before_places_and_places_before_notes() -> None:
    p = made(SHAPES[0], "float32")
    values = faults.result(p)
    values[-4:] = 0
    assert said(p, values) == ["zero-tail", "rows"]
    assert [CODES[c].rank for c in ("gain", "rows", "rounding-only")] == ["cause", "place", "note"]


def test_decoding_is_not_needed_to_name_an_empty_tensor() -> None:
    empty = np.zeros((0, 8), np.uint16)
    m = measure(Coded(empty, "bfloat16"), decode(empty, "bfloat16"))
    assert names(diagnose(Context(m))) == ["empty"]
