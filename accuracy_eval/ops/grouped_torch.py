"""Grouped products through torch: grouped_mm for 16-bit and float32 operands, _scaled_grouped_mm for 8-bit floats under scales of rows.

Neither writes the rows behind the last group, so what they return there is left out: the result keeps the poison it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.ops.factors import FACTORS, PRODUCTS, factor_recipe, product_names
from accuracy_eval.ops.scaled import refusals
from accuracy_eval.records import Case

UNIT = 16  # bytes: 8-bit groups that are contracted start and end at multiples of it; CUDA asserts on the device otherwise


def torch_products(
    torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any], *, rows: int, fast: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Every output of the case. rows: those that belong to a group; fast: `use_fast_accum` of scaled calls."""
    ends = t["group_lens"].cumsum(0).to(torch.int32)
    results = {}
    for name in product_names(case.direction):
        found = _scaled(torch, case, t, name, out[name].dtype, ends, fast) if case.recipe else _plain(torch, case, t, name, ends)
        if name == "db":
            results[name] = found
        else:
            out[name][:rows].copy_(found[:rows])
            results[name] = out[name]
    return results


def _plain(torch: Any, case: Case, t: Mapping[str, Any], name: str, ends: Any) -> Any:
    """b is [g, n, k], or [g, k, n] where the layout's second letter is n."""
    call = _grouped_mm(torch)
    b_as_kn, b_as_nk = (t["b"].transpose(-2, -1), t["b"]) if case.layout[1] == "t" else (t["b"], t["b"].transpose(-2, -1))
    with refusals("torch.nn.functional.grouped_mm"):
        if name == "d":
            return call(t["a"], b_as_kn, offs=ends)
        if name == "da":
            return call(t["grad_d"], b_as_nk, offs=ends)
        left, right = (t["grad_d"], t["a"]) if case.layout[1] == "t" else (t["a"], t["grad_d"])
        return call(left.t(), right, offs=ends)


def _grouped_mm(torch: Any) -> Callable[..., Any]:
    found = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise UnsupportedCase(f"torch {torch.__version__} has no grouped_mm")
    call: Callable[..., Any] = found
    return call


def _scaled(torch: Any, case: Case, t: Mapping[str, Any], name: str, dtype: Any, ends: Any, fast: bool) -> Any:
    call = getattr(torch, "_scaled_grouped_mm", None)
    if call is None:
        raise UnsupportedCase(f"torch {torch.__version__} has no _scaled_grouped_mm")
    names = PRODUCTS[name][::-1] if name == "db" and case.layout[1] == "n" else PRODUCTS[name]
    for factor in names:
        recipe = factor_recipe(case.recipe, FACTORS[factor])
        if recipe.granularity not in ("tensor", "row") or t[factor].element_size() != 1 or not t[factor].dtype.is_floating_point:
            raise UnsupportedCase(f"torch._scaled_grouped_mm takes 8-bit floats with scales of rows; found recipe {recipe.name}")
    left, right = (t[factor] for factor in names)
    if name == "db":
        if int((ends % UNIT).sum()):
            raise UnsupportedCase(f"torch._scaled_grouped_mm contracts groups of multiples of {UNIT} rows only")
        scales = [_row_scales(torch, t[f"{f}_scale"], (len(ends), len(t[f]))).reshape(-1) for f in names]
        right = right.t()
    else:
        scales = [_row_scales(torch, t[f"{f}_scale"], _rows_of(t, f, case)) for f in names]
        right = right if case.direction == "fwd" and case.layout[1] == "n" else right.transpose(-2, -1)
    with refusals("torch._scaled_grouped_mm"):
        return call(left, right, scales[0], scales[1], offs=ends, out_dtype=dtype, use_fast_accum=fast)


def _rows_of(t: Mapping[str, Any], factor: str, case: Case) -> tuple[int, ...]:
    """Shape of the scales of rows of a factor: [t], or [g, n] for weights (stored [g, k, n] where the layout says so)."""
    shape = tuple(t[factor].shape)
    if len(shape) == 2:
        return shape[:1]
    return (shape[0], shape[2] if case.direction == "fwd" and case.layout[1] == "n" else shape[1])


def _row_scales(torch: Any, scale: Any, shape: tuple[int, ...]) -> Any:
    """Scales of rows; one scale of a whole tensor is every row's."""
    return scale.expand(shape).contiguous() if scale.dim() == 0 else scale
