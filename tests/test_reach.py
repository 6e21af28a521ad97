"""What steps that overflow leave behind: Inf, NaN and zero are right where a healthy device may have them, and nowhere else."""

import itertools
import math

import numpy as np
import pytest

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import encode
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import judge_tensor, side_of
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict

LARGEST = float(np.finfo(np.float32).max)


def coded(values, fmt):
    return Coded(encode(np.asarray(values, np.float64), fmt), fmt)


def verdict_of(case, inputs, name, codes):
    """One output of a case, judged by its reference."""
    spec = get_op(case.op)
    output = next(o for o in spec.outputs(case, "ocp") if o.name == name)
    contract = spec.contract(case)
    reference = spec.reference(case, inputs, "ocp", contract)[name]
    side = side_of("me", Coded(codes, output.format), contract=contract)
    return judge_tensor(case, case_id(case), spec.family, "default", output, [side], {"me": reference}, load_profile("default"))


def judged(case, inputs, name, values):
    """Whether the values pass."""
    fmt = case.format
    return verdict_of(case, inputs, name, encode(np.asarray(values, np.float64), fmt)).verdict in (Verdict.PASS, Verdict.WARN)


def computed(case):
    """Every output of a case as torch's CPU computes it, judged; with its name."""
    spec, backend = get_op(case.op), TorchBackend("cpu")
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
    outcome = backend.run(backend.prepare(case), backend.candidates(case.op)[0], repeats=1)
    yield from ((verdict_of(case, inputs, r.name, r.codes[0].result()), r.name) for r in outcome.results)
    backend.close()


def near(*parts):
    low, high = (np.array([p[i] for p in parts], float)[None] for i in (0, 1))
    return Reach(low, high, np.zeros(low.shape, bool))


def points(reach, at):
    """Values of an interval to try: its ends, zero inside, and what lies between."""
    low, high = reach.low[0, at], reach.high[0, at]
    inside = [x for x in (0.0, -1.5, 2.5) if low <= x <= high]
    return [low, high, *inside]


INTERVALS = [
    (-2.0, 3.0),
    (0.0, 4.0),
    (-math.inf, 1.0),
    (5.0, math.inf),
    (-math.inf, math.inf),
    (0.0, 0.0),
    (7.0, 7.0),
    (math.inf, math.inf),
]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(INTERVALS, INTERVALS)), ids=str)
@pytest.mark.parametrize("op", ["__add__", "__mul__"])
def test_every_value_of_two_intervals_gives_a_value_that_is_reached(op, a, b):
    x, y = near(a), near(b)
    whole = getattr(x, op)(y)
    seen = []
    with np.errstate(all="ignore"):
        for u, v in itertools.product(points(x, 0), points(y, 0)):
            seen.append(float(getattr(np.float64(u), op)(np.float64(v))))
    assert any(map(math.isnan, seen)) <= bool(whole.nan[0, 0])
    numbers = [s for s in seen if not math.isnan(s)]
    assert all(whole.low[0, 0] <= s <= whole.high[0, 0] for s in numbers)
    # nothing is claimed that no pair of ends gives
    if not any(math.isinf(e) for e in (*a, *b)):
        assert (whole.low[0, 0], whole.high[0, 0]) == (min(numbers), max(numbers))
        assert not whole.nan[0, 0]


def test_sums_in_every_order_stay_in_reach():
    rng = np.random.default_rng(11)
    a, b = rng.choice([-2e38, -1e38, 0.0, 1e38, 3e38], (4, 4)), rng.choice([-1.0, 0.5, 1.0], (4, 5))
    found = (Reach.exactly(a) @ Reach.exactly(b)).in_sums(LARGEST)
    for i, j in itertools.product(range(4), range(5)):
        terms = (a[i] * b[:, j]).astype(np.float32)
        with np.errstate(all="ignore"):
            ends = {float(np.add.accumulate(terms[list(o)])[-1]) for o in itertools.permutations(range(4))}
        for end in ends:
            assert end != math.inf or found.high[i, j] == math.inf
            assert end != -math.inf or found.low[i, j] == -math.inf
            assert not math.isnan(end) or found.nan[i, j]


# --- rope: x₁·cos − x₂·sin in float16, 60000·2 − 60000·2 = 0


def rope(x, cos, sin, result, fmt="float16"):
    """Whether a result passes as the first of one pair of one head, the second being right."""
    case = make_case("rope", (("s", 1), ("h", 1), ("d", 2)), format=fmt)
    given = {"x": coded([[x]], fmt), "cos": coded([[cos]], fmt), "sin": coded([[sin]], fmt)}
    return judged(case, given, "y", [[[result, x[1] * cos + x[0] * sin]]])


@pytest.mark.parametrize(("result", "passes"), [(0.0, True), (math.nan, True), (math.inf, True), (-math.inf, True), (3000.0, False)])
def test_products_of_rope_may_overflow_before_they_cancel(result, passes):
    assert rope([60000.0, 60000.0], 2.0, 2.0, result) is passes


