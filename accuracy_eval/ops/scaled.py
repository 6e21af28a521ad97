"""Scaled products through torch: which call takes operands of a recipe, and how our scales must lie in it.

The device only multiplies: codes and scales arrive finished. What a library refuses is unsupported, in the library's own words;
any other failure is an error of the case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from accuracy_eval.errors import UnsupportedCase, first_sentence
from accuracy_eval.formats import Format
from accuracy_eval.quantize import Recipe, swizzle_scales

# How libraries say that they do not do this; a failure in other words is a failure.
_REFUSALS = re.compile(
    r"not supported|not implemented|NOT_SUPPORTED|INVALID_VALUE when calling `cublasLtMatmulAlgoGetHeuristic|[Oo]nly supported"
    r"|only supports|types are supported|only available|Only multiplication|Invalid scaling configuration|to be greater than"
    r"|(?:must|to) be divisible by|(?:must|should) be multiples? of|could not find valid hipblaslt solution|Could not run"
    r"|Expected b\.dtype|Expected mat2 to be transposed|Expected mat_[ab] to be|Cannot convert ScalarType|does not support"
)


@contextmanager
def refusals(call: str) -> Iterator[None]:
    """Turn a library's refusal into UnsupportedCase("<call>: <its words>")."""
    try:
        yield
    except UnsupportedCase:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if isinstance(error, NotImplementedError) or _REFUSALS.search(str(error)):
            raise UnsupportedCase(f"{call}: {first_sentence(error)}") from error
        raise


@dataclass(frozen=True)
class Scaled:
    """One factor on the device: a view with the contracted axis last, and scales in the quantiser's shape.

    codes   [rows, k] of the element's dtype; 4- and 6-bit elements one code a byte
    scale   (), [rows] or [row blocks, column blocks]
    whole   the global scale of two-level recipes, else None
    """

    codes: Any
    scale: Any
    recipe: Recipe
    element: Format
    whole: Any = None


def product(
    torch: Any, left: Scaled, right: Scaled, dtype: Any, *, fast: bool = False, result_scale: float = 1.0, out: Any = None
) -> Any:  # fmt: skip
    """left·rightᵀ [rows of left, rows of right] in `dtype`, times `result_scale` (8-bit float output only).

    fast  what `use_fast_accum` is set to. out: a tensor to write to where the call takes one, else ignored.
    UnsupportedCase where no call of this torch on this device takes these operands.
    """
    kind = _kind(left, right)
    with refusals(kind.call):
        return kind.run(torch, left, right, dtype, fast, result_scale, out)


@dataclass(frozen=True)
class _Kind:
    """How a pair of granularities is multiplied: the call's name, for messages, and the call."""

    call: str
    run: Callable[..., Any]


def _kind(left: Scaled, right: Scaled) -> _Kind:
    if left.element.kind == "int":
        return _Kind("torch._int_mm", _int_mm)
    if left.element.bits == 6 or right.element.bits == 6:
        raise UnsupportedCase("torch has no 6-bit float operands")
    grains = left.recipe.granularity, right.recipe.granularity
    if grains in (("tensor", "tensor"), ("row", "row")):
        return _Kind("torch._scaled_mm", _scaled_mm)
    return _Kind("torch.nn.functional.scaled_mm", _blocked_mm)


def _int_mm(torch: Any, left: Scaled, right: Scaled, dtype: Any, fast: bool, result_scale: float, out: Any) -> Any:
    """Exact int32 sums, then both scales in float32, as W8A8 inference does."""
    sums = torch._int_mm(left.codes, right.codes.t())
    return (sums.float() * left.scale[:, None] * right.scale[None, :]).to(dtype)


def _scaled_mm(torch: Any, left: Scaled, right: Scaled, dtype: Any, fast: bool, result_scale: float, out: Any) -> Any:
    """One scale a tensor, or one a row of each factor."""
    rows = left.recipe.granularity == "row"
    scale_a = left.scale.reshape(-1, 1) if rows else left.scale
    scale_b = right.scale.reshape(1, -1) if rows else right.scale
    more: dict[str, Any] = {} if out is None else {"out": out}
    if result_scale != 1.0:
        more["scale_result"] = torch.tensor(result_scale, dtype=torch.float32, device=left.scale.device)
    return torch._scaled_mm(left.codes, right.codes.t(), scale_a, scale_b, out_dtype=dtype, use_fast_accum=fast, **more)


