"""What is known of a tensor: its values, what they may be off by, what they may be instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.attention.problem import Attention
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import Values


@dataclass(frozen=True)
class Result:
    """A tensor's values and the largest error of each, float64, same shape; and what it may hold instead, asked for where it does.

    typical  what many elements may be off by together, in the root mean square; None where only single ones have a limit
    """

    values: Values
    budget: Values
    reach: Callable[[], Reach]
    typical: Values | None = None


def zeros(shape: tuple[int, ...]) -> Result:
    """Zeros that nothing can miss."""
    nothing = np.zeros(shape)
    return Result(nothing, nothing, lambda: Reach.exactly(nothing), nothing)


def stacked(parts: Sequence[Result], shape: tuple[int, ...]) -> Result:
    """The results of all heads as one of that shape, their order that of its leading axes."""

    def whole(items: Sequence[Any], field: str) -> NDArray[Any]:
        return np.stack([getattr(x, field) for x in items]).reshape(shape)

    def reach() -> Reach:
        found = [p.reach() for p in parts]
        return Reach(*(whole(found, f) for f in ("low", "high", "nan")))

    typical = whole(parts, "typical") if all(p.typical is not None for p in parts) else None
    return Result(whole(parts, "values"), whole(parts, "budget"), reach, typical)


def added(a: Attention, parts: Sequence[Result]) -> Result:
    """Gradients of heads that share an operand: each may be rounded to its format before they are added."""
    if len(parts) == 1:
        return parts[0]
    values, budget = (np.sum([getattr(p, f) for p in parts], axis=0) for f in ("values", "budget"))
    rounded = LAMBDA * np.sqrt(np.sum([a.half(p.values) ** 2 for p in parts], axis=0) / 3.0)

    def reach() -> Reach:
        found = [p.reach().stored(a.format) for p in parts]
        return reduce(Reach.__add__, found)

    return Result(values, budget + rounded, reach)
