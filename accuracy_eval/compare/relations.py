"""Metamorphic cases: every dump against its own result of the unchanged operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from accuracy_eval.cases import case_id
from accuracy_eval.compare.joining import Entry
from accuracy_eval.compare.sides import stored_output, stored_side
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Values
from accuracy_eval.gates import Profile
from accuracy_eval.judge import Subject
from accuracy_eval.metamorphic import Run, judge_relation
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case, CaseRecord, NotCompared, TensorResult, Verdict


def relation_results(
    entries: Sequence[Entry], records: Mapping[str, CaseRecord], profile: Profile, verify: bool
) -> Iterator[TensorResult | NotCompared]:
    """A metamorphic case: every dump against its own result of the unchanged operands. No reference is asked."""
    first = records[entries[0].label]
    case, spec = first.case, get_op(first.case.op)
    relation = spec.relation(case)
    assert relation is not None
    others = {case_id(other): other for other in relation.others(case)}
    ids = dict(zip(("base", "partner"), others, strict=False))
    (output,) = spec.outputs(case, entries[0].encoding)
    runs = []
    for e in entries:
        held = {ident: r for ident, other in others.items() if (r := _fitting(e, ident, other, first.candidate)) is not None}
        absent = [ident for ident in ids.values() if ident not in held]
        if absent:
            why = f"relation {relation.name} compares with case {absent[0]}, of which {e.dump.path.name} holds no result"
            yield NotCompared(first.id, spec.family, first.candidate, e.label, Verdict.INCONCLUSIVE, why, case)
            continue
        found = {name: stored_output(e, held[ident], output.name, verify) for name, ident in ids.items()}
        side = stored_side(e, records[e.label], output.name, verify)
        runs.append(Run(side, found["base"], found.get("partner"), str(e.dump.platform.get("arch") or "")))
    if not runs:
        return

    @cache
    def budget(of: Case) -> Values:
        encoding = entries[0].encoding
        inputs = stored_inputs(spec, of, encoding, operand_codes(spec, of, encoding))
        panels = spec.reference(of, inputs, encoding, first.contract)[output.name].panels()
        return np.concatenate([p.budget for p in panels if p.budget is not None])

    subject = Subject(case, output, first.id, spec.family, first.candidate)
    yield judge_relation(subject, relation, runs, budget, profile)


def _fitting(e: Entry, ident: str, case: Case, candidate: str) -> CaseRecord | None:
    """The dump's record of a case that ran and gave what the case asks for."""
    try:
        record = e.dump.record(ident, candidate)
    except UsageError:
        return None
    wanted = {(o.name, o.format, o.shape) for o in get_op(case.op).outputs(case, e.encoding)}
    return record if record.status == "done" and wanted <= {(t.name, t.format, t.shape) for t in record.tensors} else None
