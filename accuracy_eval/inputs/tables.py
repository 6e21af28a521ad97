"""The values a 16-bit word stands for: the normal table (package data) and the dyadic uniforms."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import CorruptFile

Source = Literal["normal", "uniform", "integers"]

NORMAL_TABLE = "normal_table.i32"
NORMAL_TABLE_SHA256 = "7030c40868edff0a36b70d4a06ceacbf25ac02eb87069f34786f8258a1e9a44d"
INTEGERS_TOP = 8  # class integers: -8 … 8


@cache
def normal_table() -> NDArray[np.int32]:
    """q [65536] int32, q[u] = round(Φ⁻¹((u + 1/2) / 65536) · 2^20): ascending, q[65535 - u] = -q[u], never zero. Read-only.

    Variance .99998, kurtosis 2.9992, largest 4.3249 (of q · 2^-20). A file that is not the one released raises CorruptFile.
    """
    raw = resources.files("accuracy_eval").joinpath("data", NORMAL_TABLE).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != NORMAL_TABLE_SHA256:
        raise CorruptFile(
            f"package data data/{NORMAL_TABLE}: sha256 {found} ({len(raw)} bytes) != {NORMAL_TABLE_SHA256} (262144 bytes);"
            " inputs made from it would equal nobody's. Reinstall accuracy-eval."
        )
    return np.frombuffer(raw, "<i4").astype(np.int32, copy=False)


@cache
def source_table(source: Source) -> NDArray[Any]:
    """Value [65536] of each u16 under a source, float64 (all exact in float32). Read-only."""
    u = np.arange(1 << 16)
    if source == "normal":
        values = normal_table() * 2.0**-20
    elif source == "uniform":
        values = (2 * u - 65535) / 65536
    else:
        values = ((u * (2 * INTEGERS_TOP + 1)) >> 16) - float(INTEGERS_TOP)
    values.flags.writeable = False
    return values
