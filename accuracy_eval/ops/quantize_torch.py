"""amax, scale, clamp, cast: the quantiser that people write in torch, in float32 throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.formats import Format
from accuracy_eval.quantize import Recipe, element_format, get_recipe
from accuracy_eval.records import Case


def quantise(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """Scales and codes of x [m, n] as the recipe of the case says. UnsupportedCase for recipes that exist as library kernels alone."""
    recipe = get_recipe(case.recipe)
    element = element_format(recipe, case.out_format or None, encoding="fnuz" if "fnuz" in str(out["codes"].dtype) else "ocp")
    scaling = _TORCH_SCALINGS.get(recipe.rule)
    if scaling is None or not hasattr(torch, element.name) or element.bits < 8:
        raise UnsupportedCase(f"recipe {recipe.name} to {element.name} has no torch expression")
    x, largest = t["x"].float(), recipe.largest(element)
    m, n = x.shape
    rows, columns = recipe.block[0] or max(m, 1), recipe.block[1] or max(n, 1)
    padded = torch.nn.functional.pad(x, (0, -n % columns, 0, -m % rows))
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scale, scaled = scaling(torch, blocks, blocks.abs().amax(dim=(1, 3), keepdim=True), recipe, element)
    if element.kind == "int":  # the cast truncates, and of NaN it is undefined
        scaled = scaled.round().nan_to_num(nan=0.0)
    codes = scaled.clamp(-largest, largest).to(getattr(torch, element.name))
    codes = codes.view(torch.uint8).reshape(padded.shape)[:m, :n].contiguous().view(getattr(torch, element.name))
    return {"scale": scale.reshape(out["scale"].shape), "codes": codes}


# each: (torch, blocks, their amax, recipe, element format) -> scales as stored, blocks divided by them


def _max_over_amax(torch: Any, blocks: Any, amax: Any, recipe: Recipe, element: Format) -> tuple[Any, Any]:
    # `scalar / tensor` in torch is reciprocal times scalar, two roundings; a tensor divided by a tensor is one
    inverse = torch.full_like(amax, recipe.largest(element)) / amax.clamp(min=float(np.float32(recipe.floor)))
    return inverse.reciprocal(), blocks * inverse


def _amax_over_max(torch: Any, blocks: Any, amax: Any, recipe: Recipe, element: Format) -> tuple[Any, Any]:
    scale = (amax / torch.full_like(amax, recipe.largest(element))).clamp(min=float(np.float32(recipe.floor)))
    return scale, blocks / scale


def _pow2(torch: Any, blocks: Any, amax: Any, recipe: Recipe, element: Format) -> tuple[Any, Any]:
    exponent = _exponent(torch, amax.clamp(min=float(np.float32(recipe.floor))), "rceil", element)
    scale = torch.where(amax.isfinite(), (exponent + 127) << 23, torch.full_like(exponent, 0x7FC00000)).view(torch.float32)
    return scale, blocks / scale


def _by_shared_exponent(torch: Any, blocks: Any, amax: Any, recipe: Recipe, element: Format) -> tuple[Any, Any]:
    byte = _e8m0_byte(torch, amax, recipe.rule, element)
    field = 254 - byte.int()
    inverse = torch.where(field > 0, field << 23, torch.full_like(field, 1 << 22)).view(torch.float32)
    return byte, blocks * inverse


_TORCH_SCALINGS = {
    "max_over_amax": _max_over_amax,
    "amax_over_max": _amax_over_max,
    "pow2": _pow2,
    **dict.fromkeys(("floor", "even", "rceil", "ceil"), _by_shared_exponent),
}


def _e8m0_byte(torch: Any, amax: Any, rule: str, element: Format) -> Any:
    """The shared exponent's byte; NaN where amax is NaN or infinite."""
    byte = _exponent(torch, amax, rule, element).clamp(-127, 127) + 127
    return torch.where(amax.isfinite(), byte, torch.full_like(byte, 255)).to(torch.uint8)


def _exponent(torch: Any, amax: Any, rule: str, element: Format) -> Any:
    """Exponent of the scale by a rule of OCP MX 1.0 and its neighbours, from the bits of amax: no logarithm is taken."""
    emax = int(np.floor(np.log2(element.max)))
    bits = amax.contiguous().view(torch.int32)
    if rule == "even":
        bits = bits + (1 << (23 - element.fraction_bits - 1))
    exponent = (bits >> 23) - 127
    if rule == "ceil":
        exponent = exponent + ((bits & 0x7FFFFF) != 0).int()
    if rule == "rceil":
        top = np.float32(element.max).view(np.int32) & 0x7FFFFF
        exponent = exponent + ((bits & 0x7FFFFF) > int(top)).int()
    return exponent - emax
