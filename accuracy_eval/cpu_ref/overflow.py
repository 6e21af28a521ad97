"""Where a running sum may overflow although the whole sum does not: elements that may be Inf or NaN on a healthy unit.

A contract fixes how wide a running sum is, not the order of its terms. Over all orders the largest partial sum is that of the positive
terms, the smallest that of the negative ones: a unit may give +Inf only where the first, −Inf only where the second leaves the range of
the contract's narrowest running sum, and NaN (Inf − Inf, as of two pieces of a split contraction) only where both do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.operands import BLOCK_ELEMENTS, Gemm
from accuracy_eval.formats import Codes, Values, decode, get_format, is_nan

LINES = 2048  # rows, and columns, of a block of sums
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Overflows = Callable[[Indices, Indices], tuple[Flags, Flags]]  # (rows, columns) of elements -> may become +Inf, may become −Inf


def product_overflows(problem: Gemm, contract: str) -> Overflows | None:
    """What a contract's running sums may do on their way to elements of a product; None where they cannot overflow."""
    limit = parse_contract(contract).largest if contract else None
    return None if limit is None else partial(_product_overflows, problem, limit)


def sum_overflows(values_of: Callable[[Indices], Values], contract: str) -> Overflows | None:
    """The same of sums (or means) of rows: `values_of` gives rows of x [r, n], a place is a column of the single row of results."""
    limit = parse_contract(contract).largest if contract else None
    return None if limit is None else partial(_sum_overflows, values_of, limit)


def taken_as_right(overflows: Overflows, fmt: str, codes: Codes, values: Values, first_row: int = 0) -> Flags | None:
    """Elements of a panel [r, n] of actual codes that are Inf or NaN only because a running sum may overflow there; None if there are none.

    values  the truth. Where it is finite +Inf, −Inf and NaN may stand as the module says; where an operand makes it ±Inf, a NaN may, if
            the sum could have overflown to the other Inf before. A NaN in the truth stays one in every order.
    """
    f = get_format(fmt)
    if f.kind != "float" or not f.has_inf:
        return None
    odd = (codes & f.storage.type(f.magnitude_mask)) >= f.storage.type(f.inf_code)
    odd &= np.isfinite(values) | (np.isinf(values) & is_nan(codes, f)) if odd.any() else False
    at = np.nonzero(odd)
    if not len(at[0]):
        return None
    up, down = overflows(at[0].astype(np.int64) + first_row, at[1].astype(np.int64))
    nan, negative, truth = is_nan(codes[at], f), (codes[at] & f.storage.type(f.sign_mask)) != 0, values[at]
    both = (up | (truth == np.inf)) & (down | (truth == -np.inf))
    odd[at] = np.where(nan, both, np.where(negative, down, up))
    return odd if odd.any() else None


def _product_overflows(problem: Gemm, limit: float, rows: Indices, columns: Indices) -> tuple[Flags, Flags]:
    high, low = np.zeros(len(rows)), np.zeros(len(rows))
    some_rows, row_of = np.unique(rows, return_inverse=True)
    some_columns, column_of = np.unique(columns, return_inverse=True)
    step = max(1, min(LINES, BLOCK_ELEMENTS // max(problem.k, 1)))
    with np.errstate(over="ignore"):
        for i in range(0, len(some_rows), step):
            a = np.concatenate(_parts(problem.a_rows(some_rows[i : i + step])), axis=1)
            for j in range(0, len(some_columns), step):
                here = (row_of // step == i // step) & (column_of // step == j // step)
                if here.any():
                    positive, negative = _parts(problem.b_columns(some_columns[j : j + step]))
                    at = row_of[here] - i, column_of[here] - j
                    high[here] = (a @ np.concatenate([positive, negative]))[at]
                    low[here] = (a @ np.concatenate([negative, positive]))[at]
        up, down = _beyond(high, low, limit, problem.k)
        alpha, beta = problem.scalars
        scaled = (high * alpha, low * alpha) if alpha >= 0 else (low * -alpha, high * -alpha)
        if alpha < 0:
            up, down = down, up
        c = beta * _finite(decode(problem.c.codes[rows, columns], problem.c.format)) if beta != 0 and problem.c is not None else 0.0
        bias = 0.0 if problem.bias_values is None else _finite(problem.bias_values[columns])
        above, below = (s + np.maximum(sign * c, 0) + np.maximum(sign * bias, 0) for s, sign in zip(scaled, (1, -1), strict=True))
        late = _beyond(above, below, limit, problem.k)
        return up | late[0], down | late[1]


def _sum_overflows(values_of: Callable[[Indices], Values], limit: float, rows: Indices, columns: Indices) -> tuple[Flags, Flags]:
    positive, negative = _parts(values_of(columns))
    with np.errstate(over="ignore"):
        return _beyond(positive.sum(axis=1), negative.sum(axis=1), limit, positive.shape[1])


def _parts(x: Values) -> tuple[Values, Values]:
    """Magnitudes of the positive and of the negative finite elements, 0 elsewhere."""
    finite = _finite(x)
    return np.maximum(finite, 0.0), np.maximum(-finite, 0.0)


def _finite(x: Values) -> Values:
    return np.where(np.isfinite(x), x, 0.0)


def _beyond(high: Values, low: Values, limit: float, terms: int) -> tuple[Flags, Flags]:
    """Which sums leave the range, rounding errors of `terms` float32 additions on the way included."""
    allowed = limit * (1 - min(0.5, terms * 2.0**-23))
    return high >= allowed, low >= allowed
