"""Where the blocks of an operand lie: which elements share a scale, and in which order the work meets them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes


@dataclass(frozen=True)
class Blocks:
    """The blocks of an operand of `shape` under a recipe's `block`, running along `axis`.

    The work has the contraction axis last and meets blocks in that order; scales are stored where their blocks lie in the operand.
    """

    shape: tuple[int, ...]
    axis: int
    block: tuple[int, int]

    @property
    def moved(self) -> list[int]:
        """Axes in the order of the work: the contraction axis last."""
        return [i for i in range(len(self.shape)) if i != self.axis] + [self.axis]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements per block along each axis of the operand; 0 the whole axis."""
        rows, columns = self.block
        if self.block == (0, 0):
            return (0,) * len(self.shape)
        found = [1] * len(self.shape)
        found[self.axis] = columns
        if rows > 1 and len(self.shape) > 1:
            found[self.moved[-2]] = rows
        return tuple(found)

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """Shape of the stored scales."""
        if self.block == (0, 0):
            return ()
        if self.block[1] == 0:
            return self.shape[: self.axis] + self.shape[self.axis + 1 :]
        return tuple(-(-n // b) for n, b in zip(self.shape, self.sizes, strict=True))

    def matrices(self, x: Codes) -> Codes:
        """The operand as [batch, rows, K]: batch 1 unless blocks span rows, one row if one scale serves all."""
        moved = np.ascontiguousarray(np.moveaxis(x, self.axis, -1))
        if self.block == (0, 0):
            return moved.reshape(1, 1, -1)
        rows = math.prod(moved.shape[:-1])
        if self.block[0] == 1:
            return moved.reshape(1, rows, moved.shape[-1])
        last = moved.shape[-2] if moved.ndim > 1 else 1
        return moved.reshape(math.prod(moved.shape[:-2]), last, moved.shape[-1])

    def elements(self, worked: Codes) -> Codes:
        """Codes [batch, rows, K] of the work as the operand: the inverse of `matrices`."""
        return np.ascontiguousarray(np.moveaxis(worked.reshape([self.shape[i] for i in self.moved]), -1, self.axis))

    def stored(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Numbers of blocks in the order of the work, to where their blocks lie in the operand."""
        shape = self.scale_shape
        if len(shape) < len(self.shape):
            return flat.reshape(shape)
        return np.ascontiguousarray(np.moveaxis(flat.reshape([shape[i] for i in self.moved]), -1, self.axis))

    def flat(self, scale: Codes) -> Codes:
        """Scales as stored, in the order of the work: the inverse of `stored`. UsageError for another shape."""
        s, shape = np.asarray(scale), self.scale_shape
        if s.shape != shape:
            raise UsageError(f"quantize: scales of shape {s.shape}; the recipe stores {shape} for this operand")
        return np.ascontiguousarray(s.transpose(self.moved) if s.ndim == len(self.shape) else s).reshape(-1)
