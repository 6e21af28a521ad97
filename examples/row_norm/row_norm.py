"""y = x / rms(x) · w by rows: a Triton kernel with a bug in a mask, the same in torch for machines without a GPU, and a right one."""

from __future__ import annotations

import torch

BLOCK = 128

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


if triton is not None:

    @triton.jit
    def _row_norm(x, w, y, columns, step: tl.constexpr):
        row = tl.program_id(0)
        total = 0.0
        for first in range(0, columns, step):
            at = first + tl.arange(0, step)
            value = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
            total += tl.sum(value * value)
        scale = 1.0 / tl.sqrt(total / columns)
        for first in range(0, columns, step):
            at = first + tl.arange(0, step)
            inside = at < columns // step * step  # the bug: it ends at the last whole block
            value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + row * columns + at, value * scale * weight, mask=at < columns)


def row_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The kernel on a GPU; on a CPU what it computes."""
    if triton is not None and x.is_cuda:
        y = torch.empty_like(x)
        _row_norm[(x.shape[0],)](x, w, y, x.shape[1], step=BLOCK)
        return y
    whole = x.shape[1] // BLOCK * BLOCK
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(1, keepdim=True))
    inside = torch.arange(x.shape[1], device=x.device) < whole
    return (wide * scale * w.float() * inside).to(x.dtype)


def repaired(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What was meant."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True)) * w.float()).to(x.dtype)


def truth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The definition; called in float64."""
    return x / x.square().mean(1, keepdim=True).sqrt() * w
