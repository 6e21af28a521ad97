"""What steps that overflow leave behind: Inf, NaN and zero are right where a healthy device may have them, and nowhere else."""

import itertools
import math

import numpy as np
import pytest
import support_judging
from support_arrays import coded

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.attention import Attention, Head
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Verdict

LARGEST = float(np.finfo(np.float32).max)


def verdict_of(case, inputs, name, codes):
    """One output of a case, judged by its reference."""
    spec = get_op(case.op)
    return support_judging.judged(case, name, codes, spec.reference(case, inputs, "ocp", spec.contract(case)))


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


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("b", "result", "passes"),
    [
        # T = 3e38·3e38 − Inf is −Inf, its slope 0 and 0·Inf NaN; where the product overflows first T is NaN, and a slope of 1 leaves −Inf
        (3e38, [3e38, -INF], True),
        (3e38, [0.0, NAN], True),
        (3e38, [3e38, 2.0], False),
        (3e38, [NAN, 0.0], False),
        (1.0, [0.0, NAN], True),
        (1.0, [0.0, -INF], False),  # T is −Inf on every device
        (NAN, [NAN, -INF], True),
        (NAN, [INF, -INF], False),  # a NaN operand: 0·NaN and 1·NaN are one thing
    ],
)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_nan_that_hangs_on_the_slope_of_relu_may_be_what_another_slope_leaves(b, result, passes, layout):
    case = make_case(
        "gemm_epilogue", (("m", 1), ("n", 1), ("k", 2)), layout=layout, format="float32", direction="bwd", options={"activation": "relu"}
    )
    stored = {"a": [[3e38, 1.0]], "b": [[b], [-INF]], "da": [result]}
    if layout == "tt":
        stored = {name: np.transpose(values) for name, values in stored.items()}
    given = {**{n: coded(stored[n], "float32") for n in "ab"}, "grad_y": coded([[1.0]], "float32")}
    verdict = verdict_of(case, given, "da", encode(np.asarray(stored["da"], np.float64), "float32")).verdict
    assert (verdict is not Verdict.FAIL) is passes  # where no expected element is finite nothing is measured


@pytest.mark.parametrize(
    ("last", "result", "passes"),
    [
        # T = 1e300·1e200 − 1e300·9e199 overflows up, down or both ways: a slope of 1 adds 1e200·1e200 to 5·2, a slope of 0 does not
        (-9e199, [INF, -INF], True),
        (-9e199, [10.0, 10.0], True),
        (-9e199, [-INF, -INF], False),
        (9e199, [INF, INF], True),  # T overflows up alone
        (9e199, [10.0, 10.0], False),
        (9e199, [INF, 10.0], False),
    ],
)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_gradient_may_be_finite_where_what_makes_it_infinite_hangs_on_a_slope(last, result, passes, layout):
    case = make_case(
        "gemm_epilogue", (("m", 1), ("n", 2), ("k", 2)), layout=layout, format="float64", direction="bwd", options={"activation": "relu"}
    )
    stored = {"a": [[1e300, 1e300]], "b": [[1e200, 2.0], [last, 2.0]], "da": [result]}
    if layout == "tt":
        stored = {name: np.transpose(values) for name, values in stored.items()}
    given = {**{n: coded(stored[n], "float64") for n in "ab"}, "grad_y": coded([[1e200, 5.0]], "float64")}
    verdict = verdict_of(case, given, "da", encode(np.asarray(stored["da"], np.float64), "float64")).verdict
    assert (verdict is not Verdict.FAIL) is passes


@pytest.mark.parametrize(("a", "passes"), [(2.0**30, False), (2.0**70, True)])
def test_the_formula_of_gelu_tanh_may_lose_its_slope_where_x_squared_overflows(a, passes):
    assert dbias(1.0, [a], 1.0, "float32", "gelu-tanh")
    assert dbias(math.nan, [a], 1.0, "float32", "gelu-tanh") is passes
    assert not dbias(math.nan, [a], 1.0, "float32", "gelu-erf")


def test_a_slope_of_relu_is_one_where_its_argument_is_beyond_the_range_of_its_format():
    assert dbias(1.0, [300.0], 300.0, "float16", "relu")
    for wrong in (0.0, math.nan, math.inf):
        assert not dbias(wrong, [300.0], 300.0, "float16", "relu")


