"""Compiled loops of the quantiser: block maxima, and one rounding from the scaled float32 value to element codes.

All take the operand as a [rows, K] matrix of codes: uint16 bfloat16 codes (`shift` 16) or uint32 float32 codes (`shift` 0).
Inner loops run over slices and 32-bit lanes, without branches, which is what lets LLVM vectorise them: every intermediate is
cut back to uint32 by `U32`, and every shift count is masked to 5 bits, else it works in 64-bit lanes at half the rate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Overflow, encode
from accuracy_eval.jit import kernel

F32 = np.float32
U32 = np.uint32
ABS = np.uint32(0x7FFFFFFF)
INF = np.uint32(0x7F800000)
TO_INTEGER = np.float32(12582912.0)  # 1.5·2^23: adding it rounds to an integer, ties to even, and leaves it in the low bits


class Element(NamedTuple):
    """Constants of an element format, as float32 bits where they are compared with float32 bits."""

    fraction_bits: Any
    cut: Any  # float32 fraction bits dropped
    nearest: Any  # half of the dropped part, less one
    offset: Any  # difference of the exponent biases, in place
    largest: Any  # largest finite code used; what rounds beyond it becomes `beyond`
    beyond: Any
    min_normal: Any
    magic: Any  # float32 whose ulp is the element's smallest subnormal
    sign_shift: Any
    lowest_signed: Any  # magnitude code from which a sign is kept: 1 where there is no -0
    nan: Any


def element_constants(fmt: Format, top: float, overflow: Overflow) -> Element:
    """Constants for a float format of at most 8 bits whose largest value used is `top`; formats without NaN write code 0 for it.

    overflow  what rounds beyond `top`, and an infinity, becomes: "saturate" `top` · "inf" · "nan"
    """
    p = fmt.fraction_bits
    largest = int(encode(np.array([top]), fmt)[0])
    beyond = largest if overflow == "saturate" else fmt.inf_code if overflow == "inf" else fmt.nan_code
    return Element(
        U32(p),
        U32(23 - p),
        U32((1 << (22 - p)) - 1),
        U32((127 - fmt.bias) << p),
        U32(largest),
        U32(beyond),
        F32(fmt.smallest_normal).view(U32),
        F32(fmt.smallest_subnormal * 2.0**23),
        U32(fmt.magnitude_bits),
        U32(0 if fmt.has_negative_zero else 1),
        U32(fmt.nan_code if fmt.has_nan else 0),
    )


@kernel
def block_amax(codes: Codes, block_rows: int, block: int, shift: Any, out: NDArray[np.uint32]) -> None:
    """Largest magnitude of each block as float32 bits, into out [ceil(rows / block_rows), ceil(K / block)], zeros on entry.

    NaN and Inf have the largest magnitudes as codes, so they win.
    """
    rows, length = codes.shape
    shift = U32(shift) & U32(31)
    low_bits = ABS >> shift
    for r in range(rows):
        target = out[r // block_rows]
        for b in range(target.size):
            part = codes[r, b * block : min(length, (b + 1) * block)]
            largest = U32(0)
            for i in range(part.size):
                largest = max(largest, U32(U32(part[i]) & low_bits))
            target[b] = max(target[b], U32(largest << shift))


@kernel
def encode_blocks(
    codes: Codes, factor: NDArray[np.float32], block_rows: int, block: int, divide: bool, shift: Any, element: Element, out: Codes
) -> None:
    """out = RNE(fl32(x · factor)) in the element format, or x / factor where `divide`; out [rows, K] uint8.

    factor [ceil(rows / block_rows), ceil(K / block)]. Normal results round on the float32 bits, subnormal ones by one float32
    addition to a number whose ulp is the element's smallest subnormal.
    """
    rows, length = codes.shape
    shift = U32(shift) & U32(31)
    cut = U32(element.cut) & U32(31)
    sign_shift = U32(element.sign_shift) & U32(31)
    nearest, offset = U32(element.nearest), U32(element.offset)
    largest, beyond = U32(element.largest), U32(element.beyond)
    min_normal, magic = U32(element.min_normal), F32(element.magic)
    lowest_signed, nan = U32(element.lowest_signed), U32(element.nan)
    magic_bits = magic.view(U32)
    for r in range(rows):
        scales = factor[r // block_rows]
        for b in range(scales.size):
            s = scales[b]
            source = codes[r, b * block : min(length, (b + 1) * block)]
            target = out[r, b * block : min(length, (b + 1) * block)]
            for i in range(source.size):
                x = F32(U32(U32(source[i]) << shift).view(F32))
                y = U32(F32(x / s if divide else x * s).view(U32))
                magnitude = U32(y & ABS)
                n = max(magnitude, min_normal)
                normal = U32(U32(U32(n + nearest + U32(U32(n >> cut) & U32(1))) >> cut) - offset)
                subnormal = U32(F32(U32(min(magnitude, min_normal)).view(F32) + magic).view(U32) - magic_bits)
                code = normal if magnitude >= min_normal else subnormal
                code = beyond if code > largest else code
                sign = U32(U32(y >> U32(31)) << sign_shift)
                code = U32(code | sign) if code >= lowest_signed else code
                target[i] = nan if magnitude > INF else code


@kernel
def encode_int8(
    codes: Codes, factor: NDArray[np.float32], block_rows: int, block: int, divide: bool, shift: Any, top: Any, out: Codes
) -> None:
    """As `encode_blocks` for int8 elements in ±top; NaN becomes 0."""
    rows, length = codes.shape
    shift = U32(shift) & U32(31)
    top = F32(top)
    for r in range(rows):
        scales = factor[r // block_rows]
        for b in range(scales.size):
            s = scales[b]
            source = codes[r, b * block : min(length, (b + 1) * block)]
            target = out[r, b * block : min(length, (b + 1) * block)]
            for i in range(source.size):
                x = F32(U32(U32(source[i]) << shift).view(F32))
                y = F32(x / s if divide else x * s)
                y = F32(0) if y != y else y
                y = min(max(y, -top), top)
                target[i] = U32(F32(y + TO_INTEGER).view(U32)) & U32(0xFF)


@kernel
def encode_e2m1_exact(codes: Codes, scale: NDArray[np.float64], block: int, shift: Any, out: Codes) -> None:
    """e2m1 codes of x / scale rounded once, ties to even, saturating at 6; scale [rows, ceil(K / block)], exact products.

    The code is the number of midpoints passed: midpoint · scale is exact in float64, so no quotient is ever rounded. A midpoint
    belongs to its even neighbour: it is passed by > where the code below it is even, by >= where it is odd. Scale 0 gives signed
    zeros, NaN code 0.
    """
    rows, length = codes.shape
    shift = U32(shift) & U32(31)
    for r in range(rows):
        for b in range(scale.shape[1]):
            s = scale[r, b]
            keep = U32(0) if s != s else U32(8)
            if s == 0.0:
                s = np.nan  # passes no midpoint, as NaN does
            t0, t1, t2, t3, t4, t5, t6 = 0.25 * s, 0.75 * s, 1.25 * s, 1.75 * s, 2.5 * s, 3.5 * s, 5.0 * s
            source = codes[r, b * block : min(length, (b + 1) * block)]
            target = out[r, b * block : min(length, (b + 1) * block)]
            for i in range(source.size):
                y = U32(U32(source[i]) << shift)
                x = np.float64(U32(y & ABS).view(F32))
                code = U32(0)
                code = U32(code + U32(x > t0))
                code = U32(code + U32(x >= t1))
                code = U32(code + U32(x > t2))
                code = U32(code + U32(x >= t3))
                code = U32(code + U32(x > t4))
                code = U32(code + U32(x >= t5))
                code = U32(code + U32(x > t6))
                target[i] = U32(code | U32(U32(y >> U32(28)) & keep))


@kernel
def decode_blocks(
    codes: Codes, table: NDArray[np.float64], scale: NDArray[np.float64], scale_row: NDArray[np.int64], block: int, out: NDArray[np.float64]
) -> None:
    """out = table[code] · scale: codes [rows, K] uint8, table of 256 values, scale [scale rows, ceil(K / block)], one scale row a row."""
    rows, length = codes.shape
    for r in range(rows):
        scales = scale[scale_row[r]]
        for b in range(scales.size):
            s = scales[b]
            source = codes[r, b * block : min(length, (b + 1) * block)]
            target = out[r, b * block : min(length, (b + 1) * block)]
            for i in range(source.size):
                target[i] = table[source[i]] * s
