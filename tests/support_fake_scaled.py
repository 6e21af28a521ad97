"""Scaled products of a recorded device: which scales its library takes and how they must lie, then exact arithmetic on the CPU.

Facts of CUDA: an H200 under torch 2.11 (shapes, strides and texts of its refusals). Facts of ROCm: ATen's ScaledBlas sources (blocks of
128 refused, MX on gfx950 from ROCm 7.0 without swizzle, NVFP4 not there). The arithmetic reads scales by the documented layouts alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch as real

TENSOR, ROW, NV16, MX32, BLOCK128, SQUARE128 = range(6)  # torch.nn.functional.ScalingType
PLAIN, SWIZZLED = range(2)  # torch.nn.functional.SwizzleType
E2M1 = real.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=real.float64)
NOT_SUPPORTED = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ltHandle, computeDesc.descriptor()"


def host(tensor: Any) -> Any:
    """The tensor without the mark of a device, its strides kept."""
    plain = real.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    width = {1: real.uint8, 4: real.int32}[tensor.element_size()]
    plain.view(width).copy_(tensor.detach().view(width).cpu())
    return plain


def elements(matrix: Any) -> Any:
    """Values of a [rows, k] operand as float64; packed e2m1 is two to a byte, the low nibble first."""
    if matrix.dtype != getattr(real, "float4_e2m1fn_x2", None):
        return matrix.to(real.float64)
    codes = matrix.contiguous().view(real.uint8)
    pairs = real.stack([codes & 15, codes >> 4], dim=-1).reshape(codes.shape[0], -1).long()
    return E2M1[pairs & 7] * real.where(pairs > 7, -1.0, 1.0)


def spread(scale: Any, rows: int, k: int, height: int, width: int) -> Any:
    """A grid of scales as one value an element."""
    grid = scale.to(real.float64)
    return grid.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :k]


def unswizzled(flat: Any, rows: int, columns: int) -> Any:
    """128×4 tiles row by row; row r and column c of a tile at (r mod 32)·16 + (r div 32)·4 + c."""
    r, c = real.meshgrid(real.arange(rows), real.arange(columns), indexing="ij")
    tile = (r // 128) * -(-columns // 4) + c // 4
    place = tile * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4
    return flat.reshape(-1).to(real.float64)[place]


def factor(fake: Any, name: str, values: Any, scales: list[Any], recipes: list[int], swizzles: list[int]) -> Any:
    """One operand [rows, k] with its scales applied; refuses what the device's library refuses."""
    rows, k = values.shape
    scale, recipe, swizzle = scales[0], recipes[0], swizzles[0]
    nvidia = fake.vendor == "nvidia"
    if recipe == TENSOR:
        return values * scale.to(real.float64)
    if recipe == ROW:
        return values * scale.to(real.float64).reshape(-1, 1)
    if recipe in (BLOCK128, SQUARE128):
        if not nvidia:
            raise NotImplementedError("1x128 and 128x128 scaling not available with ROCm")
        if fake.record["properties"]["major"] != 9:
            raise RuntimeError(NOT_SUPPORTED)
        blocks = -(-k // 128)
        if recipe == BLOCK128:
            if tuple(scale.shape) != (rows, blocks) or scale.stride() != (1, rows):
                raise ValueError(f"scale_{name} must have strides (1, {rows}); got {list(scale.stride())}")
            return values * spread(scale, rows, k, 1, 128)
        wanted = (-(-blocks // 4) * 4, -(-rows // 128))
        if tuple(scale.shape) != wanted or scale.stride(0) != 1:
            raise ValueError(f"scale_{name} must have shape {wanted[0]} x {wanted[1]} Float elements, got {list(scale.shape)}")
        return values * spread(scale.t(), rows, k, 128, 128)
    width = 32 if recipe == MX32 else 16
    columns = -(-k // width)
    if nvidia:
        if swizzle != SWIZZLED:
            raise ValueError(f"scale_{name} must be swizzled to SWIZZLE_32_4_4 format")
        if fake.record["properties"]["major"] < 10:
            raise RuntimeError(NOT_SUPPORTED)
        grid = unswizzled(scale, rows, columns)
    else:
        if recipe == NV16:
            raise NotImplementedError("NVFP4 scaling not supported on ROCM")
        if fake.arch != "gfx950" or fake.rocm < (7, 0):
            raise NotImplementedError("Block-wise scaling for Float8_e8m0fnu is only supported on gfx950")
        if swizzle != PLAIN or tuple(scale.shape) != (rows, columns):
            raise ValueError(f"scale_{name} must have {rows * columns} unswizzled elements, got {list(scale.shape)}")
        if rows % 32 or k % 32:
            raise RuntimeError("Matrix dimensions must be multiples of 32 for block-wise scaling")
        grid = scale.to(real.float64)
    found = values * grid.repeat_interleave(width, 1)[:, :k]
    return found if len(scales) == 1 else found * scales[1].to(real.float64)


def scaled_mm_v2(
    fake: Any, a: Any, b: Any, scale_a: Any, recipe_a: Any, swizzle_a: Any, scale_b: Any, recipe_b: Any, swizzle_b: Any,
    bias: Any, out_dtype: Any, contraction: Any = (), fast: bool = False,
) -> Any:  # fmt: skip
    """torch._scaled_mm_v2 of a device: b [k, n]."""
    if not fake.scaled_mm_allowed():
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+")
    fake.check_encoding(a, b)
    if fake.vendor == "amd" and recipe_a[0] == MX32 and out_dtype not in (real.bfloat16, real.float16):
        raise RuntimeError("Block-wise scaling only supports BFloat16 or Half output types")
    left = factor(fake, "a", elements(host(a)), [host(s) for s in scale_a], list(recipe_a), [*swizzle_a, PLAIN])
    right = factor(fake, "b", elements(host(b.t())), [host(s) for s in scale_b], list(recipe_b), [*swizzle_b, PLAIN])
    return (left @ right.t()).to(real.float32).to(out_dtype)


def scaled_grouped_mm(
    fake: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, offs: Any = None, bias: Any = None, scale_result: Any = None,
    out_dtype: Any = None, use_fast_accum: bool = False,
) -> Any:  # fmt: skip
    """torch._scaled_grouped_mm: rows of a under offs with b [g, k, n], or columns of a with rows of b [k, n]; scales of rows."""
    if not (fake.arch == "gfx942" or (fake.vendor == "nvidia" and fake.record["properties"]["major"] == 9)):
        raise RuntimeError(
            "torch._scaled_grouped_mm is only supported on CUDA devices with compute capability = [9.0, 10.0], or ROCm MI300+"
        )
    fake.check_encoding(a, b)
    if out_dtype != real.bfloat16:
        raise ValueError("Only bf16 high precision output types are supported for grouped gemm")
    if b.stride(-2) != 1:
        raise ValueError("Expected mat2 to be transposed")
    x, y, s, t = elements(host(a)), elements(host(b.transpose(-2, -1))), host(scale_a).double(), host(scale_b).double()
    ends = [0, *host(offs).tolist()]
    spans = list(itertools.pairwise(ends))
    if b.dim() == 3:
        parts = [(x[i:j] * s[i:j, None]) @ (y[g] * t[g][:, None]).t() for g, (i, j) in enumerate(spans)]
        rest = real.full((len(x) - ends[-1], y.shape[1]), float("nan"), dtype=real.float64)
        return real.cat([*parts, rest]).to(real.float32).to(out_dtype)
    if any((j - i) % 16 for i, j in spans):
        raise AssertionError("a device assertion: expected input tensor dynamic dimension byte size to be non-negative multiple of 16")
    s, t = s.reshape(len(spans), -1), t.reshape(len(spans), -1)
    parts = [(x[:, i:j] * s[g][:, None]) @ (y[:, i:j] * t[g][:, None]).t() for g, (i, j) in enumerate(spans)]
    return real.stack(parts).to(real.float32).to(out_dtype)
