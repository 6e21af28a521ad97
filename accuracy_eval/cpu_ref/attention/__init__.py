"""Scaled dot-product attention and its gradients in float64, with the error that independent roundings of its steps leave.

Per head, with S = scale·Q·Kᵀ (and a mask), P = softmax(S): O = P·V, L = log Σ e^S. Backward from dO: dV = Pᵀ·dO, dP = dO·Vᵀ,
δ = Σ dO·O, dS = P·(dP − δ), dQ = scale·dS·K, dK = scale·dSᵀ·Q. Several query heads may share one of K and V: their gradients add.

With operands of 8 bits the weights e^(S − max), which their sum divides at the end, are rounded to 8 bits too. That sum, and so L, may be
of the rounded ones.

A sink is a number a head learns: the score of one more key, whose value is zero. It joins the denominator of P, and L; its gradient is
Σ dS of its column over batch and queries.

What a fused kernel rounds: S and dP keep a float32 accumulator; P and dS are rounded to the operands' format before they are multiplied;
O, from which δ comes, is stored in it. Each is one independent error per element; a sum of products with them is off by LAMBDA standard
deviations at most (docs/budgets.md). Float64 operands keep everything in float64.

Where errors of S are no longer small beside 1, P is anything between two bounds instead; backward, P comes from S and a stored L, and may
exceed 1. Beyond its range S is NaN to P. A key that a mask hides has no part in the result, but Inf and NaN in it may reach the result all
the same, as P = 0 times Inf. Where every score is −Inf the result is NaN by the formula, and 0 where a kernel takes the row for masked.

problem     what is computed          heads   of all heads: `forward`, `backward`, one query of them
head        P, O and L of one head    result  values with their budgets, put together
gradients   of one head               factors what many elements show of roundings that hide in each single one
"""

from accuracy_eval.cpu_ref.attention.factors import factors
from accuracy_eval.cpu_ref.attention.head import Head
from accuracy_eval.cpu_ref.attention.heads import Query, backward, forward, query_of
from accuracy_eval.cpu_ref.attention.problem import Attention, Narrow
from accuracy_eval.cpu_ref.attention.result import Result

__all__ = ["Attention", "Head", "Narrow", "Query", "Result", "backward", "factors", "forward", "query_of"]
