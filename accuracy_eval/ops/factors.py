"""The factors of a quantised product: element codes and scales that our quantiser makes from unquantised operands.

A product with a recipe is D = L·Rᵀ of two factors, each contracted along its last axis and quantised by itself. Forward those are
`a` [m, k] and `b` [n, k]. Backward, what is contracted along another axis is quantised anew: dA = grad_d·b_tᵀ and
dB = grad_d_t·a_tᵀ with grad_d [m, n], b_t [k, n], grad_d_t [n, m], a_t [k, m]; square blocks and one scale a tensor give the same
codes either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Format, decode, encode, get_format
from accuracy_eval.ops.spec import Option
from accuracy_eval.quantize import SCALE_RULES, Quantised, Recipe, dequantize, element_format, get_recipe, quantize
from accuracy_eval.quantize.quantiser import SOURCES
from accuracy_eval.quantize.recipes import Encoding
from accuracy_eval.records import Case, Coded

Codes = NDArray[Any]
SOURCE = Option("bfloat16", "of a case with a recipe: format of the operands that are quantised", SOURCES)


@dataclass(frozen=True)
class Factor:
    """One side of a product.

    source      name of the unquantised operand
    transposed  the operand's axes are swapped, so that the contracted one comes last
    weights     the recipe's row for second operands applies
    gradient    an upstream gradient: recipes may give it another element format
    """

    name: str
    source: str
    transposed: bool = False
    weights: bool = False
    gradient: bool = False


FACTORS: dict[str, Factor] = {
    f.name: f
    for f in (
        Factor("a", "a"),
        Factor("b", "b", weights=True),
        Factor("grad_d", "grad_d", gradient=True),
        Factor("b_t", "b", transposed=True, weights=True),
        Factor("grad_d_t", "grad_d", transposed=True, gradient=True),
        Factor("a_t", "a", transposed=True),
    )
}
PRODUCTS = {"d": ("a", "b"), "da": ("grad_d", "b_t"), "db": ("grad_d_t", "a_t")}


def product_names(direction: str) -> tuple[str, ...]:
    """The products of a direction, by the output each gives."""
    return ("d",) if direction == "fwd" else ("da", "db")


def factors_of(direction: str) -> tuple[Factor, ...]:
    """The factors a direction multiplies."""
    return tuple(FACTORS[name] for product in product_names(direction) for name in PRODUCTS[product])


def factor_recipe(recipe: str, factor: Factor) -> Recipe:
    """The row that quantises this factor where the product's recipe is `recipe`."""
    r = get_recipe(recipe)
    if factor.weights and r.weights:
        return get_recipe(r.weights)
    return get_recipe(r.transposed) if factor.transposed and r.transposed else r


def factor_format(case: Case, factor: Factor, encoding: Encoding) -> Format:
    """Element format of a factor: the case's for a or b, the recipe's own for gradients where it has one."""
    parts = case.format.split("+")
    family = parts[-1] if factor.source == "b" else parts[0]
    gradient = get_recipe(case.recipe).gradient_element
    return element_format(factor_recipe(case.recipe, factor), gradient if factor.gradient and gradient else family, encoding=encoding)


def scale_format(recipe: Recipe) -> Format:
    """Format of the scales a recipe stores."""
    return get_format(SCALE_RULES[recipe.rule].scale_format)


def quantise_factor(case: Case, factor: Factor, sources: Mapping[str, Coded], encoding: Encoding, compiled: bool = True) -> Quantised:
    """The factor's codes and scales, from the operand in canonical orientation.

    Where the recipe requantises, a transposed factor is made from the dequantised forward one, rounded to the operand's format.
    """
    source, recipe = sources[factor.source], factor_recipe(case.recipe, factor)
    x = source.codes
    if factor.transposed and not factor.gradient and recipe.requantised:
        forward = quantise_factor(case, FACTORS[factor.source], sources, encoding, compiled)
        x = encode(dequantize(forward, compiled=compiled), source.format)
    if factor.transposed:
        x = np.ascontiguousarray(x.T)
    return quantize(x, source.format, recipe, element=factor_format(case, factor, encoding), compiled=compiled)


def unscaled_factor(case: Case, factor: Factor, sources: Mapping[str, Coded], encoding: Encoding, compiled: bool = True) -> Quantised:
    """The factor of a companion: the operand's own integers as codes, every scale 1."""
    source, recipe = sources[factor.source], factor_recipe(case.recipe, factor)
    x = np.ascontiguousarray(source.codes.T) if factor.transposed else source.codes
    return unscaled(x, source.format, recipe, element=factor_format(case, factor, encoding), compiled=compiled)


def unscaled(codes: Codes, fmt: str, recipe: Recipe, *, element: Format, compiled: bool = True) -> Quantised:
    """Integers as element codes, laid out as the recipe does, every scale 1."""
    layout = quantize(np.zeros_like(codes), fmt, recipe, element=element, compiled=compiled)
    return replace(
        layout,
        codes=encode(decode(codes, fmt), element),
        scale=encode(np.ones(layout.scale.shape), layout.scale_format),
        inv_scale=None,
        global_scale=None if layout.global_scale is None else encode(np.ones(()), "float32"),
    )


def as_inputs(name: str, q: Quantised, *, transposed: bool = False) -> dict[str, Coded]:
    """A factor as an op receives it: `name`, `name_scale` and, where the recipe has one, `name_global`.

    transposed  stored with the contracted axis first: codes and a grid of scales alike
    """
    turned = transposed and q.scale.ndim == q.codes.ndim
    found = {
        name: Coded(np.ascontiguousarray(np.swapaxes(q.codes, -1, -2)) if transposed else q.codes, q.format),
        f"{name}_scale": Coded(np.ascontiguousarray(np.swapaxes(q.scale, -1, -2)) if turned else q.scale, q.scale_format),
    }
    if q.global_scale is not None:
        found[f"{name}_global"] = Coded(q.global_scale, "float32")
    return found


def scale_values(inputs: Mapping[str, Coded], name: str) -> NDArray[np.float64]:
    """What multiplies the decoded codes of a factor: its scales, times the global one where there is one. Exact."""
    scale = inputs[f"{name}_scale"]
    values = decode(scale.codes, scale.format)
    whole = inputs.get(f"{name}_global")
    return values if whole is None else values * float(decode(whole.codes, whole.format))


def stored_block(recipe: Recipe, shape: tuple[int, ...], *, transposed: bool = False) -> tuple[int, int]:
    """Rows and columns of a stored factor that share a scale; `shape` with the contracted axis last."""
    rows, columns = recipe.block
    block = rows or max(shape[0], 1), columns or max(shape[1], 1)
    return block[::-1] if transposed else block
