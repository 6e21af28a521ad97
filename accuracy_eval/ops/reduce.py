"""Reductions over the last axis or the first, each its own op: y = f(x), x [m, n], forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import default_contract, parse_contract
from accuracy_eval.cpu_ref.overflow import sum_overflows
from accuracy_eval.cpu_ref.reduce import REDUCTIONS, Reduction, log_steps, reduce, reduce_gradient, reduce_limit, sum_budget
from accuracy_eval.cpu_ref.reduce_gradient import gradient_limit, gradient_typical
from accuracy_eval.cpu_ref.weight_factors import Weights, stored_logs
from accuracy_eval.formats import Format, Values, arithmetic_format, decode, get_format, ulp
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.gemm import overflowing
from accuracy_eval.ops.panels import Lines, Part, by_rows, turned
from accuracy_eval.ops.spec import (
    FLOATS,
    Encoding,
    Exempt,
    Inputs,
    Operand,
    OpSpec,
    Option,
    Output,
    Reference,
    Size,
    operand_formats,
    option_of,
    output_format,
)
from accuracy_eval.ops.weights import with_factors
from accuracy_eval.records import Case, Coded

# (torch, x, axis, keyword arguments: out= where the function takes it) -> result
TORCH: dict[str, Callable[[Any, Any, int, dict[str, Any]], Any]] = {
    "sum": lambda torch, x, axis, out: torch.sum(x, axis, **out),
    "mean": lambda torch, x, axis, out: torch.mean(x, axis, **out),
    "max": lambda torch, x, axis, out: torch.amax(x, axis, **out),
    "logsumexp": lambda torch, x, axis, out: torch.logsumexp(x, axis, **out),
    "softmax": lambda torch, x, axis, out: torch.softmax(x, axis),
    "norm": lambda torch, x, axis, out: torch.linalg.vector_norm(x, 2, axis, **out),
}
AXES = {"last": -1, "first": 0}
OPTIONS = {"axis": Option("last", "what is reduced: the n elements of each row, or the m of each column", tuple(AXES))}

Rows = slice | NDArray[np.int64]


class _RowsOf(Protocol):
    """Values of some rows of an operand."""

    def __call__(self, name: str, which: Rows, /) -> Values: ...


def axis_of(case: Case) -> str:
    """Which axis a case reduces, a key of AXES: the last one of ops that have no such option."""
    return str(option_of(OPTIONS, case, "axis"))


def _operands(r: Reduction, case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    x = Operand("x", (case.dims["m"], case.dims["n"]), operand_formats(case, 1, encoding)[0], ("m", "n"))
    if case.direction == "fwd":
        return (x,)
    kept = x.axes if r.keeps_axis else ("m",) if axis_of(case) == "last" else ("n",)
    return x, Operand("grad_result", tuple(case.dims[a] for a in kept), x.format, kept)


def _outputs(r: Reduction, case: Case, encoding: Encoding) -> tuple[Output, ...]:
    x = _operands(r, case, encoding)[0]
    if case.direction == "bwd":
        return (Output("dx", x.shape, x.format),)
    shape = x.shape if r.keeps_axis else x.shape[:1] if axis_of(case) == "last" else x.shape[1:]
    return (Output("result", shape, output_format(case, x.format, encoding)),)


def _torch(r: Reduction, torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    axis = AXES[axis_of(case)]
    if case.direction == "fwd":
        return {"result": TORCH[r.name](torch, t["x"], axis, {"out": out["result"]} if "result" in out else {})}
    return gradients(torch, lambda x: TORCH[r.name](torch, x["x"], axis, {}), {"x": t["x"]}, t["grad_result"])


def _reference(r: Reduction, case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    """Columns are rows of the transposed operands."""
    (output,) = _outputs(r, case, encoding)
    if axis_of(case) == "first":
        flipped = {name: Coded(c.codes.T, c.format) for name, c in inputs.items()}
        found = _along_rows(r, case, flipped, replace(output, shape=output.shape[::-1]), contract)
        whole = turned(found, output) if len(output.shape) > 1 else found
        return {output.name: _sharing(r, case, flipped, whole, along_first=True)}
    return {output.name: _sharing(r, case, inputs, _along_rows(r, case, inputs, output, contract), along_first=False)}


def _sharing(r: Reduction, case: Case, inputs: Inputs, found: Reference, *, along_first: bool) -> Reference:
    """What all weights of a logsumexp's gradient in 16 bits share beside it; rows of the inputs are what is reduced."""
    if r.name != "logsumexp" or case.direction == "fwd" or get_format(found.format).bits > 16:
        return found

    def weights() -> Weights:
        x, grad = (decode(inputs[name].codes, inputs[name].format) for name in ("x", "grad_result"))
        return Weights(x, grad, 0.0, np.ones((len(x), 1), np.bool_), get_format(found.format), stored_logs)

    return with_factors(found, weights, turned=along_first)


