"""Gradients of Y = (f(T) [· U] [+ R]) / s, T = alpha·A·B + bias: what flows back to T, and from there to A, B and bias.

The gradient of T is one number per element of the product, which a device holds in its operands' format: it may be off by a step of that
(half a step, doubled as in `epilogue`), and by what a rounded T changes in f and f'. These errors are independent from element to element,
so a sum of products with them is off by LAMBDA standard deviations at most, beside what the contract allows the product itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.epilogue import ACTIVATIONS, Activation, Epilogue
from accuracy_eval.cpu_ref.gemm import Panel, gradient, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.special import gradient as slope_times
from accuracy_eval.cpu_ref.special import gradient_limit
from accuracy_eval.formats import Values, decode, encode, get_format, ulp
from accuracy_eval.records import Coded


@dataclass(frozen=True)
class Upstream:
    """What flows back: to T [m, columns of the product] and to the residual [m, n], each with its largest error."""

    product: Values
    product_error: Values
    residual: Values
    residual_error: Values


def _slope(f: Activation, x: Values) -> Values:
    if f.function:
        return slope_times(f.function, x, np.ones_like(x))[0]
    return np.where(x > 0, 1.0, 0.0) if f.name == "relu" else np.ones_like(x)


def _slope_limit(f: Activation, x: Values, fmt: str) -> Values:
    return gradient_limit(f.function, x, np.ones_like(x), fmt)[0] if f.function else np.zeros_like(x)


def _over(f: Activation, x: Values, error: Values, of_slope: bool) -> Values:
    """How far f (or f') goes from its value at x within ± error. f'' is smooth at the scale of an error: its ends bound it."""
    at = _slope if of_slope else (lambda g, v: g.of(v))
    middle = at(f, x)
    return np.maximum(np.abs(at(f, x - error) - middle), np.abs(at(f, x + error) - middle))


@np.errstate(over="ignore", invalid="ignore")  # Inf − Inf and 0·Inf are NaN; an error may overflow
def upstream(problem: Gemm, epilogue: Epilogue, grad_y: Coded, contract: str) -> Upstream:
    """The gradients of the product and of the residual. grad_y [m, n]; `epilogue.rounded` is the format a device keeps steps in."""
    found = list(panels(problem, contract=contract))
    t = np.concatenate([p.values for p in found])
    error = np.concatenate([p.budget for p in found if p.budget is not None])
    f, fmt = ACTIVATIONS[epilogue.activation], epilogue.rounded
    scalar = "float64" if get_format(fmt).name == "float64" else "float32"
    error = error + ulp(np.abs(t) + error, fmt)
    g = decode(grad_y.codes, grad_y.format) / epilogue.output_scale
    g_error = np.zeros_like(g) if epilogue.output_scale == 1.0 else ulp(g, fmt) + np.abs(g) * get_format(scalar).eps
    if not epilogue.gated:
        slope = _slope(f, t)
        moved = _over(f, t, error, True) + _slope_limit(f, t, scalar)
        dt = g * slope
        dt_error = np.abs(g) * moved + (np.abs(slope) + moved) * g_error
        return Upstream(dt, _stored(dt, dt_error, fmt, f.name != "none"), g, g_error)
    half = t.shape[1] // 2
    gate, up = t[:, :half], t[:, half:]
    gate_error, up_error = error[:, :half], error[:, half:]
    value, slope = f.of(gate), _slope(f, gate)
    value_moved = _over(f, gate, gate_error, False) + ulp(value, fmt)
    slope_moved = _over(f, gate, gate_error, True) + _slope_limit(f, gate, scalar)
    through = g * up
    through_error = np.abs(g) * up_error + np.abs(up) * g_error + ulp(through, fmt)
    d_gate, d_up = through * slope, g * value
    d_gate_error = np.abs(through) * slope_moved + (np.abs(slope) + slope_moved) * through_error
    d_up_error = np.abs(g) * value_moved + (np.abs(value) + value_moved) * g_error
    dt = np.concatenate([d_gate, d_up], axis=1)
    return Upstream(dt, _stored(dt, np.concatenate([d_gate_error, d_up_error], axis=1), fmt, True), g, g_error)


def _stored(values: Values, error: Values, fmt: str, changed: bool) -> Values:
    """The error after the gradient was stored in a device's format, where a step changed it."""
    return error + ulp(np.abs(values) + error, fmt) if changed else error


def gradient_panels(output: str, problem: Gemm, flow: Upstream, contract: str) -> Iterator[Panel]:
    """Panels of "da", "db" (stored orientation), "dbias" or "dresidual": values and budgets."""
    if output == "dresidual":
        yield Panel(0, flow.residual, flow.residual_error)
        return
    g = Coded(encode(flow.product, "float64"), "float64")
    plain = Gemm(problem.a, problem.b, problem.layout, problem.alpha, a_scale=problem.a_scale, b_scale=problem.b_scale)
    carried = _carried(output, plain, flow.product_error)
    for p in panels(gradient(output, plain, g), contract=contract):
        assert p.budget is not None
        allowed = p.budget + carried[p.first_row : p.first_row + len(p.values)]
        yield Panel(p.first_row, p.values, np.where(np.isfinite(p.values), np.where(np.isnan(allowed), np.inf, allowed), 0.0))


def _carried(output: str, problem: Gemm, error: Values) -> Values:
    """What errors of the product's gradient add to a sum of products with them, in the output's stored orientation."""
    everything = slice(None)
    with np.errstate(invalid="ignore", over="ignore"):
        variance = error**2 / 3.0  # of a number anywhere within ± error
        if output == "dbias":
            spread: Values = LAMBDA * np.sqrt(variance.sum(axis=0, keepdims=True))
            return spread
        if output == "da":
            found, turned = variance @ problem.b_values(everything, everything).T ** 2, problem.layout[0] == "t"
        else:
            found, turned = problem.a_values(everything, everything).T ** 2 @ variance, problem.layout[1] == "t"
        spread = abs(problem.scalars[0]) * LAMBDA * np.sqrt(found)
    return spread.T if turned else spread
