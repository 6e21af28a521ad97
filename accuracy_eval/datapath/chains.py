"""Chains of blocks: one rule, one order of k, an accumulator carried from block to block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath import lanes, rules, scalars
from accuracy_eval.datapath.planes import GROUP, Plane
from accuracy_eval.datapath.rules import Rule
from accuracy_eval.errors import UsageError
from accuracy_eval.jit import map_threads

ROWS = 32  # rows of A that one task works on
_LANES = {"tfdpa": lanes.TFDPA, "half": lanes.TFDPA, "trfdpa": lanes.TRFDPA, "gtrfdpa": lanes.GTRFDPA}


def accumulators(rule: Rule, shape: tuple[int, ...]) -> NDArray[Any]:
    """Zero accumulators of a rule: float32 where its kernels add in float32, else float64."""
    return np.zeros(shape, np.float32 if rule.kind in ("fma", "muladd", "flush") else np.float64)


def run(rule: Rule, a: Plane, b: Plane, order: NDArray[np.int64], acc: NDArray[Any], *, threads: int | None = None) -> None:
    """acc = the chain of blocks over `order`, starting from acc, in place.

    acc    [m, n]: every row of A with every column of B; or [r]: row r of A with row r of B
    order  indices into the planes' K + 1 rows; its length is a multiple of the rule's L
    """
    if acc.ndim == 1:
        _run(rule, a, b, order, acc, None)
    else:
        parts = [slice(i, min(i + ROWS, acc.shape[0])) for i in range(0, acc.shape[0], ROWS)]
        map_threads(lambda rows: _run(rule, a, b, order, acc, rows), parts, threads=threads)


def _run(rule: Rule, a: Plane, b: Plane, order: NDArray[np.int64], acc: NDArray[Any], rows: slice | None) -> None:
    if len(order):
        with np.errstate(all="ignore"):  # compiled kernels raise no warnings; uncompiled ones would, on NaN, Inf and overflow
            _dispatch(rule, a, b, order, acc, rows)


def _dispatch(rule: Rule, a: Plane, b: Plane, order: NDArray[np.int64], acc: NDArray[Any], rows: slice | None) -> None:
    stop = len(order)
    if rule.kind in _LANES:
        _lanes(rule, a, b, order, acc, rows)
    elif rule.kind == "fma":
        if rows is None:
            lanes.fma_pairs(a.single, b.single, order, 0, stop, acc)
        else:
            lanes.fma_tile(a.single, b.single, order, 0, stop, rows.start, rows.stop, acc)
    elif rule.kind == "muladd":
        if rows is None:
            lanes.muladd_pairs(a.single, b.single, order, 0, stop, acc)
        else:
            lanes.muladd_tile(a.single, b.single, order, 0, stop, rows.start, rows.stop, acc)
    elif rule.kind == "fma64":
        if rows is None:
            lanes.fma_pairs(a.values, b.values, order, 0, stop, acc)
        else:
            lanes.fma_tile(a.values, b.values, order, 0, stop, rows.start, rows.stop, acc)
    elif rule.kind == "emulated":
        _emulated(rule, a, b, order, acc, rows)
    else:
        i, j = _elements(acc, rows)
        part = acc if rows is None else acc[rows].reshape(-1)
        _scalars(rule, a, b, order, part, i, j)
        if rows is not None:
            acc[rows] = part.reshape(acc[rows].shape)


def _elements(acc: NDArray[Any], rows: slice | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if rows is None:
        index = np.arange(len(acc), dtype=np.int64)
        return index, index
    i, j = np.meshgrid(np.arange(rows.start, rows.stop, dtype=np.int64), np.arange(acc.shape[1], dtype=np.int64), indexing="ij")
    return i.reshape(-1), j.reshape(-1)


def _lanes(rule: Rule, a: Plane, b: Plane, order: NDArray[np.int64], acc: NDArray[Any], rows: slice | None) -> None:
    if rule.kind == "gtrfdpa":
        blocks = order.reshape(-1, rule.L)
        order = np.ascontiguousarray(np.concatenate([blocks[:, ::2], blocks[:, 1::2]], axis=1).reshape(-1))
    part = acc if rows is None else acc[rows]
    before = part.copy() if rule.kind in ("trfdpa", "gtrfdpa") else part
    pairs: Any = lanes.pairs
    tile: Any = lanes.tile
    operands: tuple[Any, ...] = (_LANES[rule.kind], rule.L, rule.F, rule.P, rule.e0, int(rule.kind == "half"))
    operands += (a.values, a.exponents, b.values, b.exponents, order, 0, len(order))
    if rows is None:
        pairs(*operands, acc)
    else:
        tile(*operands, rows.start, rows.stop, acc)
    if before is part:
        return
    unsettled = np.isnan(part)
    if unsettled.any():
        where = np.nonzero(unsettled)
        i, j = (where[0], where[0]) if rows is None else (where[0] + rows.start, where[1])
        chosen = before[where]
        scalars.truncating(
            2 if rule.kind == "gtrfdpa" else 1, rule.L, a.values, a.whole, b.values, b.whole, i, j, order, 0, len(order), chosen
        )
        part[where] = chosen


def _scalars(rule: Rule, a: Plane, b: Plane, order: NDArray[np.int64], acc: NDArray[Any], i: Any, j: Any) -> None:
    stop = len(order)
    if rule.kind == "exact":
        scalars.exact(rule.L, a.values, b.values, i, j, order, 0, stop, acc)
    elif rule.kind == "flush":
        lanes.flushing(a.single, b.single, i, j, order, 0, stop, rule.L, acc)
    elif rule.kind == "rdna3":
        scalars.rdna3(a.values, a.whole, b.values, b.whole, i, j, order, 0, stop, int(a.flushed), acc)
    elif rule.kind == "rdna4":
        scalars.rdna4(a.values, a.whole, b.values, b.whole, i, j, order, 0, stop, rule.L, acc)
    elif rule.kind == "gst":
        blocks = order.reshape(-1, GROUP)
        whole = (blocks // GROUP == blocks[:, :1] // GROUP) | (blocks == a.length)
        if a.scale is None or b.scale is None or not whole.all():
            raise UsageError(f"the rule of mxf4 and nvf4 needs block scales on both operands, and groups of {GROUP} k's kept together")
        scalars.grouped(rule.P, rule.e0, rule.F, a.values, b.values, *a.scale, *b.scale, i, j, order, 0, stop, acc)
    else:
        raise AssertionError(rule.kind)


_QUADS = np.concatenate([np.flatnonzero(np.arange(32) % 4 < 2), np.flatnonzero(np.arange(32) % 4 >= 2)])


def _emulated(rule: Rule, a: Plane, b: Plane, order: NDArray[np.int64], acc: NDArray[Any], rows: slice | None) -> None:
    """Per 32 products two float16 blocks from +0, k mod 4 < 2 first; their sum is added to the accumulator, rounded to nearest."""
    wide = rule.accumulator == "float32"
    block = rules.tfdpa(16, rule.F) if wide else rules.half(16, rule.F)
    part = acc if rows is None else acc[rows]
    for first in range(0, len(order), rule.L):
        fresh = np.zeros_like(acc)
        _run(block, a, b, np.ascontiguousarray(order[first : first + rule.L][_QUADS]), fresh, rows)
        added = fresh if rows is None else fresh[rows]
        # both are float16 or float32 values: the float64 sum rounds to either as the exact sum does
        part[...] = (part + added).astype(np.float32 if wide else np.float16)
