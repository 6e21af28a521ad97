"""The metrics written down a second time: element by element, in exact fractions, slowly. Nothing here uses the walk.

`truth(actual, expected, format, ...)` takes Python lists and returns every metric of the registry that is a plain number.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from accuracy_eval.formats import FORMATS, Format

INF = math.inf
NUMBERS = (
    "rel_fro", "max_abs", "rmse", "mse", "cosine", "snr_db", "sym_diff", "max_scaled", "max_rel", "zero_reference", "ulp_max", "ulp_mean",
    "ulp_p50", "ulp_p99", "ulp_p999", "bias_ulp", "bias_sigma", "gain", "gain_se",
)  # fmt: skip


def value_of(code: int, f: Format) -> float:
    """Value of a code by the format's row, from the fields of the code."""
    if f.kind == "int":
        return float(code - (1 << f.bits)) if f.signed and code >> (f.bits - 1) else float(code)
    magnitude = code & f.magnitude_mask
    negative = f.signed and bool(code & f.sign_mask)
    e, m = magnitude >> f.fraction_bits, magnitude & ((1 << f.fraction_bits) - 1)
    if f.specials == "e8m0":
        return math.nan if e == 255 else 2.0 ** (e - 127)
    if f.specials == "fnuz" and negative and magnitude == 0:
        return math.nan
    if f.specials == "fn" and magnitude == f.magnitude_mask:
        return math.nan
    if f.specials == "ieee" and e == (1 << f.exponent_bits) - 1:
        return math.nan if m else (-INF if negative else INF)
    v = math.ldexp(m + (1 << f.fraction_bits) if e else m, max(e, 1) - f.bias - f.fraction_bits)
    return -v if negative else v


def position(code: int, f: Format) -> int:
    """Place of a code on the number line of its format."""
    if f.kind == "int":
        return int(value_of(code, f))
    magnitude = code & f.magnitude_mask
    return -magnitude if f.signed and code & f.sign_mask else magnitude


def spacing(x: float, f: Format) -> Fraction:
    """The format's distance between neighbours at |x|."""
    if f.kind == "int":
        return Fraction(1)
    emin = f.emin
    e = emin if x == 0 else max(math.frexp(x)[1] - 1, emin)
    return Fraction(2) ** (e - f.fraction_bits)


@cache
def line(name: str) -> list[float]:
    """Every finite value of a small format, in order."""
    f = FORMATS[name]
    if f.kind == "int":
        return [float(v) for v in range(-f.max_code - 1 if f.signed else 0, f.max_code + 1)]
    positive = [value_of(code, f) for code in range(f.max_code + 1)]
    return sorted({-v for v in positive} | set(positive)) if f.signed else positive


def rounding(x: float, f: Format, policy: str) -> float:
    """x rounded to the nearest value of f, ties to even, overflow by policy; NaN where f has no code for x."""
    if math.isnan(x):
        return x
    if f.kind == "int":
        low = -f.max_code - 1 if f.signed else 0
        return float(min(max(round(Fraction(x)) if math.isfinite(x) else (f.max_code if x > 0 else low), low), f.max_code))
    if not f.signed and x < 0:
        return math.nan
    top = Fraction(f.max)
    sign = math.copysign(1.0, x)
    if math.isfinite(x):
        exact = abs(Fraction(x))
        if not f.has_zero and exact < Fraction(f.smallest_normal):
            return f.smallest_normal if policy == "saturate" else math.nan
        step = spacing(abs(x), f)
        n = round(exact / step)  # Python rounds ties to even; the parity of the multiple is that of the code
        if not f.has_zero and exact / step == Fraction(3, 2):
            n = 2
        near = n * step
    else:
        near = top + 1
    if near > top:
        return {"saturate": f.max, "inf": INF, "nan": math.nan}[policy] * (sign if policy != "nan" else 1.0)
    return math.copysign(float(near), x)


