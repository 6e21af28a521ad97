"""What an attention computes, and the arithmetic its kernels may use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.flush import lost_steps, stored
from accuracy_eval.formats import Values, arithmetic_format, get_format

WALK = 0.3  # rms of one rounding in ulps, as in the budget of a product
STEP = 4  # products a truncating matrix unit adds per rounding (the coarsest the contract allows)

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Narrow:
    """How a kernel multiplies operands of 8 bits.

    format  of the weights e^(S − max), which are multiplied by `scale` before they are rounded to it
    ulp     a relative step of the sums of products; step: products added for each
    """

    format: str
    scale: float
    ulp: float
    step: int

    def half(self, p: Values) -> Values:
        """What rounding the weights costs at most, of P [s, t]; a maximum that is found on the way makes them no coarser."""
        fmt = get_format(self.format)
        smallest: Values = p.max(axis=1, keepdims=True) * (fmt.smallest_subnormal / 2 / self.scale)
        return np.maximum(p * (fmt.eps / 2), smallest)


@dataclass(frozen=True)
class Attention:
    """What is computed.

    q [b, h, s, d], k, v [b, g, t, d]   float64; h is a multiple of g
    causal   query i sees keys up to i (counted from the first)
    window   query i sees keys from i − window + 1 to i; 0: no window
    format   format of the operands: what P, dS and O are rounded to
    sink     [h], or None: there is none
    narrow   how operands of 8 bits are multiplied; None: they have more
    mask     [s, t]: which keys a query sees, in place of what causal and window say; None: they say it
    """

    q: Values
    k: Values
    v: Values
    scale: float
    causal: bool
    window: int
    format: str
    sink: Values | None = None
    narrow: Narrow | None = None
    mask: Flags | None = None

    def half(self, x: Values) -> Values:
        """What one rounding to the operands' format costs at most."""
        return stored(np.abs(x), self.format) / 2

    @property
    def largest(self) -> float:
        """Of the arithmetic between the roundings."""
        return arithmetic_format(self.format).max

    @property
    def ulp(self) -> float:
        """A relative step of the arithmetic between the roundings."""
        return arithmetic_format(self.format).eps

    @property
    def adding(self) -> tuple[float, int]:
        """A relative step of sums of products, and how many a truncating unit adds for each."""
        return (self.narrow.ulp, self.narrow.step) if self.narrow else (self.ulp, STEP)

    def half_weight(self, p: Values) -> Values:
        """What rounding P costs at most, [s, t]."""
        return self.narrow.half(p) if self.narrow else self.half(p)

    def accumulated(self, length: int, root: Values, value: Values) -> Values:
        """What adding `length` products costs, the root of whose squares' sum is given: a truncating unit's bias, and a walk."""
        step, width = self.adding
        steps = length / width
        allowed: Values = step * (steps / 2 * np.maximum(root, np.abs(value)) + LAMBDA * WALK * math.sqrt(length) * root)
        return allowed + lost_steps(length, flushes=self.format != "float64")

    def visible(self) -> Flags | None:
        """[s, t]: which keys a query sees; None: all."""
        if self.mask is not None or not (self.causal or self.window):
            return self.mask
        i, j = np.arange(self.q.shape[2])[:, None], np.arange(self.k.shape[2])[None, :]
        return (j <= i) & ((j > i - self.window) if self.window else True)
