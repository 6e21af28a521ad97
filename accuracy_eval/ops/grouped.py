"""grouped_gemm: one product a group of rows, D[rows of g] = A[rows of g] · B[g]ᵀ, forward and backward, with and without a recipe.

a [t, k] holds the rows of all groups one after the other, b [g, n, k] a matrix a group; t = g·m rows are cut into group_lens [g].
Rows behind the last group (option `padding`) belong to none: they hold NaN, which must reach nothing, and the same rows of the result
must be zero or stay as they were. Backward, dA has the groups of D and dB [g, n, k] contracts the rows of each group: an empty group
gives zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.overflow import Overflows, product_overflows, stacked
from accuracy_eval.formats import get_format
from accuracy_eval.ops import quantised
from accuracy_eval.ops.factors import FACTORS, PRODUCTS, Codes
from accuracy_eval.ops.gemm import SIZES, overflowing
from accuracy_eval.ops.grouped_exact import exact_operands, exact_panels
from accuracy_eval.ops.grouped_factors import plain, received, side
from accuracy_eval.ops.grouped_torch import torch_products
from accuracy_eval.ops.groups import OPTIONS, Group, groups_in, implied, lens_of, option, padded, padding_of
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.spec import (
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Output,
    Panel,
    Product,
    Reference,
    Size,
    operand_formats,
    output_format,
    rows_and_columns,
)
from accuracy_eval.records import Case

LAYOUTS = ("nt", "nn")
FORMATS = ("bfloat16", "float16", "float32")


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    g, n, k = (case.dims[d] for d in "gnk")
    rows = g * case.dims["m"] + padding_of(case)
    fa, fb = [quantised.source_format(case)] * 2 if case.recipe else operand_formats(case, 2, encoding)
    a = Operand("a", (rows, k), fa, ("m", "k"))
    b = Operand("b", (g, n, k), fb, ("g", "n", "k"), transposed=case.layout[1] == "n")
    lens = Operand("group_lens", (g,), "int32", ("g",))
    return (a, b, lens) if case.direction == "fwd" else (a, b, Operand("grad_d", (rows, n), fa, ("m", "n")), lens)


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    """The group lengths, and the operands whose padding holds NaN."""
    from accuracy_eval import inputs

    found = {"group_lens": np.array(lens_of(case), np.uint32)}
    if case.lane == "exact":
        return {**exact_operands(case, {o.name: o.format for o in _operands(case, encoding)}), **found}
    rows = case.dims["g"] * case.dims["m"]
    for o in _operands(case, encoding) if padding_of(case) else ():
        if o.axes[0] == "m":
            codes = inputs.generate(case.op, o.name, (rows, o.shape[1]), case.input_class, case.seed, o.format, axes=o.axes)
            found[o.name] = padded(codes, padding_of(case), get_format(o.format).nan_code)
    return found


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    operands = {o.name: o for o in _operands(case, encoding)}
    rows, fmt = case.dims["g"] * case.dims["m"], output_format(case, operands["a"].format, encoding)
    written = rows if padding_of(case) else None
    if case.direction == "fwd":
        return (Output("d", (rows + padding_of(case), case.dims["n"]), fmt, written=written),)
    return Output("da", operands["a"].shape, fmt, written=written), Output("db", operands["b"].stored, fmt)


def _names(case: Case, output: str) -> tuple[str, ...]:
    """The factors of an output: those of dB change sides where B is stored [k, n]."""
    return PRODUCTS[output][::-1] if output == "db" and case.layout[1] == "n" else PRODUCTS[output]


def _problem(case: Case, inputs: Inputs, output: str, group: Group) -> Gemm:
    left, right = (side(case, inputs, name, group) for name in _names(case, output))
    return Gemm(
        left.coded, right.coded, "nt", a_scale=left.scale, b_scale=right.scale, a_block=left.block, b_block=right.block
    )  # fmt: skip


def _unquantised(case: Case, inputs: Inputs, output: str, group: Group) -> Gemm:
    left, right = (plain(inputs[f"{FACTORS[n].source}_source"], FACTORS[n], "nt", group) for n in _names(case, output))
    return Gemm(left, right, "nt")


def products_of(case: Case, inputs: Inputs, output: str) -> tuple[Product, ...]:
    """The product of every group that has rows."""
    groups = [g for g in groups_in(inputs) if g.stop > g.start]
    return tuple(Product(_problem(case, inputs, output, g), (g.number,) if output == "db" else (slice(g.start, g.stop),)) for g in groups)


def _panels(case: Case, output: Output, inputs: Inputs, contract: str, problem: Any) -> Iterator[Panel]:
    """Group by group; what no group reaches, rows behind the last and dB of an empty group, is zero and must be."""
    rows, columns = rows_and_columns(output.shape)
    height = output.shape[-2] if output.name == "db" else 0
    at = 0
    for group in groups_in(inputs):
        if group.stop > group.start:
            product = problem(case, inputs, output.name, group)
            yield from of_product(panels(product, contract=contract or None, out_format=output.format), first_row=at)
            at += height or group.stop - group.start
        elif height:
            yield _zeros(at, height, columns)
            at += height
    for first in range(at, rows, 128):
        yield _zeros(first, min(128, rows - first), columns)


def _zeros(first_row: int, rows: int, columns: int) -> Panel:
    zeros = np.zeros((rows, columns))
    return Panel(first_row, zeros, zeros, zeros)


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    outputs = _outputs(case, encoding)
    if case.lane == "exact":
        seen = {"element": "one code"}
        return {o.name: Reference("codes", o.format, o.shape, contract, partial(exact_panels, case, o), resolution=seen) for o in outputs}
    found = {}
    for o in outputs:
        truth = partial(_panels, case, o, inputs, contract, _problem)
        before = partial(_panels, case, o, inputs, "", _unquantised) if case.recipe else None
        exempt = overflowing(_overflows(case, o, inputs, contract), contract, o.format)
        found[o.name] = Reference("values", o.format, o.shape, contract, truth, unquantised=before, exempt=exempt)
    return found


def _overflows(case: Case, output: Output, inputs: Inputs, contract: str) -> Overflows | None:
    """Of the groups' products; nothing is added up elsewhere."""
    height = output.shape[-2] if output.name == "db" else 0
    parts: list[tuple[int, Overflows | None]] = []
    end = 0
    for g in groups_in(inputs):
        sums = product_overflows(_problem(case, inputs, output.name, g), contract) if g.stop > g.start else None
        parts.append((end, sums))
        end += height or g.stop - g.start
    return stacked([*parts, (end, None)])


