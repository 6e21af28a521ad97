"""A sampled reference for products too large for a full one: some rows and columns exactly, every row statistically.

64 exact rows and columns see whatever is wrong everywhere, or in whole rows or columns of tiles. Random projections see single
rows: for E = D − reference and x of random signs, (E·x)_i² has the mean ‖E_i‖², whatever E is; the mean over s probes has a
relative standard error of at most sqrt(2/s). (Freivalds 1979; Hutchinson 1989.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import AUTO_FLOP, Panel, panels
from accuracy_eval.cpu_ref.operands import BLOCK_ELEMENTS, Gemm
from accuracy_eval.formats import Values

ROWS = 64
PROBES = 8
WIDE_FLOP = AUTO_FLOP >> 5  # products of float64 operands cost about 30 times as much


@dataclass(frozen=True)
class Sample:
    """The reference of some rows and columns, and projections of all rows.

    rows        indices of exact rows [s], ascending, first and last row among them
    row_panel   their reference, [s, n], first_row 0
    columns     indices of exact columns; column_panel [m, s]
    probes      signs [n, p], ±1
    projected   reference · probes, [m, p]
    """

    rows: NDArray[np.int64]
    row_panel: Panel
    columns: NDArray[np.int64]
    column_panel: Panel
    probes: Values
    projected: Values

    @property
    def standard_error(self) -> float:
        """Relative standard error of one `row_errors` estimate: sqrt(2 / probes)."""
        return math.sqrt(2.0 / self.probes.shape[1])

    def row_errors(self, first_row: int, actual: Values) -> Values:
        """Estimates of ‖actual_i − reference_i‖² for rows first_row … of the result, from values [r, n]; float64 [r]."""
        difference = actual @ self.probes - self.projected[first_row : first_row + actual.shape[0]]
        estimate: Values = np.mean(difference**2, axis=1)
        return estimate


def sample_rows(count: int, wanted: int = ROWS) -> NDArray[np.int64]:
    """Ascending indices: all if count ≤ wanted, else first, last and one at a hashed place of each stratum between."""
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    edges = (np.arange(wanted + 1, dtype=np.int64) * count) // wanted
    hashed = (np.arange(wanted, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    chosen = edges[:-1] + hashed.astype(np.int64) % np.diff(edges)
    chosen[0], chosen[-1] = 0, count - 1
    return chosen


def signs(count: int, probes: int = PROBES) -> Values:
    """Random signs [count, probes], the same on every host: bits of a 64-bit mixer (splitmix64) of the index."""
    z = np.arange(count * probes, dtype=np.uint64).reshape(count, probes) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where((z >> np.uint64(63)) != 0, -1.0, 1.0)


def full_reference(problem: Gemm) -> bool:
    """Whether `--reference auto` computes the whole reference of this problem."""
    return problem.flop <= (WIDE_FLOP if problem.wide else AUTO_FLOP)


def sampled_reference(
    problem: Gemm, *, contract: str | None = None, out_format: str | None = None, rows: int = ROWS, probes: int = PROBES
) -> Sample:
    """`rows` exact rows and columns with budgets, and `probes` projections of every row."""
    chosen, across = sample_rows(problem.m, rows), sample_rows(problem.n, rows)
    x = signs(problem.n, probes)
    return Sample(
        chosen, _whole(problem.take_rows(chosen), contract, out_format), across, _whole(problem.take_columns(across), contract, out_format),
        x, project(problem, x),
    )  # fmt: skip


def _whole(problem: Gemm, contract: str | None, out_format: str | None) -> Panel:
    parts = list(panels(problem, contract=contract, out_format=out_format))
    if len(parts) == 1:
        return parts[0]

    def joined(arrays: list[Any]) -> Any:
        return None if not arrays or arrays[0] is None else np.concatenate(arrays)

    values = joined([p.values for p in parts])
    return Panel(
        0, np.zeros((problem.m, problem.n)) if values is None else values, joined([p.budget for p in parts]), joined([p.low for p in parts])
    )


def project(problem: Gemm, x: Values) -> Values:
    """reference · x without forming the reference: alpha·op(A)·(op(B)·x) + beta·C·x + bias·x, float64 [m, p]; x [n, p]."""
    alpha, beta = problem.scalars
    m, n, k = problem.m, problem.n, problem.k
    out = np.zeros((m, x.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0 and k:
            inner = np.zeros((k, x.shape[1]))
            for j in range(0, n, step := max(1, BLOCK_ELEMENTS // k)):
                inner += problem.b_values(slice(0, k), slice(j, min(j + step, n))) @ x[j : j + step]
            for i in range(0, m, step := max(1, BLOCK_ELEMENTS // k)):
                out[i : i + step] = alpha * (problem.a_values(slice(i, min(i + step, m)), slice(0, k)) @ inner)
        if beta != 0:
            for i in range(0, m, step := max(1, BLOCK_ELEMENTS // max(n, 1))):
                out[i : i + step] += beta * (problem.c_values(slice(i, i + step)) @ x)
        if problem.bias_values is not None:
            out += problem.bias_values @ x
    return out
