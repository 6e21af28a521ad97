"""Named arrays of a file of any kind this program reads: .npy, .npz, .safetensors, .pt, .pth."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.arrays import as_coded
from accuracy_eval.errors import CorruptFile, FileError, unknown
from accuracy_eval.foreign.integers import Wide, coded_integers
from accuracy_eval.foreign.safetensors import read_safetensors
from accuracy_eval.foreign.torch_file import read_torch_file
from accuracy_eval.records import Coded

# what numpy and zipfile raise for a file cut short, changed, encrypted, or whose header asks for more memory than there is
_DAMAGED = (ValueError, EOFError, MemoryError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error)

_SIGNATURES = (b"\x93NUMPY", b"PK")  # of .npy and .npz


def read_numpy(path: Path) -> dict[str, Coded | Wide]:
    """The arrays of a .npz, or that of a .npy by the name "array". FileError for another kind of file, CorruptFile for objects
    and for a damaged one.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if start and not start.startswith(_SIGNATURES):
                raise FileError(f"{path}: not an {path.suffix}: begins with {start!r}")
            file.seek(0)
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"array": _array(loaded, str(path))}
            return {name: _array(loaded[name], f"{path}: {name}") for name in loaded.files}
    except _DAMAGED as error:
        why = "arrays of Python objects are not read" if "allow_pickle" in str(error) else "is the file whole? Write it again"
        raise CorruptFile(f"{path}: {error or type(error).__name__}; {why}") from error


def _array(values: NDArray[Any], place: str) -> Coded | Wide:
    return coded_integers(values) if values.dtype.kind in "iu" and values.dtype.itemsize == 8 else as_coded(values, place)


READERS: dict[str, Callable[[Path], dict[str, Coded | Wide]]] = {
    ".npy": read_numpy,
    ".npz": read_numpy,
    ".safetensors": read_safetensors,
    ".pt": read_torch_file,
    ".pth": read_torch_file,
}


def is_foreign(path: str | Path) -> bool:
    """Whether the file's name is that of arrays, not of a dump."""
    return Path(path).suffix in READERS


def read_arrays(path: str | Path) -> dict[str, Coded | Wide]:
    """Every array of the file by name, as codes; Wide for 64-bit integers that int32 does not hold. FileError where it cannot be read."""
    file = Path(path)
    reader = READERS.get(file.suffix)
    if reader is None:
        raise unknown("kind of array file", file.name, (f"*{suffix}" for suffix in READERS))
    if not file.is_file():
        raise FileError(f"{file}: no such file")
    return reader(file)
