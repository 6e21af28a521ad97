"""Limits for an array beside what it should be, where no operands make a truth: those of its format, and the caller's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from accuracy_eval.attribution import CLOSE
from accuracy_eval.diagnose import gate_cannot_fail, named
from accuracy_eval.formats import get_format
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.registry import allclose_name
from accuracy_eval.records import GateResult, Side, Verdict
from accuracy_eval.resolution.thresholds import ulps

INTEGER_SOURCE = "integers, codes and scales have one right value"
CLOSE_SOURCE = "assert_close limits of the output format, or one code step everywhere"
NARROW_SOURCE = "SNR gates of a widely used kernel library, or one code step everywhere"
ZERO_SOURCE = "every expected element that can be compared is zero: a tolerance would let anything small pass"
NARROW_SNR_DB = {"fp8_e4m3": 25.0, "fp8_e5m2": 20.0, "fp6_e2m3": 20.0, "fp6_e3m2": 20.0, "fp4_e2m1": 10.0}  # by format family

Tolerance = tuple[float, float]  # rtol, atol: |actual - expected| <= atol + rtol·|expected|


def tolerances(format: str, asked: Tolerance | None) -> tuple[Tolerance, ...]:
    """Every tolerance whose violations the gates of this module will ask for."""
    return tuple(dict.fromkeys(t for t in (CLOSE.get(format), asked) if t is not None))


def format_gate(m: Measured, format: str) -> GateResult:
    """The limit that two roundings of one result keep: equal integers, a code step for narrow floats and beside zeros, assert_close for
    the others."""
    fmt = get_format(format)
    if fmt.kind == "int" or fmt.scale_only:
        count = m.metrics["mismatch_count"]
        return GateResult("equal", "mismatch_count", count, "==", 0.0, count == 0, INTEGER_SOURCE)
    steps = m.metrics.get("ulp_max")
    one_step = steps is not None and abs(steps) <= 1
    if m.metrics["zero_reference"] == 1:
        largest = m.metrics["max_abs"]
        return GateResult("zero-reference", "max_abs", largest, "==", 0.0, bool(largest == 0 or one_step), ZERO_SOURCE)
    if fmt.bits <= 8:
        snr, limit = m.metrics.get("snr_db"), NARROW_SNR_DB[fmt.family]
        passed = one_step or (snr is not None and snr > limit)
        return GateResult("narrow-snr", "snr_db", snr, ">", limit, bool(passed), NARROW_SOURCE)
    violations = m.metrics[allclose_name(*CLOSE[fmt.name])]
    return GateResult("close", "allclose_violations", float(violations), "==", 0.0, bool(violations == 0 or one_step), CLOSE_SOURCE)


def with_tolerance(side: Side, m: Measured, tolerance: Tolerance) -> Side:
    """The side under the caller's own tolerance as one more gate, with a word where that gate could not fail."""
    rtol, atol = tolerance
    count = m.metrics[allclose_name(rtol, atol)]
    name = f"tolerance(rtol={rtol:g}, atol={atol:g})"
    gate = GateResult(name, "allclose_violations", float(count), "==", 0.0, count == 0, "the caller's rtol and atol")
    blunt = gate_cannot_fail(gate, m.max_expected, rtol=rtol, atol=atol)
    more = () if blunt is None else (named("gate-cannot-fail", {"gate": blunt["gate"]}, largest=blunt["largest"]),)
    verdict = side.verdict
    if not gate.passed:
        verdict = Verdict.FAIL
    elif more and verdict is Verdict.PASS:
        verdict = Verdict.WARN
    return replace(side, gates=(*side.gates, gate), diagnoses=(*side.diagnoses, *more), verdict=verdict)


def format_resolution(gate: GateResult, format: str, largest: float) -> Mapping[str, Any]:
    """The smallest faults that would have failed a gate of `format_gate`; empty where a step of every code would pass it.

    largest  largest finite |expected|: what an element there may be off by fails anywhere
    """
    fmt = get_format(format)
    if gate.metric == "mismatch_count":
        return {"element": "one code"}
    if gate.metric == "max_abs":
        return {"element": fmt.smallest_subnormal}
    if gate.metric != "allclose_violations":
        return {}
    rtol, atol = CLOSE[format]
    limit = atol + rtol * largest
    element = limit + 0.5 * float(ulps(np.array([largest + 2 * limit]), fmt)[0])
    return {"element": element, "gain": element / largest}
