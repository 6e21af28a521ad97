"""From amax to scale: every rule as a row, computed on float32 bits with no logarithm and no unstated rounding.

A rule sees amax as float32 (the largest magnitude of a block; NaN and Inf win over every number) and the largest code value
`top` of the element = m·2^emax, 1 <= m < 2 (e4m3fn 1.75·2^8, e4m3fnuz 1.875·2^7, e5m2 and its FNUZ form 1.75·2^15, e2m1 1.5·2^2).
It gives the scale codes and the float32 factor the data are multiplied (or divided) by.

Corner cases. amax NaN or Inf: E8M0 scale 0xFF, UE4M3 scale 0x7F; float32 rules follow IEEE arithmetic (NaN, or scale Inf), and the
block's values are NaN either way. amax 0: E8M0 exponent -127, byte 0; float32 rules see the floor. Subnormal amax: the exponent
clamps to -127 under every E8M0 rule, since all element formats have emax >= 2. The upper clamp, 127, is out of a float32's reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, decode, encode, get_format
from accuracy_eval.quantize.recipes import Encoding, Recipe, element_format, get_recipe

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
I32 = NDArray[np.int32]

E8M0_NAN = 0xFF
E8M0_LOW, E8M0_HIGH = -127, 127
F32_NAN = 0x7FC00000
UE4M3_MAX = 448.0


@dataclass(frozen=True)
class Target:
    """What amax is mapped to: the element format, the largest code value used, the recipe's floor, the global scale if any."""

    element: Format
    top: float
    floor: float = 0.0
    global_scale: float = 1.0

    @property
    def emax(self) -> int:
        """Exponent of the largest code value."""
        return math.frexp(self.top)[1] - 1

    @property
    def top_fraction(self) -> int:
        """Fraction field, as of float32, of the largest code value."""
        return int(np.float32(self.top).view(np.uint32)) & 0x7FFFFF


@dataclass(frozen=True)
class Scaling:
    """Scale codes, and what the data meet before they are rounded: x·factor, or x/factor where `divide`."""

    scale: Codes
    factor: F32
    divide: bool = False


@dataclass(frozen=True)
class ScaleRule:
    """One way from amax to scale. `apply(amax, target)` takes float32 values of any shape and returns codes of `scale_format`."""

    name: str
    scale_format: str
    definition: str
    apply: Callable[[F32, Target], Scaling]


def _bits(x: F32) -> U32:
    return np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(x.shape)


def _fields(amax: F32) -> tuple[I32, U32]:
    """Unbiased exponent and fraction field. Subnormals read as exponent -127: below every clamp, see the module docstring."""
    bits = _bits(amax)
    return (bits >> np.uint32(23)).astype(np.int32) - np.int32(127), bits & np.uint32(0x7FFFFF)


def _exponent_floor(amax: F32, t: Target) -> I32:
    return _fields(amax)[0] - np.int32(t.emax)


def _exponent_ceil(amax: F32, t: Target) -> I32:
    exponent, fraction = _fields(amax)
    return exponent + (fraction > 0) - np.int32(t.emax)


def _exponent_rceil(amax: F32, t: Target) -> I32:
    # least e with amax <= top * 2^e: the mantissas decide
    exponent, fraction = _fields(amax)
    return exponent + (fraction > t.top_fraction) - np.int32(t.emax)


def _exponent_even(amax: F32, t: Target) -> I32:
    half_ulp = np.uint32(1 << (22 - t.element.fraction_bits))
    return ((_bits(amax) + half_ulp) >> np.uint32(23)).astype(np.int32) - np.int32(127 + t.emax)


def _e8m0(exponent: Callable[[F32, Target], I32]) -> Callable[[F32, Target], Scaling]:
    def apply(amax: F32, t: Target) -> Scaling:
        finite = np.isfinite(amax)
        e = np.clip(exponent(amax, t), E8M0_LOW, E8M0_HIGH)
        scale = np.where(finite, e + 127, E8M0_NAN).astype(np.uint8)
        # 2^-e as float32; 2^-127 is subnormal, and exact
        inverse = np.where(e == E8M0_HIGH, 0x00400000, (127 - e) << 23)
        return Scaling(scale, np.where(finite, inverse, F32_NAN).astype(np.uint32).view(np.float32))

    return apply


def _float32_codes(x: F32) -> Codes:
    return np.where(np.isnan(x), np.uint32(F32_NAN), _bits(x))


def _max_over_amax(amax: F32, t: Target) -> Scaling:
    with np.errstate(all="ignore"):
        inverse: F32 = np.divide(np.float32(t.top), np.maximum(amax, np.float32(t.floor)), dtype=np.float32)
        return Scaling(_float32_codes(np.divide(np.float32(1.0), inverse, dtype=np.float32)), inverse)


