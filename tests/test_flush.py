"""Subnormal numbers that become zero, sums that start at C, terms beside float64's ends: allowed to the size they have, and no further."""

import math
from fractions import Fraction

import numpy as np
import pytest
from support_arrays import coded

import accuracy_eval as ae
from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.reduce import reduce
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded


def dot(a, b, result, fmt="float32"):
    """The verdict on a·b = result; a second row of A takes the last of b alone, so that something finite is there to be judged."""
    rows = [a, [0.0] * (len(a) - 1) + [1.0]]
    given = {"a": coded(rows, fmt), "b": coded(np.transpose([b]), fmt)}
    return ae.check(coded([[result], [b[-1]]], fmt), op="gemm", inputs=given)


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_a_product_of_a_subnormal_operand_may_be_missing(fmt):
    # 2^-130 · 2^127 = 1/8: there or not
    for result in (1.125, 1.0):
        assert dot([2.0**-130, 1.0], [2.0**127, 1.0], result, fmt).passed
    assert dot([2.0**-130, 1.0], [2.0**127, 1.0], 0.5, fmt).verdict == "FAIL"


def test_a_product_of_normal_operands_may_not():
    assert dot([2.0**-126, 1.0], [2.0**126, 1.0], 1.0).verdict == "FAIL"


def test_subnormals_of_float16_and_float64_may_not():
    assert dot([2.0**-20, 1.0], [2.0**15, 1.0], 1.0, "float16").verdict == "FAIL"
    assert dot([2.0**-1060, 1.0], [2.0**1000, 1.0], 1.0, "float64").passed  # 2^-60 beside 1
    assert dot([2.0**-1030, 1.0], [2.0**1023, 1.0], 1.0, "float64").verdict == "FAIL"  # 2^-7 beside 1


@pytest.mark.parametrize(
    ("fmt", "small", "passes"), [("float32", 2.0**-130, True), ("bfloat16", 2.0**-133, True), ("float16", 2.0**-20, False)]
)
def test_infinity_times_a_subnormal_is_infinity_or_where_that_is_zero_nan(fmt, small, passes):
    assert dot([math.inf, 1.0], [small, 1.0], math.inf, fmt).passed
    assert dot([math.inf, 1.0], [small, 1.0], math.nan, fmt).passed is passes
    assert dot([math.inf, 1.0], [small, 1.0], -math.inf, fmt).verdict == "FAIL"
    assert dot([math.inf, 1.0], [2.0**-14, 1.0], math.nan, fmt).verdict == "FAIL"


@pytest.mark.parametrize(("bias", "passes"), [(2.0**-127, True), (2.0**-120, False)])
def test_a_bias_that_is_lost_passes_only_where_it_is_subnormal(bias, passes):
    zero = np.zeros((2, 4), np.float32)
    inputs = {"a": zero, "b": np.zeros((4, 3), np.float32), "bias": np.full(3, bias, np.float32)}
    assert ae.check(np.zeros((2, 3), np.float32), op="gemm", inputs=inputs).passed is passes


@pytest.mark.parametrize(("fmt", "dtype"), [("float32", np.float32), ("float64", np.float64)])
def test_a_sum_may_start_at_c_but_not_lose_its_last_bits(fmt, dtype):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((24, 512)).astype(dtype) * dtype(1e-3), rng.standard_normal((512, 32)).astype(dtype)
    c = (rng.standard_normal((24, 32)) * 1e3).astype(dtype)
    acc = c.copy()
    for k in range(512):
        acc = acc + a[:, k : k + 1] * b[k]
    options = {"beta": 1.0}
    assert ae.check(acc, op="gemm", inputs={"a": a, "b": b, "c": c}, options=options).passed
    short = (np.round(c / 2.0**-6) * 2.0**-6 if fmt == "float32" else c.astype(np.float32)).astype(dtype)
    wrong = (a.astype(np.float64) @ b.astype(np.float64) + short).astype(dtype)
    assert ae.check(wrong, op="gemm", inputs={"a": a, "b": b, "c": c}, options=options).verdict == "FAIL"


def test_the_largest_and_the_smallest_float64_beside_each_other_keep_a_budget_of_their_own_size():
    smallest, largest = 5e-324, float(np.finfo(np.float64).max)
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal(26), rng.standard_normal(26)
    a[3], b[3], a[8], b[8] = smallest, largest, -1.2, smallest
    truth = float(sum((Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)), Fraction(0)))
    given = {"a": a[None], "b": b[:, None]}
    assert ae.check(np.array([[float(np.dot(a, b))]]), op="gemm", inputs=given).passed
    assert ae.check(np.array([[truth * (1 + 2e-13)]]), op="gemm", inputs=given).verdict == "FAIL"


def test_an_infinite_term_decides_a_sum_however_large_the_others_are():
    largest = float(np.finfo(np.float64).max)
    x = np.array([[largest, largest, -math.inf], [-largest, -largest, math.inf], [math.inf, -math.inf, 1.0], [largest, math.nan, 1.0]])
    np.testing.assert_array_equal(reduce("sum", x), [-math.inf, math.inf, math.nan, math.nan])
    problem = Gemm(coded(x, "float64"), coded(np.ones((3, 1)), "float64"))
    np.testing.assert_array_equal(next(panels(problem)).values[:, 0], [-math.inf, math.inf, math.nan, math.nan])


def batch(values, op):
    """Operands of op of two products: the first small, the second 3e38 + 3e38 − 3e38 by terms."""
    a = np.array([[[1.0, 2.0, 3.0]], [values]], np.float32)
    b = np.ones((2, 3, 1), np.float32)
    return (a, b) if op == "batched_gemm" else (a.reshape(2, 3), b)


@pytest.mark.parametrize("op", ["batched_gemm", "grouped_gemm"])
@pytest.mark.parametrize(("values", "passes"), [([3e38, 3e38, -3e38], True), ([1e38, 1e38, -1e38], False)])
def test_a_product_of_a_batch_or_group_may_overflow_where_its_own_terms_do(op, values, passes):
    spec = get_op(op)
    letters = {"b": 2, "m": 1, "n": 1, "k": 3} if op == "batched_gemm" else {"g": 2, "m": 1, "n": 1, "k": 3}
    case = make_case(op, tuple(letters.items()), layout="nn", format="float32")
    a, b = batch(values, op)
    inputs = {"a": coded(a, "float32"), "b": coded(b, "float32")}
    if op == "grouped_gemm":
        inputs["group_lens"] = Coded(np.array([1, 1], np.int64), "int64")
    (reference,) = spec.reference(case, inputs, "ocp", "fp32acc").values()
    values_of = np.concatenate([p.values for p in reference.panels()])
    for at in (0, 1):
        codes = encode(values_of, "float32")
        codes[at] = encode(np.array([math.inf]), "float32")
        found = reference.exempt.mask(codes, values_of, 0)
        assert bool(found is not None and found[at, 0]) is (passes and at == 1)
    assert decode(encode(values_of, "float32"), "float32")[0, 0] == 6.0