@pytest.mark.parametrize("result", [math.nan, math.inf, -math.inf, 100.0])
def test_products_of_rope_within_the_range_may_not(result):
    assert not rope([30000.0, 30000.0], 1.0, 1.0, result)


def test_only_the_infinity_that_a_product_of_rope_reaches_may_stand():
    assert rope([60000.0, 100.0], 2.0, 1.0, math.inf)
    assert not rope([60000.0, 100.0], 2.0, 1.0, -math.inf)
    assert not rope([60000.0, 100.0], 2.0, 1.0, math.nan)


# --- an epilogue on T = 300·−300 = −90000, which float16 cannot hold


def epilogue(result, activation, a=300.0, b=-300.0, fmt="float16", **options):
    """Whether a result passes as f(alpha·a·b)."""
    options = {"activation": activation, **options}
    case = make_case("gemm_epilogue", (("m", 1), ("n", 1), ("k", 1)), layout="nn", format=fmt, options=options)
    return judged(case, {"a": coded([[a]], fmt), "b": coded([[b]], fmt)}, "y", [[result]])


@pytest.mark.parametrize("activation", ["silu", "gelu-tanh"])
def test_an_activation_of_minus_infinity_is_zero_or_nan(activation):
    assert epilogue(0.0, activation)
    assert epilogue(math.nan, activation)
    for wrong in (math.inf, -math.inf, 0.01):
        assert not epilogue(wrong, activation)


def test_an_activation_of_a_large_number_in_range_is_not():
    assert not epilogue(math.nan, "silu", a=200.0)
    assert not epilogue(math.nan, "silu", fmt="float32")


def test_relu_of_minus_infinity_is_zero():
    assert epilogue(0.0, "relu")
    assert not epilogue(math.nan, "relu")


def test_a_product_may_overflow_before_alpha_makes_it_small():
    for result, passes in ((0.0, True), (math.nan, False), (math.inf, False)):
        assert epilogue(result, "relu", alpha=0.5) is passes
    for result, passes in ((45000.0, True), (math.inf, True), (-math.inf, False), (math.nan, False), (0.0, False)):
        assert epilogue(result, "relu", a=-300.0, alpha=0.5) is passes


# --- gradients: one column of T = a·b, upstream 1 each, so that dbias is the sum of f'(T)


def dbias(result, a, b, fmt, activation):
    case = make_case(
        "gemm_epilogue", (("m", len(a)), ("n", 1), ("k", 1)), layout="nn", format=fmt, direction="bwd",
        options={"activation": activation, "bias": True},
    )  # fmt: skip
    given = {
        "a": coded(np.transpose([a]), fmt),
        "b": coded([[b]], fmt),
        "bias": coded([0.0], fmt),
        "grad_y": coded(np.ones((len(a), 1)), fmt),
    }
    return judged(case, given, "dbias", [result])


@pytest.mark.parametrize(("result", "passes"), [(1.0, True), (2.0, True), (math.nan, True), (-3.0, False), (math.inf, False)])
def test_a_slope_of_relu_at_nan_may_be_zero_one_or_nan(result, passes):
    assert dbias(result, [1.0, math.nan], 1.0, "float32", "relu") is passes


@pytest.mark.parametrize(("a", "passes"), [(2.0**30, False), (2.0**70, True)])
def test_the_formula_of_gelu_tanh_may_lose_its_slope_where_x_squared_overflows(a, passes):
    assert dbias(1.0, [a], 1.0, "float32", "gelu-tanh")
    assert dbias(math.nan, [a], 1.0, "float32", "gelu-tanh") is passes
    assert not dbias(math.nan, [a], 1.0, "float32", "gelu-erf")


def test_a_slope_of_what_overflows_in_float16_may_be_nan_there_and_not_in_float32():
    for fmt, passes in (("float16", True), ("float32", False)):
        assert dbias(1.0, [300.0], 300.0, fmt, "silu")
        assert dbias(math.nan, [300.0], 300.0, fmt, "silu") is passes


# --- whole classes, as torch's CPU computes them


@pytest.mark.parametrize("input_class", ["wide", "huge", "specials", "codes", "subnormal", "tiny"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("op", ["rope", "silu", "swiglu"])
def test_healthy_results_of_extreme_operands_pass(op, direction, input_class):
    form = {"activation": "silu", "bias": True} if op == "silu" else {"activation": "silu", "gated": True, "alpha": 0.75, "residual": True}
    for fmt in ("float32", "float16", "bfloat16"):
        if op == "rope":
            case = make_case("rope", (("s", 12), ("h", 2), ("d", 16)), format=fmt, direction=direction, input_class=input_class)
        else:
            shape = (("m", 12), ("n", 16), ("k", 40))
            case = make_case("gemm_epilogue", shape, layout="nn", format=fmt, direction=direction, input_class=input_class, options=form)
        for result, name in computed(case):
            assert result.verdict is not Verdict.FAIL, (fmt, name, result.sides[0].diagnoses, result.sides[0].metrics["budget_max"])
