"""Running sums that overflow on their way to a finite result: allowed where some order of the terms may do it, and nowhere else."""

import itertools
import math

import numpy as np
import pytest
from support_arrays import coded

import accuracy_eval as ae
from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.overflow import Reached, product_overflows, taken_as_right
from accuracy_eval.cpu_ref.wide import product
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded

F32 = float(np.finfo(np.float32).max)


# --- emulated sums: float32 additions of float32 terms [..., n] in several orders


def forward(terms):
    total = np.zeros(terms.shape[:-1], np.float32)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


def backward(terms):
    return forward(terms[..., ::-1])


def pairwise(terms):
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros((*terms.shape[:-1], 1), np.float32)], axis=-1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def split(terms):
    """Four contiguous pieces, joined one after the other."""
    return forward(np.stack([forward(p) for p in np.array_split(terms, 4, axis=-1)], axis=-1))


def strided(terms):
    """Lane i takes terms i, i + 8, …: a vector unit."""
    return pairwise(np.stack([forward(terms[..., i::8]) for i in range(8)], axis=-1))


ORDERS = (forward, backward, pairwise, split, strided)


def generated(op, shape, fmt, input_class):
    case = make_case(op, shape, format=fmt, input_class=input_class)
    return {n: Coded(c, fmt) for n, c in operand_codes(get_op(op), case, "ocp").items()}


@pytest.mark.parametrize("input_class", ["wide", "specials", "huge"])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda f: f.__name__)
def test_healthy_products_of_any_order_never_fail(order, fmt, input_class):
    i = generated("gemm", (("m", 48), ("n", 40), ("k", 96)), fmt, input_class)
    a, b = (decode(i[n].codes, fmt).astype(np.float32) for n in "ab")
    with np.errstate(all="ignore"):
        actual = order(a[:, None, :] * b[None, :, :])
        out = actual if fmt == "float32" else encode(actual.astype(np.float64), fmt)
    c = ae.check(Coded(out.view(np.uint32), fmt) if fmt == "float32" else Coded(out, fmt), op="gemm", layout="nt", inputs=i)
    assert c.passed, c.message


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("input_class", ["wide", "specials", "huge"])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda f: f.__name__)
def test_healthy_sums_of_any_order_never_fail(order, fmt, input_class, op):
    i = generated(op, (("m", 200), ("n", 300)), fmt, input_class)
    x = decode(i["x"].codes, fmt).astype(np.float32)
    with np.errstate(all="ignore"):
        actual = order(x)
        actual = actual / np.float32(300) if op == "mean" else actual
    c = ae.check(coded(actual, fmt), op=op, inputs=i)
    assert c.passed, c.message


def test_sums_do_overflow_on_their_way_here():
    """The tests above see what they are about: results that are Inf or NaN although their truth is another number."""
    i = generated("gemm", (("m", 48), ("n", 40), ("k", 96)), "bfloat16", "wide")
    a, b = (decode(i[n].codes, "bfloat16") for n in "ab")
    x = decode(generated("sum", (("m", 200), ("n", 300)), "bfloat16", "wide")["x"].codes, "bfloat16")
    with np.errstate(all="ignore"):
        product = forward(a.astype(np.float32)[:, None, :] * b.astype(np.float32)[None])
        total, truth = forward(x.astype(np.float32)), x.sum(axis=1).astype(np.float32)
    assert np.isnan(product).sum() > 100
    assert not np.isnan(a @ b.T).any()
    assert (~np.isfinite(total) & np.isfinite(truth)).any()


# --- one dot product by hand: 3e38 + 3e38 − 3e38 − 3e38 + 1 = 1


HAND = [3e38, 3e38, -3e38, -3e38, 1.0]


def dot(terms, result, **more):
    a = np.asarray([terms], np.float32)
    return ae.check(np.asarray([[result]], np.float32), op="gemm", inputs={"a": a, "b": np.ones((a.shape[1], 1), np.float32)}, **more)


@pytest.mark.parametrize("result", [1.0, math.inf, -math.inf, math.nan])
def test_where_both_signs_may_overflow_any_special_value_may_stand(result):
    assert dot(HAND, result).passed


@pytest.mark.parametrize("result", [0.5, 3e38, -3e38])
def test_a_wrong_finite_value_fails_also_there(result):
    # the budget is that of sums of 6e38: the values are beyond it or, 0.5, within
    assert dot(HAND, result).passed is (abs(result) < 1e33)


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ([3e38, 3e38, -3e38, 1.0], {1}),  # the negative terms stay in range
        ([-3e38, -3e38, 3e38, 1.0], {-1}),
        ([1e38, 1e38, -1e38], set()),
        ([2e38, 2e38, -3e38], {1}),
        ([3.4e38, -3.4e38, 1.0], set()),
    ],
    ids=str,
)
def test_only_the_infinity_that_a_partial_sum_can_reach_may_stand(terms, allowed):
    for sign in (1, -1):
        c = dot(terms, sign * math.inf)
        assert c.passed is (sign in allowed), c.message
    nan = dot(terms, math.nan)
    assert nan.verdict == "FAIL"
    assert [d.code for d in nan.diagnoses] == ["nan-in-actual"]


