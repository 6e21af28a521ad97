"""Units of the walk: rectangles of an array, what was found in each, and what a thread writes to meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.joining import new_records
from accuracy_eval.metrics.measured import Values

EXTREMES = (k.M_REL, k.M_INNER, k.M_RATIO)  # records whose element is kept: a limit on one may be broken far from the largest |d| and ulp
Extremes = dict[int, tuple[Any, Any, float]]  # record → actual code, expected code or value, budget


@dataclass
class Unit:
    """A rectangle of the array and what the walk found in it. Row and column arrays are [quantity, place]; see slots.py."""

    row: int
    rows: int
    col: int
    cols: int
    sums: Values
    counts: NDArray[np.int64]
    row_parts: Values
    col_parts: Values
    tile_parts: Values
    top_values: Values
    top_codes: NDArray[np.int64]
    records: Values
    places: NDArray[np.int64]
    extremes: Extremes


class Scratch:
    """What one thread writes to while it walks; counts of the histogram stay until the result, which leaves zeros."""

    def __init__(self) -> None:
        self.lanes = np.zeros(k.SCRATCH)
        self.bins = np.zeros(k.LANES, np.int64)
        self.histogram = np.zeros(k.COUNTERS, np.int64)


_SPARE: SimpleQueue[Scratch] = SimpleQueue()
"""Scratches of finished meters: a megabyte of zeros is dearer to get from the system than a small array to measure."""
MOST_SPARE = 8


def spare() -> Scratch:
    """One that is not in use."""
    try:
        return _SPARE.get_nowait()
    except Empty:
        return Scratch()


def give_back(scratches: Sequence[Scratch]) -> None:
    """To other meters, as many as are worth keeping."""
    for scratch in scratches[: max(0, MOST_SPARE - _SPARE.qsize())]:
        _SPARE.put(scratch)


def new_unit(row: int, rows: int, col: int, cols: int, top: int, specs: int) -> Unit:
    """Nothing found yet; `top` worst elements are kept and `specs` tolerances counted."""
    records, places = new_records()
    return Unit(
        row=row,
        rows=rows,
        col=col,
        cols=cols,
        sums=np.zeros((k.S_COUNT, 3, 2)),
        counts=np.zeros(k.C_ALLCLOSE + specs, np.int64),
        row_parts=np.zeros((k.B_COUNT, rows)),
        col_parts=np.zeros((k.B_COUNT, cols)),
        tile_parts=np.zeros((k.B_COUNT, -(-rows // k.TILE), -(-cols // k.TILE))),
        top_values=np.zeros((2, top, 5)),
        top_codes=np.zeros((2, top, 3), np.int64),
        records=records,
        places=places,
        extremes={},
    )
