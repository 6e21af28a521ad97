"""What a case of each attention op computes, in one form: (case, inputs as stored, contract) -> the problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accuracy_eval.cpu_ref.attention import Attention
from accuracy_eval.ops import attention, attention_fp8
from accuracy_eval.ops.spec import Inputs
from accuracy_eval.records import Case

PROBLEMS: Mapping[str, Callable[[Case, Inputs, str], Attention]] = {
    "attention": lambda case, inputs, _: attention.problem_of(case, inputs),
    "attention_fp8": attention_fp8.problem_of,
}
