"""Rules that need the measurement alone: classes, zeros, constants; and the gate that no output can fail."""

from __future__ import annotations

import operator

import numpy as np

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.messages import number

COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}


def empty(look: Look) -> Finding | None:
    return Finding() if look.count == 0 else None


def _on_one_side(look: Look, count: int, first: int | None) -> Finding | None:
    if not count or first is None:
        return None
    return Finding({"index": look.index(first), "count": count}, {"total": str(look.count)})


def nan_in_actual(look: Look) -> Finding | None:
    return _on_one_side(look, look.m.classes.nan_actual_only, look.m.classes.first_nan_actual_only)


def inf_in_actual(look: Look) -> Finding | None:
    return _on_one_side(look, look.m.classes.inf_actual_only, look.m.classes.first_inf_actual_only)


def nan_in_expected(look: Look) -> Finding | None:
    c = look.m.classes
    return None if c.nan_actual_only else _on_one_side(look, c.nan_expected_only, c.first_nan_expected_only)


def inf_in_expected(look: Look) -> Finding | None:
    c = look.m.classes
    return None if c.inf_actual_only else _on_one_side(look, c.inf_expected_only, c.first_inf_expected_only)


def all_zero(look: Look) -> Finding | None:
    # a result that underflows to zero is right: its rounded truth is zero as well
    if not look.m.all_zero or look.metrics.get("zero_reference") != 0 or not look.metrics["value_mismatch_count"]:
        return None
    return Finding({}, {"total": str(look.count), "largest": number(look.m.max_expected)})


def zero_reference(look: Look) -> Finding | None:
    return Finding() if look.count and look.m.classes.expected.zero == look.count and look.metrics.get("zero_reference") == 1 else None


def constant(look: Look) -> Finding | None:
    r = look.m.expected_range
    if not look.m.constant or look.m.all_zero or look.count < 8 or r.low is None or r.low == r.high:
        return None
    return Finding({"value": look.m.actual_range.low}, {"total": str(look.count), "low": number(r.low), "high": number(r.high)})


def negative_zero(look: Look) -> Finding | None:
    count = look.metrics.get("zero_sign_mismatch") or 0
    if look.within_budget:  # an underflow of either sign, within budget
        return None
    if not count or count != look.metrics["mismatch_count"]:
        return None
    return Finding({"count": count}, {"total": str(look.count), "where": _first_other_zero(look)})


def _first_other_zero(look: Look) -> str:
    """Where the first zero of the other sign is, as the end of a sentence; "" for tensors that are not looked at whole."""
    if look.whole is None:
        return ""
    a, e = look.whole
    at = int(np.argmax((a == 0) & (look.rounded(e) == 0) & (np.signbit(a) != np.signbit(e))))
    return f"; the first is at {look.index(at)}"


def rounding_only(look: Look) -> Finding | None:
    """Every difference is one that rounding explains: within budget, or without one a single step of the format."""
    m = look.metrics
    if look.exact or not m["value_mismatch_count"] or m["nonfinite_mismatch"] or m["ulp_max"] is None or look.named:
        return None
    budget = m.get("budget_max")
    if budget is not None:
        if look.over_budget:
            return None
        return Finding(
            {"count": m["mismatch_count"]}, {"total": str(look.count), "why": f"within {number(100 * budget, 3)} % of its budget"}
        )
    if m["ulp_max"] > 1:
        return None
    return Finding({"count": m["mismatch_count"]}, {"total": str(look.count), "why": "one step of the format"})


def all_zero_value(metric: str, largest: float, rtol: float = 0.0, atol: float = 0.0) -> float | None:
    """What an all-zero output would score where `largest` > 0 is the largest |expected|; None for metrics it says nothing about."""
    values: dict[str, float] = {
        "rel_fro": 1.0, "max_abs": largest, "max_scaled": min(1.0, largest), "max_rel": 1.0, "cosine": 0.0, "snr_db": 0.0,
        "sym_diff": 1.0, "gain": 0.0,
    }  # fmt: skip
    if metric == "allclose_violations":
        # e·(1 - rtol) <= atol holds for every |e| if it holds for the largest
        return 0.0 if largest <= atol + rtol * largest else 1.0
    return values.get(metric)
