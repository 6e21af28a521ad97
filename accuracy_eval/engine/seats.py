"""Seats for a device name: which variables give each worker a GPU of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from accuracy_eval.engine.work import Seat
from accuracy_eval.errors import UsageError
from accuracy_eval.threads import thread_count


def visible(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, list[str] | None]:
    """(variable that chooses GPUs here, the devices it lists now or None for all).

    An AMD host is told by its kernel driver's device. There HIP_VISIBLE_DEVICES counts within what ROCR_VISIBLE_DEVICES leaves, and beats
    CUDA_VISIBLE_DEVICES, which ROCm honours too.
    """
    amd = (root / "dev/kfd").exists() and not (root / "dev/nvidiactl").exists()
    variable = "HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES"
    listed = environment.get(variable, environment.get("CUDA_VISIBLE_DEVICES") if amd else None)
    return variable, None if listed is None else [d.strip() for d in listed.split(",") if d.strip()]


def gpu_count(environment: Mapping[str, str], root: Path = Path("/")) -> int:
    """GPUs a process may use here, from the kernel drivers' device files and the variables; 0 where there is no driver."""
    nvidia = [p for p in (root / "dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()]
    amd = [p for p in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties") if _has_simds(p)]
    present = len(nvidia) or len(amd)
    variable, listed = visible(environment, root)
    if variable == "HIP_VISIBLE_DEVICES" and environment.get("ROCR_VISIBLE_DEVICES"):
        present = min(present, len(environment["ROCR_VISIBLE_DEVICES"].split(",")))
    return present if listed is None else min(present, len(listed))


def _has_simds(path: Path) -> bool:
    return any(line.startswith("simd_count ") and not line.endswith(" 0") for line in path.read_text().splitlines())


def gpu_seats(count: int, environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> list[Seat]:
    """One seat a GPU, each seeing its own alone. UsageError when there are fewer."""
    variable, listed = visible(environment, root)
    there = gpu_count(environment, root)
    if count > there:
        shown = f"{variable}={','.join(listed)}" if listed is not None else f"{variable} is not set"
        if not there:
            raise UsageError(f"no GPU can be used here ({shown}); --device cpu or reference takes none")
        raise UsageError(f"{count} workers asked for, {there} GPUs can be used here ({shown}); ask for at most {there}")
    names = listed if listed is not None else [str(i) for i in range(there)]
    return [Seat(f"gpu {n}", {variable: n, "ACCURACY_EVAL_THREADS": str(_share(count))}) for n in names[:count]]


def cpu_seats(count: int) -> list[Seat]:
    """`count` workers of this CPU. Their own kernels share its cores; a framework's keep its setting, which may decide bits."""
    return [Seat(f"worker {i}", {"ACCURACY_EVAL_THREADS": str(_share(count))}) for i in range(count)]


def _share(count: int) -> int:
    return max(1, thread_count() // count)


def seats_for(device: str, count: int, environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[str, list[Seat]]:
    """(device name for each worker, seats). "cuda" and, where there are GPUs, "auto" are one GPU a worker; "cuda:N" is one GPU."""
    gpu = device == "cuda" or (device == "auto" and gpu_count(environment, root) > 0)
    if gpu:
        return "cuda:0", gpu_seats(count, environment, root)
    if device.startswith("cuda:"):
        if count > 1:
            raise UsageError(f"device {device} is one GPU and {count} workers were asked for; use --device cuda for one GPU each")
        return device, cpu_seats(1)
    return device, cpu_seats(count)


def most_workers(device: str, environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """Workers that `all` means: one a GPU where the device is a GPU, else one a core."""
    gpus = gpu_count(environment, root) if device in ("cuda", "auto") else 0
    return 1 if device.startswith("cuda:") else gpus or thread_count()
