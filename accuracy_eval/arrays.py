"""Arrays of any library as codes of a named format, bit for bit."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FORMATS, get_format
from accuracy_eval.records import Coded

_TORCH_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # by bytes an element: torch has few operations on uint16 and wider


def codes(array: Any, *, format: str) -> Coded:
    """Codes of a named format as an array `check` takes. UsageError unless they are unsigned integers of the format's width."""
    fmt = get_format(format)
    found = _native(array)
    if found.dtype != fmt.storage:
        raise UsageError(f"codes of {fmt.name}: found dtype {found.dtype}; allowed: {fmt.storage.name}, one code an element")
    return Coded(found, fmt.name)


def as_coded(array: Any, name: str = "array") -> Coded:
    """Any accepted array as codes, bit for bit: numpy, ml_dtypes, torch (any device), Coded, or numbers that become float64.

    Integers of 64 bits and booleans become int32 where all of them fit. UsageError names `name` and the dtypes there are.
    """
    if isinstance(array, Coded):
        return array
    if hasattr(array, "detach") and hasattr(array, "element_size"):
        return _from_torch(array, name)
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{name}: a masked array; fill it or select its elements first, the mask would be ignored")
    found = _native(array)
    if found.dtype.name in ("int64", "bool") and (not found.size or -(1 << 31) <= int(found.min()) <= int(found.max()) < 1 << 31):
        found = found.astype(np.int32)
    if found.dtype == object and not isinstance(array, np.ndarray):
        raise UsageError(f"{name}: a {type(array).__name__} is no array of numbers; give a numpy array or a torch tensor")
    if found.dtype.name not in FORMATS:
        allowed = ", ".join(n for n, f in FORMATS.items() if not f.scale_only)
        raise UsageError(f"{name}: dtype {found.dtype} is no format this program knows; allowed: {allowed}, or codes(array, format=…)")
    fmt = get_format(found.dtype.name)
    return Coded(np.ascontiguousarray(found).view(fmt.storage).reshape(found.shape), fmt.name)


def _native(array: Any) -> NDArray[Any]:
    """The array in this machine's byte order."""
    found = np.asarray(array)
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def _from_torch(tensor: Any, name: str) -> Coded:
    if str(tensor.dtype) in ("torch.int64", "torch.bool"):
        return as_coded(tensor.detach().cpu().numpy(), name)
    fmt_name = str(tensor.dtype).removeprefix("torch.")
    if fmt_name not in FORMATS:
        raise UsageError(f"{name}: torch dtype {tensor.dtype} is no known format; view it as uint8 and use codes(array, format=…)")
    fmt = get_format(fmt_name)
    torch = sys.modules["torch"]  # the caller's: nothing here imports it
    plain = tensor.detach().cpu().contiguous().view(getattr(torch, _TORCH_INTEGERS[tensor.element_size()]))
    return Coded(plain.numpy().view(fmt.storage), fmt.name)
