"""A quantised operand, and its values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Values, decode
from accuracy_eval.quantize.work import PANEL, loops
from accuracy_eval.threads import map_threads


@dataclass(frozen=True)
class Quantised:
    """A quantised operand: value = code · scale (· global scale).

    codes         element codes of `format`, shape of the operand, one code per element
    format        concrete element format
    scale         scale codes of `scale_format`: () for one per tensor; the operand's shape without the contraction axis for one
                  per row; else the operand's shape with each blocked axis divided by its block, rounded up
    scale_format  "float32", "float8_e8m0fnu" or "float8_ue4m3"
    recipe        name of the recipe
    axis          contraction axis, counted from 0
    blocks        elements per scale along each axis of the operand; 0 the whole axis
    inv_scale     float32 codes of what the data were multiplied by, where the rule rounds that apart from the scale; else None
    global_scale  float32 code of shape (), where the recipe has one; else None
    """

    codes: Codes
    format: str
    scale: Codes
    scale_format: str
    recipe: str
    axis: int
    blocks: tuple[int, ...]
    inv_scale: Codes | None = None
    global_scale: Codes | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    @property
    def grid(self) -> tuple[int, ...]:
        """Scales along each axis of the operand."""
        return tuple(-(-n // b) if b else 1 for n, b in zip(self.shape, self.blocks, strict=True))


def dequantize(q: Quantised, *, rows: tuple[int, int] | None = None, threads: int | None = None, compiled: bool = True) -> Values:
    """Exact float64 values of `q`: code value · scale (· global scale), shape of the operand.

    rows : (first, last) along the first axis, for a part of the operand; None is all. Products need at most 32 significant bits
    (NVFP4: 30), so float64 holds them exactly. NaN scales and Inf · 0 give NaN.
    """
    decode_blocks = loops(compiled).decode_blocks
    first, last = (0, q.shape[0]) if rows is None else rows
    block = q.blocks[q.axis]
    # a part that starts inside a block of the contraction axis is decoded from the start of that block
    begin = first // block * block if q.axis == 0 and block else first
    part = np.moveaxis(q.codes[begin:last], q.axis, -1)
    codes = np.ascontiguousarray(part).reshape(math.prod(part.shape[:-1]), part.shape[-1])
    scale = np.moveaxis(decode(q.scale, q.scale_format).reshape(q.grid), q.axis, -1)
    if q.global_scale is not None:
        scale = scale * float(decode(q.global_scale, "float32"))
    scales = np.ascontiguousarray(scale).reshape(math.prod(scale.shape[:-1]), scale.shape[-1])
    if q.axis == 0 and block:
        scales = np.ascontiguousarray(scales[:, begin // block : -(-last // block)])
    scale_row = _scale_rows(q, first, last)
    out = np.empty(codes.shape)
    table = decode(np.arange(256).astype(np.uint8), q.format)
    step = max(1, PANEL // max(1, codes.shape[1]))

    def panel(i: int) -> None:
        with np.errstate(invalid="ignore"):
            decode_blocks(codes[i : i + step], table, scales, scale_row[i : i + step], block or max(1, codes.shape[1]), out[i : i + step])

    map_threads(panel, range(0, len(codes), step), threads=threads)
    values = np.ascontiguousarray(np.moveaxis(out.reshape(part.shape), -1, q.axis))
    return values[first - begin :]


def _scale_rows(q: Quantised, first: int, last: int) -> NDArray[np.int64]:
    """For each line along the contraction axis, the number of its row of scales; lines first:last of the operand's first axis."""
    number = np.zeros((), np.int64)
    for d, (n, b, count) in enumerate(zip(q.shape, q.blocks, q.grid, strict=True)):
        if d == q.axis:
            continue
        index = np.arange(n) // b if b else np.zeros(n, np.int64)
        number = number[..., None] * count + (index[first:last] if d == 0 else index)
    return np.ascontiguousarray(number.reshape(-1))