def _along_rows(r: Reduction, case: Case, inputs: Inputs, output: Output, contract: str) -> Reference:
    x = inputs["x"]

    def rows(name: str, which: Rows) -> Values:
        return decode(inputs[name].codes[which], inputs[name].format)

    def forward(first: int, end: int) -> Part:
        values = rows("x", slice(first, end))
        truth = reduce(r, values)
        return truth, _allowed(r, values, truth, output.format, contract)

    def backward(first: int, end: int) -> Lines:
        values, grad = (rows(name, slice(first, end)) for name in ("x", "grad_result"))
        truth = reduce_gradient(r, values, grad)
        limit = gradient_limit(r, values, grad, truth, output.format)
        typical = gradient_typical(r, values, grad, truth, output.format)
        return (truth, limit) if typical is None else (truth, limit, typical)

    if case.direction == "fwd" and r.budgeted:
        exempt = overflowing(sum_overflows(partial(rows, "x"), contract), contract, output.format)
    else:
        outside = _EXEMPT.get((r.name, case.direction))
        exempt = outside(rows, output.format) if outside else None
    found = by_rows(output, contract, x.shape, forward if case.direction == "fwd" else backward, exempt=exempt)
    return replace(found, alike="lines" if r.name == "softmax" else None)  # what others store is nearly the same for all rows


def _allowed(r: Reduction, x: Values, truth: Values, out: str, contract: str) -> Values:
    """Largest error before output rounding."""
    if r.budgeted:
        return sum_budget(x, parse_contract(contract), mean=r.name == "mean")
    with np.errstate(invalid="ignore"):
        # the limit covers the output's own rounding; what may be off before it is half an ulp less
        return np.maximum(reduce_limit(r, x, truth, out) - ulp(truth, out) / 2, 0.0) + log_steps(r, x, truth, out)


def _norm_outside(rows: _RowsOf, fmt: str) -> Exempt:
    """0 where every square underflows, Inf where their sum overflows."""
    inner = arithmetic_format(fmt)

    def mask(codes: NDArray[Any], values: Values, first_row: int) -> NDArray[np.bool_]:
        found = decode(codes, fmt)
        at = np.flatnonzero(np.isfinite(values) & ((found == 0) & (values > 0) | np.isposinf(found)))
        out = np.zeros(values.shape, np.bool_)
        for i in at:
            x = np.abs(rows("x", np.array([i])))
            out.flat[i] = (x**2 < inner.smallest_normal).all() if found.flat[i] == 0 else _overflows(values.flat[i], inner)
        return out

    return Exempt(mask, "elements 0 or Inf: every square underflows there, or their sum overflows")


def _overflows(norm: Any, inner: Format) -> Any:
    """Whether a sum of squares may leave the range of the arithmetic."""
    return np.abs(norm) >= (1 - 2.0**-10) * np.sqrt(inner.max)


