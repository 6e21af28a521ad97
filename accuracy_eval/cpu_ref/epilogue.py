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
from accuracy_eval.cpu_ref.gemm import Panel, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.special import evaluate, limit
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Values, decode, get_format, ulp
from accuracy_eval.records import Coded


@dataclass(frozen=True)
class Activation:
    """f of an epilogue.

    function  row of `special_functions.FUNCTIONS`; "" for those that are exact
    lowest    where f has its only minimum: it falls before and rises after; None: it never falls
    """

    name: str
    function: str = ""
    lowest: float | None = None

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
        Activation("gelu-tanh", "gelu-tanh", -0.752461422071016),
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
        """After a rounding to `fmt`: half a step, doubled, for many elements come close to the half."""
        return _Step(self.value, self.error + ulp(np.abs(self.value) + self.error, fmt)) if fmt else self


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
            step = _finish(_Step(panel.values, budget), epilogue, panel.first_row, arithmetic)
            allowed = None if panel.budget is None else np.where(np.isfinite(step.value), step.error, 0.0)
        yield Panel(panel.first_row, step.value, allowed)


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
    low, high = step.value - step.error, step.value + step.error
    value = f.of(step.value)
    reached = [f.of(low), f.of(high)]
    if f.lowest is not None:
        reached.append(f.of(np.clip(f.lowest, low, high)))
    error = np.max([np.abs(r - value) for r in reached], axis=0)
    own = limit(f.function, step.value, value, arithmetic) if f.function else 0.0
    return _Step(value, error + own)


__all__ = ["ACTIVATIONS", "Activation", "Epilogue", "epilogue_panels"]
