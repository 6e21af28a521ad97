from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from support_jit import printed_either_way

from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.reduce import REDUCTIONS, reduce, reduce_gradient, reduce_limit, row_statistics, sum_budget
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode, ulp

INF, NAN = math.inf, math.nan


def rows(kind: str, shape: tuple[int, int] = (7, 96)) -> np.ndarray:
    """bfloat16 or float64 values of several shapes of data."""
    rng = np.random.default_rng(len(kind))
    x = rng.normal(size=shape)
    if kind == "spread":
        x *= 2.0 ** rng.integers(-60, 60, shape)
    elif kind == "cancelling":
        x[:, 1::2] = -x[:, ::2]
        x[:, 0] *= 1 + 2.0**-20
    elif kind == "large":
        x = x * 30
    elif kind == "equal":
        x = np.repeat(x[:, :1], shape[1], axis=1)
    return decode(encode(x, "bfloat16"), "bfloat16") if kind in ("normal", "large") else x


KINDS = ["normal", "spread", "cancelling", "large", "equal"]


def same(got: float, want: float) -> bool:
    """Equal, with the sign of zero; NaN equals NaN."""
    return (math.isnan(got) and math.isnan(want)) or (got == want and math.copysign(1, got) == math.copysign(1, want))


def exact(row: np.ndarray) -> Fraction:
    return sum((Fraction(float(v)) for v in row), Fraction(0))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_means_are_correctly_rounded(kind: str) -> None:
    x = rows(kind)
    assert reduce("sum", x).tolist() == [float(exact(r)) for r in x]
    assert reduce("mean", x).tolist() == [float(exact(r) / x.shape[1]) for r in x]


def test_a_sum_that_cancels_to_its_last_bit_is_exact() -> None:
    x = np.array([[2.0**60, 1.0, 2.0**-60, -(2.0**60), -1.0, 2.0**-70], [1e16, 1.0, -1e16, 1.0, 0.0, 0.0], [0.1, 0.2, -0.3, 0.0, 0.0, 0.0]])
    assert reduce("sum", x).tolist() == [2.0**-60 + 2.0**-70, 2.0, math.fsum([0.1, 0.2, -0.3])]


def test_long_sums_are_correctly_rounded() -> None:
    x = np.random.default_rng(0).normal(size=(3, 50000))
    assert reduce("sum", x).tolist() == [math.fsum(r) for r in x]


def test_sums_whose_magnitudes_leave_float64() -> None:
    big = 1.7e308
    x = np.array([[big, big, -big, 1.0], [big, big, 0.0, 0.0], [-big, -big, 0.0, 0.0]])
    assert reduce("sum", x).tolist() == [big, INF, -INF]
    assert reduce("mean", x).tolist() == [big / 4, big / 2, -big / 2]


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([INF, 1.0], INF),
        ([INF, -INF], NAN),
        ([NAN, 1.0], NAN),
        ([-INF, -INF], -INF),
        ([0.0, -0.0], 0.0),
        ([-0.0, -0.0], -0.0),
        ([1.0, -1.0], 0.0),
    ],
)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_special_terms_of_sums(name: str, row: list[float], want: float) -> None:
    (got,) = reduce(name, np.array([row]))
    assert same(got, want)


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([1.0, 3.0, -2.0], 3.0),
        ([-3.0, -1.0], -1.0),
        ([1.0, NAN, 5.0], NAN),
        ([-INF, -INF], -INF),
        ([-0.0, 0.0], 0.0),
        ([0.0, -0.0], 0.0),
        ([-0.0, -1.0], -0.0),
        ([INF, 1.0], INF),
    ],
)
def test_max_propagates_nan_and_prefers_plus_zero(row: list[float], want: float) -> None:
    (got,) = reduce("max", np.array([row]))
    assert same(got, want)


def high(row: np.ndarray) -> list[mpmath.mpf]:
    return [mpmath.mpf(float(v)) for v in row]


