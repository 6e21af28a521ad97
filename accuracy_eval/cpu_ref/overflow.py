"""Where a running sum may overflow although the whole sum does not: elements that may be Inf or NaN on a healthy unit.

A contract fixes how wide a running sum is, not the order of its terms. Over all orders the largest partial sum is that of the positive
terms, the smallest that of the negative ones: a unit may give +Inf only where the first, −Inf only where the second leaves the range of
the contract's narrowest running sum, and NaN (Inf − Inf, as of two pieces of a split contraction) only where both do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.flush import lost_infinities
from accuracy_eval.cpu_ref.operands import BLOCK_ELEMENTS, Gemm
from accuracy_eval.formats import Codes, Values, decode, get_format, is_nan

LINES = 2048  # rows, and columns, of a block of sums
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Reached(NamedTuple):
    """What running sums may become. Flags of elements [n].

    up, down  finite terms may reach +Inf, −Inf
    given     a term is Inf or NaN itself
    lost      Inf meets a subnormal number: NaN where that is taken for zero
    """

    up: Flags
    down: Flags
    given: Flags
    lost: Flags


Overflows = Callable[[Indices, Indices], Reached]  # of elements at (rows, columns)


def product_overflows(problem: Gemm, contract: str) -> Overflows | None:
    """What a contract's running sums may do on their way to elements of a product; None where they cannot overflow."""
    limit = parse_contract(contract).largest if contract else None
    return None if limit is None else partial(_product_overflows, problem, limit, parse_contract(contract).flushes)


def sum_overflows(values_of: Callable[[Indices], Values], contract: str) -> Overflows | None:
    """The same of sums (or means) of rows: `values_of` gives rows of x [r, n], a place is a column of the single row of results."""
    limit = parse_contract(contract).largest if contract else None
    return None if limit is None else partial(_sum_overflows, values_of, limit)


def stacked(parts: Sequence[tuple[int, Overflows | None]]) -> Overflows | None:
    """Of results that lie one below the other, each with its first row; None: sums there cannot overflow."""
    return partial(_stacked, parts) if any(overflows for _, overflows in parts) else None


def taken_as_right(overflows: Overflows, fmt: str, codes: Codes, values: Values, first_row: int = 0) -> Flags | None:
    """Elements of a panel [r, n] of actual codes that are Inf or NaN only because a running sum may overflow there; None if there are none.

    values  the truth. Where no term is Inf or NaN, +Inf, −Inf and NaN may stand as the module says, whatever it is; where a term makes it
            ±Inf, a NaN may, if the others could have overflown to the other Inf before. A NaN in the truth stays one in every order.
    """
    f = get_format(fmt)
    if f.kind != "float" or not f.has_inf:
        return None
    odd = (codes & f.storage.type(f.magnitude_mask)) >= f.storage.type(f.inf_code)
    odd &= ~np.isnan(values) if odd.any() else False
    at = np.nonzero(odd)
    if not len(at[0]):
        return None
    up, down, given, lost = overflows(at[0].astype(np.int64) + first_row, at[1].astype(np.int64))
    nan, negative, truth = is_nan(codes[at], f), (codes[at] & f.storage.type(f.sign_mask)) != 0, values[at]
    both = np.where(given, np.where(truth > 0, down, up), up & down)
    odd[at] = np.where(nan, both | lost, ~given & np.where(negative, down, up))
    return odd if odd.any() else None


class _Terms(NamedTuple):
    """Of elements of a product: the sums of its positive and of its negative terms, without their factor; whether a term is Inf or NaN;
    whether one that is may be lost where an operand is flushed to zero."""

    high: Values
    low: Values
    given: Flags
    lost: Flags


def _product_overflows(problem: Gemm, limit: float, flushes: bool, rows: Indices, columns: Indices) -> Reached:
    with np.errstate(over="ignore"):
        high, low, given, lost = _terms(problem, flushes, rows, columns)
        up, down = _beyond(high, low, limit, problem.k)
        alpha, beta = problem.scalars
        scaled = (high * alpha, low * alpha) if alpha >= 0 else (low * -alpha, high * -alpha)
        if alpha < 0:
            up, down = down, up
        c = beta * decode(problem.c.codes[rows, columns], problem.c.format) if beta != 0 and problem.c is not None else np.zeros(1)
        bias = np.zeros(1) if problem.bias_values is None else problem.bias_values[columns]
        given |= ~(np.isfinite(c) & np.isfinite(bias))
        c, bias = _finite(c), _finite(bias)
        above, below = (s + np.maximum(sign * c, 0) + np.maximum(sign * bias, 0) for s, sign in zip(scaled, (1, -1), strict=True))
        late = _beyond(above, below, limit, problem.k)
        return Reached(up | late[0], down | late[1], given, lost)


def _terms(problem: Gemm, flushes: bool, rows: Indices, columns: Indices) -> _Terms:
    high, low, given, lost = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    some_rows, row_of = np.unique(rows, return_inverse=True)
    some_columns, column_of = np.unique(columns, return_inverse=True)
    step = max(1, min(LINES, BLOCK_ELEMENTS // max(problem.k, 1)))
    for i in range(0, len(some_rows), step):
        left = problem.a_rows(some_rows[i : i + step])
        a, odd_left = np.concatenate(_parts(left), axis=1), _odd(left, 1)
        for j in range(0, len(some_columns), step):
            here = (row_of // step == i // step) & (column_of // step == j // step)
            if not here.any():
                continue
            right = problem.b_columns(some_columns[j : j + step])
            positive, negative = _parts(right)
            at = row_of[here] - i, column_of[here] - j
            high[here] = (a @ np.concatenate([positive, negative]))[at]
            low[here] = (a @ np.concatenate([negative, positive]))[at]
            given[here] = odd_left[at[0]] | _odd(right, 0)[at[1]]
            if flushes and given[here].any():
                lost[here] = lost_infinities(left, right)[at]
    return _Terms(high, low, given, lost)


def _stacked(parts: Sequence[tuple[int, Overflows | None]], rows: Indices, columns: Indices) -> Reached:
    found = Reached(*(np.zeros(len(rows), bool) for _ in Reached._fields))
    part = np.searchsorted([first for first, _ in parts], rows, side="right") - 1
    for i in np.unique(part):
        first, overflows = parts[i]
        here = part == i
        if overflows is not None:
            for flags, some in zip(found, overflows(rows[here] - first, columns[here]), strict=True):
                flags[here] = some
    return found


def _sum_overflows(values_of: Callable[[Indices], Values], limit: float, rows: Indices, columns: Indices) -> Reached:
    x = values_of(columns)
    positive, negative = _parts(x)
    with np.errstate(over="ignore"):
        up, down = _beyond(positive.sum(axis=1), negative.sum(axis=1), limit, positive.shape[1])
    return Reached(up, down, _odd(x, 1), np.zeros(len(x), bool))


def _odd(x: Values, axis: int) -> Flags:
    """Which rows or columns hold Inf or NaN."""
    return np.asarray(~np.isfinite(x).all(axis=axis))


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
