"""Operands that are indices: classes, tokens, experts."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.inputs.philox import STREAM_32, stream_key, words

Spread = Literal["uniform", "skewed", "one"]


def indices(op: str, operand: str, shape: tuple[int, ...], below: int, seed: int, spread: Spread = "uniform") -> NDArray[Any]:
    """Codes of int32 indices in [0, below), C order: the same on every host.

    spread  "uniform" all equally often · "skewed" low ones more often, as words of a language are: u² of a uniform u · "one" all the same
    """
    count = math.prod(shape)
    if spread == "one":
        return np.full(shape, below // 2, np.uint32)
    word = words(stream_key(op, operand, shape, f"{spread}{below}", seed), STREAM_32, 0, count).astype(np.uint64)
    if spread == "skewed":
        word = word * word >> np.uint64(32)
    return (word * np.uint64(below) >> np.uint64(32)).astype(np.uint32).reshape(shape)