def test_a_slope_of_what_overflows_in_float16_may_be_nan_there_and_not_in_float32():
    for fmt, passes in (("float16", True), ("float32", False)):
        assert dbias(1.0, [300.0], 300.0, fmt, "silu")
        assert dbias(math.nan, [300.0], 300.0, fmt, "silu") is passes


# --- attention


def heads(q, k, v, fmt, **more):
    """A case of one head of scale 1 and its operands: q [s, d], k and v [t, d]; `more` options, and grad_out where backward."""
    q, k, v = (np.asarray(x, float) for x in (q, k, v))
    grad = more.pop("grad_out", None)
    shape = (("b", 1), ("h", 1), ("g", 1), ("s", len(q)), ("t", len(k)), ("d", q.shape[1]))
    case = make_case(
        "attention", shape, layout="bhsd", format=fmt, options={"scale": 1.0, **more}, direction="fwd" if grad is None else "bwd"
    )
    given = {n: coded(x[None, None], fmt) for n, x in (("q", q), ("k", k), ("v", v))}
    return case, given | ({} if grad is None else {"grad_out": coded(np.asarray(grad, float)[None, None], fmt)})


def attends(q, k, v, out, fmt="float32", **more):
    """Whether `out` [s, d] passes."""
    return judged(*heads(q, k, v, fmt, **more), "out", np.asarray(out, float)[None, None])


def test_scores_whose_errors_are_large_decide_where_they_are_far_apart_and_leave_open_what_is_near():
    q, v = [[2.0**40, 0.0]], [[1.0, 5.0], [3.0, 7.0]]
    far, close = [[2.0**40, 0.0], [2.0**39, 0.0]], [[2.0**40, 0.0], [2.0**40 * (1 - 2.0**-20), 0.0]]
    assert attends(q, far, v, [v[0]])
    assert not attends(q, far, v, [v[1]])
    assert not attends(q, far, v, [[1.01, 5.0]])
    assert attends(q, close, v, [v[0]])
    near = [[2.0**40, 0.0], [2.0**40, 1.0]]  # equal scores; their sums may differ by more than 1
    for between in ([1.0, 5.0], [2.0, 6.0], [3.0, 7.0]):
        assert attends(q, near, v, [between])
    assert not attends(q, near, v, [[9.0, 6.0]])


