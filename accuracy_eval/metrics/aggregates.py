"""How much of what it may use a whole row, column or tile of an output uses.

One element may reach its budget once in a very long while; a line of many elements may not come near it together. Their limit is the
*typical* budget: the contract's systematic error and two standard deviations of its random walk, where the element's has eight. The
use of a line is the root mean square, over its finite elements, of the distance from the reference to the reals that round to the
code, each in units of the element's own typical budget; so no large element hides its neighbours, and no square overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Format, Values, decode
from accuracy_eval.jit import kernel, map_threads

TILE = 128
FEWEST = 32  # elements of a line or tile: fewer may be one large error
LIMIT = 0.7  # of a line's use: healthy units reach 0.43 (docs/gates.md)
HIGHEST = 1e100  # of an element's use, so that its square is a number


@dataclass(frozen=True)
class Aggregates:
    """The largest use among the rows, columns and 128 × 128 tiles, and where: (index, use); None where none has 32 finite elements."""

    row: tuple[int, float] | None
    column: tuple[int, float] | None
    tile: tuple[tuple[int, int], float] | None


NO_USES = Aggregates(None, None, None)


@kernel
def _add_uses(
    actual: Any, expected: Any, typical: Any, bits: int, emin: int, top: float, rows: Any, columns: Any, tiles: Any
) -> None:  # fmt: skip
    """Adds the squared uses of a band of at most 128 rows, and counts: rows [r, 2], columns [n, 2], tiles [n / 128, 2].

    actual, expected, typical  float64 [r, n]
    bits, emin, top            of the output format: fraction bits, least exponent, largest value
    """
    for i in range(actual.shape[0]):
        for j in range(actual.shape[1]):
            a, e = actual[i, j], expected[i, j]
            if not (abs(a) < np.inf and abs(e) <= top):
                continue
            # half the gap to the neighbour of a on e's side: below a power of two it is half as wide
            near = abs(a) if abs(e) >= abs(a) and a * e >= 0.0 else np.nextafter(abs(a), 0.0)
            _, exponent = math.frexp(near)
            half = math.ldexp(0.5, max(exponent - 1 if near > 0.0 else emin, emin) - bits)
            left = abs(a - e) - half
            square = 0.0
            if left > 0.0:
                use = min(left / typical[i, j], HIGHEST) if typical[i, j] > 0.0 else HIGHEST
                square = use * use
            t = j // TILE
            rows[i, 0] += square
            rows[i, 1] += 1.0
            columns[j, 0] += square
            columns[j, 1] += 1.0
            tiles[t, 0] += square
            tiles[t, 1] += 1.0


class AggregateMeter:
    """Collects the uses of an output, panel by panel, in the order of rows."""

    def __init__(self, rows: int, columns: int, fmt: Format) -> None:
        self._format = fmt
        self._rows = np.zeros((rows, 2))
        self._columns = np.zeros((columns, 2))
        self._tiles = np.zeros((-(-rows // TILE), -(-columns // TILE), 2))

    def update(self, first_row: int, codes: NDArray[Any], expected: Values, typical: Values) -> None:
        """codes of the output's format, its unrounded truth and the typical budgets, each [r, columns]."""
        f = self._format
        bits, emin, top = (f.fraction_bits, f.emin, f.max) if f.kind == "float" else (62, 62, math.inf)  # the gap of integers is 1
        end = first_row + len(codes)
        edges = [first_row, *range(first_row // TILE * TILE + TILE, end, TILE), end]
        bands = [(a, b) for a, b in pairwise(edges) if a < b]

        def band(place: tuple[int, int]) -> NDArray[np.float64]:
            a, b = (i - first_row for i in place)
            columns = np.zeros_like(self._columns)
            _add_uses(
                np.ascontiguousarray(decode(codes[a:b], f)), np.ascontiguousarray(expected[a:b]), np.ascontiguousarray(typical[a:b]),
                bits, emin, top, self._rows[slice(*place)], columns, self._tiles[place[0] // TILE],
            )  # fmt: skip
            return columns

        for columns in map_threads(band, bands):
            self._columns += columns

    def result(self) -> Aggregates:
        """What the panels so far use."""
        row, column, tile = (_largest(sums) for sums in (self._rows, self._columns, self._tiles.reshape(-1, 2)))
        return Aggregates(row, column, None if tile is None else (divmod(tile[0], self._tiles.shape[1]), tile[1]))


def _largest(sums: NDArray[np.float64]) -> tuple[int, float] | None:
    """(index, root mean square) of the line with the largest, the first of equals."""
    many = sums[:, 1] >= FEWEST
    if not many.any():
        return None
    use = np.where(many, np.sqrt(sums[:, 0] / np.maximum(sums[:, 1], 1.0)), -1.0)
    at = int(np.argmax(use))
    return at, float(use[at])
