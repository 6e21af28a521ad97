"""Products of a reference with random signs, without the reference itself: A and C are read once, B twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Values
from accuracy_eval.threads import map_threads

T = TypeVar("T")

PROBES = 8
BLOCK = 1 << 21  # elements decoded at a time: 16 MB of float64 a thread (measured from 2^18 to 2^21: 1.3 to 0.9 s for 8192³)


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


def signs(count: int, probes: int = PROBES, *, first: int = 0) -> Values:
    """Random signs [count, probes], the same on every host: top bits of splitmix64's outputs number `first`, first + 1, …"""
    with np.errstate(over="ignore"):
        z = np.arange(first, first + count * probes, dtype=np.uint64).reshape(count, probes) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where((z >> np.uint64(63)) != 0, -1.0, 1.0)


def projections(problem: Gemm, probes: int = PROBES) -> Projections:
    """reference·x and referenceᵀ·y for random signs x [n, probes] and y [m, probes]."""
    p = _Projector(problem, probes)
    with one_thread(), _quiet():
        p.add_product()
        p.add_c()
        p.add_bias()
        # two float64 sums of m or n terms each over k products: any order of additions, the actual's own sum included
        sums = ((problem.n, p.row_size), (problem.m, p.column_size))
        row_noise, column_noise = (2.0 * (problem.k + count + 8) * 2.0**-53 * size for count, size in sums)
    return Projections(p.across, p.of_rows, row_noise, p.down, p.of_columns, column_noise)


class _Projector:
    """Adds up the terms of alpha·op(A)·op(B) + beta·C + bias, multiplied with the signs.

    of_rows [m, p], of_columns [n, p]  the projections
    row_size [m], column_size [n]      Σ of the magnitudes of all products in a row or column
    """

    def __init__(self, problem: Gemm, probes: int) -> None:
        m, n = problem.m, problem.n
        self.problem, self.probes = problem, probes
        self.across, self.down = signs(n, probes), signs(m, probes, first=n * probes)
        self.of_rows, self.of_columns = np.zeros((m, probes)), np.zeros((n, probes))
        self.row_size, self.column_size = np.zeros(m), np.zeros(n)

    def add_product(self) -> None:
        problem, alpha = self.problem, self.problem.scalars[0]
        m, n, k = problem.m, problem.n, problem.k
        if alpha == 0 or not k:
            return
        every = slice(0, k)

        def through_b(cols: slice) -> tuple[Values, Values]:
            b = problem.b_values(every, cols)
            return b @ self.across[cols], np.abs(b, out=b).sum(axis=1)

        inner, inner_size = _sums(through_b, _blocks(n, k), k, self.probes)  # op(B)·x and |op(B)|·1

        def through_a(rows: slice) -> tuple[Values, Values]:
            a = problem.a_values(rows, every)
            self.of_rows[rows], outer = alpha * (a @ inner), a.T @ self.down[rows]
            self.row_size[rows] = abs(alpha) * (np.abs(a, out=a) @ inner_size)
            return outer, a.sum(axis=0)

        outer, outer_size = _sums(through_a, _blocks(m, k), k, self.probes)  # op(A)ᵀ·y and |op(A)|ᵀ·1

        def back_through_b(cols: slice) -> None:
            b = problem.b_values(every, cols)
            self.of_columns[cols] = alpha * (b.T @ outer)
            self.column_size[cols] = abs(alpha) * (np.abs(b, out=b).T @ outer_size)

        map_threads(_quietly(back_through_b), _blocks(n, k))

    def add_c(self) -> None:
        problem, beta = self.problem, self.problem.scalars[1]
        if beta == 0:
            return

        def through_c(rows: slice) -> tuple[Values, Values]:
            c = beta * problem.c_values(rows)
            self.of_rows[rows] += c @ self.across
            of_column = c.T @ self.down[rows]
            self.row_size[rows] += np.abs(c, out=c).sum(axis=1)
            return of_column, c.sum(axis=0)

        of_c, size_of_c = _sums(through_c, _blocks(problem.m, problem.n), problem.n, self.probes)
        self.of_columns += of_c
        self.column_size += size_of_c

    def add_bias(self) -> None:
        bias = self.problem.bias_values
        if bias is None:
            return
        self.of_rows += bias @ self.across
        self.of_columns += np.outer(bias, self.down.sum(axis=0))
        self.row_size += np.abs(bias).sum()
        self.column_size += self.problem.m * np.abs(bias)


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
