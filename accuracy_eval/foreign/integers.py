"""Integers of 64 bits: codes of int32 where all of them fit, else an array that cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.records import Coded

_RANGE = np.iinfo(np.int32)


@dataclass(frozen=True)
class Wide:
    """An array of 64-bit integers that int32 does not hold."""

    reason: str


def coded_integers(values: NDArray[Any]) -> Coded | Wide:
    """Codes of int32, every value as it is; Wide says which is the first that does not fit."""
    beyond = (values < _RANGE.min) | (values > _RANGE.max)
    if not beyond.any():
        return Coded(np.ascontiguousarray(values.astype(np.int32)).view(np.uint32).reshape(values.shape), "int32")
    index = tuple(int(i) for i in np.unravel_index(int(beyond.argmax()), values.shape))
    count = f"{int(beyond.sum())} of {values.size} 64-bit integers beyond 32 bits"
    return Wide(f"{count}, the first {int(values[index])} at {list(index)}; integers are compared where all fit 32 bits")


def all_coded(path: Path, found: Mapping[str, Coded | Wide]) -> dict[str, Coded]:
    """Where every array is needed. UsageError for one that is Wide."""
    for name, array in found.items():
        if isinstance(array, Wide):
            raise UsageError(f"{path}: array {name!r} holds {array.reason}; save it as float64, or leave it out")
    return {name: array for name, array in found.items() if isinstance(array, Coded)}
