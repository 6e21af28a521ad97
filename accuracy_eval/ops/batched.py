"""batched_gemm: D[i] = op(A[i]) · op(B[i]) for every i of a batch, forward and backward. Tensors as stored: a [b, m, k] or [b, k, m]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.gemm import gradient, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.overflow import product_overflows, stacked
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.gemm import LAYOUTS, SIZES, overflowing
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.spec import FLOATS, Encoding, Inputs, Operand, OpSpec, Output, Panel, Reference, Size, operand_formats
from accuracy_eval.records import Case, Coded


def _tensor(case: Case, name: str, letters: str, fmt: str, *, turned: bool) -> Operand:
    axes = ("b", *(reversed(letters) if turned else letters))
    return Operand(name, tuple(case.dims[x] for x in axes), fmt, axes)


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    fa, fb = operand_formats(case, 2, encoding)
    a = _tensor(case, "a", "mk", fa, turned=case.layout[0] == "t")
    b = _tensor(case, "b", "kn", fb, turned=case.layout[1] == "t")
    return (a, b) if case.direction == "fwd" else (a, b, _tensor(case, "grad_d", "mn", fa, turned=False))


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    a, b, *_ = _operands(case, encoding)
    if case.direction == "fwd":
        return (Output("d", tuple(case.dims[x] for x in "bmn"), a.format),)
    return Output("da", a.shape, a.format), Output("db", b.shape, b.format)


def _product(torch: Any, case: Case, t: Mapping[str, Any], out: Any = None) -> Any:
    a = t["a"] if case.layout[0] == "n" else t["a"].transpose(1, 2)
    b = t["b"] if case.layout[1] == "n" else t["b"].transpose(1, 2)
    return torch.bmm(a, b) if out is None else torch.bmm(a, b, out=out)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.direction == "fwd":
        return {"d": _product(torch, case, t, out.get("d"))}
    return gradients(torch, lambda leaves: _product(torch, case, leaves), {n: t[n] for n in ("a", "b")}, t["grad_d"])


def _one(inputs: Inputs, name: str, index: int) -> Coded:
    return Coded(inputs[name].codes[index], inputs[name].format)


def _problems(case: Case, inputs: Inputs, output: str) -> list[Gemm]:
    products = [Gemm(_one(inputs, "a", i), _one(inputs, "b", i), case.layout) for i in range(case.dims["b"])]
    if case.direction == "fwd":
        return products
    return [gradient(output, p, _one(inputs, "grad_d", i)) for i, p in enumerate(products)]


def _panels(case: Case, inputs: Inputs, contract: str, output: Output) -> Iterator[Panel]:
    for i, problem in enumerate(_problems(case, inputs, output.name)):
        yield from of_product(panels(problem, contract=contract, out_format=output.format), first_row=i * problem.m)


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    found = {}
    for o in _outputs(case, encoding):
        sums = stacked([(i * p.m, product_overflows(p, contract)) for i, p in enumerate(_problems(case, inputs, o.name))])
        found[o.name] = Reference(
            "values", o.format, o.shape, contract, partial(_panels, case, inputs, contract, o), exempt=overflowing(sums, contract, o.format)
        )
    return found


BATCHED = OpSpec(
    name="batched_gemm",
    family="batched_gemm",
    equation="D[i] = op(A[i]) · op(B[i])",
    dims=(("b", "m", "n", "k"),),
    sizes={"b": Size("products", 4), **SIZES},
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=lambda case: default_contract(case.format.split("+")),
    layouts=LAYOUTS,
    directions=("fwd", "bwd"),
)
