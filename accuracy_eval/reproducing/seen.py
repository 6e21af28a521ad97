"""An element as one candidate has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accuracy_eval.formats import decode
from accuracy_eval.messages import code_text, number
from accuracy_eval.records import CaseRecord, TensorRecord


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
