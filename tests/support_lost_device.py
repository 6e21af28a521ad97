"""A CPU that acts as a GPU which a kernel takes away: after m = 16 every call of the process gives that error, and a destructor aborts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from accuracy_eval.backends.candidates import candidate
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.records import Case

# what torch 2.11 says on an H200
ERROR = """CUDA error: misaligned address
Search for `cudaErrorMisalignedAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
LOST: list[str] = []


class Event:
    """Of a lost device it cannot be destroyed: C++ calls terminate when a destructor throws."""

    def __del__(self) -> None:
        if LOST:
            os.abort()


def _answering(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if LOST:
            raise RuntimeError(LOST[0])
        return method(*arguments, **options)

    return call


for name in ("prepare", "run"):
    setattr(TorchBackend, name, _answering(getattr(TorchBackend, name)))
TorchBackend.healthy = lambda backend: not LOST  # type: ignore[method-assign]


@candidate("gemm", name="loses")
def loses(case: Case, tensors: Any) -> Any:
    event = Event()
    if case.dims["m"] == 16:
        LOST.append(ERROR)
        raise RuntimeError(ERROR)
    del event
    return tensors["a"] @ tensors["b"].t()


@candidate("gemm", name="steady")
def steady(case: Case, tensors: Any) -> Any:
    """Comes after `loses` in every case."""
    return tensors["a"] @ tensors["b"].t()
