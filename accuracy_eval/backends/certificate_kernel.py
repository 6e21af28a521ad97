"""The sums of a certificate in one pass over an output, in Triton: what `certificates` does in torch, for large outputs of a GPU.

Sums wrap and may be added in any order: the result does not depend on how tiles are scheduled.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILE_M, TILE_N = 32, 128


# Triton compiles annotations too: it knows its own alone
@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    d, x, w, across, down, m, n, row, column, per_unit, no_integer, tile_m: tl.constexpr, tile_n: tl.constexpr
):  # fmt: skip
    rows = (tl.program_id(0) * tile_m + tl.arange(0, tile_m)).to(tl.int64)
    columns = (tl.program_id(1) * tile_n + tl.arange(0, tile_n)).to(tl.int64)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    values = tl.load(d + rows[:, None] * row + columns[None, :] * column, mask=inside, other=0.0).to(tl.float32)
    scaled = values * per_unit  # a power of two: exact, but for what is too small
    whole = (tl.floor(scaled) == scaled) & (tl.abs(scaled) <= 16777216.0) & ((scaled != 0.0) | (values == 0.0))
    integers = tl.where(whole, tl.where(whole, scaled, 0.0).to(tl.int64), no_integer)
    by_column = tl.load(x + columns, mask=columns < n, other=0)
    by_row = tl.load(w + rows, mask=rows < m, other=0)
    tl.atomic_add(across + rows, tl.sum(integers * by_column[None, :], 1), mask=rows < m)
    tl.atomic_add(down + columns, tl.sum(integers * by_row[:, None], 0), mask=columns < n)


def sums(torch: Any, d: Any, x: Any, w: Any, unit: float, no_integer: int) -> tuple[Any, Any]:
    """(D · x [m], wᵀ · D [n]) modulo 2^64 of the integers d / unit; what is no integer counts as `no_integer`.

    d [m, n] of at most 32 bits an element, any stride; unit a power of two.
    """
    m, n = d.shape
    across, down = (torch.zeros(size, dtype=torch.int64, device=d.device) for size in (m, n))
    if d.numel():
        grid = (triton.cdiv(m, TILE_M), triton.cdiv(n, TILE_N))
        _kernel[grid](d, x, w, across, down, m, n, *d.stride(), 1 / unit, no_integer, TILE_M, TILE_N)
    return across, down
