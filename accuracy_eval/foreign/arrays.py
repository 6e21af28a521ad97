"""Named arrays of a file of any kind this program reads: .npy, .npz, .safetensors, .pt, .pth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.checking import as_coded
from accuracy_eval.errors import CorruptFile, FileError, unknown
from accuracy_eval.foreign.safetensors import read_safetensors
from accuracy_eval.foreign.torch_file import read_torch_file
from accuracy_eval.records import Coded


def _numpy(path: Path) -> dict[str, Coded]:
    try:
        loaded: Any = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise CorruptFile(f"{path}: {error}; arrays of Python objects are not read") from error
    if isinstance(loaded, np.ndarray):
        return {"array": as_coded(loaded, str(path))}
    with loaded:
        return {name: as_coded(loaded[name], f"{path}: {name}") for name in loaded.files}


READERS: dict[str, Callable[[Path], dict[str, Coded]]] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".safetensors": read_safetensors,
    ".pt": read_torch_file,
    ".pth": read_torch_file,
}


def is_foreign(path: str | Path) -> bool:
    """Whether the file's name is that of arrays, not of a dump."""
    return Path(path).suffix in READERS


def read_arrays(path: str | Path) -> dict[str, Coded]:
    """Every array of the file by name, as codes. FileError where it cannot be read."""
    file = Path(path)
    reader = READERS.get(file.suffix)
    if reader is None:
        raise unknown("kind of array file", file.name, (f"*{suffix}" for suffix in READERS))
    if not file.is_file():
        raise FileError(f"{file}: no such file")
    return reader(file)
