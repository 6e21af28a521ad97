"""How cases are judged, and what adds explanations to judged tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from accuracy_eval.compare.joining import Entry
from accuracy_eval.gates import Profile
from accuracy_eval.measuring import SideTensor
from accuracy_eval.ops.spec import Inputs, rows_and_columns
from accuracy_eval.records import Coded, TensorResult
from accuracy_eval.reference_cache import ReferenceCache

ReferenceMode = Literal["full", "sampled", "auto", "none"]
Explainer = Callable[[TensorResult, Sequence[Entry], Sequence[SideTensor], Mapping[str, Inputs]], TensorResult]
"""(result, its dumps, their tensors, operands by label) -> the result with explanations."""


@dataclass(frozen=True)
class How:
    """See `compare_dumps`."""

    profile: Profile
    reference: ReferenceMode
    cache: ReferenceCache | None
    cross_format: bool
    verify: bool
    explainer: Explainer | None


def explainer_of(unit: str | None) -> Explainer:
    """What adds explanations to a judged tensor; checks `unit` before anything runs."""
    from accuracy_eval.explained import chosen_unit, explain_output
    from accuracy_eval.explanations import with_explanations

    chosen_unit(unit, {})

    def explained(
        result: TensorResult, entries: Sequence[Entry], sides: Sequence[SideTensor], inputs: Mapping[str, Inputs]
    ) -> TensorResult:
        why = {}
        for e, side in zip(entries, sides, strict=True):
            rows, _ = rows_and_columns(side.shape)
            actual = Coded(np.asarray(side.variants[0](0, rows)).reshape(side.shape), side.format)
            tried = chosen_unit(unit, e.dump.platform)
            why[e.label] = tuple(explain_output(result.case, inputs[e.label], result.tensor, actual, tried).values())
        return with_explanations(result, why)

    return explained
