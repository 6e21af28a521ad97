"""The factors of grouped products: quantised as the op receives them, and group by group as they are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.ops.factors import (
    FACTORS,
    Factor,
    as_inputs,
    factor_format,
    factor_recipe,
    factors_of,
    scale_format,
    scale_values,
    unscaled,
)
from accuracy_eval.ops.groups import Group, groups_of, lens_of, padded, padding_of
from accuracy_eval.ops.spec import Encoding, Inputs
from accuracy_eval.quantize import Quantised, Recipe, dequantize, quantize
from accuracy_eval.records import Case, Coded


def received(case: Case, sources: Inputs, encoding: Encoding, compiled: bool) -> dict[str, Coded]:
    """What a case with a recipe multiplies: codes and scales of every factor, as stored."""
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
    how: Callable[..., Quantised] = unscaled if case.lane == "exact" else quantize
    quantise = partial(how, fmt=source.format, recipe=recipe, element=element, compiled=compiled)
    if factor.weights:
        return quantise(np.ascontiguousarray(np.swapaxes(x, -1, -2)) if factor.transposed else x)
    if not factor.transposed:
        return _with_padding(quantise(x), recipe, padding_of(case))
    whole = quantise(np.ascontiguousarray(x.T))
    if recipe.block == (0, 0):
        return whole
    common = {}
    if whole.global_scale is not None and case.lane != "exact":  # one number for all groups
        common["global_scale"] = float(decode(whole.global_scale, "float32"))
    parts = [quantise(np.ascontiguousarray(x[s:e].T), **common) for _, s, e in groups_of(case)]
    scales = [q.scale for q in parts]
    return replace(
        whole,
        codes=np.concatenate([q.codes for q in parts], axis=1),
        scale=np.stack(scales) if recipe.granularity == "row" else np.concatenate(scales, axis=1),
    )


def _with_padding(q: Quantised, recipe: Recipe, count: int) -> Quantised:
    """The factor with `count` rows of NaN (of the largest code where there is none) behind, under scales of 1."""
    if not count:
        return q
    fmt = get_format(q.format)
    codes = padded(q.codes, count, fmt.nan_code if fmt.has_nan else fmt.max_code)
    if q.scale.ndim == 0:
        return replace(q, codes=codes)
    rows = -(-len(codes) // (recipe.block[0] or 1)) - len(q.scale)
    one = int(encode(np.ones(()), scale_format(recipe)))
    return replace(q, codes=codes, scale=padded(q.scale, rows, one))


class Side(NamedTuple):
    """One factor of one group's product: codes [rows, contraction], scales, rows and columns that share one."""

    coded: Coded
    scale: Any = None
    block: tuple[int, int] | None = None


def side(case: Case, inputs: Inputs, name: str, group: Group) -> Side:
    """The factor `name` of a group, from what the op receives."""
    factor, rows = FACTORS[name], slice(group.start, group.stop)
    if not case.recipe:
        return Side(plain(inputs[factor.source], factor, case.layout, group))
    coded, scale, recipe = inputs[name], scale_values(inputs, name), factor_recipe(case.recipe, factor)
    height, width = recipe.block
    if factor.weights:
        turned = case.direction == "fwd" and case.layout[1] == "n"
        codes = coded.codes[group.number].T if turned else coded.codes[group.number]
        if scale.ndim == 0:
            return Side(Coded(codes, coded.format), scale)
        grid = scale[group.number].T if turned and scale.ndim == 3 else scale[group.number]
        return Side(Coded(codes, coded.format), grid, (height, width) if grid.ndim == 2 else None)
    if not factor.transposed:
        part = Coded(coded.codes[rows], coded.format)
        if scale.ndim == 0:
            return Side(part, scale)
        if scale.ndim == 1:
            return Side(part, scale[rows])
        return Side(part, scale[np.arange(group.start, group.stop) // height], (1, width))
    part = Coded(coded.codes[:, rows], coded.format)
    if scale.ndim == 0:
        return Side(part, scale)
    if recipe.granularity == "row":
        return Side(part, scale[group.number])
    first = sum(-(-length // width) for length in lens_of(case)[: group.number])
    return Side(part, scale[:, first : first - (-(group.stop - group.start) // width)], (height, width))


def plain(coded: Coded, factor: Factor, layout: str, group: Group) -> Coded:
    """An unquantised factor of a group with the contracted axis last; `coded` as stored."""
    if factor.weights:
        codes = coded.codes[group.number].T if layout[1] == "n" else coded.codes[group.number]
    else:
        codes = coded.codes[group.start : group.stop]
    return Coded(codes.T if factor.transposed else codes, coded.format)
