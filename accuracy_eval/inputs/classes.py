"""The input classes: what operand values look like. `INPUT_CLASSES` is the one place to add one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, decode, encode, ordinals
from accuracy_eval.inputs.draw import Draw
from accuracy_eval.inputs.philox import WORD_BITS
from accuracy_eval.inputs.rules import INT_SCALE, ValueRule

OUTLIERS_OF_65536 = 66  # 1.007e-3 of the elements
PARTNER_FACTOR = -(1 - 2.0**-7)
SPECIALS_OF_65536 = 1792  # seven kinds, each 256 of 65,536
CODE_STEP_32, CODE_STEP_64 = 0x9E3779B1, 0x9E3779B97F4A7C15  # odd, near 2^w / golden ratio: any run of codes is spread evenly


@dataclass(frozen=True)
class InputClass:
    """One class.

    sentence   what the values look like
    rule       the value rule, where the class is one (such classes are also made on a GPU)
    build      else the function that makes the codes
    by_codes   defined by bit patterns of the format, so formats hold different values; else every format of a word width rounds
               the same values
    finite     False: may hold NaN or Inf
    """

    name: str
    sentence: str
    rule: ValueRule | None = None
    build: Callable[[Draw], Codes] | None = None
    by_codes: bool = False
    finite: bool = True


def _outlier_variants() -> NDArray[np.uint8]:
    return (np.arange(1 << 16) < OUTLIERS_OF_65536).astype(np.uint8)


@cache
def _trailing_zeros() -> NDArray[np.uint8]:
    u = np.arange(1 << 16)
    u[0] = 1 << 15
    counts: NDArray[np.uint8] = np.bitwise_count((u & -u) - 1)
    return counts


def _huge(fmt: Format) -> tuple[float, ...]:
    return (2.0 ** (12 if fmt.bits <= 16 else 40 if fmt.bits <= 32 else 300),)


def _constant(value: float, fmt: Format) -> int:
    """Code of one value, under the rounding and integer scale of value rules."""
    return int(encode(np.array([value * (INT_SCALE if fmt.kind == "int" else 1.0)]), fmt)[0])


def _spike(draw: Draw) -> Codes:
    out = np.full(draw.size, _constant(0.5, draw.fmt), draw.fmt.storage)
    if draw.size:
        out[draw.key.h3 % draw.size] = _constant(100.0, draw.fmt)
    return out.reshape(draw.shape)


def _negative_zero(draw: Draw) -> Codes:
    code = draw.fmt.sign_mask if draw.fmt.has_negative_zero else encode(np.zeros(1), draw.fmt)[0]
    return np.full(draw.shape, code, draw.fmt.storage)


def _cancellation(draw: Draw) -> Codes:
    codes = draw.valued(ValueRule())
    if not draw.shape:
        return codes
    axis = draw.axes.index("k") if "k" in draw.axes else codes.ndim - 1
    half = codes.shape[axis] // 2
    partners = codes if draw.operand == "a" else draw.valued(ValueRule(factors=(PARTNER_FACTOR,)))
    view, source = np.moveaxis(codes, axis, 0), np.moveaxis(partners, axis, 0)
    view[half : 2 * half] = source[:half]
    return codes


def _subnormal(draw: Draw) -> Codes:
    f = draw.fmt
    if f.kind == "int":
        raise UsageError(f"input class subnormal: {f.name} is an integer format and has no subnormals; use a float format")
    width = WORD_BITS[draw.stream]

    def piece(first: int, count: int) -> Codes:
        w = draw.words(first, count).astype(np.uint64)
        fraction = w & np.uint64((1 << f.fraction_bits) - 1)
        sign = np.where(w >> np.uint64(width - 1) != 0, np.uint64(f.sign_mask), np.uint64(0))
        code = np.where(fraction == 0, np.uint64(0), fraction | sign) if f.specials == "fnuz" else fraction | sign
        return code.astype(f.storage)

    return draw.fill(piece)


def special_codes(fmt: Format) -> Codes:
    """Codes [7] of class specials by kind: NaN, +Inf, -Inf, +0, -0, largest finite, smallest positive.

    Without Inf the NaN stands in; without NaN ±largest (int: the two ends); without -0 the zero.
    """
    f = fmt
    lowest = 1 << (f.bits - 1) if f.kind == "int" and f.signed else 0 if f.kind == "int" else f.max_code | f.sign_mask
    nan = f.nan_code if f.has_nan else f.max_code
    plus = f.inf_code if f.has_inf else nan
    minus = f.inf_code | f.sign_mask if f.has_inf else f.nan_code if f.has_nan else lowest
    return np.array([nan, plus, minus, 0, f.sign_mask if f.has_negative_zero else 0, f.max_code, 1], f.storage)


def _specials(draw: Draw) -> Codes:
    codes = draw.valued(ValueRule())
    flat, kinds = codes.reshape(-1), special_codes(draw.fmt)
    for first, count in draw.pieces():
        chosen = draw.selection(first, count)
        at = np.flatnonzero(chosen < SPECIALS_OF_65536)
        flat[first + at] = kinds[chosen[at] >> np.uint16(8)]
    return codes


def _codes(draw: Draw) -> Codes:
    f = draw.fmt
    step = 1 if f.bits <= 16 else CODE_STEP_32 if f.bits <= 32 else CODE_STEP_64

    def piece(first: int, count: int) -> Codes:
        i = np.arange(first, first + count, dtype=np.uint64)
        return ((i * np.uint64(step)) & np.uint64((1 << f.bits) - 1)).astype(f.storage)

    return draw.fill(piece)


def domain_ordinals(domain: tuple[float, float] | None, fmt: Format) -> tuple[int, int]:
    """Ordinals of the smallest and largest finite value of `fmt` inside [lo, hi]; None is the whole finite line."""
    lo, hi = (-math.inf, math.inf) if domain is None else (float(domain[0]), float(domain[1]))
    if math.isnan(lo) or math.isnan(hi):
        raise UsageError(f"domain ({lo}, {hi}): NaN bounds nothing; give two numbers lo <= hi")
    ends = []
    for bound, inward in ((lo, 1), (hi, -1)):
        code = encode(np.array([bound]), fmt, overflow="saturate")
        outside = (bound - float(decode(code, fmt)[0])) * inward > 0  # rounded out of the domain: one step back in
        ends.append(int(ordinals(code, fmt)[0]) + (inward if outside else 0))
    top = fmt.max_code
    bottom = -top - 1 if fmt.kind == "int" and fmt.signed else 0 if not fmt.signed else -top
    if ends[0] > ends[1] or ends[0] > top or ends[1] < bottom:
        raise UsageError(f"domain ({lo}, {hi}) holds no finite value of {fmt.name}; widen it or swap its ends")
    return ends[0], ends[1]


def from_ordinals(position: NDArray[np.int64], fmt: Format) -> Codes:
    """Codes at positions of the format's number line (0 is +0): the inverse of `formats.ordinals`."""
    if fmt.kind == "int":
        return position.astype(fmt.storage)
    magnitude = np.abs(position).astype(np.uint64)
    return np.where(position < 0, magnitude | np.uint64(fmt.sign_mask), magnitude).astype(fmt.storage)


