"""The sums of a certificate in one pass over a matrix, in Triton: what `certificates` does in torch, for large ones of a GPU.

Sums wrap and may be added in any order: the result does not depend on how tiles are scheduled. A weight is two 32-bit halves, so that an
element costs one 32 × 32 → 64 bit and one 32-bit multiply-add a sum: half of what 64-bit products take.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILE_M, TILE_N = 64, 128


# Triton compiles annotations too: it knows its own alone
@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    d, x, w, across, down, m, n, row, column,
    per_unit: tl.constexpr, no_integer: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    columns = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    values = tl.load(d + rows.to(tl.int64)[:, None] * row + columns.to(tl.int64)[None, :] * column, mask=inside, other=0.0)
    integers = _integers(values, per_unit, no_integer)
    if across is not None:
        low, high = _halves(x, columns, n)
        tl.atomic_add(across + rows, _sum(integers, low[None, :], high[None, :], 1), mask=rows < m, sem="relaxed")
    if down is not None:
        low, high = _halves(w, rows, m)
        tl.atomic_add(down + columns, _sum(integers, low[:, None], high[:, None], 0), mask=columns < n, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _integers(values, per_unit: tl.constexpr, no_integer: tl.constexpr):  # type: ignore[no-untyped-def]
    """int32 of values · per_unit, a power of two; what is no integer there (NaN, infinite, half, too large) becomes no_integer."""
    plain = values.to(tl.float32)
    scaled = plain * per_unit
    if values.dtype.primitive_bitwidth == 16:  # exact sums are small there: 1.5 · 2^23 shifts integers below 2^22 to the last bits
        shifted = scaled + 12582912.0
        whole = (shifted - 12582912.0 == scaled) & (tl.abs(scaled) < 4194304.0)
        rounded = shifted.to(tl.int32, bitcast=True) - 0x4B400000
    else:
        bounded = tl.where(tl.abs(scaled) <= 16777216.0, scaled, 0.5)
        rounded = bounded.to(tl.int32)
        whole = rounded.to(tl.float32) == bounded
    if per_unit < 1.0:  # what is too small for float32 is no integer either
        whole = whole & ((scaled != 0.0) | (plain == 0.0))
    return tl.where(whole, rounded, no_integer)


@triton.jit
def _halves(weights, at, size):  # type: ignore[no-untyped-def]
    """(low, high) int32 with weight = high · 2^32 + low modulo 2^64, of little-endian 64-bit weights."""
    low = tl.load(weights + 2 * at, mask=at < size, other=0)
    high = tl.load(weights + 2 * at + 1, mask=at < size, other=0)
    return low, high + (low < 0)


@triton.jit  # type: ignore[untyped-decorator]
def _sum(integers, low, high, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum of integers · (high · 2^32 + low) along the axis, modulo 2^64."""
    return tl.sum(integers.to(tl.int64) * low.to(tl.int64), axis) + (tl.sum(integers * high, axis).to(tl.int64) << 32)


def summable(torch: Any, matrix: Any) -> bool:
    """Whether `sums` takes it: a matrix of a GPU, of floating point of 16 or 32 bits."""
    return bool(matrix.is_cuda) and matrix.dtype in (torch.bfloat16, torch.float16, torch.float32)


def sums(torch: Any, matrix: Any, x: Any, w: Any, unit: float, no_integer: int) -> tuple[Any, Any]:
    """(matrix · x [m], wᵀ · matrix [n]) modulo 2^64 of the integers matrix / unit; None for weights that are None.

    matrix [m, n] of 16 or 32 bits an element, any stride; unit a power of two. What is no integer of at most 2^24 (of 16 bits: below
    2^22) counts as `no_integer`.
    """
    m, n = matrix.shape
    both = torch.zeros(m + n, dtype=torch.int64, device=matrix.device)
    across, down = (None if x is None else both[:m]), (None if w is None else both[m:])
    if matrix.numel():
        grid = (triton.cdiv(m, TILE_M), triton.cdiv(n, TILE_N))
        halves = (None if weights is None else weights.view(torch.int32) for weights in (x, w))
        _kernel[grid](matrix, *halves, across, down, m, n, *matrix.stride(), 1 / unit, no_integer, TILE_M, TILE_N)
    return across, down
