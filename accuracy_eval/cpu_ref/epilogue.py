"""What follows a product in one call: Y = (f(T) [· U] [+ R]) / s with T = alpha·A·B + bias, its values and its error budget.

A gated epilogue takes two logical projections from one product of 2N columns: G, the first N, goes through the activation; U, the others,
multiplies it. Each step carries the error that came before it to its result: an activation over the whole interval [t − B, t + B], a
product by both factors. Where `rounded` names a format, every step may also round to it, as an unfused kernel does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.flush import stored
from accuracy_eval.cpu_ref.gemm import Panel, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.cpu_ref.special import evaluate, limit
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Values, decode, get_format
from accuracy_eval.records import Coded


@dataclass(frozen=True)
class Activation:
    """f of an epilogue.

    function  row of `special_functions.FUNCTIONS`; "" for those that are exact
    lowest    where f has its only minimum: it falls before and rises after; None: it never falls
    squares   the usual formula of f' holds x², which overflows before x does; what it multiplies is zero there
    """

    name: str
    function: str = ""
    lowest: float | None = None
    squares: bool = False

    def of(self, x: Values) -> Values:
        """f(x), float64."""
        if self.function:
            return evaluate(self.function, x)
        return np.maximum(x, 0.0) if self.name == "relu" else x


ACTIVATIONS: dict[str, Activation] = {
    a.name: a
    for a in (
        Activation("none"),
        Activation("relu"),
        Activation("gelu-tanh", "gelu-tanh", -0.752461422071016, squares=True),
        Activation("gelu-erf", "gelu", -0.751791524693564),
        Activation("silu", "silu", -1.278464542761074),
    )
}


@dataclass(frozen=True)
class Epilogue:
    """The steps after the product.

    activation    row of ACTIVATIONS
    gated         the right operand holds gate columns, then as many that multiply
    residual      Coded [m, n], added after the activation, or None
    output_scale  finite and positive: the result is divided by it, in float32 unless an operand is float64
    rounded       format every step may round to; "" keeps them in the arithmetic of scalars
    """

    activation: str = "none"
    gated: bool = False
    residual: Coded | None = None
    output_scale: float = 1.0
    rounded: str = ""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        if not (np.isfinite(self.output_scale) and self.output_scale > 0):
            raise UsageError(f"output_scale {self.output_scale}: it divides the result; allowed: finite and over 0")

    def columns(self, product: int) -> int:
        """Columns of the result, of a product's columns."""
        if self.gated and product % 2:
            raise UsageError(f"a gated epilogue halves the product's columns; found {product}, an odd number")
        return product // 2 if self.gated else product


@dataclass(frozen=True)
class _Step:
    """A result so far, and the largest error a device may have made."""

    value: Values
    error: Values

    def rounded(self, fmt: str) -> _Step:
        """After a rounding to `fmt`."""
        return _Step(self.value, self.error + stored(np.abs(self.value) + self.error, fmt)) if fmt else self


def epilogue_panels(problem: Gemm, epilogue: Epilogue, *, contract: str | None = None, rows: int | None = None) -> Iterator[Panel]:
    """Panels of Y, in order of rows: float64 values and, under a contract, budgets before the output is rounded.

    problem  A, B, alpha, scales and bias of T (beta and C belong to no epilogue)
    """
    if problem.beta != 0:
        raise UsageError(f"beta = {problem.beta}: an epilogue adds a residual after its activation, not C before it")
    n = epilogue.columns(problem.n)
    if epilogue.residual is not None and epilogue.residual.shape != (problem.m, n):
        raise UsageError(f"a residual has the shape of the result, {(problem.m, n)}; found {epilogue.residual.shape}")
    arithmetic = "float64" if contract and parse_contract(contract).scalar_bits == 53 else "float32"
    for panel in panels(problem, contract=contract, rows=rows):
        with np.errstate(invalid="ignore", over="ignore"):
            budget = np.zeros(panel.values.shape) if panel.budget is None else panel.budget
            step = _finish(_Step(within_float64(problem, panel), budget), epilogue, panel.first_row, arithmetic)
            allowed = None
            if panel.budget is not None:
                allowed = np.where(np.isfinite(step.value), np.where(np.isnan(step.error), np.inf, step.error), 0.0)
        yield Panel(panel.first_row, step.value, allowed)


def within_float64(problem: Gemm, panel: Panel) -> Values:
    """A panel of T whose sums of finite terms stay finite: beyond float64's range its largest value, which what follows takes as well."""
    rows = slice(panel.first_row, panel.first_row + len(panel.values))
    over = np.isinf(panel.values)
    if not over.any():
        return panel.values
    every = slice(None)
    over &= np.isfinite(problem.a_values(rows, every)).all(axis=1, keepdims=True)
    over &= np.isfinite(problem.b_values(every, every)).all(axis=0, keepdims=True)
    over &= np.isfinite(0.0 if problem.bias_values is None else problem.bias_values)
    return np.where(over, np.copysign(np.finfo(np.float64).max, panel.values), panel.values)


