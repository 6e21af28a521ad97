"""Explaining the matrix products in dumps: which order of operations, in which matrix unit, made an output's bits.

Explanations are information. No verdict depends on one: explained is not passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath import Explanation, explain_gemm
from accuracy_eval.datapath.hypotheses import takes
from accuracy_eval.datapath.units import architectures, units_of
from accuracy_eval.digests import sha256_many
from accuracy_eval.errors import InputMismatch
from accuracy_eval.formats import get_format
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Inputs
from accuracy_eval.records import Case, CaseRecord, Coded
from accuracy_eval.store import Dump

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ExplainedOutput:
    """One product of one output of a dump.

    index  where the product lies in the output ("" the whole of it)
    """

    case_id: str
    candidate: str
    tensor: str
    index: str
    explanation: Explanation


def explain_output(case: Case, inputs: Inputs, output: str, actual: Coded, unit: str | None) -> dict[str, Explanation]:
    """Explanation of every product of an output, by where it lies in it; empty where the op is no product of floats, or an empty one, and
    in the exact and coded lanes, where every order of operations gives the same bits.

    inputs  as stored, for the encoding the output was computed in
    unit    whose arithmetic is tried; None every known one's, as where the unit does not take the operands
    """
    products = get_op(case.op).products
    if products is None or case.lane != "random" or not _floats(actual):
        return {}
    found = {}
    for product in products(case, inputs, output):
        if not _floats(product.gemm.a, product.gemm.b):
            continue
        part = Coded(np.ascontiguousarray(actual.codes[product.index]), actual.format)
        if part.shape == (product.gemm.m, product.gemm.n) and part.codes.size and product.gemm.k:
            known = unit if unit is not None and takes(unit, (product.gemm.a.format, product.gemm.b.format)) else None
            found[_spelled(product.index)] = explain_gemm(part, product.gemm, unit=known)
    return found


def _floats(*operands: Coded) -> bool:
    return all(get_format(c.format).kind == "float" for c in operands)


def _spelled(index: tuple[int | slice, ...]) -> str:
    return f"[{', '.join(f'{i.start}:{i.stop}' if isinstance(i, slice) else str(i) for i in index)}]" if index else ""


def unit_of_dump(platform: Mapping[str, Any]) -> str | None:
    """The unit whose arithmetic a dump's outputs may have; None (every known one) where the part's is not known throughout."""
    unit = platform.get("unit")
    rows = units_of(unit) if isinstance(unit, str) and unit in architectures() else ()
    return unit if rows and all(row.rule is not None for row in rows) else None


def chosen_unit(unit: str | None, platform: Mapping[str, Any]) -> str | None:
    """The unit to try for what a caller asked for; UsageError for a name that is no unit."""
    if unit == "any":
        return None
    if unit is None:
        return unit_of_dump(platform)
    units_of(unit)
    return unit


def explain_dump(
    dump: str | Path, *, cases: Sequence[str] = (), keep: Callable[[Case], bool] = lambda case: True, unit: str | None = None,
    progress: Progress | None = None,
) -> Iterator[ExplainedOutput]:  # fmt: skip
    """Explanations of every product in a dump, case by case.

    cases, keep  only these case ids; only cases for which `keep` is true
    unit         whose arithmetic is tried; "any" every known one's; None that of the dump's device
    UsageError for a case that is not there, InputMismatch where this version's operands are not the dump's.
    """
    d = Dump.open(dump)
    chosen_unit(unit, {})
    for ident in cases:
        d.record(ident)
    encoding: Encoding = "fnuz" if d.platform.get("fp8_encoding") == "fnuz" else "ocp"
    chosen = [r for r in d.records if r.status == "done" and (not cases or r.id in cases) and keep(r.case)]
    with d.kept_open():
        for number, record in enumerate(chosen, 1):
            if get_op(record.case.op).products is not None and record.case.lane == "random":
                yield from _explain_record(d, record, encoding, unit)
            if progress:
                progress(number, len(chosen), record.id)


def nothing_to_explain(dump: str | Path, cases: Sequence[str], keep: Callable[[Case], bool]) -> str:
    """Why `explain_dump` found no product among the cases chosen: those there are did not run, or there are none."""
    for r in Dump.open(dump).records:
        product = get_op(r.case.op).products is not None and r.case.lane == "random"
        if product and r.status != "done" and (not cases or r.id in cases) and keep(r.case):
            return f"none of the chosen matrix products ran, so there are no bits to explain; {r.id} is {_FATE[r.status]}: {r.reason}"
    return "none of the chosen cases is a matrix product of the random lane; only those have an order to explain"


_FATE = {"unsupported": "unsupported", "error": "an error"}


def _explain_record(d: Dump, record: CaseRecord, encoding: Encoding, unit: str | None) -> Iterator[ExplainedOutput]:
    spec = get_op(record.case.op)
    codes = operand_codes(spec, record.case, encoding)
    stored = {t.name: t.sha256 for t in record.tensors if t.role == "source"}
    for name, digest in zip(codes, sha256_many(codes.values()), strict=True):
        if stored.get(name) != digest:
            raise InputMismatch(
                f"{record.id} input {name!r}: sha256 {stored.get(name, 'absent')[:16]}… ({d.path.name}) != {digest[:16]}… (this version's "
                "generator); an output is explained from its own operands. Dump it with this version of accuracy-eval."
            )
    inputs = stored_inputs(spec, record.case, encoding, codes)
    for t in record.tensors:
        if t.role == "output":
            actual = Coded(_whole(d.view(record, t, verify=True), t.shape), t.format)
            tried = chosen_unit(unit, d.platform_of(record))
            for index, explanation in explain_output(record.case, inputs, t.name.partition("#")[0], actual, tried).items():
                yield ExplainedOutput(record.id, record.candidate, t.name, index, explanation)


def _whole(view: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.asarray(view[0 : int(np.prod(shape[:-1], dtype=np.int64))]).reshape(shape)