def _wide(draw: Draw) -> Codes:
    low, high = domain_ordinals(draw.domain, draw.fmt)
    span = high - low + 1
    width = WORD_BITS[draw.stream]

    def piece(first: int, count: int) -> Codes:
        u = draw.words(first, count).astype(np.uint64)
        step = high_product(u, span) if width == 64 else (u * np.uint64(span)) >> np.uint64(width)
        position = (np.array(low, np.int64).view(np.uint64) + step).view(np.int64)
        return from_ordinals(position, draw.fmt)

    return draw.fill(piece)


def high_product(u: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
    """floor(u · factor / 2^64) by halves, factor < 2^64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    f0, f1 = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    u0, u1 = u & low, u >> half
    middle = u1 * f0 + ((u0 * f0) >> half)
    product: NDArray[np.uint64] = u1 * f1 + (middle >> half) + ((u0 * f1 + (middle & low)) >> half)
    return product


INPUT_CLASSES: dict[str, InputClass] = {
    c.name: c
    for c in (
        InputClass("normal", "Standard normal by an inverse-CDF table.", ValueRule()),
        InputClass("uniform", "Uniform on (-1, 1); integer formats: over all codes.", ValueRule("uniform", int_scale="full")),
        InputClass("integers", "Small integers, uniform on -8 … 8.", ValueRule("integers", int_scale=1.0)),
        InputClass("absmax", "Normal divided by its largest magnitude, hence within [-1, 1].", ValueRule(absmax=True, int_scale="max")),
        InputClass(
            "outlier",
            "Normal, one element in about 1,000 multiplied by 100.",
            ValueRule(factors=(1.0, 100.0), by="selection", variants=_outlier_variants),
        ),
        InputClass("spike", "0.5 everywhere but for a single 100.", build=_spike),
        InputClass(
            "cancellation",
            "Normal, the second half of the contraction nearly cancelling the first: C is small against Σ|a·b|.",
            build=_cancellation,
        ),
        InputClass(
            "tiny",
            "Normal times 2^-20 … 2^-40 (1e-6 … 1e-12), by row.",
            ValueRule(factors=tuple(2.0 ** -(20 + i) for i in range(21)), by="row"),
        ),
        InputClass("huge", "Normal times 2^12, float32: 2^40, float64: 2^300.", ValueRule(factors=_huge)),
        InputClass("zero-rows", "Normal, every fourth row zero.", ValueRule(factors=(0.0, 1.0, 1.0, 1.0), by="row")),
        InputClass(
            "heavy-tailed",
            "Normal times 2^t, t geometric from 0 to 15: magnitudes with a tail like 1/x.",
            ValueRule(factors=tuple(2.0**i for i in range(16)), by="selection", variants=_trailing_zeros),
        ),
        InputClass("relu", "Normal, negative values zero.", ValueRule(relu=True)),
        InputClass("subnormal", "Subnormals and zeros of both signs, fractions uniform.", build=_subnormal, by_codes=True),
        InputClass(
            "specials",
            "Normal, with NaN, ±Inf, ±0, the largest finite and the smallest positive value placed, each in 1 of 256 elements.",
            build=_specials,
            finite=False,
        ),
        InputClass(
            "codes", "Every bit pattern in turn; beyond 16 bits in even steps through all.", build=_codes, by_codes=True, finite=False
        ),
        InputClass("wide", "Uniform over the format's numbers within a domain: every exponent equally often.", build=_wide, by_codes=True),
        InputClass("negative-zero", "-0 everywhere; +0 in formats without -0.", build=_negative_zero),
        InputClass("misaligned", "Normal, in a view that starts 3 elements into its buffer.", ValueRule()),
        InputClass("strided", "Normal, in a view with gaps between rows.", ValueRule()),
    )
}
