"""Diagnoses of values, scales, accumulators and lanes; the gate that cannot fail; reproducers; the registry and its documentation."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from accuracy_eval.diagnose import (
    CODES,
    NOT_NAMED,
    Context,
    context_of,
    diagnose,
    fails,
    gate_cannot_fail,
    named,
    reproducer,
    rows_of,
    structural,
)
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.metrics import measure
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.quantize import quantize
from accuracy_eval.records import Case, Coded, Diagnosis, GateResult
from tests.support_faults import context, product, result

Array = NDArray[Any]
SHAPES = ((1024,), (16, 64), (128, 33))


def judged(actual: Any, expected: Any, fmt: str = "float32", **facts: Any) -> list[Diagnosis]:
    """Diagnoses of float arrays in `fmt`, inputs given as float arrays of float32 or as Coded."""
    a, e = encode(np.asarray(actual, np.float64), fmt), encode(np.asarray(expected, np.float64), fmt)
    inputs = {n: x if isinstance(x, Coded) else Coded(encode(np.asarray(x, np.float64), "float32"), "float32")
              for n, x in facts.pop("inputs", {}).items()}  # fmt: skip
    return diagnose(Context(measure(Coded(a, fmt), Coded(e, fmt)), rows_of(a), rows_of(e), inputs=inputs, **facts))


def evidence(found: list[Diagnosis], code: str) -> dict[str, Any]:
    return dict(next(d.evidence for d in found if d.code == code))


def names(found: list[Diagnosis]) -> list[str]:
    return [d.code for d in found]


# encodings


@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("ocp", "fnuz"), [("float8_e4m3fn", "float8_e4m3fnuz"), ("float8_e5m2", "float8_e5m2fnuz")])
@pytest.mark.parametrize("way", ["ocp read", "fnuz read"])
def test_bytes_read_in_the_other_fp8_encoding_are_named(ocp: str, fnuz: str, fmt: str, way: str) -> None:
    bytes_ = np.random.default_rng(0).permutation(np.arange(256, dtype=np.uint8))
    sides = [decode(bytes_, ocp), decode(bytes_, fnuz)]
    actual, expected = sides if way == "ocp read" else sides[::-1]
    found = judged(actual, expected, fmt)
    assert found[0].code == "fp8-encoding"
    assert evidence(found, "fp8-encoding") == {"gain": 2.0 if way == "ocp read" else 0.5}
    assert "gain" not in names(found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_bytes_of_two_encodings_are_named(shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(0).integers(1, 120, shape).astype(np.uint8)
    m = measure(Coded(codes, "float8_e4m3fnuz"), Coded(codes, "float8_e4m3fn"))
    found = diagnose(Context(m, rows_of(codes), rows_of(codes)))
    assert [(d.code, dict(d.evidence)) for d in found] == [("fp8-encoding", {"gain": 0.5})]


@pytest.mark.parametrize("operands", ["a", "b", "ab"])
def test_fp8_operands_read_in_the_other_encoding_are_named_by_the_rows_their_nan_bytes_spoil(operands: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 120, s).astype(np.uint8) for s in ((40, 64), (48, 64)))
    a[7, 3] = b[11, 9] = b[30, 60] = 0x80  # -0 in OCP, NaN in FNUZ
    truth = decode(a, "float8_e4m3fn") @ decode(b, "float8_e4m3fn").T
    read = {"a": a, "b": b}
    left, right = (decode(read[n], "float8_e4m3fnuz" if n in operands else "float8_e4m3fn") for n in "ab")
    actual = encode(left @ right.T, "float32")
    m = measure(Coded(actual, "float32"), truth)
    inputs = {"a": Coded(a, "float8_e4m3fn"), "b": Coded(b, "float8_e4m3fn")}
    found = diagnose(Context(m, rows_of(actual), rows_of(truth), op="gemm", layout="nt", inputs=inputs))
    assert evidence(found, "fp8-encoding") == {"gain": 0.25 if operands == "ab" else 0.5}


@pytest.mark.parametrize("factor", [2.0, 0.5, 4.0])
def test_a_power_of_two_without_a_nan_byte_is_a_gain_and_no_encoding(factor: float) -> None:
    p = product((64, 48, 96), "float8_e4m3fn", out="float32")
    found = diagnose(context(p, encode(result(p) * factor, "float32")))
    assert [(d.code, dict(d.evidence)) for d in found] == [("gain", {"value": factor, "power_of_two": True})]


def test_a_doubled_tensor_with_a_nan_that_no_byte_explains_is_a_gain() -> None:
    e = decode(np.arange(1, 100, dtype=np.uint8), "float8_e4m3fn")
    a = 2 * e
    a[50] = np.nan
    assert set(names(judged(a, e))) == {"gain", "nan-in-actual"}


# overflow


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1.2, 3.0, 100.0])
def test_saturation_against_nan_or_inf_is_an_overflow_policy(fmt: str, shape: tuple[int, ...], scale: float) -> None:
    f = get_format(fmt)
    x = np.random.default_rng(1).standard_normal(shape) * f.max / 3
    x.flat[5] = f.max * scale
    expected = decode(encode(x, f, overflow="saturate"), f)
    actual = decode(encode(x, f, overflow="nan" if not f.has_inf else "inf"), f)
    count = int((~np.isfinite(actual)).sum())
    for one, other in ((actual, expected), (expected, actual)):
        found = judged(one, other, op="cast", options={"format": fmt}, inputs={"x": x})
        assert found[0].code == "overflow-policy"
        assert evidence(found, "overflow-policy") == {"count": count}


def test_a_cast_that_truncates_is_named_so_beside_a_few_elements_that_overflow() -> None:
    x = np.random.default_rng(2).standard_normal(4096)
    x[:3] = 1000.0
    nearest, grid = decode(encode(x, "float8_e4m3fn"), "float8_e4m3fn"), decode(np.arange(0x7F, dtype=np.uint8), "float8_e4m3fn")
    cut = np.copysign(grid[np.searchsorted(grid, np.abs(x), side="right") - 1], x)  # the largest number that is no larger
    expected = np.where(np.abs(x) > 448, np.nan, nearest)
    facts = {"op": "cast", "options": {"format": "float8_e4m3fn"}, "inputs": {"x": x}, "contract": "exact"}
    found = judged(cut, expected, "float8_e4m3fn", **facts)
    assert names(found) == ["truncation-bias", "nan-in-expected"]
    assert found[1].evidence["count"] == 3
    assert names(judged(np.where(np.isnan(expected), 448.0, nearest), expected, "float8_e4m3fn", **facts))[0] == "overflow-policy"


def test_a_reference_is_zero_only_where_all_of_it_is() -> None:
    zeros = np.zeros(64)
    assert "zero-reference" in names(judged(zeros + 1, zeros))
    actual, expected = np.zeros((8, 8)), np.eye(8)
    actual[expected == 1] = np.nan  # finite pairs are zeros alone
    assert names(judged(actual, expected)) == ["nan-in-actual"]


def test_a_nan_where_an_ordinary_value_is_expected_is_no_overflow_policy() -> None:
    x = np.array([1.0, 448.0, 100.0, 1000.0])
    found = judged([1, 448, np.nan, 448], [1, 448, 100, 448], op="cast", options={"format": "float8_e4m3fn"}, inputs={"x": x})
    assert names(found) == ["nan-in-actual"]


def test_a_saturated_value_where_the_source_is_in_range_is_no_overflow_policy() -> None:
    found = judged([1, 448], [1, np.nan], op="cast", options={"format": "float8_e4m3fn"}, inputs={"x": np.array([1.0, np.nan])})
    assert "overflow-policy" in names(found)  # a NaN that is saturated is a policy as well
    found = judged([1, 448], [1, np.nan], op="cast", options={"format": "float8_e4m3fn"}, inputs={"x": np.array([1.0, 7.0])})
    assert "overflow-policy" not in names(found)


# accumulators


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("size", [70000, 100000, 500000])
def test_a_float16_running_sum_that_overflows_is_named(op: str, size: int) -> None:
    x = Coded(encode(np.ones(size), "float16"), "float16")
    found = judged([np.inf], [1.0 if op == "mean" else size], op=op, inputs={"x": x})
    assert names(found) == ["accumulator-overflow", "inf-in-actual"]


def test_an_infinity_that_no_running_sum_reaches_is_not_called_an_accumulator() -> None:
    x = Coded(encode(np.ones(1000), "float16"), "float16")
    assert names(judged([np.inf], [1000.0], op="sum", inputs={"x": x})) == ["inf-in-actual"]


@pytest.mark.parametrize(("fmt", "stuck"), [("float16", 2048.0), ("bfloat16", 256.0)])
@pytest.mark.parametrize("size", [5000, 20000])
def test_a_sixteen_bit_running_sum_that_stops_growing_is_named(fmt: str, stuck: float, size: int) -> None:
    x = Coded(encode(np.ones(size), fmt), fmt)
    found = judged([stuck], [size], op="sum", inputs={"x": x})
    assert [(d.code, dict(d.evidence)) for d in found] == [("accumulator-plateau", {"value": stuck})]
    assert judged([stuck + 8], [size], op="sum", inputs={"x": x}) == []


def test_a_product_that_stops_growing_is_an_accumulator_plateau_and_no_gain() -> None:
    one = Coded(encode(np.ones((16, 8192)), "float16"), "float16")
    found = judged(np.full((16, 16), 2048.0), np.full((16, 16), 8192.0), op="gemm", layout="nt", inputs={"a": one, "b": one})
    assert [(d.code, dict(d.evidence)) for d in found] == [("accumulator-plateau", {"value": 2048.0})]


# small and special values


@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flushed_subnormals_are_counted(fmt: str, shape: tuple[int, ...]) -> None:
    f = get_format(fmt)
    rng = np.random.default_rng(2)
    e = decode(encode(rng.uniform(-6, 6, shape) * f.smallest_normal, f), f)
    small = (np.abs(e) < f.smallest_normal) & (e != 0)
    found = judged(np.where(small, 0.0, e), e, fmt)
    assert [(d.code, dict(d.evidence)) for d in found] == [("flush-to-zero", {"count": int(small.sum())})]
    some = small & (rng.random(shape) < 0.5)
    assert "flush-to-zero" not in names(judged(np.where(some, 0.0, e), e, fmt))


@pytest.mark.parametrize("severity", [0, 1])
def test_flushed_subnormal_operands_are_named(severity: int) -> None:
    from tests.support_faults import flushed_operands

    rng = np.random.default_rng(4)
    f = get_format("float16")
    a, b = (rng.standard_normal(s) * f.smallest_normal for s in ((64, 128), (48, 128)))
    a, b = a * 8, b * (8 if severity else 2.0**14)
    a[:, ::3] /= 32
    b[:, 1::3] /= 32
    p = product((64, 48, 128), "float16", out="float32")
    codes_a, codes_b = (Coded(encode(x, "float16"), "float16") for x in (a, b))
    truth = decode(codes_a.codes, "float16") @ decode(codes_b.codes, "float16").T
    p = type(p)(codes_a, codes_b, truth, np.abs(truth) * 2.0**-22, "float32", "fp32acc")
    fault = flushed_operands(p, severity)
    assert names(diagnose(context(p, fault.actual))) == ["flush-to-zero"]


def test_zeros_of_the_other_sign_alone_are_a_note() -> None:
    e = np.array([0.0, 1.0, -0.0, 2.0] * 8)
    assert [(d.code, dict(d.evidence)) for d in judged(np.abs(e), e)] == [("negative-zero", {"count": 8})]
    assert "negative-zero" not in names(judged(np.where(e == 1, 3.0, np.abs(e)), e))


@pytest.mark.parametrize(("op", "value"), [("sigmoid", 1.0001), ("tanh", -1.5), ("exp", -1e-3), ("sqrt", -0.5), ("erf", 1.01)])
@pytest.mark.parametrize("shape", [(64,), (8, 32)], ids=str)
def test_a_value_outside_a_functions_range_is_located(op: str, value: float, shape: tuple[int, ...]) -> None:
    e = np.full(shape, 0.5) + np.linspace(0, 0.25, int(np.prod(shape))).reshape(shape)
    a = e.copy()
    a.flat[37] = value
    found = judged(a, e, op=op)
    assert found[0].code == "range-violation"
    assert evidence(found, "range-violation") == {"index": 37 if len(shape) == 1 else [1, 5]}
    a.flat[37] = 1.0
    assert "range-violation" not in names(judged(a, e, op=op))


@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cut", [-3.0, -2.0, -4.0])
def test_a_function_that_is_cut_off_beyond_an_argument_is_a_tail_flush(fmt: str, cut: float) -> None:
    x = decode(encode(np.linspace(-6, 6, 500), fmt), fmt)
    e = decode(encode(np.exp(x), fmt), fmt)
    found = judged(np.where(x <= cut, 0.0, e), e, fmt, op="exp", inputs={"x": Coded(encode(x, fmt), fmt)})
    assert [(d.code, dict(d.evidence)) for d in found] == [("tail-flush", {"from_value": float(x[x <= cut].max())})]
    holes = np.where((x > -1) & (x < 1), 0.0, e)
    assert "tail-flush" not in names(judged(holes, e, fmt, op="exp", inputs={"x": Coded(encode(x, fmt), fmt)}))


# scales of a quantiser


@pytest.mark.parametrize("recipe", ["mxfp4", "mxfp8", "mxfp8_even"])
@pytest.mark.parametrize("other", ["rceil", "ceil", "floor"])
@pytest.mark.parametrize("shape", [(16, 256), (64, 96), (5, 32 * 33)], ids=str)
def test_scales_of_another_rounding_rule_are_named(recipe: str, other: str, shape: tuple[int, int]) -> None:
    family = recipe.split("_")[0]
    rule = {"mxfp8_even": "even"}.get(recipe, "floor")
    if rule == other:
        other = "even"
    x = encode(np.random.default_rng(5).standard_normal(shape), "bfloat16")
    right = quantize(x, "bfloat16", recipe)
    wrong = quantize(x, "bfloat16", family if other == "floor" else f"{family}_{other}")
    m = measure(Coded(wrong.scale, wrong.scale_format), Coded(right.scale, right.scale_format))
    facts: dict[str, Any] = {"op": "quantize", "recipe": recipe, "output": "scale"}
    sides = rows_of(wrong.scale), rows_of(right.scale)
    found = diagnose(Context(m, *sides, inputs={"x": Coded(x, "bfloat16")}, **facts))
    assert evidence(found, "scale-rounding-rule") == {"actual": other, "expected": rule}
    moved = wrong.scale.copy()
    moved[0, 0] += 3  # a scale that no rule gives
    m = measure(Coded(moved, wrong.scale_format), Coded(right.scale, right.scale_format))
    found = diagnose(Context(m, rows_of(moved), sides[1], inputs={"x": Coded(x, "bfloat16")}, **facts))
    assert "scale-rounding-rule" not in names(found)


# exact and coded lanes


def companion(case: Case, output: str) -> tuple[dict[str, Coded], Array, str]:
    spec = get_op("gemm")
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
    reference = spec.reference(case, inputs, "ocp", "fp32acc")[output]
    return inputs, np.concatenate([p.values for p in reference.panels()]).reshape(reference.shape), reference.format


def lane_case(lane: str, fmt: str, shape: tuple[int, int, int], layout: str = "nt", direction: str = "fwd") -> Case:
    return Case("gemm", tuple(zip("mnk", shape, strict=True)), layout, fmt, lane=lane, direction=direction)


def said(case: Case, output: str, inputs: dict[str, Coded], actual: Array, expected: Array, fmt: str) -> list[tuple[str, dict[str, Any]]]:
    m = measure(Coded(actual, fmt), Coded(expected, fmt))
    c = context_of(case, m, output=output, actual=rows_of(actual), expected=rows_of(expected), inputs=inputs, contract="fp32acc")
    return [(d.code, dict(d.evidence)) for d in diagnose(c)]


@pytest.mark.parametrize("lane", ["exact", "coded"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("shape", [(64, 96, 128), (130, 33, 304), (64, 64, 64)], ids=str)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_lanes_without_rounding_name_what_is_missing(lane: str, fmt: str, shape: tuple[int, int, int], layout: str) -> None:
    case = lane_case(lane, fmt, shape, layout)
    inputs, expected, out = companion(case, "d")
    a, b = (decode(inputs[n].codes, fmt) for n in "ab")
    a, b = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
    k = shape[2]

    def without(*lost: int) -> Array:
        left = a.copy()
        left[:, list(lost)] = 0
        return encode(left @ b, out)

    assert said(case, "d", inputs, expected.copy(), expected, out) == []
    tail = k - k // 4
    seen = np.flatnonzero(a.any(axis=0))  # in the coded lane not every k is seen where there are fewer rows
    shown = int(seen[seen >= tail][0])
    assert said(case, "d", inputs, without(*range(tail, k)), expected, out) == [("k-tail-missing", {"from_k": shown})]
    one = int(seen[3])
    assert said(case, "d", inputs, without(one), expected, out) == [("lost-k", {"k": one})]
    turned = np.ascontiguousarray(expected.T).reshape(expected.shape)
    assert said(case, "d", inputs, turned, expected, out) == [("transposed", {})]
    hole = expected.copy()
    hole[8:24, 16:32] = 0
    where = {"row_first": 8, "row_last": 23, "col_first": 16, "col_last": 31}
    assert said(case, "d", inputs, hole, expected, out) == [("block", where)]
    bad_rows = expected.copy()
    bad_rows[3:7] = 0
    assert said(case, "d", inputs, bad_rows, expected, out) == [("rows", {"first": 3, "last": 6})]


@pytest.mark.parametrize("output", ["da", "db"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_a_gradients_contraction_is_its_own(output: str, layout: str) -> None:
    case = lane_case("exact", "bfloat16", (64, 96, 80), layout, "bwd")
    inputs, expected, fmt = companion(case, output)
    g, a, b = (decode(inputs[n].codes, inputs[n].format) for n in ("grad_d", "a", "b"))
    a, b = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
    if output == "da":
        g[:, -16:] = 0
        whole, from_k = (g @ b.T, 80)
        whole = whole if layout[0] == "n" else whole.T
    else:
        g[-16:] = 0
        whole, from_k = (a.T @ g, 48)
        whole = whole if layout[1] == "n" else whole.T
    assert said(case, output, inputs, encode(whole, fmt), expected, fmt) == [("k-tail-missing", {"from_k": from_k})]


# gates


def gate(metric: str, comparison: str, limit: float) -> GateResult:
    return GateResult("some-gate", metric, 0.0, comparison, limit, True)


@pytest.mark.parametrize(
    ("metric", "comparison", "limit", "rtol", "atol", "largest", "blind"),
    [
        ("allclose_violations", "<=", 0, 0.0, 32.0, 3.0, True),
        ("allclose_violations", "<=", 0, 1e-2, 1e-2, 2.5e-6, True),
        ("allclose_violations", "<=", 0, 1e-2, 1e-2, 1.0, False),
        ("allclose_violations", "<=", 0, 1.0, 0.0, 1.0, True),
        ("max_scaled", "<=", 0.08, 0.0, 0.0, 0.05, True),
        ("max_scaled", "<=", 0.08, 0.0, 0.0, 5.0, False),
        ("max_abs", "<=", 0.1, 0.0, 0.0, 0.1, True),
        ("rel_fro", "<=", 0.05, 0.0, 0.0, 1e-30, False),
        ("cosine", ">=", 0.9999, 0.0, 0.0, 1.0, False),
        ("snr_db", ">", 25, 0.0, 0.0, 1.0, False),
        ("snr_db", ">", -1, 0.0, 0.0, 1.0, True),
        ("budget_max", "<=", 1, 0.0, 0.0, 1.0, False),
    ],
)
def test_a_gate_that_zeros_would_pass_is_reported(
    metric: str, comparison: str, limit: float, rtol: float, atol: float, largest: float, blind: bool
) -> None:
    found = gate_cannot_fail(gate(metric, comparison, limit), largest, rtol=rtol, atol=atol)
    assert (found is not None) == blind
    if found:
        d = named("gate-cannot-fail", {"gate": found["gate"]}, largest=found["largest"])
        assert dict(d.evidence) == {"gate": "some-gate"}
        assert d.sentence == f"gate some-gate cannot fail here: an all-zero output passes it; the largest expected is {found['largest']}"


@pytest.mark.parametrize("largest", [0.0, None, float("inf")])
def test_a_zero_or_unknown_expectation_says_nothing_about_a_gate(largest: float | None) -> None:
    assert gate_cannot_fail(gate("max_abs", "<=", 1.0), largest) is None


# structure


def test_an_underflow_to_zero_that_is_right_is_not_all_zero() -> None:
    truth = np.full((4, 8), 1e-60)
    m = measure(Coded(encode(truth, "float32"), "float32"), truth)
    assert structural(Context(m)) == []
    m = measure(Coded(encode(truth, "float32"), "float32"), np.full((4, 8), 1e-30))
    assert names(structural(Context(m))) == ["all-zero"]


def test_structural_faults_read_as_before_and_fail() -> None:
    a, e = np.array([1, np.nan, np.inf, 4.0]), np.array([1.0, 2, 3, 4])
    m = measure(Coded(encode(a, "float32"), "float32"), Coded(encode(e, "float32"), "float32"))
    found = structural(Context(m))
    assert [d.sentence for d in found] == [
        "1 of 4 elements are NaN where the other side is not, the first at 1",
        "1 of 4 elements are Inf where the other side is not, the first at 2",
    ]
    assert fails(found)
    assert not fails([named("rounding-only", {"count": 1}, total=4, why="one step of the format")])


def test_what_others_find_is_worded_here() -> None:
    assert named("never-written", {"count": 128}, total=4096).sentence == (
        "128 of 4096 elements were never written: they held the fill of both runs"
    )
    assert named("nondeterministic", {"count": 3}, repeats=10).sentence == (
        "3 different results in 10 runs of the same call; every one was judged"
    )
    assert named("shape-mismatch", found=[3, 4], asked=[4, 3]).sentence == "the output is [3, 4]; the case asks for [4, 3]"


# reproducers


def test_a_reproducer_holds_one_row_one_column_and_the_exactly_rounded_result() -> None:
    rng = np.random.default_rng(0)
    a, b = (Coded(encode(rng.standard_normal(s), "bfloat16"), "bfloat16") for s in ((8, 96), (96, 6)))
    case = Case("gemm", (("m", 8), ("n", 6), ("k", 96)), "nn", "bfloat16")
    r = reproducer(case, {"a": a, "b": b}, (5, 2), out_format="float32", actual_code=7)
    assert [int(r["a_codes"][i : i + 4], 16) for i in range(0, 384, 4)] == a.codes[5].tolist()
    assert [int(r["b_codes"][i : i + 4], 16) for i in range(0, 384, 4)] == b.codes[:, 2].tolist()
    left, right = decode(a.codes[5], "bfloat16").tolist(), decode(b.codes[:, 2], "bfloat16").tolist()
    total = sum((Fraction(x) * Fraction(y) for x, y in zip(left, right, strict=True)), Fraction(0))
    near = int(r["expected"], 16)
    error = abs(Fraction(float(decode(np.array([near], np.uint32), "float32")[0])) - total)
    for other in (near - 1, near + 1):
        assert error <= abs(Fraction(float(decode(np.array([other], np.uint32), "float32")[0])) - total)
    assert r["actual"] == "0x00000007"
    assert (r["k"], r["index"]) == (96, [5, 2])


def test_a_reproducer_rounds_once_where_float64_would_round_twice() -> None:
    # 1 + 2^-8 is a tie of bfloat16 that goes to 1; 2^-70 more than the tie goes up, and float64 cannot hold the difference
    a = Coded(encode(np.array([[1.0, 2.0**-8, 2.0**-70]]), "bfloat16"), "bfloat16")
    b = Coded(encode(np.ones((3, 1)), "bfloat16"), "bfloat16")
    case = Case("gemm", (("m", 1), ("n", 1), ("k", 3)), "nn", "bfloat16")
    assert reproducer(case, {"a": a, "b": b}, (0, 0), out_format="bfloat16")["expected"] == "0x3f81"


def test_a_long_reproducer_keeps_a_digest_and_the_largest_products() -> None:
    a = np.zeros((1, 10000))
    a[0, [3, 7000]] = 1.0, 2.0
    codes = Coded(encode(a, "float32"), "float32")
    case = Case("gemm", (("m", 1), ("n", 1), ("k", 10000)), "nt", "float32")
    r = reproducer(case, {"a": codes, "b": codes}, (0, 0))
    assert "a_codes" not in r
    assert len(r["a_sha256"]) == 64
    assert r["terms"] == [[3, "3f800000", "3f800000"], [7000, "40000000", "40000000"]]
    assert r["expected"] == "0x40a00000"


# the registry


def test_the_documentation_lists_every_code_and_every_absent_one() -> None:
    text = (Path(__file__).parents[1] / "docs" / "diagnoses.md").read_text("utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in text.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted([*CODES, *NOT_NAMED])


def test_every_code_says_what_it_means_and_what_to_do() -> None:
    for code in CODES.values():
        assert code.meaning
        assert code.action
        ends = {"first", "last", "row_first", "row_last", "col_first", "col_last"}
        hidden = {"axis", "offset", "bias_sigma", "power_of_two", "count", *ends}  # said in other words, or not worth a word
        assert all("{" + key + "}" in code.sentence for key in code.evidence if key not in hidden)
        assert {*code.unless, *code.with_} <= set(CODES)
