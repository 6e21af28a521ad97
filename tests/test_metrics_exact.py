"""Every metric against the same metric in exact fractions, over every format, with every kind of special value."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_metrics import rounding, truth, value_of

from accuracy_eval import formats
from accuracy_eval.formats import FORMATS, Format
from accuracy_eval.metrics import slots
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import Meter, measure
from accuracy_eval.records import Coded

ALL = list(FORMATS)
SPECS = ((1e-2, 1e-2), (0.0, 0.0))
quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

INDICES = ("max_abs_index", "max_rel_index", "ulp_max_index", "inner_err_index", "budget_max_index")


def check(m: Measured, t: dict[str, Any]) -> None:
    """Counts exactly, numbers to 1e-13 of themselves; what can cancel (gain, biases) to 1e-13 of the size of its terms."""
    scale = t.pop("_scale", {})
    for name, want in t.items():
        got = m.metrics[name]
        if name in ("bias_ulp", "ulp_mean") and m.metrics["ulp_max"] == math.inf:  # an ulp error beyond float64
            assert got == (None if name == "bias_ulp" else math.inf)
            continue
        if name == "gain_se" and scale.get("gain") == math.inf:
            continue
        if name == "bias_sigma" and scale.get("bias", 0) > 1e12:  # the spread is below the rounding of the differences
            continue
        if want is None or got is None:
            assert got is want, (name, got, want)
        elif name in ("ulp_p50", "ulp_p99", "ulp_p999"):
            exact = not m.reference and m.expected_format == m.actual_format and want < 65536
            assert (
                want >= 2**64 or got == want if exact else want >= 2**82 or want * (1 - 1e-15) <= got <= max(want * (1 + 2**-10), 2**-30)
            ), (name, got, want)
        elif name == "gain":
            assert got == pytest.approx(want, rel=1e-13, abs=1e-13 * scale["gain"]), name
        elif name == "gain_se":
            assert got == pytest.approx(want, rel=1e-6, abs=1e-7 * scale["gain"]), name
        elif name == "bias_sigma":
            # every difference is rounded once: a spread far below the mean is known that much less
            assert got == pytest.approx(want, rel=1e-12, abs=1e-12 * scale["bias"] + 1e-15 * scale["bias"] ** 2), name
        elif name == "bias_ulp":
            assert got == pytest.approx(want, rel=1e-13, abs=1e-13 * scale["ulp"]), name
        elif name == "cosine":
            assert got == pytest.approx(want, rel=1e-13, abs=1e-13), name
        elif name == "snr_db":
            assert got == pytest.approx(want, rel=1e-13, abs=1e-10), name
        elif isinstance(want, int) and not isinstance(want, bool) and name != "ulp_max":
            assert got == want, (name, got, want)
        else:
            assert got == pytest.approx(want, rel=1e-13, abs=0), (name, got, want)


def codes_of(f: Format) -> st.SearchStrategy[int]:
    edges = [0, 1, 2, f.max_code, f.max_code - 1, 1 << f.fraction_bits, (1 << f.fraction_bits) - 1]
    edges += [f.sign_mask | c for c in edges] if f.signed and f.kind == "float" else []
    edges += [f.nan_code] if f.has_nan else []
    edges += [f.inf_code, f.inf_code | f.sign_mask] if f.has_inf else []
    return st.one_of(st.sampled_from(edges), st.integers(0, (1 << f.bits) - 1))


@st.composite
def pairs(draw: st.DrawFn, f: Format) -> tuple[list[int], list[int]]:
    """Codes of two sides: independent, equal, or a few steps apart."""
    n = draw(st.integers(0, 12))
    a = draw(st.lists(codes_of(f), min_size=n, max_size=n))
    e = []
    for c in a:
        how = draw(st.integers(0, 3))
        e.append(draw(codes_of(f)) if how == 0 else c if how < 3 else (c + draw(st.integers(-3, 3))) % (1 << f.bits))
    return a, e


def coded(codes: list[int], f: Format) -> Coded:
    return Coded(np.array(codes, f.storage), f.name)


@pytest.mark.parametrize("name", ALL)
def test_codes_against_codes_agree_with_fractions(name: str) -> None:
    f = FORMATS[name]

    @quick
    @given(pairs(f))
    def agree(sides: tuple[list[int], list[int]]) -> None:
        a, e = sides
        check(measure(coded(a, f), coded(e, f), allclose=SPECS), truth(a, e, f, expected_format=f, allclose=SPECS))

    agree()


def references(f: Format, code: int) -> st.SearchStrategy[float]:
    """Real values at, near and far from a code's value, on its rounding boundaries, beyond the range, and not finite."""
    v = value_of(code, f)
    v = v if math.isfinite(v) else f.max
    step = float(formats.ulp(v, f))
    near = st.floats(-2, 2).map(lambda x: v + x * step)
    half = st.sampled_from(
        [v, v + step / 2, v - step / 2, v - step / 4, math.nextafter(v + step / 2, 0), f.max + float(formats.ulp(f.max, f)) / 2]
    )
    return st.one_of(near, half, half.map(lambda x: -x), st.floats())


