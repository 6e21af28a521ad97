"""What one pass over two arrays leaves behind: exact counts, and sums as exact fractions of what was added up.

The walk's float64 sums come in three buckets (see walk.py) and one pair per unit of work. Here they meet: every bucket is added with
`math.fsum`, the three are joined as `Fraction`, and ratios and square roots are taken of fractions, so 1e200 squared is a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accuracy_eval.metrics.aggregates import Aggregates

ZERO = Fraction(0)


def as_float(x: Fraction) -> float:
    """The float64 nearest to x; ±inf beyond its range."""
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def root(x: Fraction) -> float:
    """√x as float64 for any x >= 0, also where x itself is outside float64's range."""
    if x == 0:
        return 0.0
    # a shift by an even power of two brings x near 1
    shift = (x.numerator.bit_length() - x.denominator.bit_length()) // 2
    try:
        near = x.numerator / (x.denominator << 2 * shift) if shift >= 0 else (x.numerator << -2 * shift) / x.denominator
        return math.ldexp(math.sqrt(near), shift)
    except OverflowError:
        return math.inf


def decibel(x: Fraction) -> float:
    """10·log10(x) for any x > 0."""
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    if -1000 < shift < 1000:
        return 10 * math.log10(as_float(x))
    return 10 * (math.log10(as_float(x / Fraction(2) ** shift)) + shift * math.log10(2))


@dataclass(frozen=True)
class Totals:
    """Sums and counts over one pair of arrays; d = actual - expected. Numeric sums run over the pairs of which both are finite.

    n                  elements; `valid` of them are finite on both sides
    aa ee dd ae de     Σa², Σe², Σd², Σa·e, Σd·e
    bias               Σd·sgn(e)
    spread             Σ(d - mean d)²
    ulp_sum, ulp_abs   Σ of signed and absolute ulp errors; None where one of them is beyond float64
    ulp_max            exact integer between codes of one format; None without a finite pair
    ulp_quantiles      quantile -> ulp error
    max_*, *_at        largest value of its kind and flat index of its first occurrence met; None where there is none
    uses               largest shares of the typical budget that rows, columns and tiles use
    index              flat index -> index as reports print it
    """

    n: int
    valid: int
    aa: Fraction
    ee: Fraction
    dd: Fraction
    ae: Fraction
    de: Fraction
    bias: Fraction
    spread: Fraction
    ulp_sum: Fraction | None
    ulp_abs: Fraction | None
    ulp_max: int | float | None
    ulp_max_at: int | None
    ulp_quantiles: Mapping[str, int | float]
    max_abs: float
    max_abs_at: int | None
    max_rel: float | None
    max_rel_at: int | None
    max_scaled: float
    inner_max: float | None
    inner_max_at: int | None
    budget_max: float | None
    budget_max_at: int | None
    over_budget: int | None
    mismatches: int
    up: int
    down: int
    zero_sign: int
    nonzero_at_zero: int
    zero_references: int
    nonfinite: int
    worst_row: tuple[int, float] | None
    worst_col: tuple[int, float] | None
    worst_tile: tuple[tuple[int, int], float] | None
    uses: Aggregates
    shape: tuple[int, ...]

    def index(self, flat: int | None) -> int | list[int] | None:
        """An int for 1-D arrays, else a list, as evidence and reports print it."""
        if flat is None:
            return None
        out = []
        for size in reversed(self.shape):
            flat, i = divmod(flat, size)
            out.append(i)
        return out[0] if len(out) == 1 else out[::-1]

    @property
    def rel_fro(self) -> float | None:
        if not self.valid or (self.ee == 0 and self.dd != 0):
            return None
        return 0.0 if self.dd == 0 else root(self.dd / self.ee)

    @property
    def cosine(self) -> float | None:
        if not self.valid:
            return None
        if self.dd == 0:
            return 1.0
        if self.aa == 0 or self.ee == 0:
            return 0.0
        size = min(root(self.ae * self.ae / (self.aa * self.ee)), 1.0)
        return size if self.ae >= 0 else -size

    @property
    def snr_db(self) -> float | None:
        if not self.valid or (self.ee == 0 and self.dd != 0):
            return None
        return math.inf if self.dd == 0 else decibel(self.ee / self.dd)

    @property
    def sym_diff(self) -> float | None:
        if not self.valid:
            return None
        return 0.0 if self.dd == 0 else as_float(self.dd / (self.aa + self.ee))

    @property
    def gain(self) -> float | None:
        return as_float(self.ae / self.ee) if self.ee != 0 else None

    @property
    def gain_se(self) -> float | None:
        """√(Σ(a - g·e)² / ((n-1)·Σe²)). The residual is Σa² - (Σa·e)²/Σe² = Σd² - (Σd·e)²/Σe²; the smaller pair cancels less."""
        if self.ee == 0 or self.valid < 2:
            return None
        square, product = (self.dd, self.de) if self.dd < self.aa else (self.aa, self.ae)
        residual = max(square - product * product / self.ee, ZERO)
        return root(residual / ((self.valid - 1) * self.ee))

    @property
    def bias_ulp(self) -> float | None:
        """Mean signed ulp error; none where one is beyond float64."""
        return None if not self.valid or self.ulp_sum is None else as_float(self.ulp_sum / self.valid)

    @property
    def ulp_mean(self) -> float | None:
        """Mean |ulp error|; +inf where one is beyond float64."""
        if not self.valid:
            return None
        return math.inf if self.ulp_abs is None else as_float(self.ulp_abs / self.valid)

    @property
    def bias_sigma(self) -> float | None:
        if not self.valid or self.spread == 0:
            return None
        size = root(self.bias * self.bias / (self.spread * self.valid))
        return size if self.bias >= 0 else -size
