"""The 16-point Hadamard rotation some FP4 recipes apply before quantising."""

from __future__ import annotations

import numpy as np

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, decode, get_format

POINTS = 16


def hadamard16(codes: Codes, fmt: str | Format, *, axis: int = -1) -> Codes:
    """y = 0.25·H16·x over each 16 elements along `axis`, as float32 codes of the same shape. No random signs.

    H16 is the Sylvester matrix, H[i, j] = (-1)^popcount(i & j); 0.25·H16 is orthogonal and its own inverse. Computed in float32
    by four butterfly stages of stride 1, 2, 4, 8 (one rounding an addition), then the exact scaling. The length along `axis`
    must be a multiple of 16: padding would spread a tail over new elements.
    """
    f = get_format(fmt)
    c = np.asarray(codes)
    length = c.shape[axis]
    if length % POINTS:
        raise UsageError(f"hadamard16: length {length} along axis {axis} is not a multiple of {POINTS}; pad the operand first")
    moved = np.ascontiguousarray(np.moveaxis(c, axis, -1))
    out = np.empty(moved.shape, np.uint32)
    rows = moved.reshape(-1, POINTS)
    result = out.reshape(-1, POINTS)
    for i in range(0, len(rows), 4096):
        with np.errstate(invalid="ignore"):  # a signalling NaN is data here
            values = decode(rows[i : i + 4096], f).astype(np.float32)
        result[i : i + 4096] = _transform(values).view(np.uint32)
    return np.ascontiguousarray(np.moveaxis(out, -1, axis))


def _transform(x: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    with np.errstate(invalid="ignore", over="ignore"):
        for stride in (1, 2, 4, 8):
            pairs = x.reshape(-1, POINTS // (2 * stride), 2, stride)
            low, high = pairs[:, :, 0], pairs[:, :, 1]
            x = np.stack([low + high, low - high], axis=2).reshape(-1, POINTS)
        return x * np.float32(0.25)
