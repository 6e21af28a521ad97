"""Gradients of Y = (f(T) [· U] [+ R]) / s, T = alpha·A·B + bias: what flows back to T, and from there to A, B and bias.

The gradient of T is one number per element of the product, which a device holds in its operands' format: it may be off by a step of that
(half a step, doubled as in `epilogue`), and by what a rounded T changes in f and f'. These errors are independent from element to element,
so a sum of products with them is off by LAMBDA standard deviations at most, beside what the contract allows the product itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from accuracy_eval.contracts import LAMBDA, TYPICAL, parse_contract
from accuracy_eval.cpu_ref.epilogue import ACTIVATIONS, Activation, Epilogue, activated_reach, projection_reach, within_float64
from accuracy_eval.cpu_ref.flush import stored
from accuracy_eval.cpu_ref.gemm import Panel, gradient, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.reach import Flags, Reach
from accuracy_eval.cpu_ref.special import gradient as slope_times
from accuracy_eval.cpu_ref.special import gradient_limit
from accuracy_eval.formats import Values, arithmetic_format, decode, encode, get_format
from accuracy_eval.records import Coded

OVERSHOOT = 0.13  # beyond 0 and 1, that slopes of activations reach


@dataclass(frozen=True)
class Flow:
    """A gradient on its way back: its values, the largest error of each, and what Inf and NaN may stand there."""

    values: Values
    error: Values
    reach: Reach


@dataclass(frozen=True)
class Upstream:
    """What flows back: to T [m, columns of the product] and to the residual [m, n]; where T may be one of several things, Inf or NaN among
    them, so that the slope there is one of several too."""

    product: Flow
    residual: Flow
    several: Flags


def _slope(f: Activation, x: Values) -> Values:
    if f.function:
        return slope_times(f.function, x, np.ones_like(x))[0]
    return np.where(x <= 0, 0.0, 1.0) if f.name == "relu" else np.ones_like(x)  # relu's at NaN as frameworks have it, not at 0


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
    none = np.empty((0, problem.n))
    t = np.concatenate([none, *(within_float64(problem, p) for p in found)])
    error = np.concatenate([none, *(p.budget for p in found if p.budget is not None)])
    f, fmt = ACTIVATIONS[epilogue.activation], epilogue.rounded
    scalar = arithmetic_format(fmt).name
    reach = projection_reach(problem, t, error, contract, fmt)
    error = np.where(_certainly_zero(problem, t), 0.0, error + stored(np.abs(t) + error, fmt))
    several = reach.nan | (reach.infinite & (reach.low < reach.high))
    values = decode(grad_y.codes, grad_y.format)
    g = values / epilogue.output_scale
    g_error = np.zeros_like(g) if epilogue.output_scale == 1.0 else stored(g, fmt) + np.abs(g) * get_format(scalar).eps
    back = Flow(g, g_error, (Reach.exactly(values) * Reach.exactly(np.full((1, 1), 1.0 / epilogue.output_scale))).stored(fmt))
    if not epilogue.gated:
        return Upstream(_kept(_through(back, _slope_flow(f, t, error, reach, scalar), f), fmt, f.name != "none"), back, several)
    half = t.shape[1] // 2
    gate, up = slice(half), slice(half, None)
    value = f.of(t[:, gate])
    value_error = _over(f, t[:, gate], error[:, gate], False) + stored(value, fmt)
    activated = Flow(value, value_error, activated_reach(reach.columns(gate), f, scalar).stored(fmt))
    through = _kept(_through(back, Flow(t[:, up], error[:, up], reach.columns(up))), fmt, True)
    d_gate = _through(through, _slope_flow(f, t[:, gate], error[:, gate], reach.columns(gate), scalar), f)
    d_up = _through(back, activated)
    values, errors = (np.concatenate([getattr(d_gate, n), getattr(d_up, n)], axis=1) for n in ("values", "error"))
    both = Flow(values, errors, Reach.beside([d_gate.reach, d_up.reach]))
    return Upstream(_kept(both, fmt, True), back, several)


def _certainly_zero(problem: Gemm, t: Values) -> Flags:
    """T [m, n] that are 0 in any arithmetic: every product has a factor of 0, and nothing is added."""
    if problem.bias is not None:
        return np.zeros(t.shape, np.bool_)
    rows = problem.left.norms(1 if problem.layout[0] == "n" else 0) == 0.0
    columns = problem.right.norms(0 if problem.layout[1] == "n" else 1) == 0.0
    return np.asarray((t == 0.0) & (rows[:, None] | columns))


def _slope_flow(f: Activation, t: Values, error: Values, reach: Reach, scalar: str) -> Flow:
    """f' of T. Where T may have overflown or be NaN it may be anything that f' is, but relu's where T has one sign; formulas that multiply
    by T give NaN there, and where T² overflows, if they hold it."""
    slope = _slope(f, t)
    if f.name == "none":
        return Flow(slope, np.zeros_like(t), Reach.exactly(slope))
    anything = np.maximum(np.abs(slope), np.abs(1.0 - slope)) + OVERSHOOT * bool(f.function)
    nan = reach.odd if f.function else reach.nan | (reach.odd & (reach.low <= 0.0) & (reach.high > 0.0))
    moved = np.where(nan, anything, np.minimum(anything, _over(f, t, error, True) + _slope_limit(f, t, scalar)))
    if f.squares:
        root = math.sqrt(get_format(scalar).max)
        nan = nan | (reach.low <= -root) | (reach.high >= root)
    return Flow(slope, moved, Reach.around(slope, moved, nan))


def _through(g: Flow, factor: Flow, f: Activation | None = None) -> Flow:
    """The product of what flows back with a factor. relu's slope selects: where it is 0, so is the product, whatever g is."""
    size = np.abs(g.values)
    values = g.values * factor.values
    if f is not None and f.name == "relu":
        values = np.where(factor.values == 0, 0.0, values)
    error = np.where(factor.error == 0, 0.0, size * factor.error) + (np.abs(factor.values) + factor.error) * g.error
    return Flow(values, error, g.reach * factor.reach)


