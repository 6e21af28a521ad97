"""Special functions, each its own op: y = f(x), forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from accuracy_eval.cpu_ref.special import evaluate, limit
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS, Function
from accuracy_eval.formats import decode, get_format, ulp
from accuracy_eval.ops.panels import Part, by_rows
from accuracy_eval.ops.spec import (
    FLOATS,
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Output,
    Reference,
    Size,
    operand_formats,
    output_format,
    rows_and_columns,
)
from accuracy_eval.records import Case

# (torch, operands, keyword arguments: out= where the function takes it) -> result
Expression = Callable[[Any, list[Any], dict[str, Any]], Any]


def _named(name: str) -> Expression:
    return lambda torch, x, out: getattr(torch, name)(*x, **out)


def _functional(name: str, **fixed: Any) -> Expression:
    return lambda torch, x, out: getattr(torch.nn.functional, name)(*x, **fixed)


TORCH: dict[str, Expression] = {
    **{name: _named(name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "erf", "sin", "cos",
        "pow",
    )},
    "gelu": _functional("gelu"),
    "gelu-tanh": _functional("gelu", approximate="tanh"),
    "silu": _functional("silu"),
    "softplus": _functional("softplus"),
}  # fmt: skip


def operand_names(function: Function) -> tuple[str, ...]:
    return ("x", "y")[: function.arity]


def _op(function: Function) -> OpSpec:
    def operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
        shape, letters = tuple(size for _, size in case.shape), tuple(letter for letter, _ in case.shape)
        formats = operand_formats(case, function.arity, encoding)
        names = operand_names(function)
        return tuple(Operand(n, shape, f, letters, d) for n, f, d in zip(names, formats, function.turbo, strict=True))

    def outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
        x = operands(case, encoding)[0]
        return (Output("result", x.shape, output_format(case, x.format, encoding)),)

    def expression(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        keep = {"out": out["result"]} if "result" in out else {}
        return {"result": TORCH[function.name](torch, [t[n] for n in operand_names(function)], keep)}

    def reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
        output = outputs(case, encoding)[0]
        given = [inputs[n] for n in operand_names(function)]
        views = [g.codes.reshape(rows_and_columns(g.shape)) for g in given]

        def part(first: int, end: int) -> Part:
            x, *more = (decode(v[first:end], g.format) for v, g in zip(views, given, strict=True))
            truth = evaluate(function, x, *more)
            return truth, allowed(function, x, truth, output.format)

        return {"result": replace(by_rows(output, contract, output.shape, part), alike="elements")}

    return OpSpec(
        name=function.name,
        family="special",
        equation=f"y = {function.formula.split(';')[0]}",
        dims=(("n",), ("m", "n")),
        sizes={"m": Size("rows", 64), "n": Size("elements, of each row where there are rows", 1000)},
        formats=FLOATS,
        operands=operands,
        outputs=outputs,
        torch=expression,
        reference=reference,
        contract=lambda case: "",
    )


def allowed(function: Function, x: np.ndarray[Any, Any], truth: np.ndarray[Any, Any], fmt: str) -> np.ndarray[Any, Any]:
    """Largest error before output rounding: the documented limit less the half ulp that rounding itself may add, at least 0."""
    with np.errstate(invalid="ignore"):
        room = np.maximum(limit(function, x, truth, fmt) - ulp(truth, get_format(fmt)) / 2, 0.0)
        return np.where(np.isfinite(truth), room, 0.0)


SPECIAL: tuple[OpSpec, ...] = tuple(_op(f) for f in FUNCTIONS.values() if f.name in TORCH)
