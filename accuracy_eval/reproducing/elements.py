"""One element of an output: a row and a column of a product, the arguments of a function, a query of an attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError, counted
from accuracy_eval.formats import decode
from accuracy_eval.messages import index_text, number
from accuracy_eval.ops.attention_problems import PROBLEMS
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Operand, OpSpec
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.reproducing.attention import attended
from accuracy_eval.reproducing.attention_gradient import differentiated
from accuracy_eval.reproducing.reduced import reduced
from accuracy_eval.reproducing.seen import Seen, coded, coded_lines
from accuracy_eval.store import Dump

LARGEST = 8  # products shown with their values
ELEMENTWISE = ("special", "cast")  # families whose elements depend on their own inputs alone


def element(dump: Dump, records: Sequence[CaseRecord], index: Sequence[int], tensor: str = "") -> str:
    """The element of an output (the first by default) at `index`, as each of a case's records has it, and the operands it depends on.

    Products (forward, without a recipe): a row of A and a row of B (as [m, k] and [n, k], whatever the layout), the exact sum of
    their products and the largest of them. Elementwise ops: the operands' elements. Reductions and softmax, forward: see `reduced`.
    Attention: see `attention`, its gradients: `attention_gradient`. UsageError for an index outside, and for ops that are not taken apart.
    """
    first, at = records[0], tuple(index)
    spec = get_op(first.case.op)
    encoding: Encoding = "fnuz" if dump.platform.get("fp8_encoding") == "fnuz" else "ocp"
    outputs = [(record, _output(record, tensor, at)) for record in records if record.status == "done" or len(records) == 1]
    refused = whole(first.case, spec)
    if refused:
        raise UsageError(refused)
    codes = operand_codes(spec, first.case, encoding)
    seen = [Seen(record, t, dump.read(record, t)[at]) for record, t in outputs]
    title = f"{first.id} {outputs[0][1].name} {index_text(at)}"
    if spec.name in PROBLEMS:
        lines_of = attended if first.case.direction == "fwd" else differentiated
        return "\n".join([title, *lines_of(seen, stored_inputs(spec, first.case, encoding, codes), at)])
    if spec.family == "reduce":
        return "\n".join([title, *reduced(seen, stored_inputs(spec, first.case, encoding, codes), encoding, at)])
    operands = {o.name: o for o in spec.operands(first.case, encoding)}
    lines = [title, *(f"  {s.text}" for s in seen)]
    used = _used(spec, operands, at)
    picked = {o: (place, codes[o][where].reshape(-1)) for o, place, where in used}
    if {"a", "b"} <= picked.keys():
        lines += _terms(*((picked[o][1], operands[o]) for o in "ab"))
    for o, (place, values) in picked.items():
        lines.append(f"  {o}{place} {operands[o].format}")
        lines += coded_lines(values, operands[o].format)
    return "\n".join(lines)


def _output(record: CaseRecord, tensor: str, at: tuple[int, ...]) -> TensorRecord:
    outputs = {t.name: t for t in record.tensors if t.role == "output"}
    name = tensor or next(iter(outputs), "")
    if name not in outputs:
        raise UsageError(f"{record.id}: no output {name!r}; it holds {', '.join(outputs) or 'none'}")
    t = outputs[name]
    if len(at) != len(t.shape) or any(not 0 <= i < n for i, n in zip(at, t.shape, strict=True)):
        raise UsageError(f"{record.id} output {name!r}: no element {index_text(at)}; its shape is {list(t.shape)}, indices count from 0")
    return t


def _terms(a: tuple[NDArray[Any], Operand], b: tuple[NDArray[Any], Operand]) -> list[str]:
    """The exact sum of the products of two rows, and the products that make most of it, by code and value."""
    terms = [Fraction(x) * Fraction(y) for x, y in zip(_finite(*a), _finite(*b), strict=True)]
    total = number(float(sum(terms, Fraction())), 17)
    lines = [f"  a·b    {total} (the exact sum of {counted(len(terms), 'product')}, before alpha, beta and bias)"]
    largest = sorted(range(len(terms)), key=lambda k: -abs(terms[k]))[:LARGEST]
    if largest:
        lines.append(f"  the largest of them{'' if len(largest) == len(terms) else f', {len(largest)} of {len(terms)}'}:")
    for k in largest:
        left, right = (coded(codes[k], operand.format) for codes, operand in (a, b))
        lines.append(f"    k = {k}: ({left}) · ({right}) = {number(float(terms[k]), 17)}")
    return lines


Where = tuple[int | slice, ...]


def whole(case: Case, spec: OpSpec) -> str | None:
    """Why elements of the case are not taken apart; None where they are."""
    if spec.name in PROBLEMS:
        return None
    if case.recipe:
        return f"recipe {case.recipe}: elements of quantised products are not taken apart; compare --case shows their codes"
    if (spec.name == "gemm" or spec.family == "reduce") and case.direction == "fwd":
        return None
    operands = spec.operands(case, "ocp")
    if spec.family in ELEMENTWISE and all(o.shape == out.shape for o in operands for out in spec.outputs(case, "ocp")):
        return None
    return f"op {spec.name}, direction {case.direction}: elements of it are not taken apart; compare --case shows what is known"


def _used(spec: OpSpec, operands: Mapping[str, Operand], at: tuple[int, ...]) -> Iterator[tuple[str, str, Where]]:
    """(operand, its place in words, its index) of everything the element depends on."""
    if spec.name != "gemm":
        for name in operands:
            yield name, index_text(at), at
        return
    i, j = at
    yield "a", f"[{i}, :]", (i, slice(None))
    yield "b", f"[{j}, :]", (j, slice(None))
    if "c" in operands:
        yield "c", index_text(at), at
    if "bias" in operands:
        yield "bias", f"[{j}]", (j,)


def _finite(codes: NDArray[np.generic], operand: Operand) -> list[float]:
    values = [float(v) for v in decode(codes, operand.format)]
    if not all(map(math.isfinite, values)):
        raise UsageError(f"operand {operand.name} holds NaN or Inf in this row: there is no sum to compare with")
    return values
