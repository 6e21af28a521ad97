"""quantize: scale factors and element codes of an operand under a recipe, blocks along its last axis; their values are judged as well.

A block holding NaN or Inf has a NaN scale under MX recipes, which makes every value of the block NaN whatever the element codes are
(OCP Microscaling Formats 1.0). The scale is judged exactly; element codes under a NaN scale are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, decode, differing, encode, get_format, is_nan
from accuracy_eval.inputs.midway import midway_blocks
from accuracy_eval.ops.quantize_torch import quantise
from accuracy_eval.ops.spec import (
    Encoding,
    Exempt,
    Inputs,
    Joint,
    Operand,
    OpSpec,
    Output,
    Panel,
    Reference,
    Size,
    operand_formats,
    row_blocks,
    rows_and_columns,
)
from accuracy_eval.quantize import RECIPES, Quantised, block_maxima, dequantize, element_format, get_recipe, quantize, scale_rule
from accuracy_eval.records import Case, Coded


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    return (Operand("x", (case.dims["m"], case.dims["n"]), operand_formats(case, 1, encoding)[0], ("m", "n")),)


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    """In the exact lane numbers midway between two that the elements hold under their scale; the same ones for either encoding."""
    if case.lane != "exact":
        return {}
    x, recipe = _operands(case, "ocp")[0], get_recipe(case.recipe)
    element = element_format(recipe, case.out_format or None, encoding="ocp")
    shape, largest = (case.dims["m"], case.dims["n"]), recipe.largest(element)
    two_levels = recipe.rule == "nvfp4"
    return {"x": midway_blocks(case.op, shape, x.format, element, largest, recipe.block, case.seed, two_levels=two_levels)}


@cache
def _stored_scale(recipe: str, m: int, n: int, element: str) -> tuple[tuple[int, ...], str]:
    """Shape and format of the scales, from the quantiser itself on an operand of zeros that takes no memory."""
    rows, columns = get_recipe(recipe).block
    shape: tuple[int, ...] = () if (rows, columns) == (0, 0) else (m,) if columns == 0 else (-(-m // rows), -(-n // columns))
    probe = quantize(np.zeros((1, 1), np.uint16), "bfloat16", recipe, element=element)
    return shape, probe.scale_format


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    element = element_format(case.recipe, case.out_format or None, encoding=encoding).name
    shape, scale_format = _stored_scale(case.recipe, case.dims["m"], case.dims["n"], element)
    codes = Output("codes", (case.dims["m"], case.dims["n"]), element, exact=True)
    whole = (Output("global_scale", (), "float32", exact=True),) if get_recipe(case.recipe).rule == "nvfp4" else ()
    return (Output("scale", shape, scale_format, exact=True), codes, *whole)


def _derived(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    """The dequantised values: what total error is measured on."""
    return (Output("values", (case.dims["m"], case.dims["n"]), "float64", exact=None),)


def _quantised(case: Case, x: Coded, encoding: Encoding, scales: Mapping[str, Coded] | None = None) -> Quantised:
    """x under the case's recipe; the codes a correct quantiser gives under other scales, where those are given."""
    element = element_format(case.recipe, case.out_format or None, encoding=encoding)
    if scales is None:
        return quantize(x.codes, x.format, case.recipe, element=element)
    whole = float(decode(scales["global_scale"].codes, "float32")) if "global_scale" in scales else None
    return quantize(x.codes, x.format, case.recipe, element=element, scale=scales["scale"].codes, global_scale=whole)


@dataclass(frozen=True)
class _Truth:
    """What a correct quantiser makes of x under the case's recipe, once anything of it is asked for."""

    case: Case
    x: Coded
    encoding: Encoding

    @cached_property
    def quantised(self) -> Quantised:
        return _quantised(self.case, self.x, self.encoding)

    def panels(self, name: str) -> Iterator[Panel]:
        """Codes of an output."""
        q = self.quantised
        held = {"scale": q.scale, "codes": q.codes, "global_scale": q.global_scale}[name]
        assert held is not None
        view = held.reshape(rows_and_columns(held.shape))
        for first, end in row_blocks(held.shape):
            yield Panel(first, view[first:end])

    def values(self) -> Iterator[Panel]:
        """The dequantised values."""
        for first, end in row_blocks(self.x.shape):
            yield Panel(first, dequantize(self.quantised, rows=(first, end)))

    def source(self) -> Iterator[Panel]:
        """The values before they were quantised."""
        for first, end in row_blocks(self.x.shape):
            yield Panel(first, decode(self.x.codes[first:end], self.x.format))

    def without_meaning(self, codes: Codes, expected: Codes, first_row: int) -> NDArray[np.bool_] | None:
        """Element codes that differ in blocks whose scale is NaN. (The scale is an output of its own: it must be NaN there.)"""
        q = self.quantised
        if not np.any(is_nan(q.scale, q.scale_format)):
            return None
        rows = np.arange(first_row, first_row + len(codes))
        nan = is_nan(_over_elements(q.scale, get_recipe(self.case.recipe).block, rows, codes.shape[1]), q.scale_format)
        differs = nan & (codes != expected)
        return differs if differs.any() else None


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    truth = _Truth(case, inputs["x"], encoding)
    exempt = {"codes": Exempt(truth.without_meaning, "element codes in blocks whose scale is NaN, where every code means NaN")}
    found = {
        o.name: Reference(
            "codes",
            o.format,
            o.shape,
            contract,
            partial(truth.panels, o.name),
            resolution={"element": "one code"},
            exempt=exempt.get(o.name),
        )
        for o in _outputs(case, encoding)
    }
    for o in _derived(case, encoding):
        found[o.name] = Reference("values", o.format, o.shape, contract, truth.values, unquantised=truth.source)
    return found


