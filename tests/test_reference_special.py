from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from support_jit import printed_either_way
from support_special import DOMAIN, LAYOUT, PRECISION, TRUTH, round_code, truth

from accuracy_eval.cpu_ref import _special_kernels
from accuracy_eval.cpu_ref.special import DOMAINS, evaluate, gradient, into_domain, rounded
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode, get_format

UNARY = [n for n, f in FUNCTIONS.items() if f.arity == 1]
INF, NAN = math.inf, math.nan


def float32_codes(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def edges(fmt: str) -> list[int]:
    """Codes around 0, the subnormals, 1 and the largest value, both signs."""
    f = get_format(fmt)
    one = int(encode(np.array([1.0]), f)[0])
    middle = [0, 1, 2, (1 << f.fraction_bits) - 1, 1 << f.fraction_bits, one - 1, one, one + 1, f.max_code]
    return [c | s for c in middle for s in (0, f.sign_mask)]


def expected_codes(name: str, values: np.ndarray, fmt: str) -> list[int | None]:
    inside = DOMAIN.get(name, lambda x: True)
    return [round_code(truth(name, float(v)), fmt) if math.isfinite(v) and inside(v) else None for v in values]


def differing(name: str, codes: np.ndarray, fmt: str, out: str) -> list[str]:
    values = decode(codes, fmt)
    found = rounded(name, values, out)
    sign = get_format(out).sign_mask
    wrong = []
    for code, v, got, want in zip(codes, values, found, expected_codes(name, values, out), strict=True):
        # a zero result takes its sign from tables tested apart
        if want is not None and int(got) != want and not (want | sign == int(got) | sign == sign):
            wrong.append(f"{int(code):#x} = {v!r}: {int(got):#x}, expected {want:#x}")
    return wrong


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", UNARY)
def test_16_bit_results_are_correctly_rounded_over_the_whole_format(name: str, fmt: str) -> None:
    codes = np.array([*range(0, 1 << 16, 173), *edges(fmt)], np.uint16)
    assert differing(name, codes, fmt, fmt) == []


@pytest.mark.parametrize("name", UNARY)
def test_float32_results_are_correctly_rounded_on_random_bit_patterns(name: str) -> None:
    row = FUNCTIONS[name].wide[0]
    rng = np.random.default_rng(7)
    inside = rng.uniform(row.low, row.high, 60) if row.spacing == "linear" else 2.0 ** rng.uniform(-20, 20, 60)
    codes = np.array([*float32_codes(120, 3), *edges("float32"), *encode(inside, "float32")], np.uint32)
    assert differing(name, codes, "float32", "float32") == []


@pytest.mark.parametrize("name", UNARY)
def test_float64_results_are_correctly_rounded(name: str) -> None:
    rng = np.random.default_rng(11)
    row = FUNCTIONS[name].wide[0]
    inside = rng.uniform(row.low, row.high, 40) if row.spacing == "linear" else 2.0 ** rng.uniform(-30, 30, 40)
    values = np.concatenate(
        [rng.normal(size=40), inside, 2.0 ** rng.uniform(-900, 900, 40), [-740.0, -709.9, 709.7, 5e-324, 1e-310, -30.0, -38.0]]
    )
    assert differing(name, encode(values, "float64"), "float64", "float64") == []


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float32", "float64"])
def test_pow_is_correctly_rounded(fmt: str) -> None:
    rng = np.random.default_rng(5)
    x = decode(encode(2.0 ** rng.uniform(-40, 40, 150), fmt), fmt)
    y = decode(encode(np.concatenate([rng.uniform(-4, 4, 100), rng.integers(-4, 5, 50)]), fmt), fmt)
    x[100:125] *= -1
    y[100:125] = np.rint(y[100:125])
    finite = np.isfinite(x) & (x != 0)
    found = rounded("pow", x[finite], fmt, y[finite])
    assert found.tolist() == [round_code(truth("pow", float(a), float(b)), fmt) for a, b in zip(x[finite], y[finite], strict=True)]


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_pairs_are_good_to_67_bits_and_normalised(name: str) -> None:
    f = FUNCTIONS[name]
    rng = np.random.default_rng(17)
    operands = []
    for interval in f.wide:
        log = interval.spacing == "log"
        inside = (
            2.0 ** rng.uniform(np.log2(interval.low), np.log2(interval.high), 80) if log else rng.uniform(interval.low, interval.high, 80)
        )
        operands.append(np.concatenate([inside, np.abs(rng.normal(size=80))]))
    hi, lo = np.empty(160), np.empty(160)
    getattr(_special_kernels, f.kernel)(operands[0], operands[-1], hi, lo)
    for i in range(160):
        want = truth(name, *(float(o[i]) for o in operands))
        with mpmath.workprec(PRECISION):
            assert abs(mpmath.mpf(float(hi[i])) + mpmath.mpf(float(lo[i])) - want) <= abs(want) * mpmath.mpf(2) ** -67
    assert np.all(np.abs(lo) <= np.spacing(np.abs(hi)) / 2)


def test_square_root_of_float32_equals_the_integer_square_root() -> None:
    codes = np.concatenate([float32_codes(20000, 1) & 0x7F7FFFFF, np.arange(1, 200, dtype=np.uint32)])
    codes = codes[codes > 0]
    found = rounded("sqrt", decode(codes, "float32"), "float32")
    for code, got in zip(codes.tolist(), found.tolist(), strict=True):
        exponent, fraction = code >> 23, code & 0x7FFFFF
        m, e = (fraction | 0x800000, exponent - 150) if exponent else (fraction, -149)
        # root to 25 bits and more: floor(sqrt(m·4^k)) with an odd last bit standing for everything below
        k = 80 + (e & 1)
        root = math.isqrt(m << k)
        inexact = root * root != m << k
        # 24 bits by ties to even of root·2^((e−k)/2); e − k is even
        drop = root.bit_length() - 24
        low, half = root & ((1 << drop) - 1), 1 << (drop - 1)
        q = (root >> drop) + int(low > half or (low == half and (inexact or (root >> drop) & 1 == 1)))
        assert Fraction(float(decode(np.array([got], np.uint32), "float32")[0])) == Fraction(q) * Fraction(2) ** (drop + (e - k) // 2)


def test_square_root_that_a_vectorised_libm_misrounds() -> None:
    # the root 0x1.fdff7f7f6f4f2p-63 lies above the midpoint 0x1.fdff7fp-63; a float32 estimate corrected once gives 0x1.fdff7ep-63
    x = np.array([float.fromhex("0x1.fc01p-125")])
    assert decode(rounded("sqrt", x, "float32"), "float32")[0].hex() == "0x1.fdff800000000p-63"


def test_erf_of_a_tiny_operand_is_not_zero() -> None:
    # 2/√π·2^-30 = 1.0509e-9
    x = np.array([2.0**-30])
    assert evaluate("erf", x)[0] == pytest.approx(1.0508908674743683e-09, rel=1e-15)
    assert decode(rounded("erf", x, "bfloat16"), "bfloat16")[0] == 1.0477378964424133e-09  # 0x1.2p-30: 2/√π = 1.128


@pytest.mark.parametrize(
    ("name", "x", "fmt", "want"),
    [
        ("sqrt", 1.00390625**2, "bfloat16", 1.0),  # the root 1 + 2^-8 lies between 1 and 1 + 2^-7: to even
        ("sqrt", 1.01171875**2, "bfloat16", 1.015625),  # 1 + 3·2^-8: up to even
        ("softplus", 24.0 + 2.0**-4, "bfloat16", 24.0),  # x itself, halfway between 24 and 24.125
        ("softplus", 24.0 + 3 * 2.0**-4, "bfloat16", 24.25),
        ("reciprocal", 2.0**-150, "bfloat16", INF),
        ("reciprocal", -(2.0**134), "bfloat16", -0.0),  # 2^-134 is half the smallest subnormal: to even
        ("exp2", -134.0, "bfloat16", 0.0),
        ("exp2", -133.0, "bfloat16", 2.0**-133),
        ("exp2", -150.0, "float32", 0.0),
        ("exp2", 128.0, "float32", INF),
        ("exp", 0.0, "bfloat16", 1.0),
        ("cos", 2.0**-12, "float32", 1.0),  # 1 − 2^-25 + 2^-52.6: above a midpoint by 2^-28 of an ulp
        ("exp", 2.0**-24, "float32", 1.0 + 2.0**-23),  # 1 + 2^-24 + 2^-49
        ("exp", -(2.0**-25), "float32", 1.0),  # 1 − 2^-25 + 2^-51
        ("log2", 2.0**-140, "float32", -140.0),
        ("log10", 1000.0, "float64", 3.0),
        ("exp2", 10.0, "float64", 1024.0),
        ("sigmoid", 0.0, "float8_e4m3fn", 0.5),
        ("exp", 6.3, "float8_e4m3fn", 448.0),  # 544 saturates by the format's own policy
    ],
)
def test_ties_and_exact_values(name: str, x: float, fmt: str, want: float) -> None:
    got = decode(rounded(name, np.array([x]), fmt), fmt)[0]
    assert (got, math.copysign(1, got)) == (want, math.copysign(1, want))


def test_exact_ties_of_pow_go_to_even() -> None:
    # 4097² = 2^24 + 2^13 + 1 lies halfway between two float32; 4095² fits
    found = rounded("pow", np.array([4097.0, 4095.0, 4099.0]), "float32", np.array([2.0, 2.0, 2.0]))
    assert decode(found, "float32").tolist() == [16785408.0, 16769025.0, 16801800.0]


SPECIAL_VALUES = {
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (1e30, INF), (-1e30, 0)],
    "exp2": [(0.0, 1), (INF, INF), (-INF, 0), (1e30, INF), (-1e30, 0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1), (-1e30, -1)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0), (INF, INF), (-INF, NAN), (-1.0, NAN)],
    "log2": [(0.0, -INF), (-0.0, -INF), (1.0, 0), (INF, INF), (-INF, NAN), (-1.0, NAN)],
    "log10": [(0.0, -INF), (-0.0, -INF), (1.0, 0), (INF, INF), (-INF, NAN), (-1.0, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-1.5, NAN), (INF, INF), (-INF, NAN)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (-1e-45, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, NAN), (-1.0, NAN)],
    "reciprocal": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0)],
    "sigmoid": [(0.0, 0.5), (INF, 1), (-INF, 0), (1e30, 1), (-1e30, 0)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e30, 1), (-1e30, -1)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e30, 1), (-1e30, -1)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)],
    "gelu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (1e30, 1e30), (-1e30, -0.0)],
    "gelu-tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (1e30, 1e30), (-1e30, -0.0)],
    "silu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (1e30, 1e30), (-1e30, -0.0)],
    "softplus": [(INF, INF), (-INF, 0.0), (1e30, 1e30), (-1e30, 0.0), (20.5, 20.5)],
}


