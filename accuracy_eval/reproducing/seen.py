"""An element as each candidate has it, and whether it keeps its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.budget import interval, within_budget
from accuracy_eval.formats import decode
from accuracy_eval.messages import code_text, number
from accuracy_eval.records import CaseRecord, TensorRecord

PER_LINE = 8  # codes of a line


@dataclass(frozen=True)
class Seen:
    """The code of an element in one record's tensor."""

    record: CaseRecord
    tensor: TensorRecord
    code: Any

    @property
    def text(self) -> str:
        return f"actual {coded(self.code, self.tensor.format)} ({self.tensor.format}, {self.record.candidate})"


def coded(code: Any, fmt: str) -> str:
    """A code and its value: "0xC1B0 = -22"."""
    return f"{code_text(int(code), fmt)} = {number(float(decode(np.asarray(code), fmt)), 17)}"


def coded_lines(codes: NDArray[Any], fmt: str) -> list[str]:
    """Codes in lines of PER_LINE; of a single one its value too."""
    texts = [code_text(int(c), fmt) for c in codes] if len(codes) > 1 else [coded(codes[0], fmt)]
    return [f"    {' '.join(texts[i : i + PER_LINE])}" for i in range(0, len(texts), PER_LINE)]


def judged(seen: Sequence[Seen], reference: Callable[[str], tuple[float, float]]) -> Iterator[str]:
    """Lines: every candidate's code and whether it keeps its budget, then the references and what keeps them.

    reference(contract): value and budget.
    """
    references: dict[str, str] = {}
    for s in seen:
        contract, fmt = s.record.contract, s.tensor.format
        value, budget = (np.array([x]) for x in reference(contract))
        kept = within_budget(np.atleast_1d(s.code), value, budget, fmt)[0]
        yield f"  {s.text}: {'within' if kept else 'outside'} its budget"
        low, high = (code_text(int(x[0]), fmt) for x in interval(value, budget, fmt))
        allowed = f"{low} … {high} keep it" if low != high else f"{low} alone keeps it"
        references[contract] = f"  reference {number(value[0], 17)}, budget {number(budget[0], 3)} (contract {contract}): {allowed}"
    yield from references.values()