def _amax_over_max(amax: F32, t: Target) -> Scaling:
    with np.errstate(all="ignore"):
        scale = np.maximum(amax / np.float32(t.top), np.float32(t.floor))
    return Scaling(_float32_codes(scale), scale, divide=True)


def _pow2(amax: F32, t: Target) -> Scaling:
    with np.errstate(all="ignore"):
        e = _exponent_rceil(np.maximum(amax, np.float32(t.floor)), t)
    finite = np.isfinite(amax)
    scale = np.where(finite, (e + 127) << 23, F32_NAN).astype(np.uint32)
    inverse = np.where(finite, (127 - e) << 23, F32_NAN).astype(np.uint32)
    return Scaling(scale, inverse.view(np.float32))


def _unit(amax: F32, t: Target) -> Scaling:
    one = np.ones(amax.shape, np.float32)
    return Scaling(_float32_codes(one), one)


def _nvfp4(amax: F32, t: Target) -> Scaling:
    # the quotient is rounded once: g·top is exact in float64, and a float64 quotient of 24 by 27 bits cannot land on an e4m3
    # midpoint unless it is one
    g = t.global_scale
    with np.errstate(all="ignore"):
        quotient = np.asarray(amax, np.float64) / (t.top * g)
    bad = ~np.isfinite(amax) | np.isnan(quotient)
    scale = encode(np.where(bad, np.nan, quotient), "float8_ue4m3", overflow="saturate")
    # the elements are rounded against the exact product of scale and global scale, by a kernel of their own
    return Scaling(scale, np.zeros(amax.shape, np.float32))


SCALE_RULES: dict[str, ScaleRule] = {
    r.name: r
    for r in (
        ScaleRule(
            "floor", "float8_e8m0fnu", "e = floor(log2 amax) - emax (OCP MX 1.0); the block maximum may saturate", _e8m0(_exponent_floor)
        ),
        ScaleRule("ceil", "float8_e8m0fnu", "e = ceil(log2 amax) - emax", _e8m0(_exponent_ceil)),
        ScaleRule("rceil", "float8_e8m0fnu", "e = ceil(log2(amax / max)): the least that never saturates", _e8m0(_exponent_rceil)),
        ScaleRule(
            "even",
            "float8_e8m0fnu",
            "e = exponent of (float32 bits of amax + half an element ulp) - emax; saturates where amax lies just under a power of two",
            _e8m0(_exponent_even),
        ),
        ScaleRule(
            "max_over_amax",
            "float32",
            "inv_scale = fl32(max / max(amax, floor)); scale = fl32(1 / inv_scale): two roundings; q = RNE(clamp(fl32(x · inv_scale)))",
            _max_over_amax,
        ),
        ScaleRule("amax_over_max", "float32", "scale = max(fl32(amax / max), floor); q = RNE(clamp(fl32(x / scale)))", _amax_over_max),
        ScaleRule("pow2", "float32", "scale = 2^ceil(log2(max(amax, floor) / max)) as float32; exact division", _pow2),
        ScaleRule("unit", "float32", "scale = 1", _unit),
        ScaleRule(
            "nvfp4",
            "float8_ue4m3",
            "g = fl32(amax of all / (448 · max)), 1 where that is 0; scale = RNE(amax / (max · g)); q = RNE(x / (scale · g)); saturating",
            _nvfp4,
        ),
    )
}


def under_scale(scale: Codes, rule: ScaleRule, ours: Scaling) -> Scaling:
    """What the data meet under these scale codes: where a code is the rule's own, the rule's factor; else the reciprocal of the scale,
    or the scale itself where the rule divides."""
    same = scale == ours.scale
    with np.errstate(all="ignore"):
        value = decode(scale, rule.scale_format).astype(np.float32)
        factor = value if ours.divide else np.divide(np.float32(1.0), value, dtype=np.float32)
    return Scaling(scale, np.where(same, ours.factor, factor).astype(np.float32), ours.divide)


def global_scale_of(amax: float, top: float) -> np.float32:
    """float32 global scale of a tensor with that largest magnitude: fl32(amax / (448·top)); 1 where that is 0; NaN for NaN, Inf."""
    if not math.isfinite(amax):
        return np.float32(np.nan)
    g = np.float32(float(amax) / (UE4M3_MAX * top))  # 24 bits over 12: the float64 quotient is no float32 midpoint unless exact
    return g if g > 0 else np.float32(1.0)


