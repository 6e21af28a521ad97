"""safetensors: eight bytes of header length (little-endian), a JSON header, then the tensors' bytes.

The header maps a name to dtype, shape and the range of its bytes in what follows; ranges cover that without holes or overlap. Sub-byte
formats and scale formats without a dtype of their own travel as U8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.errors import CorruptFile, UsageError
from accuracy_eval.foreign.integers import Wide, coded_integers
from accuracy_eval.formats import FORMATS, get_format
from accuracy_eval.records import Coded

LARGEST_HEADER = 100_000_000  # bytes, the format's own limit
LARGEST_SIZE = 1 << 48  # of a dimension or an offset
DTYPES: dict[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0", "int32": "I32", "int8": "I8", "uint8": "U8",
}  # fmt: skip
_FORMATS = {dtype: fmt for fmt, dtype in DTYPES.items()}
_WIDE = {"I64": "<i8", "U64": "<u8"}  # read, never written


def write_safetensors(path: Path, tensors: Mapping[str, Coded], metadata: Mapping[str, str] | None = None) -> None:
    """Write the codes of every tensor, in order; `metadata` holds strings."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts, offset = [], 0
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor.codes, get_format(tensor.format).storage).tobytes()
        dtype = DTYPES.get(tensor.format, "U8")
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def read_safetensors(path: Path) -> dict[str, Coded | Wide]:
    """Every tensor as codes; Wide for 64-bit integers that int32 does not hold.

    UsageError for a dtype that is no known format, CorruptFile where the header and the bytes do not fit each other.
    """
    header, start = _header(path)
    size = path.stat().st_size
    data = np.memmap(path, np.uint8, "r", offset=start) if size > start else np.empty(0, np.uint8)
    found = {name: _tensor(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"}
    end = 0
    for name in sorted(found, key=lambda n: header[n]["data_offsets"]):
        first, after = header[name]["data_offsets"]
        if first != end:
            raise CorruptFile(f"{path}: tensor {name!r} starts at byte {first}, the one before it ends at {end}: a hole or an overlap")
        end = after
    if end != data.size:
        raise CorruptFile(f"{path}: {data.size - end} bytes after the last tensor belong to none")
    return found


def read_metadata(path: Path) -> dict[str, str]:
    """The strings a file carries beside its tensors; empty where there are none."""
    metadata = _header(path)[0].get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header and where the tensors' bytes start."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            raise CorruptFile(f"{path}: not safetensors: a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise CorruptFile(f"{path}: not safetensors: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise CorruptFile(f"{path}: not safetensors: its header is no object")
    return header, 8 + length


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object none of whose names comes twice: of two tensors of a name one would be lost."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"names that come twice among {', '.join(name for name, _ in pairs)}")
    return found


def _tensor(path: Path, name: str, entry: Any, data: np.ndarray[Any, Any]) -> Coded | Wide:
    try:
        dtype, shape, (first, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        known = all(type(x) is int and abs(x) <= LARGEST_SIZE for x in (*shape, first, end)) and len(shape) <= 32
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptFile(f"{path}: tensor {name!r}: expected dtype, shape and data_offsets, found {entry!r}") from error
    if not known:
        raise CorruptFile(f"{path}: tensor {name!r}: expected a shape and data_offsets of integers below 2^48, found {entry!r}")
    if not isinstance(dtype, str) or dtype not in (*_FORMATS, *_WIDE):
        raise UsageError(f"{path}: tensor {name!r} has dtype {dtype}; allowed: {', '.join((*_FORMATS, *_WIDE))}")
    storage = np.dtype(_WIDE[dtype]) if dtype in _WIDE else FORMATS[_FORMATS[dtype]].storage
    wanted = math.prod(shape) * storage.itemsize
    if min(shape, default=0) < 0 or not 0 <= first <= end <= data.size or end - first != wanted:
        raise CorruptFile(f"{path}: tensor {name!r} {dtype} {shape} needs {wanted} bytes; found bytes {first} to {end} of {data.size}")
    found = np.array(data[first:end]).view(storage).reshape(shape)
    return coded_integers(found) if dtype in _WIDE else Coded(found, _FORMATS[dtype])