def _norm_gradient_outside(rows: _RowsOf, fmt: str) -> Exempt:
    """Rows whose norm is not known to half of itself, or overflows, or by which the gradient cannot be divided in the operands' format."""
    inner, kept = arithmetic_format(fmt), get_format(fmt)
    norm = REDUCTIONS["norm"]

    def mask(codes: NDArray[Any], values: Values, first_row: int) -> NDArray[np.bool_]:
        which = slice(first_row, first_row + len(codes))
        x, grad = rows("x", which), rows("grad_result", which)
        y = reduce(norm, x)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            unknown = 2 * reduce_limit(norm, x, y, fmt) >= y
            outside = _overflows(y, inner) | (y >= kept.max) | (np.abs(grad) / y >= kept.max / 2)
        return np.broadcast_to((np.isfinite(y) & (y > 0) & (unknown | outside))[:, None], codes.shape)

    return Exempt(mask, "elements of rows whose norm, its squares or its quotient leave the range of their format: anything is right")


def _weights_of_infinity(rows: _RowsOf, fmt: str) -> Exempt:
    """Beside +Inf the weight of every other element is 0, or NaN as e^(x − Inf) / e^(Inf − Inf) is."""

    def mask(codes: NDArray[Any], values: Values, first_row: int) -> NDArray[np.bool_]:
        x = rows("x", slice(first_row, first_row + len(codes)))
        return np.asarray(np.isposinf(x).any(axis=1, keepdims=True) & (x < np.inf) & (decode(codes, fmt) == 0))

    return Exempt(mask, "elements 0 beside an Inf of their row: NaN and 0 are both right")


def _centred_overflow(rows: _RowsOf, fmt: str) -> Exempt:
    """grad − Σ grad·s may overflow where the weight that multiplies it is small or 0."""
    inner, softmax = arithmetic_format(fmt), REDUCTIONS["softmax"]

    def mask(codes: NDArray[Any], values: Values, first_row: int) -> NDArray[np.bool_] | None:
        odd = ~np.isfinite(decode(codes, fmt)) & np.isfinite(values)
        if not odd.any():
            return None
        which = slice(first_row, first_row + len(codes))
        grad = rows("grad_result", which)
        with np.errstate(invalid="ignore", over="ignore"):
            dot = (np.abs(grad) * reduce(softmax, rows("x", which))).sum(axis=1, keepdims=True)
            return np.asarray(odd & (np.abs(grad) + dot >= (1 - 2.0**-10) * inner.max))

    return Exempt(mask, "elements Inf or NaN: grad − Σ grad·softmax may overflow there")


_EXEMPT: dict[tuple[str, str], Callable[[_RowsOf, str], Exempt]] = {
    ("norm", "fwd"): _norm_outside,
    ("norm", "bwd"): _norm_gradient_outside,
    ("logsumexp", "bwd"): _weights_of_infinity,
    ("softmax", "bwd"): _centred_overflow,
}


def _refuse(r: Reduction, case: Case) -> str | None:
    if r.name == "max" and not case.dims["n" if axis_of(case) == "last" else "m"]:
        return "max of an empty axis has no value"
    return None


def _op(r: Reduction) -> OpSpec:
    return OpSpec(
        name=r.name,
        family="reduce",
        equation=f"y = {r.formula.split(';')[0]}",
        dims=(("m", "n"),),
        sizes={"m": Size("rows", 64), "n": Size("columns", 1000)},
        formats=FLOATS,
        operands=partial(_operands, r),
        outputs=partial(_outputs, r),
        torch=partial(_torch, r),
        reference=partial(_reference, r),
        contract=lambda case: default_contract((case.format,)) if r.budgeted else "",
        options=OPTIONS,
        directions=("fwd", "bwd"),
        refuse=partial(_refuse, r),
    )


REDUCE: tuple[OpSpec, ...] = tuple(_op(r) for r in REDUCTIONS.values())
