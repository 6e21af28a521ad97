"""A sampled reference for products too large for a full one: some rows and columns exactly, every row and column statistically.

64 exact rows and columns see whatever is wrong everywhere, or in whole rows or columns of tiles. Random projections see single
rows: for E = D − reference and x of independent random signs, (E·x)_i² has the mean ‖E_i‖², whatever E is; the mean over s
probes has a relative standard error of at most sqrt(2/s). Columns likewise by Eᵀ·y. (Freivalds 1979; Hutchinson 1989.)

Random signs are sub-Gaussian: the mean over s probes is at least as concentrated as ‖E_i‖² times a χ²_s/s, so that it exceeds
q·‖E_i‖² with probability at most (q·e^(1−q))^(s/2). That makes a limit which a row within its budget cannot break by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.gemm import AUTO_FLOP, Panel, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.projecting import PROBES, Projections, projections
from accuracy_eval.formats import Values, get_format, ulp

LINES = 64  # exact rows, and exact columns
WIDE_FLOP = AUTO_FLOP >> 5  # products of float64 operands cost about 30 times as much


@dataclass(frozen=True)
class Sample:
    """The reference of some rows and columns, and projections of all.

    rows, row_panel        ascending indices [s], first and last row among them, and their reference [s, n], first_row 0
    columns, column_panel  the same of columns: [s], [m, s]
    """

    rows: NDArray[np.int64]
    row_panel: Panel
    columns: NDArray[np.int64]
    column_panel: Panel
    projections: Projections


@dataclass(frozen=True)
class Limits:
    """Largest root mean square of the projected errors that a row (column) within its budget can show: [m], [n].

    row_norms, column_norms  ‖reference_i‖, estimated from its exact elements
    Inf where the reference holds NaN or Inf: such a line has no projection.
    """

    rows: Values
    columns: Values
    row_norms: Values
    column_norms: Values


def sample_lines(count: int, wanted: int = LINES) -> NDArray[np.int64]:
    """Ascending indices: all if count ≤ wanted, else first, last and one at a hashed place of each stratum between."""
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    edges = (np.arange(wanted + 1, dtype=np.int64) * count) // wanted
    hashed = (np.arange(wanted, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    chosen = edges[:-1] + hashed.astype(np.int64) % np.diff(edges)
    chosen[0], chosen[-1] = 0, count - 1
    return chosen


def full_reference(problem: Gemm) -> bool:
    """Whether `--reference auto` computes the whole reference of this problem."""
    return problem.flop <= (WIDE_FLOP if problem.wide else AUTO_FLOP)


def sampled_reference(
    problem: Gemm, *, contract: str | None = None, out_format: str | None = None, lines: int = LINES, probes: int = PROBES
) -> Sample:
    """`lines` exact rows and columns with budgets, and `probes` projections of every row and column."""
    rows, columns = sample_lines(problem.m, lines), sample_lines(problem.n, lines)
    return Sample(
        rows, whole(problem.take_rows(rows), contract, out_format), columns, whole(problem.take_columns(columns), contract, out_format),
        projections(problem, probes),
    )  # fmt: skip


def whole(problem: Gemm, contract: str | None, out_format: str | None) -> Panel:
    """The reference of a problem small enough to be held, in one panel."""
    return joined(list(panels(problem, contract=contract, out_format=out_format)), problem.n)


def joined(parts: Sequence[Panel], columns: int) -> Panel:
    """Panels one below the other, first_row 0."""

    def stack(arrays: list[Any]) -> Any:
        return None if not arrays or arrays[0] is None else np.concatenate(arrays)

    values = stack([p.values for p in parts])
    if values is None:
        values = np.zeros((0, columns))
    return Panel(0, values, *(stack([getattr(p, name) for p in parts]) for name in ("budget", "low", "typical")))


def chance_limit(probes: int) -> float:
    """q with (q·e^(1−q))^(probes/2) = 2·Q(λ): the mean over the probes exceeds q·‖E_i‖² by chance as rarely as an element its budget."""
    wanted = -2.0 / probes * math.log(math.erfc(LAMBDA / math.sqrt(2.0)))
    low, high = 1.0, 2.0 + 2.0 * wanted
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if middle - 1 - math.log(middle) < wanted else (low, middle)
    return high


def limits(sample: Sample, out_format: str) -> Limits:
    """What a healthy output's projections stay below: sqrt(q·Σ_j (B_ij + half an ulp)²) and the noise of the projections themselves.

    The sum over a row comes from its elements in the exact columns; where the exact rows show that the columns left out are heavier,
    by that much more. Columns likewise.
    """
    p = sample.projections
    allowed_rows, allowed_columns = (_allowed(panel, out_format) ** 2 for panel in (sample.row_panel, sample.column_panel))
    size_rows, size_columns = (np.where(np.isfinite(x.values), x.values, 0.0) ** 2 for x in (sample.row_panel, sample.column_panel))
    q = chance_limit(p.across.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        rows = np.sqrt(q * line_sums(allowed_columns, allowed_rows, sample.columns)) + p.row_noise
        columns = np.sqrt(q * line_sums(allowed_rows.T, allowed_columns.T, sample.rows)) + p.column_noise
        return Limits(
            np.where(np.isfinite(p.of_rows).all(axis=1), rows, np.inf),
            np.where(np.isfinite(p.of_columns).all(axis=1), columns, np.inf),
            np.sqrt(line_sums(size_columns, size_rows, sample.columns)),
            np.sqrt(line_sums(size_rows.T, size_columns.T, sample.rows)),
        )


def _allowed(panel: Panel, out_format: str) -> Values:
    """Largest error after rounding to the output's format; 0 where the reference is not finite."""
    f = get_format(out_format)
    budget = np.zeros_like(panel.values) if panel.budget is None else panel.budget
    with np.errstate(invalid="ignore", over="ignore"):
        if f.kind == "int":
            rounding = np.abs(panel.values - np.rint(panel.values))
        else:
            rounding = ulp(np.abs(panel.values) + budget, f) / 2
        return np.where(np.isfinite(panel.values), budget + rounding, 0.0)


def line_sums(sampled: Values, along: Values, at: NDArray[np.int64]) -> Values:
    """Sums over whole lines [lines] from some of their elements [lines, s], those at `at`, and from some whole lines [t, length]."""
    profile = along.mean(axis=0)
    here = profile[at].mean()
    heavier = max(1.0, float(profile.mean() / here)) if here > 0 else 1.0
    return np.asarray(sampled.mean(axis=1) * (heavier * along.shape[1]))