def distance_to_code(a: float, e: float, f: Format, policy: str) -> Fraction | float:
    """Distance from e to the reals that round to a, found from the neighbours of a on the format's line. Small formats only."""
    r = rounding(e, f, policy)
    if r == a or (math.isnan(r) and math.isnan(a)):
        return Fraction(0)
    if math.isnan(e) or math.isnan(r):
        return INF
    values = line(f.name)
    beyond = Fraction(f.max) + spacing(f.max, f) / 2
    if math.isnan(a):
        return max(beyond - abs(Fraction(e)), Fraction(0)) if policy == "nan" and math.isfinite(e) else INF
    if math.isinf(a):
        if policy != "inf":
            return INF
        if math.isinf(e):
            return INF if e != a else Fraction(0)
        return max(beyond - Fraction(e) * (1 if a > 0 else -1), Fraction(0))
    if math.isinf(e):
        return INF
    i = bisect_left(values, a)
    low = (Fraction(values[i - 1]) + Fraction(a)) / 2 if i else None
    high = (Fraction(a) + Fraction(values[i + 1])) / 2 if i + 1 < len(values) else None
    if policy != "saturate":
        low = -beyond if low is None and f.signed else low
        high = beyond if high is None else high
    x = Fraction(e)
    if low is not None and x < low:
        return low - x
    if high is not None and x > high:
        return x - high
    return Fraction(0)


def kind_of(x: float) -> str:
    return "nan" if math.isnan(x) else "+inf" if x == INF else "-inf" if x == -INF else "finite"


def root(x: Fraction) -> float:
    if x == 0:
        return 0.0
    shift = (x.numerator.bit_length() - x.denominator.bit_length()) // 2
    scaled = x / Fraction(4) ** shift
    try:
        return math.ldexp(math.sqrt(scaled.numerator / scaled.denominator), shift)
    except OverflowError:
        return INF


def number(x: Fraction) -> float:
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return INF if x > 0 else -INF


