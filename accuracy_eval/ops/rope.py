"""rope: pairs (x[i], x[i + d/2]) of every head turned by the angle of their position, forward and backward.

y₁ = x₁·cos − x₂·sin, y₂ = x₂·cos + x₁·sin; the gradient turns back. cos and sin are operands: an angle's own error is not the op's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import Values, arithmetic_format, decode, get_format, ulp
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.panels import whole
from accuracy_eval.ops.spec import (
    FLOATS,
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Output,
    Reference,
    Size,
    float_contract,
    operand_formats,
    reaching,
)
from accuracy_eval.records import Case


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    s, h, d, fmt = *(case.dims[x] for x in "shd"), operand_formats(case, 1, encoding)[0]
    turned = Operand("x" if case.direction == "fwd" else "grad_y", (s, h, d), fmt, ("s", "h", "d"))
    return turned, *(Operand(n, (s, d // 2), fmt, ("s", "d")) for n in ("cos", "sin"))


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    turned = _operands(case, encoding)[0]
    return (Output("y" if case.direction == "fwd" else "dx", turned.shape, turned.format),)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """Halves turned as model code writes it: x·cos + (−x₂, x₁)·sin, in the operands' format."""
    cos, sin = (torch.cat((t[n], t[n]), -1)[:, None, :] for n in ("cos", "sin"))

    def turn(x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    if case.direction == "fwd":
        return {"y": turn(t["x"])}
    return gradients(torch, lambda leaf: turn(leaf["x"]), {"x": torch.zeros_like(t["grad_y"])}, t["grad_y"])


def _factors(case: Case, inputs: Inputs) -> tuple[tuple[Values, Values], tuple[Values, Values]]:
    """Both factors of each of the two products whose sum is the result, [s, h, d] and [s, 1, d]."""
    x, cos, sin = (decode(inputs[o.name].codes, o.format) for o in _operands(case, "ocp"))
    sin = sin if case.direction == "fwd" else -sin
    half = x.shape[2] // 2
    turned = np.concatenate([-x[:, :, half:], x[:, :, :half]], 2)
    c, s = (np.concatenate([v, v], 1)[:, None] for v in (cos, sin))
    return (x, c), (turned, s)


@np.errstate(over="ignore", invalid="ignore")  # Inf − Inf and 0·Inf are NaN
def _turned(case: Case, inputs: Inputs) -> tuple[Values, Values]:
    """The result and the error of two products and their sum, each of which may be rounded to the operands' format, doubled."""
    fmt = get_format(inputs["cos"].format)
    products = [x * y for x, y in _factors(case, inputs)]
    unit = arithmetic_format(fmt).eps
    error = sum(ulp(p, fmt) if fmt.bits <= 16 else np.maximum(2 * unit * np.abs(p), fmt.smallest_subnormal) for p in products)
    total: Values = products[0] + products[1]
    return total, error + unit * np.abs(total)


def _reach(case: Case, inputs: Inputs, fmt: str) -> Reach:
    """Inf and NaN of products that overflow in the operands' format before they are added."""
    first, second = ((Reach.exactly(x) * Reach.exactly(y)).stored(fmt) for x, y in _factors(case, inputs))
    return (first + second).rows


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    (output,) = _outputs(case, encoding)
    exempt = reaching(partial(_reach, case, inputs, output.format), output.format)
    return whole((output,), contract, lambda: {output.name: _turned(case, inputs)}, exempt=lambda _: exempt, alike="elements")


ROPE = OpSpec(
    name="rope",
    family="rope",
    equation="(y₁, y₂) = (x₁·cos − x₂·sin, x₂·cos + x₁·sin)",
    dims=(("s", "h", "d"),),
    sizes={"s": Size("positions", 128), "h": Size("heads", 8), "d": Size("elements of a head, even", 64)},
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=float_contract,
    directions=("fwd", "bwd"),
    refuse=lambda case: f"d={case.dims['d']} is odd; elements turn in pairs" if case.dims["d"] % 2 else None,
)
