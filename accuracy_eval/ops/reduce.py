"""Reductions over the last axis, each its own op: y = f(x), x [m, n]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from accuracy_eval.contracts import default_contract, parse_contract
from accuracy_eval.cpu_ref.overflow import sum_overflows
from accuracy_eval.cpu_ref.reduce import REDUCTIONS, Reduction, reduce, reduce_limit, sum_budget
from accuracy_eval.formats import Values, decode, get_format, ulp
from accuracy_eval.ops.gemm import overflowing
from accuracy_eval.ops.spec import (
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Output,
    Panel,
    Reference,
    operand_formats,
    output_format,
    row_blocks,
    rows_and_columns,
)
from accuracy_eval.records import Case

FORMATS = ("float32", "float64", "float16", "bfloat16")

# (torch, x, keyword arguments: out= where the function takes it) -> result
TORCH: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "sum": lambda torch, x, out: torch.sum(x, -1, **out),
    "mean": lambda torch, x, out: torch.mean(x, -1, **out),
    "max": lambda torch, x, out: torch.amax(x, -1, **out),
    "logsumexp": lambda torch, x, out: torch.logsumexp(x, -1, **out),
    "softmax": lambda torch, x, out: torch.softmax(x, -1),
}


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    return (Operand("x", (case.dims["m"], case.dims["n"]), operand_formats(case, 1, encoding)[0], ("m", "n")),)


def _outputs(r: Reduction, case: Case, encoding: Encoding) -> tuple[Output, ...]:
    x = _operands(case, encoding)[0]
    return (Output("result", x.shape if r.keeps_axis else x.shape[:1], output_format(case, x.format, encoding)),)


def _torch(r: Reduction, torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    return {"result": TORCH[r.name](torch, t["x"], {"out": out["result"]} if "result" in out else {})}


def _reference(r: Reduction, case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    output, x = _outputs(r, case, encoding)[0], inputs["x"]

    def panels() -> Iterator[Panel]:
        parts = list(_parts(r, x.codes, x.format, output.format, contract))
        if r.keeps_axis:
            yield from (Panel(first, truth, budget) for first, truth, budget in parts)
            return
        # one number a row: a single panel of one row holds them all
        truth, budget = (np.concatenate([p[i] for p in parts]) if parts else np.empty(0) for i in (1, 2))
        shape = rows_and_columns(output.shape)
        yield Panel(0, truth.reshape(shape), budget.reshape(shape))

    overflows = sum_overflows(lambda rows: decode(x.codes[rows], x.format), contract) if r.budgeted else None
    exempt = overflowing(overflows, contract, output.format)
    return {"result": Reference("values", output.format, output.shape, contract, panels, exempt=exempt)}


def _parts(r: Reduction, codes: Any, fmt: str, out: str, contract: str) -> Iterator[tuple[int, Values, Values]]:
    """(first row, truth, budget) of blocks of rows of x."""
    for first, end in row_blocks(codes.shape):
        values = decode(codes[first:end], fmt)
        truth = reduce(r, values)
        if r.budgeted:
            budget = sum_budget(values, parse_contract(contract), mean=r.name == "mean")
            yield first, truth, np.where(np.isfinite(truth), budget, 0.0)
        else:
            with np.errstate(invalid="ignore"):
                # the limit covers the output's own rounding; what may be off before it is half an ulp less
                budget = np.maximum(reduce_limit(r, values, truth, out) - ulp(truth, out) / 2, 0.0)
                budget = budget + _separate_steps(r, values, truth, out)
                yield first, truth, np.where(np.isfinite(truth), budget, 0.0)


def _separate_steps(r: Reduction, x: Values, truth: Values, out: str) -> Values | float:
    """What torch's 16-bit logsumexp may lose besides: it subtracts, exponentiates, sums and takes the log as ops of their own, each
    rounded to the operand's format. First order: u·Σ p·|x - m| (at most u·log n), u of exp, u of the sum, u·|log| of the log."""
    fmt = get_format(out)
    if r.name != "logsumexp" or fmt.bits > 16 or not x.size:
        return 0.0
    unit = fmt.eps / 2
    extra: Values = unit * (np.log(x.shape[1]) + 2.0 + np.abs(truth - x.max(axis=1)))
    return np.where(np.isfinite(truth), extra, 0.0)


def _op(r: Reduction) -> OpSpec:
    return OpSpec(
        name=r.name,
        family="reduce",
        equation=f"y = {r.formula.split(';')[0]}",
        dims=(("m", "n"),),
        formats=FORMATS,
        operands=_operands,
        outputs=partial(_outputs, r),
        torch=partial(_torch, r),
        reference=partial(_reference, r),
        contract=lambda case: default_contract(r.name, (case.format,)),
        refuse=lambda case: "max of an empty axis has no value" if r.name == "max" and case.dims["n"] == 0 else None,
    )


REDUCE: tuple[OpSpec, ...] = tuple(_op(r) for r in REDUCTIONS.values())
