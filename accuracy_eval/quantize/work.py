"""An operand cut into panels that go through the inner loops on a thread pool.

Two passes over the codes: block maxima, then (scales being known) one rounding per element. Every element is computed by itself, so the
bits do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Overflow, decode
from accuracy_eval.quantize.recipes import Recipe
from accuracy_eval.quantize.scales import Scaling
from accuracy_eval.threads import map_threads

PANEL = 1 << 17  # elements handed to a thread at once; with its output it stays in the L2 cache


def loops(compiled: bool) -> Any:
    """The module of inner loops; numba loads with the first quantisation, not with the import."""
    from accuracy_eval.quantize import kernels, plain

    return kernels if compiled else plain


@dataclass(frozen=True)
class Work:
    """One operand as [batch, rows, K] codes, cut into panels of rows (of elements, where there is one scale in all)."""

    recipe: Recipe
    element: Format
    source: Format
    x: Codes
    block: tuple[int, int]
    threads: int | None
    loops: Any

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and elements per block; whole extents are at least 1."""
        return self.block[0] or 1, self.block[1] or max(1, self.x.shape[2])

    @property
    def grid(self) -> tuple[int, int, int]:
        """[batch, block rows, block columns] of the scales; a whole extent has one, empty or not."""
        batch, rows, length = self.x.shape
        block_rows, block = self.extent
        return batch, -(-rows // block_rows), -(-length // block) if self.block[1] else 1

    def panels(self) -> list[tuple[int, int, int]]:
        """(batch, first row, last row) of each panel: whole block rows, about PANEL elements."""
        batch, rows, length = self.x.shape
        block_rows = self.extent[0]
        step = max(1, PANEL // max(1, length * block_rows)) * block_rows
        return [(b, i, min(rows, i + step)) for b in range(batch) for i in range(0, rows, step)]

    def run(self, function: Callable[[tuple[int, int, int]], Any], items: list[tuple[int, int, int]]) -> None:
        def quiet(item: tuple[int, int, int]) -> Any:
            with np.errstate(all="ignore"):  # NaN and Inf are data here; matters only where the kernels run uncompiled
                return function(item)

        map_threads(quiet, items, threads=self.threads)

    def words(self, part: Codes) -> tuple[Codes, np.uint32]:
        """Codes as the kernels take them, and the shift that makes them float32 bits."""
        if self.source.name == "float16":
            return np.ascontiguousarray(part).view(np.float16).astype(np.float32).view(np.uint32), np.uint32(0)
        return part, np.uint32(16 if self.source.name == "bfloat16" else 0)

    def amax(self) -> NDArray[np.float32]:
        """Largest magnitudes as float32, flat in block order."""
        block_amax = self.loops.block_amax
        block_rows, block = self.extent
        bits = np.zeros(self.grid, np.uint32)
        if self.block == (0, 0):
            parts = self.chunks()
            partial = np.zeros((len(parts), 1), np.uint32)

            def chunk(item: tuple[int, int, int]) -> None:
                part, shift = self.words(self.x[0, :, item[1] : item[2]])
                block_amax(part, 1, max(1, part.shape[1]), shift, partial[item[0] : item[0] + 1])

            self.run(chunk, parts)
            bits[...] = partial.max(initial=0)
        else:

            def panel(item: tuple[int, int, int]) -> None:
                b, first, last = item
                part, shift = self.words(self.x[b, first:last])
                block_amax(part, block_rows, block, shift, bits[b, first // block_rows : -(-last // block_rows)])

            self.run(panel, self.panels())
        return bits.reshape(-1).view(np.float32)

    def chunks(self) -> list[tuple[int, int, int]]:
        """(number, first, last) element of each piece of a tensor that has one scale."""
        size = self.x.shape[2]
        return [(n, i, min(size, i + PANEL)) for n, i in enumerate(range(0, size, PANEL))]

    def encode(self, scaling: Scaling, top: float, global_scale: float, overflow: Overflow) -> Codes:
        """Element codes [batch, rows, K]."""
        out = np.empty(self.x.shape, self.element.storage)
        encode_part = self.encoder(scaling.divide, top, overflow)
        if self.recipe.rule == "nvfp4":
            factor: NDArray[Any] = (decode(scaling.scale, "float8_ue4m3") * global_scale).reshape(self.grid)
        else:
            factor = scaling.factor.reshape(self.grid)
        block_rows, block = self.extent
        if self.block == (0, 0):

            def chunk(item: tuple[int, int, int]) -> None:
                _, first, last = item
                encode_part(*self.words(self.x[0, :, first:last]), factor[0], 1, last - first, out[0, :, first:last])

            self.run(chunk, self.chunks())
        else:

            def panel(item: tuple[int, int, int]) -> None:
                b, first, last = item
                part, shift = self.words(self.x[b, first:last])
                encode_part(part, shift, factor[b, first // block_rows : -(-last // block_rows)], block_rows, block, out[b, first:last])

            self.run(panel, self.panels())
        return out

    def encoder(self, divide: bool, top: float, overflow: Overflow) -> Callable[..., None]:
        """The kernel for this element: (codes, shift, factor, rows per block, elements per block, out)."""
        from accuracy_eval.quantize.kernels import element_constants

        kernels = self.loops
        if self.recipe.rule == "nvfp4":
            return lambda x, shift, factor, rows, block, out: kernels.encode_e2m1_exact(x, factor, block, shift, out)
        if self.element.kind == "int":
            return lambda x, shift, factor, rows, block, out: kernels.encode_int8(
                x, factor, rows, block, divide, shift, np.float32(top), out
            )
        constants = element_constants(self.element, top, overflow)
        return lambda x, shift, factor, rows, block, out: kernels.encode_blocks(x, factor, rows, block, divide, shift, constants, out)
