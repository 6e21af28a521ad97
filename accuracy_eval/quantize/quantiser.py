"""Operand codes in, element codes and scale codes out; and back, exactly.

A quantisation is two passes over the codes: block maxima, then (scales being known) one rounding per element. Both run as
compiled loops over row panels on a thread pool; every element is computed by itself, so the bits do not depend on the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, Overflow, Values, decode, get_format
from accuracy_eval.quantize.recipes import Encoding, Recipe, element_format, get_recipe
from accuracy_eval.quantize.rotate import hadamard16
from accuracy_eval.quantize.scales import SCALE_RULES, Scaling, global_scale_of, target, under_scale
from accuracy_eval.threads import map_threads

PANEL = 1 << 17  # elements handed to a thread at once; with its output it stays in the L2 cache
SOURCES = ("float32", "bfloat16", "float16")


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


def quantize(
    codes: Codes,
    fmt: str | Format,
    recipe: str | Recipe,
    *,
    axis: int = -1,
    encoding: Encoding = "ocp",
    element: str | Format | None = None,
    gradient: bool = False,
    global_scale: float | None = None,
    scale: Codes | None = None,
    overflow: Overflow | None = None,
    threads: int | None = None,
    compiled: bool = True,
) -> Quantised:
    """`codes` of `fmt` (float32, bfloat16 or float16) quantised by `recipe`, blocks running along `axis`, the contraction axis.

    encoding : which concrete format an element family stands for. element : family or concrete format in place of the recipe's.
    gradient : the operand is an upstream gradient; only `hybrid` makes a difference. global_scale : nvfp4 only, its value in
    place of fl32(amax / (448·6)). scale : scale codes to use in place of the recipe's, shaped as the recipe stores them: the codes a
    correct quantiser gives under somebody else's scales. overflow : what rounds beyond the largest code value used, and an infinity
    under a finite scale, becomes; None is the recipe's own (saturate, but where a row says otherwise). threads : None takes all
    cores; compiled : by numba, else by numpy; the bits depend on neither.

    Square blocks tile `axis` and the last of the other axes; tail blocks are partial. A block holding NaN or Inf dequantises to
    NaN as a whole (`unit` excepted: Inf saturates); element codes there are NaN where the format has NaN and the scaled value is
    one, else 0. All-zero blocks give zero codes, keeping signs, and the scale of amax 0. An operand without elements has scales
    of amax 0 where it has any. With `hadamard` the values are the rotated ones: `dequantize` does not rotate back.
    """
    r = get_recipe(recipe)
    source = get_format(fmt)
    if source.name not in SOURCES:
        raise UsageError(f"quantize: operands are codes of {', '.join(SOURCES)}, found {source.name}")
    x = np.asarray(codes)
    if x.dtype.kind != "u" or x.dtype.itemsize != source.storage.itemsize:
        raise UsageError(f"quantize: codes of {source.name} are {source.storage.name}, found dtype {x.dtype}")
    if x.ndim == 0 or not -x.ndim <= axis < x.ndim:
        raise UsageError(f"quantize: no axis {axis} in an operand of shape {x.shape}")
    if global_scale is not None and r.rule != "nvfp4":
        raise UsageError(f"quantize: recipe {r.name} has no global scale")
    elem = element_format(r, element, encoding=encoding, gradient=gradient)
    policy = _policy(r, elem, overflow)
    axis %= x.ndim
    if r.hadamard:
        x, source = hadamard16(x, source, axis=axis), get_format("float32")
    work = _Work(r, elem, source, _matrices(x, axis, r), r.block, threads, _loops(compiled))
    amax = work.amax()
    g = _global_scale(amax, r, elem, global_scale)
    t = target(r, elem, global_scale=1.0 if g is None else float(g))
    scaling = SCALE_RULES[r.rule].apply(amax, t)
    blocks, shape = _scale_shape(x.shape, axis, r)
    moved = _moved_shape(x.shape, axis)
    if scale is not None:
        scaling = under_scale(_in_work_order(scale, shape, moved), SCALE_RULES[r.rule], scaling)
    result = work.encode(scaling, t.top, t.global_scale, policy)

    def back(flat: Codes) -> Codes:
        return _in_operand_order(flat, shape, moved, axis)

    out = np.ascontiguousarray(np.moveaxis(result.reshape([x.shape[i] for i in moved]), -1, axis))
    inverse = (
        back(np.where(np.isnan(scaling.factor), np.uint32(0x7FC00000), scaling.factor.view(np.uint32)))
        if r.rule == "max_over_amax"
        else None
    )
    return Quantised(
        out,
        elem.name,
        back(scaling.scale),
        SCALE_RULES[r.rule].scale_format,
        r.name,
        axis,
        blocks,
        inverse,
        None if g is None else np.asarray(np.uint32(0x7FC00000) if np.isnan(g) else g.view(np.uint32)),
    )


def _loops(compiled: bool) -> Any:
    """The module of inner loops; numba loads with the first quantisation, not with the import."""
    from accuracy_eval.quantize import kernels, plain

    return kernels if compiled else plain


def block_maxima(codes: Codes, fmt: str | Format, recipe: str | Recipe, *, axis: int = -1) -> NDArray[np.float32]:
    """Largest magnitude of what shares each scale, float32, in the shape the recipe stores scales; operand as in `quantize`."""
    r, source, x = get_recipe(recipe), get_format(fmt), np.asarray(codes)
    axis %= x.ndim
    if r.hadamard:
        x, source = hadamard16(x, source, axis=axis), get_format("float32")
    _, shape = _scale_shape(x.shape, axis, r)
    flat = _Work(r, get_format("float32"), source, _matrices(x, axis, r), r.block, None, _loops(compiled=True)).amax()
    return _in_operand_order(flat, shape, _moved_shape(x.shape, axis), axis)


def _in_operand_order(flat: NDArray[Any], shape: tuple[int, ...], moved: list[int], axis: int) -> NDArray[Any]:
    """Numbers of blocks in the order of the work, to where their blocks lie in the operand."""
    if len(shape) < len(moved):
        return flat.reshape(shape)
    return np.ascontiguousarray(np.moveaxis(flat.reshape([shape[i] for i in moved]), -1, axis))


def _policy(r: Recipe, element: Format, overflow: Overflow | None) -> Overflow:
    """The overflow policy, refused where the element cannot express it."""
    policy = overflow or r.overflow
    if policy == "saturate" or (element.has_inf if policy == "inf" else element.has_nan and r.rule != "nvfp4"):
        return policy
    raise UsageError(
        f"quantize: overflow policy {policy!r}: {element.name} has no {'Inf' if policy == 'inf' else 'NaN'}; allowed: saturate"
    )


def _in_work_order(scale: Codes, shape: tuple[int, ...], moved: list[int]) -> Codes:
    """Scales where their blocks lie in the operand, to the flat order of the work: the inverse of `_in_operand_order`."""
    s = np.asarray(scale)
    if s.shape != shape:
        raise UsageError(f"quantize: scales of shape {s.shape}; the recipe stores {shape} for this operand")
    return np.ascontiguousarray(s.transpose(moved) if s.ndim == len(moved) else s).reshape(-1)


def _moved_shape(shape: tuple[int, ...], axis: int) -> list[int]:
    """Axes in the order of the work: the contraction axis last."""
    return [i for i in range(len(shape)) if i != axis] + [axis]


def _matrices(x: Codes, axis: int, r: Recipe) -> Codes:
    """The operand as [batch, rows, K]: batch 1 unless blocks span rows, one row if one scale serves all."""
    moved = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    if r.block == (0, 0):
        return moved.reshape(1, 1, -1)
    rows = math.prod(moved.shape[:-1])
    if r.block[0] == 1:
        return moved.reshape(1, rows, moved.shape[-1])
    last = moved.shape[-2] if moved.ndim > 1 else 1
    return moved.reshape(math.prod(moved.shape[:-2]), last, moved.shape[-1])


def _scale_shape(shape: tuple[int, ...], axis: int, r: Recipe) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Blocks per axis of the operand, and the shape of the stored scales."""
    rows, columns = r.block
    if (rows, columns) == (0, 0):
        return (0,) * len(shape), ()
    blocks = [1] * len(shape)
    blocks[axis] = columns
    if rows > 1 and len(shape) > 1:
        blocks[_moved_shape(shape, axis)[-2]] = rows
    if columns == 0:
        return tuple(blocks), shape[:axis] + shape[axis + 1 :]
    return tuple(blocks), tuple(-(-n // b) for n, b in zip(shape, blocks, strict=True))


def _global_scale(amax: NDArray[np.float32], r: Recipe, elem: Format, given: float | None) -> np.float32 | None:
    if r.rule != "nvfp4":
        return None
    if given is not None:
        return np.float32(given)
    return global_scale_of(float(amax.max(initial=0.0)), r.largest(elem))


@dataclass(frozen=True)
class _Work:
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


def dequantize(q: Quantised, *, rows: tuple[int, int] | None = None, threads: int | None = None, compiled: bool = True) -> Values:
    """Exact float64 values of `q`: code value · scale (· global scale), shape of the operand.

    rows : (first, last) along the first axis, for a part of the operand; None is all. Products need at most 32 significant bits
    (NVFP4: 30), so float64 holds them exactly. NaN scales and Inf · 0 give NaN.
    """
    decode_blocks = _loops(compiled).decode_blocks
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
