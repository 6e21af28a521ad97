"""Exact products certified on the device that made them: is D = alpha·A·Bᵀ + beta·C + bias, and if not, in which rows and columns.

As `inputs.freivalds`, in torch's int64, which wraps: for random 64-bit x and w, A·(Bᵀx) = D·x row by row and (wᵀA)·Bᵀ = wᵀD column by
column. The left sides are made once for the operands; D is read once. Where there is Triton, one kernel makes all sums of a matrix in one
pass, the operands' too. A wrong row or column stays unnamed with a probability at most 2^-40; one that is named is wrong for certain. The
sign of a zero is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.inputs.exact import NOT_AN_INTEGER
from accuracy_eval.inputs.philox import STREAM_64, stream_key, words
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case

PIECE = 1 << 24  # elements held as 64-bit numbers at a time
NAMED = 16  # rows and columns kept of a wrong output


@dataclass(frozen=True)
class Checked:
    """What a certificate says of one output, still on the device: whether each row [m] and column [n] is wrong."""

    rows: Any
    columns: Any

    def wrong(self) -> dict[str, Any]:
        """Counts, and the first rows and columns; empty where the output is right."""
        rows, columns = (mask.nonzero().flatten().tolist() for mask in (self.rows, self.columns))
        if not rows and not columns:
            return {}
        return {"rows": rows[:NAMED], "columns": columns[:NAMED], "row_count": len(rows), "column_count": len(columns)}


def certifiable(case: Case) -> bool:
    """Whether the case's output is an exact integer product of its operands."""
    return case.op == "gemm" and case.lane == "exact" and case.direction == "fwd" and not case.recipe


@lru_cache(maxsize=32)
def _random(name: str, size: int) -> NDArray[np.int64]:
    return words(stream_key("certificate", name, (size,), "random", 0), STREAM_64, 0, size).view(np.int64)


class Certificate:
    """The sums that rows and columns of a case's D must have, from its operands on the device, as stored."""

    def __init__(self, torch: Any, case: Case, tensors: Mapping[str, Any]) -> None:
        self._torch = torch
        spec = get_op(case.op)
        alpha, beta, bias = (float(spec.option(case, name)) for name in ("alpha", "beta", "bias"))
        self._unit = min((abs(f) for f in (alpha, beta, bias) if f), default=1.0)  # D is a multiple of it
        a = tensors["a"] if case.layout[0] == "n" else tensors["a"].t()
        b = tensors["b"].t() if case.layout[1] == "n" else tensors["b"]
        self._x, self._w = self._weights("x", b.shape[0], a.device), self._weights("w", a.shape[0], a.device)
        _, bx = self._sums(b, rows=self._x)
        self._row_sums, wa = self._sums(a, rows=self._w, columns=bx)
        self._column_sums, _ = self._sums(b, columns=wa)
        self._scale(alpha)
        if beta:
            self._add(beta, *self._sums(tensors["c"], rows=self._w, columns=self._x))
        if bias:
            values = self._integers(tensors["bias"], 1.0)
            self._add(bias, (values * self._x).sum(), values * self._w.sum())

    def check(self, d: Any) -> Checked:
        """d [m, n]: reads it once, and waits for nothing."""
        rows, columns = self._sums(d, rows=self._w, columns=self._x, unit=self._unit)
        return Checked(rows != self._row_sums, columns != self._column_sums)

    def _scale(self, factor: float) -> None:
        self._row_sums *= int(factor / self._unit)
        self._column_sums *= int(factor / self._unit)

    def _add(self, factor: float, rows: Any, columns: Any) -> None:
        self._row_sums += rows * int(factor / self._unit)
        self._column_sums += columns * int(factor / self._unit)

    def _weights(self, name: str, size: int, device: Any) -> Any:
        return self._torch.from_numpy(_random(name, size).copy()).to(device)

    def _sums(self, matrix: Any, *, rows: Any = None, columns: Any = None, unit: float = 1.0) -> tuple[Any, Any]:
        """(matrix · columns [rows], rowsᵀ · matrix [columns]) mod 2^64, of integers matrix / unit; None for weights that are None."""
        if matrix.is_cuda and find_spec("triton"):
            from accuracy_eval.backends import certificate_kernel

            if certificate_kernel.summable(self._torch, matrix):
                return certificate_kernel.sums(self._torch, matrix, columns, rows, unit, NOT_AN_INTEGER)
        height, width = matrix.shape
        across = None if columns is None else self._torch.zeros(height, dtype=self._torch.int64, device=matrix.device)
        down = None if rows is None else self._torch.zeros(width, dtype=self._torch.int64, device=matrix.device)
        step = max(1, PIECE // max(1, width))
        for i in range(0, height, step):
            piece = self._integers(matrix[i : i + step], unit)
            if across is not None:
                across[i : i + step] = (piece * columns).sum(1)
            if down is not None:
                down += (piece * rows[i : i + step, None]).sum(0)
        return across, down

    def _integers(self, values: Any, unit: float) -> Any:
        """int64 of values / unit; what is no integer of at most 2^24 there (NaN, infinite, half) becomes NOT_AN_INTEGER."""
        wide = values.to(self._torch.float64) / unit
        whole = (wide == wide.round()) & (wide.abs() <= 1 << 24)
        return self._torch.where(whole, wide, float(NOT_AN_INTEGER)).to(self._torch.int64)
