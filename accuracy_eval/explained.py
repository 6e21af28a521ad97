"""Explanations of the matrix products in dumps: which order of operations, in which matrix unit, made an output's bits.

They are information. No verdict depends on one: explained is not passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath import Explanation, explain_gemm
from accuracy_eval.datapath.hypotheses import takes
from accuracy_eval.datapath.units import architectures, units_of
from accuracy_eval.diagnose import named
from accuracy_eval.digests import sha256_many
from accuracy_eval.errors import InputMismatch
from accuracy_eval.formats import get_format
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Inputs
from accuracy_eval.records import Case, CaseRecord, Coded, Diagnosis, TensorResult
from accuracy_eval.store import Dump

Progress = Callable[[int, int, str], None]
Why = Mapping[str, Sequence[Explanation]]  # dump label → explanations of an output's products


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


# ---------------------------------------------------------------------------- in a comparison


def with_explanations(result: TensorResult, why: Why) -> TensorResult:
    """The result with a note on every explained side, and on every pair of which both sides are reproduced; verdicts stand."""
    sides = tuple(replace(s, diagnoses=(*s.diagnoses, diagnosis(why[s.label]))) if why.get(s.label) else s for s in result.sides)
    pairs = tuple(replace(p, diagnoses=(*p.diagnoses, *_of_pair(why, p.a, p.b))) for p in result.pairs)
    return replace(result, sides=sides, pairs=pairs)


def _of_pair(why: Why, a: str, b: str) -> tuple[Diagnosis, ...]:
    found = [*why.get(a, ()), *why.get(b, ())]
    if not why.get(a) or not why.get(b) or any(e.status == "unexplained" for e in found):
        return ()
    x, y = (_descriptions(why[label]) for label in (a, b))
    if all(e.identified for e in found):
        said = f"both sides identified: they differ by arithmetic only ({a} {x}; {b} {y})" if x != y else f"both sides identified: {x}"
    else:
        said = f"both sides are bit for bit what known arithmetic gives, too few elements tell which ({a} {x}; {b} {y})"
    return (named("explained-by-datapath", {"identified": all(e.identified for e in found)}, what=said),)


EXACT = "exact arithmetic rounded once, nothing to explain"
NOTATION = "docs/datapath.md says how to read compositions"
STATUS_WORDS = {
    "identified": "explained (arithmetic only)",
    "consistent, not identified": "consistent, not identified",
    "unexplained": "not explained",
}


def explanations_text(tensors: Iterable[TensorResult], exact: Collection[str] = ()) -> list[str]:
    """One line a dump: how many outputs are explained; one line a pair of which both sides are; none where no product was asked about.

    exact  labels of dumps that hold exact results rounded once
    """
    found: dict[str, Counter[str]] = {}
    for t in tensors:
        for s in t.sides:
            for d in s.diagnoses:
                if d.code in ("explained-by-datapath", "not-explained"):
                    found.setdefault(s.label, Counter())[d.evidence["status"]] += 1
        for p in t.pairs:
            for d in p.diagnoses:
                if d.code == "explained-by-datapath" and not {p.a, p.b} & set(exact):
                    status = "identified" if d.evidence["identified"] else "consistent, not identified"
                    found.setdefault(f"{p.a} against {p.b}, both sides", Counter())[status] += 1
    lines = [f"{name}: {_counted(counts) if name not in exact else EXACT}" for name, counts in found.items()]
    return [*lines, NOTATION] if lines else []


def _counted(counts: Counter[str]) -> str:
    first, *others = [(counts[status], words) for status, words in STATUS_WORDS.items() if counts[status]]
    said = [f"{first[0]} product{'' if first[0] == 1 else 's'} {first[1]}", *(f"{n} {words}" for n, words in others)]
    return "; ".join(said)


def diagnosis(found: Sequence[Explanation]) -> Diagnosis:
    """What the explanations of an output's products say together: the least of them decides."""
    least = min(found, key=lambda e: (("unexplained", "consistent, not identified", "identified").index(e.status), e.fraction))
    evidence = {
        "status": least.status, "composition": _descriptions(found), "fraction": least.fraction, "evidence": sum(e.evidence for e in found),
        "ties": list(least.ties), "tried": sum(e.tried for e in found), "best_loser": least.best_loser,
        "best_loser_fraction": least.best_loser_fraction,
    }  # fmt: skip
    return named("not-explained" if least.status == "unexplained" else "explained-by-datapath", evidence, what=_said(least))


def _said(found: Explanation) -> str:
    """The explanation in words; of one that failed no more than a reader needs, what came nearest is in the evidence."""
    if found.status != "unexplained":
        return str(found)
    left_out = f"; with {found.without[0]} left out every element is {found.without[1]}" if found.without else ""
    return f"no known order of operations gives these bits{left_out}"


def _descriptions(found: Iterable[Explanation]) -> str:
    return " | ".join(dict.fromkeys(e.description for e in found))
