"""One element of a stored output with everything it was computed from: codes in hex, to be put into any other program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode
from accuracy_eval.messages import code_text, index_text, number
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Operand, OpSpec
from accuracy_eval.records import Case, CaseRecord
from accuracy_eval.store import Dump

PER_LINE = 8  # codes of a line
ELEMENTWISE = ("special", "cast")  # families whose elements depend on their own inputs alone


def element(dump: Dump, record: CaseRecord, index: Sequence[int], tensor: str = "") -> str:
    """The element of the record's output (its first by default) at `index`, and the operands it depends on.

    Products (forward, without a recipe): a row of A and a row of B (as [m, k] and [n, k], whatever the layout), and the exact sum of
    their products. Elementwise ops: the operands' elements. UsageError for an index outside, and for ops whose elements depend on more.
    """
    outputs = {t.name: t for t in record.tensors if t.role == "output"}
    name = tensor or next(iter(outputs), "")
    if name not in outputs:
        raise UsageError(f"{record.id}: no output {name!r}; it holds {', '.join(outputs) or 'none'}")
    t, at = outputs[name], tuple(index)
    if len(at) != len(t.shape) or any(not 0 <= i < n for i, n in zip(at, t.shape, strict=True)):
        raise UsageError(f"{record.id} output {name!r}: no element {index_text(at)}; its shape is {list(t.shape)}, indices count from 0")
    spec = get_op(record.case.op)
    encoding: Encoding = "fnuz" if dump.platform.get("fp8_encoding") == "fnuz" else "ocp"
    operands = {o.name: o for o in spec.operands(record.case, encoding)}
    used = list(_used(spec, record.case, operands, t.shape, at))
    codes = operand_codes(spec, record.case, encoding)
    actual = dump.read(record, t)[at]
    lines = [f"{record.id} {name} {index_text(at)} ({record.candidate})"]
    lines.append(f"  actual {code_text(int(actual), t.format)} = {number(float(decode(np.asarray(actual), t.format)), 17)} ({t.format})")
    picked = {o: (place, codes[o][where].reshape(-1)) for o, place, where in used}
    if {"a", "b"} <= picked.keys():
        total = sum(
            (Fraction(x) * Fraction(y) for x, y in zip(*(_finite(picked[o][1], operands[o]) for o in "ab"), strict=True)), Fraction()
        )
        lines.append(f"  a·b    {number(float(total), 17)} (the exact sum of {len(picked['a'][1])} products, before alpha, beta and bias)")
    for o, (place, values) in picked.items():
        lines.append(f"  {o}{place} {operands[o].format}")
        texts = [code_text(int(v), operands[o].format) for v in values]
        lines += [f"    {' '.join(texts[i : i + PER_LINE])}" for i in range(0, len(texts), PER_LINE)]
    return "\n".join(lines)


Where = tuple[int | slice, ...]


def _used(
    spec: OpSpec, case: Case, operands: dict[str, Operand], shape: tuple[int, ...], at: tuple[int, ...]
) -> Iterator[tuple[str, str, Where]]:
    """(operand, its place in words, its index) of everything the element depends on."""
    if case.recipe:
        raise UsageError(f"recipe {case.recipe}: elements of quantised products are not taken apart; compare --case shows their codes")
    if spec.name == "gemm" and case.direction == "fwd":
        i, j = at
        yield "a", f"[{i}, :]", (i, slice(None))
        yield "b", f"[{j}, :]", (j, slice(None))
        if "c" in operands:
            yield "c", index_text(at), at
        if "bias" in operands:
            yield "bias", f"[{j}]", (j,)
        return
    if spec.family not in ELEMENTWISE or any(o.shape != shape for o in operands.values()):
        raise UsageError(
            f"op {spec.name}, direction {case.direction}: an element depends on more than a row; compare --case shows what is known"
        )
    for name in operands:
        yield name, index_text(at), at


def _finite(codes: NDArray[np.generic], operand: Operand) -> list[float]:
    values = [float(v) for v in decode(codes, operand.format)]
    if not all(map(math.isfinite, values)):
        raise UsageError(f"operand {operand.name} holds NaN or Inf in this row: there is no sum to compare with")
    return values
