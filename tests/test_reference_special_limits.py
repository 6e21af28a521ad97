from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from accuracy_eval.cpu_ref.special import CORE, SUBNORMAL, TAIL, evaluate, gradient, gradient_limit, limit, limit_ulps, region
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode, get_format, ulp


def share(name: str, x: float, actual: float, fmt: str) -> float:
    """|actual − truth| as a share of the limit."""
    at = np.array([x])
    truth = evaluate(name, at)
    return float(abs(actual - truth[0]) / limit(name, at, truth, fmt)[0])


@pytest.mark.parametrize(
    ("name", "vendor", "want"),
    [
        ("exp", "cuda", 2.5),
        ("exp", "hip", 1.5),
        ("exp", "any", 2.5),
        ("exp", "pair", 4.0),
        ("pow", "pair", 6.0),
        ("erf", "pair", 7.0),
        ("tanh", "pair", 5.0),
        ("sqrt", "cuda", 0.5),
        ("reciprocal", "any", 0.5),
    ],
)
def test_float32_limits_are_the_documented_ulps_and_the_results_own_rounding(name: str, vendor, want: float) -> None:
    assert limit_ulps(name, "float32", vendor) == want


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn"])
def test_small_formats_are_allowed_one_ulp(fmt: str) -> None:
    assert {limit_ulps(name, fmt) for name in FUNCTIONS} == {1.0}


def test_float64_adds_the_rounding_of_the_reference() -> None:
    assert limit_ulps("exp", "float64", "cuda") == 3.5


def test_the_limit_is_counted_in_ulps_at_the_reference() -> None:
    x = np.array([0.0, 1.0, -100.0])
    allowed = limit("exp", x, np.exp(x), "float32", vendor="cuda")
    np.testing.assert_array_equal(allowed, [2.5 * 2.0**-23, 2.5 * 2.0**-22, 2.5 * 2.0**-149])


# the largest errors of an H200 under torch 2.11 over all 2^32 float32 operands, in ulp against the real value
@pytest.mark.parametrize(
    ("name", "ulps"),
    [
        ("exp", 1.931), ("log", 0.864), ("sqrt", 0.5), ("rsqrt", 1.514), ("tanh", 1.815), ("erf", 1.037), ("sin", 1.499),
        ("expm1", 1.445), ("log1p", 0.886), ("softplus", 2.702), ("reciprocal", 0.5), ("pow", 0.934),
    ],
)  # fmt: skip
def test_a_healthy_device_stays_within_its_vendors_limit(name: str, ulps: float) -> None:
    assert ulps <= limit_ulps(name, "float32", "cuda")


@pytest.mark.parametrize(
    ("name", "x", "actual", "fmt"),
    [
        ("sigmoid", -88.75, 0.0, "float32"),  # exp(88.75) overflows; 2.9e-39 is lost
        ("sigmoid", -89.0, 0.0, "bfloat16"),
        ("silu", -89.0, -0.0, "float32"),
        ("silu", -89.0, -0.0, "bfloat16"),
        ("gelu", -5.53125, 0.0, "float32"),  # 1 + erf is 0
        ("gelu", -5.53125, 0.0, "bfloat16"),
        ("gelu", -4.5, -4.5 / 2 * 116 * 2.0**-24, "float32"),  # 1 + erf = 114.0 · 2^-24, two steps off
        ("gelu-tanh", -5.5, 0.0, "bfloat16"),
        ("gelu", -710.0, -0.0, "float64"),
        ("sigmoid", -710.0, 0.0, "float64"),
    ],
)
def test_what_the_formula_itself_loses_in_a_tail_is_allowed(name: str, x: float, actual: float, fmt: str) -> None:
    assert share(name, x, actual, fmt) <= 1.0


@pytest.mark.parametrize(
    ("name", "x", "actual", "fmt"),
    [
        ("erf", 2.0**-30, 0.0, "bfloat16"),
        ("erf", 2.0**-30, 0.0, "float32"),
        ("sigmoid", -80.0, 0.0, "float32"),
        ("silu", -80.0, 0.0, "bfloat16"),
        ("gelu", -3.0, 0.0, "bfloat16"),
        ("gelu", 3.0, 2.95, "bfloat16"),
        ("gelu-tanh", 1.0, math.erfc(-1 / math.sqrt(2)) / 2, "float32"),  # the other gelu
        ("exp", -87.5, 0.0, "float32"),  # a result flushed to zero
        ("exp", -1.0, math.exp(-1.0) * (1 + 2.0**-21), "float32"),
        ("sin", 1e6, math.sin(1e6) + 1e-5, "float32"),  # a poor argument reduction
        ("tanh", 1e-2, 1e-2, "float32"),  # x in place of x − x³/3
        ("sqrt", 2.0, math.sqrt(2.0) * (1 + 2.0**-22), "float32"),
    ],
)
def test_what_no_formula_explains_is_not_allowed(name: str, x: float, actual: float, fmt: str) -> None:
    assert share(name, x, actual, fmt) > 1.0


