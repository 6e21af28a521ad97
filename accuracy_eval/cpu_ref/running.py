"""From the running sums of a product to the error it may have under a contract.

The error of an accumulation follows the size of its running sums s_t, not of its result. For every element the reference
keeps, over at least 32 points t of the contraction: mean |s_t|, rms s_t; V = Σ(a·b)²; N = |Σ sgn(a·b)|. Then

    M = max(mean|s_t|, 4·sqrt(V/K))          S = max(rms s_t, sqrt(V))
    chain = ½·(1 + N/K)·[n·2^-p·(1 if RZ) + N·2^-F]·M + λ·0.3·[sqrt(n)·2^-p + sqrt(K)·2^-F]·S
    B = largest chain of the contract + operand, partial and part terms + 4·2^-24·(|alpha·P| + |beta·C| + |bias|)

n roundings to p fraction bits, F alignment bits. First term: truncation has a bias, ½ of an ulp on average and a whole one
where all products agree (N = K). Second: a random walk, λ standard deviations of it. Derivation, false alarms, misses:
docs/budgets.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accuracy_eval.contracts import LAMBDA, Accumulator, Contract
from accuracy_eval.formats import Values, get_format
from accuracy_eval.jit import kernel

SAMPLES = 32  # points of the contraction at which running sums are looked at, at least
FUSED = 256  # contractions up to this length are summed by a kernel of our own: BLAS calls on a few products cost more
WALK = 0.3  # rms of one rounding in ulps: 1/sqrt(12) = 0.289


@dataclass(frozen=True)
class RunningSums:
    """What is known of the running sums of a tile of elements; arrays float64 [r, c].

    k              length of the contraction
    total          the sum itself
    mean, rms      of |s_t| and s_t over the sampled points
    root           sqrt(V), with operands below the smallest normal value counted as that value (a unit aligns by exponent field)
    coherence      N, from all products or from a sample of them
    part_sizes     Σ |part sum| over the contract's parts, and
    part_squares   Σ (part sum)²; zeros where the contract has no parts
    """

    k: int
    total: Values
    mean: Values
    rms: Values
    root: Values
    coherence: Values
    part_sizes: Values
    part_squares: Values


@kernel
def _chain(
    mean: Any, rms: Any, root: Any, coherence: Any, k: float, steps: float, unit: float, align: float, biased: float, walk: float, out: Any
) -> None:  # fmt: skip
    """out = max(out, chain). unit = 2^-p, align = 2^-F (0: none), biased 1 for RZ."""
    rk = 1.0 / np.sqrt(k)
    random = walk * (np.sqrt(steps) * unit + np.sqrt(k) * align)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            v = root[i, j]
            m = max(mean[i, j], 4.0 * v * rk)
            s = max(rms[i, j], v)
            n = coherence[i, j]
            b = 0.5 * (1.0 + n / k) * (steps * unit * biased + n * align) * m + random * s
            out[i, j] = max(out[i, j], b)


@kernel
def accumulate(term: Any, sums: Any, mean: Any, rms: Any) -> None:
    """sums += term, mean += |sums|, rms += sums²; all [r, c]."""
    for i in range(term.shape[0]):
        for j in range(term.shape[1]):
            s = sums[i, j] + term[i, j]
            sums[i, j] = s
            mean[i, j] += abs(s)
            rms[i, j] += s * s


@kernel
def accumulate_parts(term: Any, sizes: Any, squares: Any) -> None:
    """sizes += |term|, squares += term²; all [r, c]."""
    for i in range(term.shape[0]):
        for j in range(term.shape[1]):
            t = term[i, j]
            sizes[i, j] += abs(t)
            squares[i, j] += t * t


@kernel
def fused_sums(a: Any, b: Any, width: int, sums: Any, mean: Any, rms: Any) -> None:
    """Product and running sums in one go, for short contractions: a [r, k], b [k, c], looked at every `width` products.

    sums, mean, rms [r, c], zero on entry: the product, Σ |s_t| and Σ s_t².
    """
    k = a.shape[1]
    for i in range(a.shape[0]):
        for t in range(0, k, width):
            for u in range(t, min(t + width, k) - 1):
                x = a[i, u]
                for j in range(b.shape[1]):
                    sums[i, j] += x * b[u, j]
            u = min(t + width, k) - 1
            x = a[i, u]
            for j in range(b.shape[1]):
                s = sums[i, j] + x * b[u, j]
                sums[i, j] = s
                mean[i, j] += abs(s)
                rms[i, j] += s * s


def _larger_chain(sums: RunningSums, accumulators: tuple[Accumulator, ...], k: float, steps_of: int, spread: float) -> Values:
    out = np.zeros_like(sums.total)
    for a in accumulators:
        align = 0.0 if a.align is None else 2.0**-a.align
        _chain(
            sums.mean, sums.rms, sums.root, sums.coherence, float(k), float(a.steps(steps_of)),
            2.0**-a.bits, align, float(a.rounding == "RZ"), spread * WALK, out,
        )  # fmt: skip
    return out


def element_budget(contract: Contract, sums: RunningSums, spread: float = LAMBDA) -> Values:
    """Error allowed to each element of a product under `contract`, before output rounding, alpha, beta and bias; float64 [r, c].

    spread  standard deviations of the random walk: LAMBDA for the budget of an element, TYPICAL for that of many together
    """
    if contract.exact or sums.k == 0:
        return np.zeros_like(sums.total)
    if contract.part:
        budget = _parts_budget(contract, sums, spread)
    else:
        budget = _larger_chain(sums, contract.accumulators, sums.k, sums.k, spread)
    if contract.operand_bits is not None:
        # two operands: random errors of an ulp/2 each, independent; and a systematic one where truncation (or equal values)
        # makes every product err alike: two ulps of the sum at most, half as much again so that it fills two thirds
        unit = 2.0 ** -(contract.operand_bits + 1)
        budget += spread * unit * sums.root + 6.0 * unit * np.abs(sums.total)
    if contract.partial:
        unit = 2.0 ** -(get_format(contract.partial).fraction_bits + 1)
        largest = np.maximum(np.maximum(sums.rms, sums.root), np.abs(sums.total))
        budget += min(contract.pieces, sums.k) * unit * largest  # a piece has a product at least
    return budget


def carried(contract: Contract, k: int, spread: float = LAMBDA) -> float:
    """Error of a sum of k products that starts at C instead of having it added, relative to C: every step rounds C once more."""
    found = 0.0
    for a in contract.promoted or contract.accumulators:
        steps, unit = a.steps(-(-k // contract.part) if contract.part else k), 2.0**-a.bits
        found = max(found, 0.5 * steps * unit * (a.rounding == "RZ") + spread * WALK * np.sqrt(steps) * unit)
    return found


def _parts_budget(contract: Contract, sums: RunningSums, spread: float) -> Values:
    """`accumulators` over parts of the contraction, from zero each, then `promoted` over the part sums.

    Inside a part the running sum is between a random walk (sqrt of the part's V) and a ramp to the part's sum; Cauchy-Schwarz
    over the parts bounds Σ_j sqrt(V_j) by sqrt(parts·V).
    """
    width = min(contract.part, sums.k)
    parts = -(-sums.k // width)
    v = sums.root
    sizes = sums.part_sizes + 4.0 / np.sqrt(width) * np.sqrt(parts) * v  # Σ_j M_j
    walk = np.sqrt(sums.part_squares + v * v)  # sqrt(Σ_j S_j²)
    n = sums.coherence / parts
    budget = np.zeros_like(v)
    for a in contract.accumulators:
        unit, align, steps = 2.0**-a.bits, 0.0 if a.align is None else 2.0**-a.align, a.steps(width)
        bias = 0.5 * (1.0 + n / width) * (steps * unit * (a.rounding == "RZ") + n * align) * sizes
        np.maximum(budget, bias + spread * WALK * (np.sqrt(steps) * unit + np.sqrt(width) * align) * walk, out=budget)
    return budget + _larger_chain(sums, contract.promoted, sums.k, parts, spread)
