"""Recipes as rows, and a quantiser whose every step is one named rounding.

`RECIPES` is the one place to add a recipe; `SCALE_RULES` the one place to add a way of choosing scales. `quantize` turns
float32, bfloat16 or float16 codes into element codes and scale codes; `dequantize` gives their exact values. `reference_scale`,
`scale_rule` and `exponent_step_histogram` judge scale factors by themselves; `layout` holds padded and swizzled scale storage.

Terms: *scale* multiplies code values to give values, *inv_scale* is what the data were multiplied by before rounding. What some
libraries store as `scale_inv` is the scale here. Importing this package does not import numba; the first `quantize` does.
"""

from __future__ import annotations

from accuracy_eval.quantize.comparison import compare_scales
from accuracy_eval.quantize.layout import (
    layout_of,
    misreadings,
    other_layouts,
    overreadings,
    pad_scales,
    padded_scale,
    swizzle_scales,
    unswizzle_scales,
)
from accuracy_eval.quantize.quantised import Quantised, dequantize
from accuracy_eval.quantize.quantiser import block_maxima, quantize
from accuracy_eval.quantize.recipes import RECIPES, Recipe, element_format, get_recipe
from accuracy_eval.quantize.rotate import hadamard16
from accuracy_eval.quantize.scales import (
    SCALE_RULES,
    ExponentSteps,
    ScaleRule,
    exponent_step_histogram,
    reference_scale,
    scale_rule,
)

__all__ = [
    "RECIPES",
    "SCALE_RULES",
    "ExponentSteps",
    "Quantised",
    "Recipe",
    "ScaleRule",
    "block_maxima",
    "compare_scales",
    "dequantize",
    "element_format",
    "exponent_step_histogram",
    "get_recipe",
    "hadamard16",
    "layout_of",
    "misreadings",
    "other_layouts",
    "overreadings",
    "pad_scales",
    "padded_scale",
    "quantize",
    "reference_scale",
    "scale_rule",
    "swizzle_scales",
    "unswizzle_scales",
]
