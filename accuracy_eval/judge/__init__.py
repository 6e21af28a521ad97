"""judge: one output tensor of one case over all its sides.

Every side is measured against the reference, every pair of sides against each other (`measuring`); gates and structural checks turn the
measurements into verdicts, and the verdicts into an attribution: who is off. Nothing here reads files or runs devices.
"""

from accuracy_eval.judge.causes import Under
from accuracy_eval.judge.sides import NOTHING_FINITE, broken_run, decided, misfit
from accuracy_eval.judge.subject import Subject
from accuracy_eval.judge.tensor import judge_tensor

__all__ = ["NOTHING_FINITE", "Subject", "Under", "broken_run", "decided", "judge_tensor", "misfit"]
