"""layernorm and rmsnorm over the last axis, x [m, n], forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.norms import Norm, Result, backward, forward
from accuracy_eval.formats import decode
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.panels import Part, whole
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
    float_contract,
    operand_formats,
    option_of,
    reaching,
)
from accuracy_eval.records import Case

OPTIONS = {"eps": Option(1e-5, "added to the variance or mean square")}


def eps_of(case: Case) -> float:
    return float(option_of(OPTIONS, case, "eps"))


def _operands(centred: bool, case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    m, n, fmt = case.dims["m"], case.dims["n"], operand_formats(case, 1, encoding)[0]
    found = [Operand("x", (m, n), fmt, ("m", "n")), Operand("weight", (n,), fmt, ("n",))]
    found += [Operand("bias", (n,), fmt, ("n",))] if centred else []
    return (*found, *((Operand("grad_y", (m, n), fmt, ("m", "n")),) if case.direction == "bwd" else ()))


def _outputs(centred: bool, case: Case, encoding: Encoding) -> tuple[Output, ...]:
    given = _operands(centred, case, encoding)
    if case.direction == "fwd":
        return (Output("y", given[0].shape, given[0].format),)
    return tuple(Output(f"d{o.name}", o.shape, o.format) for o in given[:-1])


def _expression(centred: bool, torch: Any, case: Case, t: Mapping[str, Any]) -> Any:
    shape, eps = (case.dims["n"],), eps_of(case)
    if centred:
        return torch.nn.functional.layer_norm(t["x"], shape, t["weight"], t["bias"], eps)
    return torch.nn.functional.rms_norm(t["x"], shape, t["weight"], eps)


def _torch(centred: bool, torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.direction == "fwd":
        return {"y": _expression(centred, torch, case, t)}
    leaves = {n: t[n] for n in t if n != "grad_y"}
    return gradients(torch, lambda tracked: _expression(centred, torch, case, tracked), leaves, t["grad_y"])


def _reference(centred: bool, case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    values = {n: decode(c.codes, c.format) for n, c in inputs.items()}
    problem = Norm(values["x"], values["weight"], values.get("bias"), centred, eps_of(case), inputs["x"].format)

    @cache
    def results() -> dict[str, Result]:
        return {"y": forward(problem)} if case.direction == "fwd" else backward(problem, values["grad_y"])

    def parts() -> dict[str, Part]:
        return {name: (r.values, r.budget) for name, r in results().items()}

    def exempt(output: Output) -> Exempt:
        def undetermined() -> NDArray[np.bool_]:
            found = results()[output.name].undetermined
            return np.zeros((1, 1), np.bool_) if found is None else found

        return reaching(lambda: results()[output.name].reach().rows, output.format, undetermined)

    return whole(_outputs(centred, case, encoding), contract, parts, exempt=exempt, alike="lines")


def _refuse(case: Case) -> str | None:
    if eps_of(case) < 0:
        return f"option eps={eps_of(case)}; allowed: 0 or more"
    return None if case.dims["n"] else "a norm of an empty axis has no value"


def _op(name: str, equation: str, *, centred: bool) -> OpSpec:
    return OpSpec(
        name=name,
        family="norm",
        equation=equation,
        dims=(("m", "n"),),
        sizes={"m": Size("rows", 64), "n": Size("columns", 1000)},
        formats=FLOATS,
        operands=partial(_operands, centred),
        outputs=partial(_outputs, centred),
        torch=partial(_torch, centred),
        reference=partial(_reference, centred),
        contract=float_contract,
        options=OPTIONS,
        directions=("fwd", "bwd"),
        refuse=_refuse,
    )


NORMS = (
    _op("layernorm", "y = (x − mean x) / √(var x + eps) · w + b", centred=True),
    _op("rmsnorm", "y = x / √(mean x² + eps) · w", centred=False),
)
