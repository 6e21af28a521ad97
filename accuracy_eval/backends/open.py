"""Backends by the name a user gives."""

from __future__ import annotations

from typing import Literal

from accuracy_eval.backends.model import ModelBackend
from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.backends.torch_device import RANKS_LIMIT_S, TorchBackend, import_torch
from accuracy_eval.errors import MissingDependency, unknown
from accuracy_eval.parts import aliases

DEVICES = ("auto", "cpu", "cuda", "cuda:N", "reference", "model:UNIT")
GPUS = ("gpu", "rocm", "hip", "amd", "nvidia")  # what people call the GPU that torch calls cuda


def open_backend(
    device: str, encoding: Literal["ocp", "fnuz"] = "ocp", *, limit_s: float = RANKS_LIMIT_S
) -> TorchBackend | ReferenceBackend:
    """The backend of a device name. "auto": the GPU torch sees, else its CPU, else the reference. Unknown names raise UsageError.

    model:UNIT is the model of a matrix unit, by any of its names: model:cdna3, model:H200.

    limit_s  seconds that the ranks of a case wait for each other
    """
    if device == "reference":
        return ReferenceBackend(encoding)
    if device.startswith("model:"):
        return ModelBackend(device)
    if device == "auto":
        try:
            torch = import_torch()
        except MissingDependency:
            return ReferenceBackend(encoding)
        return TorchBackend("cuda:0" if torch.cuda.is_available() else "cpu", torch=torch, limit_s=limit_s)
    if device == "cuda":
        return TorchBackend("cuda:0", limit_s=limit_s)
    if device == "cpu" or (device.startswith("cuda:") and device[5:].isdigit()):
        return TorchBackend(device, limit_s=limit_s)
    error = unknown("device", device, DEVICES)
    if device.lower() in GPUS:
        error.add_note("cuda is the GPU that torch sees: an AMD one where torch is built for ROCm")
    elif device.lower() in aliases():
        error.add_note(f"model:{device} is the model of its matrix unit, cuda the GPU itself")
    raise error
