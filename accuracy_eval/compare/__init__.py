"""compare: dumps joined by case, checked for equal inputs, judged by the reference and against each other.

    compare_dumps("mi300x.h5", "h200.h5", gates="turbo")

Cases are streamed: one case's operands and one panel of its reference, or a small reference whole where several candidates share it, are in
memory at a time. Inputs are regenerated from the case (or read where they are stored) and their digests must equal every dump's.
"""

from accuracy_eval.compare.comparing import compare_dumps

__all__ = ["compare_dumps"]