def _kept(flow: Flow, fmt: str, changed: bool) -> Flow:
    """After a device stored it in its format, where a step changed it."""
    if not changed:
        return flow
    return Flow(flow.values, flow.error + stored(np.abs(flow.values) + flow.error, fmt), flow.reach.stored(fmt))


def gradient_panels(output: str, problem: Gemm, flow: Upstream, contract: str) -> Iterator[Panel]:
    """Panels of "da", "db" (stored orientation), "dbias" or "dresidual": values and budgets."""
    if output == "dresidual":
        values = flow.residual.values
        yield Panel(0, values, np.where(np.isfinite(values), flow.residual.error, 0.0))
        return
    plain = _plain(problem)
    carried = _carried(output, plain, flow.product.error)
    # where a step may be another thing altogether, its error is no deviation that many elements share
    usual = _carried(output, plain, np.where(flow.product.reach.odd, np.inf, flow.product.error))
    for p in panels(_gradient(output, plain, flow.product.values), contract=contract):
        assert p.budget is not None
        assert p.typical is not None
        here = slice(p.first_row, p.first_row + len(p.values))
        allowed = [p.budget + LAMBDA * carried[here], p.typical + TYPICAL * usual[here]]
        budget, typical = (np.where(np.isfinite(p.values), np.where(np.isnan(v), np.inf, v), 0.0) for v in allowed)
        yield Panel(p.first_row, p.values, budget, typical=typical)


def gradient_reach(output: str, problem: Gemm, flow: Upstream, contract: str) -> Reach:
    """A gradient before it is stored: sums in any order of what flows back, their value where none overflows."""
    if output == "dresidual":
        return flow.residual.reach
    everything = slice(None)
    g, alpha = flow.product.reach, Reach.exactly(np.full((1, 1), problem.scalars[0]))
    if output == "dbias":
        found, turned = g.total(0), False
    elif output == "da":
        found, turned = (g @ Reach.exactly(problem.b_values(everything, everything).T)) * alpha, problem.layout[0] == "t"
    else:
        found, turned = (Reach.exactly(problem.a_values(everything, everything).T) @ g) * alpha, problem.layout[1] == "t"
    whole = list(gradient_panels(output, problem, flow, contract))
    values, error = (np.concatenate([v for p in whole if (v := getattr(p, name)) is not None]) for name in ("values", "budget"))
    sums = found.in_sums(parse_contract(contract).largest or np.inf)
    return (sums.transposed if turned else sums).narrowed(values, error)


def undetermined(output: str, problem: Gemm, flow: Upstream) -> Flags:
    """Elements of a gradient whose NaN may come from the slope that the truth took (0·Inf where another is Inf) and from no NaN besides;
    and whose Inf comes from what such a slope lets through."""
    if output == "dresidual":
        return np.zeros(flow.residual.values.shape, np.bool_)
    back = flow.product
    certain = np.where(back.reach.odd & (back.reach.low < back.reach.high), 0.0, back.values)
    truth, rest = (_gradient_of(output, problem, values) for values in (back.values, certain))
    return np.where(np.isnan(truth), _slopes_alone(output, problem, flow), np.isfinite(rest))


def _gradient_of(output: str, problem: Gemm, product: Values) -> Values:
    return np.concatenate([p.values for p in panels(_gradient(output, _plain(problem), product))])


def _slopes_alone(output: str, problem: Gemm, flow: Upstream) -> Flags:
    everything = slice(None)
    axis = 1 if output == "da" else 0
    slopes: Flags = np.any(flow.several, axis) & ~np.any(np.isnan(flow.product.values) & ~flow.several, axis)
    if output == "dbias":
        return np.asarray(slopes[None, :])
    if output == "da":
        odd: Flags = np.any(np.isnan(problem.b_values(everything, everything)), axis=1)
        found, turned = slopes[:, None] & ~odd[None, :], problem.layout[0] == "t"
    else:
        odd = np.any(np.isnan(problem.a_values(everything, everything)), axis=0)
        found, turned = ~odd[:, None] & slopes[None, :], problem.layout[1] == "t"
    return np.asarray(found.T if turned else found)


def _plain(problem: Gemm) -> Gemm:
    """The product without bias."""
    return Gemm(problem.a, problem.b, problem.layout, problem.alpha, a_scale=problem.a_scale, b_scale=problem.b_scale)


def _gradient(output: str, plain: Gemm, product: Values) -> Gemm:
    return gradient(output, plain, Coded(encode(product, "float64"), "float64"))


def _carried(output: str, problem: Gemm, error: Values) -> Values:
    """Standard deviation of what errors of the product's gradient add to sums of products with them, in the output's stored orientation."""
    everything = slice(None)
    with np.errstate(invalid="ignore", over="ignore"):
        variance = error**2 / 3.0  # of a number anywhere within ± error
        if output == "dbias":
            deviation: Values = np.sqrt(variance.sum(axis=0, keepdims=True))
            return deviation
        if output == "da":
            found, turned = variance @ problem.b_values(everything, everything).T ** 2, problem.layout[0] == "t"
        else:
            found, turned = problem.a_values(everything, everything).T ** 2 @ variance, problem.layout[1] == "t"
        deviation = abs(problem.scalars[0]) * np.sqrt(found)
    return deviation.T if turned else deviation