@pytest.mark.parametrize("kind", KINDS)
def test_logsumexp_and_softmax_are_within_a_hair_of_correctly_rounded(kind: str) -> None:
    x = rows(kind, (4, 40))
    lse, soft = reduce("logsumexp", x), reduce("softmax", x)
    with mpmath.workprec(3000):
        for i, row in enumerate(x):
            terms = [mpmath.exp(v) for v in high(row)]
            total = mpmath.fsum(terms)
            assert abs(mpmath.mpf(float(lse[i])) - mpmath.log(total)) <= 0.501 * math.ulp(lse[i])
            for got, term in zip(soft[i], terms, strict=True):
                assert abs(mpmath.mpf(float(got)) - term / total) <= (0.501 if got > 1e-270 else 2.0) * math.ulp(got)


def test_logsumexp_that_cancels_to_zero_keeps_its_bits() -> None:
    # two terms of log ½, rounded: the result is the rounding error of log 2, −2.3e-17
    half = math.log(0.5)
    with mpmath.workprec(200):
        want = float(mpmath.log(2) + mpmath.mpf(half))
    assert 0 < abs(want) < 1e-16
    assert reduce("logsumexp", np.array([[half, half]])).tolist() == [want]


@pytest.mark.parametrize(
    ("row", "lse", "soft"),
    [
        ([INF, 0.0], INF, [NAN, NAN]),
        ([-INF, -INF], -INF, [NAN, NAN]),
        ([-INF, 2.0], 2.0, [0.0, 1.0]),
        ([NAN, 2.0], NAN, [NAN, NAN]),
        ([1000.0, 1000.0], 1000.0 + math.log(2), [0.5, 0.5]),
        ([-1e308, 1e308], 1e308, [0.0, 1.0]),
        ([-0.0], 0.0, [1.0]),
    ],
)
def test_special_rows_of_logsumexp_and_softmax(row: list[float], lse: float, soft: list[float]) -> None:
    np.testing.assert_array_equal(reduce("logsumexp", np.array([row])), [lse])
    np.testing.assert_array_equal(reduce("softmax", np.array([row])), [soft])


def test_gradients_of_sum_mean_and_max() -> None:
    x = np.array([[1.0, 3.0, 3.0], [NAN, 1.0, 2.0], [-1.0, -2.0, -4.0]])
    grad = np.array([6.0, 3.0, -3.0])
    assert reduce_gradient("sum", x, grad).tolist() == [[6.0] * 3, [3.0] * 3, [-3.0] * 3]
    assert reduce_gradient("mean", x, grad).tolist() == [[2.0] * 3, [1.0] * 3, [-1.0] * 3]
    np.testing.assert_array_equal(reduce_gradient("max", x, grad), [[0.0, 3.0, 3.0], [NAN] * 3, [-3.0, 0.0, 0.0]])


@pytest.mark.parametrize("kind", ["normal", "large", "equal", "cancelling"])
def test_gradients_of_logsumexp_and_softmax_by_mpmath(kind: str) -> None:
    x = rows(kind, (3, 24))
    rng = np.random.default_rng(2)
    grad, grads = rng.normal(size=3), rng.normal(size=x.shape)
    lse, soft = reduce_gradient("logsumexp", x, grad), reduce_gradient("softmax", x, grads)
    with mpmath.workprec(600):
        for i, row in enumerate(x):
            terms = [mpmath.exp(v) for v in high(row)]
            s = [t / mpmath.fsum(terms) for t in terms]
            dot = mpmath.fsum(a * b for a, b in zip(s, high(grads[i]), strict=True))
            for j in range(x.shape[1]):
                want = s[j] * mpmath.mpf(float(grad[i]))
                assert abs(mpmath.mpf(float(lse[i, j])) - want) <= abs(want) * mpmath.mpf(2) ** -51
                want = s[j] * (mpmath.mpf(float(grads[i, j])) - dot)
                assert abs(mpmath.mpf(float(soft[i, j])) - want) <= abs(want) * mpmath.mpf(2) ** -51


def test_softmax_gradient_of_a_constant_upstream_gradient_vanishes() -> None:
    x = rows("normal")
    found = reduce_gradient("softmax", x, np.ones_like(x))
    assert np.abs(found).max() < 1e-29


def test_a_non_finite_upstream_gradient_stays_non_finite() -> None:
    x = np.zeros((1, 3))
    assert np.isnan(reduce_gradient("softmax", x, np.array([[INF, 0.0, 1.0]]))).any()
    assert np.isnan(reduce_gradient("softmax", x, np.array([[NAN, 0.0, 1.0]]))).all()


