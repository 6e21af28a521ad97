"""The references that judge one candidate of a case, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from accuracy_eval.compare.common import Common, References
from accuracy_eval.compare.how import How
from accuracy_eval.compare.inputs import same_numbers
from accuracy_eval.compare.joining import Entry
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Inputs
from accuracy_eval.records import Case, CaseRecord
from accuracy_eval.sampled import scoped


class Truths:
    """Sides whose encodings mean the same numbers have one truth; what it allows is their contract's.

    meaning   by side label: the encoding whose operands the side's equal
    inputs    by side label: those operands, as stored
    """

    def __init__(self, entries: Sequence[Entry], records: Mapping[str, CaseRecord], how: How, common: Common) -> None:
        self.case: Case = records[entries[0].label].case
        self._spec, self._how, self._common = get_op(self.case.op), how, common
        self._contracts = {e.label: records[e.label].contract for e in entries}
        same: dict[Encoding, Encoding] = {}
        for encoding in dict.fromkeys(e.encoding for e in entries):
            same[encoding] = next((m for m in same.values() if same_numbers(self._spec, self.case, m, encoding)), encoding)
        self.meaning: dict[str, Encoding] = {e.label: same[e.encoding] for e in entries}
        self.inputs: dict[str, Inputs] = {label: common.operands[m].inputs for label, m in self.meaning.items()}

    def promised(self, label: str) -> References:
        """By output: what the side must be under its own contract."""
        return self.under(label, self._contracts[label])

    def under(self, label: str, contract: str) -> References:
        """By output: what the side must be under a contract."""
        return self._common.references(self.meaning[label], contract, partial(self._made, label, contract))

    def _made(self, label: str, contract: str) -> References:
        meaning, inputs, how = self.meaning[label], self.inputs[label], self._how
        whole = self._spec.reference(self.case, inputs, meaning, contract)
        if how.reference == "none":
            return whole
        references = {name: scoped(r, how.reference) for name, r in whole.items()}
        return how.cache.kept(references, self.case, meaning, inputs) if how.cache else references
