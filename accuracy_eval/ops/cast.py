"""cast: one rounding from one format to another, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accuracy_eval.formats import Codes, Overflow, decode, encode, get_format
from accuracy_eval.inputs.midway import midway
from accuracy_eval.ops.panels import one_code
from accuracy_eval.ops.spec import (
    Encoding,
    Inputs,
    Operand,
    OpSpec,
    Option,
    Output,
    Reference,
    Size,
    format_of,
    operand_formats,
    output_format,
    rows_and_columns,
)
from accuracy_eval.records import Case


def overflow_policy(case: Case, fmt: str) -> Overflow:
    """What happens beyond the largest finite value: the case's, else saturation for formats of at most 8 bits and Inf for the others."""
    stated = str(CAST.option(case, "overflow"))
    if stated != "auto":
        return stated  # type: ignore[return-value]
    return "inf" if get_format(fmt).bits > 8 else "saturate"


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    return (Operand("x", tuple(size for _, size in case.shape), operand_formats(case, 1, encoding)[0], tuple(d for d, _ in case.shape)),)


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    """In the exact lane numbers midway between two of the output; the same ones for either encoding."""
    if case.lane != "exact":
        return {}
    x = _operands(case, "ocp")[0]
    return {"x": midway(case.op, x.shape, x.format, output_format(case, x.format, "ocp"), case.seed)}


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    x = _operands(case, encoding)[0]
    return (Output("y", x.shape, output_format(case, x.format, encoding), exact=True),)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """The cast as users write it: clamped first where the result must saturate, for versions differ beyond the largest value."""
    fmt = format_of(out["y"])
    x = t["x"]
    if overflow_policy(case, fmt.name) == "saturate":
        x = x.clamp(-fmt.max, fmt.max) if x.dtype == torch.float64 else x.float().clamp(-fmt.max, fmt.max)
    return {"y": x.to(out["y"].dtype)}


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    output, x = _outputs(case, encoding)[0], inputs["x"]
    codes, overflow = x.codes.reshape(rows_and_columns(x.shape)), overflow_policy(case, output.format)

    def rounded(first: int, end: int) -> Codes:
        return encode(decode(codes[first:end], x.format), output.format, overflow=overflow)

    return {"y": one_code(output, rounded, contract=contract)}


def _refuse(case: Case) -> str | None:
    if not case.out_format:
        return "a cast needs an output format"
    source, target = (get_format(f(case, "ocp")[0].format) for f in (_operands, _outputs))
    if case.lane == "exact" and source.fraction_bits <= target.fraction_bits:
        return f"{source.name} holds no number midway between two of {target.name}; the exact lane is for casts to fewer fraction bits"
    return None


CAST = OpSpec(
    name="cast",
    family="cast",
    equation="y = round(x)",
    dims=(("n",), ("m", "n")),
    sizes={"m": Size("rows", 64), "n": Size("elements, of each row where there are rows", 1000)},
    formats=("float64", "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"),
    out_formats=("float64", "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"),
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=lambda case: "exact",
    lanes=("random", "exact"),
    own_codes=_own_codes,
    options={
        "overflow": Option("auto", "what lies beyond the format; auto: saturates in 8 bits, else inf", ("auto", "saturate", "inf", "nan"))
    },
    refuse=_refuse,
)