def _finish(projection: _Step, epilogue: Epilogue, first: int, arithmetic: str) -> _Step:
    fmt, eps = epilogue.rounded, get_format(arithmetic).eps
    step = projection.rounded(fmt)
    up = None
    if epilogue.gated:
        half = step.value.shape[1] // 2
        up = _Step(step.value[:, half:], step.error[:, half:])
        step = _Step(step.value[:, :half], step.error[:, :half])
    step = _activated(step, ACTIVATIONS[epilogue.activation], arithmetic)
    if up is not None:
        step = step.rounded(fmt if epilogue.activation != "none" else "")
        value = step.value * up.value
        error = np.abs(step.value) * up.error + np.abs(up.value) * step.error + step.error * up.error
        step = _Step(value, error + np.abs(value) * eps)
    if epilogue.residual is not None:
        step = step.rounded(fmt)
        value = step.value + decode(epilogue.residual.codes[first : first + len(step.value)], epilogue.residual.format)
        step = _Step(value, step.error + np.abs(value) * eps)
    if epilogue.output_scale != 1.0:
        step = step.rounded(fmt)
        s = float(np.float32(epilogue.output_scale)) if arithmetic == "float32" else epilogue.output_scale
        # a product with the rounded reciprocal is two roundings
        step = _Step(step.value / s, step.error / s + np.abs(step.value / s) * 2 * eps)
    return step


def _activated(step: _Step, f: Activation, arithmetic: str) -> _Step:
    if f.name == "none":
        return step
    largest = np.finfo(np.float64).max
    low, high = (np.clip(step.value + sign * step.error, -largest, largest) for sign in (-1.0, 1.0))
    value = f.of(step.value)
    reached = [f.of(low), f.of(high)]
    if f.lowest is not None:
        reached.append(f.of(np.clip(f.lowest, low, high)))
    error = np.max([np.abs(r - value) for r in reached], axis=0)
    own = limit(f.function, step.value, value, arithmetic) if f.function else 0.0
    return _Step(value, error + own)


# --- what may come out as Inf or NaN -----------------------------------------------------------------------------------------


def projection_reach(problem: Gemm, values: Values, error: Values, contract: str, fmt: str) -> Reach:
    """T as it is stored: its sums in any order, its value where none overflows. The product may be stored before alpha multiplies it."""
    largest = parse_contract(contract).largest or np.inf
    every, alpha = slice(None), problem.scalars[0]
    product = (Reach.exactly(problem.a_values(every, every)) @ Reach.exactly(problem.b_values(every, every))).in_sums(largest)
    bias = np.zeros((1, 1)) if problem.bias_values is None else problem.bias_values[None]
    if alpha not in (0.0, 1.0):
        with np.errstate(invalid="ignore"):
            product = product.narrowed((values - bias) / alpha, error / abs(alpha)).stored(fmt)
    t = (product * Reach.exactly(np.full((1, 1), alpha)) + Reach.exactly(bias)).in_sums(largest)
    return t.narrowed(values, error).stored(fmt)


def epilogue_reach(problem: Gemm, epilogue: Epilogue, contract: str) -> Reach:
    """Y before it is stored. A step beyond the range of `epilogue.rounded` may be ±Inf for those that follow."""
    found = list(panels(problem, contract=contract))
    values = np.concatenate([within_float64(problem, p) for p in found])
    error = np.concatenate([p.budget for p in found if p.budget is not None])
    fmt = epilogue.rounded
    step = projection_reach(problem, values, error, contract, fmt)
    half = values.shape[1] // 2
    gate, up = (step.columns(slice(half)), step.columns(slice(half, None))) if epilogue.gated else (step, None)
    arithmetic = "float64" if parse_contract(contract).scalar_bits == 53 else "float32"
    step = activated_reach(gate, ACTIVATIONS[epilogue.activation], arithmetic).stored(fmt)
    if up is not None:
        step = (step * up).stored(fmt)
    if epilogue.residual is not None:
        step = (step + Reach.exactly(decode(epilogue.residual.codes, epilogue.residual.format))).stored(fmt)
    return step * Reach.exactly(np.full((1, 1), 1.0 / epilogue.output_scale))


def activated_reach(step: Reach, f: Activation, arithmetic: str) -> Reach:
    """f of the whole interval; f(−Inf) is zero by its limit and NaN by the formulas that multiply x by it."""
    if f.name == "none":
        return step
    ends = [step.low, step.high, *([np.clip(f.lowest, step.low, step.high)] if f.lowest is not None else [])]
    at = [np.where(np.isfinite(x), x, 0.0) for x in ends]
    found = [np.where(np.isfinite(x), f.of(a), np.maximum(x, 0.0)) for x, a in zip(ends, at, strict=True)]
    nan = step.nan | ((step.low == -np.inf) & bool(f.function))
    own = np.max([limit(f.function, a, f.of(a), arithmetic) for a in at], axis=0) if f.function else 0.0
    return Reach(np.minimum.reduce(found) - own, np.maximum.reduce(found) + own, nan)


__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Epilogue",
    "activated_reach",
    "epilogue_panels",
    "epilogue_reach",
    "projection_reach",
    "within_float64",
]
