"""Exact products certified on the device that made them: is D = alpha·A·Bᵀ + beta·C + bias, and if not, in which rows and columns.

As `inputs.freivalds`, in torch's int64, which wraps: for random x and w, A·(Bᵀx) = D·x row by row and (wᵀA)·Bᵀ = wᵀD column by column.
The left sides are made once for the operands; D is read once. Where there is Triton, one kernel makes all sums of a matrix in one pass, the
operands' too.

x and w are odd numbers of 32 bits. An output is off by e with |e| < 2^32, so that e·x is not 0 modulo 2^64, and different for different x:
a row with one wrong element is named for certain, one with several stays unnamed for at most one of the 2^31 values of a weight, given the
others. One that is named is wrong for certain. The sign of a zero is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from accuracy_eval.inputs.exact import NOT_AN_INTEGER
from accuracy_eval.inputs.philox import STREAM_64, stream_key, words
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case

PIECE = 1 << 24  # elements held as 64-bit numbers at a time
NAMED = 16  # rows and columns kept of a wrong output


@dataclass(frozen=True)
class Checked:
    """What a certificate says of one output, still on the device: by how much the sum of each row [m] and column [n] is off."""

    rows: Any
    columns: Any

    def wrong(self) -> dict[str, Any]:
        """Counts, and the first rows and columns; empty where the output is right."""
        rows, columns = (sums.nonzero().flatten().tolist() for sums in (self.rows, self.columns))
        if not rows and not columns:
            return {}
        return {"rows": rows[:NAMED], "columns": columns[:NAMED], "row_count": len(rows), "column_count": len(columns)}


def certifiable(case: Case) -> bool:
    """Whether the case's output is an exact integer product of its operands."""
    return case.op == "gemm" and case.lane == "exact" and case.direction == "fwd" and not case.recipe


@dataclass(frozen=True)
class Weights:
    """int64 [size] on the device; unless wide, numbers of 32 bits."""

    values: Any
    wide: bool


@lru_cache(maxsize=32)
def _random_on(torch: Any, device: Any, name: str, size: int) -> Any:
    """Odd numbers of 32 bits, int64 [size] on the device."""
    numbers = words(stream_key("certificate", name, (size,), "random", 0), STREAM_64, 0, size).view(np.int64) >> 32 | 1
    return torch.from_numpy(numbers).to(device)


class Certificate:
    """The sums that rows and columns of a case's D must have, from its operands on the device, as stored."""

    def __init__(self, torch: Any, case: Case, tensors: Mapping[str, Any]) -> None:
        self._torch = torch
        spec = get_op(case.op)
        alpha, beta, bias = (float(spec.option(case, name)) for name in ("alpha", "beta", "bias"))
        self._unit = min((abs(f) for f in (alpha, beta, bias) if f), default=1.0)  # D is a multiple of it
        a = tensors["a"] if case.layout[0] == "n" else tensors["a"].t()
        b = tensors["b"].t() if case.layout[1] == "n" else tensors["b"]
        self._height = a.shape[0]
        self._x, self._w = (
            Weights(_random_on(torch, a.device, name, size), wide=False) for name, size in (("x", b.shape[0]), ("w", a.shape[0]))
        )
        _, bx = self._sums(b, rows=self._x)
        row_sums, wa = self._sums(a, rows=self._w, columns=Weights(bx, wide=True))
        column_sums, _ = self._sums(b, columns=Weights(wa, wide=True))
        row_sums *= self._units(alpha)
        column_sums *= self._units(alpha)
        if beta:
            across, down = self._sums(tensors["c"], rows=self._w, columns=self._x)
            row_sums += across * self._units(beta)
            column_sums += down * self._units(beta)
        if bias:
            values = self._integers(tensors["bias"], 1.0) * self._units(bias)
            row_sums += (values * self._x.values).sum()
            column_sums += values * self._w.values.sum()
        self._minus = -self._torch.cat([row_sums, column_sums])

    def check(self, d: Any) -> Checked:
        """d [m, n]: reads it once, and waits for nothing."""
        off = self._minus.clone()
        rows, columns = off[: self._height], off[self._height :]
        self._add_sums(d, rows, columns, of_rows=self._w, of_columns=self._x, unit=self._unit)
        return Checked(rows, columns)

    def _units(self, factor: float) -> int:
        return int(factor / self._unit)

    def _sums(self, matrix: Any, *, rows: Weights | None = None, columns: Weights | None = None) -> tuple[Any, Any]:
        """(matrix · columns [rows], rowsᵀ · matrix [columns]) modulo 2^64 of a matrix of integers; 0 for weights that are None."""
        across, down = (self._torch.zeros(size, dtype=self._torch.int64, device=matrix.device) for size in matrix.shape)
        self._add_sums(matrix, across, down, of_rows=rows, of_columns=columns, unit=1.0)
        return across, down

    def _add_sums(self, matrix: Any, across: Any, down: Any, *, of_rows: Weights | None, of_columns: Weights | None, unit: float) -> None:
        """Adds the sums of the integers matrix / unit to across [rows] and down [columns], modulo 2^64; not for weights that are None."""
        x, w = (None if weights is None else weights.values for weights in (of_columns, of_rows))
        if matrix.is_cuda and find_spec("triton"):
            from accuracy_eval.backends import certificate_kernel

            if certificate_kernel.summable(self._torch, matrix):
                wide = {"wide_x": of_columns is not None and of_columns.wide, "wide_w": of_rows is not None and of_rows.wide}
                certificate_kernel.add_sums(self._torch, matrix, across, down, x=x, w=w, **wide, unit=unit, no_integer=NOT_AN_INTEGER)
                return
        height, width = matrix.shape
        step = max(1, PIECE // max(1, width))
        for i in range(0, height, step):
            piece = self._integers(matrix[i : i + step], unit)
            if x is not None:
                across[i : i + step] += (piece * x).sum(1)
            if w is not None:
                down += (piece * w[i : i + step, None]).sum(0)

    def _integers(self, values: Any, unit: float) -> Any:
        """int64 of values / unit; what is no integer of at most 2^24 there (NaN, infinite, half) becomes NOT_AN_INTEGER."""
        wide = values.to(self._torch.float64) / unit
        whole = (wide == wide.round()) & (wide.abs() <= 1 << 24)
        return self._torch.where(whole, wide, float(NOT_AN_INTEGER)).to(self._torch.int64)
