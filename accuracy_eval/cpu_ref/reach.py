"""What steps of a composite op may hold on healthy devices: an interval of the extended reals, and perhaps NaN.

A step that overflows in the format a device keeps it in is ±Inf for all that follow; Inf − Inf, 0·Inf and NaN operands are NaN. A contract
fixes neither the order of sums nor which steps are fused, so that the end of such a chain may be one thing on one device and another on the
next. Intervals here say what may come out; finite results are judged by their budget, Inf and NaN by whether they are reached.

Sums take every order of their terms: the largest partial sum is that of the positive terms, the smallest that of the negative ones.
Below 2^-126 a value may count as zero (`flush`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.flush import SMALLEST
from accuracy_eval.formats import Codes, Values, encode, get_format

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Reach:
    """low ≤ value ≤ high, ±Inf among them; NaN too where `nan`. Float64 and bool arrays of one shape (or broadcastable to it)."""

    low: Values
    high: Values
    nan: Flags

    @classmethod
    def exactly(cls, x: Values) -> Reach:
        """Operands: one value each."""
        return cls.around(x, np.zeros(1))

    @classmethod
    def around(cls, x: Values, error: Values, nan: Flags | bool = False) -> Reach:
        """x ± error; a NaN among x is NaN alone, one among the errors a value that may be anything."""
        odd = np.isnan(x)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(np.isnan(error), np.inf, error)
            low, high = (np.where(odd, 0.0, np.where(np.isfinite(x), x + sign * error, x)) for sign in (-1.0, 1.0))
        return cls(low, high, odd | nan)

    def stored(self, fmt: str) -> Reach:
        """In a format a device may keep the step in: Inf from its largest value on, zero below its smallest."""
        f = get_format(fmt)
        low = np.where(np.abs(self.low) < f.smallest_subnormal, np.minimum(self.low, 0.0), self.low)
        high = np.where(np.abs(self.high) < f.smallest_subnormal, np.maximum(self.high, 0.0), self.high)
        return Reach(low, high, self.nan).within(f.max)

    def within(self, largest: float) -> Reach:
        """Inf from the largest value on."""
        return Reach(np.where(self.low <= -largest, -np.inf, self.low), np.where(self.high >= largest, np.inf, self.high), self.nan)

    def or_zero(self, where: Flags) -> Reach:
        """Also 0 there."""
        return Reach(np.where(where, np.minimum(self.low, 0.0), self.low), np.where(where, np.maximum(self.high, 0.0), self.high), self.nan)

    def or_nan(self, where: Flags) -> Reach:
        """Also NaN there."""
        return Reach(self.low, self.high, self.nan | where)

    @property
    def infinite(self) -> Flags:
        """May be +Inf or −Inf."""
        return np.isinf(self.low) | np.isinf(self.high)

    @property
    def zero(self) -> Flags:
        """May be zero, or be taken for it."""
        return (self.low < SMALLEST) & (self.high > -SMALLEST)

    @property
    def odd(self) -> Flags:
        """May be Inf or NaN."""
        return self.nan | self.infinite

    def __neg__(self) -> Reach:
        return Reach(-self.high, -self.low, self.nan)

    def __add__(self, other: Reach) -> Reach:
        nan = self.nan | other.nan | ((self.high == np.inf) & (other.low == -np.inf)) | ((self.low == -np.inf) & (other.high == np.inf))
        with np.errstate(invalid="ignore", over="ignore"):
            low, high = self.low + other.low, self.high + other.high
        return Reach(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high), nan)

    def __mul__(self, other: Reach) -> Reach:
        nan = self.nan | other.nan | (self.infinite & other.zero) | (self.zero & other.infinite)
        with np.errstate(invalid="ignore", over="ignore"):
            ends = [np.asarray(x * y) for x in (self.low, self.high) for y in (other.low, other.high)]
        ends = [np.where(np.isnan(e), 0.0, e) for e in ends]  # 0·Inf: NaN above, else 0
        return Reach(np.minimum.reduce(ends), np.maximum.reduce(ends), nan)

    def __matmul__(self, other: Reach) -> Reach:
        """Sums of products, [m, k] with [k, n], in any order."""
        nan = self.nan.any(axis=1, keepdims=True) | other.nan.any(axis=0, keepdims=True)
        nan |= _meet(self.infinite, other.zero) | _meet(self.zero, other.infinite)
        left, right = self._parts(), other._parts()
        up, down = ((_dot(left[0], right[i]) + _dot(left[1], right[1 - i])) for i in (0, 1))
        return Reach(-down, up, nan)

    def total(self, axis: int) -> Reach:
        """Sums along an axis that stays, of length 1, in any order."""
        up, down = (p.sum(axis=axis, keepdims=True) for p in self._parts())
        return Reach(-down, up, np.asarray(self.nan.any(axis=axis, keepdims=True)))

    def _parts(self) -> tuple[Values, Values]:
        """Largest magnitudes above and below zero."""
        return np.maximum(self.high, 0.0), np.maximum(-self.low, 0.0)

    def in_sums(self, largest: float) -> Reach:
        """Sums of any order: Inf where a partial sum may reach the largest value, NaN where both signs may."""
        found = self.within(largest)
        return found.or_nan((found.low == -np.inf) & (found.high == np.inf))

    def narrowed(self, x: Values, error: Values) -> Reach:
        """x ± error where no Inf is reached on the way: sums whose finite results are known better than their terms say."""
        known = Reach.around(x, error)
        return Reach(
            np.where(self.low == -np.inf, self.low, known.low), np.where(self.high == np.inf, self.high, known.high), self.nan | known.nan
        )

    @property
    def rows(self) -> Reach:
        """As 2-D: leading axes together."""
        return Reach(*(np.reshape(v, (-1, np.shape(v)[-1])) for v in (self.low, self.high, self.nan)))

    @property
    def transposed(self) -> Reach:
        """Rows and columns exchanged."""
        return Reach(self.low.T, self.high.T, self.nan.T)

    def columns(self, part: slice) -> Reach:
        """These columns."""
        return Reach(self.low[:, part], self.high[:, part], self.nan[:, part])

    @classmethod
    def beside(cls, parts: Sequence[Reach], axis: int = 1) -> Reach:
        """Parts of a whole, put together along an axis."""
        return cls(*(np.concatenate([getattr(p, f) for p in parts], axis) for f in ("low", "high", "nan")))


def _dot(x: Values, y: Values) -> Values:
    """x·y of magnitudes, Inf·0 being 0."""
    infinite = _meet(np.isinf(x), y > 0) | _meet(x > 0, np.isinf(y))
    with np.errstate(over="ignore"):
        sums: Values = np.where(np.isinf(x), 0.0, x) @ np.where(np.isinf(y), 0.0, y)
    return np.where(infinite, np.inf, sums)


def _meet(x: Flags, y: Flags) -> Flags:
    """[m, n]: whether x [m, k] and y [k, n] are set at one k."""
    if not (x.any() and y.any()):
        return np.zeros((x.shape[0], y.shape[1]), bool)
    return np.asarray(x.astype(np.float32) @ y.astype(np.float32) > 0)


def reached(
    reach_of: Callable[[], Reach],
    fmt: str,
    codes: Codes,
    values: Values,
    first_row: int = 0,
    *,
    undetermined: Callable[[], Flags] | None = None,
) -> Flags | None:
    """Elements of a panel [r, n] of actual codes that are Inf, NaN or zero as a healthy device's may be there, or finite for an Inf; None
    if there are none.

    values        the truth; a NaN in it stays one on every device
    reach         of the whole result as 2-D, before it is stored in `fmt`
    undetermined  of the whole result: but where it is set, a NaN may as well be an Inf, and an Inf any number
    """
    f = get_format(fmt)
    mask, infinite = f.storage.type(f.magnitude_mask), f.storage.type(f.inf_code)
    with np.errstate(over="ignore"):
        right = encode(values, fmt)
    size = codes & mask
    here = slice(first_row, first_row + len(codes))
    odd = ((size >= infinite) & (codes != right)) | ((size == 0) & (right & mask != 0))
    certain = np.isnan(values)
    if undetermined is not None and (odd & certain).any():
        certain &= ~undetermined()[here] | (size == 0)
    odd &= ~certain
    free = np.isinf(values) & (size < infinite)
    if free.any():
        free &= undetermined()[here] if undetermined is not None else False
        odd |= free
    if not odd.any():
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # bounds may overflow; 0·Inf and Inf − Inf are seen to
        whole = reach_of().stored(fmt)
    low, high = whole.low[here], whole.high[here]
    end = np.where((codes & f.storage.type(f.sign_mask)) != 0, low == -np.inf, high == np.inf)
    odd &= free | np.where(size == 0, (low <= 0.0) & (high >= 0.0), np.where(size > infinite, whole.nan[here], end))
    return odd if odd.any() else None
