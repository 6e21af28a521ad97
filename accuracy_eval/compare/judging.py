"""One case of all dumps: inputs checked, outputs judged by the reference and against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from accuracy_eval.apart import Apart
from accuracy_eval.compare.common import Common, References
from accuracy_eval.compare.inputs import check_inputs, digests_alone, same_numbers
from accuracy_eval.compare.joining import Entry
from accuracy_eval.compare.relations import relation_results
from accuracy_eval.compare.sides import derived_side, joint_of, stored_side
from accuracy_eval.errors import FileError, InputMismatch, located
from accuracy_eval.gates import Profile
from accuracy_eval.judge import facts_of, judge_tensor
from accuracy_eval.measuring import SideTensor
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Reference, rows_and_columns
from accuracy_eval.records import CaseRecord, Coded, NotCompared, TensorResult, Verdict
from accuracy_eval.reference_cache import ReferenceCache
from accuracy_eval.sampled import judge_sampled, scoped
from accuracy_eval.scaling import with_scales

ReferenceMode = Literal["full", "sampled", "auto", "none"]
Explainer = Callable[..., TensorResult]


@dataclass(frozen=True)
class How:
    """How cases are judged; see `compare_dumps`."""

    profile: Profile
    reference: ReferenceMode
    cache: ReferenceCache | None
    cross_format: bool
    verify: bool
    explainer: Explainer | None


def compare_case(
    entries: Sequence[Entry], records: Mapping[str, CaseRecord], how: How, common: Common
) -> Iterator[TensorResult | NotCompared]:
    """What is found of one candidate of a case, `records` by dump label: a result for each output, and for each dump that cannot be judged
    the reason."""
    first = next(iter(records.values()))
    spec = get_op(first.case.op)

    def skip(label: str, verdict: Verdict, reason: str) -> NotCompared:
        return NotCompared(first.id, spec.family, first.candidate, label, verdict, reason, first.case)

    usable: list[Entry] = []
    for e in entries:
        record = records.get(e.label)
        if record is None and first.candidate != "default":
            continue  # a library this device does not have: the others are judged by the reference alone
        if record is None:
            others = ", ".join(label for label in records)
            yield skip(e.label, Verdict.MISSING, f"not in {e.dump.path.name}; it is in {others}")
        elif record.status == "unsupported":
            yield skip(e.label, Verdict.UNSUPPORTED, record.reason)
        elif record.status != "done":
            yield skip(e.label, Verdict.ERROR, record.reason)
        else:
            usable.append(e)
    agreed = list(usable)
    try:
        for e in usable:
            try:
                check_inputs(e, records[e.label], common.operands, entries, records)
            except InputMismatch as error:
                agreed.remove(e)
                yield skip(e.label, Verdict.INPUTS_DIFFER, str(error))
        for e in [e for e in agreed if not e.dump.readable(records[e.label])]:
            agreed.remove(e)
            yield skip(e.label, Verdict.INCONCLUSIVE, digests_alone(e, records))
        if agreed:
            yield from _judge_case(agreed, records, how, common)
    except FileError as error:
        error.add_note(f"while comparing {first.id}")
        raise
    except Exception as error:  # noqa: BLE001  a record that makes no sense, or a mistake of this program, costs its case, not the report
        for e in agreed:
            yield skip(e.label, Verdict.ERROR, f"could not be judged: {located(error)}")


def _judge_case(
    entries: Sequence[Entry], records: Mapping[str, CaseRecord], how: How, common: Common
) -> Iterator[TensorResult | NotCompared]:
    record = records[entries[0].label]
    case, spec = record.case, get_op(record.case.op)
    if spec.relation(case) is not None:
        yield from relation_results(entries, records, how.profile, how.verify)
        return
    meanings: dict[Encoding, Encoding] = {}
    for encoding in dict.fromkeys(e.encoding for e in entries):
        meanings[encoding] = next((m for m in meanings.values() if same_numbers(spec, case, m, encoding)), encoding)
    inputs = {m: common.operands[m].inputs for m in set(meanings.values())}

    def made(meaning: Encoding, contract: str) -> References:
        whole = spec.reference(case, inputs[meaning], meaning, contract)
        if how.reference == "none":
            return whole
        references = {name: scoped(r, how.reference) for name, r in whole.items()}
        return how.cache.kept(references, case, meaning, inputs[meaning]) if how.cache else references

    def truth(meaning: Encoding, contract: str) -> References:
        return common.references(meaning, contract, partial(made, meaning, contract))

    meaning_of = {e.label: meanings[e.encoding] for e in entries}
    digests = {e.label: [t.sha256 for t in records[e.label].tensors if t.role == "output"] for e in entries}
    joints = {e.label: joint_of(e, records[e.label], spec, inputs[meaning_of[e.label]], how.verify) for e in entries}
    derived = () if how.reference == "none" else spec.derived(case, entries[0].encoding)
    for output in (*spec.outputs(case, entries[0].encoding), *derived):
        name = output.name
        known = {e.label: truth(meaning_of[e.label], records[e.label].contract)[name] for e in entries}
        truths, apart = ({}, Apart(meaning_of, known)) if how.reference == "none" else (known, None)

        def under(label: str, contract: str, name: str = name) -> Reference:
            return truth(meaning_of[label], contract)[name]

        if output in derived:
            sides = [derived_side(e, output, joints[e.label]) for e in entries if name in joints[e.label].tensors]
            if not sides or not how.profile.applicable(facts_of(case, spec.family, output, "")):
                continue  # the outputs themselves say what is wrong, or the profile has nothing to say about this tensor
        else:
            sides = [stored_side(e, records[e.label], name, how.verify) for e in entries]
        sides = [replace(s, derived=joints[s.label].metrics.get(name, {})) for s in sides]
        judge = judge_sampled if any(r.sample for r in truths.values()) else partial(judge_tensor, apart=apart)
        inputs_of = {e.label: inputs[meaning_of[e.label]] for e in entries}
        result = judge(
            case, record.id, spec.family, record.candidate, output, sides, truths, how.profile, cross_format=how.cross_format,
            under=under if truths else None, inputs=inputs_of,
        )  # fmt: skip
        if how.explainer and output not in derived:
            result = how.explainer(result, entries, sides, inputs_of)
        if output in derived:  # says nothing new about dumps whose outputs are the same bytes
            result = replace(result, pairs=tuple(p for p in result.pairs if digests[p.a] != digests[p.b]))
        rules = {label: j.rules[name] for label, j in joints.items() if name in j.rules}
        yield with_scales(result, sides, truths, rules) if rules else result


def explainer_of(unit: str | None) -> Explainer:
    """What adds explanations to a judged tensor; checks `unit` before anything runs."""
    from accuracy_eval.explained import chosen_unit, explain_output
    from accuracy_eval.explanations import with_explanations

    chosen_unit(unit, {})

    def explained(
        result: TensorResult, entries: Sequence[Entry], sides: Sequence[SideTensor], inputs: Mapping[str, Mapping[str, Coded]]
    ) -> TensorResult:
        why = {}
        for e, side in zip(entries, sides, strict=True):
            rows, _ = rows_and_columns(side.shape)
            actual = Coded(np.asarray(side.variants[0](0, rows)).reshape(side.shape), side.format)
            tried = chosen_unit(unit, e.dump.platform)
            why[e.label] = tuple(explain_output(result.case, inputs[e.label], result.tensor, actual, tried).values())
        return with_explanations(result, why)

    return explained
