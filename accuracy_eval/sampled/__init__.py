"""Judging by a sampled reference: exact rows and columns by every gate, all others by random projections.

The exact lines are tensors of their own, judged like any other. The projections of all lines are held to what a line within its budget
can show (cpu_ref.sampling.limits); a line beyond it is suspect, and the worst suspects are computed exactly too, so that a fault has an
element, an index and causes. What is left is a verdict with scope "sampled" and the sizes of fault that it would have seen.
"""

from accuracy_eval.sampled.judging import judge_sampled, scoped

__all__ = ["judge_sampled", "scoped"]
