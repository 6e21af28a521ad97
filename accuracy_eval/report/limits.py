"""Limits that would have passed: hints."""

from __future__ import annotations

import math

from accuracy_eval import messages
from accuracy_eval.records import Results

NEAR = 10.0  # a limit broken by more than this is broken by a fault, and no other limit is the answer


def passing_limits(results: Results) -> list[str]:
    """For every gate that was broken, the limit nearest to its own that all values would have kept, where that is within NEAR times of it;
    a hint, never a reason to loosen it."""
    broken: dict[tuple[str, str, str, float], list[float]] = {}
    for t in results.tensors:
        for s in t.sides:
            for g in s.gates:
                if g.passed is False and g.value is not None:
                    broken.setdefault((g.gate, g.metric, g.comparison, g.limit), []).append(g.value)
    lines = []
    for (gate, metric, comparison, limit), values in broken.items():
        if comparison == "==":
            most, only = messages.exact(max(values, key=abs)), messages.exact(limit)
            lines.append(f"gate {messages.visible(gate)}: nothing but {metric} == {only} passes; found up to {most}")
            continue
        upper = comparison in ("<=", "<")
        worst = _outward(max(values) if upper else min(values), upper)
        if not _near(worst, limit, upper):
            continue
        would = f"{metric} {'<=' if upper else '>='} {messages.number(worst, 3)} would pass"
        lines.append(f"gate {messages.visible(gate)}: {would}, the limit is {messages.number(limit)} (broken by {len(values)})")
    return lines


def _near(value: float, limit: float, upper: bool) -> bool:
    """Whether a value beyond its limit is within NEAR times of it; where that means nothing (signs, limits of 0), it is taken for near."""
    if not math.isfinite(value):
        return False
    return min(value, limit) <= 0 or (value <= NEAR * limit if upper else limit <= NEAR * value)


def _outward(value: float, up: bool) -> float:
    """`value` with three digits, rounded so that it keeps the limit it becomes."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return (math.ceil if up else math.floor)(round(value / unit, 9)) * unit
