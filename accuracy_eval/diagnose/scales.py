"""Rules for scale factors: which rounding rule made them, of which part of the data, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Format, decode, differing, get_format
from accuracy_eval.quantize import RECIPES, element_format, other_layouts, reference_scale, scale_rule
from accuracy_eval.quantize.recipes import Recipe

MOST_BLOCKS = 1 << 16  # looked at
MOST_ELEMENTS = 1 << 22  # of the operand that are read for them


def scale_rounding_rule(look: Look) -> Finding | None:
    """Both sides' scales follow a rule of the same format for the same block maxima, and not the same one."""
    c = look.context
    recipe = RECIPES.get(c.recipe)
    if c.op != "quantize" or recipe is None or look.quiet or not look.open or c.output not in ("", "scale"):
        return None
    if look.m.expected_format != look.fmt.name or look.fmt.name not in ("float8_e8m0fnu", "float32"):
        return None
    rows = min(look.rows, max(1, MOST_BLOCKS // max(look.cols, 1)))
    amax = _amax(look, recipe, rows)
    if amax is None or c.actual is None or c.expected is None:
        return None
    element = element_format(recipe, c.out_format or None, encoding=c.encoding)
    actual, expected = (np.asarray(side(0, rows)).reshape(amax.shape) for side in (c.actual, c.expected))
    if expected.dtype.kind == "f":
        return None
    fits = [_rules(amax, codes, element, look.fmt, recipe) for codes in (actual, expected)]
    here = [r for r in fits[0] if r not in fits[1]]
    there = [r for r in fits[1] if r not in fits[0]]
    if not here or not there:
        return None
    wanted = recipe.rule if recipe.rule in there else there[0]
    evidence = {"actual": here[0] if len(here) == 1 else " or ".join(here), "expected": wanted}
    return Finding(evidence, {"count": str(int((actual != expected).sum())), "total": str(amax.size)})


FEWEST_BLOCKS = 3  # that must differ before scales of few bits say of which part of the data they are
FEWEST_SHIFTED = 12  # before they say how far blocks are beside their place: an element seldom is the largest
PREFIX = 256  # elements: a tensor's amax that stops early stops at a multiple of this


def amax_stale(look: Look) -> Finding | None:
    """All scales are those the recipe gives another part of the data: half a block, its first row, the block before."""
    c = look.context
    recipe = RECIPES.get(c.recipe)
    if c.op != "quantize" or recipe is None or look.quiet or not look.open or c.output not in ("", "scale"):
        return None
    x = c.inputs.get("x")
    if x is None or len(x.shape) != 2 or recipe.hadamard or recipe.rule == "nvfp4" or not 0 < x.codes.size <= MOST_ELEMENTS:
        return None
    blocks = _blocks(np.abs(decode(x.codes, x.format)).astype(np.float32), recipe)
    grid = blocks.shape[0], blocks.shape[2]
    if look.count != grid[0] * grid[1] or c.actual is None or c.expected is None:
        return None
    actual, expected = (np.asarray(side(0, look.rows)).reshape(grid) for side in (c.actual, c.expected))
    if expected.dtype.kind == "f" or look.m.expected_format != look.fmt.name:
        return None
    element = element_format(recipe, c.out_format or None, encoding=c.encoding)
    wrong = int(differing(actual, expected, look.fmt).sum())
    if wrong < FEWEST_BLOCKS and look.fmt.bits <= 8:
        return None
    tried = chain(_parts(blocks), _shifted(blocks) if wrong >= FEWEST_SHIFTED else ())
    parts = [part for part, amax in tried if not differing(actual, reference_scale(amax, recipe, element), look.fmt).any()]
    if not parts:
        return None
    words = {"count": str(wrong), "total": str(look.count)}
    return Finding({"part": " or ".join(dict.fromkeys(parts))}, words)


def _blocks(x: NDArray[np.float32], recipe: Recipe) -> NDArray[np.float32]:
    """[block rows, rows of a block, blocks along k, elements], tails padded with zeros."""
    m, n = x.shape
    height, width = recipe.block[0] or m, recipe.block[1] or n
    padded = np.zeros((-(-m // height) * height, -(-n // width) * width), np.float32)
    padded[:m, :n] = x
    return padded.reshape(padded.shape[0] // height, height, padded.shape[1] // width, width)


def _parts(blocks: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Parts of the data whose largest magnitude a faulty reduction takes for the block's: [block rows, blocks along k] each."""
    rows, height, columns, width = blocks.shape
    whole = blocks.max(axis=(1, 3))
    if width > 1:
        yield "the first half of each block", blocks[..., : width // 2].max(axis=(1, 3))
        yield "the second half of each block", blocks[..., width // 2 :].max(axis=(1, 3))
        yield "every second element", blocks[..., ::2].max(axis=(1, 3))
        yield "each block but its last element", blocks[..., :-1].max(axis=(1, 3))
    if height > 1:
        yield "the first row of each block", blocks[:, :1].max(axis=(1, 3))
        yield "the first half of its rows", blocks[:, : height // 2].max(axis=(1, 3))
        yield "each block but its last row", blocks[:, :-1].max(axis=(1, 3))
    if columns > 1:
        yield "the block before along k", np.roll(whole, 1, axis=1)
        yield "the block before along k", whole[:, np.maximum(np.arange(columns) - 1, 0)]
    if rows > 1:
        yield "the row before", np.roll(whole, 1, axis=0)
        yield "the row before", whole[np.maximum(np.arange(rows) - 1, 0)]
    if rows * columns == 1:
        flat = blocks.reshape(-1)
        size = PREFIX
        while size < flat.size:
            yield f"the first {size} elements", flat[:size].max().reshape(1, 1)
            size *= 2


def _shifted(blocks: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Blocks that begin one element, or half a block, beside their place along k; zeros, or the other end of the row, beyond an end."""
    rows, height, columns, width = blocks.shape
    if columns * width < 2 * max(width, 2):
        return
    lines = blocks.reshape(rows, height, columns * width)
    for by in dict.fromkeys((1, width // 2)):
        elements = "an element" if by == 1 else f"{by} elements"
        for sign, where in ((1, "late"), (-1, "early")):
            turned = np.roll(lines, -sign * by, axis=2)
            cut = turned.copy()
            cut[..., slice(-by, None) if sign > 0 else slice(0, by)] = 0
            for moved in (cut, turned):
                yield f"blocks that begin {elements} {where}", moved.reshape(blocks.shape).max(axis=(1, 3))


def stored_elsewhere(look: Look) -> Finding | None:
    """A quantiser's scales are the right ones in another layout: transposed, or in tiles."""
    c = look.context
    if c.op != "quantize" or c.output not in ("", "scale") or look.quiet or not look.open or min(look.rows, look.cols) < 2:
        return None
    if c.actual is None or c.expected is None or look.m.expected_format != look.fmt.name or look.count > MOST_BLOCKS:
        return None
    actual, expected = (np.asarray(side(0, look.rows)) for side in (c.actual, c.expected))
    wrong = int((actual != expected).sum())
    if expected.dtype.kind == "f" or wrong < FEWEST_BLOCKS:
        return None
    written = np.trim_zeros(actual.reshape(-1), "b")
    if np.array_equal(written, expected.reshape(-1)[: written.size]):  # a tail of zeros, whatever layout has one there too
        return None
    found = [what for what, moved in other_layouts(expected) if np.array_equal(actual, moved)]
    return Finding({"blocks": wrong}, {"operand": "x", "what": " or ".join(found), "total": str(look.count)}) if found else None


def _rules(amax: NDArray[Any], codes: NDArray[Any], element: Format, fmt: Format, recipe: Recipe) -> list[str]:
    return scale_rule(amax, codes, element, scale_format=fmt.name, floor=recipe.floor)


def _amax(look: Look, recipe: Recipe, rows: int) -> NDArray[np.float32] | None:
    """Largest magnitudes of the blocks behind the first `rows` rows of scales: given, or taken from x."""
    inputs = look.context.inputs
    if "amax" in inputs:
        given = inputs["amax"]
        if given.codes.size != look.count:
            return None
        values = decode(given.codes, given.format).reshape(look.rows, look.cols)[:rows]
        return np.abs(values).astype(np.float32)
    x = inputs.get("x")
    if x is None or x.codes.ndim != 2 or recipe.hadamard:
        return None
    m, n = x.shape
    height, width = recipe.block[0] or m, recipe.block[1] or n
    grid = (-(-m // max(height, 1)), -(-n // max(width, 1)))
    if look.count != grid[0] * grid[1] or m * n == 0:
        return None
    # a scale of a tensor or a row is stored as () or (m,): one row of the 2-D view
    blocks = grid[0] if look.cols != grid[1] else rows
    if min(m, blocks * height) * n > MOST_ELEMENTS:
        if look.cols != grid[1]:
            return None
        blocks = max(1, MOST_ELEMENTS // (n * height))
        if blocks * height * n > 4 * MOST_ELEMENTS:
            return None
    part = np.abs(decode(x.codes[: blocks * height], get_format(x.format)))
    padded = np.zeros((blocks * height, grid[1] * width))
    padded[: part.shape[0], :n] = part
    found = padded.reshape(blocks, height, grid[1], width).max(axis=(1, 3))
    return None if blocks < rows and look.cols == grid[1] else found.astype(np.float32).reshape(-1, look.cols)
