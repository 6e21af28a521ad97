"""gemm_epilogue: Y = (f(alpha · A · B + bias) [· gate] [+ residual]) / output_scale, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.epilogue import ACTIVATIONS, Epilogue, epilogue_panels, epilogue_reach
from accuracy_eval.cpu_ref.epilogue_gradient import Upstream, gradient_panels, gradient_reach, undetermined, upstream
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import decode
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.gemm import SIZES
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.spec import (
    FLOATS,
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Option,
    Output,
    Panel,
    Reference,
    operand_formats,
    output_format,
    reaching,
)
from accuracy_eval.records import Case

OPTIONS = {
    "activation": Option("none", "f", tuple(ACTIVATIONS)),
    "gated": Option(False, "the product has 2·n columns: f of the first half times the second (up)"),
    "bias": Option(False, "adds operand bias before f"),
    "residual": Option(False, "adds operand residual [m, n] after f"),
    "alpha": Option(1.0, "factor of the product"),
    "output_scale": Option(1.0, "divides the result; over 0"),
}


def option(case: Case, name: str) -> Any:
    """The case's value of an option, else the default."""
    return GEMM_EPILOGUE.option(case, name)


def projected(case: Case) -> int:
    """Columns of the product: twice those of the result where the epilogue is gated."""
    return case.dims["n"] * (2 if option(case, "gated") else 1)


def problem_of(case: Case, inputs: Inputs) -> Gemm:
    """The product before the epilogue: operands as stored, `a_scale` and `b_scale` where the operands have scales."""
    scales = {n: decode(inputs[n].codes, inputs[n].format) if n in inputs else None for n in ("a_scale", "b_scale")}
    alpha, bias = float(option(case, "alpha")), inputs.get("bias")
    return Gemm(inputs["a"], inputs["b"], case.layout or "nn", alpha, bias=bias, a_scale=scales["a_scale"], b_scale=scales["b_scale"])


def epilogue_of(case: Case, inputs: Inputs, rounded: str) -> Epilogue:
    """The steps after the product; `rounded` as in `Epilogue`."""
    return Epilogue(
        str(option(case, "activation")), bool(option(case, "gated")), inputs.get("residual"), float(option(case, "output_scale")), rounded
    )


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    m, n, k, columns = *(case.dims[d] for d in "mnk"), projected(case)
    fa, fb = operand_formats(case, 2, encoding)
    fd = output_format(case, fa, encoding)
    more = [
        Operand("bias", (columns,), fd, ("n",)) if option(case, "bias") else None,
        Operand("residual", (m, n), fd, ("m", "n")) if option(case, "residual") and case.direction == "fwd" else None,
        Operand("grad_y", (m, n), fd, ("m", "n")) if case.direction == "bwd" else None,
    ]
    a = Operand("a", (m, k), fa, ("m", "k"), transposed=case.layout[0] == "t")
    b = Operand("b", (columns, k), fb, ("n", "k"), transposed=case.layout[1] == "n")
    return (a, b, *(o for o in more if o))


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    operands = {o.name: o for o in _operands(case, encoding)}
    if case.direction == "fwd":
        return (Output("y", (case.dims["m"], case.dims["n"]), output_format(case, operands["a"].format, encoding)),)
    given = [operands[n] for n in ("a", "b", "bias") if n in operands]
    grads = [Output(f"d{o.name}", o.stored, o.format) for o in given]
    if option(case, "residual"):
        grads.append(Output("dresidual", operands["grad_y"].shape, operands["grad_y"].format))
    return tuple(grads)


TORCH_ACTIVATIONS: dict[str, Any] = {
    "none": lambda F, x: x,
    "relu": lambda F, x: F.relu(x),
    "gelu-tanh": lambda F, x: F.gelu(x, approximate="tanh"),
    "gelu-erf": lambda F, x: F.gelu(x),
    "silu": lambda F, x: F.silu(x),
}


def expression(torch: Any, case: Case, t: Mapping[str, Any]) -> Any:
    """Y as a user of the framework writes it, step by step."""
    a = t["a"] if case.layout[0] == "n" else t["a"].t()
    b = t["b"] if case.layout[1] == "n" else t["b"].t()
    alpha = option(case, "alpha")
    if "bias" in t:
        y = torch.addmm(t["bias"], a, b, alpha=alpha)
    else:
        y = torch.mm(a, b)
        y = y * alpha if alpha != 1.0 else y
    activation = TORCH_ACTIVATIONS[str(option(case, "activation"))]
    if option(case, "gated"):
        gate, up = y.chunk(2, dim=-1)
        y = activation(torch.nn.functional, gate) * up
    else:
        y = activation(torch.nn.functional, y)
    y = y + t["residual"] if "residual" in t else y
    return y / option(case, "output_scale") if option(case, "output_scale") != 1.0 else y


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.direction == "fwd":
        return {"y": expression(torch, case, t)}
    leaves = {name: t[name] for name in ("a", "b", "bias") if name in t}
    if option(case, "residual"):
        leaves["residual"] = torch.zeros_like(t["grad_y"])
    return gradients(torch, lambda tracked: expression(torch, case, tracked), leaves, t["grad_y"])


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    problem = problem_of(case, inputs)
    outputs = _outputs(case, encoding)
    if case.direction == "fwd":
        (y,) = outputs
        epilogue = epilogue_of(case, inputs, y.format)
        exempt = reaching(partial(epilogue_reach, problem, epilogue, contract), y.format) if contract else None
        forward = partial(_forward, problem, epilogue, contract)
        return {"y": Reference("values", y.format, y.shape, contract, forward, exempt=exempt, alike="elements")}
    grad = inputs["grad_y"]

    @lru_cache(maxsize=1)
    def flow() -> Upstream:  # one forward pass serves every gradient
        return upstream(problem, epilogue_of(case, inputs, grad.format), grad, contract)

    def panels(output: Output) -> Iterator[Panel]:
        return of_product(gradient_panels(output.name, problem, flow(), contract))

    def reference(output: Output) -> Reference:
        exempt = reaching(
            lambda: gradient_reach(output.name, problem, flow(), contract),
            output.format,
            lambda: undetermined(output.name, problem, flow()),
        )
        return Reference("values", output.format, output.shape, contract, lambda: panels(output), exempt=exempt, alike="lines")

    return {o.name: reference(o) for o in outputs}


def _forward(problem: Gemm, epilogue: Epilogue, contract: str) -> Iterator[Panel]:
    return of_product(epilogue_panels(problem, epilogue, contract=contract))


def _refuse(case: Case) -> str | None:
    if not option(case, "output_scale") > 0:
        return f"output_scale={option(case, 'output_scale')}; it divides the result: allowed is a number over 0"
    if case.out_format and case.out_format != case.format:
        return f"output {case.out_format} from {case.format} operands; allowed: the operands' own format"
    return None


GEMM_EPILOGUE = OpSpec(
    name="gemm_epilogue",
    family="gemm_epilogue",
    equation="Y = (f(alpha · op(A) · op(B) + bias) [· up] [+ residual]) / output_scale",
    dims=(("m", "n", "k"),),
    sizes=SIZES,
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=lambda case: default_contract(case.format.split("+")),
    layouts=("nt", "nn", "tn", "tt"),
    options=OPTIONS,
    directions=("fwd", "bwd"),
    refuse=_refuse,
)