@pytest.mark.parametrize("name", list(REDUCTIONS))
def test_leading_axes_are_kept_and_operands_are_not_written(name: str) -> None:
    x = np.random.default_rng(3).normal(size=(2, 3, 8))[:, :, ::2]
    before = x.copy()
    result = reduce(name, x)
    assert result.shape == ((2, 3, 4) if REDUCTIONS[name].keeps_axis else (2, 3))
    assert reduce_gradient(name, x, np.ones_like(result)).shape == (2, 3, 4)
    assert reduce(name, x[0, 0]).shape == ((4,) if REDUCTIONS[name].keeps_axis else ())
    assert np.array_equal(x, before)


def test_empty_axes() -> None:
    x = np.empty((2, 0))
    assert reduce("sum", x).tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(reduce("mean", x), [NAN, NAN])
    assert reduce("logsumexp", x).tolist() == [-INF, -INF]
    assert reduce("softmax", x).shape == (2, 0)
    assert reduce("max", np.empty((0, 3))).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reduce("max", np.empty((2, 0))), "max of an empty axis: x has 2 rows of 0 elements; give it at least one"),
        (lambda: reduce("min", np.zeros(2)), "unknown reduction 'min'; allowed: logsumexp, max, mean, norm, softmax, sum"),
        (lambda: reduce("sum", np.float64(1)), "a reduction needs an axis: found a scalar, give an array of at least one dimension"),
        (
            lambda: reduce_gradient("sum", np.zeros((2, 3)), np.zeros((2, 3))),
            "sum: grad must have the shape of the result, (2,); found (2, 3)",
        ),
        (lambda: reduce_limit("sum", np.zeros((2, 3)), np.zeros(2), "float32"), "sum has an error budget under a contract: use sum_budget"),
    ],
)
def test_misuse_is_named(call, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert str(caught.value) == message


def test_row_statistics_by_hand() -> None:
    found = row_statistics(np.array([[3.0, -4.0, 0.0, 2.0]]))  # running sums 3, −1, −1, 1
    assert (found.n, found.total[0], found.absolute[0], found.largest[0], found.coherence[0]) == (4, 1.0, 9.0, 3.0, 1.0)
    assert found.root[0] == pytest.approx(math.sqrt(29))
    assert found.mean[0] == 6 / 4
    assert found.rms[0] == pytest.approx(math.sqrt(12 / 4))


@pytest.mark.parametrize("scale", [2.0**-600, 2.0**600])
def test_row_statistics_scale_with_the_data(scale: float) -> None:
    x = rows("normal")
    found, scaled = row_statistics(x), row_statistics(x * scale)
    for name in ("total", "absolute", "root", "mean", "rms", "largest"):
        np.testing.assert_allclose(getattr(scaled, name), getattr(found, name) * scale, rtol=1e-14)
    np.testing.assert_array_equal(scaled.coherence, found.coherence)


def float32_sum(x: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[0], np.float32)
    for j in range(x.shape[1]):
        total += x[:, j].astype(np.float32)
    return total.astype(np.float64)


@pytest.mark.parametrize("kind", ["normal", "spread", "cancelling", "large", "equal", "positive"])
@pytest.mark.parametrize("n", [1, 2, 31, 1024, 4096])
def test_a_float32_sum_in_any_order_keeps_its_budget(kind: str, n: int) -> None:
    x = np.abs(rows("normal", (16, n))) if kind == "positive" else rows(kind, (16, n + n % 2))
    x = x.astype(np.float32).astype(np.float64)
    truth, budget = reduce("sum", x), sum_budget(x, parse_contract("fp32acc"))
    tree = x.astype(np.float32).sum(axis=1, dtype=np.float32).astype(np.float64)
    for actual in (float32_sum(x), float32_sum(x[:, ::-1]), tree):
        assert np.all(np.abs(actual - truth) <= budget + ulp(truth, "float32") / 2)


@pytest.mark.parametrize("n", [64, 4096])
def test_a_bfloat16_accumulator_and_a_lost_element_break_the_budget(n: int) -> None:
    x = rows("normal", (16, n))
    truth, budget = reduce("sum", x), sum_budget(x, parse_contract("fp32acc"))
    total = np.zeros(16)
    for j in range(n):
        total = decode(encode(total + x[:, j], "bfloat16"), "bfloat16")
    assert np.all(np.abs(total - truth) > budget)
    assert np.all(np.abs(x[:, n // 2]) > budget)


def test_the_budget_of_a_mean_is_that_of_the_sum_divided() -> None:
    x = rows("normal")
    contract = parse_contract("fp32acc")
    np.testing.assert_allclose(sum_budget(x, contract, mean=True), sum_budget(x, contract) / x.shape[1])
    assert sum_budget(x, parse_contract("exact")).tolist() == [0.0] * 7


def float32_softmax(x: np.ndarray) -> np.ndarray:
    a = x.astype(np.float32)
    e = np.exp(a - a.max(axis=1, keepdims=True), dtype=np.float32)
    return (e / e.sum(axis=1, keepdims=True, dtype=np.float32)).astype(np.float64)


@pytest.mark.parametrize("kind", ["normal", "large", "equal"])
@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16"])
def test_a_float32_softmax_keeps_its_limit_and_a_flaw_does_not(kind: str, fmt: str) -> None:
    x = rows(kind, (8, 300)).astype(np.float32).astype(np.float64)
    truth = reduce("softmax", x)
    allowed = reduce_limit("softmax", x, truth, fmt)
    actual = decode(encode(float32_softmax(x), fmt), fmt)
    assert np.all(np.abs(actual - truth) <= allowed)
    # a divisor that misses the first tenth of the row
    wrong = actual / (1 - truth[:, :30].sum(axis=1, keepdims=True))
    assert (np.abs(wrong - truth) > allowed).any()


@pytest.mark.parametrize("kind", ["normal", "large", "equal"])
def test_a_float32_logsumexp_keeps_its_limit_and_a_flaw_does_not(kind: str) -> None:
    x = rows(kind, (8, 300)).astype(np.float32).astype(np.float64)
    a = x.astype(np.float32)
    m = a.max(axis=1)
    actual = (m + np.log(np.exp(a - m[:, None]).sum(axis=1, dtype=np.float32))).astype(np.float64)
    truth = reduce("logsumexp", x)
    allowed = reduce_limit("logsumexp", x, truth, "float32")
    assert np.all(np.abs(actual - truth) <= allowed)
    assert np.all(np.abs(actual * (1 + 1e-4) - truth) > allowed)


def test_the_limit_of_max_is_the_rounding_of_the_output() -> None:
    x = np.array([[1.0, 1.00390625]])
    assert reduce_limit("max", x, reduce("max", x), "bfloat16").tolist() == [2.0**-8]


PLAIN = """
import sys, hashlib
import numpy as np
from accuracy_eval.cpu_ref import reduce as r
assert not {"numba", "mpmath", "torch"} & set(sys.modules), "imported before anything is reduced"
x = [[1.0, -2.5, 3.0, 3.0], [np.inf, 0, 1, -0.0], [np.nan, 1, 2, 3], [-np.inf] * 4, [1e300, -1e300, 1e-300, 5e-324]]
x = np.array([*x, [700, -50, 0, 0]])
g = np.array([1.0, -2.0, 0.5, 3.0, 1e-300, 4.0])
for name, row in r.REDUCTIONS.items():
    parts = [r.reduce(name, x), r.reduce_gradient(name, x, x if row.keeps_axis else g)]
    parts = [np.where(np.isnan(p), 7.0, p) for p in parts]
    print(name, hashlib.sha256(b"".join(p.tobytes() for p in parts)).hexdigest())
print(r.row_statistics(x[[0, 4, 5]]).rms.tobytes().hex())
"""


def test_compiled_and_plain_python_give_the_same_bits() -> None:
    assert len(printed_either_way(PLAIN).splitlines()) == len(REDUCTIONS) + 1


@pytest.mark.parametrize("fmt", ["float64", "float32", "bfloat16"])
def test_terms_of_minus_inf_have_a_limit_in_a_softmax(fmt):
    x = np.array([[0.0, -np.inf, 1.0]])
    limit = reduce_limit("softmax", x, reduce("softmax", x), fmt)
    assert np.isfinite(limit).all()
    assert 0 < limit[0, 1] < 1e-37


def test_a_row_of_the_largest_numbers_has_a_budget():
    x = np.array([[np.finfo(np.float64).max, -1.0, 2.0]])
    budget = sum_budget(x, parse_contract("fp64"))
    assert np.isfinite(budget).all()
    assert (budget > 0).all()
