"""attention: O = softmax(scale · Q · Kᵀ) · V over heads, forward and backward; grouped heads, causal masks, windows, sinks, three layouts.

A sink is a number each head learns. It joins the denominator of the softmax as the score of a key whose value is zero, is not scaled, and
belongs to lse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from accuracy_eval.cpu_ref.attention import Attention, Result, backward, forward
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.formats import Values, arithmetic_format, decode
from accuracy_eval.metrics.rounding_bias import Alike
from accuracy_eval.ops.autograd import gradients
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
    Size,
    bounded,
    float_contract,
    operand_formats,
    option_of,
    reaching,
    rows_and_columns,
)
from accuracy_eval.records import Case

LAYOUTS = ("bhsd", "bshd", "sbhd")  # order of batch, heads, sequence and head dimension in memory
OPTIONS = {
    "causal": Option(False, "a query sees the keys up to its own place; s = t"),
    "window": Option(0, "a query sees so many keys, up to its own place; 0: all; s = t"),
    "scale": Option(0.0, "factor of the scores; 0: 1/√d"),
    "lse": Option(False, "gives output lse [b, h, s] too"),
    "sink": Option(False, "adds operand sink [h]: the score of a key whose value is zero"),
}
option = partial(option_of, OPTIONS)


def scale_of(case: Case) -> float:
    """The case's scale, 1/√d where it states none."""
    return float(option(case, "scale")) or 1.0 / math.sqrt(case.dims["d"])


def axes(case: Case, heads: str, length: str) -> tuple[str, ...]:
    return tuple({"b": "b", "h": heads, "s": length, "d": "d"}[x] for x in case.layout)


def tensor(case: Case, heads: str, length: str) -> tuple[int, ...]:
    return tuple(case.dims[x] for x in axes(case, heads, length))


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    fmt = operand_formats(case, 1, encoding)[0]
    roles = [("q", "h", "s"), ("k", "g", "t"), ("v", "g", "t")]
    roles += [("grad_out", "h", "s")] if case.direction == "bwd" else []
    found = [Operand(name, tensor(case, heads, length), fmt, axes(case, heads, length)) for name, heads, length in roles]
    return (*found[:3], *((Operand("sink", (case.dims["h"],), fmt, ("h",)),) if option(case, "sink") else ()), *found[3:])


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    given = _operands(case, encoding)
    if case.direction == "bwd":
        return tuple(Output(f"d{o.name}", o.shape, o.format) for o in given[:-1])
    q = given[0]
    lse = (Output("lse", tuple(case.dims[x] for x in "bhs"), arithmetic_format(q.format).name),)
    return (Output("out", q.shape, q.format), *(lse if option(case, "lse") else ()))


def order(layout: str) -> tuple[int, ...]:
    """Positions of b, h, s, d in a tensor of that layout: a permutation to bhsd."""
    return tuple(layout.index(x) for x in "bhsd")


def unorder(layout: str) -> tuple[int, ...]:
    """The permutation back from bhsd."""
    return tuple("bhsd".index(x) for x in layout)


def visible(torch: Any, case: Case, q: Any) -> Any:
    """[s, t]: which keys a query sees; None: all. On the device of q."""
    window = option(case, "window")
    if not (option(case, "causal") or window):
        return None
    i, j = (torch.arange(case.dims[x], device=q.device) for x in "st")
    seen = j[None, :] <= i[:, None]
    return seen & (j[None, :] > i[:, None] - window) if window else seen


def sdpa(torch: Any, case: Case, q: Any, k: Any, v: Any, sink: Any = None) -> Any:
    """The framework's attention on bhsd tensors. It knows no sinks: one is the mask's number at one more key, of zeros."""
    causal = bool(option(case, "causal")) and not option(case, "window") and sink is None
    mask = None if causal else visible(torch, case, q)
    if sink is not None:
        heads, (s, t) = q.shape[1], (case.dims[x] for x in "st")
        hidden = torch.zeros(1, heads, s, t, dtype=q.dtype, device=q.device)
        hidden = hidden if mask is None else hidden.masked_fill(~mask, -math.inf)
        mask = torch.cat([hidden, sink[None, :, None, None].expand(1, heads, s, 1)], dim=3)
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale_of(case), enable_gqa=q.shape[1] != k.shape[1]
    )


def written_out(torch: Any, case: Case, q: Any, k: Any, v: Any, sink: Any = None) -> tuple[Any, Any]:
    """out and lse by the formula, on bhsd tensors: float32 between the operands and the result, float64 for such operands."""
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.to(wide).repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q.to(wide) @ k.transpose(2, 3) * scale_of(case)
    mask = visible(torch, case, q)
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.to(wide)[None, :, None, None].expand(*scores.shape[:3], 1)], dim=3)
    p = torch.softmax(scores, dim=3)[..., : k.shape[2]]
    return (p @ v).to(q.dtype), torch.logsumexp(scores, dim=3)


def _with_lse(torch: Any, case: Case, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """The fused kernel's own logsumexp, which the public call does not return."""
    if option(case, "window") or option(case, "sink") or q.shape[1] != k.shape[1]:
        raise UnsupportedCase("the call that returns lse takes no window, no sink and no grouped heads")
    causal = bool(option(case, "causal"))
    if q.is_cuda:
        if q.element_size() > 2:
            found = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale_of(case))
        else:
            found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale_of(case))
    else:
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale_of(case))
    return found[0], found[1][:, :, : q.shape[2]]


