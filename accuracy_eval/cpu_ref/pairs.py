"""Error-free sums and products of float64: the result and, exactly, what rounding it lost. Used inside kernels.

Only +, − and × of IEEE float64, so every host gets the same bits. Sources: Knuth (two_sum), Dekker 1971 (split and product).
"""

from __future__ import annotations

from accuracy_eval.jit import inline

Pair = tuple[float, float]

SPLITTER = 134217729.0  # 2^27 + 1


@inline
def two_sum(a: float, b: float) -> Pair:
    """a + b exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@inline
def quick_two_sum(a: float, b: float) -> Pair:
    """a + b exactly, for |a| ≥ |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


@inline
def high_part(a: float) -> float:
    """The upper 26 bits of `a`; the rest then has 26 bits at most. For magnitudes below 2^996."""
    t = SPLITTER * a
    return t - (t - a)


@inline
def lost(p: float, ah: float, al: float, bh: float, bl: float) -> float:
    """(ah + al)·(bh + bl) − p exactly, p the rounded product of numbers split by `high_part`, unless it underflows."""
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl


@inline
def two_prod(a: float, b: float) -> Pair:
    """a · b exactly, for |a|, |b| < 2^996 and a product whose tail does not underflow."""
    p = a * b
    ah, bh = high_part(a), high_part(b)
    return p, lost(p, ah, a - ah, bh, b - bh)
