"""A tensor's error in few numbers, for pictures: how large (histogram), where (map), for which inputs (special functions)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import decode, get_format, ulp
from accuracy_eval.metrics.measured import Measured, NoiseMap
from accuracy_eval.ops.spec import rows_and_columns
from accuracy_eval.records import Coded, InputBin, Sketch

Array = NDArray[Any]
Values = NDArray[np.float64]

CELLS = 32  # along each side of the map of a finding
QUIET_CELLS = 8  # and of what passed
TILE = 128  # elements along the side of a tile of `Measured.tiles`


def sketch_of(
    m: Measured,
    *,
    actual: Array | None = None,
    expected: Values | None = None,
    budget: Values | None = None,
    inputs: Mapping[str, Coded] | None = None,
    finding: bool = True,
) -> Sketch:
    """The sketch of one measurement.

    actual    codes [rows, columns] of the 2-D view; with `expected`, the map is as fine as its number of cells allows, else of whole tiles
    expected  the truth there, float64
    budget    error allowed of each element before rounding; with an operand x of the output's shape: errors by input
    finding   whether a person will look closely: more cells
    """
    cells = CELLS if finding else QUIET_CELLS
    fine = m.tiles is not None and min(m.tiles.nsr.shape) >= cells
    if actual is None or expected is None or fine:
        error_map, cell = _map_of_tiles(m.tiles, m.shape, cells)
    else:
        error_map, cell = _map_of(decode(actual, m.actual_format), expected, cells)
    x = (inputs or {}).get("x")
    if actual is None or expected is None or budget is None or x is None or x.shape != m.shape:
        return Sketch(m.ulp_histogram, error_map, cell)
    return Sketch(m.ulp_histogram, error_map, cell, _by_input(x, decode(actual, m.actual_format), expected, budget, m.actual_format))


def _map_of(actual: Values, expected: Values, cells: int) -> tuple[tuple[tuple[float, ...], ...], tuple[int, int]]:
    """‖a - e‖/‖e‖ of a grid of at most cells × cells rectangles; a pair that is not finite on both sides counts as infinite error."""
    rows, columns = expected.shape
    if not rows or not columns:
        return (), (0, 0)
    cell = -(-rows // cells), -(-columns // cells)
    with np.errstate(all="ignore"):
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        difference = np.where(same, 0.0, actual - expected)
        difference[np.isnan(difference)] = np.inf
        finite = np.where(np.isfinite(expected), expected, 0.0)
        scale = float(np.abs(finite).max(initial=0.0)) or 1.0  # squares of tiny or huge values stay in range
        return _digits(
            _ratio(np.sqrt(_summed(np.square(difference / scale), cell)), np.sqrt(_summed(np.square(finite / scale), cell)))
        ), cell


def _map_of_tiles(tiles: NoiseMap | None, shape: tuple[int, ...], cells: int) -> tuple[tuple[tuple[float, ...], ...], tuple[int, int]]:
    """The map from the 128 × 128 tiles of a measurement, joined until they fit; () where there is but one."""
    if tiles is None or tiles.nsr.size < 2:
        return (), (0, 0)
    rows, columns = tiles.nsr.shape
    cell = -(-rows // cells), -(-columns // cells)
    with np.errstate(all="ignore"):
        scale = float(np.abs(tiles.reference[np.isfinite(tiles.reference)]).max(initial=0.0)) or 1.0
        error, reference = (np.sqrt(_summed(np.square(part / scale), cell)) for part in (tiles.error, tiles.reference))
        height, width = rows_and_columns(shape)
        return _digits(_ratio(error, reference)), (min(cell[0] * TILE, height), min(cell[1] * TILE, width))


def _summed(values: Values, cell: tuple[int, int]) -> Values:
    rows = np.add.reduceat(values, np.arange(0, values.shape[0], cell[0]), axis=0)
    summed: Values = np.add.reduceat(rows, np.arange(0, values.shape[1], cell[1]), axis=1)
    return summed


def _ratio(error: Values, reference: Values) -> Values:
    return np.where(error == 0, 0.0, np.where(reference == 0, np.inf, error / reference))


def _digits(values: Values) -> tuple[tuple[float, ...], ...]:
    """Rows of the map with three digits; () where no element is off: nothing is to be drawn."""
    return tuple(tuple(_three(float(v)) for v in row) for row in values) if values.any() else ()


def _three(value: float) -> float:
    return float(f"{value:.3g}")


def _by_input(x: Coded, actual: Values, expected: Values, budget: Values, fmt: str) -> tuple[InputBin, ...]:
    """Largest |ulp error| and the least limit, by octave of the input."""
    values = decode(x.codes, x.format).reshape(expected.shape)
    spacing = ulp(expected, get_format(fmt))
    usable = np.isfinite(actual) & np.isfinite(expected) & np.isfinite(values) & (values != 0)
    if not usable.any():
        return ()
    v, spacing = values[usable], spacing[usable]
    with np.errstate(over="ignore"):
        error = np.abs(actual[usable] - expected[usable]) / spacing
        limit = budget[usable] / spacing + 0.5  # rounding the output may add half an ulp
    exponent = np.frexp(v)[1]  # |v| in [2^(e-1), 2^e)
    octave = np.where(v < 0, -1, 1) * (exponent - (exponent.min() - 1))  # one number per sign and octave, ordered as the values are
    order = np.argsort(octave, kind="stable")
    starts = np.flatnonzero(np.diff(octave[order], prepend=octave[order[0]] - 1))
    largest, least = np.maximum.reduceat(error[order], starts), np.minimum.reduceat(limit[order], starts)
    bins = []
    for i, start in enumerate(starts):
        e, sign = int(exponent[order[start]]), math.copysign(1.0, float(v[order[start]]))
        low, high = sorted((sign * math.ldexp(1.0, e - 1), sign * math.ldexp(1.0, min(e, 1023))))
        bins.append(InputBin(low, high, _three(float(largest[i])), _three(float(least[i]))))
    return tuple(bins)
