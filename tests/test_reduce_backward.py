"""Reductions forward and backward as ops: budgets that the framework keeps, faults that fail, a norm as mpmath gives it."""

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest
from support_ops import Known, codes_of

import accuracy_eval as ae
from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.reduce import REDUCTIONS, reduce, reduce_gradient
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import encode
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize


@every("op", REDUCTIONS)
@every("fmt", ["float32", "float16", "bfloat16", "float64"])
@every("direction", ["fwd", "bwd"])
def test_what_torch_computes_passes_for_every_input_class(op, fmt, direction):
    off = [Known(op, (5, 97), format=fmt, direction=direction, input_class=c).healthy() for c in INPUT_CLASSES]
    assert [o for o in off if o] == []


@every("op", ["mean", "softmax", "logsumexp", "norm", "max"])
@every("fmt", ["float16", "bfloat16"])
def test_long_rows_keep_their_budget(op, fmt):
    for input_class in ("normal", "uniform", "spike", "zero-rows"):  # equal elements round alike
        assert Known(op, (2, 5000), format=fmt, direction="bwd", input_class=input_class).healthy() == []


@every("fmt", ["float32", "bfloat16"])
@every("columns", [7, 300])
def test_a_mean_gradient_that_is_not_divided_is_a_gain(fmt, columns):
    k = Known("mean", (16, columns), format=fmt, direction="bwd")
    side = k.judged("dx", k.truth("dx") * columns)
    assert side.verdict is Verdict.FAIL
    assert codes_of(side)[0] == "gain"
    assert side.diagnoses[0].evidence["value"] == pytest.approx(columns, rel=0.01)