@st.composite
def judged(draw: st.DrawFn, f: Format) -> tuple[list[int], list[float]]:
    n = draw(st.integers(0, 10))
    a = draw(st.lists(codes_of(f), min_size=n, max_size=n))
    return a, [draw(references(f, c)) for c in a]


@pytest.mark.parametrize("policy", ["saturate", "inf", "nan"])
@pytest.mark.parametrize("name", ALL)
def test_codes_against_real_values_agree_with_fractions(name: str, policy: Any) -> None:
    f = FORMATS[name]
    if policy != "saturate" and f.kind == "int":
        policy = "saturate"
    if policy == "inf" and not f.has_inf:
        policy = f.overflow
    if policy == "nan" and not f.has_nan:
        policy = f.overflow

    @quick
    @given(judged(f), st.lists(st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-300, 1e300)), min_size=10, max_size=10))
    def agree(sides: tuple[list[int], list[float]], limits: list[float]) -> None:
        a, e = sides
        budget = limits[: len(a)]
        m = measure(coded(a, f), np.array(e), overflow=policy, allclose=SPECS, budget=np.array(budget))
        check(m, truth(a, e, f, policy=policy, allclose=SPECS, budget=budget))

    agree()


@pytest.mark.parametrize(
    ("one", "other"),
    [("float32", "bfloat16"), ("float16", "bfloat16"), ("float8_e4m3fn", "float8_e4m3fnuz"), ("float64", "float32"), ("int8", "float16")],
)
def test_codes_of_two_formats_are_compared_by_value(one: str, other: str) -> None:
    f, g = FORMATS[one], FORMATS[other]

    @quick
    @given(st.lists(st.tuples(codes_of(f), codes_of(g)), max_size=12))
    def agree(both: list[tuple[int, int]]) -> None:
        a, e = [c for c, _ in both], [c for _, c in both]
        check(measure(coded(a, f), coded(e, g), allclose=SPECS), truth(a, e, f, expected_format=g, allclose=SPECS))

    agree()


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float6_e3m2fn", "float4_e2m1fn", "int8"]
)
def test_every_code_against_every_boundary_has_the_inner_error_of_the_number_line(name: str) -> None:
    f = FORMATS[name]
    codes = list(range(1 << f.bits))
    values = sorted({abs(value_of(c, f)) for c in codes if math.isfinite(value_of(c, f))})
    middles = [(x + y) / 2 for x, y in pairwise(values)]
    reals = [*values, *middles, *(math.nextafter(x, 0) for x in middles), *(math.nextafter(x, math.inf) for x in middles), 2 * f.max]
    reals += [-x for x in reals]
    for real in reals[:: max(1, len(reals) // 40)]:
        m = measure(Coded(np.array(codes, f.storage), name), np.full(len(codes), real))
        check(m, truth(codes, [real] * len(codes), f))


def test_every_pair_of_e4m3_codes_is_as_far_apart_as_counting_says() -> None:
    f = FORMATS["float8_e4m3fn"]
    finite = [c for c in range(256) if not math.isnan(value_of(c, f))]
    order = sorted({value_of(c, f) for c in finite})
    place = {v: i for i, v in enumerate(order)}
    for e in finite[::5]:
        m = measure(Coded(np.array(finite, np.uint8), f.name), Coded(np.full(len(finite), e, np.uint8), f.name), top=300)
        found = {w.index[0]: abs(w.ulp) for w in m.worst_ulp}
        assert found == {
            i: abs(place[value_of(c, f)] - place[value_of(e, f)]) for i, c in enumerate(finite) if value_of(c, f) != value_of(e, f)
        }


def test_bfloat16_steps_are_counted_for_all_65536_codes() -> None:
    f = FORMATS["bfloat16"]
    codes = np.arange(65536, dtype=np.uint16)
    other = np.random.default_rng(0).permutation(codes)
    m = measure(Coded(codes, f.name), Coded(other, f.name), top=4)
    magnitude = lambda c: np.where(c >= 0x8000, -(c.astype(int) & 0x7FFF), c.astype(int))  # noqa: E731
    ok = ((codes & 0x7FFF) <= 0x7F80) & ((other & 0x7FFF) <= 0x7F80) & ((codes & 0x7FFF) != 0x7F80) & ((other & 0x7FFF) != 0x7F80)
    steps = np.abs(magnitude(codes) - magnitude(other))[ok]
    assert m.metrics["ulp_max"] == steps.max()
    assert m.metrics["ulp_mean"] == pytest.approx(steps.mean(), rel=1e-14)
    assert m.metrics["ulp_p50"] == np.sort(steps)[-(-len(steps) // 2) - 1]
    assert m.metrics["bias_ulp"] == pytest.approx((magnitude(codes) - magnitude(other))[ok].mean(), rel=1e-12)


def odd_and_plain(make: Any) -> tuple[Measured, Measured]:
    results = []
    for all_odd in (0, 1):
        meter, panel = make()
        meter._ip[slots.P_ALL_ODD] = all_odd
        meter.update(0, *panel)
        results.append(meter.result())
    return results[0], results[1]


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int8", "int32"])
@pytest.mark.parametrize("mode", ["codes", "reference", "values"])
def test_lane_wise_and_element_wise_ways_find_the_same(name: str, mode: str) -> None:
    f = FORMATS[name]
    rng = np.random.default_rng(5)
    shape = (150, 300)
    x = rng.standard_normal(shape) * (20 if f.kind == "int" else 1)
    x[rng.random(shape) < 0.1] = 0.0
    x[3, 5] = -0.0
    x[rng.random(shape) < 0.05] *= f.smallest_normal * (1 if f.name != "float64" else 2.0**700)
    a = formats.encode(x * (1 + 0.01 * rng.standard_normal(shape)), f)
    budget = np.abs(rng.standard_normal(shape)) * 1e-3

    def make() -> tuple[Meter, tuple[Any, ...]]:
        if mode == "codes":
            return Meter(shape, f, allclose=SPECS), (a, formats.encode(x, f), budget)
        if mode == "values":
            return Meter(shape, f, expected_format="float32", allclose=SPECS), (a, formats.encode(x, "float32"), budget)
        return Meter(shape, f, reference=True, allclose=SPECS), (a, x, budget)

    plain, odd = odd_and_plain(make)
    for key, value in odd.metrics.items():
        if isinstance(value, float) and math.isfinite(value):
            tolerance = 1e-12 if key in ("gain", "bias_sigma", "bias_ulp") else 1e-9 if key == "gain_se" else 1e-13
            assert plain.metrics[key] == pytest.approx(value, rel=tolerance, abs=1e-300), key
        elif key not in INDICES:
            assert plain.metrics[key] == value, key
    assert plain.classes == odd.classes
    assert plain.ulp_histogram == odd.ulp_histogram
    assert [w.error for w in plain.worst] == [w.error for w in odd.worst]
    assert [abs(w.ulp) for w in plain.worst_ulp] == [abs(w.ulp) for w in odd.worst_ulp]
    for one, other in ((plain.rows, odd.rows), (plain.cols, odd.cols), (plain.tiles, odd.tiles)):
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(one.error, other.error, rtol=1e-13)
        np.testing.assert_allclose(one.reference, other.reference, rtol=1e-13)
        np.testing.assert_array_equal(one.mismatches, other.mismatches)


def test_the_meter_rounds_as_the_formats_do() -> None:
    """The walk has its own rounding; no mismatch may remain against `encode`, which is tested on its own."""
    rng = np.random.default_rng(1)
    for f in FORMATS.values():
        x = rng.standard_normal((8, 300)) * 2.0 ** rng.integers(-20, 12, (8, 300))
        x = np.abs(x) if not f.signed else x
        a = formats.encode(x, f)
        m = measure(Coded(a, f.name), x)
        assert m.metrics["mismatch_count"] == 0, f.name
        assert m.metrics["inner_err_max"] == 0, f.name
        back = formats.decode(a, f)
        assert all(rounding(float(v), f, f.overflow) == w for v, w in zip(x.ravel()[:100], back.ravel()[:100], strict=True)), f.name
