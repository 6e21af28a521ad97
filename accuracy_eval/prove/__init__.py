"""prove: known faults put into GEMM results, judged as any result is: what every gate of a profile catches, and what none sees.

`prove("default")` computes small products (M × N = 32 × 48) at K = 64 and 8192 of six kinds of operands, changes them by each of
MUTATIONS, and judges all of them. A mutation that a gate claims to catch (CLAIMS) and does not is a broken claim; a gate that no
mutation of a product can break is named as well.
"""

from accuracy_eval.prove.claims import CLAIMS, Cell, Claim
from accuracy_eval.prove.mutations import MUTATIONS, Mutation, NotApplicable
from accuracy_eval.prove.products import COLUMNS, Column, Problem, lanes, problem
from accuracy_eval.prove.proving import Proof, prove, prove_all, telling

__all__ = [
    "CLAIMS", "COLUMNS", "MUTATIONS", "Cell", "Claim", "Column", "Mutation", "NotApplicable", "Problem", "Proof", "lanes", "problem",
    "prove", "prove_all", "telling",
]  # fmt: skip
