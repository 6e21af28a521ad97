"""Outputs of 16 bits rounded one way: what a budget allows each element, and all of them together do not do."""

import ml_dtypes
import numpy as np
import pytest
import torch
from support_ops import Known

import accuracy_eval
from accuracy_eval.formats import decode, get_format
from accuracy_eval.metrics.rounding_bias import RoundingMeter
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
RELU = {"layout": "nt", "options": {"activation": "relu", "bias": True}}
OUTPUTS = [  # op, shape, what make_case takes besides, output
    *((op, (1024,), {}, "result") for op in ("exp", "log", "reciprocal", "tanh", "gelu", "silu")),
    ("gemm_epilogue", (128, 96, 128), RELU, "y"),
    ("gemm_epilogue", (128, 96, 128), RELU | {"direction": "bwd"}, "da"),
    ("rope", (64, 4, 32), {}, "y"),
    ("rope", (64, 4, 32), {"direction": "bwd"}, "dx"),
    ("rmsnorm", (128, 256), {"direction": "bwd"}, "dx"),
    ("layernorm", (128, 256), {"direction": "bwd"}, "dx"),
    ("softmax", (128, 256), {"direction": "bwd"}, "dx"),
    ("attention", (1, 2, 2, 96, 96, 64), {"layout": "bhsd"}, "out"),
]


def toward_zero(x, fmt):
    """Codes of float64 x, cut off."""
    near = x.astype(DTYPES[fmt])
    return near.view(np.uint16) - (np.abs(near.astype(np.float64)) > np.abs(x)).astype(np.uint16)


def away(x, fmt):
    cut = toward_zero(x, fmt)
    return cut + (np.abs(cut.view(DTYPES[fmt]).astype(np.float64)) < np.abs(x)).astype(np.uint16)


def nearest(x, fmt):
    return x.astype(DTYPES[fmt]).view(np.uint16)


def by_chance(x, fmt):
    """One of both neighbours, the nearer more often: stochastic rounding."""
    low, high = (code(x, fmt) for code in (toward_zero, away))
    below, above = (c.view(DTYPES[fmt]).astype(np.float64) for c in (low, high))
    share = np.where(low == high, 0.0, (x - below) / np.where(low == high, 1.0, above - below))
    return np.where(np.random.default_rng(5).random(x.shape) < share, high, low)


ALLOWED = {nearest: Verdict.PASS, by_chance: Verdict.PASS, toward_zero: Verdict.FAIL, away: Verdict.FAIL}


@every("fmt", DTYPES)
@every(("op", "shape", "more", "name"), OUTPUTS, ids=[f"{op}-{name}" for op, _, _, name in OUTPUTS])
def test_an_output_rounded_one_way_fails_and_one_to_nearest_or_by_chance_passes(op, shape, more, name, fmt):
    known = Known(op, shape, format=fmt, **more)
    for rounded, verdict in ALLOWED.items():
        side = known.judged_codes(name, rounded(known.truth(name), fmt))
        failed = [g.gate for g in side.gates if g.passed is False]
        assert (side.verdict is Verdict.FAIL) is (verdict is Verdict.FAIL), rounded.__name__
        assert set(failed) <= {"one-way"}, rounded.__name__


@every("fmt", DTYPES)
@every(("op", "shape", "more", "name"), OUTPUTS, ids=[f"{op}-{name}" for op, _, _, name in OUTPUTS])
def test_what_the_framework_computes_goes_neither_way(op, shape, more, name, fmt):
    for input_class in ("normal", "uniform", "absmax", "outlier"):
        known = Known(op, shape, format=fmt, input_class=input_class, **more)
        side = known.judged_codes(name, known.computed()[name])
        assert side.metrics.get("rounding_bias", 0.0) < 0.03, input_class


@every("fmt", DTYPES)
def test_a_small_gain_of_all_elements_fails(fmt):
    known = Known("exp", (4096,), format=fmt)
    for gain, verdict in ((0.0, Verdict.PASS), (1.5 * 2.0**-10, Verdict.FAIL), (-1.5 * 2.0**-10, Verdict.FAIL)):
        assert known.judged("result", known.truth("result") * (1 + gain)).verdict is verdict


