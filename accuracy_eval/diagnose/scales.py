"""Rules for scale factors: which rounding rule made them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Format, decode, get_format
from accuracy_eval.quantize import RECIPES, element_format, scale_rule
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
