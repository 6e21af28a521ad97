"""The loops of `quantize.kernels` as whole-array numpy, bit for bit: where compiling would cost more than it saves.

Every function takes what its namesake takes. An order of magnitude slower on a core; nothing to compile on a machine just started.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes
from accuracy_eval.quantize.kernels import ABS, F32, INF, TO_INTEGER, U32, Element

# below an odd code a midpoint belongs to the code above it, below an even one to the code itself
MIDPOINTS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def block_amax(codes: Codes, block_rows: int, block: int, shift: Any, out: NDArray[np.uint32]) -> None:
    """As `kernels.block_amax`."""
    if not codes.size:
        return
    magnitudes = codes & (ABS >> U32(shift)).astype(codes.dtype)
    columns = np.maximum.reduceat(magnitudes, np.arange(0, codes.shape[1], block), axis=1)
    rows = np.maximum.reduceat(columns, np.arange(0, codes.shape[0], block_rows), axis=0)
    np.maximum(out, rows.astype(np.uint32) << U32(shift), out=out)


def _scaled(codes: Codes, factor: NDArray[np.float32], block_rows: int, block: int, divide: bool, shift: Any) -> NDArray[np.float32]:
    x = (codes.astype(np.uint32) << U32(shift)).view(np.float32)
    s = _spread(factor, block_rows, block, codes.shape)
    y: NDArray[np.float32] = x / s if divide else x * s
    return y


def _spread(factor: NDArray[Any], block_rows: int, block: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """The factor of every element, broadcastable to `shape`."""
    rows = factor if block_rows == 1 else np.repeat(factor, block_rows, axis=0)[: shape[0]]
    return rows if factor.shape[1] == 1 else np.repeat(rows, block, axis=1)[:, : shape[1]]


def encode_blocks(
    codes: Codes, factor: NDArray[np.float32], block_rows: int, block: int, divide: bool, shift: Any, element: Element, out: Codes
) -> None:
    """As `kernels.encode_blocks`."""
    y = _scaled(codes, factor, block_rows, block, divide, shift).view(np.uint32)
    magnitude = y & ABS
    n = np.maximum(magnitude, element.min_normal)
    normal = ((n + element.nearest + ((n >> element.cut) & U32(1))) >> element.cut) - element.offset
    magic = F32(element.magic)
    subnormal = (np.minimum(magnitude, element.min_normal).view(np.float32) + magic).view(np.uint32) - magic.view(np.uint32)
    code = np.where(magnitude >= element.min_normal, normal, subnormal)
    code = np.where(code > element.largest, element.beyond, code)
    sign = (y >> U32(31)) << element.sign_shift
    code = np.where(code >= element.lowest_signed, code | sign, code)
    out[...] = np.where(magnitude > INF, element.nan, code)


def encode_int8(
    codes: Codes, factor: NDArray[np.float32], block_rows: int, block: int, divide: bool, shift: Any, top: Any, out: Codes
) -> None:
    """As `kernels.encode_int8`."""
    y = np.nan_to_num(_scaled(codes, factor, block_rows, block, divide, shift), nan=0.0, posinf=np.inf, neginf=-np.inf)
    out[...] = (np.clip(y, -F32(top), F32(top)) + TO_INTEGER).view(np.uint32) & U32(0xFF)


def encode_e2m1_exact(codes: Codes, scale: NDArray[np.float64], block: int, shift: Any, out: Codes) -> None:
    """As `kernels.encode_e2m1_exact`."""
    s = _spread(scale, 1, block, codes.shape)
    y = codes.astype(np.uint32) << U32(shift)
    x = (y & ABS).view(np.float32).astype(np.float64)
    reached = np.where(s == 0.0, np.nan, s)
    code = np.zeros(codes.shape, np.uint32)
    for midpoint, own in MIDPOINTS:
        code += x >= midpoint * reached if own else x > midpoint * reached
    out[...] = code | ((y >> U32(28)) & np.where(np.isnan(s), U32(0), U32(8)))


def decode_blocks(
    codes: Codes, table: NDArray[np.float64], scale: NDArray[np.float64], scale_row: NDArray[np.int64], block: int, out: NDArray[np.float64]
) -> None:
    """As `kernels.decode_blocks`."""
    np.multiply(table[codes], _spread(scale[scale_row], 1, block, codes.shape), out=out)
