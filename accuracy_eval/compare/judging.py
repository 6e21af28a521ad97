"""One case of all dumps: inputs checked, outputs judged by the reference and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from accuracy_eval.apart import Apart
from accuracy_eval.compare.common import Common
from accuracy_eval.compare.how import How
from accuracy_eval.compare.inputs import check_inputs, digests_alone
from accuracy_eval.compare.joining import Entry
from accuracy_eval.compare.relations import relation_results
from accuracy_eval.compare.sides import derived_side, joint_of, stored_side
from accuracy_eval.compare.truths import Truths
from accuracy_eval.errors import FileError, InputMismatch, located
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import SideTensor
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Joint, Reference
from accuracy_eval.records import CaseRecord, NotCompared, TensorResult, Verdict
from accuracy_eval.sampled import judge_sampled
from accuracy_eval.scaling import with_scales
from accuracy_eval.store.shards import LACKING, Shards

NOT_DONE = {"unsupported": Verdict.UNSUPPORTED}  # by status of a case that gave no result; all others are errors


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
            yield skip(e.label, Verdict.MISSING, f"{_absent(e)}; it is in {', '.join(records)}")
        elif record.status != "done":
            yield skip(e.label, NOT_DONE.get(record.status, Verdict.ERROR), record.reason)
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
    record, encoding = records[entries[0].label], entries[0].encoding
    case, spec = record.case, get_op(record.case.op)
    if spec.relation(case) is not None:
        yield from relation_results(entries, records, how.profile, how.verify)
        return
    truths = Truths(entries, records, how, common)
    joints = {e.label: joint_of(e, records[e.label], spec, truths.inputs[e.label], how.verify) for e in entries}
    subject = partial(Subject, case, name=record.id, family=spec.family, candidate=record.candidate)
    for output in spec.outputs(case, encoding):
        sides = [stored_side(e, records[e.label], output.name, how.verify) for e in entries]
        result = _judge_output(subject(output), sides, joints, truths, how)
        yield how.explainer(result, entries, sides, truths.inputs) if how.explainer else result
    if how.reference == "none":
        return
    digests = {e.label: [t.sha256 for t in records[e.label].tensors if t.role == "output"] for e in entries}
    for output in spec.derived(case, encoding):
        sides = [derived_side(e, output, joints[e.label]) for e in entries if output.name in joints[e.label].tensors]
        if not sides or not subject(output).gates(how.profile, ""):
            continue  # the outputs themselves say what is wrong, or the profile has nothing to say about this tensor
        result = _judge_output(subject(output), sides, joints, truths, how)
        # says nothing new about dumps whose outputs are the same bytes
        yield replace(result, pairs=tuple(p for p in result.pairs if digests[p.a] != digests[p.b]))


def _judge_output(subject: Subject, tensors: Sequence[SideTensor], joints: Mapping[str, Joint], truths: Truths, how: How) -> TensorResult:
    """One output of all sides; `joints` by label: what each side's outputs say only together."""
    name = subject.output.name
    sides = [replace(s, derived=joints[s.label].metrics.get(name, {})) for s in tensors]
    promised = {label: truths.promised(label)[name] for label in truths.meaning}
    if how.reference == "none":
        references: Mapping[str, Reference] = {}
        judge = partial(judge_tensor, apart=Apart(truths.meaning, promised))
    else:
        references = promised
        judge = partial(
            judge_sampled if any(r.sample for r in promised.values()) else judge_tensor,
            under=lambda label, contract: truths.under(label, contract)[name],
        )
    result = judge(subject, sides, references, how.profile, cross_format=how.cross_format, inputs=truths.inputs)
    rules = {label: j.rules[name] for label, j in joints.items() if name in j.rules}
    return with_scales(result, sides, references, rules) if rules else result


def _absent(e: Entry) -> str:
    """That a case is not in the dump, and of a shard which it is."""
    shards = Shards.of(e.dump.info)
    return f"{LACKING} ({e.dump.path.name}: {shards.text()})" if shards else f"not in {e.dump.path.name}"
