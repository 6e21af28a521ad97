"""grouped_gemm: one product a group of rows, D[rows of g] = A[rows of g] · B[g]ᵀ, forward and backward, with and without a recipe.

a [t, k] holds the rows of all groups one after the other, b [g, n, k] a matrix a group; t = g·m rows are cut into group_lens [g].
Rows behind the last group (option `padding`) belong to none: they hold NaN, which must reach nothing, and the same rows of the result
must be zero or stay as they were. Backward, dA has the groups of D and dB [g, n, k] contracts the rows of each group: an empty group
gives zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.overflow import Overflows, product_overflows, stacked
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.inputs.exact import ExactOperands, integer_codes
from accuracy_eval.ops import quantised
from accuracy_eval.ops.factors import (
    FACTORS,
    PRODUCTS,
    Codes,
    Factor,
    as_inputs,
    factor_format,
    factor_recipe,
    factors_of,
    scale_format,
    scale_values,
)
from accuracy_eval.ops.gemm import SIZES, overflowing
from accuracy_eval.ops.grouped_torch import torch_products
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.spec import (
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Option,
    Output,
    Panel,
    Product,
    Reference,
    Size,
    operand_formats,
    output_format,
    row_blocks,
    rows_and_columns,
)
from accuracy_eval.quantize import Quantised, Recipe, dequantize, quantize
from accuracy_eval.quantize.quantiser import SOURCES
from accuracy_eval.records import Case, Coded

LAYOUTS = ("nt", "nn")
FORMATS = ("bfloat16", "float16", "float32")
OPTIONS = {
    "lens": Option("equal", "rows of the groups: m each, cut anywhere, or none in every third", ("equal", "ragged", "zeros")),
    "align": Option(1, "groups are cut in units of so many rows"),
    "padding": Option(0, "rows of NaN behind the last group, which must reach nothing"),
    "source": Option("bfloat16", "of a case with a recipe: format of the operands that are quantised", SOURCES),
}


# groups


@lru_cache(maxsize=64)
def group_lens(g: int, m: int, lens: str, align: int, seed: int) -> tuple[int, ...]:
    """Rows of each group, g·m together: all m; or cut at places drawn from the seed, in units of `align`; "zeros" leaves every third
    group, the second first, without rows."""
    if lens == "equal":
        return (m,) * g
    from accuracy_eval.inputs.philox import STREAM_16, stream_key, words

    filled = [i for i in range(g) if lens == "ragged" or i % 3 != 1] or [0]
    units = g * m // align
    drawn = words(stream_key("grouped_gemm", "group_lens", (g, m), lens, seed), STREAM_16, 0, 8 * -(-len(filled) // 8))
    cuts = np.sort(drawn[: len(filled) - 1].astype(np.int64) * (units + 1) >> 16)
    found = np.zeros(g, np.int64)
    found[filled] = np.diff(np.concatenate([[0], cuts, [units]])) * align
    return tuple(int(n) for n in found)


def _lens(case: Case) -> tuple[int, ...]:
    g, m = case.dims["g"], case.dims["m"]
    return group_lens(g, m, str(GROUPED.option(case, "lens")), int(GROUPED.option(case, "align")), case.seed)


def _padding(case: Case) -> int:
    return int(GROUPED.option(case, "padding"))


class _Group(NamedTuple):
    """Number of a group and the rows it has."""

    number: int
    start: int
    stop: int


def _groups(case: Case) -> list[_Group]:
    ends = np.cumsum((0, *_lens(case)))
    return [_Group(i, int(ends[i]), int(ends[i + 1])) for i in range(len(ends) - 1)]


# operands


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    g, n, k = (case.dims[d] for d in "gnk")
    rows = g * case.dims["m"] + _padding(case)
    fa, fb = [quantised.source_format(case)] * 2 if case.recipe else operand_formats(case, 2, encoding)
    a = Operand("a", (rows, k), fa, ("m", "k"))
    b = Operand("b", (g, n, k), fb, ("g", "n", "k"), transposed=case.layout[1] == "n")
    lens = Operand("group_lens", (g,), "int32", ("g",))
    return (a, b, lens) if case.direction == "fwd" else (a, b, Operand("grad_d", (rows, n), fa, ("m", "n")), lens)


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    """The group lengths, and the operands whose padding holds NaN."""
    from accuracy_eval import inputs

    found = {"group_lens": np.array(_lens(case), np.uint32)}
    if case.lane == "exact":
        return {**_exact_operands(case, encoding), **found}
    rows = case.dims["g"] * case.dims["m"]
    for o in _operands(case, encoding) if _padding(case) else ():
        if o.axes[0] == "m":
            codes = inputs.generate(case.op, o.name, (rows, o.shape[1]), case.input_class, case.seed, o.format, axes=o.axes)
            found[o.name] = _padded(codes, _padding(case), get_format(o.format).nan_code)
    return found


def _padded(codes: Codes, count: int, code: int) -> Codes:
    """`codes` [rows, …] with `count` rows of one code behind."""
    return np.concatenate([codes, np.full((count, *codes.shape[1:]), code, codes.dtype)])


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    operands = {o.name: o for o in _operands(case, encoding)}
    rows, fmt = case.dims["g"] * case.dims["m"], output_format(case, operands["a"].format, encoding)
    written = rows if _padding(case) else None
    if case.direction == "fwd":
        return (Output("d", (rows + _padding(case), case.dims["n"]), fmt, written=written),)
    return Output("da", operands["a"].shape, fmt, written=written), Output("db", operands["b"].stored, fmt)


# factors


def _received(case: Case, sources: Inputs, encoding: Encoding, compiled: bool) -> dict[str, Coded]:
    found = {"group_lens": sources["group_lens"]}
    for factor in factors_of(case.direction):
        q = _quantised(case, factor, sources, encoding, compiled)
        found.update(as_inputs(factor.name, q, transposed=case.direction == "fwd" and factor.name == "b" and case.layout[1] == "n"))
    return found


def _quantised(case: Case, factor: Factor, sources: Inputs, encoding: Encoding, compiled: bool) -> Quantised:
    """A factor with the contracted axis last: [t, ·], [g, ·, ·], or where groups are contracted [·, t] quantised group by group, its
    blocks [·, blocks of all groups] and its rows' scales [g, ·]."""
    source, recipe, element = sources[factor.source], factor_recipe(case.recipe, factor), factor_format(case, factor, encoding)
    x = source.codes if factor.weights else source.codes[: case.dims["g"] * case.dims["m"]]
    if factor.transposed and not factor.gradient and recipe.requantised and case.lane == "random":
        forward = _quantised(case, FACTORS[factor.source], sources, encoding, compiled)
        x = encode(dequantize(forward, compiled=compiled), source.format)[: len(x)]
    how = _unscaled if case.lane == "exact" else quantize
    quantise = partial(how, fmt=source.format, recipe=recipe, element=element, compiled=compiled)
    if factor.weights:
        return quantise(np.ascontiguousarray(np.swapaxes(x, -1, -2)) if factor.transposed else x)
    if not factor.transposed:
        return _with_padding(quantise(x), recipe, _padding(case))
    whole = quantise(np.ascontiguousarray(x.T))
    if recipe.block == (0, 0):
        return whole
    common = {} if whole.global_scale is None else {"global_scale": float(decode(whole.global_scale, "float32"))}
    parts = [quantise(np.ascontiguousarray(x[s:e].T), **common) for _, s, e in _groups(case)]
    scales = [q.scale for q in parts]
    return replace(
        whole,
        codes=np.concatenate([q.codes for q in parts], axis=1),
        scale=np.stack(scales) if recipe.granularity == "row" else np.concatenate(scales, axis=1),
    )