def _saturated(codes: Codes, fmt: str) -> int:
    """Elements at the largest magnitude of their format."""
    top, bottom = encode(np.array([1.0, -1.0]) * get_format(fmt).max, fmt)
    return int(((codes == top) | (codes == bottom)).sum())


def _joint(case: Case, inputs: Inputs, encoding: Encoding, outputs: Mapping[str, Coded]) -> Joint:
    """Scales against the recipe's, codes against the right ones under the scales they stand with, and the values of both."""
    x, recipe = inputs["x"], get_recipe(case.recipe)
    wanted = {o.name: o for o in _outputs(case, encoding)}
    if any(outputs[n].shape != o.shape or outputs[n].format != o.format for n, o in wanted.items()):
        return Joint()
    ours, right = _quantised(case, x, encoding), _quantised(case, x, encoding, outputs)
    scale, codes = outputs["scale"], outputs["codes"]
    whole = outputs["global_scale"].codes if "global_scale" in outputs else None
    scales = int(differing(scale.codes, ours.scale, scale.format).sum())
    if whole is not None and ours.global_scale is not None:
        scales += int(differing(whole, ours.global_scale, "float32").sum())
    nan = is_nan(_over_elements(scale.codes, recipe.block, np.arange(x.shape[0]), x.shape[1]), scale.format)
    wrong = {
        "scale_mismatch_count": scales, "conversion_mismatch_count": int((differing(codes.codes, right.codes, codes.format) & ~nan).sum()),
    }  # fmt: skip
    saturated = {"saturated_actual": _saturated(codes.codes, codes.format), "saturated_expected": _saturated(ours.codes, ours.format)}
    stored = replace(ours, codes=codes.codes, scale=scale.codes, global_scale=whole)
    rules = scale_rule(
        block_maxima(x.codes, x.format, recipe), scale.codes, codes.format, scale_format=scale.format, floor=recipe.floor,
        largest=recipe.largest(get_format(codes.format)), global_scale=None if whole is None else float(decode(whole, "float32")),
    )  # fmt: skip
    return Joint(
        {"scale": {"scale_mismatch_count": scales}, "codes": {**wrong, **saturated}, "values": wrong},
        {"values": lambda first, end: encode(dequantize(stored, rows=(first, end)), "float64")},
        {"scale": tuple(rules)},
    )


def _over_elements(scale: Codes, block: tuple[int, int], rows: NDArray[np.int64], columns: int) -> Codes:
    """The scale of each element of some rows: [len(rows), columns]. A block extent of 0 is the whole one."""
    grid = scale.reshape(scale.shape if scale.ndim == 2 else (-1, 1))
    high, wide = block
    down = rows // high if high else np.zeros_like(rows)
    across = np.arange(columns) // wide if wide else np.zeros(columns, np.int64)
    return grid[np.ix_(down, across)]


QUANTIZE = OpSpec(
    name="quantize",
    family="quantize",
    equation="x ≈ scale · codes",
    dims=(("m", "n"),),
    sizes={"m": Size("rows", 64), "n": Size("columns", 1000)},
    formats=("float32", "float16", "bfloat16"),
    out_formats=("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1", "int8"),
    operands=_operands,
    outputs=_outputs,
    torch=quantise,
    reference=_reference,
    contract=lambda case: "exact",
    recipes=tuple(name for name, r in RECIPES.items() if not r.hadamard and r.rule != "unit"),
    lanes=("random", "exact"),
    own_codes=_own_codes,
    derived=_derived,
    joint=_joint,
)
