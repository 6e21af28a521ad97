"""The operands of a GEMM as stored: codes, scales, layout; decoded block by block so that no whole float64 copy is needed.

Layout letters: first for A, n = [m, k], t = [k, m]; second for B, n = [k, n], t = [n, k].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, Values, decode, get_format
from accuracy_eval.jit import map_threads
from accuracy_eval.records import Coded

LAYOUTS = ("nn", "nt", "tn", "tt")
SCALE_BLOCKS = (1, 16, 32, 64, 128, 256)  # block widths of known recipes, tried when a scale's shape leaves a choice
BLOCK_ELEMENTS = 1 << 22  # elements decoded at a time when a whole operand is read through: 32 MB of float64
_CHUNK = 1 << 17  # elements decoded by one task: temporaries stay in the cache, 2.2 ns an element against 5 at 2^20


def scale_blocks(shape: tuple[int, int], scale_shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the operand that share one element of a scale of that shape.

    shape        stored shape of the operand
    scale_shape  () or (1,) one scale for all · (rows,) one a row of the store · (r, c) blocks; a trailing block may be partial
    An axis of d elements under s scales has blocks of ceil(d/s) where that is a recipe's width (SCALE_BLOCKS), else of the
    smallest recipe width w with ceil(d/w) = s (partial trailing block), else of ceil(d/s). UsageError where no width fits.
    """
    grid = tuple(scale_shape)
    if len(grid) == 0 or grid == (1,):
        return max(shape[0], 1), max(shape[1], 1)
    if len(grid) == 1:
        grid = (grid[0], 1)
    if len(grid) != 2:
        raise UsageError(f"a scale of shape {scale_shape} does not fit an operand of shape {shape}; allowed: at most two dimensions")
    return _block_width(shape, 0, grid), _block_width(shape, 1, grid)