def softmax_of(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@every("fmt", ["float32", "float16", "bfloat16"])
def test_broken_gradients_of_softmax_fail(fmt):
    k = Known("softmax", (12, 200), format=fmt, direction="bwd")
    s, g = softmax_of(k.values["x"]), k.values["grad_result"]
    right = s * (g - (s * g).sum(1, keepdims=True))
    assert k.judged("dx", right).verdict is Verdict.PASS
    for wrong in (s * g, np.roll(right, 1, 0), s * (g - g.mean(1, keepdims=True)), s * (g - (s * g)[:, :-40].sum(1, keepdims=True))):
        assert k.judged("dx", wrong).verdict is Verdict.FAIL


DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def in_two_kernels(x, g, dtype):
    """As torch on CUDA has it: grad·s, a tensor of that format, is made first; then grad·s − s·Σ grad·s in float32."""
    s = softmax_of(x).astype(dtype).astype(np.float32)
    product = (g.astype(np.float32) * s).astype(dtype).astype(np.float32)
    return (product - s * product.sum(axis=1, keepdims=True)).astype(dtype)


H200 = {  # element: code, of an H200 with torch 2.11; the first are the farthest from the real value
    ("bfloat16", "normal"): {(6, 259): 15101, (17, 496): 48294, (2, 490): 15508, (22, 253): 15575, (22, 102): 15528, (2, 418): 48305},
    ("float16", "normal"): {(6, 423): 97, (14, 451): 9278, (30, 64): 9238, (31, 193): 42053, (5, 460): 41999, (6, 249): 9594},
    ("float16", "outlier"): {(20, 397): 1, (19, 428): 12300, (10, 344): 42024, (5, 12): 10252, (19, 162): 9789, (27, 222): 43022},
}


@every(("fmt", "input_class"), H200)
def test_softmax_gradients_of_an_h200_keep_their_budget(fmt, input_class):
    k = Known("softmax", (33, 515), format=fmt, direction="bwd", input_class=input_class)
    codes = in_two_kernels(k.values["x"], k.values["grad_result"], DTYPES[fmt]).view(np.uint16)
    seen = H200[fmt, input_class]
    assert {at: int(codes[at]) for at in seen} == seen
    assert k.judged_codes("dx", codes).verdict is Verdict.PASS


@every("fmt", DTYPES)
@every("shape", [(200, 16), (16, 4096), (2, 50000)])
@every("input_class", ["normal", "uniform", "outlier", "zero-rows", "relu", "integers", "cancellation"])
def test_gradients_of_softmax_in_two_kernels_keep_their_budget(fmt, shape, input_class):
    k = Known("softmax", shape, format=fmt, direction="bwd", input_class=input_class)
    codes = in_two_kernels(k.values["x"], k.values["grad_result"], DTYPES[fmt]).view(np.uint16)
    assert k.judged_codes("dx", codes).verdict is Verdict.PASS


@every("fmt", DTYPES)
@every("shape", [(33, 515), (16, 4096)])
def test_broken_gradients_of_softmax_in_two_kernels_fail(fmt, shape):
    k = Known("softmax", shape, format=fmt, direction="bwd")
    s, g = softmax_of(k.values["x"]), k.values["grad_result"]
    right = in_two_kernels(k.values["x"], g, DTYPES[fmt]).astype(np.float64)
    dot = (s * g).sum(1, keepdims=True)
    short = (s * g)[:, : -shape[1] // 5].sum(1, keepdims=True)
    for wrong in (right * 1.01, right * 0.99, s * g, s * (g - short), np.roll(s, 1, 0) * (g - dot), s * (g - 1.05 * dot)):
        assert k.judged("dx", wrong).verdict is Verdict.FAIL


@every("fmt", ["float32", "float16", "bfloat16"])
def test_a_logsumexp_gradient_whose_sum_forgets_the_maximum_fails(fmt):
    k = Known("logsumexp", (12, 200), format=fmt, direction="bwd")
    x, g = k.values["x"], k.values["grad_result"][:, None]
    assert k.judged("dx", softmax_of(x) * g).verdict is Verdict.PASS
    assert k.judged("dx", softmax_of(x) * np.exp(x.max(1, keepdims=True)) * g).verdict is Verdict.FAIL


@every("fmt", ["float16", "bfloat16"])
@every("shape", [(64, 97), (40, 1000)])
def test_weights_of_a_logsumexp_that_are_all_a_little_off_fail(fmt, shape):
    for input_class in ("normal", "uniform", "outlier", "zero-rows"):  # rows of one size round alike
        k = Known("logsumexp", shape, format=fmt, direction="bwd", input_class=input_class)
        assert k.judged_codes("dx", k.computed()["dx"]).verdict is Verdict.PASS
        assert k.judged("dx", k.truth("dx") * 1.05).verdict is Verdict.FAIL
        assert k.judged("dx", k.truth("dx") * 0.95).verdict is Verdict.FAIL


def exact_log(x, kept):
    top = x.max(1, keepdims=True)
    return top + np.log(np.exp(x - top).sum(1, keepdims=True))


def weights(x, g, fmt, log=exact_log, shifted=True, exponentials=True):
    """g·e^(x − L) in float64, of which the named steps are stored in `fmt`."""

    def kept(values):
        return values.astype(DTYPES[fmt]).astype(np.float64)

    difference = x - log(x, kept)
    p = np.exp(kept(difference) if shifted else difference)
    return g * (kept(p) if exponentials else p)


def of_stored_sum(x, kept):
    top = x.max(1, keepdims=True)
    return kept(top + np.log(kept(np.exp(x - top).sum(1, keepdims=True))))


def of_stored_steps(x, kept):
    top = x.max(1, keepdims=True)
    return kept(top + kept(np.log(kept(kept(np.exp(kept(x - top))).sum(1, keepdims=True)))))


HEALTHY = {  # how kernels get to the weights of a logsumexp
    "nothing is stored": {"shifted": False, "exponentials": False},
    "differences are stored": {"exponentials": False},
    "exponentials too": {},
    "L is stored": {"log": lambda x, kept: kept(exact_log(x, kept)), "shifted": False, "exponentials": False},
    "L and all after it": {"log": lambda x, kept: kept(exact_log(x, kept))},
    "the sum too": {"log": of_stored_sum, "shifted": False},
    "every step": {"log": of_stored_steps},
}


@every("fmt", DTYPES)
@every("input_class", ["normal", "uniform", "absmax", "outlier", "heavy-tailed", "relu", "zero-rows"])
@every("shape", [(64, 500), (700, 12)])
def test_what_weights_share_is_within_what_the_ways_to_round_them_leave(fmt, input_class, shape):
    k = Known("logsumexp", shape, format=fmt, direction="bwd", input_class=input_class)
    for name, how in HEALTHY.items():
        codes = encode(weights(k.values["x"], k.values["grad_result"][:, None], fmt, **how), fmt)
        assert k.references["dx"].shared(codes).get("weights_factor", 0.0) < 0.1, name


@every("fmt", DTYPES)
@every("axis", ["last", "first"])
def test_a_gain_of_all_weights_is_told_from_their_roundings(fmt, axis):
    shape = (64, 500) if axis == "last" else (500, 64)
    k = Known("logsumexp", shape, format=fmt, direction="bwd", options={"axis": axis})
    x, g = (k.values["x"] if axis == "last" else k.values["x"].T), k.values["grad_result"][:, None]
    found = weights(x, g, fmt)
    for factor in (0.98, 1.0, 1.02):
        side = k.judged("dx", factor * (found if axis == "last" else found.T))
        assert ("shared-weights" in [gate.gate for gate in side.gates if gate.passed is False]) is (factor != 1)


@every("fmt", DTYPES)
def test_a_gain_shows_where_half_of_all_operands_are_equal(fmt):
    k = Known("logsumexp", (64, 500), format=fmt, direction="bwd", input_class="relu")
    found = weights(k.values["x"], k.values["grad_result"][:, None], fmt)
    assert [k.judged("dx", factor * found).verdict for factor in (0.98, 1.0, 1.02)] == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]


@every("fmt", ["float16", "bfloat16"])
@every("shape", [(97, 64), (9, 64), (200, 64)])
def test_along_the_first_axis_rows_show_weights_that_are_a_little_off(fmt, shape):
    for input_class in ("normal", "uniform", "outlier", "zero-rows"):
        k = Known("logsumexp", shape, format=fmt, direction="bwd", input_class=input_class, options={"axis": "first"})
        assert k.judged_codes("dx", k.computed()["dx"]).verdict is Verdict.PASS
    k = Known("logsumexp", shape, format=fmt, direction="bwd", options={"axis": "first"})
    for factor in (1.08, 1.05, 0.95):
        assert k.judged("dx", k.truth("dx") * factor).verdict is Verdict.FAIL


def test_a_resolution_claims_the_lines_that_gates_look_at():
    seen = Known("logsumexp", (64, 97), format="bfloat16", direction="bwd")
    unseen = Known("logsumexp", (64, 97), format="bfloat16", direction="bwd", input_class="spike")  # no gate on lines
    by_class = [k.judged_codes("dx", k.computed()["dx"]).resolution for k in (seen, unseen)]
    assert by_class[0]["gain_95"] < 0.05 < by_class[1]["gain_95"]
    assert by_class[0]["column_95"] < by_class[0]["row_95"]
    assert not any("tile" in r for r in by_class)


@every("fmt", ["float32", "float16", "bfloat16"])
def test_broken_gradients_of_a_norm_fail(fmt):
    k = Known("norm", (12, 200), format=fmt, direction="bwd")
    y = np.sqrt((k.values["x"] ** 2).sum(1, keepdims=True))
    right = k.values["grad_result"][:, None] * k.values["x"] / y
    assert k.judged("dx", right).verdict is Verdict.PASS
    for wrong in (right * y, right * 1.05, np.abs(right)):
        assert k.judged("dx", wrong).verdict is Verdict.FAIL


def test_a_gradient_of_max_that_goes_to_one_of_two_equal_elements_fails():
    k = Known("max", (4, 256), format="bfloat16", direction="bwd", input_class="integers")
    x, g = k.values["x"], k.values["grad_result"]
    top = x == x.max(1, keepdims=True)
    assert (top.sum(1) > 1).all()
    assert k.judged("dx", g[:, None] * top / top.sum(1, keepdims=True)).verdict is Verdict.PASS
    first = np.arange(256) == x.argmax(1)[:, None]
    assert k.judged("dx", g[:, None] * first).verdict is Verdict.FAIL


@every("fmt", ["float32", "bfloat16"])
def test_a_norm_that_loses_its_tail_or_its_root_fails(fmt):
    k = Known("norm", (12, 300), format=fmt)
    squares = k.values["x"] ** 2
    assert k.judged("result", np.sqrt(squares.sum(1))).verdict is Verdict.PASS
    for wrong in (squares.sum(1), np.sqrt(squares[:, :-44].sum(1)), np.sqrt(squares.mean(1)), np.abs(k.values["x"]).sum(1)):
        assert k.judged("result", wrong).verdict is Verdict.FAIL


@every("scale", [1.0, 2.0**-1070, 2.0**-540, 2.0**600, 2.0**1010])
def test_norms_are_correctly_rounded_at_any_scale(scale):
    x = np.random.default_rng(5).normal(size=(4, 60)) * scale
    with mpmath.workprec(400):
        wanted = [float(mpmath.sqrt(mpmath.fsum(mpmath.mpf(v) ** 2 for v in row.tolist()))) for row in x]
        grads = [[float(mpmath.mpf(v) * 3 / mpmath.mpf(w)) for v in row.tolist()] for row, w in zip(x, wanted, strict=True)]
    assert reduce("norm", x).tolist() == wanted
    np.testing.assert_allclose(reduce_gradient("norm", x, np.full(4, 3.0)), grads, rtol=1e-15 if scale > 2.0**-1000 else 1e-6)


@every(
    ("row", "y", "dx"),
    [
        ([3.0, -4.0], 5.0, [1.2, -1.6]),
        ([0.0, -0.0], 0.0, [0.0, 0.0]),
        ([math.inf, 1.0], math.inf, [math.nan, 0.0]),
        ([math.inf, math.nan], math.nan, [math.nan, math.nan]),
        ([], 0.0, []),
    ],
)
def test_norms_by_hand(row, y, dx):
    np.testing.assert_array_equal(reduce("norm", np.array([row])), [y])
    np.testing.assert_allclose(reduce_gradient("norm", np.array([row]), np.array([2.0])), [dx])


@every("op", REDUCTIONS)
@every("fmt", ["float32", "bfloat16"])
@every("direction", ["fwd", "bwd"])
def test_columns_are_reduced_as_rows_are(op, fmt, direction):
    rounds_twice = (op, fmt, direction) == ("softmax", "bfloat16", "fwd")  # torch's CPU stores exponentials there (docs/findings.md)
    for input_class in () if rounds_twice else ("normal", "specials", "zero-rows", "huge"):
        assert Known(op, (97, 5), format=fmt, direction=direction, input_class=input_class, options={"axis": "first"}).healthy() == []
    k = Known(op, (40, 40), format=fmt, direction=direction, options={"axis": "first"})
    (name,) = k.outputs
    flipped = [v.T for v in k.values.values()]
    wanted = (reduce(op, *flipped) if direction == "fwd" else reduce_gradient(op, *flipped)).T
    np.testing.assert_array_equal(k.truth(name), wanted)
    along_rows = (reduce if direction == "fwd" else reduce_gradient)(op, *k.values.values())
    assert k.judged(name, wanted).verdict is Verdict.PASS
    if (op, direction) != ("sum", "bwd"):
        assert k.judged(name, along_rows).verdict is Verdict.FAIL


def test_check_takes_the_axis_and_refuses_one_that_does_not_exist():
    x = np.random.default_rng(2).normal(size=(6, 9)).astype(np.float32)
    assert ae.check(x.sum(0), op="sum", inputs={"x": x}, options={"axis": "first"}).verdict == "PASS"
    assert ae.check(x.sum(1), op="sum", inputs={"x": x}, options={"axis": "first"}).verdict == "FAIL"
    with pytest.raises(UsageError, match="axis='middle'; allowed: last, first"):
        make_case("sum", (("m", 2), ("n", 3)), options={"axis": "middle"})