def truth_of(shape):
    """Codes of values between 1 and 2."""
    return np.random.default_rng(2).integers(0x3F84, 0x3FF0, shape).astype(np.uint16)


def measured(steps, alike, budget=1.0, right=None):
    """The metric of an output [r, n] that is `steps` codes from a truth."""
    right = truth_of(steps.shape) if right is None else right
    meter = RoundingMeter(steps.shape[1], "bfloat16", alike)
    truth = decode(right, "bfloat16")
    for rows in (slice(0, 50), slice(50, None)):
        meter.update((right[rows] + steps[rows]).astype(np.uint16), truth[rows], np.full_like(truth[rows], budget * 2.0**-7))
    return meter.result()


def test_the_metric_is_the_mean_less_eight_standard_errors():
    steps = np.zeros((100, 80), np.int64)
    steps[:, ::2] = -1
    right = truth_of(steps.shape)
    variance = sum(float((steps[right == code] + 0.5).sum()) ** 2 for code in np.unique(right))
    assert variance == pytest.approx(8000 * 0.25, rel=0.3)  # elements of one code are independent here
    assert measured(steps, "elements") == {"rounding_bias": pytest.approx(0.5 - 8 * np.sqrt(variance) / 8000)}
    assert measured(steps, "lines") == {"rounding_bias": pytest.approx(max(0.5 - 8 * np.sqrt(80) * 50 / 8000, 0.0))}
    assert measured(steps.T, "lines") == measured(steps, "lines")


def test_rows_that_are_each_off_by_chance_are_no_bias():
    signs = np.random.default_rng(3).choice([-1, 1], (128, 1))
    steps = np.broadcast_to(signs, (128, 512))
    assert measured(steps, "lines") == {"rounding_bias": 0.0}
    assert abs(signs.mean()) > 0.01


def test_equal_elements_are_one_draw():
    """A thousand times the same element is rounded a thousand times the same way; a few different ones say nothing."""
    rng = np.random.default_rng(5)
    for different, said in ((16, {}), (100, {"rounding_bias": 0.0})):
        codes, way = 0x3F84 + np.arange(different), rng.choice([-1, 1], different)
        way[: different * 5 // 8] = 1
        which = rng.integers(0, different, (128, 256))
        assert measured(way[which], "elements", right=codes[which].astype(np.uint16)) == said


def test_a_framework_s_own_rope_of_constants_passes():
    """Every product and sum is stored in 16 bits there, and all elements are rounded as one."""
    cos, sin = torch.full((16, 32), 0.55).bfloat16(), torch.full((16, 32), 0.61).bfloat16()
    x = torch.full((16, 8, 64), 1.3).bfloat16()
    c, s = (torch.cat((t, t), -1)[:, None] for t in (cos, sin))
    a, b = x.chunk(2, -1)
    checked = accuracy_eval.check(x * c + torch.cat((-b, a), -1) * s, op="rope", inputs={"x": x, "cos": cos, "sin": sin})
    assert checked.verdict == "PASS", checked.message


@every(
    ("shape", "alike", "budget"),
    [((7, 9), "elements", 1.0), ((63, 600), "lines", 1.0), ((1, 600), "lines", 1.0), ((90, 90), "elements", 3.0)],
)
def test_few_elements_few_lines_and_wide_budgets_say_nothing(shape, alike, budget):
    assert measured(np.full(shape, -1), alike, budget) == {}


def test_zeros_subnormals_and_infinities_do_not_count():
    fmt = get_format("float16")
    codes = np.full((1, 400), 0x0001, np.uint16)
    codes[0, :100], codes[0, 100:200] = fmt.inf_code, 0
    meter = RoundingMeter(400, "float16", "elements")
    meter.update(codes, decode(codes, "float16") * 2, np.zeros((1, 400)))
    assert meter.result() == {}
