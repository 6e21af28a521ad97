"""What a person reads about a result: one wording for the command line, reports, JUnit and `check().message`.

Everything is built from records and from what the registry says of their metrics.
"""

from __future__ import annotations

from accuracy_eval.messages.gates import (
    COMPARISON_WORDS,
    MISMATCHES,
    broken_element,
    deciding_gate,
    failed_gates,
    gate_clause,
    index_of,
    place_of,
)
from accuracy_eval.messages.measurements import (
    counts_text,
    element_text,
    errors_text,
    expectation_text,
    failed_errors,
    scales_text,
    wrong_product,
)
from accuracy_eval.messages.reasons import (
    ATTRIBUTION_WORDS,
    CONSISTENT,
    EXPLAINED,
    causes,
    kept_contract,
    pair_reason,
    side_reason,
    who_is_off,
)
from accuracy_eval.messages.resolution import resolution_text, side_resolution
from accuracy_eval.messages.values import (
    REFERENCE,
    USUAL_CANDIDATES,
    code_text,
    exact,
    index_text,
    number,
    numbers_apart,
    of_candidate,
    visible,
)
from accuracy_eval.messages.whole import pair_message, result_message, side_message, sides_message

__all__ = [
    "ATTRIBUTION_WORDS", "COMPARISON_WORDS", "CONSISTENT", "EXPLAINED", "MISMATCHES", "REFERENCE", "USUAL_CANDIDATES", "broken_element",
    "causes", "code_text", "counts_text", "deciding_gate", "element_text", "errors_text", "exact", "expectation_text", "failed_errors",
    "failed_gates", "gate_clause", "index_of", "index_text", "kept_contract", "number", "numbers_apart", "of_candidate", "pair_message",
    "pair_reason", "place_of", "resolution_text", "result_message", "scales_text", "side_message", "side_reason", "side_resolution",
    "sides_message", "visible", "who_is_off", "wrong_product",
]  # fmt: skip
