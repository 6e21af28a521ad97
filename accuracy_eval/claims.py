"""What the gates that judge let a PASS claim: the resolution of a profile, from its limits on elements, lines and norms.

A limit on single elements, whatever its metric, is a budget of each: `resolution` makes sizes of faults of it. A limit on the relative
norm of the whole fails a gain. Others (a cosine, a total error) fail no single fault of a size that could be stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from accuracy_eval.formats import Values, get_format
from accuracy_eval.gates import Gate
from accuracy_eval.metrics.registry import AGGREGATES
from accuracy_eval.ops.spec import Panel, Reference, rows_and_columns
from accuracy_eval.records import GateResult
from accuracy_eval.resolution import NormMeter, ResolutionMeter
from accuracy_eval.resolution.thresholds import ulps

UPPER, LOWER = ("<=", "<", "=="), (">=", ">")
EQUALITIES = frozenset({"mismatch_count", "value_mismatch_count"})  # a limit of 0: every code is the expected one
COUNTS = EQUALITIES | {"allclose_violations"}  # bound every element where the limit is 0

# metric -> what an element may be off by: of the gate, |e| and the budget
_BOUNDS: dict[str, Callable[[Gate, Values, Values], Values]] = {
    "budget_max": lambda g, size, budget: budget if g.limit == 1 else np.where(np.isinf(budget), np.inf, g.limit * budget),
    "mismatch_count": lambda g, size, budget: np.zeros_like(size),
    "value_mismatch_count": lambda g, size, budget: np.zeros_like(size),
    "allclose_violations": lambda g, size, budget: g.atol + g.rtol * size,
    "max_scaled": lambda g, size, budget: g.limit * np.maximum(1.0, size),
    "max_abs": lambda g, size, budget: np.full_like(size, g.limit),
}
# metric -> (comparisons that make it a limit on ‖a−e‖/‖e‖, that limit)
_NORMS: dict[str, tuple[tuple[str, ...], Callable[[float], float]]] = {
    "rel_fro": (UPPER, lambda limit: limit),
    "snr_db": (LOWER, lambda limit: float(10.0 ** (-limit / 20.0))),
}


class Claims:
    """Collects, from the panels of a reference in any order, the smallest faults that fail one of the gates."""

    def __init__(self, shape: tuple[int, ...], fmt: str, reference: Reference, gates: Iterable[Gate]) -> None:
        gates = tuple(gates)
        self._format = get_format(fmt)
        self._bounding = tuple(g for g in gates if _bounds_elements(g))
        self._stated = reference.resolution if any(g.metric in EQUALITIES for g in self._bounding) else {}
        self._meter = self._norm = None
        if reference.kind == "codes":
            return
        if self._bounding:
            lines = {g.metric: g.limit for g in gates if g.metric in AGGREGATES and g.comparison in UPPER}
            self._meter = ResolutionMeter(rows_and_columns(shape)[1], fmt, reference.problem, lines)
        norms = [_NORMS[g.metric][1](g.limit) for g in gates if g.metric in _NORMS and g.comparison in _NORMS[g.metric][0]]
        self._norm = NormMeter(fmt, min(norms)) if norms else None

    def update(self, panel: Panel) -> None:
        """A panel; where it has no budgets, gates on those bound nothing."""
        if panel.budget is None:
            self._bounding = tuple(g for g in self._bounding if g.metric != "budget_max")
        if not self._bounding:
            self._meter = None
        if self._meter is not None:
            budget = np.full(panel.values.shape, np.inf) if panel.budget is None else panel.budget
            bounds = reduce(np.minimum, (self._bound(g, panel.values, budget) for g in self._bounding))
            self._meter.update(panel.first_row, panel.values, bounds, panel.typical)
        if self._norm is not None:
            self._norm.update(panel.values)

    def _bound(self, gate: Gate, values: Values, budget: Values) -> Values:
        size = np.abs(values)
        return _BOUNDS[gate.metric](gate, size + 0.5 * ulps(size, self._format) if gate.round_expected else size, budget)

    def result(self) -> Mapping[str, Any]:
        """Plain data for `Side.resolution`; empty where the gates bound no fault."""
        found = dict(self._stated) if self._meter is None else self._meter.result().as_dict()
        gain = math.inf if self._norm is None else self._norm.gain()
        return {**found, "gain": gain} if gain < found.get("gain", math.inf) else found


def hold_budgets(gates: Iterable[GateResult]) -> bool:
    """Whether an element beyond its budget fails one of the gates that were applied."""
    most = {"budget_max": 1.0, **dict.fromkeys(EQUALITIES, 0.0)}
    return any(g.passed is not None and g.comparison in UPPER and g.metric in most and g.limit <= most[g.metric] for g in gates)


def _bounds_elements(gate: Gate) -> bool:
    """Whether it limits what any single element may be off by; the budget is known against the unrounded truth alone."""
    if gate.metric not in _BOUNDS or gate.comparison not in UPPER:
        return False
    return gate.limit == 0 if gate.metric in COUNTS else not (gate.metric == "budget_max" and gate.round_expected)