@pytest.mark.parametrize("name", UNARY)
def test_special_operands(name: str) -> None:
    table = [*SPECIAL_VALUES[name], (NAN, NAN)]
    found = evaluate(name, np.array([x for x, _ in table]))
    for (x, want), got in zip(table, found, strict=True):
        assert (np.isnan(got) and np.isnan(want)) or (got == want and math.copysign(1, got) == math.copysign(1, want)), (x, got, want)


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, INF, -INF, NAN])
def test_pow_follows_c99_at_special_operands(x: float) -> None:
    ys = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, INF, -INF, NAN, 1e300, -1e300, 2.0**53 + 2]
    for y in ys:
        try:
            want = math.pow(x, y)
        except ValueError:  # Python raises at poles and outside the domain, where C99 has Inf and NaN
            odd = y == int(y) and int(y) % 2 == 1
            want = (math.copysign(INF, x) if odd else INF) if x == 0 else NAN
        except OverflowError:
            want = INF
        got = evaluate("pow", np.array([x]), np.array([y]))[0]
        assert (np.isnan(got) and np.isnan(want)) or (got == want and math.copysign(1, got) == math.copysign(1, want)), (x, y, got, want)


@pytest.mark.parametrize("x", [1e22, 2.0**100, 2.0**127 * 1.7, 6381956970095103.0 * 2.0**797, float(round(math.pi * 1e8)), 11.0, 710.0])
def test_sine_and_cosine_of_large_arguments(x: float) -> None:
    with mpmath.workprec(1500):
        want = [float(mpmath.sin(mpmath.mpf(x))), float(mpmath.cos(mpmath.mpf(x)))]
    assert [evaluate("sin", np.array([x]))[0], evaluate("cos", np.array([x]))[0]] == want


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_gradient_is_the_numerical_derivative(name: str) -> None:
    rng = np.random.default_rng(13)
    points = np.concatenate([rng.normal(size=12) * 2, rng.normal(size=6) * 12, [1e-20, -1e-8, -60.0, 35.0]])
    if name in DOMAIN or name == "pow":
        points = np.abs(points) + 1e-3
    second = rng.uniform(-3, 3, points.size) if name == "pow" else None
    grads = rng.normal(size=points.size)
    found = gradient(name, points, grads, second)
    for operand, values in enumerate(found):
        for i, got in enumerate(values):
            at = [float(points[i])] if second is None else [float(points[i]), float(second[i])]
            with mpmath.workprec(PRECISION):
                order = tuple(int(j == operand) for j in range(len(at)))
                # a step far below the distance to the next pole; precision is raised by mpmath
                slope = mpmath.diff(TRUTH[name], tuple(mpmath.mpf(a) for a in at), order, h=mpmath.mpf(2) ** -150)
                want = slope * mpmath.mpf(float(grads[i]))
                allowed = abs(want) * mpmath.mpf(2) ** -51 + mpmath.mpf(2) ** -1074
                assert abs(mpmath.mpf(float(got)) - want) <= allowed, at


