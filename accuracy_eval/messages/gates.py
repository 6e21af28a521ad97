"""Gates in words: which one to show, what it found, where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accuracy_eval.messages.values import exact, index_text, number, numbers_apart, visible
from accuracy_eval.metrics.registry import KNOWN, OF_MANY
from accuracy_eval.records import GateResult, Side, WorstElement

COMPARISON_WORDS = {"<=": "must be at most", "<": "must be under", ">=": "must be at least", ">": "must be over", "==": "must be"}
# the worst element is an example of these
LOCATED = ("budget_max", "max_abs", "max_scaled", "ulp_max")
MISMATCHES = ("mismatch_count", "value_mismatch_count")  # and the worst element with other codes of these


def failed_gates(gates: Sequence[GateResult]) -> list[GateResult]:
    """The gates that were broken, furthest beyond the limit first (a limit of 0 has no margin and comes before all); those on many
    elements come last, since a single one is easier to look at."""
    broken = (g for g in gates if g.passed is False)
    return sorted(broken, key=lambda g: (g.metric in OF_MANY, -math.inf if g.margin is None else g.margin))


def deciding_gate(gates: Sequence[GateResult]) -> GateResult | None:
    """The gate to show when there is room for one: the one broken worst, else one not applied, else the one with least margin."""
    broken = failed_gates(gates)
    if broken:
        return broken[0]
    unapplied = [g for g in gates if g.passed is None]
    if unapplied:
        return unapplied[0]
    return min(gates, key=lambda g: math.inf if g.margin is None else g.margin) if gates else None


def gate_clause(gate: GateResult, contract: str = "", place: WorstElement | Sequence[int] | None = None) -> str:
    """One gate in words: value, limit, place, contract: "error 6.9 × budget at [12, 301] (contract fp32acc, B 3.1e-4; gate budget)".

    place  where the value was found: an element, or an index alone
    """
    name, context = visible(gate.gate), [f"contract {visible(contract)}"] if contract else []
    if gate.value is None:
        text = f"gate {name} was not applied: {visible(gate.note) or 'no value'}"
        return f"{text} ({context[0]})" if context else text
    if gate.metric == "budget_max" and isinstance(place, WorstElement) and place.budget is not None:
        context.append(f"B {number(place.budget, 2)}")
    index = place.index if isinstance(place, WorstElement) else place
    return f"{_value_and_limit(gate, gate.value, index)} ({', '.join(context)}{'; ' if context else ''}gate {name})"


def _value_and_limit(gate: GateResult, value: float, index: Sequence[int] | None) -> str:
    """What a gate measured, where, and what it allows, in the words of its metric."""
    if gate.comparison == "==":
        found, limit = exact(value), exact(gate.limit)
    else:
        found, limit = numbers_apart(value, gate.limit, 3)
        limit = max(limit, number(gate.limit, 6), key=len)  # stated limits in full: 0.9999 is not 1
    must = f"{COMPARISON_WORDS.get(gate.comparison, gate.comparison)} {limit}"
    at = "" if index is None else f" at {index_text(index)}"
    if gate.metric == "budget_max":
        return f"{gate.error} error {found} × budget{at}".lstrip() + (f", {must} ×" if gate.limit != 1 else "")
    metric = KNOWN.get(gate.metric)
    if metric and metric.aggregate:
        line = "" if index is None else f" {index_text(index) if len(index) > 1 else index[0]}"
        text = f"{metric.aggregate}{line} uses {found} × its typical budget, {must}"
    elif metric and metric.factor:
        head = "" if index is None else f" in head {index_text(index)}"
        text = f"the factor of {metric.factor}{head} is off by {found} × what the contract allows, {must}"
    else:
        text = f"{visible(gate.metric)} {found}{at}, {must}"
    return f"{gate.error} error: {text}" if gate.error else text


def place_of(gate: GateResult | None, metrics: Mapping[str, Any], worst: Sequence[WorstElement]) -> WorstElement | tuple[int, ...] | None:
    """Where a broken gate's value was found: the element if it is among the worst, else its index alone; None for sums and means."""
    if gate is None or gate.passed is not False:
        return None
    index = index_of(gate.metric, metrics)
    if index is None and gate.metric in MISMATCHES:
        return next((e for e in worst if e.expected_code != e.actual_code), None)
    if index is None:
        return worst[0] if worst and gate.metric in LOCATED else None
    return index if gate.metric in OF_MANY else next((e for e in worst if e.index == index), index)


def broken_element(side: Side) -> WorstElement | None:
    """The element at which a side's deciding gate was broken, where that is one element."""
    place = place_of(deciding_gate(side.gates), side.metrics, side.worst)
    return place if isinstance(place, WorstElement) else None


def index_of(metric: str, metrics: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The index at which a metric has its value; None for those that give no place."""
    index = metrics.get(KNOWN[metric].index) if metric in KNOWN else None
    return None if index is None else (index,) if isinstance(index, int) else tuple(index)
