"""The sums of a certificate in one pass over a matrix, in Triton: what `certificates` does in torch, for large ones of a GPU.

Sums wrap and may be added in any order: the result does not depend on how tiles are scheduled. A program walks down a block of columns and
keeps their sums in registers; rows are summed across the lanes of one warp. A weight of 64 bits is two halves: an element costs one
32 × 32 → 64 bit multiply-add for a weight of 32 bits, and a 32-bit one more for the upper half. That product is written as an instruction
where PTX is compiled: of factors that were widened outside the loop the compiler sees 64 bits, and makes four instructions of it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILE, STEP, SPAN = 256, 2, 64  # columns of a program, rows it takes at a time, rows it takes in all
WARPS = 1


# Triton compiles annotations too: it knows its own alone
@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    d, x, w, across, down, m, n, row, column,
    per_unit: tl.constexpr, no_integer: tl.constexpr, wide_x: tl.constexpr, wide_w: tl.constexpr,
    tile: tl.constexpr, step: tl.constexpr, span: tl.constexpr, ptx: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * tile + tl.arange(0, tile)
    first = tl.program_id(1) * span
    if across is not None:
        x_low, x_high = _halves(x, columns, n, wide_x)
    below = tl.zeros((tile,), tl.int64)
    for at in range(0, span, step):
        rows = first + at + tl.arange(0, step)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        values = tl.load(d + rows.to(tl.int64)[:, None] * row + columns.to(tl.int64)[None, :] * column, mask=inside, other=0.0)
        integers = _integers(values, per_unit, no_integer)
        if down is not None:
            w_low, w_high = _halves(w, rows, m, wide_w)
            below += _sum(integers, w_low[:, None], w_high[:, None], 0, wide_w, ptx)
        if across is not None:
            beside = _sum(integers, x_low[None, :], x_high[None, :], 1, wide_x, ptx)
            tl.atomic_add(across + rows, beside, mask=rows < m, sem="relaxed")
    if down is not None:
        tl.atomic_add(down + columns, below, mask=columns < n, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _integers(values, per_unit: tl.constexpr, no_integer: tl.constexpr):  # type: ignore[no-untyped-def]
    """int32 of values · per_unit, a power of two; what is no integer there (NaN, infinite, half, too large) becomes a large one."""
    plain = values.to(tl.float32)
    scaled = plain * per_unit
    if values.dtype.primitive_bitwidth == 16:
        # exact sums are small there: 1.5 · 2^23 shifts integers below 2^22 to the last bits; larger numbers, in order, become larger ones
        shifted = scaled + 12582912.0
        whole = shifted - 12582912.0 == scaled
        rounded = shifted.to(tl.int32, bitcast=True) - 0x4B400000
    else:
        bounded = tl.where(tl.abs(scaled) <= 16777216.0, scaled, 0.5)
        rounded = bounded.to(tl.int32)
        whole = rounded.to(tl.float32) == bounded
    if per_unit < 1.0:  # what is too small for float32 is no integer either
        whole = whole & ((scaled != 0.0) | (plain == 0.0))
    return tl.where(whole, rounded, no_integer)


@triton.jit  # type: ignore[untyped-decorator]
def _halves(weights, at, size, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    """(low, high) int32 with weight = high · 2^32 + low modulo 2^64, of little-endian 64-bit weights; unless wide, high is none."""
    low = tl.load(weights + 2 * at, mask=at < size, other=0)
    if wide:
        high = tl.load(weights + 2 * at + 1, mask=at < size, other=0) + (low < 0)
    else:
        high = tl.zeros_like(low)
    return low, high


@triton.jit  # type: ignore[untyped-decorator]
def _sum(integers, low, high, axis: tl.constexpr, wide: tl.constexpr, ptx: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum of integers · (high · 2^32 + low) along the axis, modulo 2^64."""
    if ptx:
        products = tl.inline_asm_elementwise("mul.wide.s32 $0, $1, $2;", "=l,r,r", [integers, low], dtype=tl.int64, is_pure=True, pack=1)
    else:
        products = integers.to(tl.int64) * low.to(tl.int64)
    total = tl.sum(products, axis)
    if wide:
        total += tl.sum(integers * high, axis).to(tl.int64) << 32
    return total


def summable(torch: Any, matrix: Any) -> bool:
    """Whether `add_sums` takes it: a matrix of a GPU, of floating point of 16 or 32 bits."""
    return bool(matrix.is_cuda) and matrix.dtype in (torch.bfloat16, torch.float16, torch.float32)


def add_sums(
    torch: Any, matrix: Any, across: Any, down: Any, *, x: Any, w: Any, wide_x: bool, wide_w: bool, unit: float, no_integer: int
) -> None:
    """Adds matrix · x to across [m] and wᵀ · matrix to down [n], modulo 2^64, of the integers matrix / unit; not where weights are None.

    matrix [m, n]   of 16 or 32 bits an element, any stride. What is no integer of at most 2^24 (of 16 bits: below 2^22) counts as a number
                    beyond that of 31 bits, `no_integer` or another
    x [n], w [m], across, down   contiguous int64; unless wide, every weight is a number of 32 bits
    unit            a power of two
    """
    if not matrix.numel():
        return
    if matrix.stride(0) == 1:  # lanes go along what lies together
        matrix, across, down, x, w, wide_x, wide_w = matrix.t(), down, across, w, x, wide_w, wide_x
    m, n = matrix.shape
    halves = (None if weights is None else weights.view(torch.int32) for weights in (x, w))
    sums = (None if x is None else across), (None if w is None else down)
    grid = (triton.cdiv(n, TILE), triton.cdiv(m, SPAN))
    ptx = matrix.is_cuda and not torch.version.hip
    fixed = (1 / unit, no_integer, wide_x, wide_w, TILE, STEP, SPAN, ptx)
    _kernel[grid](matrix, *halves, *sums, m, n, *matrix.stride(), *fixed, num_warps=WARPS)
