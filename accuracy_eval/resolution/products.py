"""The largest product that each k of a GEMM adds anywhere: whose loss shows best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Values
from accuracy_eval.jit import kernel, map_threads

STRIP_ELEMENTS = 1 << 19  # elements that one thread works on at a time: 4 MB of float64


def largest_products(problem: Gemm) -> tuple[NDArray[np.int64], NDArray[np.int64], Values]:
    """For every k: row and column of the largest |alpha·a_ik·b_kj|, and that size; 0 where no finite one is left."""
    every = slice(0, problem.k)
    i, left = _largest_along(problem.m, problem.k, lambda lines: problem.a_values(lines, every))
    j, right = _largest_along(problem.n, problem.k, lambda lines: problem.b_values(every, lines).T)
    with np.errstate(over="ignore"):
        return i, j, left * right * abs(problem.scalars[0])


def _largest_along(lines: int, k: int, values: Callable[[slice], Values]) -> tuple[NDArray[np.int64], Values]:
    """For every k: the first of `lines` whose finite magnitude is largest, and that magnitude. values(lines) [lines, k]."""

    def strip(first: int) -> tuple[NDArray[np.int64], Values]:
        index, largest = np.full(k, first), np.zeros(k)
        block = values(slice(first, min(first + step, lines)))
        if block.flags.c_contiguous:
            _largest_by_line(block, first, index, largest)
        else:
            _largest_by_k(block.T, first, index, largest)
        return index, largest

    step = max(1, STRIP_ELEMENTS // max(1, k))
    index, largest = np.zeros(k, np.int64), np.zeros(k)
    for at, size in map_threads(strip, range(0, lines, step)):
        better = size > largest
        index[better], largest[better] = at[better], size[better]
    return index, largest


@kernel
def _largest_by_line(block: Any, first: int, index: Any, largest: Any) -> None:
    """block [lines, k], walked in the order it is stored."""
    for i in range(block.shape[0]):
        for t in range(block.shape[1]):
            x = abs(block[i, t])
            if x > largest[t] and x < np.inf:
                largest[t] = x
                index[t] = first + i


@kernel
def _largest_by_k(block: Any, first: int, index: Any, largest: Any) -> None:
    """block [k, lines], walked in the order it is stored."""
    for t in range(block.shape[0]):
        for i in range(block.shape[1]):
            x = abs(block[t, i])
            if x > largest[t] and x < np.inf:
                largest[t] = x
                index[t] = first + i
