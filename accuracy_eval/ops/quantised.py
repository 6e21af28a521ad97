"""gemm with a recipe: operands are quantised by our quantiser, the device multiplies codes and scales, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import concrete, encode, get_family
from accuracy_eval.ops.factors import (
    FACTORS,
    PRODUCTS,
    SOURCE,
    Codes,
    Factor,
    as_inputs,
    factor_format,
    factor_recipe,
    factors_of,
    product_names,
    quantise_factor,
    scale_format,
    scale_values,
    stored_block,
    unscaled_factor,
)
from accuracy_eval.ops.scaled import Scaled, blocked_v1, product
from accuracy_eval.ops.spec import Encoding, Inputs, Option, option_of
from accuracy_eval.quantize import RECIPES, Quantised, get_recipe
from accuracy_eval.quantize.quantiser import SOURCES
from accuracy_eval.records import Case, Coded

if TYPE_CHECKING:
    from accuracy_eval.inputs.coded_scales import CodedScales

ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
FORMATS = ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1", "int8")
OUT_FORMATS = ("bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2")
OPTIONS = {"source": SOURCE, "result_scale": Option(1.0, "of a case with a recipe: factor of an output of 8 bits")}
GEMM_RECIPES = tuple(name for name, r in RECIPES.items() if not r.hadamard)
FAST = "fast_accum"  # the candidate that lets the unit keep its short accumulator
V1 = "scaled_mm_v1"  # the candidate that multiplies blocks of 128 by the older call


def source_format(case: Case) -> str:
    """Format of the unquantised operands."""
    return str(option_of(OPTIONS, case, "source"))


def result_scale(case: Case) -> float:
    """What multiplies the product before it is stored."""
    return float(option_of(OPTIONS, case, "result_scale"))


def stored_transposed(case: Case, factor: Factor) -> bool:
    """Whether the op receives the factor with its contracted axis first: forward operands, by the layout."""
    return case.direction == "fwd" and {"a": case.layout[0] == "t", "b": case.layout[1] == "n"}.get(factor.name, False)


def received(case: Case, sources: Mapping[str, Coded], encoding: Encoding, compiled: bool = True) -> dict[str, Coded]:
    """Codes and scales of every factor of the case, as the op receives them. sources: canonical orientation."""
    found: dict[str, Coded] = {}
    for factor in factors_of(case.direction):
        if case.lane == "coded":
            q = _coded_factor(case, factor, encoding)
        else:
            q = (quantise_factor if case.lane == "random" else unscaled_factor)(case, factor, sources, encoding, compiled)
        found.update(as_inputs(factor.name, q, transposed=stored_transposed(case, factor)))
    return found


@lru_cache(maxsize=2)
def coded_companion(case: Case, encoding: Encoding) -> CodedScales:
    """The factors of a coded case: every block of scales a power of two of its own, as far as the formats reach."""
    from accuracy_eval.inputs.coded_scales import coded_scales

    factors = FACTORS["a"], FACTORS["b"]
    rows = [factor_recipe(case.recipe, f) for f in factors]
    elements = [factor_format(case, f, encoding) for f in factors]
    # what either encoding holds: the unquantised operands are the same on all devices
    held = {concrete(f, e) for f in (source_format(case), case.out_format or source_format(case)) for e in ENCODINGS}
    m, n, k = (case.dims[d] for d in "mnk")
    return coded_scales(
        m, n, k, (elements[0], elements[1]), (rows[0].block, rows[1].block),
        (scale_format(rows[0]), scale_format(rows[1])), tuple(held), seed=case.seed,
    )  # fmt: skip


def coded_sources(case: Case) -> dict[str, Codes]:
    """The unquantised operands of a coded case: codes times scales, exact in their format."""
    made = coded_companion(case, "ocp")
    return {name: encode(side.values(), source_format(case)) for name, side in (("a", made.a), ("b", made.b))}


def coded_result(case: Case, encoding: Encoding, out_format: str) -> Codes:
    """D of a coded case, codes of the output's format."""
    return encode(coded_companion(case, encoding).d() * result_scale(case), out_format)


def _coded_factor(case: Case, factor: Factor, encoding: Encoding) -> Quantised:
    made = coded_companion(case, encoding)
    side, recipe = (made.a if factor.name == "a" else made.b), factor_recipe(case.recipe, factor)
    fmt = scale_format(recipe)
    shape = {"tensor": (), "row": side.codes.shape[:1]}.get(recipe.granularity, side.exponents.shape)
    scale = encode(np.ldexp(1.0, side.exponents), fmt).reshape(shape)
    one = encode(np.ones(()), "float32") if recipe.rule == "nvfp4" else None
    return Quantised(side.codes, side.format, scale, fmt.name, recipe.name, 1, side.block, global_scale=one)


def swapped(case: Case, output: str) -> bool:
    """Whether a gradient is stored transposed, in the layout of its operand: its factors then change sides."""
    return (output == "da" and case.layout[0] == "t") or (output == "db" and case.layout[1] == "n")


def problem(case: Case, inputs: Inputs, output: str) -> Gemm:
    """The product of stored codes and scales whose result is the output."""
    names = PRODUCTS[output][::-1] if swapped(case, output) else PRODUCTS[output]
    layout = case.layout if case.direction == "fwd" else "nt"
    sides = [_side(case, inputs, FACTORS[name]) for name in names]
    (a, a_scale, a_block), (b, b_scale, b_block) = sides
    alpha = result_scale(case)
    return Gemm(a, b, layout, alpha, a_scale=a_scale, b_scale=b_scale, a_block=a_block, b_block=b_block)