def test_bounds_of_p_hold_for_every_score_within_its_error():
    rng = np.random.default_rng(3)
    _, given = heads(rng.standard_normal((6, 4)) * 3e4, rng.standard_normal((9, 4)) * 3e3, rng.standard_normal((9, 4)), "float32")
    q, k, v = (decode(given[n].codes, "float32") for n in "qkv")
    head = Head(Attention(q, k, v, 1.0, False, 0, "float32"), 0, 0)
    assert head.coarse.all()
    low, high = head.p_bounds(stored_log=False)
    scores = q[0, 0] @ k[0, 0].T
    seen = np.zeros_like(scores)
    for _ in range(300):
        moved = scores + rng.choice([-1.0, 0.0, 1.0], scores.shape) * head.error
        weights = np.exp(moved - moved.max(axis=1, keepdims=True))
        p = weights / weights.sum(axis=1, keepdims=True)
        assert ((low - 1e-12 <= p) & (p <= high + 1e-12)).all()
        seen = np.maximum(seen, p)
    # and the largest are reached where one key is alone with its error
    for i, j in np.ndindex(scores.shape):
        moved = scores[i] - head.error[i]
        moved[j] = scores[i, j] + head.error[i, j]
        weights = np.exp(moved - moved.max())
        assert weights[j] / weights.sum() == pytest.approx(high[i, j], rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("hidden", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_what_a_mask_hides_may_reach_the_result_as_nan_alone(where, hidden):
    q, k, v = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [3.0, 4.0]]
    (k if where == "k" else v)[1][0] = hidden
    last = [math.nan, math.nan if where == "k" else 3.0] if math.isnan(hidden) or where == "k" else [math.inf, 3.0]
    for first, passes in ((1.0, True), (math.nan, True), (math.inf, False), (2.0, False)):
        assert attends(q, k, v, [[first, 2.0], last], causal=True) is passes
    # a key that is seen is no excuse
    k[1][0] = v[1][0] = 1.0
    assert not attends(q, k, v, [[math.nan, 2.0], [1.0, 3.0]], causal=True)


def test_a_row_of_scores_of_minus_infinity_is_nan_or_zero():
    q, k, v = [[math.inf, 0.0], [1.0, 0.0]], [[-1.0, 0.0]], [[1.0, 2.0]]
    for first, passes in ((0.0, True), (math.nan, True), (1.0, False), (math.inf, False)):
        assert attends(q, k, v, [[first, first if first != 1.0 else 2.0], [1.0, 2.0]]) is passes


@pytest.mark.parametrize(("steps", "passes"), [(0, True), (1, True), (2, True), (8, False)])
def test_gradients_of_float16_subnormals_may_be_some_steps_off(steps, passes):
    step = 2.0**-24
    case, given = heads([[0.0]], [[0.0]], [[1.0]], "float16", grad_out=[[20 * step]])
    assert judged(case, given, "dv", [[[[(20 + steps) * step]]]]) is passes


@pytest.mark.parametrize(("result", "passes"), [(3.0, True), (math.inf, False), (math.nan, False), (3.1, False)])
def test_a_gradient_whose_steps_stay_in_range_is_no_excuse(result, passes):
    case, given = heads([[1.0]], [[1.0]], [[2.0]], "float16", grad_out=[[3.0]])
    assert judged(case, given, "dv", [[[[result]]]]) is passes


@pytest.mark.parametrize(
    ("grad", "result", "passes"),
    [(1000.0, 300.0, True), (1000.0, math.inf, True), (1000.0, 0.0, False), (100.0, 30.0, True), (100.0, math.inf, False)],
)
def test_a_gradient_of_scores_may_overflow_where_it_is_stored(grad, result, passes):
    # P = ½ each, dP = ±300·grad, δ = 0, dS = ±150·grad: beyond float16 where grad is 1000; dq = 150·grad·(1e-3 + 1e-3)
    case, given = heads([[0.0]], [[1e-3], [-1e-3]], [[300.0], [-300.0]], "float16", grad_out=[[grad]])
    assert judged(case, given, "dq", [[[[result]]]]) is passes


def test_an_output_without_a_bound_is_no_plain_pass():
    # S = 2^80·(1 and 1): L is off by 2^56, so that P = e^(S − L) may be anything backward
    case, given = heads([[2.0**40]], [[2.0**40], [2.0**40]], [[1.0], [3.0]], "float32", grad_out=[[1.0]])
    side = verdict_of(case, given, "dv", encode(np.full((1, 1, 2, 1), 0.5), "float32")).sides[0]
    assert side.verdict is Verdict.WARN
    assert side.note.startswith("2 of 2 elements have no bound: ")


# --- norms of rows whose squares float32 cannot add


def norm_of(op, values, result, fmt="float32", **more):
    """Whether `result` passes as y of the row `values`, its weights 1 and its bias 0; or as another output, of upstream ones."""
    tensor = more.pop("tensor", "y")
    n = len(values)
    case = make_case(op, (("m", 1), ("n", n)), format=fmt, direction="fwd" if tensor == "y" else "bwd")
    given = {"x": coded([values], fmt), "weight": coded(np.ones(n), fmt)} | ({"bias": coded(np.zeros(n), fmt)} if op == "layernorm" else {})
    given |= {} if tensor == "y" else {"grad_y": coded(np.ones((1, n)), fmt)}
    return judged(case, given, tensor, [result] if tensor in ("y", "dx") else result)


@pytest.mark.parametrize("fmt", ["float64", "float32", "float16"])
@pytest.mark.parametrize(
    ("result", "passes"), [([0.0, NAN], True), ([NAN, NAN], True), ([0.0, 0.0], False), ([1.0, NAN], False), ([INF, NAN], False)]
)
def test_beside_an_infinity_rms_norm_gives_zero_or_nan(fmt, result, passes):
    assert norm_of("rmsnorm", [3.0, INF], result, fmt) is passes


@pytest.mark.parametrize(
    ("x", "result", "passes"),
    [
        (3e19, 1.0, True), (3e19, 0.0, True), (3e19, math.nan, True), (3e19, math.inf, False), (3e19, 1.01, False), (3e19, 0.5, False),
        (3e18, 1.0, True), (3e18, 0.0, False), (3e18, math.nan, False), (3e18, 1.01, False),
    ],
)  # fmt: skip
def test_a_root_mean_square_that_overflows_makes_zeros_or_nan(x, result, passes):
    # the squares of four elements: 4·9e38 is beyond float32, 4·9e36 is not; y = ±1
    assert norm_of("rmsnorm", [x, -x, x, -x], [result, -1.0, 1.0, -1.0] if result != 0.0 else [0.0] * 4) is passes


def test_the_squares_of_float64_overflow_later():
    assert norm_of("rmsnorm", [1e150, -1e150], [1.0, -1.0], "float64")
    assert not norm_of("rmsnorm", [1e150, -1e150], [0.0, 0.0], "float64")
    assert norm_of("rmsnorm", [1e200, -1e200], [1.0, -1.0], "float64")
    assert norm_of("rmsnorm", [1e200, -1e200], [0.0, 0.0], "float64")
    assert not norm_of("rmsnorm", [1e200, -1e200], [1.0, -1.01], "float64")


def test_gradients_of_a_weight_may_lack_a_row_whose_squares_overflow():
    big, small = [3e19, 3e19], [3e18, 3e18]
    for row, result, passes in ((big, [1.0, 1.0], True), (big, [0.0, 0.0], True), (big, [math.nan] * 2, True), (big, [3.0, 1.0], False),
                                (small, [1.0, 1.0], True), (small, [0.0, 0.0], False), (small, [math.nan] * 2, False)):  # fmt: skip
        assert norm_of("rmsnorm", row, result, tensor="dweight") is passes


def test_a_saved_mean_of_16_bits_moves_what_lies_near_it_and_no_more():
    # mean 100.5, deviation ½: bfloat16 keeps 100 or 101 of it, so that h = ±1 may be off by 1
    case = make_case("layernorm", (("m", 1), ("n", 2)), format="bfloat16", direction="bwd")
    given = {"x": coded([[100.0, 101.0]], "bfloat16"), "weight": coded([1.0, 1.0], "bfloat16"), "bias": coded([0.0, 0.0], "bfloat16"),
             "grad_y": coded([[1.0, 1.0]], "bfloat16")}  # fmt: skip
    for result, passes in (([-1.0, 1.0], True), ([-2.0, 0.0], True), ([-8.0, 8.0], False)):
        assert judged(case, given, "dweight", result) is passes
    forward = make_case("layernorm", (("m", 1), ("n", 2)), format="bfloat16")
    assert not judged(forward, {n: given[n] for n in ("x", "weight", "bias")}, "y", [[-2.0, 0.0]])


# --- whole classes, as torch's CPU computes them


@pytest.mark.parametrize("input_class", ["wide", "huge", "specials", "codes", "subnormal", "tiny"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("op", ["rope", "silu", "swiglu", "attention", "rmsnorm"])
def test_healthy_results_of_extreme_operands_pass(op, direction, input_class):
    form = {"activation": "silu", "bias": True} if op == "silu" else {"activation": "silu", "gated": True, "alpha": 0.75, "residual": True}
    for fmt in ("float32", "float16", "bfloat16", "float64"):
        if op == "rope":
            case = make_case("rope", (("s", 12), ("h", 2), ("d", 16)), format=fmt, direction=direction, input_class=input_class)
        elif op == "rmsnorm":
            case = make_case("rmsnorm", (("m", 12), ("n", 48)), format=fmt, direction=direction, input_class=input_class)
        elif op == "attention":
            shape = (("b", 1), ("h", 2), ("g", 1), ("s", 20), ("t", 20), ("d", 16))
            case = make_case("attention", shape, layout="bhsd", format=fmt, direction=direction, input_class=input_class)
        else:
            shape = (("m", 12), ("n", 16), ("k", 40))
            case = make_case("gemm_epilogue", shape, layout="nn", format=fmt, direction=direction, input_class=input_class, options=form)
        for result, name in computed(case):
            assert result.verdict is not Verdict.FAIL, (fmt, name, result.sides[0].diagnoses, result.sides[0].metrics["budget_max"])
