"""Folders that stand for the root of a host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def written(root: Path, files: Mapping[str, str]) -> Path:
    """`root`, holding these files by their path under it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def kfd_node(number: int, **properties: int) -> dict[str, str]:
    """A node of AMD's kernel driver as the file that describes it."""
    path = f"sys/class/kfd/kfd/topology/nodes/{number}/properties"
    return {path: "".join(f"{name} {value}\n" for name, value in properties.items())}
