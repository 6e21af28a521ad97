"""Operands as the kernels want them: values and exponents, k-major, with a last row of zeros that padding points at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath.lanes import NONE
from accuracy_eval.datapath.rules import Rule
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, Values, decode, decode_table, encode, get_format, round_to

PRES = ("", "tf32rne", "tf32rz", "fp16", "mx")
BLOCK_SCALES = {32: "float8_e8m0fnu", 16: "float8_ue4m3"}  # scales that instructions take themselves, by the k's that share one
GROUP = 16  # products the rule of mxf4 and nvf4 sums exactly before it scales them


@dataclass(frozen=True)
class Plane:
    """One operand.

    values     float64 [K + 1, n]; subnormals made 0 where the rule does not read them
    exponents  float32 [K + 1, n]: floor(log2|x|), at least the format's emin; NONE for zeros
    scale      significands and exponents of block scales, [K / 16, n] float64 and int64, for units that scale groups inside a block
    """

    values: Values
    exponents: NDArray[np.float32]
    scale: tuple[Values, NDArray[np.int64]] | None = None
    flushed: bool = False

    @property
    def length(self) -> int:
        """K."""
        return int(self.values.shape[0]) - 1

    @property
    def count(self) -> int:
        """Rows of A, or columns of B."""
        return int(self.values.shape[1])

    @cached_property
    def single(self) -> NDArray[np.float32]:
        """Values as float32, [K + 1, n]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.values.astype(np.float32)

    @cached_property
    def whole(self) -> NDArray[np.int64]:
        """Exponents as int64."""
        return self.exponents.astype(np.int64)

    def take(self, columns: NDArray[np.int64]) -> Plane:
        """The plane of some of the rows of A (columns of B)."""
        scale = None if self.scale is None else (self.scale[0][:, columns], self.scale[1][:, columns])
        return Plane(np.ascontiguousarray(self.values[:, columns]), np.ascontiguousarray(self.exponents[:, columns]), scale, self.flushed)


def plane(codes: Codes, fmt: str | Format, *, rule: Rule | None = None, pre: str = "", shift: NDArray[np.int64] | None = None) -> Plane:
    """The plane of operand rows.

    codes  [n, K], codes of `fmt`
    rule   whose reading of subnormals to follow: CDNA2 takes float16 and bfloat16 ones as +0, RDNA3 bfloat16 ones as zeros
    pre    "tf32rne": float32 rounded to nearest even with 10 fraction bits first · "tf32rz": cut to 10 bits · "fp16": converted to
           float16, which renormalises fp8 subnormals
    shift  [n, K] exponents of power-of-two block scales, added to each operand's; −32768 marks a NaN scale
    """
    f = get_format(fmt)
    c = np.ascontiguousarray(np.asarray(codes).T)
    if pre in ("tf32rne", "tf32rz") and f.name == "float32":
        c, f = tf32_codes(c, nearest=pre == "tf32rne"), get_format("tfloat32")
    if f.bits <= 16 and f.kind == "float":
        index = c & ((1 << f.bits) - 1)
        values, exponents = decode_table(f.name)[index], _exponent_table(f.name, pre)[index]
    else:
        values = decode(c, f)
        exponents = exponents_of(values, f.emin)
    if shift is not None:
        moved = shift.T.astype(np.int64)
        bad = moved == -32768
        with np.errstate(over="ignore"):
            values = np.where(bad, np.nan, np.ldexp(values, np.where(bad, 0, moved)))
        exponents = np.where(exponents == NONE, exponents, exponents + moved.astype(np.float32))
    kind = "" if rule is None else rule.kind
    flushed = (kind == "flush" and f.name in ("float16", "bfloat16")) or (kind == "rdna3" and f.name == "bfloat16")
    if flushed:
        small = (values != 0) & (np.abs(values) < f.smallest_normal)
        values = np.where(small, 0.0 if kind == "flush" else np.copysign(0.0, values), values)
        exponents = np.where(small, np.float32(NONE), exponents)
    return Plane(_padded(values, 0.0), _padded(exponents, NONE), flushed=flushed)


