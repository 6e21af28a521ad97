"""Quantisers of libraries as candidates of op `quantize`, where the library is installed: what people run in training and inference."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

from accuracy_eval.formats import get_format
from accuracy_eval.quantize import get_recipe
from accuracy_eval.records import Case

TORCHAO = "torchao"
_MX_ELEMENTS = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp4_e2m1": "float4_e2m1fn_x2"}


@cache
def installed(module: str) -> bool:
    """Whether a module can be imported; it is not imported."""
    return importlib.util.find_spec(module) is not None


def _element(case: Case) -> str:
    return case.out_format or get_recipe(case.recipe).element


def has_torchao(case: Case) -> bool:
    """MX with one scale for 32 elements of a row, and NVFP4, of bfloat16 and float32 operands without a partial block."""
    recipe = get_recipe(case.recipe)
    known = recipe.rule == "nvfp4" or (recipe.granularity == "1x32" and _element(case) in _MX_ELEMENTS)
    return known and case.format in ("bfloat16", "float32") and case.dims["n"] % recipe.block[1] == 0 and installed(TORCHAO)


def torchao(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """torchao's own conversion: `to_mx` by the recipe's rule, `nvfp4_quantize` with a global scale from the tensor's amax."""
    x, recipe = t["x"].contiguous(), get_recipe(case.recipe)
    if recipe.rule == "nvfp4":
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

        whole = per_tensor_amax_to_scale(x.abs().max())
        scale, codes = nvfp4_quantize(x, recipe.block[1], whole)
        return {"scale": scale.view(torch.uint8).reshape(out["scale"].shape), "codes": _unpacked(torch, codes), "global_scale": whole}
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    dtype = getattr(torch, _MX_ELEMENTS[_element(case)])
    scale, codes = to_mx(x, dtype, recipe.block[1], ScaleCalculationMode(recipe.rule))
    four = get_format(_element(case)).bits == 4
    return {"scale": scale.view(torch.uint8).reshape(out["scale"].shape), "codes": _unpacked(torch, codes) if four else codes}


def _unpacked(torch: Any, codes: Any) -> Any:
    """Two 4-bit codes to a byte, the low nibble first, as one code a byte."""
    pairs = codes.view(torch.uint8)
    return torch.stack((pairs & 0xF, pairs >> 4), dim=-1).reshape(*pairs.shape[:-1], -1)