def truth(
    actual: list[int], expected: list[Any], f: Format, *, expected_format: Format | None = None, policy: str | None = None,
    allclose: tuple[tuple[float, float], ...] = (), budget: list[float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every number. `expected` holds codes of expected_format, or real values where that is None."""
    policy = policy or f.overflow
    reference = expected_format is None
    a = [value_of(c, f) for c in actual]
    e = [float(x) for x in expected] if reference else [value_of(c, expected_format) for c in expected]
    r = [rounding(x, f, policy) for x in e] if reference else e
    n = len(a)
    negative_zero = f.has_negative_zero and (reference or expected_format.has_negative_zero)

    def zero_signs(i: int) -> bool:
        return negative_zero and a[i] == 0 and r[i] == 0 and math.copysign(1, a[i]) != math.copysign(1, r[i])

    both_nan = [math.isnan(x) and math.isnan(y) for x, y in zip(a, r, strict=True)]
    mismatch = [not both_nan[i] and (a[i] != r[i] or zero_signs(i)) for i in range(n)]
    other_class = [kind_of(a[i]) != kind_of(r[i]) for i in range(n)]
    ok = [i for i in range(n) if math.isfinite(a[i]) and math.isfinite(e[i])]
    x, y = {i: Fraction(a[i]) for i in ok}, {i: Fraction(e[i]) for i in ok}
    d = {i: x[i] - y[i] for i in ok}
    out: dict[str, Any] = {
        "count": n,
        "finite_pairs": len(ok),
        "mismatch_count": sum(mismatch),
        "mismatch_fraction": sum(mismatch) / n if n else None,
        "flips_up": sum(a[i] > r[i] for i in range(n)),
        "flips_down": sum(a[i] < r[i] for i in range(n)),
        "zero_sign_mismatch": sum(zero_signs(i) for i in range(n)),
        "nonfinite_mismatch": sum(other_class),
        "nonzero_where_expected_zero": sum(y[i] == 0 and x[i] != 0 for i in ok),
    }
    for rtol, atol in allclose:
        out[f"allclose_violations[rtol={rtol:g},atol={atol:g}]"] = sum(
            other_class[i] or (i in d and number(abs(d[i])) > atol + rtol * abs(e[i])) for i in range(n)
        )
    if f.bits <= 16:
        distance = [
            distance_to_code(a[i], e[i], f, policy)
            if reference
            else (abs(d[i]) if i in d else INF * other_class[i] if other_class[i] else 0)
            for i in range(n)
        ]
        if reference:
            out["inner_err_max"] = max((float(v) for v in distance), default=None)
        if budget:
            used = [
                0.0 if not v else INF if b == 0 or v == INF else 0.0 if b == INF else number(Fraction(v) / Fraction(b))
                for v, b in zip(distance, budget, strict=True)
            ]
            out["budget_max"] = max(used, default=None)
            out["over_budget"] = sum(float(v) > b for v, b in zip(distance, budget, strict=True))
    out.update(dict.fromkeys(NUMBERS))
    if not ok:
        return out
    dd, ee, aa = (sum((v[i] ** 2 for i in ok), Fraction(0)) for v in (d, y, x))
    ae = sum((x[i] * y[i] for i in ok), Fraction(0))
    m = len(ok)
    out["max_abs"] = number(max(abs(v) for v in d.values()))
    out["rmse"], out["mse"] = root(dd / m), number(dd / m)
    out["zero_reference"] = int(ee == 0)
    if ee != 0 or dd == 0:
        out["rel_fro"] = root(dd / ee) if dd else 0.0
        out["snr_db"] = 10 * (math.log10(ee.numerator * dd.denominator) - math.log10(ee.denominator * dd.numerator)) if dd else INF
    out["sym_diff"] = number(dd / (aa + ee)) if dd else 0.0
    out["cosine"] = 1.0 if not dd else 0.0 if not aa or not ee else root(ae * ae / (aa * ee)) * (1 if ae > 0 else -1)
    out["max_scaled"] = number(max(abs(d[i]) / max(1, abs(y[i])) for i in ok))
    out["max_rel"] = max((number(abs(d[i]) / abs(y[i])) for i in ok if y[i]), default=None)
    if ee:
        out["gain"] = number(ae / ee)
        if m > 1:
            out["gain_se"] = root((aa - ae * ae / ee) / ((m - 1) * ee))
    same = expected_format is not None and expected_format == f
    u = [Fraction(position(actual[i], f) - position(expected[i], f)) if same else d[i] / spacing(e[i], f) for i in ok]
    out["ulp_max"], out["ulp_mean"], out["bias_ulp"] = number(max(map(abs, u))), number(sum(map(abs, u)) / m), number(sum(u) / m)
    ordered = sorted(map(abs, u))
    for name, p in (("ulp_p50", Fraction(1, 2)), ("ulp_p99", Fraction(99, 100)), ("ulp_p999", Fraction(999, 1000))):
        out[name] = number(ordered[math.ceil(p * m) - 1])
    mean = sum(d.values()) / m
    spread = sum((v - mean) ** 2 for v in d.values())
    bias = sum((d[i] * (1 if y[i] > 0 else -1 if y[i] < 0 else 0) for i in ok), Fraction(0))
    if spread:
        out["bias_sigma"] = root(bias * bias / (spread * m)) * (1 if bias >= 0 else -1)
    out["_scale"] = {"gain": root(aa / ee) if ee else 0.0, "bias": root(dd / spread) if spread else 0.0, "ulp": out["ulp_mean"]}
    return out


def random_codes(rng: np.random.Generator, f: Format, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Uniform bit patterns of a format."""
    return (
        rng.integers(0, 1 << f.bits, shape, np.uint64, endpoint=False).astype(f.storage)
        if f.bits < 64
        else rng.integers(0, 1 << 63, shape, np.uint64) * np.uint64(2) + rng.integers(0, 2, shape, np.uint64)
    )
