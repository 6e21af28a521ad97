"""Quantised calls on arrays that a caller holds: which output an array is, its truth, and the errors its operands already carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, differing, get_format
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.quantize import QUANTIZE
from accuracy_eval.ops.spec import Encoding, Inputs, Output, Panel, Reference, rows_and_columns
from accuracy_eval.quantize import get_recipe, quantize
from accuracy_eval.quantize.quantiser import SOURCES
from accuracy_eval.records import Case, Coded

SOURCED = ("a_source", "b_source")  # operands of a product before they were quantised


def encoding_of(*formats: str) -> Encoding:
    """The fp8 encoding that these formats belong to."""
    return "fnuz" if any(f.endswith("fnuz") for f in formats) else "ocp"


def one_code_truth(codes: Codes, fmt: str) -> Reference:
    """The reference of an array whose every element has one right code of `fmt`."""
    rows = codes.reshape(rows_and_columns(codes.shape))
    return Reference("codes", fmt, codes.shape, "exact", lambda: iter((Panel(0, rows),)), resolution={"element": "one code"})


def quantize_output(x: Coded, recipe: str, actual: Coded) -> tuple[Output, Reference]:
    """Which output of op quantize an array is, by format and shape, and its truth.

    Codes of an element format are the codes, floats of x's shape the dequantised values (rounded once to their format), all else the
    scale. A scale of another shape than the recipe's is returned with the recipe's, for the caller to refuse.
    """
    if len(x.shape) != 2 or x.format not in SOURCES:
        raise UsageError(
            f"op quantize: x {list(x.shape)} of {x.format}; expected a matrix of {', '.join(SOURCES)}, contracted along its last axis"
        )
    found = get_format(actual.format)
    narrow = found.bits <= 8 and not found.scale_only
    case = Case("quantize", (("m", x.shape[0]), ("n", x.shape[1])), "", get_format(x.format).family, found.family if narrow else "", recipe)
    encoding = encoding_of(actual.format)
    references = QUANTIZE.reference(case, {"x": x}, encoding, "exact")
    outputs = {o.name: o for o in (*QUANTIZE.outputs(case, encoding), *QUANTIZE.derived(case, encoding))}
    name = "codes" if narrow else "values" if actual.shape == x.shape and not found.scale_only else "scale"
    if name == "values":
        return replace(outputs[name], format=actual.format), replace(references[name], format=actual.format)
    return outputs[name], references[name]


def codes_under(x: Coded, recipe: str, actual: Coded, scale: Coded) -> tuple[Reference, dict[str, int]]:
    """The right codes under the scales that stand with them, and how many of those scales are not the recipe's."""
    ours = quantize(x.codes, x.format, recipe, element=actual.format)
    if scale.format != ours.scale_format or scale.shape != ours.scale.shape:
        raise UsageError(
            f"op quantize: x_scale {list(scale.shape)} of {scale.format}; "
            f"recipe {recipe} has {list(ours.scale.shape)} of {ours.scale_format}"
        )
    right = quantize(x.codes, x.format, recipe, element=actual.format, scale=scale.codes).codes
    return one_code_truth(right, actual.format), {
        "scale_mismatch_count": int(differing(scale.codes, ours.scale, scale.format).sum()),
        "conversion_mismatch_count": int(differing(actual.codes, right, actual.format).sum()) if actual.shape == x.shape else 0,
    }


def product_of_sources(inputs: Inputs, problem: Gemm, reference: Reference) -> Reference:
    """The reference of a quantised product with the result of the operands before they were quantised."""
    plain = Gemm(inputs["a_source"], inputs["b_source"], problem.layout, problem.alpha, problem.beta, problem.c, problem.bias)

    return replace(reference, unquantised=lambda: of_product(panels(plain)))


def operand_errors(inputs: Mapping[str, Coded], layout: str, recipe: str) -> dict[str, Any]:
    """Codes and scales of the operands of a product that are not those the recipe gives their sources; {} where there is no recipe."""
    if not recipe:
        return {}
    rows = {"a": get_recipe(recipe), "b": get_recipe(get_recipe(recipe).weights or recipe)}
    axes = {"a": 1 if layout[0] == "n" else 0, "b": 0 if layout[1] == "n" else 1}
    wrong = {"scale_mismatch_count": 0, "conversion_mismatch_count": 0}
    for n in "ab":
        source, codes, scale = inputs[f"{n}_source"], inputs[n], inputs.get(f"{n}_scale")
        ours = quantize(source.codes, source.format, rows[n], axis=axes[n], element=codes.format)
        if scale is None or scale.format != ours.scale_format or scale.codes.size != ours.scale.size:
            found = "none" if scale is None else f"{list(scale.shape)} of {scale.format}"
            raise UsageError(f"op gemm: {n}_scale is {found}; recipe {rows[n].name} has {list(ours.scale.shape)} of {ours.scale_format}")
        given = scale.codes.reshape(ours.scale.shape)
        right = quantize(source.codes, source.format, rows[n], axis=axes[n], element=codes.format, scale=given)
        wrong["scale_mismatch_count"] += int(differing(given, ours.scale, scale.format).sum())
        wrong["conversion_mismatch_count"] += int(differing(codes.codes, right.codes, codes.format).sum())
    return wrong