def _block_width(shape: tuple[int, int], axis: int, grid: tuple[int, ...]) -> int:
    size, count = shape[axis], grid[axis]
    if count == 1:
        return max(size, 1)
    even = -(-size // count) if count else 0
    widths: list[int] = [w for w in (*((even,) if even in SCALE_BLOCKS else ()), *SCALE_BLOCKS, even) if w and -(-size // w) == count]
    if not widths:
        raise UsageError(
            f"a scale of shape {tuple(grid)} does not fit an operand of shape {shape}: no block width cuts {size} into {count} blocks; "
            "give one scale for all, one a row, or a grid of blocks along both axes of the stored operand"
        )
    return widths[0]


@dataclass(frozen=True)
class Operand:
    """One stored matrix operand.

    codes  [rows, cols] of `format`, in storage order
    scale  float64 values that multiply the decoded ones, or None: any shape `scale_blocks` takes, along the stored axes
    block  rows and columns that share a scale; None derives it from the shapes
    """

    codes: Codes
    format: Format
    scale: Values | None = None
    block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.codes.ndim != 2:
            raise UsageError(f"a GEMM operand has two dimensions, found shape {self.codes.shape}; loop over the leading ones")
        if self.scale is not None and self.block is None:
            object.__setattr__(self, "block", scale_blocks(self.shape, np.shape(self.scale)))

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.codes.shape[0]), int(self.codes.shape[1])

    @property
    def wide(self) -> bool:
        """Whether a product of two such values may need more than the 53 bits of float64."""
        return self.format.name in ("float64", "int32")

    @cached_property
    def scale_grid(self) -> Values:
        """The scale as a 2-D grid of blocks (ones without a scale)."""
        if self.scale is None:
            return np.ones((1, 1))
        grid = np.asarray(self.scale, np.float64)
        return grid.reshape(-1, 1) if grid.ndim < 2 else grid

    def values(self, rows: slice = slice(None), cols: slice = slice(None)) -> Values:
        """Decoded values × scale of a block of the store, float64 [rows, cols], C order.

        The product with the scale is rounded to float64: exact for operands of at most 8 bits with a float32 scale (28 of 53
        bits) and for every power-of-two scale.
        """
        part = self.codes[rows, cols]
        out = np.empty(part.shape, np.float64)
        step = max(1, _CHUNK // max(1, part.shape[1]))

        def fill(i: int) -> None:
            out[i : i + step] = decode(part[i : i + step], self.format)

        map_threads(fill, range(0, part.shape[0], step))
        if self.scale is not None:
            out *= self.scale_of(rows, cols)
        return out

    def scale_of(self, rows: slice = slice(None), cols: slice = slice(None)) -> Values:
        """The scale of a block of the store, broadcastable to it: [rows or 1, cols or 1]."""
        if self.scale is None or self.block is None:
            return np.ones((1, 1))
        grid = self.scale_grid
        if grid.shape[0] > 1:
            grid = grid[np.arange(*rows.indices(self.shape[0])) // self.block[0]]
        if grid.shape[1] > 1:
            grid = grid[:, np.arange(*cols.indices(self.shape[1])) // self.block[1]]
        return grid

    def norms(self, axis: int) -> Values:
        """Euclidean norms along a stored axis, relative error below 2^-40; read block by block."""
        rows, cols = self.shape
        out = np.zeros(rows if axis == 1 else cols)
        step = max(1, BLOCK_ELEMENTS // max(1, cols))
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for i in range(0, rows, step):
                x = self.values(slice(i, i + step), slice(0, cols))
                # hypot of block norms: no overflow before the norm itself overflows
                largest = np.abs(x).max(axis=axis, keepdims=True, initial=0.0)
                unit = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
                here = np.sqrt(np.sum((x / unit) ** 2, axis=axis)) * np.squeeze(unit, axis)
                if axis == 1:
                    out[i : i + step] = here
                else:
                    out = np.hypot(out, here)
        return out

    def take_scale(self, indices: NDArray[np.int64], axis: int) -> tuple[Values | None, tuple[int, int] | None]:
        """Scale and block of the operand that keeps only `indices` along a stored axis."""
        if self.scale is None or self.block is None:
            return None, None
        grid, block = self.scale_grid, self.block
        if grid.shape[axis] == 1:
            return grid, (len(indices), block[1]) if axis == 0 else (block[0], len(indices))
        grid = np.take(grid, indices // block[axis], axis=axis)
        return grid, (1, block[1]) if axis == 0 else (block[0], 1)

    def floor_of(self, rows: slice = slice(None), cols: slice = slice(None)) -> Values:
        """Smallest normal magnitude × scale of a block of the store, broadcastable to it."""
        return np.abs(self.scale_of(rows, cols)) * (self.format.smallest_normal if self.format.kind == "float" else 0.0)


@dataclass(frozen=True)
class Gemm:
    """D = alpha·op(A)·op(B) + beta·C + bias from stored codes: everything the reference needs to know.

    a, b         Coded, stored shapes by `layout` (module docstring)
    c            Coded [m, n], read only when beta ≠ 0 (BLAS: a NaN in it does not propagate through beta = 0)
    bias         Coded [n], added to every row
    alpha, beta  rounded to float32 first unless an operand is float64 (the call takes float32 scalars for narrower formats).
                 alpha = 0 drops the product unread, as BLAS does
    a_scale, b_scale   multiply the decoded values. One for all; one a row of op(A) or column of op(B) ([m], [m, 1], [1, m]);
                 or a grid of blocks along the stored axes. a_block, b_block: rows and columns that share one, where the
                 shapes leave a choice
    """

    a: Coded
    b: Coded
    layout: str = "nn"
    alpha: float = 1.0
    beta: float = 0.0
    c: Coded | None = None
    bias: Coded | None = None
    a_scale: Any = None
    b_scale: Any = None
    a_block: tuple[int, int] | None = None
    b_block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(f"unknown GEMM layout {self.layout!r}; allowed: {', '.join(LAYOUTS)}")
        (m, k), (k2, n) = self._logical(self.left, 0), self._logical(self.right, 1)
        if k != k2:
            a, b = self.left.shape, self.right.shape
            fitting = [x for x in LAYOUTS if a["tn".index(x[0])] == b["nt".index(x[1])]]
            advice = f"layout {' or '.join(fitting)} fits" if fitting else "no layout fits"
            raise UsageError(
                f"GEMM operands do not fit: a {a} and b {b} with layout {self.layout} contract {k} with {k2}; {advice} "
                "(n = [m, k] and [k, n], t = [k, m] and [n, k])"
            )
        if self.beta != 0 and (self.c is None or self.c.shape != (m, n)):
            found = "none" if self.c is None else str(self.c.shape)
            raise UsageError(f"beta = {self.beta} needs an operand c of shape {(m, n)}, found {found}")
        if self.bias is not None and int(np.prod(self.bias.shape)) != n:
            raise UsageError(f"a GEMM bias has one element a column ({n}), found shape {self.bias.shape}")

    def _logical(self, operand: Operand, which: int) -> tuple[int, int]:
        return operand.shape if self.layout[which] == "n" else operand.shape[::-1]

    @cached_property
    def left(self) -> Operand:
        return self._operand(self.a, self.a_scale, self.a_block, channel_axis=0 if self.layout[0] == "n" else 1)

    @cached_property
    def right(self) -> Operand:
        return self._operand(self.b, self.b_scale, self.b_block, channel_axis=1 if self.layout[1] == "n" else 0)

    @staticmethod
    def _operand(coded: Coded, scale: Any, block: tuple[int, int] | None, *, channel_axis: int) -> Operand:
        if scale is None:
            return Operand(coded.codes, get_format(coded.format))
        grid = np.asarray(scale, np.float64)
        if block is None and coded.codes.ndim == 2 and grid.size == max(grid.shape, default=1) == coded.codes.shape[channel_axis]:
            grid = grid.reshape((-1, 1) if channel_axis == 0 else (1, -1))
        return Operand(coded.codes, get_format(coded.format), grid, block)

    @cached_property
    def core(self) -> Gemm:
        """The product without `outer_scales`: a sum of products of codes alone has no error where float64 holds them."""
        left, right = self._outer
        return replace(
            self,
            a_scale=None if left else self.left.scale, a_block=None if left else self.left.block,
            b_scale=None if right else self.right.scale, b_block=None if right else self.right.block,
        )  # fmt: skip

    def outer_scales(self, rows: slice) -> tuple[Values, ...]:
        """Scales that are one along the contraction, and so may multiply the sum: of op(A)'s rows [r or 1, 1], of op(B)'s columns
        [1, n or 1]. Products that need two numbers keep theirs inside."""
        left, right = self._outer
        first = slice(0, 1)
        found = []
        if left:
            found.append(self.left.scale_of(rows, first) if self.layout[0] == "n" else self.left.scale_of(first, rows).T)
        if right:
            found.append(self.right.scale_of(first) if self.layout[1] == "n" else self.right.scale_of(slice(None), first).T)
        return tuple(found)

    @cached_property
    def _outer(self) -> tuple[bool, bool]:
        """Whether the scale of A, and that of B, is one along the contraction."""
        a, b = (
            operand.scale is not None and not self.wide and operand.scale_grid.shape[axis] == 1
            for operand, axis in ((self.left, "nt".index(self.layout[0]) ^ 1), (self.right, "nt".index(self.layout[1])))
        )
        return a, b

    @property
    def m(self) -> int:
        return self._logical(self.left, 0)[0]

    @property
    def n(self) -> int:
        return self._logical(self.right, 1)[1]

    @property
    def k(self) -> int:
        return self._logical(self.left, 0)[1]

    @property
    def flop(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k

    @property
    def wide(self) -> bool:
        """Whether products may be inexact in float64, so that the reference needs two float64 numbers per sum."""
        return self.left.wide or self.right.wide

    @property
    def scalars(self) -> tuple[float, float]:
        """alpha and beta as the call receives them."""
        if "float64" in (self.a.format, self.b.format):
            return float(self.alpha), float(self.beta)
        return float(np.float32(self.alpha)), float(np.float32(self.beta))

    def a_values(self, rows: slice, ks: slice) -> Values:
        """op(A)[rows, ks], float64; a transposed view where the store is transposed."""
        return self.left.values(rows, ks) if self.layout[0] == "n" else self.left.values(ks, rows).T

    def b_values(self, ks: slice, cols: slice) -> Values:
        """op(B)[ks, cols], float64; a transposed view where the store is transposed."""
        return self.right.values(ks, cols) if self.layout[1] == "n" else self.right.values(cols, ks).T

    def a_floor(self, rows: slice, ks: slice) -> Values:
        """Smallest normal magnitude × scale under op(A)[rows, ks], broadcastable to it."""
        return self.left.floor_of(rows, ks) if self.layout[0] == "n" else self.left.floor_of(ks, rows).T

    def b_floor(self, ks: slice, cols: slice) -> Values:
        """Smallest normal magnitude × scale under op(B)[ks, cols], broadcastable to it."""
        return self.right.floor_of(ks, cols) if self.layout[1] == "n" else self.right.floor_of(cols, ks).T

    def a_rows(self, rows: Sequence[int] | NDArray[np.int64]) -> Values:
        """op(A)[rows, :] for a list of rows."""
        return (
            np.concatenate([self.a_values(slice(int(i), int(i) + 1), slice(0, self.k)) for i in rows])
            if len(rows)
            else np.empty((0, self.k))
        )

    def b_columns(self, cols: Sequence[int] | NDArray[np.int64]) -> Values:
        """op(B)[:, cols] for a list of columns."""
        if not len(cols):
            return np.empty((self.k, 0))
        return np.concatenate([self.b_values(slice(0, self.k), slice(int(j), int(j) + 1)) for j in cols], axis=1)

    def c_values(self, rows: slice) -> Values:
        """C[rows, :] as float64 [r, n]; C must be present."""
        assert self.c is not None
        return decode(self.c.codes[rows], self.c.format)

    @cached_property
    def bias_values(self) -> Values | None:
        return None if self.bias is None else decode(np.asarray(self.bias.codes).reshape(-1), self.bias.format)

    @cached_property
    def a_norms(self) -> Values:
        """Euclidean norm of each row of op(A), [m]; Inf or NaN where a row holds such."""
        return self.left.norms(1 if self.layout[0] == "n" else 0)

    @cached_property
    def b_norms(self) -> Values:
        """Euclidean norm of each column of op(B), [n]."""
        return self.right.norms(0 if self.layout[1] == "n" else 1)

    def take_rows(self, rows: NDArray[np.int64]) -> Gemm:
        """The problem of only these rows of D."""
        axis = 0 if self.layout[0] == "n" else 1
        scale, block = self.left.take_scale(rows, axis)
        c = None if self.c is None else Coded(self.c.codes[rows], self.c.format)
        a = Coded(np.take(self.a.codes, rows, axis=axis), self.a.format)
        return replace(self, a=a, a_scale=scale, a_block=block, c=c)

    def take_columns(self, columns: NDArray[np.int64]) -> Gemm:
        """The problem of only these columns of D."""
        axis = 1 if self.layout[1] == "n" else 0
        scale, block = self.right.take_scale(columns, axis)
        c = None if self.c is None else Coded(self.c.codes[:, columns], self.c.format)
        bias = None if self.bias is None else Coded(self.bias.codes.reshape(-1)[columns], self.bias.format)
        b = Coded(np.take(self.b.codes, columns, axis=axis), self.b.format)
        return replace(self, b=b, b_scale=scale, b_block=block, c=c, bias=bias)
