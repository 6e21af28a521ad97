"""One GPU a test worker: which variable to set to what, so that parallel processes do not share a device.

The number of devices is that of this machine (or container), never assumed. A list the user gave is kept: workers take turns in it.
Nothing is imported and no device is touched: device nodes and the kernel's topology are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from accuracy_eval.backends.driver import kfd_nodes

# The innermost list that is set is the one to narrow: HIP counts inside what ROCR shows; ROCm builds also read CUDA's.
AMD_VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def nvidia_count(root: Path = Path("/")) -> int:
    """NVIDIA GPUs this process may open: device nodes, for containers show the driver's whole list and only their own nodes."""
    return sum(1 for path in (root / "dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def amd_count(root: Path = Path("/")) -> int:
    """AMD GPUs this process may open: compute nodes of the kernel's topology whose render node is here."""
    minors = [node.get("drm_render_minor") for node in kfd_nodes(root)]
    return sum(1 for minor in minors if minor is None or (root / f"dev/dri/renderD{minor}").exists())


def worker_number(name: str) -> int | None:
    """3 of "gw3"; None for what is no worker's name."""
    match = re.fullmatch(r"gw(\d+)", name)
    return int(match[1]) if match else None


def pinned(worker: int, environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Variables that give this worker one GPU; empty where there is none, or the user hides all."""
    nvidia, amd = nvidia_count(root), amd_count(root)
    changes = {}
    if nvidia:
        changes.update(_narrowed("CUDA_VISIBLE_DEVICES", nvidia, worker, environment))
    elif amd:
        variable = next((v for v in AMD_VARIABLES if v in environment), AMD_VARIABLES[0])
        changes.update(_narrowed(variable, amd, worker, environment))
    return changes


def _narrowed(variable: str, count: int, worker: int, environment: Mapping[str, str]) -> dict[str, str]:
    listed = [x.strip() for x in environment[variable].split(",")] if variable in environment else [str(i) for i in range(count)]
    listed = [x for x in listed if x and x != "-1"]
    return {variable: listed[worker % len(listed)]} if listed else {}
