"""topk: the router of expert layers. Of logits x [t, e] the k best experts of each token and their weights; gradient dx for given experts.

Experts stand in order of their scores, equal ones by number; where scores are closer than the arithmetic of a score can tell, either order
is right. The exact lane has logits that are all apart: one right answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.routing import Routing, best
from accuracy_eval.formats import Codes, decode, encode
from accuracy_eval.inputs import generate, indices
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.panels import Part, by_rows, one_code
from accuracy_eval.ops.rows import Indices, index_values
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
)
from accuracy_eval.records import Case

OPTIONS = {
    "score": Option("softmax", "what is made of the logits", ("softmax", "sigmoid")),
    "normalised": Option(False, "the k weights of a token add up to 1"),
}
APART = 16.0  # logits of the exact lane are integers over 16: sigmoids stay apart, and up to 512 of them fit bfloat16
MOST_EXACT = 512


def _option(case: Case, name: str) -> Any:
    return TOPK.option(case, name)


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    t, e, k = (case.dims[d] for d in "tek")
    x = Operand("x", (t, e), operand_formats(case, 1, encoding)[0], ("t", "e"))
    if case.direction == "fwd":
        return (x,)
    return x, Operand("indices", (t, k), "int32", ("t", "k"), below=e), Operand("grad_weights", (t, k), x.format, ("t", "k"))


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    x, t, k = _operands(case, encoding)[0], case.dims["t"], case.dims["k"]
    if case.direction == "bwd":
        return (Output("dx", x.shape, x.format),)
    chosen = Output("indices", (t, k), "int32", exact=True)
    return (chosen,) if case.lane == "exact" else (chosen, Output("weights", (t, k), x.format))


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    x = _operands(case, encoding)[0]
    if case.lane == "exact":
        order = np.argsort(indices(case.op, "x", x.shape, 1 << 32, case.seed), axis=1, kind="stable")
        return {"x": encode((order - x.shape[1] // 2) / APART, x.format)}
    if case.direction == "fwd":
        return {}
    codes = generate(case.op, "x", x.shape, case.input_class, case.seed, x.format, axes=x.axes)
    return {"x": codes, "indices": best(decode(codes, x.format), case.dims["k"]).astype(np.int32).view(np.uint32)}


def _weights(torch: Any, case: Case, x: Any, chosen: Any = None) -> tuple[Any, Any]:
    """Weights of the chosen experts, and who they are: scores of 16-bit logits in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = torch.softmax(x, -1, dtype=wide) if _option(case, "score") == "softmax" else torch.sigmoid(x.to(wide))
    weights, chosen = torch.topk(scores, case.dims["k"]) if chosen is None else (scores.gather(1, chosen), chosen)
    if _option(case, "normalised"):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(x.dtype), chosen


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.direction == "fwd":
        weights, chosen = _weights(torch, case, t["x"])
        return {"indices": chosen.to(torch.int32), "weights": weights}
    chosen = t["indices"].long()
    return gradients(torch, lambda leaf: _weights(torch, case, leaf["x"], chosen)[0], {"x": t["x"]}, t["grad_weights"])


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    outputs, x = {o.name: o for o in _outputs(case, encoding)}, inputs["x"]
    t, e, k = (case.dims[d] for d in "tek")

    def routing(first: int, end: int) -> Routing:
        return Routing(decode(x.codes[first:end], x.format), _option(case, "score"), bool(_option(case, "normalised")), x.format)

    def chosen(first: int, end: int) -> Indices:
        return best(decode(x.codes[first:end], x.format), k)

    def codes(first: int, end: int) -> Codes:
        return chosen(first, end).astype(np.int32).view(np.uint32)

    def weights(first: int, end: int) -> Part:
        return routing(first, end).weights(chosen(first, end))

    def alike(found: NDArray[Any], right: NDArray[Any], first_row: int) -> NDArray[np.bool_]:
        """Choices other than the right one whose scores are alike, in rows that choose nobody twice."""
        a, b = (v.view(np.int32).astype(np.int64) for v in (found, right))
        distinct = (np.diff(np.sort(a, axis=1), axis=1) != 0).all(axis=1, keepdims=True)
        fine = distinct & ((a >= 0) & (a < e)).all(axis=1, keepdims=True)
        return np.asarray(fine & (a != b) & routing(first_row, first_row + len(a)).alike(np.clip(a, 0, e - 1), b))

    if case.direction == "bwd":
        given = index_values(inputs["indices"], e, "topk: indices").reshape(t, k) if "indices" in inputs else chosen(0, t)
        grad = inputs["grad_weights"]

        def gradient(first: int, end: int) -> Part:
            return routing(first, end).gradient(given[first:end], decode(grad.codes[first:end], grad.format))

        return {"dx": by_rows(outputs["dx"], contract, x.shape, gradient)}
    if case.lane == "exact":
        return {"indices": one_code(outputs["indices"], codes)}
    exempt = Exempt(alike, "choices between experts whose scores the arithmetic cannot tell apart")
    return {
        "indices": replace(one_code(outputs["indices"], codes), exempt=exempt),
        "weights": by_rows(outputs["weights"], contract, x.shape, weights),
    }


def _refuse(case: Case) -> str | None:
    if case.dims["k"] > case.dims["e"]:
        return f"k={case.dims['k']} experts of e={case.dims['e']}: a token has each expert once"
    if case.lane == "exact" and case.direction == "bwd":
        return "the exact lane is for the choice of experts: forward only"
    if case.lane == "exact" and case.dims["e"] > MOST_EXACT:
        return f"e={case.dims['e']} in the exact lane; allowed: at most {MOST_EXACT}"
    return None


TOPK = OpSpec(
    name="topk",
    family="moe",
    equation="the k largest of softmax(x) or sigmoid(x), in order",
    dims=(("t", "k", "e"),),
    sizes={"t": Size("tokens", 64), "k": Size("experts of each token", 2), "e": Size("experts", 8)},
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=float_contract,
    options=OPTIONS,
    lanes=("random", "exact"),
    directions=("fwd", "bwd"),
    own_codes=_own_codes,
    refuse=_refuse,
)