GRADIENTS_AT_SPECIAL_POINTS = {
    "sqrt": {0.0: INF, INF: 0.0},
    "rsqrt": {0.0: -INF, INF: -0.0},
    "reciprocal": {0.0: -INF, INF: -0.0},
    "log": {0.0: INF, INF: 0.0, -2.0: -0.5},
    "log1p": {-1.0: INF, INF: 0.0},
    "exp": {-INF: 0.0, INF: INF},
    "sigmoid": {INF: 0.0, -INF: 0.0, 0.0: 0.25},
    "tanh": {INF: 0.0, -INF: 0.0, 0.0: 1.0},
    "erf": {INF: 0.0, -INF: 0.0},
    "softplus": {20.0: 0.9999999979388464, 21.0: 1.0, INF: 1.0, -INF: 0.0},
    "gelu": {0.0: 0.5, INF: NAN, 50.0: 1.0},
    "gelu-tanh": {0.0: 0.5, INF: NAN, 1e30: 1.0, -1e30: 0.0},
    "silu": {0.0: 0.5, INF: NAN, 1e30: 1.0},
    "sin": {INF: NAN, 0.0: 1.0},
    "cos": {INF: NAN, 0.0: -0.0},
}


@pytest.mark.parametrize("name", list(GRADIENTS_AT_SPECIAL_POINTS))
def test_gradient_at_poles_and_infinities(name: str) -> None:
    table = GRADIENTS_AT_SPECIAL_POINTS[name]
    (found,) = gradient(name, np.array(list(table)), np.ones(len(table)))
    np.testing.assert_array_equal(found, list(table.values()))