def test_an_allowed_infinity_is_counted_and_said():
    c = dot(HAND, math.inf)
    assert c.side.note == "1 of 1 elements Inf or NaN: a running sum of fp32acc may overflow there in some order"
    assert c.side.note in c.message


def test_an_output_of_nothing_else_warns():
    assert dot(HAND, math.nan).verdict == "WARN"
    a = np.asarray([HAND, [1.0] * 5], np.float32)
    c = ae.check(np.asarray([[math.nan], [5.0]], np.float32), op="gemm", inputs={"a": a, "b": np.ones((5, 1), np.float32)})
    assert c.verdict == "PASS"


def test_a_float64_sum_does_not_overflow_where_float32_would():
    a = np.asarray([HAND])
    c = ae.check(np.asarray([[math.inf]]), op="gemm", inputs={"a": a, "b": np.ones((5, 1))})
    assert c.contract == "fp64"
    assert c.verdict == "FAIL"


def test_partials_of_float16_overflow_at_its_largest_value():
    terms = np.asarray([[60000.0, 60000.0, -60000.0]], np.float16)
    given = {"a": terms, "b": np.ones((3, 1), np.float16)}
    for contract, verdict in (("fp32acc", "FAIL"), ("partials(float16)", "WARN")):
        assert ae.check(np.asarray([[np.inf]], np.float16), op="gemm", inputs=given, contract=contract).verdict == verdict


def test_an_infinite_operand_may_meet_an_overflow_of_the_other_sign():
    overflowing = [math.inf, -3e38, -3e38]
    # nothing finite is expected, so that what is not wrong is not judged either
    assert dot(overflowing, math.inf).verdict == "INCONCLUSIVE"
    assert dot(overflowing, math.nan).verdict == "INCONCLUSIVE"
    assert dot(overflowing, -math.inf).verdict == "FAIL"
    assert dot([math.inf, -3e38, 1.0], math.nan).verdict == "FAIL"
    assert dot([math.nan, 3e38, 3e38], math.inf).verdict == "FAIL"


@pytest.mark.parametrize("options", [{"alpha": -1.0}, {"alpha": 0.25}, {"alpha": 1.0, "beta": 1.0}, {"alpha": 1.0, "beta": -1.0}], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_partial_sums_of_small_problems_equal_every_subset_by_hand(options, bias):
    rng = np.random.default_rng(7)
    a, b = (rng.choice([-2e38, -1e38, 0.0, 5e37, 1e38, 2e38], (3, 4)), rng.choice([-1.0, 0.5, 1.0, 2.0], (4, 3)))
    c, v = rng.choice([-2e38, 1e38], (3, 3)), rng.choice([-2e38, 1e38], 3)
    problem = Gemm(coded(a), coded(b), "nn", options["alpha"], options.get("beta", 0.0), coded(c), coded(v) if bias else None)
    rows, columns = (x.reshape(-1) for x in np.indices((3, 3)))
    up, down, given, lost = product_overflows(problem, "fp32acc")(rows, columns)
    assert not given.any()
    assert not lost.any()
    values = {n: decode(x.codes, "float32") for n, x in (("a", coded(a)), ("b", coded(b)), ("c", coded(c)), ("v", coded(v)))}
    for n, (i, j) in enumerate(zip(rows, columns, strict=True)):
        terms = values["a"][i] * values["b"][:, j]
        sums = [sum(s) for size in range(5) for s in itertools.combinations(terms, size)]
        ends = [options["alpha"] * s for s in sums]
        later = [t for t in (options.get("beta", 0.0) * values["c"][i, j], values["v"][j] if bias else 0.0) if t]
        for size in range(len(later) + 1):
            ends += [options["alpha"] * s + sum(t) for s in sums for t in itertools.combinations(later, size)]
        inner = [np.sign(options["alpha"]) * s for s in sums]  # what overflows before alpha comes, with the sign it leaves
        reached = [*inner, *ends]
        assert (up[n], down[n]) == (max(reached) > F32, min(reached) < -F32)


def test_formats_without_infinity_are_left_alone():
    codes = encode(np.full((2, 2), 448.0), "float8_e4m3fn")
    assert get_format("float8_e4m3fn").has_inf is False
    assert taken_as_right(lambda r, c: Reached(*(np.ones(len(r), bool),) * 4), "float8_e4m3fn", codes, np.ones((2, 2))) is None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_float64_product_beyond_the_largest_is_infinite_of_its_sign(sign):
    a, b = np.array([[2.0**1023, 2.0**10]]), np.array([[0.0], [sign * 2.0**1023]])
    assert product(a, b)[0].tolist() == [[sign * math.inf]]
