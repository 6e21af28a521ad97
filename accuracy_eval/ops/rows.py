"""What ops that move rows by index share: the indices, rows that meet and are added, and integers whose sums are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA, parse_contract
from accuracy_eval.cpu_ref.overflow import Reached
from accuracy_eval.cpu_ref.reduce import reduce, sum_budget
from accuracy_eval.cpu_ref.row_sums import RowSums
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Values, decode, encode, get_format, round_to, ulp
from accuracy_eval.inputs.exact import INPUT_CLASS
from accuracy_eval.inputs.philox import STREAM_16, stream_key, words
from accuracy_eval.ops.gemm import overflowing
from accuracy_eval.ops.panels import Part, by_rows, one_code
from accuracy_eval.ops.spec import Operand, Output, Reference
from accuracy_eval.records import Coded

Indices = NDArray[np.int64]
LARGEST = 8  # magnitude of an integer of the exact lane, where sums leave room for it


def index_values(indices: Coded, below: int, what: str) -> Indices:
    """The indices as int64, flat. UsageError for one that is not in [0, below)."""
    found = indices.codes.view(np.int32).astype(np.int64).ravel()
    if found.size and not 0 <= found.min() <= found.max() < below:
        raise UsageError(f"{what} {found.min()} to {found.max()}; allowed: 0 to {below - 1}")
    return found


def added(output: Output, contract: str, rows: Coded, place: Indices, *, weights: Values | None = None, exact: bool = False) -> Reference:
    """The reference of an output whose row i is the sum of the rows [t, n] with place[t] = i, each times its weight [t].

    exact  the operands are those of the exact lane, whose sums are integers that the output holds
    """
    flat, (count, columns) = rows.codes.reshape(len(place), rows.shape[-1]), output.shape

    def values(which: Indices) -> Values:
        return decode(flat[which], rows.format)

    sums = RowSums(values, place, weights, count, columns, parse_contract(contract), output.format)
    if exact:
        return one_code(output, lambda first, end: encode(sums.part(first, end)[0], output.format))
    return by_rows(output, contract, output.shape, sums.part, exempt=overflowing(sums.overflows, contract, output.format))


def summands(op: str, operand: Operand, place: Indices, seed: int) -> Codes:
    """Rows [t, n] of integers that may be added in any order and in the operand's own format, so that each row still shows.

    Row t is the rank-th of the r with its place. With limit = 2^(fraction bits + 1) and q = ⌈r / limit⌉ its elements c with rank + c = 0
    mod q are ±1 … ±m, m = min(8, limit / ⌈r / q⌉), the others 0: sums of magnitudes are integers of the format. Words of the stream
    `OP/NAME/SHAPE/exact`: bit 0 is the sign, the others the magnitude mod m.
    """
    fmt = get_format(operand.format)
    t, n = operand.shape
    limit = 2 << fmt.fraction_bits
    order = np.argsort(place, kind="stable")
    repeats = np.bincount(place)
    rank = np.empty(t, np.int64)
    rank[order] = np.arange(t) - (np.cumsum(repeats) - repeats)[place[order]]
    step = -(-repeats // limit)[place]
    top = np.clip(limit // np.maximum(-(-repeats[place] // step), 1), 1, LARGEST)[:, None]
    w = words(stream_key(op, operand.name, operand.shape, INPUT_CLASS, seed), STREAM_16, 0, t * n).astype(np.int64).reshape(t, n)
    kept = (rank[:, None] + np.arange(n)) % step[:, None] == 0
    return encode(np.where(kept, (1 + (w >> 1) % top) * (1 - 2 * (w & 1)), 0).astype(np.float64), fmt)


def dotted(output: Output, contract: str, terms: Callable[[Indices], Values], length: int) -> Reference:
    """The reference of sums along a row: output [t, k] adds terms (numbers of t) -> [r, k, length], exact products each of which may be
    rounded to the output's format first."""
    t, k = output.shape
    fmt, promise = get_format(output.format), parse_contract(contract)

    def part(first: int, end: int) -> Part:
        products = terms(np.arange(first, end))
        values, budget = reduce("sum", products), sum_budget(products, promise)
        if fmt.bits <= 16:
            with np.errstate(invalid="ignore", over="ignore"):
                spread = np.sqrt((ulp(products, fmt) ** 2).sum(axis=2) / 12)
                equal = np.abs((round_to(products, fmt) - products).sum(axis=2))  # equal products round alike
                budget = budget + LAMBDA * spread + 2 * equal
        return values, budget

    def overflows(rows: Indices, columns: Indices) -> Reached:
        products = terms(rows)[np.arange(len(rows)), columns]
        finite = np.where(np.isfinite(products), products, 0.0)
        stored, kept = fmt.max if fmt.bits <= 16 else np.inf, (1 - 2.0**-10) * (promise.largest or np.inf)
        up, down = (np.asarray((np.maximum(s, 0).sum(axis=1) >= kept) | (s >= stored).any(axis=1)) for s in (finite, -finite))
        return Reached(up, down, np.asarray(~np.isfinite(products).all(axis=1)), np.zeros(len(rows), np.bool_))

    return by_rows(output, contract, (t, k * length), part, exempt=overflowing(overflows, contract, output.format))