def test_gradients_of_pow_at_special_points() -> None:
    x = np.array([0.0, 0.0, 0.0, NAN, -2.0, 3.0])
    y = np.array([2.0, 0.0, 1.0, 0.0, 3.0, 0.0])
    dx, dy = gradient("pow", x, np.ones(6), y)
    np.testing.assert_array_equal(dx, [0.0, 0.0, 1.0, 0.0, 12.0, 0.0])
    np.testing.assert_array_equal(dy, [0.0, 0.0, 0.0, NAN, NAN, math.log(3.0)])


def test_gradient_is_scaled_by_the_upstream_gradient() -> None:
    (found,) = gradient("exp", np.array([0.0, 0.0, 0.0, INF]), np.array([2.0, -0.0, INF, 0.0]))
    np.testing.assert_array_equal(found, [2.0, -0.0, INF, NAN])


@pytest.mark.parametrize(
    ("domain", "fmt", "x", "want"),
    [
        ("any", "bfloat16", -1.5, -1.5),
        ("abs", "bfloat16", -1.5, 1.5),
        ("abs", "float32", -0.0, 0.0),
        # float32(1e-3) = 0x1.0624dep-10; the sums in float32, then in the format
        ("abs-plus-1e-3", "float32", -0.0, float.fromhex("0x1.0624dep-10")),
        ("abs-plus-1e-3", "float32", -1.0, float.fromhex("0x1.00418ap+0")),
        ("abs-plus-1e-3", "bfloat16", 0.0, float.fromhex("0x1.06p-10")),
        ("abs-plus-1e-3", "bfloat16", -1.0, 1.0),
        ("abs-plus-1e-3", "float16", -1.0, 1.0009765625),
        ("abs-plus-1e-3", "float64", -1.0, 1.001),
    ],
)
def test_operands_are_moved_into_a_domain(domain: str, fmt: str, x: float, want: float) -> None:
    moved = decode(into_domain(encode(np.array([x]), fmt), fmt, domain), fmt)[0]
    assert (moved, math.copysign(1, moved)) == (want, math.copysign(1, want))


