"""Tokens on their way to experts and back: permute gathers the rows of each expert, unpermute brings them home, weighted and added.

permute    y [t·k, n] holds row x[i] once for each of the k experts of token i, expert by expert, within an expert token by token;
           place [t, k] says where each went. Gradient: dx[i] adds the k rows that came back.
unpermute  y[i] = Σ_j probs[i, j]·x[place[i, j]]. Gradients: dx = probs·grad_y at its place, dprobs[i, j] = grad_y[i]·x[place[i, j]].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from accuracy_eval.formats import Codes, Values, decode, encode
from accuracy_eval.inputs import indices
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.panels import Part, by_rows, one_code
from accuracy_eval.ops.rows import Indices, added, dotted, index_values, summands
from accuracy_eval.ops.spec import (
    FLOATS,
    Encoding,
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
)
from accuracy_eval.records import Case, Coded

OPTIONS = {"load": Option("uniform", "skewed: some experts get most tokens and some none", ("uniform", "skewed"))}
MOST_WEIGHTED = 16  # experts a token of the exact lane may have: 16 terms of 2·8 are the largest integer that bfloat16 holds exactly
DIMS = (("t", "k", "e", "n"),)


def _load(case: Case) -> str:
    return str(option_of(OPTIONS, case, "load"))


def chosen_experts(case: Case) -> Indices:
    """[t, k]: for each token the k of e experts with the smallest words of stream `OP/experts/TxE`; "skewed" multiplies the word of expert
    j by 1 + j first, so that low numbers are chosen more often and some experts by nobody."""
    t, e, k = (case.dims[d] for d in "tek")
    word = indices(case.op, "experts", (t, e), 1 << 32, case.seed).astype(np.int64)
    factor = np.arange(1, e + 1) if _load(case) == "skewed" else 1
    return np.argsort(word * factor, axis=1, kind="stable")[:, :k]


def places(experts: Indices) -> Indices:
    """[t, k]: the row that each token has with each of its experts, sorted by expert, tokens of one expert in their order."""
    order = np.argsort(experts, axis=None, kind="stable")
    found = np.empty(experts.size, np.int64)
    found[order] = np.arange(experts.size)
    return found.reshape(experts.shape)


# what operands and outputs hold, by axes: tokens, rows of experts, what a token has for each of its experts
KINDS = {"tokens": ("t", "n"), "rows": ("tk", "n"), "slots": ("t", "k"), "experts": ("t", "k"), "places": ("t", "k")}
INDICES = {"experts": "e", "places": "tk"}  # kinds that are int32, and how many there are to point to


def _tensor(case: Case, encoding: Encoding, text: str) -> Operand:
    """The operand of a text "KIND NAME"."""
    kind, name = text.split()

    def size(letters: str) -> int:
        return math.prod(case.dims[d] for d in letters)

    shape = tuple(map(size, KINDS[kind]))
    if kind in INDICES:
        return Operand(name, shape, "int32", KINDS[kind], below=size(INDICES[kind]))
    return Operand(name, shape, operand_formats(case, 1, encoding)[0], KINDS[kind])


OPERANDS = {
    ("permute", "fwd"): ("tokens x", "experts experts"),
    ("permute", "bwd"): ("rows grad_y", "experts experts"),
    ("unpermute", "fwd"): ("rows x", "slots probs", "places place"),
    ("unpermute", "bwd"): ("rows x", "slots probs", "tokens grad_y", "places place"),
}
OUTPUTS = {
    ("permute", "fwd"): ("rows y", "places place"),
    ("permute", "bwd"): ("tokens dx",),
    ("unpermute", "fwd"): ("tokens y",),
    ("unpermute", "bwd"): ("rows dx", "slots dprobs"),
}


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    return tuple(_tensor(case, encoding, text) for text in OPERANDS[case.op, case.direction])


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    moved = (case.op, case.direction) == ("permute", "fwd")
    found = (_tensor(case, encoding, text) for text in OUTPUTS[case.op, case.direction])
    return tuple(Output(o.name, o.shape, o.format, exact=moved) for o in found)


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    operands = {o.name: o for o in _operands(case, encoding)}
    experts = chosen_experts(case)
    place = places(experts)
    found = {"experts": experts, "place": place}
    codes = {name: values.astype(np.int32).view(np.uint32) for name, values in found.items() if name in operands}
    if case.lane == "exact":
        rows = operands["grad_y" if case.op == "permute" else "x"]
        token = np.empty(place.size, np.int64)
        token[place.ravel()] = np.arange(place.size) // case.dims["k"]
        codes[rows.name] = summands(case.op, rows, token, case.seed)
        if case.op == "unpermute":  # 1 or 2
            codes["probs"] = encode(1.0 + indices(case.op, "probs", place.shape, 2, case.seed), rows.format)
    return codes


# torch


def _permute(torch: Any, x: Any, experts: Any) -> tuple[Any, Any]:
    order = torch.argsort(experts.flatten(), stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return x.index_select(0, order // experts.shape[1]), place.view(experts.shape).to(torch.int32)


def _unpermute(x: Any, probs: Any, place: Any) -> Any:
    rows = x.index_select(0, place.flatten()).view(*probs.shape, x.shape[1])
    return (rows * probs[:, :, None]).sum(1)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.op == "permute" and case.direction == "fwd":
        return dict(zip(("y", "place"), _permute(torch, t["x"], t["experts"]), strict=True))
    if case.op == "permute":
        leaves = {"x": torch.zeros_like(out["dx"])}
        return gradients(torch, lambda leaf: _permute(torch, leaf["x"], t["experts"])[0], leaves, t["grad_y"])
    if case.direction == "fwd":
        return {"y": _unpermute(t["x"], t["probs"], t["place"])}
    return gradients(torch, lambda leaf: _unpermute(leaf["x"], leaf["probs"], t["place"]), {n: t[n] for n in ("x", "probs")}, t["grad_y"])


# reference


def _permute_reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    outputs = {o.name: o for o in _outputs(case, encoding)}
    experts = index_values(inputs["experts"], case.dims["e"], "permute: experts").reshape(inputs["experts"].shape)
    place = places(experts)
    token = np.argsort(place, axis=None) // case.dims["k"]
    if case.direction == "bwd":
        return {"dx": added(outputs["dx"], contract, inputs["grad_y"], token, exact=case.lane == "exact")}
    return {
        "y": one_code(outputs["y"], lambda first, end: inputs["x"].codes[token[first:end]]),
        "place": one_code(outputs["place"], lambda first, end: place[first:end].astype(np.int32).view(np.uint32)),
    }


def _unpermute_reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    outputs, x, k = {o.name: o for o in _outputs(case, encoding)}, inputs["x"], case.dims["k"]
    place = index_values(inputs["place"], len(x.codes), "unpermute: place")
    weights = decode(inputs["probs"].codes, x.format).ravel()
    if case.direction == "fwd":
        rows, token = Coded(x.codes[place], x.format), np.arange(len(place)) // k
        return {"y": added(outputs["y"], contract, rows, token, weights=weights, exact=case.lane == "exact")}
    grad, slot = inputs["grad_y"], np.argsort(place, kind="stable")

    def spread(first: int, end: int) -> Part:
        with np.errstate(invalid="ignore", over="ignore"):
            values = weights[slot[first:end], None] * decode(grad.codes[slot[first:end] // k], grad.format)
        return values, np.zeros_like(values)

    def terms(tokens: Indices) -> Values:
        rows = decode(x.codes[place.reshape(-1, k)[tokens]], x.format)
        with np.errstate(invalid="ignore", over="ignore"):
            return rows * decode(grad.codes[tokens], grad.format)[:, None]

    return {"dx": by_rows(outputs["dx"], contract, x.shape, spread), "dprobs": dotted(outputs["dprobs"], contract, terms, case.dims["n"])}


def _refuse(case: Case) -> str | None:
    e, k = (case.dims[d] for d in "ek")
    if k > e:
        return f"k={k} experts of e={e}: a token has each expert once"
    if case.lane == "exact" and (case.op, case.direction) in (("permute", "fwd"), ("unpermute", "bwd")):
        return "the exact lane is for the rows that are added: permute backward, unpermute forward"
    if case.lane == "exact" and k > MOST_WEIGHTED:
        return f"k={k} in the exact lane; allowed: at most {MOST_WEIGHTED}"
    return None


def _contract(case: Case) -> str:
    if (case.op, case.direction) == ("permute", "fwd"):
        return "exact"
    return float_contract(case) if (case.op, case.direction) == ("unpermute", "bwd") else f"hops({case.format})"


def _op(name: str, equation: str, reference: Callable[[Case, Inputs, Encoding, str], dict[str, Reference]]) -> OpSpec:
    return OpSpec(
        name=name,
        family="moe",
        equation=equation,
        dims=DIMS,
        sizes={
            "t": Size("tokens", 64),
            "k": Size("experts of each token", 2),
            "e": Size("experts", 8),
            "n": Size("elements of a token", 32),
        },
        formats=FLOATS,
        operands=_operands,
        outputs=_outputs,
        torch=_torch,
        reference=reference,
        contract=_contract,
        options=OPTIONS,
        lanes=("random", "exact"),
        directions=("fwd", "bwd"),
        own_codes=_own_codes,
        refuse=_refuse,
    )


EXPERTS = (
    _op("permute", "y[place[i, j]] = x[i]", _permute_reference),
    _op("unpermute", "y[i] = Σⱼ probs[i, j] · x[place[i, j]]", _unpermute_reference),
)