def test_regions_are_core_tail_and_subnormal() -> None:
    x = np.array([1.0, -3.0, -100.0, 0.0, -0.0, np.nan])
    np.testing.assert_array_equal(region("gelu", x, evaluate("gelu", x), "float32"), [CORE, TAIL, CORE, CORE, CORE, CORE])
    x = np.array([-80.0, -88.0, -89.0, -np.inf])
    np.testing.assert_array_equal(region("sigmoid", x, evaluate("sigmoid", x), "float32"), [CORE, SUBNORMAL, SUBNORMAL, TAIL])
    np.testing.assert_array_equal(region("silu", x, evaluate("silu", x), "bfloat16"), [CORE, CORE, TAIL, TAIL])
    assert region("exp", x[:1], evaluate("exp", x[:1]), "float16").tolist() == [SUBNORMAL]


def test_nothing_is_allowed_where_the_truth_is_not_finite() -> None:
    x = np.array([np.nan, -1.0, 0.0, np.inf])
    assert limit("log", x, evaluate("log", x), "float32").tolist() == [0.0] * 4


def test_every_limit_has_a_source() -> None:
    assert all(len(f.ulps.source) > 20 for f in FUNCTIONS.values())
    assert all(len(t.why) > 20 for f in FUNCTIONS.values() for tails in (f.tails or {}).values() for t in tails)


def test_an_unknown_vendor_is_named() -> None:
    with pytest.raises(UsageError, match="unknown vendor 'amd'; allowed: any, cuda, hip, pair"):
        limit_ulps("exp", "float32", "amd")  # type: ignore[arg-type]


def test_a_gradient_may_start_from_the_rounded_result() -> None:
    # 1 − tanh² at 7.625 in bfloat16: the saved tanh is 1, the gradient 0 instead of 9.5e-7
    x, one = np.array([7.625]), np.ones(1)
    (truth,) = gradient("tanh", x, one)
    (allowed,) = gradient_limit("tanh", x, one, "bfloat16")
    assert truth[0] == pytest.approx(9.5e-7, rel=0.01)
    assert truth[0] < allowed[0] < 2.0**-5
    # where nothing cancels, a few ulp
    (allowed,) = gradient_limit("tanh", np.array([0.0]), one, "bfloat16")
    assert allowed[0] == 5 * ulp(np.array([1.0]), "bfloat16")[0]


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_a_wrong_gradient_formula_is_not_allowed(name: str) -> None:
    # 5 % of gain, and the function's value in place of its derivative
    x = np.array([0.7, 1.3])
    y = np.array([1.7, 2.2]) if name == "pow" else None
    grad = np.array([1.0, -2.0])
    for truth, allowed in zip(gradient(name, x, grad, y), gradient_limit(name, x, grad, "float32", y), strict=True):
        assert np.all(np.abs(0.05 * truth) > allowed)
        assert np.all(allowed < 1e-5 * np.abs(truth) + 1e-5)
        if name != "exp":
            assert np.all(np.abs(grad * evaluate(name, x, y) - truth) > allowed)


def test_gradient_limits_scale_with_the_upstream_gradient() -> None:
    x = np.array([-1.0, -1.0])
    (allowed,) = gradient_limit("gelu", x, np.array([1.0, -4.0]), "float32")
    assert allowed[1] == 4 * allowed[0]
    assert get_format("float32").eps < allowed[0] < 20 * get_format("float32").eps


@pytest.mark.parametrize("fmt", ["float32", "float64"])
def test_where_tanh_is_one_the_slope_of_gelu_errs_by_its_last_rounding_alone(fmt: str) -> None:
    x = np.array([8.0, 30.0, 1e10, -8.0, -1e10])
    allowed = gradient_limit("gelu-tanh", x, np.ones(5), fmt)[0] / get_format(fmt).eps
    assert np.all(allowed[:3] < 20)
    assert np.all(allowed[3:] < 0.01)  # the slope itself, which tanh = -1 makes 0


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
def test_a_slope_of_gelu_beyond_the_bend_errs_by_what_steps_of_sixteen_bits_round_away(fmt: str) -> None:
    """From 5 to 8 the terms that cancel are far below a step; a formula rounded at each step keeps the limit."""
    x = decode(np.arange(65536, dtype=np.uint16), fmt)
    x = x[np.abs(x) < 12.0]
    allowed = gradient_limit("gelu-tanh", x, np.ones_like(x), fmt)[0]
    eps = get_format(fmt).eps
    assert np.all(allowed[(x > 5.0) & (x < 8.0)] < 6 * eps)
    assert np.all(allowed[(x < -5.0) & (x > -8.0)] < 2e-5)

    def r(v: np.ndarray) -> np.ndarray:
        return decode(encode(v, fmt), fmt)

    c, k = r(np.array(math.sqrt(2 / math.pi))), r(np.array(0.044715))
    t = r(np.tanh(r(c * r(x + r(k * r(r(x * x) * x))))))
    slope = r(r(0.5 * r(1 + t)) + r(r(r(0.5 * x) * r(1 - r(t * t))) * r(c * r(1 + r(r(3 * k) * r(x * x))))))
    with mpmath.workdps(50):
        wanted = [
            float(mpmath.diff(lambda z: z / (1 + mpmath.exp(-mpmath.sqrt(8 / mpmath.pi) * (z + mpmath.mpf("0.044715") * z**3))), v))
            for v in x[::97].tolist()
        ]
    error = np.abs(slope[::97] - np.array(wanted))
    beyond = np.abs(x[::97]) > 5.0
    assert np.all(error[beyond] <= allowed[::97][beyond])
