"""Whether dumps computed from the operands that this program generates for a case: outputs of different inputs are never compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accuracy_eval.cases import case_id
from accuracy_eval.compare.joining import Entry
from accuracy_eval.digests import sha256_many
from accuracy_eval.errors import InputMismatch
from accuracy_eval.formats import Codes, concrete
from accuracy_eval.ops.operands import operand_codes, quantised_inputs, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Inputs, OpSpec
from accuracy_eval.records import Case, CaseRecord


@dataclass(frozen=True)
class Operands:
    """A case's operands under one encoding: codes as generated, what the op receives, and the digests of both by role and name."""

    codes: dict[str, Codes]
    inputs: Inputs
    digests: dict[tuple[str, str], str]


def _operands(spec: OpSpec, case: Case, encoding: Encoding) -> Operands:
    codes = operand_codes(spec, case, encoding)
    inputs = stored_inputs(spec, case, encoding, codes)
    arrays = {("source", name): c for name, c in codes.items()}
    arrays |= {("input", name): coded.codes for name, coded in quantised_inputs(spec, case, inputs).items()}
    return Operands(codes, inputs, dict(zip(arrays, sha256_many(arrays.values()), strict=True)))


def check_inputs(
    e: Entry, record: CaseRecord, operands: dict[Encoding, Operands], entries: Sequence[Entry], records: Mapping[str, CaseRecord]
) -> None:
    """Raise InputMismatch unless the dump's digests are those of the operands this program generates for the case, and under a recipe
    of the codes and scales it quantises them to."""
    spec = get_op(record.case.op)
    if case_id(record.case) != record.id:
        raise InputMismatch(
            f"{record.id} ({e.label}): the record describes {case_id(record.case)}; the file's index is inconsistent. Dump it again."
        )
    if e.encoding not in operands:
        operands[e.encoding] = _operands(spec, record.case, e.encoding)
    stored = {(t.role, t.name): t for t in record.tensors}
    for (role, name), digest in operands[e.encoding].digests.items():
        found = stored[role, name].sha256 if (role, name) in stored else "absent"
        if found != digest:
            other = next((f"{o.label} has {t.sha256[:16]}…" for o in entries if o.label != e.label and o.label in records
                          for t in records[o.label].tensors if (t.role, t.name) == (role, name)), "")  # fmt: skip
            raise InputMismatch(
                f"{record.id} input {name!r}: sha256 {found[:16]}… ({e.dump.path.name}) != {digest[:16]}… (this version's generator)"
                f"{'; ' + other if other else ''}; the outputs come from different inputs. Dump both with the same accuracy-eval version."
            )


def digests_alone(e: Entry, records: Mapping[str, CaseRecord]) -> str:
    """What digests say where no dump holds these bytes."""

    def of(record: CaseRecord) -> list[tuple[str, str]]:
        return [(t.name, t.sha256) for t in record.tensors if t.role == "output"]

    same = [label for label, r in records.items() if label != e.label and r.status == "done" and of(r) == of(records[e.label])]
    others = [label for label, r in records.items() if label not in (e.label, *same) and r.status == "done"]
    said = [f"bit-identical to {', '.join(same)}"] if same else []
    said += [f"other bytes than {', '.join(others)}"] if others else []
    return f"{e.dump.path.name} holds digests alone: {'; '.join(said) or 'nothing to compare with'}; not judged without the codes"


def same_numbers(spec: OpSpec, case: Case, a: Encoding, b: Encoding) -> bool:
    """Whether the case means the same under both fp8 encodings: it then has one reference."""
    if case.recipe and any(concrete(f, a) != concrete(f, b) for f in case.format.split("+")):
        return False
    return spec.operands(case, a) == spec.operands(case, b) and spec.outputs(case, a) == spec.outputs(case, b)
