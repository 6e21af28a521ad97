"""Faults that look like a cause in a part of what they spoil: the cause is not said; where it explains what is wrong, it is."""

import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.diagnose import context_of, diagnose, rows_of
from accuracy_eval.formats import decode, get_format
from accuracy_eval.metrics import measure
from accuracy_eval.quantize import dequantize, quantize
from accuracy_eval.records import Coded, Verdict

every = pytest.mark.parametrize
FORMATS = ["float32", "bfloat16", "float16"]
OF_VALUES = {"flush-to-zero", "tail-flush", "gain"}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def said(known, name, values):
    """Causes of values that were found in the one failing output."""
    with np.errstate(all="ignore"):
        side = known.judged(name, values)
    assert side.verdict is Verdict.FAIL
    return set(codes_of(side)) & OF_VALUES


OTHERS = {  # op -> another function in its place, whose small values are zero, or which is zero on one side
    "exp": lambda x: np.maximum(x, 0),
    "exp2": lambda x: np.exp2(x) ** 2,
    "tanh": lambda x: np.tanh(x) + 1,
    "softplus": lambda x: np.maximum(x, 0) * 1.5,
}


@every("input_class", ["normal", "wide"])
@every("fmt", FORMATS)
@every("op", OTHERS)
def test_another_function_is_neither_a_flush_nor_a_cut_tail(op, fmt, input_class):
    k = Known(op, (4096,), format=fmt, input_class=input_class)
    with np.errstate(all="ignore"):
        assert said(k, "result", OTHERS[op](k.values["x"])) == set()


@every("fmt", FORMATS)
@every("op", ["tanh", "erf"])
def test_zeros_below_a_thousandth_are_no_flushed_subnormals(op, fmt):
    k = Known(op, (4096,), format=fmt, input_class="wide")
    assert said(k, "result", np.where(np.abs(k.values["x"]) < 1e-3, 0, k.truth("result"))) == set()


@every("fmt", FORMATS)
def test_a_function_whose_subnormals_are_flushed_or_whose_tail_is_cut_is_named(fmt):
    k = Known("exp", (4096,), format=fmt, input_class="wide")
    truth, x = k.truth("result"), k.values["x"]
    assert said(k, "result", np.where(np.abs(truth) < get_format(fmt).smallest_normal, 0, truth)) == {"flush-to-zero"}
    assert said(k, "result", np.where(x < -4, 0, truth)) == {"tail-flush"}
    usual = Known("exp", (4096,), format=fmt)
    assert said(usual, "result", 1.25 * usual.truth("result")) == {"gain"}


@every("fmt", FORMATS)
def test_a_loss_without_its_target_is_no_flush(fmt):
    k = Known("cross_entropy", (64, 8), format=fmt, input_class="wide", direction="bwd", options={"reduction": "none", "smoothing": 0.1})
    x = k.values["x"]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert said(k, "dx", k.values["grad_loss"][:, None] * e / e.sum(axis=1, keepdims=True)) == set()


def test_a_row_that_outweighs_all_others_does_not_name_an_index():
    """Class wide: nearly all the energy is one row's. Targets of the row before are one too low in that row."""
    k = Known("cross_entropy", (64, 8), format="bfloat16", input_class="wide", direction="bwd", options={"reduction": "none"})
    x, target = k.values["x"], k.values["target"].astype(int)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    label = np.arange(8) == np.roll(target, 1)[:, None]
    side = k.judged("dx", k.values["grad_loss"][:, None] * (e / e.sum(axis=1, keepdims=True) - label))
    assert "wrong-index" not in codes_of(side)


@every("source", ["float32", "bfloat16"])
@every("input_class", ["huge", "wide", "codes"])
@every("fmt", ["fp8_e4m3", "fp8_e5m2"])
@every("factor", [0.5, 0.875])
def test_a_largest_number_that_is_wrong_is_no_gain(fmt, input_class, source, factor):
    k = Known("cast", (32768,), format=source, out_format=fmt, input_class=input_class)
    fmt = get_format(k.outputs["y"].format)
    (panel,) = k.references["y"].panels()
    right = decode(panel.values.reshape(-1), fmt)
    if (np.abs(right) == fmt.max).any():
        assert said(k, "y", np.where(np.abs(right) == fmt.max, factor * right, right)) == set()
    if input_class != "huge":
        assert said(k, "y", 0.5 * right) == {"gain"}


@every("input_class", ["normal", "wide", "huge", "tiny"])
@every("recipe", ["mxfp4", "nvfp4", "mxfp4_rceil"])
def test_values_whose_largest_code_reads_too_small_have_no_gain_and_doubled_scales_have(recipe, input_class):
    k = Known("quantize", (64, 512), format="bfloat16", recipe=recipe, input_class=input_class)
    q = quantize(k.inputs["x"].codes, "bfloat16", recipe)
    largest = np.abs(decode(q.codes, q.format)) == 6
    values = dequantize(q)
    assert said_of_values(k, np.where(largest, values * (4 / 6), values)) == set()
    assert said_of_values(k, 2 * values) == {"gain"}


def said_of_values(known, values):
    """Causes found in the dequantised values, which are no output of the op itself."""
    truth = np.concatenate([p.values for p in known.references["values"].panels()])
    codes = np.ascontiguousarray(values).view(np.uint64)
    facts = {"actual": rows_of(codes), "expected": rows_of(truth), "inputs": known.inputs, "contract": "exact"}
    found = diagnose(context_of(known.case, measure(Coded(codes, "float64"), truth), output="values", **facts))
    return {d.code for d in found} & OF_VALUES


@every("fmt", ["float32", "bfloat16"])
def test_a_factor_that_differs_from_row_to_row_is_no_gain(fmt):
    """The inverse deviation of normal rows differs by a tenth: cubed in place of once, it is no one factor."""
    k = Known("layernorm", (33, 200), format=fmt, input_class="huge", direction="bwd")
    x, w, g = (k.values[n] for n in ("x", "weight", "grad_y"))
    c = x - x.mean(axis=1, keepdims=True)
    r = 1 / np.sqrt((c * c).mean(axis=1, keepdims=True) + 1e-5)
    q, h = g * w, c * r
    rest = q - q.mean(axis=1, keepdims=True) - h * (q * h).mean(axis=1, keepdims=True)
    assert said(k, "dx", 1e6 * r**3 * rest) == set()
    assert said(k, "dx", 3 * r * rest) == {"gain"}
