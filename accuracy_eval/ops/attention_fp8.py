"""attention_fp8: O = softmax(scale · Q · Kᵀ) · V of 8-bit codes with scales, forward; P is rounded to 8 bits before it is multiplied.

Codes and scales are our quantiser's: one scale a tensor, a head, or a block of 128 tokens of a head. The weights e^(S − max) are at most 1;
times p_scale they are rounded to the operands' format, and divided by their sum at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import RZ32, parse_contract
from accuracy_eval.cpu_ref.attention import Attention, Narrow, factors, forward
from accuracy_eval.formats import Codes, Values, decode, encode, get_format
from accuracy_eval.ops import attention
from accuracy_eval.ops.attention import LAYOUTS, axes, option, order, references, scale_of, tensor, unorder, visible
from accuracy_eval.ops.operands import random_codes
from accuracy_eval.ops.spec import Encoding, Inputs, Operand, OpSpec, Option, Output, Reference, option_of, output_format
from accuracy_eval.quantize import quantize
from accuracy_eval.quantize.quantiser import SOURCES
from accuracy_eval.records import Case, Coded

BY_ROW = {"tensorwise": "rowwise", "tensorwise_pow2": "rowwise_pow2"}  # recipe -> the one with its rule and a scale a row
BLOCK = 128  # tokens of a block
LARGEST = 240.0  # p_scale: what either encoding holds
OPTIONS = {n: o for n, o in attention.OPTIONS.items() if n != "sink"} | {
    "scales": Option("tensor", f"what shares a scale; a block is {BLOCK} tokens of a head", ("tensor", "head", "block")),
    "p_scale": Option(1.0, f"factor of the weights before they are rounded; up to {LARGEST:g}"),
    "source": Option("bfloat16", "format of the operands before they are quantised", SOURCES),
}
BINADES = {"q": (0, 1), "k": (0, -1), "v": (3, 4)}  # by which operands' even and odd heads are larger than their class
WHOLE_RANGE = ("codes", "wide", "huge", "heavy-tailed")  # input classes that may reach the largest numbers of their format
HEADS = {"q": ("h", "s"), "k": ("g", "t"), "v": ("g", "t")}  # letters of each operand's heads and length
_option = partial(option_of, OPTIONS)


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    return tuple(Operand(n, tensor(case, *of), _option(case, "source"), axes(case, *of)) for n, of in HEADS.items())


def _own_codes(case: Case, encoding: Encoding) -> dict[str, NDArray[Any]]:
    """Operands of the class, in magnitudes that differ by operand and head: no scale passes for that of another."""
    if case.input_class in WHOLE_RANGE:
        return {}
    found = {}
    for operand in _operands(case, encoding):
        letter = HEADS[operand.name][0]
        factor = np.exp2(np.resize(BINADES[operand.name], case.dims[letter])).reshape([-1 if x == letter else 1 for x in operand.axes])
        found[operand.name] = encode(decode(random_codes(case, operand, compiled=False), operand.format) * factor, operand.format)
    return found


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    q = _operands(case, encoding)[0]
    lse = (Output("lse", tuple(case.dims[x] for x in "bhs"), "float32"),)
    return (Output("out", q.shape, output_format(case, q.format, encoding)), *(lse if option(case, "lse") else ()))


def _received(case: Case, sources: Mapping[str, Coded], encoding: Encoding, compiled: bool = True) -> dict[str, Coded]:
    """Codes in the case's layout and scales (), [b, heads] or [b, heads, blocks], by name."""
    found = {}
    for name, source in sources.items():
        by_head = source.codes.transpose(order(case.layout))
        heads = by_head.shape[:2]
        rows = {"tensor": (1,), "head": heads, "block": (*heads, by_head.shape[2] // BLOCK)}[_option(case, "scales")]
        recipe = case.recipe if _option(case, "scales") == "tensor" else BY_ROW[case.recipe]
        flat = np.ascontiguousarray(by_head).reshape(math.prod(rows), -1)
        made = quantize(flat, source.format, recipe, encoding=encoding, compiled=compiled)
        codes = made.codes.reshape(by_head.shape).transpose(unorder(case.layout))
        found[name] = Coded(np.ascontiguousarray(codes), made.format)
        scale = made.scale.reshape(() if _option(case, "scales") == "tensor" else rows)
        found[f"{name}_scale"] = Coded(scale, made.scale_format)
    return found


def by_token(scale: Any, length: int) -> Any:
    """A scale as it multiplies [b, heads, length, d]: an array of numpy or a tensor."""
    if len(scale.shape) == 3:
        return scale[:, :, [i // BLOCK for i in range(length)], None]
    return scale[:, :, None, None] if len(scale.shape) == 2 else scale


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """The formula with a kernel's roundings: products of codes in float32, scaled sums, weights of 8 bits.

    Scales of V that differ along its tokens are part of the products.
    """
    q, k, v = (t[n].permute(order(case.layout)).float() for n in "qkv")
    sq, sk, sv = (by_token(t[f"{n}_scale"], x.shape[2]) for n, x in (("q", q), ("k", k), ("v", v)))
    if _option(case, "scales") == "block":
        v, sv = v * sv, torch.ones((), device=v.device)
    sk = sk.transpose(2, 3) if sk.dim() else sk
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, dim=1) for x in (k, v))
    sk, sv = (x.repeat_interleave(shared, dim=1) if x.dim() else x for x in (sk, sv))
    scores = q @ k.transpose(2, 3) * (sq * scale_of(case)) * sk
    mask = visible(torch, case, q)
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    top = scores.amax(dim=3, keepdim=True)
    weights = (scores - top).exp()
    total, p_scale = weights.sum(dim=3, keepdim=True), float(_option(case, "p_scale"))
    rounded = (weights * p_scale).to(t["q"].dtype).float()
    found = (rounded @ v / (total * p_scale) * sv).permute(unorder(case.layout)).to(out["out"].dtype).contiguous()
    return {"out": found} | ({"lse": (top + total.log())[..., 0].contiguous()} if option(case, "lse") else {})


def _values(case: Case, inputs: Inputs, name: str) -> Values:
    codes, scale = inputs[name], inputs[f"{name}_scale"]
    values = decode(codes.codes, codes.format).transpose(order(case.layout))
    return np.asarray(values * by_token(decode(scale.codes, scale.format), values.shape[2]))


def problem_of(case: Case, inputs: Inputs, contract: str) -> Attention:
    """What the case computes, of codes and scales."""
    sums = (parse_contract(contract).accumulators or (RZ32,))[0]
    narrow = Narrow(inputs["q"].format, float(_option(case, "p_scale")), 2.0**-sums.bits, sums.width)
    q, k, v = (_values(case, inputs, n) for n in "qkv")
    masks = bool(option(case, "causal")), int(option(case, "window"))
    return Attention(q, k, v, scale_of(case), *masks, "float32", narrow=narrow)


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    problem, (output, *_) = problem_of(case, inputs, contract), _outputs(case, encoding)
    every = references(case, _outputs(case, encoding), contract, lambda: forward(problem))

    def shared(codes: Codes) -> dict[str, Any]:
        out = decode(codes, output.format).reshape(output.shape).transpose(order(case.layout))
        found = factors(problem, out, output.format)
        uses = {f"{name}_factor": f.use for name, f in found.items()}
        return uses | {f"{name}_factor_index": list(f.head) for name, f in found.items()}

    # where scales differ along the keys, weights may be multiplied by V's before they are rounded: the largest is no longer p_scale then
    by_key = _option(case, "scales") == "block"
    return every if by_key else {**every, output.name: replace(every[output.name], shared=shared)}


def _refuse(case: Case) -> str | None:
    if _option(case, "scales") == "block" and (case.dims["s"] % BLOCK or case.dims["t"] % BLOCK):
        return f"s={case.dims['s']}, t={case.dims['t']}: a scale a block of {BLOCK} tokens needs whole blocks"
    if not 0 < _option(case, "p_scale") <= LARGEST:
        return f"option p_scale={_option(case, 'p_scale')}; allowed: more than 0, up to {LARGEST:g}, which weights of both encodings hold"
    if case.out_format and get_format(case.out_format).bits < 16:
        return f"output {case.out_format}; allowed: float32, float16, bfloat16"
    return attention.refuse(case)


ATTENTION_FP8 = OpSpec(
    name="attention_fp8",
    family="attention",
    equation="O = softmax(scale · Q · Kᵀ) · V, all factors in 8 bits",
    dims=attention.ATTENTION.dims,
    sizes=attention.ATTENTION.sizes,
    formats=("fp8_e4m3",),
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=lambda case: "fp8fast",
    layouts=LAYOUTS,
    out_formats=("float32", "float16", "bfloat16"),
    recipes=tuple(BY_ROW),
    options=OPTIONS,
    received=_received,
    own_codes=_own_codes,
    refuse=_refuse,
)
