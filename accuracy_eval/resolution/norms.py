"""Gains that a limit on the relative norm of the whole output fails."""

from __future__ import annotations

import math

import numpy as np

from accuracy_eval.formats import Format, Values, get_format
from accuracy_eval.resolution.thresholds import ulps


class NormMeter:
    """Collects from the panels of a reference, in any order, the gain that fails ‖a−e‖ ≤ limit·‖e‖, e rounded or not.

    Of a result e·(1 ± g), rounded once, ‖a−e‖ ≥ g·‖e‖ − H, H the norm of half ulps at |e|·(1 + g); rounding e first costs another H on the
    left and limit·H on the right.
    """

    def __init__(self, out_format: str | Format, limit: float) -> None:
        self._format, self._limit = get_format(out_format), limit
        bits = self._format.fraction_bits if self._format.kind == "float" else 0
        self._largest = limit + 4.0 * 2.0**-bits  # gain that the half ulps stand for
        self._half = self._value = 0.0

    def update(self, values: Values) -> None:
        """A panel: values float64 [r, columns]."""
        finite = np.abs(values[np.isfinite(values)])
        with np.errstate(over="ignore"):
            self._half += float(np.square(0.5 * ulps((1.0 + self._largest) * finite, self._format)).sum())
            self._value += float(np.square(finite).sum())

    def gain(self) -> float:
        """The gain; Inf where none is certain to fail, as of results that are mostly below the smallest normal number."""
        if not 0.0 < self._value < math.inf:
            return math.inf
        gain = self._limit + (2.0 + self._limit) * math.sqrt(self._half / self._value)
        return gain if gain <= self._largest else math.inf
