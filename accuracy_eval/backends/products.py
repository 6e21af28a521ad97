"""The matrix products a torch device offers, as callables on codes: what probes ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from accuracy_eval.backends import flags
from accuracy_eval.datapath.card import Call
from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.formats import Codes, concrete

if TYPE_CHECKING:
    from accuracy_eval.backends.torch_device import TorchBackend

Product = Callable[[Any, Any, Any, Any], Any]  # (torch, a [m, k], b [n, k], dtype of the output) → D


def _mm(torch: Any, a: Any, b: Any, out: Any) -> Any:
    return torch.mm(a, b.t()) if out == a.dtype else torch.mm(a, b.t(), out_dtype=out)


def _scaled(fast: bool, torch: Any, a: Any, b: Any, out: Any) -> Any:
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=out, use_fast_accum=fast)


@dataclass(frozen=True)
class _Way:
    """Families of operands and output, mode, and the call. tf32: under the switch that allows it."""

    family: str
    out: str
    product: Product
    mode: str = ""
    tf32: bool = False


WAYS = (
    _Way("bfloat16", "float32", _mm),
    _Way("bfloat16", "bfloat16", _mm),
    _Way("float16", "float32", _mm),
    _Way("float16", "float16", _mm),
    _Way("float32", "float32", _mm),
    _Way("float32", "float32", _mm, "tf32", tf32=True),
    _Way("float64", "float64", _mm),
    _Way("fp8_e4m3", "float32", partial(_scaled, True), "fast accumulation"),
    _Way("fp8_e4m3", "float32", partial(_scaled, False), "slow accumulation"),
    _Way("fp8_e5m2", "float32", partial(_scaled, True), "fast accumulation"),
)


def calls_of(backend: TorchBackend) -> tuple[Call, ...]:
    """Every way, as calls that raise UnsupportedCase with the library's words where the device refuses."""
    return tuple(
        Call(concrete(w.family, backend.encoding).name, concrete(w.out, backend.encoding).name, partial(_run, backend, w), w.mode)
        for w in WAYS
        if backend.on_gpu or not w.tf32
    )


def _run(backend: TorchBackend, way: _Way, a: Codes, b: Codes) -> Codes:
    torch = backend.torch
    fmt, out = (concrete(family, backend.encoding).name for family in (way.family, way.out))
    try:
        with flags.case_flags(torch, tf32=way.tf32, device=backend.device):
            d = way.product(torch, backend.tensors.to_device(a, fmt), backend.tensors.to_device(b, fmt), backend.tensors.dtype(out))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedCase(f"torch {torch.__version__}: {str(error).splitlines()[0].split('. ')[0]}") from error
    return np.asarray(backend.tensors.to_host(d, out).result())
