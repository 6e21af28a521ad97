"""What the units of a walk found, joined in their order."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.joining import added, better, merge_moments, new_records
from accuracy_eval.metrics.measured import Values
from accuracy_eval.metrics.units import Extremes, Unit

MOST_PARTS = 1 << 20  # longest per-row and per-column array
MOST_TILES = 1 << 18


class Top(NamedTuple):
    """One of the worst elements, in the order of a list of them: by size, those of equal size by place.

    minus_size  less its |d| or its error in ulp; flat: where it lies
    values      actual, expected, signed error in ulp, budget
    """

    minus_size: float
    flat: int
    values: tuple[float, ...]
    actual_code: int
    expected_code: int


class Ledger:
    """Of an array of rows × cols; `specs` tolerances are counted and `top` worst elements kept."""

    def __init__(self, rows: int, cols: int, *, specs: int, top: int) -> None:
        self._top = top
        self._parts: list[Values] = []
        self.moments = np.zeros((3, 3))
        self.counts = np.zeros(k.C_ALLCLOSE + specs, np.int64)
        self.records, self.places = new_records()
        self.extremes: Extremes = {}
        self.tops: tuple[list[Top], list[Top]] = [], []  # by |d|, by ulp
        self.row_parts = np.zeros((k.B_MAX, rows)) if rows <= MOST_PARTS else None
        self.col_parts = np.zeros((k.B_MAX, cols)) if cols <= MOST_PARTS else None
        tiles = (-(-rows // k.TILE), -(-cols // k.TILE))
        self.tile_parts = np.zeros((k.B_COUNT, *tiles)) if math.prod(tiles) <= MOST_TILES else None

    def join(self, unit: Unit) -> None:
        """What the next unit found."""
        self._parts.append(unit.sums)
        if len(self._parts) == 4096:
            self._parts = [added(self._parts)]
        for b in range(3):
            merge_moments(self.moments[b], unit.sums[k.S_N : k.S_M2 + 1, b, 0])
        self.counts += unit.counts
        for i in range(k.M_COUNT):
            better(i, self.records, self.places, unit.records[i], int(unit.places[i]))
            if i in unit.extremes and self.places[i] == unit.places[i]:
                self.extremes[i] = unit.extremes[i]
        for which in range(2):
            top = self.tops[which]
            for values, codes in zip(unit.top_values[which], unit.top_codes[which], strict=True):
                if values[0] > 0:
                    top.append(Top(-float(values[0]), int(codes[0]), tuple(map(float, values[1:])), int(codes[1]), int(codes[2])))
            top.sort(key=lambda t: t[:2])
            del top[self._top :]
        if self.row_parts is not None:
            self.row_parts[:, unit.row : unit.row + unit.rows] += unit.row_parts[: k.B_MAX]
        if self.col_parts is not None:
            self.col_parts[:, unit.col : unit.col + unit.cols] += unit.col_parts[: k.B_MAX]
        if self.tile_parts is not None:
            _, height, width = unit.tile_parts.shape
            row, col = unit.row // k.TILE, unit.col // k.TILE
            mine = self.tile_parts[:, row : row + height, col : col + width]
            mine[: k.B_MAX] += unit.tile_parts[: k.B_MAX]
            np.maximum(mine[k.B_MAX], unit.tile_parts[k.B_MAX], out=mine[k.B_MAX])

    def place(self, record: int) -> int | None:
        """Where a record was found: a flat index; None where nowhere."""
        return int(self.places[record]) if self.places[record] >= 0 else None

    def sums(self) -> Values:
        """[quantity, bucket], of all units."""
        return added(self._parts)[:, :, 0] if self._parts else np.zeros((k.S_COUNT, 3))
