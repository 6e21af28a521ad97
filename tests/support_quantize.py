"""A second quantiser in plain numpy: float64 values, logarithms by frexp, elements by search in tables of ml_dtypes values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

TABLES = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float6_e2m3fn": ml_dtypes.float6_e2m3fn,
    "float6_e3m2fn": ml_dtypes.float6_e3m2fn,
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
}
LARGEST = {
    "float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0,
    "float6_e2m3fn": 7.5, "float6_e3m2fn": 28.0, "float4_e2m1fn": 6.0, "int8": 127.0,
}  # fmt: skip
EMAX = {
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 7, "float8_e5m2": 15, "float8_e5m2fnuz": 15,
    "float6_e2m3fn": 2, "float6_e3m2fn": 4, "float4_e2m1fn": 2,
}  # fmt: skip
FRACTION_BITS = {
    "float8_e4m3fn": 3, "float8_e4m3fnuz": 3, "float8_e5m2": 2, "float8_e5m2fnuz": 2,
    "float6_e2m3fn": 3, "float6_e3m2fn": 2, "float4_e2m1fn": 1,
}  # fmt: skip
NAN = {"float8_e4m3fn": 0x7F, "float8_e4m3fnuz": 0x80, "float8_e5m2": 0x7E, "float8_e5m2fnuz": 0x80}
SIGN = dict.fromkeys(NAN, 0x80) | {"float6_e2m3fn": 0x20, "float6_e3m2fn": 0x20, "float4_e2m1fn": 0x08}


def bf16(values):
    """bfloat16 codes of values, rounded by ml_dtypes."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def values_of(codes, fmt):
    """float32 values of operand codes."""
    if fmt == "bfloat16":
        return codes.view(ml_dtypes.bfloat16).astype(np.float32)
    return codes.view({"float16": np.float16, "float32": np.float32}[fmt]).astype(np.float32)


@cache
def magnitudes(element):
    """Values of the codes 0, 1, 2, … up to the largest finite one, as float64."""
    dtype = TABLES[element]
    values = np.arange(SIGN[element], dtype=np.uint8).view(dtype).astype(np.float64)
    return values[np.isfinite(values)]


def round_to_element(x, element, top):
    """Codes of float64 x clamped to ±top: nearest value of the table, ties to the even code, NaN apart."""
    if element == "int8":
        return np.where(np.isnan(x), 0, np.rint(np.clip(x, -top, top))).astype(np.int8).view(np.uint8)
    table = magnitudes(element)
    middle = (table[1:] + table[:-1]) / 2
    magnitude = np.minimum(np.abs(x), top)
    code = np.searchsorted(middle, magnitude, side="left")
    tie = (code < len(middle)) & (magnitude == middle[np.minimum(code, len(middle) - 1)])
    code = code + (tie & (code % 2 == 1))
    negative = np.signbit(x) & ~(element.endswith("fnuz") & (code == 0))
    return np.where(np.isnan(x), NAN.get(element, 0), code | np.where(negative, SIGN[element], 0)).astype(np.uint8)


def exponent(amax, rule, element, top=None):
    """Exponent of the power-of-two scale of each amax (float64, finite, positive), before any clamp."""
    e = np.frexp(amax)[1] - 1
    emax = EMAX[element]
    if rule == "floor":
        return e - emax
    if rule == "ceil":
        return e + (amax > np.ldexp(1.0, e)) - emax
    if rule == "even":
        half_ulp = np.ldexp(1.0, e - FRACTION_BITS[element] - 1)
        return np.frexp(amax + half_ulp)[1] - 1 - emax
    assert rule in ("rceil", "pow2")
    top = top or LARGEST[element]
    return e - emax + (amax > np.ldexp(top, e - emax))


@dataclass
class Plain:
    """What the plain quantiser gives: element codes, and scale values on the grid of blocks."""

    codes: np.ndarray
    scale: np.ndarray
    global_scale: float = 1.0


def plain_quantise(x, block, rule, element, *, floor=0.0, top=None):
    """x [rows, K] float32; block (rows, elements), 0 the whole extent; K and rows at least 1."""
    top = top or LARGEST[element]
    rows, length = x.shape
    br, bk = block[0] or rows, block[1] or length
    row_of, column_of = np.arange(rows) // br, np.arange(length) // bk
    grid = (row_of[-1] + 1, column_of[-1] + 1)
    amax = np.zeros(grid, np.float64)
    with np.errstate(all="ignore"):
        for i, j in np.ndindex(*grid):
            amax[i, j] = np.max(np.abs(x[i * br : (i + 1) * br, j * bk : (j + 1) * bk]))
        spread = np.ix_(row_of, column_of)
        finite = np.isfinite(amax)
        f32 = np.float32
        if rule == "max_over_amax":
            inverse = f32(top) / np.maximum(amax.astype(f32), f32(floor))
            return Plain(round_to_element((x * inverse[spread]).astype(f32).astype(np.float64), element, top), f32(1) / inverse)
        if rule == "amax_over_max":
            scale = np.maximum(amax.astype(f32) / f32(top), f32(floor))
            return Plain(round_to_element((x / scale[spread]).astype(f32).astype(np.float64), element, top), scale)
        if rule == "unit":
            return Plain(round_to_element(x.astype(np.float64), element, top), np.ones(grid, f32))
        if rule == "nvfp4":
            largest = amax.max()
            g = float(f32(largest / 2688)) if np.isfinite(largest) else math.nan
            g = 1.0 if g == 0 else g
            code = round_to_element(np.where(finite, amax / (6 * g), np.nan), "float8_e4m3fn", 448.0)
            scale = code.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
            full = np.where(scale == 0, np.inf, scale * g)[spread]
            return Plain(round_to_element(x.astype(np.float64) / full, element, top), scale, g)
        low = floor if rule == "pow2" else 2.0**-149
        e = exponent(np.where(finite, np.maximum(amax, np.float64(f32(low))), 1.0), rule, element, top)
        if rule != "pow2":
            e = np.clip(e, -127, 127)
        scale = np.where(finite, np.ldexp(1.0, e), np.nan)
        return Plain(round_to_element(x.astype(np.float64) / scale[spread], element, top), scale)


UNIT = 200  # binary places: every breakpoint of every rule is then an integer


def integer_exponent(amax: float, rule: str, element: str) -> int:
    """The same exponents in integer arithmetic (amax positive, a float32 value), clamped to E8M0."""
    n, d = float(amax).as_integer_ratio()
    whole = (n << UNIT) // d
    assert whole * d == n << UNIT
    e = whole.bit_length() - 1 - UNIT
    emax = EMAX[element]
    if rule == "floor":
        result = e - emax
    elif rule == "ceil":
        result = e + (whole != 1 << (e + UNIT)) - emax
    elif rule == "rceil":
        result = e - emax + (2 * whole > int(2 * LARGEST[element]) << (e - emax + UNIT))
    else:
        result = e + (whole + (1 << (e - FRACTION_BITS[element] - 1 + UNIT)) >= 1 << (e + 1 + UNIT)) - emax
    return max(-127, min(127, result))
