"""The companions of a random GEMM case: operands on which rounding plays no part, so that only mapping faults can show.

`exact_gemm` integers that no order, split or accumulator rounds · `certificate` their check in O(n²) · `coded_gemm` operands whose
product names where each element came from.
"""

from __future__ import annotations

from accuracy_eval.inputs.coded import CodedFault, CodedOperands, CodedReading, coded_gemm, coded_values, decode_coded
from accuracy_eval.inputs.exact import NOT_AN_INTEGER, ExactOperands, code_integers, exact_gemm, integer_codes
from accuracy_eval.inputs.exact_plan import Plan
from accuracy_eval.inputs.freivalds import certificate, wrong_columns

__all__ = [
    "NOT_AN_INTEGER",
    "CodedFault",
    "CodedOperands",
    "CodedReading",
    "ExactOperands",
    "Plan",
    "certificate",
    "code_integers",
    "coded_gemm",
    "coded_values",
    "decode_coded",
    "exact_gemm",
    "integer_codes",
    "wrong_columns",
]