def _blocked_mm(torch: Any, left: Scaled, right: Scaled, dtype: Any, fast: bool, result_scale: float, out: Any) -> Any:
    """Scales of blocks, through the call that names their recipe."""
    functional = torch.nn.functional
    if not hasattr(functional, "scaled_mm"):
        raise UnsupportedCase(f"torch {torch.__version__} has no torch.nn.functional.scaled_mm, which takes scales of blocks")
    if result_scale != 1.0:
        raise UnsupportedCase("torch.nn.functional.scaled_mm takes no scale of the result")
    hip = torch.version.hip is not None
    a, b = (_block_scales(torch, functional, s, hip=hip) for s in (left, right))
    return functional.scaled_mm(
        _operand(torch, left), _operand(torch, right).t(), a.scales, a.recipes, b.scales, b.recipes, swizzle_a=a.swizzles,
        swizzle_b=b.swizzles, output_dtype=dtype, use_fast_accum=fast,
    )  # fmt: skip


def blocked_v1(torch: Any, left: Scaled, right: Scaled, dtype: Any) -> Any:
    """Float32 scales of blocks through torch._scaled_mm, which tells recipes apart by the shapes of the scales.

    Rows of 128×128 scales start at multiples of 16 bytes: the call's message asks for that and cuBLAS reads them so. torch 2.11 takes
    others too, and the product is wrong (docs/findings.md).
    """
    scale_a, scale_b = (_v1_scale(torch, s) for s in (left, right))
    with refusals("torch._scaled_mm"):
        return torch._scaled_mm(left.codes, right.codes.t(), scale_a, scale_b.t(), out_dtype=dtype)


def _v1_scale(torch: Any, s: Scaled) -> Any:
    """Scales [rows, blocks along K] as torch._scaled_mm takes them: of rows next to each other, else in rows of 16-byte multiples."""
    if s.recipe.granularity == "1x128":
        return _column_major(torch, s.scale)
    return _padded(torch, s.scale)[:, : s.scale.shape[1]]


def _padded(torch: Any, scale: Any) -> Any:
    """Float32 scales of 128×128 blocks, blocks along K next to each other and their number raised to a multiple of 4."""
    return torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4)).contiguous()


@dataclass(frozen=True)
class _BlockScales:
    """Scales as torch.nn.functional.scaled_mm takes them: one list entry a level."""

    scales: list[Any]
    recipes: list[Any]
    swizzles: list[Any]


def _block_scales(torch: Any, functional: Any, s: Scaled, *, hip: bool) -> _BlockScales:
    recipes, swizzles = functional.ScalingType, functional.SwizzleType
    grain = s.recipe.granularity
    scale = s.scale
    if grain == "1x128":  # rows next to each other
        return _BlockScales([_column_major(torch, scale)], [recipes.BlockWise1x128], [swizzles.NO_SWIZZLE])
    if grain == "128x128":  # blocks along K next to each other, their number raised to a multiple of 4
        return _BlockScales([_column_major(torch, _padded(torch, scale).t())], [recipes.BlockWise128x128], [swizzles.NO_SWIZZLE])
    if grain == "32x32":  # libraries have one scale a row
        scale = scale.repeat_interleave(32, 0)[: s.codes.shape[0]].contiguous()
    name = "BlockWise1x16" if s.recipe.rule == "nvfp4" else "BlockWise1x32"
    if hip:
        return _BlockScales([scale], [getattr(recipes, name)], [swizzles.NO_SWIZZLE])
    level = _BlockScales([_swizzled(torch, scale)], [getattr(recipes, name)], [swizzles.SWIZZLE_32_4_4])
    if s.whole is None:
        return level
    return _BlockScales(
        [*level.scales, s.whole.reshape(1)], [*level.recipes, recipes.TensorWise], [*level.swizzles, swizzles.NO_SWIZZLE]
    )  # fmt: skip


def _column_major(torch: Any, scale: Any) -> Any:
    """A copy whose columns are contiguous; libraries look at the strides of columns of one element, too."""
    return torch.empty_strided(scale.shape, (1, scale.shape[0]), dtype=scale.dtype, device=scale.device).copy_(scale)


def _swizzled(torch: Any, scale: Any) -> Any:
    """The scales of 8 bits in 128×4 tiles, padded with zeros, flat."""
    flat = swizzle_scales(scale.view(torch.uint8).cpu().numpy())
    return torch.from_numpy(flat).to(scale.device).view(scale.dtype)


def _operand(torch: Any, s: Scaled) -> Any:
    """The codes as the library takes them: e2m1 two to a byte, the low nibble first."""
    if s.element.bits != 4:
        return s.codes
    packed = getattr(torch, "float4_e2m1fn_x2", None)
    if packed is None:
        raise UnsupportedCase(f"torch {torch.__version__} has no dtype float4_e2m1fn_x2")
    codes = s.codes.contiguous()
    if codes.shape[1] % 2:
        raise UnsupportedCase(f"two 4-bit elements share a byte: K={codes.shape[1]} must be even")
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).view(packed)
