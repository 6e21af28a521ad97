"""Causes in what follows a product: the result is computed again with one step left out or exchanged, and one change must explain it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from accuracy_eval.cpu_ref.epilogue import ACTIVATIONS, Epilogue, epilogue_panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Values, decode, encode, round_to, ulp
from accuracy_eval.ops.epilogue import epilogue_of, problem_of
from accuracy_eval.records import Case, Coded

REST = 0.01  # of the error's energy may remain unexplained, as for products
LARGEST = 1 << 28  # multiplications of one hypothesis: about 0.1 s

Change = tuple[str, Gemm, Epilogue]  # what happened, and the product and steps that it amounts to


def case_of(look: Look) -> Case:
    """The case, as far as problem and steps depend on it."""
    c = look.context
    return Case(c.op, (), c.layout, c.format, options=tuple(c.options.items()))


def epilogue_step(look: Look) -> Finding | None:
    """The one change of a step that gives what the output holds; None where none or several do."""
    c = look.context
    if c.op != "gemm_epilogue" or c.direction == "bwd" or not {"a", "b"} <= set(c.inputs) or look.whole is None:
        return None
    try:
        problem, steps = problem_of(case_of(look), c.inputs), epilogue_of(case_of(look), c.inputs, "")
    except UsageError:  # operands that do not fit each other are reported where they are read
        return None
    if problem.m * problem.n * problem.k > LARGEST:
        return None
    x, t = look.whole
    good = np.isfinite(x) & np.isfinite(t)
    energy, rounding = float(np.sum((x - t)[good] ** 2)), float(np.sum(ulp(t[good], look.fmt) ** 2)) / 12
    if not energy > 10 * rounding:
        return None
    allowed = REST * energy + 2 * rounding
    found = []
    for what, product, following in _changes(problem, steps):
        predicted = _predicted(product, following, look)
        if np.sum((x - predicted)[good] ** 2) <= allowed and look.explains(predicted):
            found.append(what)
    return Finding({"step": found[0]}) if len(found) == 1 else None


def _predicted(problem: Gemm, steps: Epilogue, look: Look) -> Values:
    exact = np.concatenate([p.values for p in epilogue_panels(problem, steps)])
    return round_to(np.nan_to_num(exact), look.fmt)


def _changes(problem: Gemm, steps: Epilogue) -> Iterator[Change]:
    if problem.bias is not None:
        yield "the bias is missing", replace(problem, bias=None), steps
    if steps.residual is not None:
        yield "the residual is missing", problem, replace(steps, residual=None)
    if problem.alpha != 1.0:
        yield "alpha is missing", replace(problem, alpha=1.0), steps
    if steps.output_scale != 1.0:
        yield "the output scale is missing", problem, replace(steps, output_scale=1.0)
        yield "the output is multiplied by its scale, not divided", problem, replace(steps, output_scale=1.0 / steps.output_scale)
    if steps.gated:
        yield "gate and up projections are exchanged", _exchanged(problem), steps
    for name in ACTIVATIONS:
        if name != steps.activation:
            what = "the activation is missing" if name == "none" else f"the activation is {name}, not {steps.activation}"
            yield what, problem, replace(steps, activation=name)


def _exchanged(problem: Gemm) -> Gemm:
    """The product with the two halves of its columns in each other's place."""
    half = problem.n // 2
    turned: Gemm = problem.take_columns(np.concatenate([np.arange(half, problem.n), np.arange(half)]))
    return turned


def linear(case: Case, inputs: dict[str, Coded]) -> Gemm | None:
    """An epilogue without activation and gate as one product with alpha, bias and C, all divided by the output scale."""
    problem, steps = problem_of(case, inputs), epilogue_of(case, inputs, "")
    if steps.activation != "none" or steps.gated:
        return None
    s = steps.output_scale
    bias = None if problem.bias is None else Coded(encode(decode(problem.bias.codes, problem.bias.format) / s, "float64"), "float64")
    c = steps.residual
    return replace(problem, alpha=problem.alpha / s, bias=bias, c=c, beta=0.0 if c is None else 1.0 / s)
