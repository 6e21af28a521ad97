"""Certificates: is D = A·Bᵀ exactly, in O(mn + mk + nk), and if not, which rows.

For a random 64-bit x, A·(Bᵀx) and D·x are compared row by row mod 2^64 (R. Freivalds, 1977). A row whose error has an entry of 2-adic
valuation v passes with probability 2^-(64 - v): at most 2^-40 a row while errors stay below 2^24.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.inputs.philox import STREAM_64, stream_key, words
from accuracy_eval.threads import map_threads

Indices = NDArray[np.int64]
ROWS = 1 << 7  # rows per piece: the pieces, and so the sums, do not depend on the number of threads


def certificate(
    a: NDArray[Any],
    b: NDArray[Any],
    d: NDArray[Any],
    *,
    alpha: int = 1,
    beta: int = 0,
    c: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
    bias_scale: int = 1,
    seed: int = 0,
) -> Indices:
    """Rows of D that differ from alpha·A·Bᵀ + beta·C + bias_scale·bias, ascending; empty where D is exact.

    a [m, k], b [n, k], c [m, n], bias [n], d [m, n]   signed integers of any width, C order
    alpha, beta, bias_scale   integers: factors in units of D's grid (ExactOperands: alpha / unit, beta / unit, 1 / unit)
    A row named is wrong for certain; a wrong row stays unnamed with probability at most 2^-40.
    """
    m, k = a.shape
    n = b.shape[0]
    if b.shape != (n, k) or d.shape != (m, n) or (c is not None and c.shape != (m, n)) or (bias is not None and bias.shape != (n,)):
        found = f"a {a.shape}, b {b.shape}, d {d.shape}, c {c.shape if c is not None else None}"
        raise UsageError(f"certificate: shapes {found} do not fit d [m, n] = a [m, k] · b [n, k]ᵀ")
    for array in (a, b, d, *(x for x in (c, bias) if x is not None)):
        if array.dtype.kind != "i":
            raise UsageError(f"certificate: signed integers needed, found dtype {array.dtype}")
    x = words(stream_key("certificate", "x", (n,), "random", seed), STREAM_64, 0, n)
    with np.errstate(over="ignore"):
        y = _times_transposed(b, x)
        expected = _times(a, y) * _wrapped(alpha)
        if c is not None and beta:
            expected += _times(c, x) * _wrapped(beta)
        if bias is not None:
            expected += _wrapped(bias_scale) * (bias.astype(np.int64).view(np.uint64) * x).sum(dtype=np.uint64)
        return np.flatnonzero(_times(d, x) != expected)


def wrong_columns(
    a: NDArray[Any],
    b: NDArray[Any],
    d: NDArray[Any],
    row: int,
    *,
    alpha: int = 1,
    beta: int = 0,
    c: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
    bias_scale: int = 1,
) -> Indices:
    """Columns in which one row of D differs, by recomputing the row in int64; arguments as in `certificate`."""
    at = np.flatnonzero(a[row])
    expected = alpha * (b[:, at].astype(np.int64) @ a[row, at].astype(np.int64))
    if c is not None:
        expected += beta * c[row].astype(np.int64)
    if bias is not None:
        expected += bias_scale * bias.astype(np.int64)
    return np.flatnonzero(expected != d[row])


def _wrapped(value: int) -> np.uint64:
    return np.uint64(value % (1 << 64))


def _pieces(rows: int) -> list[slice]:
    return [slice(i, i + ROWS) for i in range(0, rows, ROWS)]


def _times(matrix: NDArray[Any], x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """matrix [rows, cols] · x [cols] mod 2^64."""
    from accuracy_eval.inputs import kernels

    out = np.empty(matrix.shape[0], np.uint64)

    def one(part: slice) -> None:
        with np.errstate(over="ignore"):  # wrapping is meant; only the plain Python form of the kernel would warn
            kernels.row_products(out[part], matrix[part], x)

    map_threads(one, _pieces(matrix.shape[0]))
    return out


def _times_transposed(matrix: NDArray[Any], x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """x [rows] · matrix [rows, cols] mod 2^64."""
    from accuracy_eval.inputs import kernels

    def one(part: slice) -> NDArray[np.uint64]:
        total = np.zeros(matrix.shape[1], np.uint64)
        with np.errstate(over="ignore"):
            kernels.combine_rows(total, matrix[part], x[part])
        return total

    total = np.zeros(matrix.shape[1], np.uint64)
    for part in map_threads(one, _pieces(matrix.shape[0])):
        total += part
    return total
