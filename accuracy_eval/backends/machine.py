"""What collectors read from: one device of a host, by the torch module that runs it and the file system beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accuracy_eval.parts import Part, Vendor, part_of


@dataclass(frozen=True)
class Machine:
    """One device: the torch module (None for the numpy backend), the device asked for, a file system root, variables."""

    torch: Any
    device: str
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    hash_libraries: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.torch is not None and self.device != "cpu"

    @property
    def index(self) -> int:
        _, _, number = self.device.partition(":")
        return int(number) if number else int(self.torch.cuda.current_device())

    @property
    def vendor(self) -> Vendor:
        if not self.on_gpu:
            return "cpu"
        return "amd" if getattr(self.torch.version, "hip", None) is not None else "nvidia"

    @cached_property
    def properties(self) -> Any:
        return self.torch.cuda.get_device_properties(self.index)

    def shown(self, name: str) -> Any:
        return getattr(self.properties, name, None)

    @cached_property
    def arch_full(self) -> str | None:
        """`gfx942:sramecc+:xnack-` or `sm_90`; CUDA builds fill gcnArchName with the name, so it counts on ROCm only."""
        if self.vendor == "amd":
            return self.shown("gcnArchName") or None
        if self.vendor == "nvidia":
            major, minor = self.torch.cuda.get_device_capability(self.index)
            return f"sm_{major}{minor}"
        return None

    @property
    def part(self) -> Part | None:
        return part_of(self.arch_full)

    @cached_property
    def pci(self) -> str | None:
        numbers = [self.shown(f"pci_{name}_id") for name in ("domain", "bus", "device")]
        if not self.on_gpu or None in numbers[1:]:
            return None
        return f"{numbers[0] or 0:04x}:{numbers[1]:02x}:{numbers[2]:02x}.0"

    @cached_property
    def uuid(self) -> str | None:
        value = self.shown("uuid") if self.on_gpu else None
        return None if value is None else uuid_text(str(value), self.vendor)


def uuid_text(value: str, vendor: Vendor) -> str | None:
    """A device uuid as its vendor's tools print it.

    HIP's 16 bytes are ASCII characters that torch prints as if they were a binary uuid: 66333330-6463-… is `f330dc…`, 16 hex
    digits. An integrated GPU has only "XX" there, which identifies nothing: None. NVIDIA's are written `GPU-…`.
    """
    if vendor != "amd":
        return value if value.startswith(("GPU-", "MIG-")) else f"GPU-{value}"
    try:
        text = bytes.fromhex(value.replace("-", "")).rstrip(b"\0").decode("ascii")
    except ValueError:
        return value
    return text if re.fullmatch(r"[0-9a-f]{16}", text) else None
