"""Running sums of a block of a product, tile by tile, while the product itself is being computed.

V comes from one float32 GEMM of squares (operands scaled row by row and column by column to 1, in float64 where their range
needs it), N from one of signs, of at most 512 products. The running sums are those of the blocked product itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import Contract
from accuracy_eval.cpu_ref.running import FUSED, SAMPLES, RunningSums, accumulate, accumulate_parts, fused_sums
from accuracy_eval.formats import Values
from accuracy_eval.jit import kernel, map_threads

TILE = 256  # rows and columns of a tile: its statistics stay in the cache (128 to 512 measured within 10 %)
COHERENCE_SAMPLES = 512  # products that N is estimated from: standard error K/23
FLOAT32_RANGE = 2.0**-40  # smallest magnitude, relative to the largest of its row, whose square is kept exactly enough in float32


@dataclass(frozen=True)
class Side:
    """One operand of a block, prepared.

    values   float64, A [r, K] or B [K, c]
    squares  squared magnitudes, raised to the smallest normal one where nonzero, relative to the largest of the row (A) or column
             (B); float32 or float64
    scale    A [r, 1], B [1, c]: the power of two magnitudes were divided by
    signs    float32 signs of the operands whose products N is estimated from: A [r, s], B [s, c]
    unit     A [r, 1], B [1, c]: exponents of the powers of two that the caller divided `values` by, or None
    """

    values: Values
    squares: NDArray[Any]
    scale: Values
    signs: NDArray[np.float32]
    unit: NDArray[np.int64] | None = None


@kernel
def _largest(x: Any, floor: Any, along: int, out: Any) -> None:
    """out = largest finite magnitude of each row (along 1) or column (along 0) of x, raised to floor; NaN and Inf count as 1."""
    for i in range(x.shape[0]):
        fi = i if floor.shape[0] > 1 else 0
        for j in range(x.shape[1]):
            y = abs(x[i, j])
            if y != 0.0:
                y = max(y, floor[fi, j if floor.shape[1] > 1 else 0])
                at = i if along == 1 else j
                if y <= 1.7976931348623157e308 and y > out[at]:
                    out[at] = y


@kernel
def _squares(x: Any, floor: Any, along: int, inverse: Any, out: Any) -> float:
    """out = (max(|x|, floor)·inverse)², 0 where x is; returns the smallest nonzero magnitude relative to the largest."""
    low = 1.0
    for i in range(x.shape[0]):
        fi = i if floor.shape[0] > 1 else 0
        for j in range(x.shape[1]):
            y = abs(x[i, j])
            if y == 0.0:
                out[i, j] = 0.0
                continue
            y = max(y, floor[fi, j if floor.shape[1] > 1 else 0]) * inverse[i if along == 1 else j]
            low = min(low, y)
            out[i, j] = y * y
    return low


def sampled_products(k: int) -> NDArray[np.int64]:
    """Indices of the products N is estimated from: all, or one in each of 512 strata at a hashed place."""
    if k <= COHERENCE_SAMPLES:
        return np.arange(k)
    edges = (np.arange(COHERENCE_SAMPLES + 1, dtype=np.int64) * k) // COHERENCE_SAMPLES
    width = np.diff(edges)
    hashed = (np.arange(COHERENCE_SAMPLES, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return edges[:-1] + hashed.astype(np.int64) % width


def prepare(values: Values, floor: Values, *, axis: int) -> Side:
    """The side of a block from its values. floor: smallest normal magnitudes, broadcastable to values.

    axis  1 for A [r, K], 0 for B [K, c]: the axis that is contracted
    """
    if not values.flags.c_contiguous and values.T.flags.c_contiguous:  # all below goes along rows of the store
        side = prepare(values.T, floor.T, axis=1 - axis)
        return Side(values, side.squares.T, side.scale.T, side.signs.T)
    chosen = sampled_products(values.shape[axis])
    picked = values if len(chosen) == values.shape[axis] else np.take(values, chosen, axis=axis)
    signs = np.sign(picked).astype(np.float32)
    squares, scale = _prepared(np.ascontiguousarray(values), np.ascontiguousarray(floor), axis)
    return Side(values, squares, scale, signs)


def _prepared(x: Values, floor: Values, along: int) -> tuple[NDArray[Any], Values]:
    largest = np.zeros(x.shape[1 - along])
    _largest(x, floor, along, largest)
    exponents = np.maximum(np.frexp(np.where(largest > 0, largest, 1.0))[1] - 1, -1000)
    inverse = np.ldexp(1.0, -exponents)
    squares: NDArray[Any] = np.empty(x.shape, np.float32)
    if _squares(x, floor, along, inverse, squares) < FLOAT32_RANGE:
        squares = np.empty(x.shape)
        _squares(x, floor, along, inverse, squares)
    return squares, np.expand_dims(np.ldexp(1.0, exponents), along)


def block_width(k: int, contract: Contract) -> int:
    """Products between two looks at the running sums: at least 32 looks, the ends of the contract's parts among them."""
    if contract.part:
        return min(k, contract.part)
    return max(1, k // SAMPLES)


def statistics(a: Side, b: Side, contract: Contract, use: Callable[[slice, slice, RunningSums], None]) -> None:
    """Call `use(rows, columns, sums)` for every tile of the block; calls come from several threads, each tile once."""
    r, c = a.values.shape[0], b.values.shape[1]
    tiles = [(slice(i, min(i + TILE, r)), slice(j, min(j + TILE, c))) for i in range(0, r, TILE) for j in range(0, c, TILE)]

    def run(tile: tuple[slice, slice]) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            use(*tile, _tile(a, b, *tile, contract))

    map_threads(run, tiles)


def _tile(a: Side, b: Side, rows: slice, cols: slice, contract: Contract) -> RunningSums:
    k = a.values.shape[1]
    x, y = a.values[rows], b.values[:, cols]
    shape = (x.shape[0], y.shape[1])
    total, mean, rms = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    part_sizes, part_squares = (np.zeros(shape), np.zeros(shape)) if contract.part else (total, total)
    width = block_width(k, contract)
    looks = -(-k // width)
    if k <= FUSED and not contract.part:
        fused_sums(np.ascontiguousarray(x), np.ascontiguousarray(y), width, total, mean, rms)
    else:
        term = np.empty(shape)
        for t in range(0, k, width):
            np.matmul(x[:, t : t + width], y[t : t + width], out=term)
            accumulate(term, total, mean, rms)
            if contract.part:
                accumulate_parts(term, part_sizes, part_squares)
    root = np.sqrt(_product(a.squares[rows], b.squares[:, cols]))
    root *= a.scale[rows]
    root *= b.scale[:, cols]
    coherence = _coherence(a.signs[rows], b.signs[:, cols], k)
    mean /= looks
    rms /= looks
    np.sqrt(rms, out=rms)
    return RunningSums(k, total, mean, rms, root, coherence, part_sizes, part_squares)


def _coherence(x: NDArray[np.float32], y: NDArray[np.float32], k: int) -> Values:
    """N: exact, or estimated from s of k products less what the sampling adds, K²·(1/s − 1/K) to N², but not below sqrt(K)."""
    n, s = _product(x, y), x.shape[1]
    if s == k:
        return np.abs(n)
    n *= k / s
    n *= n
    n -= k * (k / s - 1.0)
    np.maximum(n, float(k), out=n)
    return np.sqrt(n)


def _product(x: NDArray[Any], y: NDArray[Any]) -> Values:
    if x.dtype != y.dtype:
        x, y = x.astype(np.float64), y.astype(np.float64)
    product: Values = np.matmul(x, y).astype(np.float64, copy=False)
    return product
