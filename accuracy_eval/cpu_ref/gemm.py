"""The float64 reference of a GEMM, in panels of rows: values, and on request the error budget of every element.

Products of formats of at most 32 bits are exact in float64, so the error of a value is that of a float64 summation:
at most (K + 4)·2^-53·(|A||B|) in any order. float64 and int32 operands go through a doubled accumulator (`wide`): error
2^-53·|D| + K²·2^-104·(|A||B|). Neither a whole float64 operand nor a whole result is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Codes, Values
from accuracy_eval.records import Coded

PANEL_ELEMENTS = 1 << 23  # of one panel of the result: 64 MB of float64
OPERAND_ELEMENTS = 1 << 23  # of a decoded block of an operand
ROWS = 2048  # largest number of rows of a panel
COLUMNS = 1024  # columns worked on at a time
ALIGN = 128  # panels hold whole 128-row tiles

AUTO_FLOP = 1 << 41  # `--reference auto` computes the full reference up to here (8192³ is 2^40) and a sample beyond


@dataclass(frozen=True)
class Panel:
    """Rows first_row … first_row + r − 1 of the reference.

    values  float64 [r, n]
    budget  float64 [r, n], the error allowed under the contract, or None when no contract was given
    """

    first_row: int
    values: Values
    budget: Values | None = None


def gemm_panels(
    a_codes: Codes,
    a_format: str,
    b_codes: Codes,
    b_format: str,
    *,
    layout: str = "nn",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Coded | None = None,
    bias: Coded | None = None,
    a_scale: Any = None,
    b_scale: Any = None,
    a_block: tuple[int, int] | None = None,
    b_block: tuple[int, int] | None = None,
    rows: int | None = None,
) -> Iterator[Panel]:
    """Panels of D = alpha·op(A)·op(B) + beta·C + bias, in order of rows. Operands as in `Gemm`.

    rows  rows of a panel, rounded up to a multiple of 128; None fits panels to about 64 MB
    """
    problem = Gemm(Coded(a_codes, a_format), Coded(b_codes, b_format), layout, alpha, beta, c, bias, a_scale, b_scale, a_block, b_block)
    return panels(problem, rows=rows)


def panels(problem: Gemm, *, rows: int | None = None) -> Iterator[Panel]:
    """As `gemm_panels`, of a problem already described."""
    step = panel_rows(problem, rows)
    return (_panel(problem, slice(i, min(i + step, problem.m))) for i in range(0, problem.m, step))


def panel_rows(problem: Gemm, rows: int | None = None) -> int:
    """Rows of a panel: a multiple of 128 that keeps a panel of the result near 64 MB."""
    wanted = rows if rows is not None else min(ROWS, PANEL_ELEMENTS // max(problem.n, 1))
    return max(ALIGN, -(-wanted // ALIGN) * ALIGN) if rows is not None else max(ALIGN, wanted // ALIGN * ALIGN)


def _panel(problem: Gemm, rows: slice) -> Panel:
    alpha, _ = problem.scalars
    product = np.zeros((rows.stop - rows.start, problem.n))
    with np.errstate(invalid="ignore", over="ignore"):  # Inf − Inf and 0·Inf are NaN, silently
        if alpha != 0:
            _multiply(problem, rows, product)
        return Panel(rows.start, _epilogue(problem, rows, product))


def _multiply(problem: Gemm, rows: slice, out: Values) -> None:
    """out = op(A)[rows]·op(B); decodes A once a panel where it fits, B once a panel."""
    k_step = max(1, OPERAND_ELEMENTS // max(COLUMNS, out.shape[0]))
    for k in range(0, problem.k, k_step):
        ks = slice(k, min(k + k_step, problem.k))
        a = problem.a_values(rows, ks)
        for j in range(0, problem.n, COLUMNS):
            cols = slice(j, min(j + COLUMNS, problem.n))
            product = a @ problem.b_values(ks, cols)
            if k == 0:
                out[:, cols] = product
            else:
                out[:, cols] += product


def _epilogue(problem: Gemm, rows: slice, product: Values) -> Values:
    """alpha·product + beta·C + bias, in place."""
    alpha, beta = problem.scalars
    if alpha not in (0.0, 1.0):
        product *= alpha
    if beta != 0:
        product += beta * problem.c_values(rows)
    if problem.bias_values is not None:
        product += problem.bias_values
    return product