def test_a_domain_keeps_shape_nan_and_infinity() -> None:
    codes = encode(np.array([[NAN, -INF, 1.0]]), "float16")
    for name in DOMAINS:
        moved = decode(into_domain(codes, "float16", name), "float16")
        assert moved.shape == (1, 3)
        assert np.isnan(moved[0, 0])
        assert np.isinf(moved[0, 1])
    assert decode(into_domain(codes, "float16", "abs"), "float16")[0, 1] == INF


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_every_function_names_a_known_domain_and_an_interval_for_each_operand(name: str) -> None:
    f = FUNCTIONS[name]
    assert len(f.turbo) == len(f.wide) == f.arity
    assert all(d in DOMAINS for d in f.turbo)
    assert all(i.low < i.high for i in f.wide)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: evaluate("exp3", x),
            "unknown special function 'exp3' (did you mean exp or exp2?); allowed: cos, erf, exp, exp2, expm1, gelu, gelu-tanh, ",
        ),
        (lambda x: evaluate("pow", x), "pow takes 2 operands, found 1"),
        (lambda x: evaluate("exp", x, x), "exp takes 1 operand, found 2"),
        (lambda x: evaluate("pow", x, x[:1]), "pow: operands of one shape are needed, found x (2,) and y (1,)"),
        (lambda x: rounded("exp", x, "int8"), "exp: rounding to int8; special functions have float results"),
        (lambda x: into_domain(x.astype(np.uint32), "float32", "unit"), "unknown domain 'unit'; allowed: abs, abs-plus-1e-3, any"),
    ],
)
def test_misuse_is_named(call, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(np.array([1.0, 2.0]))
    assert str(caught.value).startswith(message)


def test_shape_is_kept_and_operands_are_not_written() -> None:
    x = np.linspace(0.0, 1.0, 6).reshape(2, 3)[:, ::2]
    before = x.copy()
    assert evaluate("exp", x).shape == rounded("exp", x, "bfloat16").shape == gradient("exp", x, x)[0].shape == (2, 2)
    assert evaluate("exp", np.float64(0.0)).shape == ()
    assert evaluate("exp", np.empty((0, 3))).shape == (0, 3)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "erf"])
def test_values_never_decrease_over_neighbouring_floats(name: str) -> None:
    codes = np.arange(0x3F000000, 0x3F000000 + 400, dtype=np.uint32)
    values = evaluate(name, decode(codes, "float32"))
    assert all(a < b for a, b in pairwise(values))


PLAIN = """
import sys, hashlib
import numpy as np
from accuracy_eval.cpu_ref import special
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS
assert not {"numba", "mpmath", "torch"} & set(sys.modules), "imported before anything is evaluated"
x = [0.0, -0.0, 5e-324, 1e-40, -1e-30, .3, -.3, 1, -1, 2.5, -20, 21, -50, 60, -88.7, -745.2, -760, 705, 720, 1e19, -1e38, 1e300]
x = np.array([*x, np.inf, -np.inf, np.nan])
y = np.resize(np.array([0, .5, -1, 2, 3, -3, 1e300, -1e300, np.inf, np.nan, 1e-300]), x.shape)
for name, f in FUNCTIONS.items():
    second = y if f.arity == 2 else None
    parts = [special.evaluate(name, x, second), *special.gradient(name, x, x + 1, second)]
    parts += [special.rounded(name, x, fmt, second) for fmt in ("bfloat16", "float32")]
    parts = [np.where(np.isnan(p), 7.0, p) if p.dtype.kind == "f" else p for p in parts]
    print(name, hashlib.sha256(b"".join(p.tobytes() for p in parts)).hexdigest())
"""


def test_compiled_and_plain_python_give_the_same_bits() -> None:
    assert len(printed_either_way(PLAIN).splitlines()) == len(FUNCTIONS)


def test_layouts_of_the_expectation_agree_with_ieee() -> None:
    with mpmath.workprec(PRECISION):
        assert round_code(mpmath.mpf(1) / 3, "float64") == np.float64(1 / 3).view(np.uint64)
        assert round_code(-(mpmath.mpf(2) ** -149), "float32") == 0x80000001
        assert round_code(mpmath.mpf(65520), "float16") == 0x7C00
        assert round_code(mpmath.mpf(65519), "float16") == 0x7BFF
    assert set(LAYOUT) == {"float64", "float32", "float16", "bfloat16"}
