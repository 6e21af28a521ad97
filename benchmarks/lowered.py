"""Plugin: torch's switches that lower the precision of products, as candidates that do not say so.

    accuracy-eval dump --op gemm --shape 64x64x16384 --format bfloat16 --plugin benchmarks/lowered.py --candidate all -o lowered.h5
    accuracy-eval compare lowered.h5

Each promises fp32acc, the contract of a healthy product, and on a GPU whose library uses what the switch allows does not keep it. The
report must say `off_contract` and what was used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import accuracy_eval as ae
from accuracy_eval.backends import flags
from accuracy_eval.cases import Case

SWITCHES = {
    "tf32": ("float32", {"tf32": True}),
    "fp16_accumulation": ("float16", {"tf32": False, "fp16_accumulation": True}),
    "fp16_partials": ("float16", {"tf32": False, "fp16_reduced": True}),
    "bf16_partials": ("bfloat16", {"tf32": False, "bf16_reduced": True}),
}


def _for(fmt: str) -> Callable[[Case, Mapping[str, Any]], str | None]:
    def supports(case: Case, platform: Mapping[str, Any]) -> str | None:
        plain = case.format == fmt and not case.recipe and case.direction == "fwd" and not case.options and not case.out_format
        return None if plain else f"plain {fmt} products alone"

    return supports


def _register(name: str, fmt: str, switches: dict[str, bool]) -> None:
    @ae.candidate("gemm", name=f"{name}_unsaid", contract="fp32acc", supports=_for(fmt))
    def product(case: Case, tensors: Mapping[str, Any]) -> Any:
        import torch

        a, b = (t if layout == "n" else t.t() for t, layout in zip((tensors["a"], tensors["b"]), case.layout, strict=True))
        with flags.case_flags(torch, device=str(a.device), **switches):
            return a @ b


for _name, (_fmt, _switches) in SWITCHES.items():
    _register(_name, _fmt, _switches)