def unquantised(case: Case, inputs: Inputs, output: str) -> Gemm:
    """The same product of the operands before they were quantised."""
    a, b = inputs["a_source"], inputs["b_source"]
    alpha = result_scale(case)
    if case.direction == "fwd":
        return Gemm(a, b, "nt", alpha)
    g = inputs["grad_d_source"]
    if output == "da":
        return Gemm(b, g, "tt", alpha) if swapped(case, output) else Gemm(g, b, "nn", alpha)
    return Gemm(a, g, "tn", alpha) if swapped(case, output) else Gemm(g, a, "tn", alpha)


def _side(case: Case, inputs: Inputs, factor: Factor) -> tuple[Coded, Any, tuple[int, int] | None]:
    coded, scale = inputs[factor.name], scale_values(inputs, factor.name)
    if scale.ndim < 2:
        return coded, scale, None
    transposed = stored_transposed(case, factor)
    shape = coded.shape[::-1] if transposed else coded.shape
    return coded, scale, stored_block(factor_recipe(case.recipe, factor), shape, transposed=transposed)


def _factors(case: Case, t: Mapping[str, Any]) -> Iterator[tuple[str, Scaled, Scaled]]:
    """Output, left and right factor of every product of the case, on the device."""
    for output in product_names(case.direction):
        names = PRODUCTS[output][::-1] if swapped(case, output) else PRODUCTS[output]
        left, right = (_on_device(case, t, FACTORS[name]) for name in names)
        yield output, left, right


def torch_products(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any], *, fast: bool = False) -> dict[str, Any]:
    """Every product of the case by torch's scaled calls."""
    scale = result_scale(case)
    return {
        name: product(torch, left, right, out[name].dtype, fast=fast, result_scale=scale, out=out[name])
        for name, left, right in _factors(case, t)
    }


def fast_products(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """As `torch_products`, with `use_fast_accum=True`."""
    return torch_products(torch, case, t, out, fast=True)


def v1_products(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """As `torch_products`, by torch._scaled_mm under scales of blocks."""
    return {name: blocked_v1(torch, left, right, out[name].dtype) for name, left, right in _factors(case, t)}


def has_fast_accum(case: Case) -> bool:
    """Whether the call of the case takes `use_fast_accum`: 8-bit floats under scales of tensors or rows."""
    return _eight_bit_floats(case) and get_recipe(case.recipe).granularity in ("tensor", "row")


def has_v1(case: Case) -> bool:
    """Whether torch._scaled_mm has scales of the case's blocks: 1x128 and 128x128, one factor at least with scales of rows."""
    return _eight_bit_floats(case) and get_recipe(case.recipe).granularity == "1x128"


def _eight_bit_floats(case: Case) -> bool:
    return bool(case.recipe) and {get_family(f) for f in case.format.split("+")} <= {"fp8_e4m3", "fp8_e5m2"}


def _on_device(case: Case, t: Mapping[str, Any], factor: Factor) -> Scaled:
    fnuz = "fnuz" in str(t[factor.name].dtype)
    codes = t[factor.name].t() if stored_transposed(case, factor) else t[factor.name]
    scale = t[f"{factor.name}_scale"]
    if scale.dim() == 2 and stored_transposed(case, factor):
        scale = scale.t()
    element = factor_format(case, factor, "fnuz" if fnuz else "ocp")
    return Scaled(codes, scale, factor_recipe(case.recipe, factor), element, t.get(f"{factor.name}_global"))


def contract(case: Case) -> str:
    """What the default call promises: it leaves `use_fast_accum` off, so 8-bit floats promote their sums."""
    name = default_contract(case.format.split("+"), get_recipe(case.recipe).granularity)
    return "fp8promoted" if name == "fp8fast" else name


def refuse(case: Case, lengths: Iterable[int]) -> str | None:
    """Why this quantised case does not exist, or None. lengths: contractions of the factors that are transposed backward."""
    recipe = get_recipe(case.recipe)
    formats = case.format.split("+")
    if case.lane == "coded" and case.direction != "fwd":
        return "the coded lane moves codes of B through a one-hot A: forward only"
    if case.lane == "coded" and recipe.rule == "unit":
        return "recipe unit has no scales whose place a coded case could show; take the exact lane"
    if any(get_family(f) not in FORMATS for f in formats):
        return f"recipe {case.recipe} quantises to {', '.join(FORMATS)}; found {case.format}"
    if len(formats) > 1 and case.direction == "bwd":
        return f"formats {case.format} say nothing about the gradient's; a backward case has one format"
    if recipe.gradient_element and formats != [recipe.element]:
        return f"recipe {recipe.name} is {recipe.element} forward, {recipe.gradient_element} for gradients; found {case.format}"
    for factor in factors_of(case.direction):
        factor_format(case, factor, "ocp")  # raises where the recipe cannot carry the element
    if source_format(case) not in SOURCES:
        return f"option source={source_format(case)!r}; allowed: {', '.join(SOURCES)}"
    out = case.out_format
    if out and out not in OUT_FORMATS:
        return f"output {out} of a quantised product; allowed: {', '.join(OUT_FORMATS)}"
    narrow = out.startswith("fp8")
    if narrow and case.direction == "bwd":
        return "gradients are not stored in 8 bits; 8-bit outputs are forward only"
    if result_scale(case) != 1.0 and not narrow:
        return "result_scale scales an 8-bit float output; found none"
    if any(name in dict(case.options) for name in ("alpha", "beta", "bias", "c")):
        return "a recipe and alpha, beta, C or bias together; take one of them"
    ragged = [n for n in lengths if n % 16]
    if ragged and case.direction == "bwd" and recipe.transposed:
        return f"recipe {recipe.name} rotates 16 rows at a time backward: {ragged[0]} must be a multiple of 16"
    return None
