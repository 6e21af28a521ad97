"""The float64 reference of a GEMM, in panels of rows: values, and under a contract the error budget of every element.

Products of formats of at most 32 bits are exact in float64, so the error of a value is that of a float64 summation:
at most (K + 4)·2^-53·(|A||B|) in any order. Products of float64 and int32 operands are kept in two numbers (`wide`): error
2^-53·|D| + K²·2^-104·(|A||B|). Neither a whole float64 operand nor, unless the caller keeps the panels, a whole result is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accuracy_eval.contracts import LAMBDA, TYPICAL, Contract, parse_contract
from accuracy_eval.cpu_ref import wide
from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.cpu_ref.flush import lost_products, lost_steps
from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.cpu_ref.reduce import row_statistics
from accuracy_eval.cpu_ref.running import RunningSums, carried, element_budget
from accuracy_eval.cpu_ref.statistics import Side, prepare, statistics
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Values, encode, get_format
from accuracy_eval.records import Coded
from accuracy_eval.threads import map_threads

PANEL_ELEMENTS = 1 << 23  # of one panel of the result: 64 MB of float64
OPERAND_ELEMENTS = 1 << 23  # of a decoded block of an operand
ROWS = 2048  # largest number of rows of a panel
COLUMNS = 1024  # columns worked on at a time
FINISHED_ELEMENTS = 1 << 19  # of a panel that one thread finishes at a time
TILE_ROWS = 256  # rows of a product that one thread works on
ALIGN = 128  # panels hold whole 128-row tiles

AUTO_FLOP = 1 << 41  # `--reference auto` computes the full reference up to here (8192³ is 2^40) and a sample beyond
GRADIENTS = ("da", "db", "dbias")


@dataclass(frozen=True)
class Panel:
    """Rows first_row … first_row + r − 1 of the reference.

    values   float64 [r, n]
    budget   float64 [r, n], the error before output rounding that the contract allows; None when no contract was given. 0 where
             the value is NaN or Inf
    typical  the same with fewer standard deviations (contracts.TYPICAL): what many elements together may come to
    low      float64 [r, n], what values lack of the sum, where it was kept in two numbers (float64, int32 operands), else None
    """

    first_row: int
    values: Values
    budget: Values | None = None
    low: Values | None = None
    typical: Values | None = None


def gradient(output: str, forward: Gemm, grad_d: Coded, grad_d_scale: Any = None) -> Gemm:
    """The GEMM whose result is a gradient of `forward`, in the stored layout of the operand: output "da", "db" or "dbias" ([1, n]).

    grad_d  upstream gradient [m, n]. dA = alpha·grad_d·op(B)ᵀ, dB = alpha·op(A)ᵀ·grad_d, dbias = Σ_m grad_d.
    """
    la, lb = forward.layout[0], forward.layout[1]
    flip = {"n": "t", "t": "n"}
    a, b = (forward.a, forward.left.scale, forward.left.block), (forward.b, forward.right.scale, forward.right.block)
    g = (grad_d, grad_d_scale, None)
    if output == "dbias":
        m = grad_d.shape[0]
        one = get_format("float32") if get_format(grad_d.format).kind == "int" else get_format(grad_d.format)
        ones = Coded(encode(np.ones((1, m)), one), one.name)
        return Gemm(ones, grad_d, "nn", b_scale=grad_d_scale)
    if output == "da":
        # [m, k] = G·op(B)ᵀ, or its transpose [k, m] = op(B)·Gᵀ
        x, y, layout = (g, b, "n" + flip[lb]) if la == "n" else (b, g, lb + "t")
    elif output == "db":
        # [k, n] = op(A)ᵀ·G, or its transpose [n, k] = Gᵀ·op(A)
        x, y, layout = (a, g, flip[la] + "n") if lb == "n" else (g, a, "t" + la)
    else:
        raise unknown("gradient", output, GRADIENTS)
    return Gemm(x[0], y[0], layout, forward.alpha, a_scale=x[1], b_scale=y[1], a_block=x[2], b_block=y[2])


def panels(problem: Gemm, *, contract: str | None = None, out_format: str | None = None, rows: int | None = None) -> Iterator[Panel]:
    """Panels of the result, in order of rows.

    contract    name of a contract (`contracts.parse_contract`): panels carry budgets; None or "": values only
    out_format  format D is stored in: only whether it is an integer matters (int32acc then has no rounding at all)
    rows        rows of a panel, rounded up to a multiple of 128; None fits panels to about 64 MB
    """
    promise = parse_contract(contract) if contract else None
    step = panel_rows(problem, rows)
    integer = out_format is not None and get_format(out_format).kind == "int"
    return (_panel(problem, slice(i, min(i + step, problem.m)), promise, integer) for i in range(0, problem.m, step))


def panel_rows(problem: Gemm, rows: int | None = None) -> int:
    """Rows of a panel: a multiple of 128; without a wish the one that keeps a panel of the result near 64 MB."""
    if rows is not None:
        if rows < 1:
            raise UsageError(f"a panel has at least one row, found rows={rows}")
        return -(-rows // ALIGN) * ALIGN
    return max(ALIGN, min(ROWS, PANEL_ELEMENTS // max(problem.n, 1)) // ALIGN * ALIGN)


def _panel(problem: Gemm, rows: slice, contract: Contract | None, integer: bool) -> Panel:
    shape = (rows.stop - rows.start, problem.n)
    values = np.zeros(shape)
    low = np.zeros(shape) if problem.wide else None
    budgets = None if contract is None else np.zeros((2, *shape))
    with one_thread(), np.errstate(invalid="ignore", over="ignore", under="ignore"):  # Inf − Inf and 0·Inf are NaN, silently
        if problem.scalars[0] != 0 and problem.k > 0:
            _multiply(problem.core, rows, values, low, budgets, contract if contract is None or not contract.exact else None)
        for scale in problem.outer_scales(rows):
            values *= scale
            if budgets is not None:
                budgets *= np.abs(scale)
        return _finish(problem, rows, values, low, budgets, contract, integer)


def _multiply(problem: Gemm, rows: slice, out: Values, low: Values | None, budgets: Values | None, contract: Contract | None) -> None:
    """out (+ low) = op(A)[rows]·op(B) and its budgets [2, r, n]: an element's, and the typical one.

    A is decoded once a panel where it fits, B once a panel.
    """
    longest = max(1, OPERAND_ELEMENTS // max(problem.k, 1))
    height, width = (max(ALIGN, min(longest, cap)) for cap in (ROWS, COLUMNS))
    every = slice(0, problem.k)
    for i in range(rows.start, rows.stop, height):
        part = slice(i, min(i + height, rows.stop))
        a = problem.a_values(part, every)
        left = None if contract is None else _side(problem, a, problem.a_floor(part, every), 1)
        above = slice(part.start - rows.start, part.stop - rows.start)

        def strip(cols: slice, a: Values = a, left: Side | None = left, above: slice = above) -> None:
            b = problem.b_values(every, cols)
            here = above, cols
            if contract is not None and budgets is not None and left is not None:
                right = _side(problem, b, problem.b_floor(every, cols), 0)
                _with_budget(left, right, contract, out[here], budgets[(slice(None), *here)])
                if low is not None:
                    _with_budgets_of_their_own(a, b, contract, budgets[(slice(None), *here)])
                if contract.flushes and problem.left.scale is None and problem.right.scale is None:
                    lost = lost_products(a, b)
                    budgets[(slice(None), *here)] += 0.0 if lost is None else lost
            elif low is None:
                _plain(a, b, out[here])
            if low is not None:
                out[here], low[here] = wide.product(a, b)

        few = len(a) <= TILE_ROWS  # one tile of rows: threads share the strips of columns, else the tiles of each strip
        step = min(width, TILE_ROWS) if few else width
        map_threads(strip, [slice(j, min(j + step, problem.n)) for j in range(0, problem.n, step)], threads=None if few else 1)


def _plain(a: Values, b: Values, out: Values) -> None:
    """out = a·b, in tiles of rows spread over threads."""

    def run(i: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            np.matmul(a[i : i + TILE_ROWS], b, out=out[i : i + TILE_ROWS])

    map_threads(run, range(0, a.shape[0], TILE_ROWS))


def _side(problem: Gemm, values: Values, floor: Values, axis: int) -> Side:
    """The operand prepared for statistics; wide ones divided by powers of two first, so that squares of sums stay in range."""
    if not problem.wide:
        return prepare(values, floor, axis=axis)
    exponents = wide.exponents(values, axis)
    side = prepare(np.ldexp(values, -exponents), np.ldexp(np.broadcast_to(floor, values.shape), -exponents), axis=axis)
    return replace(side, unit=exponents)


def _with_budget(left: Side, right: Side, contract: Contract, out: Values, budgets: Values) -> None:
    def use(rows: slice, cols: slice, sums: RunningSums) -> None:
        out[rows, cols] = sums.total
        for budget, spread in zip(budgets, (LAMBDA, TYPICAL), strict=True):
            allowed = element_budget(contract, sums, spread)
            if left.unit is not None and right.unit is not None:
                allowed = np.ldexp(allowed, left.unit[rows] + right.unit[:, cols])
            budget[rows, cols] = allowed

    statistics(left, right, contract, use)


def _with_budgets_of_their_own(a: Values, b: Values, contract: Contract, budgets: Values) -> None:
    """The budgets of elements so small beside their row's and column's largest that scaling by those left their statistics zero."""
    rows, cols = np.nonzero(wide.out_of_range(a, b, budgets[0]))
    step = max(1, FINISHED_ELEMENTS // max(1, a.shape[1]))
    for i in range(0, len(rows), step):
        at = rows[i : i + step], cols[i : i + step]
        sums = row_statistics(a[at[0]] * b[:, at[1]].T).running_sums()
        for budget, spread in zip(budgets, (LAMBDA, TYPICAL), strict=True):
            budget[at] = element_budget(contract, sums, spread)[:, 0]


def _finish(
    problem: Gemm, rows: slice, product: Values, low: Values | None, budgets: Values | None, contract: Contract | None, integer: bool
) -> Panel:
    """alpha·product + beta·C + bias, and the budgets of doing that in the contract's scalar arithmetic."""
    values, rest = (product, None) if low is None else (np.empty_like(product), np.empty_like(product))
    step = max(1, FINISHED_ELEMENTS // max(1, problem.n))

    def piece(first: int) -> None:
        part = slice(first, min(first + step, len(product)))
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # settings are a thread's own
            c = problem.c_values(slice(rows.start + part.start, rows.start + part.stop)) if problem.beta != 0 else None
            if budgets is not None and contract is not None:
                _add_scalar_budget(problem, budgets[:, part], product[part], c, contract, integer)
            if low is None or rest is None:
                _apply_scalars(problem, product[part], c)
            else:
                bias = problem.bias_values
                terms = (np.empty((0, 0)) if c is None else c, np.empty(0) if bias is None else bias)
                wide.combine(product[part], low[part], *problem.scalars, *terms, values[part], rest[part])
            if budgets is not None:
                budgets[:, part][:, ~np.isfinite(values[part])] = 0.0

    map_threads(piece, range(0, len(product), step))
    return Panel(rows.start, values, low=rest) if budgets is None else Panel(rows.start, values, budgets[0], rest, budgets[1])


def _add_scalar_budget(problem: Gemm, budgets: Values, product: Values, c: Values | None, contract: Contract, integer: bool) -> None:
    """budgets = alpha·budgets plus what the contract's scalar arithmetic may lose; in place."""
    alpha, beta = problem.scalars
    if alpha != 1:
        budgets *= abs(alpha)
    if (contract.exact and integer) or not contract.scalar_bits:
        return
    size = np.abs(product)
    if alpha != 1:
        size *= abs(alpha)
    addend = None
    if c is not None:
        addend = np.abs(c) * abs(beta)
        size += addend
    if problem.bias_values is not None:
        addend = np.abs(problem.bias_values) + (0.0 if addend is None else addend)
        size += np.abs(problem.bias_values)
    size *= 4.0 * 2.0**-contract.scalar_bits
    if addend is not None:
        for budget, spread in zip(budgets, (LAMBDA, TYPICAL), strict=True):
            budget += addend * carried(contract, problem.k, spread)
    budgets += size
    budgets[budgets > 0] += lost_steps(problem.k, flushes=contract.flushes)


def _apply_scalars(problem: Gemm, product: Values, c: Values | None) -> None:
    """product = alpha·product + beta·C + bias, in place; alpha = 0 left it zero."""
    alpha, beta = problem.scalars
    if alpha not in (0.0, 1.0):
        product *= alpha
    if c is not None:
        product += beta * c
    if problem.bias_values is not None:
        product += problem.bias_values


__all__ = ["AUTO_FLOP", "GRADIENTS", "Gemm", "Operand", "Panel", "gradient", "panel_rows", "panels"]
