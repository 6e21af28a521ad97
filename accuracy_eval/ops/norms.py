"""layernorm and rmsnorm over the last axis, x [m, n], forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from accuracy_eval.cpu_ref.norms import Norm, Result, backward, forward
from accuracy_eval.formats import decode
from accuracy_eval.ops.spec import (
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Output,
    Panel,
    Reference,
    bounded,
    operand_formats,
    reaching,
    rows_and_columns,
)  # fmt: skip
from accuracy_eval.records import Case

FORMATS = ("float32", "float64", "float16", "bfloat16")
EPS = 1e-5


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
    shape, eps = (case.dims["n"],), float(case.option("eps", EPS))
    if centred:
        return torch.nn.functional.layer_norm(t["x"], shape, t["weight"], t["bias"], eps)
    return torch.nn.functional.rms_norm(t["x"], shape, t["weight"], eps)


def _torch(centred: bool, torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.direction == "fwd":
        return {"y": _expression(centred, torch, case, t)}
    leaves = {n: t[n].detach().requires_grad_() for n in t if n != "grad_y"}
    found = torch.autograd.grad(_expression(centred, torch, case, leaves), list(leaves.values()), t["grad_y"])
    return {f"d{n}": g for n, g in zip(leaves, found, strict=True)}


def _reference(centred: bool, case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    values = {n: decode(c.codes, c.format) for n, c in inputs.items()}
    problem = Norm(values["x"], values["weight"], values.get("bias"), centred, float(case.option("eps", EPS)), inputs["x"].format)

    @lru_cache(maxsize=1)
    def found() -> dict[str, Result]:
        return {"y": forward(problem)} if case.direction == "fwd" else backward(problem, values["grad_y"])

    def panels(output: Output) -> Iterator[Panel]:
        result = found()[output.name]
        yield Panel(0, *(v.reshape(rows_and_columns(output.shape)) for v in bounded(result.values, result.budget)))

    def reference(output: Output) -> Reference:
        exempt = reaching(lambda: found()[output.name].reach().rows, output.format)
        return Reference("values", output.format, output.shape, contract, partial(panels, output), exempt=exempt)

    return {o.name: reference(o) for o in _outputs(centred, case, encoding)}


def _op(name: str, equation: str, *, centred: bool) -> OpSpec:
    return OpSpec(
        name=name,
        family="norm",
        equation=equation,
        dims=(("m", "n"),),
        formats=FORMATS,
        operands=partial(_operands, centred),
        outputs=partial(_outputs, centred),
        torch=partial(_torch, centred),
        reference=partial(_reference, centred),
        contract=lambda case: "fp64" if case.format == "float64" else "fp32acc",
        options={"eps": EPS},
        directions=("fwd", "bwd"),
        refuse=lambda case: None if case.dims["n"] else "a norm of an empty axis has no value",
    )


NORMS = (
    _op("layernorm", "y = (x − mean x) / √(var x + eps) · w + b", centred=True),
    _op("rmsnorm", "y = x / √(mean x² + eps) · w", centred=False),
)
