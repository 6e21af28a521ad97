"""embedding: rows of weight [v, n] looked up by ids [t], and the gradient, which adds what came back for each word: dw[i] = Σ grad_y[t]
over the t with ids[t] = i. The lookup copies codes; frameworks add in the operands' format, one token after another or by atomics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.inputs import indices
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.panels import one_code
from accuracy_eval.ops.rows import added, index_values, summands
from accuracy_eval.ops.spec import FLOATS, Encoding, Inputs, Operand, OpSpec, Option, Output, Reference, Size, operand_formats
from accuracy_eval.records import Case

OPTIONS = {"ids": Option("skewed", "which words: as often as in a language, all alike, or one alone", ("skewed", "uniform", "one"))}


def _spread(case: Case) -> Any:
    return EMBEDDING.option(case, "ids")


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    t, v, n = (case.dims[d] for d in "tvn")
    fmt, ids = operand_formats(case, 1, encoding)[0], Operand("ids", (t,), "int32", ("t",), below=v)
    return (Operand("weight", (v, n), fmt, ("v", "n")) if case.direction == "fwd" else Operand("grad_y", (t, n), fmt, ("t", "n"))), ids


def _own_codes(case: Case, encoding: Encoding) -> dict[str, NDArray[Any]]:
    found = {"ids": indices(case.op, "ids", (case.dims["t"],), case.dims["v"], case.seed, _spread(case))}
    if case.lane == "exact":
        rows, _ = _operands(case, encoding)
        found[rows.name] = summands(case.op, rows, found["ids"].astype(np.int64), case.seed)
    return found


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    t, v, n = (case.dims[d] for d in "tvn")
    fmt = operand_formats(case, 1, encoding)[0]
    return (Output("y", (t, n), fmt, exact=True) if case.direction == "fwd" else Output("dweight", (v, n), fmt),)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    lookup = torch.nn.functional.embedding
    if case.direction == "fwd":
        return {"y": lookup(t["ids"], t["weight"])}
    leaves = {"weight": torch.zeros_like(out["dweight"])}
    return gradients(torch, lambda leaf: lookup(t["ids"], leaf["weight"]), leaves, t["grad_y"])


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    (output,), ids = _outputs(case, encoding), index_values(inputs["ids"], case.dims["v"], "embedding: ids")
    if case.direction == "fwd":
        return {"y": one_code(output, lambda first, end: inputs["weight"].codes[ids[first:end]])}
    return {"dweight": added(output, contract, inputs["grad_y"], ids, exact=case.lane == "exact")}


def _refuse(case: Case) -> str | None:
    if not case.dims["v"] and case.dims["t"]:
        return "ids of a table without rows"
    if case.lane == "exact" and case.direction == "fwd":
        return "a lookup copies codes in every lane; the exact lane is for its gradient"
    return None


EMBEDDING = OpSpec(
    name="embedding",
    family="embedding",
    equation="y[t] = w[ids[t]]",
    dims=(("t", "v", "n"),),
    sizes={"t": Size("ids", 300), "v": Size("words, rows of the table", 1000), "n": Size("columns of the table", 64)},
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=lambda case: "exact" if case.direction == "fwd" else f"hops({case.format})",
    options=OPTIONS,
    lanes=("random", "exact"),
    directions=("fwd", "bwd"),
    own_codes=_own_codes,
    refuse=_refuse,
)
