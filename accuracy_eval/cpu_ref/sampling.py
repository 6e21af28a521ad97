"""A sampled reference for products too large for a full one: some rows and columns exactly, every row and column statistically.

64 exact rows and columns see whatever is wrong everywhere, or in whole rows or columns of tiles. Random projections see single
rows: for E = D − reference and x of independent random signs, (E·x)_i² has the mean ‖E_i‖², whatever E is; the mean over s
probes has a relative standard error of at most sqrt(2/s). Columns likewise by Eᵀ·y. (Freivalds 1979; Hutchinson 1989.)

Random signs are sub-Gaussian: the mean over s probes is at least as concentrated as ‖E_i‖² times a χ²_s/s, so that it exceeds
q·‖E_i‖² with probability at most (q·e^(1−q))^(s/2). That makes a limit which a row within its budget cannot break by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.cpu_ref.gemm import AUTO_FLOP, Panel, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Values, get_format, ulp
from accuracy_eval.threads import map_threads

T = TypeVar("T")

LINES = 64  # exact rows, and exact columns
PROBES = 8
BLOCK = 1 << 21  # elements decoded at a time: 16 MB of float64 a thread (measured from 2^18 to 2^21: 1.3 to 0.9 s for 8192³)
WIDE_FLOP = AUTO_FLOP >> 5  # products of float64 operands cost about 30 times as much


@dataclass(frozen=True)
class Projections:
    """Products of the reference with random signs, float64.

    across, of_rows          signs [n, p] and reference·across [m, p]
    down, of_columns         signs [m, p] and referenceᵀ·down [n, p]
    row_noise, column_noise  what float64 sums of that length may be off by: [m], [n]
    """

    across: Values
    of_rows: Values
    row_noise: Values
    down: Values
    of_columns: Values
    column_noise: Values

    @property
    def standard_error(self) -> float:
        """Relative standard error of one estimated ‖E_i‖²: sqrt(2 / probes)."""
        return math.sqrt(2.0 / self.across.shape[1])


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


def signs(count: int, probes: int = PROBES, *, first: int = 0) -> Values:
    """Random signs [count, probes], the same on every host: top bits of splitmix64's outputs number `first`, first + 1, …"""
    with np.errstate(over="ignore"):
        z = np.arange(first, first + count * probes, dtype=np.uint64).reshape(count, probes) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where((z >> np.uint64(63)) != 0, -1.0, 1.0)


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


def projections(problem: Gemm, probes: int = PROBES) -> Projections:
    """reference·x and referenceᵀ·y without forming the reference: A and C are read once, B twice."""
    m, n, k = problem.m, problem.n, problem.k
    alpha, beta = problem.scalars
    across, down = signs(n, probes), signs(m, probes, first=n * probes)
    every, rows_of, cols_of = slice(0, k), partial(_blocks, m), partial(_blocks, n)

    def through_b(cols: slice) -> tuple[Values, Values]:
        b = problem.b_values(every, cols)
        return b @ across[cols], np.abs(b, out=b).sum(axis=1)

    def through_a(rows: slice) -> tuple[Values, Values]:
        a = problem.a_values(rows, every)
        of_rows[rows], outer = alpha * (a @ inner), a.T @ down[rows]
        row_size[rows] = abs(alpha) * (np.abs(a, out=a) @ inner_size)
        return outer, a.sum(axis=0)

    def back_through_b(cols: slice) -> None:
        b = problem.b_values(every, cols)
        of_columns[cols] = alpha * (b.T @ outer)
        column_size[cols] = abs(alpha) * (np.abs(b, out=b).T @ outer_size)

    def through_c(rows: slice) -> tuple[Values, Values]:
        c = beta * problem.c_values(rows)
        of_rows[rows] += c @ across
        of_column = c.T @ down[rows]
        row_size[rows] += np.abs(c, out=c).sum(axis=1)
        return of_column, c.sum(axis=0)

    of_rows, of_columns, row_size, column_size = np.zeros((m, probes)), np.zeros((n, probes)), np.zeros(m), np.zeros(n)
    with one_thread(), _quiet():
        if alpha != 0 and k:
            inner, inner_size = _sums(through_b, cols_of(k), k, probes)  # op(B)·x and |op(B)|·1
            outer, outer_size = _sums(through_a, rows_of(k), k, probes)  # op(A)ᵀ·y and |op(A)|ᵀ·1
            map_threads(_quietly(back_through_b), cols_of(k))
        if beta != 0:
            of_c, size_of_c = _sums(through_c, rows_of(n), n, probes)
            of_columns += of_c
            column_size += size_of_c
        if problem.bias_values is not None:
            bias = problem.bias_values
            of_rows += bias @ across
            of_columns += np.outer(bias, down.sum(axis=0))
            row_size += np.abs(bias).sum()
            column_size += m * np.abs(bias)
        # two float64 sums of m or n terms each over k products: any order of additions, the actual's own sum included
        row_noise, column_noise = (2.0 * (k + count + 8) * 2.0**-53 * size for count, size in ((n, row_size), (m, column_size)))
    return Projections(across, of_rows, row_noise, down, of_columns, column_noise)


def _blocks(count: int, along: int) -> list[slice]:
    """Slices over `count` lines of `along` elements each, of about BLOCK elements."""
    step = max(1, BLOCK // max(along, 1))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def _quiet() -> Any:
    return np.errstate(invalid="ignore", over="ignore")  # Inf − Inf and 0·Inf are NaN; numpy keeps the setting by thread


def _quietly(function: Callable[[slice], T]) -> Callable[[slice], T]:
    def run(block: slice) -> T:
        with _quiet():
            return function(block)

    return run


def _sums(function: Callable[[slice], tuple[Values, Values]], blocks: list[slice], length: int, probes: int) -> tuple[Values, Values]:
    """Both results of `function` over all blocks, added in their order: the same for any number of threads."""
    totals = np.zeros((length, probes)), np.zeros(length)
    for parts in map_threads(_quietly(function), blocks):
        for total, part in zip(totals, parts, strict=True):
            total += part
    return totals


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