def _contract(case: Case) -> str:
    return quantised.contract(case) if case.recipe else default_contract(case.format.split("+"))


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    return torch_products(torch, case, t, out, rows=case.dims["g"] * case.dims["m"])


def fast_products(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """As the op's own expression, with `use_fast_accum=True`."""
    return torch_products(torch, case, t, out, rows=case.dims["g"] * case.dims["m"], fast=True)


def _refuse(case: Case) -> str | None:
    align, padding = (option(case, name) for name in ("align", "padding"))
    if int(align) < 1 or int(padding) < 0:
        return f"options align={align} and padding={padding}; align is at least 1, padding at least 0"
    if case.dims["g"] * case.dims["m"] % int(align):
        return f"{case.dims['g']} groups of {case.dims['m']} rows cannot be cut in units of align={align}"
    if case.input_class in ("misaligned", "strided"):
        return f"input class {case.input_class}: the rows of groups lie next to each other; allowed: every other class"
    if len(case.format.split("+")) > 1 and not case.recipe:
        return "operands of one format; found two"
    if case.recipe:
        narrow = case.out_format.startswith("fp8")
        return "the output of a grouped product is a float of 16 bits or more" if narrow else quantised.refuse(case, lens_of(case))
    if get_format(case.format).name not in FORMATS:
        return f"{case.format} operands need a recipe that says how they are scaled, such as tensorwise or rowwise"
    if "source" in dict(case.options):
        return "option source belongs to quantised products; state a recipe"
    if case.out_format and case.out_format != case.format:
        return f"output {case.out_format} from {case.format} operands; allowed: the operands' own format"
    return None


GROUPED = OpSpec(
    name="grouped_gemm",
    family="grouped_gemm",
    equation="D[rows of g] = A[rows of g] · op(B[g])",
    dims=(("g", "m", "n", "k"),),
    sizes={"g": Size("groups, each with its matrix B", 4), **SIZES, "m": Size("rows of A for each group, on average", 96)},
    formats=(*FORMATS, *quantised.FORMATS),
    operands=_operands,
    own_codes=_own_codes,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    products=products_of,
    contract=_contract,
    layouts=LAYOUTS,
    recipes=("", *quantised.GEMM_RECIPES),
    implied=implied,
    received=received,
    options=OPTIONS,
    lanes=("random", "exact"),
    directions=("fwd", "bwd"),
    refuse=_refuse,
)
