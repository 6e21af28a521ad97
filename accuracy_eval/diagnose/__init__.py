"""From the structure of an error to a named cause. A wrong name costs more than none: where two causes fit, none is named.

`CODES` is the registry, one row per code; `diagnose(Context(...))` runs its rules and ranks what they find; `structural` are those
that fail whatever the gates say; `named` words a diagnosis that others made; `reproducer` is one row × one column to try again.
"""

from __future__ import annotations

from accuracy_eval.diagnose.coded import origins
from accuracy_eval.diagnose.codes import CODES, NOT_NAMED, Code, diagnose, fails, gate_cannot_fail, named, structural
from accuracy_eval.diagnose.context import Context, Rows, context_of, rows_of, rows_of_panels
from accuracy_eval.diagnose.facts import all_zero_value
from accuracy_eval.diagnose.places import whole_words
from accuracy_eval.diagnose.reproduce import reproducer

__all__ = [
    "CODES",
    "NOT_NAMED",
    "Code",
    "Context",
    "Rows",
    "all_zero_value",
    "context_of",
    "diagnose",
    "fails",
    "gate_cannot_fail",
    "named",
    "origins",
    "reproducer",
    "rows_of",
    "rows_of_panels",
    "structural",
    "whole_words",
]
