"""The float32 precision state of a torch build: read whole, set consistently, put back exactly.

torch 2.9 added settings per backend and operation (`fp32_precision`) beside the older single ones (`allow_tf32`,
`set_float32_matmul_precision`). Both are stored; writing an old one also writes new ones, writing a new one leaves the old one
behind, and from then on reading the old one raises. Reading a new one gives the value after inheritance (operation, backend,
generic), not what is stored. Hence this module:

- `capture` finds what is stored: parents are set to "none" one by one while their children are read;
- `apply` writes old settings first and new ones after them, so that both say the same and every reader inside torch agrees;
- `restore` writes the captured values in that order.

Builds without the new settings (torch 2.8) have only the old ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Parents before children. "none" means: ask the parent; at the top it means IEEE float32.
KEYS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("mkldnn", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)


@dataclass(frozen=True)
class Fp32State:
    """What is stored.

    matmul   old setting: "highest", "high" or "medium"
    cudnn    old setting: whether cuDNN (MIOpen) may use TF32
    stored   new settings by (backend, operation), before inheritance; empty on builds without them
    """

    matmul: str
    cudnn: bool
    stored: tuple[tuple[tuple[str, str], str], ...] = ()


def has_new_settings(torch: Any) -> bool:
    """Whether the build has settings per backend and operation (torch 2.9 and later)."""
    return hasattr(torch._C, "_get_fp32_precision_getter") and hasattr(torch._C, "_set_fp32_precision_setter")


def effective(torch: Any, backend: str, operation: str) -> str:
    """The precision a backend uses for an operation, after inheritance; from the old settings on builds without new ones."""
    if has_new_settings(torch):
        return str(torch._C._get_fp32_precision_getter(backend, operation))
    if backend == "cuda":
        allowed = torch.backends.cuda.matmul.allow_tf32 if operation == "matmul" else torch.backends.cudnn.allow_tf32
        return "tf32" if allowed else "ieee"
    matmul = {"highest": "ieee", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]
    return matmul if operation == "matmul" else "ieee"


def capture(torch: Any) -> Fp32State:
    """What is stored now, however contradictory. The state is unchanged afterwards."""
    with _quiet():
        if not has_new_settings(torch):
            return Fp32State(torch.get_float32_matmul_precision(), bool(torch.backends.cudnn.allow_tf32))
        stored: list[tuple[tuple[str, str], str]] = []
        try:
            for key in KEYS:
                stored.append((key, str(torch._C._get_fp32_precision_getter(*key))))
                torch._C._set_fp32_precision_setter(*key, "none")
            # With every new setting at "none" the old matmul setting can be read whatever it is; the old cuDNN one only when
            # it agrees with conv and rnn, so try the one that "none" stands for.
            matmul = str(torch._C._get_float32_matmul_precision())
            try:
                cudnn = bool(torch._C._get_cudnn_allow_tf32())
            except RuntimeError:
                cudnn = True
        finally:
            _write(torch, stored)
        return Fp32State(matmul, cudnn, tuple(stored))


def restore(torch: Any, state: Fp32State) -> None:
    """Put back what `capture` found."""
    with _quiet():
        torch.set_float32_matmul_precision(state.matmul)
        torch.backends.cudnn.allow_tf32 = state.cudnn
        if state.stored:
            _write(torch, state.stored)


def apply(torch: Any, *, tf32: bool) -> None:
    """Allow or forbid TF32 everywhere: matmul, convolution, recurrent; CUDA, ROCm and the CPU library alike."""
    with _quiet():
        if has_new_settings(torch):
            for key in KEYS:
                torch._C._set_fp32_precision_setter(*key, "none")
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        if has_new_settings(torch):
            for key in KEYS[3:]:
                try:
                    torch._C._set_fp32_precision_setter(*key, "tf32" if tf32 else "ieee")
                except RuntimeError:  # a CPU library that knows no TF32: IEEE is what it does then
                    torch._C._set_fp32_precision_setter(*key, "ieee")


def _write(torch: Any, stored: Any) -> None:
    for (backend, operation), value in stored:
        torch._C._set_fp32_precision_setter(backend, operation, value)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch 2.9 to 2.11 warn once that the old settings will go; both are written here on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