def target(recipe: Recipe, element: Format, *, global_scale: float = 1.0) -> Target:
    """What `recipe` maps amax to for that element."""
    return Target(element, recipe.largest(element), recipe.floor, global_scale)


def reference_scale(
    amax: Any,
    recipe: str | Recipe,
    element: str | Format | None = None,
    *,
    encoding: Encoding = "ocp",
    global_scale: float | None = None,
) -> Codes:
    """Scale codes that `recipe` gives blocks of these largest magnitudes, same shape, in the scale format of its rule.

    amax : numbers of any shape, brought to float32 (to nearest even) as a device would hold them; signs are ignored.
    global_scale : nvfp4 only, the value of the float32 global scale; None derives it from the largest of `amax`.
    """
    r = get_recipe(recipe)
    fmt = element_format(r, element, encoding=encoding)
    return _scales_of(_magnitudes(amax), SCALE_RULES[r.rule], target(r, fmt), global_scale)


def _magnitudes(amax: Any) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(np.asarray(amax).astype(np.float32))


def _scales_of(a: F32, rule: ScaleRule, t: Target, global_scale: float | None) -> Codes:
    if rule.scale_format == "float8_ue4m3":
        g = global_scale if global_scale is not None else float(global_scale_of(float(a.max(initial=0.0)), t.top))
        t = Target(t.element, t.top, t.floor, g)
    return rule.apply(a, t).scale


def scale_rule(
    amax: Any,
    scale_codes: Codes,
    element: str | Format,
    *,
    scale_format: str = "float8_e8m0fnu",
    floor: float = 1e-12,
    largest: float | None = None,
    global_scale: float | None = None,
) -> list[str]:
    """Names of the scale rules, in table order, that give exactly these scales for these block maxima; empty where none does.

    amax, scale_codes : same shape; codes of `scale_format`, whose rules alone are tried. `element` is a concrete format or a
    family (its OCP encoding); largest: the code value amax is mapped to, where that is not its largest. NaN codes match NaN codes
    whatever their payload. Few blocks often fit several rules.
    """
    a = _magnitudes(amax)
    codes = np.asarray(scale_codes)
    if a.shape != codes.shape:
        raise UsageError(f"scale_rule: amax has shape {a.shape}, scales {codes.shape}; give one amax per scale")
    fmt = get_format(element)
    sf = get_format(scale_format)
    if fmt.kind == "int" and sf.name != "float32":
        raise UsageError(f"scale_rule: {sf.name} scales need a float element, found {fmt.name}")
    found = decode(codes, sf)
    names = []
    for rule in SCALE_RULES.values():
        if rule.scale_format != sf.name or (rule.name == "pow2" and fmt.kind == "int"):
            continue
        wanted = decode(_scales_of(a, rule, Target(fmt, largest or fmt.max, floor), global_scale), sf)
        if np.array_equal(found, wanted, equal_nan=True):
            names.append(rule.name)
    return names


@dataclass(frozen=True)
class ExponentSteps:
    """How far scale exponents are apart. `steps` maps actual - expected, in powers of two, to a count, sorted by step; NaN apart."""

    steps: dict[int, int]
    nan_both: int = 0
    nan_actual: int = 0
    nan_expected: int = 0


def exponent_step_histogram(actual: Codes, expected: Codes, *, scale_format: str = "float8_e8m0fnu") -> ExponentSteps:
    """Histogram of floor(log2 actual) - floor(log2 expected) over scales of the same shape.

    E8M0: differences of the exponent bytes. Other formats: of the values' exponents, a zero standing one step under the smallest
    subnormal; Inf counts as NaN.
    """
    a, b = np.asarray(actual), np.asarray(expected)
    if a.shape != b.shape:
        raise UsageError(f"exponent_step_histogram: actual has shape {a.shape}, expected {b.shape}")
    sf = get_format(scale_format)
    (ea, fa), (eb, fb) = _exponents(a, sf), _exponents(b, sf)
    steps, counts = np.unique((ea - eb)[fa & fb], return_counts=True)
    return ExponentSteps(
        dict(zip(steps.tolist(), counts.tolist(), strict=True)),
        nan_both=int((~fa & ~fb).sum()),
        nan_actual=int((~fa & fb).sum()),
        nan_expected=int((fa & ~fb).sum()),
    )


def _exponents(codes: Codes, sf: Format) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    values = np.abs(decode(codes, sf))
    finite = np.isfinite(values)
    exponent = np.frexp(np.where(finite, values, 1.0))[1].astype(np.int64) - 1
    zero = finite & (values == 0)
    return np.where(zero, sf.emin - sf.fraction_bits - 1, exponent), finite
