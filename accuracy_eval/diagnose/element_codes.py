"""Rules for the element codes of a quantiser whose scales are right: which block's scale they were made with, and how they are packed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Codes, decode, differing
from accuracy_eval.quantize import RECIPES, Quantised, Recipe, element_format, quantize
from accuracy_eval.records import Coded

FEWEST = 12  # wrong codes that must all be explained
MOST_ELEMENTS = 1 << 20  # of the operand that is quantised again


def _sides(look: Look) -> tuple[Codes, Codes] | None:
    """Codes of both sides, where they are elements of a quantiser; None where too few are wrong."""
    c = look.context
    if c.op != "quantize" or c.output not in ("", "codes") or look.quiet or not look.open or not 0 < look.count <= MOST_ELEMENTS:
        return None
    assert c.actual is not None
    assert c.expected is not None
    actual, expected = (np.asarray(side(0, look.rows)) for side in (c.actual, c.expected))
    if expected.dtype.kind == "f" or look.m.expected_format != look.fmt.name or differing(actual, expected, look.fmt).sum() < FEWEST:
        return None
    return actual, expected


def pairs_exchanged(look: Look) -> Finding | None:
    """Two elements share a byte, and the first is where the second should be."""
    sides = _sides(look) if look.fmt.bits == 4 and look.cols % 2 == 0 else None
    if sides is None:
        return None
    actual, expected = sides
    exchanged = expected.reshape(look.rows, -1, 2)[..., ::-1].reshape(expected.shape)
    return Finding({"step": "the two elements of every byte are exchanged"}) if np.array_equal(actual, exchanged) else None


def scale_of_a_neighbour(look: Look) -> Finding | None:
    """Every wrong code is the right one under the scale of the next block or row of blocks, or of the one before."""
    c, sides = look.context, _sides(look)
    x, recipe = c.inputs.get("x"), RECIPES.get(c.recipe)
    if sides is None or x is None or x.codes.ndim != 2 or recipe is None or recipe.hadamard:
        return None
    actual, expected = sides
    wrong = differing(actual, expected, look.fmt)
    right = quantize(x.codes, x.format, recipe, element=element_format(recipe, c.out_format or None, encoding=c.encoding))
    found = [(axis, by) for axis, by, codes in _moved(x, recipe, right) if not differing(actual, codes, look.fmt)[wrong].any()]
    if len(found) != 1:
        return None
    axis, by = found[0]
    whose = ("next" if by > 0 else "previous") + (" row of scales" if axis == 0 else " block along k")
    which = _part(wrong, recipe.block[1]) if axis == 1 else "elements of a block"
    height, width = (size or whole for size, whole in zip(recipe.block, x.shape, strict=True))
    rows, columns = np.nonzero(wrong)
    blocks = np.unique(np.stack([rows // height, columns // width]), axis=1).shape[1]
    words = {"operand": "x", "what": f"{which} met the scale of the {whose}", "total": str(right.scale.size)}
    return Finding({"blocks": blocks}, words)


def _moved(x: Coded, recipe: Recipe, right: Quantised) -> Iterator[tuple[int, int, Codes]]:
    """Codes of x with each scale in the place of its neighbour: axis, distance, codes."""
    whole = None if right.global_scale is None else float(decode(right.global_scale, "float32"))
    for axis in range(right.scale.ndim):
        for by in (1, -1) if right.scale.shape[axis] > 1 else ():
            scale = np.roll(right.scale, -by, axis=axis)
            yield axis, by, quantize(x.codes, x.format, recipe, element=right.format, scale=scale, global_scale=whole).codes


def _part(wrong: NDArray[np.bool_], width: int) -> str:
    """Which elements of the blocks are wrong."""
    places = np.unique(np.nonzero(wrong)[1] % width)
    for name, count in (("first", int(places[-1]) + 1), ("last", width - int(places[0]))):
        if count <= width // 2:
            return f"the {name} {count} elements of a block" if count > 1 else f"the {name} element of a block"
    return "elements of a block"
