"""How scale factors lie in memory: padded, and in the 32_4_4 swizzle of 128×4 tiles.

Swizzle: scales [rows, columns] are padded with bytes 0 to multiples of 128 × 4; tiles follow each other row-major, 512 bytes
each; inside a tile, row r and column c lie at byte (r mod 32)·16 + (r div 32)·4 + c. Source: the block-scaling layout of the
cuBLAS documentation (scaling type VEC32_UE8M0 / VEC16_UE4M3); torch calls it SWIZZLE_32_4_4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes
from accuracy_eval.quantize.quantised import Quantised
from accuracy_eval.quantize.recipes import get_recipe

TILE_ROWS, TILE_COLUMNS = 128, 4


def _padded_shape(rows: int, columns: int, row_multiple: int, column_multiple: int) -> tuple[int, int]:
    return -(-rows // row_multiple) * row_multiple, -(-columns // column_multiple) * column_multiple


def _matrix(scale: Codes, what: str) -> Codes:
    s = np.asarray(scale)
    if s.ndim != 2:
        raise UsageError(f"{what}: scales must be [rows, columns], found shape {s.shape}")
    return s


def pad_scales(scale: Codes, row_multiple: int, column_multiple: int) -> Codes:
    """`scale` [rows, columns] padded with code 0 to multiples of both; the same array contents where nothing is missing.

    Byte 0 is 2^-127 in E8M0, though some kernels build a float32 from it by a shift and get 0; padded data are zero either way.
    """
    s = _matrix(scale, "pad_scales")
    if row_multiple < 1 or column_multiple < 1:
        raise UsageError(f"pad_scales: multiples must be at least 1, found {row_multiple} and {column_multiple}")
    rows, columns = s.shape
    out = np.zeros(_padded_shape(rows, columns, row_multiple, column_multiple), s.dtype)
    out[:rows, :columns] = s
    return out


def padded_scale(q: Quantised) -> Codes:
    """The scale codes of `q`, a matrix quantised along its last axis, as its recipe stores them."""
    return pad_scales(q.scale, *get_recipe(q.recipe).scale_padding)


def swizzle_scales(scale: Codes) -> Codes:
    """[rows, columns] scale codes to the flat 32_4_4 swizzle, of ceil(rows/128)·128·ceil(columns/4)·4 codes; padding is code 0."""
    s = pad_scales(_matrix(scale, "swizzle_scales"), TILE_ROWS, TILE_COLUMNS)
    rows, columns = s.shape
    # [tile row, r div 32, r mod 32, tile column, c] -> [tile row, tile column, r mod 32, r div 32, c]
    tiles = s.reshape(rows // TILE_ROWS, 4, 32, columns // TILE_COLUMNS, TILE_COLUMNS).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(-1)


def unswizzle_scales(flat: Codes, rows: int, columns: int) -> Codes:
    """Inverse of `swizzle_scales`: the [rows, columns] scale codes, padding dropped."""
    padded_rows, padded_columns = _padded_shape(rows, columns, TILE_ROWS, TILE_COLUMNS)
    s = np.asarray(flat).reshape(-1)
    if s.size != padded_rows * padded_columns:
        raise UsageError(
            f"unswizzle_scales: {rows} x {columns} scales fill {padded_rows * padded_columns} codes in 128 x 4 tiles, found {s.size}"
        )
    tiles = s.reshape(padded_rows // TILE_ROWS, padded_columns // TILE_COLUMNS, 32, 4, TILE_COLUMNS).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles.reshape(padded_rows, padded_columns)[:rows, :columns])


Reading = tuple[str, NDArray[Any]]


def misreadings(grid: NDArray[Any]) -> Iterator[Reading]:
    """Ways to read a grid of scales [rows, blocks along k] at the wrong place: (in words, the grid as it is then read).

    Of a grid of block numbers, the second says which block stands for which.
    """
    yield from _shifts(grid)
    yield from other_layouts(grid)


def _shifts(grid: NDArray[Any]) -> Iterator[Reading]:
    rows, columns = grid.shape
    if columns > 1:
        yield "the first block along k was used for all of k", np.broadcast_to(grid[:, :1], grid.shape).copy()
        for shift, text in ((-1, "the next block along k was used"), (1, "the block before along k was used")):
            yield text, np.roll(grid, shift, axis=1)
            yield text, grid[:, np.clip(np.arange(columns) - shift, 0, columns - 1)]
    if rows > 1:
        for shift, text in ((-1, "the next row of scales was used"), (1, "the row of scales before was used")):
            yield text, np.roll(grid, shift, axis=0)


def other_layouts(grid: NDArray[Any]) -> Iterator[Reading]:
    """Misreadings that come of storing the grid one way and reading it another."""
    rows, columns = grid.shape
    if min(rows, columns) < 2:
        return
    yield "the grid of scales was read transposed", np.ascontiguousarray(grid.T).reshape(grid.shape)
    yield "the grid of scales was read as if it were stored column by column", grid.reshape(columns, rows).T.copy()
    tiles = swizzle_scales(grid)
    yield "scales stored in 32_4_4 tiles were read as plain rows", tiles[: grid.size].reshape(grid.shape)
    flat = np.zeros(tiles.size, grid.dtype)
    flat[: grid.size] = grid.reshape(-1)
    yield "scales stored as plain rows were read as 32_4_4 tiles", unswizzle_scales(flat, rows, columns)


def overreadings(grid: NDArray[np.float64]) -> Iterator[Reading]:
    """Misreadings that leave the grid: its rows read as if each were padded to a multiple of 4, which cuBLAS asks of scales of 128×128
    blocks. NaN stands for what lies behind the last scale."""
    rows, columns = grid.shape
    stride = _padded_shape(rows, columns, 1, TILE_COLUMNS)[1]
    if rows < 2 or stride == columns:
        return
    buffer = np.full(rows * stride, np.nan)
    buffer[: grid.size] = grid.reshape(-1)
    read = buffer.reshape(rows, stride)[:, :columns]
    beyond = int(np.isnan(read).any(axis=1).sum())
    yield f"rows of {columns} scales were read {stride} apart, {beyond} of {rows} from behind the last scale", read.copy()


def layout_of(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """How scales of shape `found` lie where the recipe has a grid of shape `wanted`; "" for no layout that is known."""
    if len(wanted) != 2 or found == wanted:
        return ""
    tiles = _padded_shape(*wanted, TILE_ROWS, TILE_COLUMNS)
    flat = len(found) == 1 or (len(found) == 2 and 1 in found)
    if found == wanted[::-1]:
        return "the blocks along the contraction come first: the grid is transposed"
    if found == tiles or (len(found) == 2 and found == (wanted[0], tiles[1])):
        return f"the grid is padded to multiples of {TILE_ROWS if found == tiles else 1} x {TILE_COLUMNS}"
    if flat and max(found) == tiles[0] * tiles[1]:
        return "the grid is padded, in the 32_4_4 swizzle of 128 x 4 tiles or in plain rows"
    return ""
