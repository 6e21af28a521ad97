"""What a dump holds of a case's outputs, digests verified here before anything is measured."""

from __future__ import annotations

from accuracy_eval.compare.joining import Entry
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes
from accuracy_eval.measuring import Rows, SideTensor
from accuracy_eval.ops.operands import quantised_inputs
from accuracy_eval.ops.spec import Inputs, Joint, OpSpec, Output
from accuracy_eval.records import CaseRecord, Coded


def stored_side(e: Entry, record: CaseRecord, name: str, verify: bool) -> SideTensor:
    """The dump's tensor with all its distinct results; digests are verified here, before anything is measured."""
    results = [t for t in record.tensors if t.role == "output" and (t.name == name or t.name.startswith(f"{name}#"))]
    if not results:
        raise UsageError(f"{e.dump.path}: {record.id} has no output {name!r}; it holds {', '.join(t.name for t in record.tensors)}")
    odd = next((t for t in results[1:] if (t.shape, t.format) != (results[0].shape, results[0].format)), None)
    if odd is not None:
        one, other = (f"{t.name} {list(t.shape)} of {t.format}" for t in (results[0], odd))
        raise UsageError(
            f"{e.dump.path}: {record.id} holds {one} and {other}; distinct results of repeated runs have one shape and format. "
            "Dump the case again."
        )
    views = [e.dump.view(record, t, verify=verify) for t in results]
    rows = tuple(_rows_of(v) for v in views)
    unwritten = record.notes.get("never_written", {}).get(name, 0)
    changed = tuple(record.notes.get("operands_changed", ()))
    first = results[0]
    digest = first.sha256 if verify else ""  # only a verified digest may stand for the bytes
    return SideTensor(e.label, first.format, first.shape, digest, rows, record.contract, int(unwritten), changed, record.repeats)


def _rows_of(view: Codes) -> Rows:
    return lambda first, end: view[first:end]


def stored_output(e: Entry, record: CaseRecord, name: str, verify: bool) -> Coded:
    stored = next(t for t in record.tensors if t.role == "output" and t.name == name)
    return Coded(e.dump.view(record, stored, verify=verify).reshape(stored.shape), stored.format)


def joint_of(e: Entry, record: CaseRecord, spec: OpSpec, inputs: Inputs, verify: bool) -> Joint:
    """What the dump's outputs of the case say together. Operands of a product are this program's codes and scales, by their digests."""
    stored = {t.name: t for t in record.tensors if t.role == "output"}
    if spec.joint is None:
        proven = {"scale_mismatch_count": 0, "conversion_mismatch_count": 0} if quantised_inputs(spec, record.case, inputs) else {}
        return Joint(dict.fromkeys(stored, proven))
    held = {n: Coded(e.dump.view(record, t, verify=verify).reshape(t.shape), t.format) for n, t in stored.items()}
    return spec.joint(record.case, inputs, e.encoding, held)


def derived_side(e: Entry, output: Output, joint: Joint) -> SideTensor:
    return SideTensor(e.label, output.format, output.shape, "", (joint.tensors[output.name],))
