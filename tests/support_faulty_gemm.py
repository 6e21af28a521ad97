"""A candidate whose second run has one wrong element."""

from __future__ import annotations

from collections import Counter
from typing import Any

from accuracy_eval.backends.candidates import candidate
from accuracy_eval.records import Case

RUNS: Counter[Case] = Counter()


@candidate("gemm", name="second-run-off")
def second_run_off(case: Case, tensors: Any) -> Any:
    d = tensors["a"] @ tensors["b"].t()
    RUNS[case] += 1
    if RUNS[case] == 2:
        d[5, 7] += 1
    return d