def _unscaled(codes: Codes, *, fmt: str, recipe: Recipe, element: Any, compiled: bool, global_scale: float = 1.0) -> Quantised:
    """Integers as element codes, every scale 1."""
    layout = quantize(np.zeros_like(codes), fmt, recipe, element=element, compiled=compiled)
    one = None if layout.global_scale is None else encode(np.ones(()), "float32")
    scale = encode(np.ones(layout.scale.shape), layout.scale_format)
    return replace(layout, codes=encode(decode(codes, fmt), element), scale=scale, inv_scale=None, global_scale=one)


def _with_padding(q: Quantised, recipe: Recipe, count: int) -> Quantised:
    """The factor with `count` rows of NaN (of the largest code where there is none) behind, under scales of 1."""
    if not count:
        return q
    fmt = get_format(q.format)
    codes = _padded(q.codes, count, fmt.nan_code if fmt.has_nan else fmt.max_code)
    if q.scale.ndim == 0:
        return replace(q, codes=codes)
    rows = -(-len(codes) // (recipe.block[0] or 1)) - len(q.scale)
    one = int(encode(np.ones(()), scale_format(recipe)))
    return replace(q, codes=codes, scale=_padded(q.scale, rows, one))


class _Side(NamedTuple):
    """One factor of one group's product: codes [rows, contraction], scales, rows and columns that share one."""

    coded: Coded
    scale: Any = None
    block: tuple[int, int] | None = None


def _side(case: Case, inputs: Inputs, name: str, group: _Group) -> _Side:
    """The factor `name` of a group, from what the op receives."""
    factor, rows = FACTORS[name], slice(group.start, group.stop)
    if not case.recipe:
        return _Side(_plain(inputs[factor.source], factor, case.layout, group))
    coded, scale, recipe = inputs[name], scale_values(inputs, name), factor_recipe(case.recipe, factor)
    height, width = recipe.block
    if factor.weights:
        turned = case.direction == "fwd" and case.layout[1] == "n"
        codes = coded.codes[group.number].T if turned else coded.codes[group.number]
        if scale.ndim == 0:
            return _Side(Coded(codes, coded.format), scale)
        grid = scale[group.number].T if turned and scale.ndim == 3 else scale[group.number]
        return _Side(Coded(codes, coded.format), grid, (height, width) if grid.ndim == 2 else None)
    if not factor.transposed:
        part = Coded(coded.codes[rows], coded.format)
        if scale.ndim == 0:
            return _Side(part, scale)
        if scale.ndim == 1:
            return _Side(part, scale[rows])
        return _Side(part, scale[np.arange(group.start, group.stop) // height], (1, width))
    part = Coded(coded.codes[:, rows], coded.format)
    if scale.ndim == 0:
        return _Side(part, scale)
    if recipe.granularity == "row":
        return _Side(part, scale[group.number])
    first = sum(-(-length // width) for length in _lens(case)[: group.number])
    return _Side(part, scale[:, first : first - (-(group.stop - group.start) // width)], (height, width))


def _plain(coded: Coded, factor: Factor, layout: str, group: _Group) -> Coded:
    """An unquantised factor of a group with the contracted axis last; `coded` as stored."""
    if factor.weights:
        codes = coded.codes[group.number].T if layout[1] == "n" else coded.codes[group.number]
    else:
        codes = coded.codes[group.start : group.stop]
    return Coded(codes.T if factor.transposed else codes, coded.format)


# reference


def _names(case: Case, output: str) -> tuple[str, ...]:
    """The factors of an output: those of dB change sides where B is stored [k, n]."""
    return PRODUCTS[output][::-1] if output == "db" and case.layout[1] == "n" else PRODUCTS[output]


def _problem(case: Case, inputs: Inputs, output: str, group: _Group) -> Gemm:
    left, right = (_side(case, inputs, name, group) for name in _names(case, output))
    return Gemm(
        left.coded, right.coded, "nt", a_scale=left.scale, b_scale=right.scale, a_block=left.block, b_block=right.block
    )  # fmt: skip


def _unquantised(case: Case, inputs: Inputs, output: str, group: _Group) -> Gemm:
    left, right = (_plain(inputs[f"{FACTORS[n].source}_source"], FACTORS[n], "nt", group) for n in _names(case, output))
    return Gemm(left, right, "nt")


def _products(case: Case, inputs: Inputs, output: str) -> tuple[Product, ...]:
    groups = [g for g in _groups(case) if g.stop > g.start]
    return tuple(Product(_problem(case, inputs, output, g), (g.number,) if output == "db" else (slice(g.start, g.stop),)) for g in groups)


def _panels(case: Case, output: Output, inputs: Inputs, contract: str, problem: Any) -> Iterator[Panel]:
    """Group by group; what no group reaches, rows behind the last and dB of an empty group, is zero and must be."""
    rows, columns = rows_and_columns(output.shape)
    height = output.shape[-2] if output.name == "db" else 0
    at = 0
    for group in _groups(case):
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
        return {o.name: Reference("codes", o.format, o.shape, contract, partial(_exact_panels, case, o), resolution=seen) for o in outputs}
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
    for g in _groups(case):
        sums = product_overflows(_problem(case, inputs, output.name, g), contract) if g.stop > g.start else None
        parts.append((end, sums))
        end += height or g.stop - g.start
    return stacked([*parts, (end, None)])


# the exact companion: that of one product of all rows, B's rows moved and signed group by group so that no two groups are alike


@lru_cache(maxsize=1)
def _exact(case: Case) -> ExactOperands:
    from accuracy_eval.inputs.exact import exact_gemm

    rows = case.dims["g"] * case.dims["m"]
    return exact_gemm(rows, case.dims["n"], case.dims["k"], direction="bwd" if case.direction == "bwd" else "fwd", seed=case.seed)


def _sign(group: _Group) -> int:
    return -1 if group.number % 2 else 1


def _exact_operands(case: Case, encoding: Encoding) -> dict[str, Codes]:
    made, formats = _exact(case), {o.name: o.format for o in _operands(case, encoding)}
    b = np.stack([np.roll(made.b, g.number, axis=0) * _sign(g) for g in _groups(case)])
    integers = {"a": made.a, "b": b}
    if made.grad_d is not None:
        moved = [np.roll(made.grad_d[g.start : g.stop], g.number, axis=1) for g in _groups(case)]
        integers["grad_d"] = np.concatenate(moved)
    found = {name: integer_codes(x, formats[name]) for name, x in integers.items()}
    padding = _padding(case)
    return {name: c if name == "b" or not padding else _padded(c, padding, get_format(formats[name]).nan_code) for name, c in found.items()}


def _exact_result(case: Case, output: Output) -> np.ndarray[Any, Any]:
    made, groups = _exact(case), _groups(case)
    if output.name == "db":
        assert made.grad_d is not None
        a, grad = made.a.astype(np.float32), made.grad_d.astype(np.float32)
        db = np.stack([np.roll(grad[g.start : g.stop].T @ a[g.start : g.stop], g.number, axis=0) for g in groups])
        return np.swapaxes(db, 1, 2) if case.layout[1] == "n" else db
    whole = made.d() if output.name == "d" else made.da()
    shift = output.name == "d"
    parts = [np.roll(whole[g.start : g.stop], g.number if shift else 0, axis=1) * _sign(g) for g in groups]
    return _padded(np.concatenate(parts), _padding(case), 0)


def _exact_panels(case: Case, output: Output) -> Iterator[Panel]:
    codes = integer_codes(_exact_result(case, output).astype(np.int64), output.format).reshape(rows_and_columns(output.shape))
    for first, end in row_blocks(output.shape):
        yield Panel(first, codes[first:end])


# the op


def _contract(case: Case) -> str:
    return quantised.contract(case) if case.recipe else default_contract("grouped_gemm", tuple(case.format.split("+")))


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    return torch_products(torch, case, t, out, rows=case.dims["g"] * case.dims["m"])


def fast_products(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """As the op's own expression, with `use_fast_accum=True`."""
    return torch_products(torch, case, t, out, rows=case.dims["g"] * case.dims["m"], fast=True)


def _refuse(case: Case) -> str | None:
    align, padding = (GROUPED.option(case, name) for name in ("align", "padding"))
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
        return "the output of a grouped product is a float of 16 bits or more" if narrow else quantised.refuse(case, _lens(case))
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
    products=_products,
    contract=_contract,
    layouts=LAYOUTS,
    recipes=("", *quantised.GEMM_RECIPES),
    received=_received,
    options=OPTIONS,
    lanes=("random", "exact"),
    directions=("fwd", "bwd"),
    refuse=_refuse,
)
