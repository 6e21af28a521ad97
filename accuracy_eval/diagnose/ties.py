"""Ties that a cast or a quantiser rounds another way than to even: operands moved by their last place say where the ties are."""

from __future__ import annotations

import math

import numpy as np

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Values, decode, round_to
from accuracy_eval.quantize import RECIPES, element_format, quantize

FEWEST = 8  # wrong elements, all of them ties
SAME = 0.99  # of the ties that must be rounded so: a place of float32 beside a tie looks like one
MOST_ELEMENTS = 1 << 20  # of an operand that is quantised again


def ties_rounded(look: Look) -> Finding | None:
    """The one rule for ties that gives what the output holds, where every wrong element is a tie."""
    if look.quiet or look.whole is None or int(look.wrong.sum()) < FEWEST:
        return None
    around = _around(look)
    if around is None:
        return None
    below, above = around
    actual, wrong = look.whole[0], look.wrong
    ties = (below < above) & np.isfinite(below) & np.isfinite(above)
    if not ties[wrong].all():
        return None
    outward = np.abs(above) > np.abs(below)
    rules = {
        "away from zero": np.where(outward, above, below), "toward zero": np.where(outward, below, above), "up": above, "down": below,
    }  # fmt: skip
    found = [how for how, held in rules.items() if (actual == held)[wrong].all() and (actual == held)[ties].mean() >= SAME]
    if len(found) != 1:
        return None
    return Finding({"how": found[0]}, {"count": str(int(wrong.sum())), "total": str(look.count)})


def _around(look: Look) -> tuple[Values, Values] | None:
    """What the output would hold of operands one place lower and higher: the two differ at ties. None for other ops."""
    c = look.context
    x = c.inputs.get("x")
    if x is None or x.codes.size != look.count:
        return None
    values = decode(x.codes, x.format).reshape(look.rows, look.cols)
    if c.op == "cast":
        ends = (round_to(np.nextafter(values, end), look.fmt) for end in (-math.inf, math.inf))
    elif c.op == "quantize" and c.output in ("", "codes") and look.count <= MOST_ELEMENTS:
        recipe = RECIPES.get(c.recipe)
        if recipe is None or recipe.hadamard or x.codes.ndim != 2:
            return None
        element = element_format(recipe, c.out_format or None, encoding=c.encoding)
        right = quantize(x.codes, x.format, recipe, element=element)
        whole = None if right.global_scale is None else float(decode(right.global_scale, "float32"))
        moved = (np.nextafter(values.astype(np.float32), np.float32(end)).view(np.uint32) for end in (-math.inf, math.inf))
        held = (quantize(m, "float32", recipe, element=element, scale=right.scale, global_scale=whole).codes for m in moved)
        ends = (decode(codes, element) for codes in held)
    else:
        return None
    below, above = ends
    return below, above
