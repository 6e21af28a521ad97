"""Dumps of another evaluator by their file names: VENDOR_gemm_DTYPE_M_N_K.pt and its like, one or several tensors each.

Two such folders, imported, join by what was computed: the vendor leaves the name. Their inputs are not in them, so tensors are compared
with each other alone, and no side is the truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accuracy_eval.errors import FileError
from accuracy_eval.foreign.integers import all_coded
from accuracy_eval.foreign.torch_file import read_torch_file
from accuracy_eval.formats import get_format
from accuracy_eval.records import Coded

VENDORS = ("AMD", "NVIDIA")
_DTYPES = r"(?P<dtype>float32|float16|bfloat16|fp32|fp16|bf16|float64)"
# the vendor may be any word: the program that names the files takes it from the device's name
_PLAIN = re.compile(rf"(?P<vendor>[^_]+)_(?P<op>[a-z0-9]+)_{_DTYPES}_(?P<sizes>\d+(?:[_x]\d+)*)$")
_ATTENTION = re.compile(rf"(?P<vendor>[^_]+)_attention_{_DTYPES}_(?P<model>.+?)_(?P<sizes>q\d+_kv\d+_hq\d+_hkv\d+_hdqk\d+_hdv\d+_bs\d+)$")


@dataclass(frozen=True)
class Imported:
    """Tensors by canonical name, the vendors found, and files whose names say nothing."""

    tensors: dict[str, Coded]
    vendors: tuple[str, ...]
    passed_over: tuple[str, ...]


def canonical(stem: str) -> tuple[str, str] | None:
    """(vendor, name without it) of a file's name: "gemm.bfloat16.512x128x256", "attention.bfloat16.llama3-8B.q4096.kv4096…"; or None."""
    match = _ATTENTION.match(stem)
    if match:
        sizes = match["sizes"].replace("_", ".")
        return match["vendor"], f"attention.{get_format(match['dtype']).name}.{match['model'].replace('_', '-')}.{sizes}"
    match = _PLAIN.match(stem)
    if not match:
        return None
    return match["vendor"], f"{match['op']}.{get_format(match['dtype']).name}.{match['sizes'].replace('_', 'x')}"


def import_dumps(paths: Iterable[Path]) -> Imported:
    """Read .pt files, or every one in a folder. FileError where nothing is found."""
    files = [f for p in paths for f in (sorted(p.glob("*.pt")) if p.is_dir() else [p])]
    tensors: dict[str, Coded] = {}
    vendors: dict[str, None] = {}
    passed: list[str] = []
    for file in files:
        if not file.exists():
            raise FileError(f"{file}: no such file or folder")
        named = canonical(file.stem)
        if named is None:
            passed.append(file.name)
            continue
        vendor, name = named
        vendors[vendor] = None
        for key, tensor in all_coded(file, read_torch_file(file)).items():
            tensors[name if key == "tensor" else f"{name}/{key}"] = tensor
    if not tensors:
        names = ", ".join(passed[:5]) or "no .pt file"
        raise FileError(f"nothing to import: found {names}; expected names such as AMD_gemm_bfloat16_512_128_256.pt")
    return Imported(tensors, tuple(vendors), tuple(passed))