def scaled_plane(codes: Codes, fmt: str | Format, rule: Rule, scale: Codes, scale_format: str, width: int) -> Plane:
    """The plane of operand rows [n, K] with the block scales [n, K / width] that an instruction takes itself."""
    k = codes.shape[1]
    significand, exponent = scale_parts(scale, scale_format)
    if rule.kind == "gst":
        groups = -(-k // GROUP)
        s, e = np.repeat(significand, width // GROUP, axis=1), np.repeat(exponent, width // GROUP, axis=1)
        return replace(plane(codes, fmt), scale=(np.ascontiguousarray(s[:, :groups].T), np.ascontiguousarray(e[:, :groups].T)))
    shift = np.repeat(np.where(np.isnan(significand), -32768, exponent), width, axis=1)[:, :k]
    return plane(codes, fmt, shift=shift)


def factored(scales: Values, fmt: str) -> tuple[Values, float]:
    """Scales as values of `fmt` times one float32 factor: 1 where they are such values already, or cannot be written so.

    The largest values the format has are tried for the largest scale first, as recipes choose the factor.
    """
    known = scales[np.isfinite(scales)]
    if not known.size or _held(known, fmt) or not known.max() > 0:
        return scales, 1.0
    held = decode(np.arange(1 << get_format(fmt).bits, dtype=np.uint8), fmt)
    for largest in np.unique(held[np.isfinite(held) & (held > 0)])[::-1]:
        factor = float(known.max() / largest)
        if np.float32(factor) == factor and _held(known / factor, fmt):
            return scales / factor, factor
    return scales, 1.0


def _held(values: Values, fmt: str) -> bool:
    """Whether every value is one of the format's."""
    return np.array_equal(round_to(values, fmt), values)


def _padded(x: Any, fill: float) -> NDArray[Any]:
    out = np.full((x.shape[0] + 1, x.shape[1]), fill, x.dtype)
    out[:-1] = x
    return out


@cache
def _exponent_table(name: str, pre: str) -> NDArray[np.float32]:
    emin = get_format("float16").emin if pre == "fp16" else get_format(name).emin
    table = exponents_of(decode_table(name), emin)
    table.flags.writeable = False
    return table


def exponents_of(values: Values, emin: int) -> NDArray[np.float32]:
    """floor(log2|x|), at least emin, as float32; NONE for zeros; 1024 for infinities and NaN."""
    finite = np.isfinite(values)
    e = np.frexp(np.where(finite, values, 1.0))[1] - 1
    return np.where(values == 0, NONE, np.where(finite, np.maximum(e, emin), 1024)).astype(np.float32)


def tf32_codes(codes: Codes, *, nearest: bool) -> Codes:
    """float32 codes to tfloat32 codes (their upper 19 bits): rounded to nearest even, or cut. NaN stays NaN."""
    u = np.asarray(codes, np.uint32)
    if nearest:
        nan = (u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        rounded = (u + np.uint32(0xFFF) + ((u >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
        return np.where(nan, (u >> np.uint32(13)) | np.uint32(0x200), rounded).astype(np.uint32)
    return (u >> np.uint32(13)) | np.where((u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), np.uint32(0x200), np.uint32(0))


def as_codes(array: Any, fmt: str | Format) -> Codes:
    """Codes of an argument: unsigned or signed integers are codes, ml_dtypes and numpy floats of that format are reinterpreted,
    other floats are rounded to nearest (for tfloat32 cut to 10 fraction bits, as the instructions do).
    """
    f = get_format(fmt)
    x = np.asarray(array)
    if f.kind == "float" and (x.dtype.name == f.name or (f.name == "float8_e8m0fnu" and x.dtype.name == f.name)):
        return np.ascontiguousarray(x).view(f.storage)
    if x.dtype.kind in "iu" and f.kind == "float":
        return x.astype(f.storage)
    if x.dtype.kind not in "fiub":
        x = x.astype(np.float64)
    if f.name == "tfloat32":
        with np.errstate(over="ignore", invalid="ignore"):
            single = np.asarray(x, np.float32)
        if not np.array_equal(single.astype(np.float64), np.asarray(x, np.float64), equal_nan=True):
            raise UsageError("tfloat32 operands are float32 values; round them to float32 first")
        return tf32_codes(single.view(np.uint32), nearest=False)
    return encode(np.asarray(x, np.float64), f)


def scale_parts(codes: Codes, fmt: str | Format) -> tuple[Values, NDArray[np.int64]]:
    """Significand and exponent of block scales: s·2^e, 1 ≤ s < 2 but for zeros and subnormals; NaN significand for NaN codes."""
    f = get_format(fmt)
    values = decode(np.asarray(codes), f)
    emin = f.emin
    finite = np.isfinite(values)
    e = np.where(finite & (values != 0), np.maximum(np.frexp(np.where(finite, values, 1.0))[1] - 1, emin), 0).astype(np.int64)
    return np.where(finite, np.ldexp(np.where(finite, values, 0.0), -e), np.nan), e


def order_of(length: int, L: int, ks: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """k in the given (else increasing) order, padded with `length` (the row of zeros) to a multiple of L."""
    order = np.arange(length, dtype=np.int64) if ks is None else np.asarray(ks, np.int64)
    missing = -len(order) % L
    return np.concatenate([order, np.full(missing, length, np.int64)]) if missing else order
