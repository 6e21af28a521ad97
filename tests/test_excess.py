"""Excess noise beside what a contract allows: 8-bit sums of one sign, by Hopper's unit and by an H200, and faults that must fail."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from accuracy_eval.cases import make_case
from accuracy_eval.datapath import dot
from accuracy_eval.formats import decode, encode
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.metrics.total import TotalMeter
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import Coded, Verdict

GEMM = OPS["gemm"]
SMALL = (32, 64, 512)
CONTRACTS = ("fp8fast", "fp8promoted", "fp32acc")


@cache
def problem(recipe, input_class, shape=SMALL):
    case = make_case("gemm", tuple(zip("mnk", shape, strict=True)), format="fp8_e4m3", recipe=recipe, input_class=input_class, seed=42)
    return case, stored_inputs(GEMM, case, "ocp", operand_codes(GEMM, case, "ocp"))


def hopper(inputs, rows, part):
    """Rows of the product by Hopper's unit: parts of the contraction in 14 bits, added in float32, and both scales."""
    a, b = inputs["a"].codes[rows], inputs["b"].codes
    out = np.zeros((len(a), len(b)), np.float32)
    for i in range(0, a.shape[1], part):
        left, right = np.repeat(a[:, i : i + part], len(b), axis=0), np.tile(b[:, i : i + part], (len(a), 1))
        out += decode(dot("hopper", left, right, format="float8_e4m3fn", out="float32"), "float32").astype(np.float32).reshape(out.shape)
    left, right = (inputs[f"{name}_scale"].codes.view(np.float32) for name in "ab")
    return out * (left[rows, None] if left.ndim else left) * right


@cache
def healthy(contract, input_class):
    """What keeps the contract, [m, n]: the unit for those of 8 bits, the exact product under fp32acc."""
    case, inputs = problem("rowwise", input_class)
    if contract == "fp32acc":
        return np.concatenate([p.values for p in GEMM.reference(case, inputs, "ocp", contract)["d"].panels()])
    return hopper(inputs, slice(None), {"fp8fast": SMALL[2], "fp8promoted": 128}[contract])


def judged(contract, input_class, values):
    case, inputs = problem("rowwise", input_class)
    reference = GEMM.reference(case, inputs, "ocp", contract)["d"]
    side = side_of("unit", Coded(encode(np.asarray(values, np.float64), "bfloat16"), "bfloat16"), contract=contract)
    output = GEMM.outputs(case, "ocp")[0]
    result = judge_tensor(Subject.of(case, output), [side], {"unit": reference}, load_profile("default"))
    return result.sides[0]


# The rows and the figures of an H200 (torch 2.11, use_fast_accum=True, 2026-11-30), judged as if its errors had no bias.
H200 = [("rowwise", "relu", 215, 0.7318631326166327), ("rowwise", "spike", 195, 6.841180240505757),
        ("tensorwise", "relu", 33, 0.5434931014504638)]  # fmt: skip


@pytest.mark.parametrize(("recipe", "input_class", "row", "as_noise"), H200)
def test_a_bias_that_fp8fast_allows_is_no_excess_although_it_adds_up_with_the_error_of_the_formats(recipe, input_class, row, as_noise):
    case, inputs = problem(recipe, input_class, (256, 512, 1024))
    reference = GEMM.reference(case, inputs, "ocp", "fp8fast")["d"]
    at = slice(row, row + 1)
    exact, budget, typical = (
        np.concatenate([getattr(p, name) for p in reference.panels()])[at] for name in ("values", "budget", "typical")
    )
    truth = np.concatenate([p.values for p in reference.unquantised()])[at]
    codes = encode(hopper(inputs, at, 1024).astype(np.float64), "bfloat16")
    found = []
    for beside in (None, typical):
        meter = TotalMeter(1, "bfloat16")
        meter.update(0, codes, exact, truth, budget, beside)
        found.append(meter.result()["excess_row_db"])
    assert found[0] == pytest.approx(as_noise, abs=1e-9)
    assert found[1] <= 0.3


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("input_class", ["normal", "relu", "spike", "outlier"])
def test_what_keeps_its_contract_passes(contract, input_class):
    assert judged(contract, input_class, healthy(contract, input_class)).verdict is Verdict.PASS


ONE_ROW = [(c, i, g) for c in CONTRACTS for i in ("normal", "relu", "spike") for g in (2.0, 0.5, 1.02, 0.98)
           if not (c == "fp8fast" and i == "spike" and g > 0.9)]  # fmt: skip


@pytest.mark.parametrize(("contract", "input_class", "gain"), ONE_ROW)
def test_a_wrong_scale_of_one_row_fails(contract, input_class, gain):
    """By one step of E8M0, or by 2 %, which a 14-bit sum of 512 products of one size and sign may be off by itself."""
    values = healthy(contract, input_class).copy()
    values[17] *= gain
    assert judged(contract, input_class, values).verdict is Verdict.FAIL


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("input_class", ["normal", "relu"])
def test_a_block_of_a_row_saturated_at_half_its_size_fails(contract, input_class):
    inputs = problem("rowwise", input_class)[1]
    a, b = (decode(inputs[name].codes, "float8_e4m3fn") for name in "ab")
    block = a[17, 128:256]
    lost = (np.clip(block, -np.abs(block).max() / 2, np.abs(block).max() / 2) - block) @ b[:, 128:256].T
    scales = [inputs[f"{name}_scale"].codes.view(np.float32).astype(np.float64) for name in "ab"]
    values = np.array(healthy(contract, input_class), np.float64)
    values[17] += lost * scales[0][17] * scales[1]
    assert judged(contract, input_class, values).verdict is Verdict.FAIL


@pytest.mark.parametrize("input_class", ["normal", "relu", "spike"])
def test_14_bits_fail_where_24_are_promised(input_class):
    assert judged("fp32acc", input_class, healthy("fp8fast", input_class)).verdict is Verdict.FAIL
