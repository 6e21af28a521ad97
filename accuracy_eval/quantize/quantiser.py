"""Operand codes in, element codes and scale codes out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, Overflow, get_format
from accuracy_eval.quantize.blocks import Blocks
from accuracy_eval.quantize.quantised import Quantised
from accuracy_eval.quantize.recipes import Encoding, Recipe, element_format, get_recipe
from accuracy_eval.quantize.rotate import hadamard16
from accuracy_eval.quantize.scales import SCALE_RULES, global_scale_of, target, under_scale
from accuracy_eval.quantize.work import Work, loops

SOURCES = ("float32", "bfloat16", "float16")
_NAN = np.uint32(0x7FC00000)  # every NaN among scales of float32


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
    r, source, x = get_recipe(recipe), get_format(fmt), np.asarray(codes)
    _check_operand(x, source, axis)
    if global_scale is not None and r.rule != "nvfp4":
        raise UsageError(f"quantize: recipe {r.name} has no global scale")
    elem = element_format(r, element, encoding=encoding, gradient=gradient)
    policy = _policy(r, elem, overflow)
    blocks = Blocks(x.shape, axis % x.ndim, r.block)
    work = _work(x, source, r, elem, blocks, threads=threads, compiled=compiled)
    rule, amax = SCALE_RULES[r.rule], work.amax()
    g = _global_scale(amax, r, elem, global_scale)
    t = target(r, elem, global_scale=1.0 if g is None else float(g))
    scaling = rule.apply(amax, t)
    if scale is not None:
        scaling = under_scale(blocks.flat(scale), rule, scaling)
    return Quantised(
        blocks.elements(work.encode(scaling, t.top, t.global_scale, policy)),
        elem.name,
        blocks.stored(scaling.scale),
        rule.scale_format,
        r.name,
        blocks.axis,
        blocks.sizes,
        inv_scale=blocks.stored(_float32_codes(scaling.factor)) if r.rule == "max_over_amax" else None,
        global_scale=None if g is None else _float32_codes(np.asarray(g)),
    )


def block_maxima(codes: Codes, fmt: str | Format, recipe: str | Recipe, *, axis: int = -1) -> NDArray[np.float32]:
    """Largest magnitude of what shares each scale, float32, in the shape the recipe stores scales; operand as in `quantize`."""
    r, x = get_recipe(recipe), np.asarray(codes)
    blocks = Blocks(x.shape, axis % x.ndim, r.block)
    return blocks.stored(_work(x, get_format(fmt), r, get_format("float32"), blocks).amax())


def _check_operand(x: NDArray[Any], source: Format, axis: int) -> None:
    if source.name not in SOURCES:
        raise UsageError(f"quantize: operands are codes of {', '.join(SOURCES)}, found {source.name}")
    if x.dtype.kind != "u" or x.dtype.itemsize != source.storage.itemsize:
        raise UsageError(f"quantize: codes of {source.name} are {source.storage.name}, found dtype {x.dtype}")
    if x.ndim == 0 or not -x.ndim <= axis < x.ndim:
        raise UsageError(f"quantize: no axis {axis} in an operand of shape {x.shape}")


def _work(
    x: Codes, source: Format, recipe: Recipe, element: Format, blocks: Blocks, *, threads: int | None = None, compiled: bool = True
) -> Work:
    """The operand cut for the loops; rotated first where the recipe says so."""
    if recipe.hadamard:
        x, source = hadamard16(x, source, axis=blocks.axis), get_format("float32")
    return Work(recipe, element, source, blocks.matrices(x), recipe.block, threads, loops(compiled))


def _policy(r: Recipe, element: Format, overflow: Overflow | None) -> Overflow:
    """The overflow policy, refused where the element cannot express it."""
    policy = overflow or r.overflow
    if policy == "saturate" or (element.has_inf if policy == "inf" else element.has_nan and r.rule != "nvfp4"):
        return policy
    raise UsageError(
        f"quantize: overflow policy {policy!r}: {element.name} has no {'Inf' if policy == 'inf' else 'NaN'}; allowed: saturate"
    )


def _global_scale(amax: NDArray[np.float32], r: Recipe, elem: Format, given: float | None) -> np.float32 | None:
    if r.rule != "nvfp4":
        return None
    if given is not None:
        return np.float32(given)
    return global_scale_of(float(amax.max(initial=0.0)), r.largest(elem))


def _float32_codes(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Codes of scales, every NaN as one."""
    return np.asarray(np.where(np.isnan(x), _NAN, x.view(np.uint32)))
