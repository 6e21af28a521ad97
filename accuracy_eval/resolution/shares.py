"""Of many lines the share in which an error of some size would be caught, from classes of their elements' thresholds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.jit import kernel

PER_OCTAVE = 4  # classes of a threshold: 19 % wide
LOWEST, HIGHEST = -60, 20  # octaves of thresholds relative to the line's rms: below, always crossed; above, never


@kernel
def _count(thresholds: Any, rms: Any, weight: float, counts: Any) -> None:
    """Adds thresholds [lines, elements], relative to rms [lines], to counts [lines, classes]."""
    last = counts.shape[1] - 1
    for i in range(thresholds.shape[0]):
        if not 0.0 < rms[i] < np.inf:
            continue
        for j in range(thresholds.shape[1]):
            t = thresholds[i, j] / rms[i]
            place = last if not t < np.inf else 0 if t <= 0.0 else int(np.rint((np.log2(t) - LOWEST) * PER_OCTAVE))
            counts[i, min(max(place, 0), last)] += weight


def line_counts(thresholds: NDArray[np.float64], rms: NDArray[np.float64], along: float) -> NDArray[np.float64]:
    """Classes of the thresholds [2, lines, elements] of lines of `along` elements each: [lines, classes]; lines without a norm left out."""
    counts = np.zeros((len(rms), (HIGHEST - LOWEST) * PER_OCTAVE + 1))
    for side in thresholds:
        _count(np.ascontiguousarray(side), rms, along / side.shape[1], counts)
    return counts[(rms > 0) & (rms < math.inf)]


def line_size(counts: NDArray[np.float64], share: float = 0.95) -> float:
    """Relative norm of a normal error that is caught in that share of lines [lines, classes]; NaN without lines, Inf where none is."""
    if not len(counts):
        return math.nan
    used = np.nonzero(counts.any(axis=0))[0]
    counts = np.ascontiguousarray(counts[:, used])
    octaves = used / PER_OCTAVE + LOWEST
    low, high = float(LOWEST), float(HIGHEST)
    if _caught(counts, octaves, high) < share:
        return math.inf
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if _caught(counts, octaves, middle) >= share else (middle, high)
    return float(2.0**high)


@kernel
def _caught(counts: Any, octaves: Any, octave: float) -> float:
    """Share of the lines [lines, classes] in which a normal error of 2^octave crosses a threshold of one of the octaves [classes]."""
    passes = np.empty(octaves.shape[0])
    for j in range(octaves.shape[0]):
        # an element has two thresholds, of which one error can cross one: each stands for half of a two-sided one
        beyond = math.erfc(2.0 ** (octaves[j] - octave) / math.sqrt(2.0))
        passes[j] = math.log1p(-min(beyond, 1.0 - 1e-15)) / 2.0
    total = 0.0
    for i in range(counts.shape[0]):
        all_pass = 0.0
        for j in range(octaves.shape[0]):
            all_pass += counts[i, j] * passes[j]
        total -= math.expm1(all_pass)
    return total / counts.shape[0]  # type: ignore[no-any-return]