Attend = Callable[[Any, Case, Any, Any, Any, Any], Mapping[str, Any]]  # (torch, case, q, k, v, sink or None), bhsd -> out, and lse if asked


def attended(attend: Attend, torch: Any, case: Case, t: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs of the case by an implementation that knows bhsd tensors; gradients by autograd."""
    to, back = order(case.layout), unorder(case.layout)

    def results(x: Mapping[str, Any]) -> Mapping[str, Any]:
        q, k, v = (x[n].permute(to) for n in "qkv")
        found = attend(torch, case, q, k, v, x.get("sink"))
        return {**found, "out": found["out"].permute(back)}

    if case.direction == "bwd":
        leaves = {n: t[n] for n in ("q", "k", "v", "sink") if n in t}
        return gradients(torch, lambda x: results(x)["out"], leaves, t["grad_out"])
    return {name: x.contiguous() for name, x in results(t).items() if name == "out" or option(case, "lse")}


def _framework(torch: Any, case: Case, q: Any, k: Any, v: Any, sink: Any) -> dict[str, Any]:
    if option(case, "lse"):
        return dict(zip(("out", "lse"), _with_lse(torch, case, q, k, v), strict=True))
    return {"out": sdpa(torch, case, q, k, v, sink)}


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    return attended(_framework, torch, case, t)


def values(case: Case, inputs: Inputs, name: str) -> Values:
    """An operand as bhsd float64."""
    coded = inputs[name]
    return decode(coded.codes, coded.format).transpose(order(case.layout))


def problem_of(case: Case, inputs: Inputs) -> Attention:
    """What the case computes, of operands as stored."""
    q, k, v = (values(case, inputs, n) for n in "qkv")
    sink = decode(inputs["sink"].codes, inputs["sink"].format) if "sink" in inputs else None
    return Attention(q, k, v, scale_of(case), bool(option(case, "causal")), int(option(case, "window")), inputs["q"].format, sink)


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    problem = problem_of(case, inputs)

    def computed() -> dict[str, Result]:
        return forward(problem) if case.direction == "fwd" else backward(problem, values(case, inputs, "grad_out"))

    return references(case, _outputs(case, encoding), contract, computed, alike="lines")


def references(
    case: Case, outputs: Sequence[Output], contract: str, compute: Callable[[], dict[str, Result]], *, alike: Alike | None = None
) -> dict[str, Reference]:
    """References of outputs that one computation gives by name, on bhsd tensors; it runs once, when the first is read. alike: theirs."""
    found = lru_cache(maxsize=1)(compute)

    def laid_out(output: Output, x: Any) -> Any:
        back = unorder(case.layout) if x.ndim == 4 else tuple(range(x.ndim))
        return x.transpose(back).reshape(rows_and_columns(output.shape))

    def panels(output: Output) -> Iterator[Panel]:
        result = found()[output.name]
        typical = () if result.typical is None else bounded(result.values, result.typical)[1:]
        yield Panel(0, *(laid_out(output, x) for x in (*bounded(result.values, result.budget), *typical)))

    def reach(output: Output) -> Reach:
        whole = found()[output.name].reach()
        return Reach(*(laid_out(output, x) for x in (whole.low, whole.high, whole.nan)))

    def reference(output: Output) -> Reference:
        exempt = reaching(partial(reach, output), output.format)
        return Reference("values", output.format, output.shape, contract, partial(panels, output), exempt=exempt, alike=alike)

    return {o.name: reference(o) for o in outputs}


def refuse(case: Case) -> str | None:
    h, g, t, d = (case.dims[x] for x in "hgtd")
    if not (t and d) or (h and not g):
        return f"h={h}, g={g}, t={t}, d={d}: queries need heads of keys, at least one key, and heads of at least one element"
    if g and h % g:
        return f"h={h} query heads share g={g} key and value heads; h must be a multiple of g"
    if (option(case, "causal") or option(case, "window")) and case.dims["t"] != case.dims["s"]:
        return f"s={case.dims['s']}, t={case.dims['t']}: causal masks and windows align differently between libraries; take s = t"
    if option(case, "window") < 0 or option(case, "scale") < 0:
        return "window and scale are 0 (none, 1/√d) or more"
    if option(case, "lse") and case.direction == "bwd":
        return "lse has no gradient of its own here: it is an output of the forward pass"
    return None


ATTENTION = OpSpec(
    name="attention",
    family="attention",
    equation="O = softmax(scale · Q · Kᵀ) · V",
    dims=(("b", "h", "g", "s", "t", "d"),),
    sizes={
        "b": Size("batch", 2),
        "h": Size("query heads", 8),
        "g": Size("key and value heads; h is a multiple of it", 4),
        "s": Size("queries", 128),
        "t": Size("keys and values", 96),
        "d": Size("elements of a head", 64),
    },
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=float_contract,
    layouts=LAYOUTS,
    options=OPTIONS,
    directions=("fwd", "bwd"),
    refuse=refuse,
)
