"""A plain matrix product in Triton: one program a tile, K in order, a float32 accumulator, one rounding at the end.

Written to be read, not to be fast: the same arithmetic on every GPU that Triton compiles for, whatever the vendor's library does.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILE_M, TILE_N, TILE_K = 64, 64, 32


# Triton compiles annotations too: it knows its own alone
@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    x, y, d, m, n, k, x_row, x_column, y_row, y_column, precise: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
    tile_k: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    columns = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for first in range(0, k, tile_k):
        ks = first + tl.arange(0, tile_k)
        left = tl.load(x + rows[:, None] * x_row + ks[None, :] * x_column, mask=(rows[:, None] < m) & (ks[None, :] < k), other=0.0)
        right = tl.load(y + ks[:, None] * y_row + columns[None, :] * y_column, mask=(ks[:, None] < k) & (columns[None, :] < n), other=0.0)
        if precise:
            total += tl.dot(left, right, input_precision="ieee")
        else:
            total += tl.dot(left, right)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(d + rows[:, None] * n + columns[None, :], total.to(d.dtype.element_ty), mask=inside)


def multiply(torch: Any, x: Any, y: Any) -> Any:
    """x [m, k] · y [k, n] in their own format; views of any stride. float32 is multiplied as float32, not as TF32."""
    (m, k), n = x.shape, y.shape[1]
    d = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if d.numel():
        grid = (triton.cdiv(m, TILE_M), triton.cdiv(n, TILE_N))
        strides = (*x.stride(), *y.stride())
        _kernel[grid](x, y, d, m, n, k, *strides, x.dtype == torch.float32, TILE_M, TILE_N, TILE_K)
    return d
