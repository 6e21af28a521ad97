"""How products are added: float32 one by one, bfloat16 partial sums, a 14-bit accumulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accuracy_eval.formats import Values, round_to

Unit = Callable[[Values, Values], Values]


def float32_sums(a: Values, b: Values) -> Values:
    """a [m, k], b [n, k] → [m, n]: products added one by one in increasing k, each sum rounded to float32."""
    total = np.zeros((len(a), len(b)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(a.shape[1]):
            total = (total + a[:, t, None] * b[None, :, t]).astype(np.float32)
    return total.astype(np.float64)


def bfloat16_partials(a: Values, b: Values, pieces: int = 4) -> Values:
    """K in four contiguous pieces, whose sums are rounded to bfloat16 before they are added in float32."""
    width = -(-a.shape[1] // pieces)
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(0, a.shape[1], width):
        part = float32_sums(a[:, k : k + width], b[:, k : k + width])
        total += round_to(part, "bfloat16").astype(np.float32)
    return total.astype(np.float64)


def fourteen_bits(a: Values, b: Values, width: int = 32) -> Values:
    """An accumulator of 14 significant bits: terms of 32 products and the sum are cut 13 bits below the largest, toward zero."""
    zero = -(1 << 12)  # exponent of a zero: below every other

    def exponent(x: Values) -> Values:
        return np.where(x == 0, zero, np.frexp(x)[1] - 1)

    total = np.zeros((len(a), len(b)))
    for k in range(0, a.shape[1], width):
        x, y = a[:, None, k : k + width], b[None, :, k : k + width]
        of_terms = np.concatenate([exponent(x) + exponent(y), exponent(total)[:, :, None]], axis=2)  # products are not normalised
        unit = np.maximum(of_terms.max(axis=2), -900) - 13
        terms = np.concatenate([x * y, total[:, :, None]], axis=2)
        total = np.ldexp(np.trunc(np.ldexp(terms, -unit[:, :, None])).sum(axis=2), unit)
        unit = np.maximum(exponent(total), -900) - 13
        total = np.ldexp(np.trunc(np.ldexp(total, -unit)), unit)
    return total
