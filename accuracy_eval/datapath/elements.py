"""The elements of an output that an explanation is sought and verified on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Codes, Values, decode, encode, get_format, is_nan, ulp
from accuracy_eval.records import Coded

MOST = 1 << 23  # elements up to which every one is checked
SAMPLE = 8192


class Elements:
    """All elements of the output, or a sample of a large one's.

    i, j       where they are; codes: what the output holds there, nan: which are NaN
    truth      the exact result there, to float64 accuracy; rounded: rounded once; differs: where the output is another code
    narrow     whether the output's own rounding hides most of the sum's error
    search_half, verify_half   the two colours of a checkerboard, as places in the above
    """

    def __init__(self, actual: Coded, gemm: Gemm, full: int) -> None:
        self.out = get_format(actual.format)
        self.narrow = self.out.bits < 32
        self.total = gemm.m * gemm.n
        self.everything = self.total * gemm.k <= full and self.total <= MOST
        self.i, self.j = self._places(gemm)
        self.codes = np.asarray(actual.codes)[self.i, self.j]
        self.nan = is_nan(self.codes, self.out)
        self.truth = self._truth(gemm)
        with np.errstate(over="ignore", invalid="ignore"):
            self.rounded = encode(self.truth, self.out)
        self.differs = (self.codes != self.rounded) & ~(self.nan & is_nan(self.rounded, self.out))
        even = (self.i + self.j) % 2 == 0
        self.search_half, self.verify_half = np.flatnonzero(even), np.flatnonzero(~even)
        if not len(self.verify_half):
            self.verify_half = self.search_half

    def _places(self, gemm: Gemm) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self.everything:
            i, j = np.divmod(np.arange(self.total, dtype=np.int64), gemm.n)
            return i, j
        flat = np.unique(np.random.default_rng(0).integers(0, self.total, SAMPLE + SAMPLE // 4))
        flat = np.random.default_rng(1).permutation(flat)[:SAMPLE]
        i, j = np.divmod(flat, gemm.n)
        return i, j

    def _truth(self, gemm: Gemm) -> Values:
        """The exact result at the elements, to float64 accuracy."""
        if self.everything:
            return np.concatenate([p.values.reshape(-1) for p in panels(gemm)])
        rows, where = np.unique(self.i, return_inverse=True)
        truth = np.empty(len(self.i))
        for r in range(0, len(rows), 64):
            sub = np.flatnonzero((where >= r) & (where < r + 64))
            values = np.concatenate([p.values for p in panels(gemm.take_rows(rows[r : r + 64]))])
            truth[sub] = values[where[sub] - r, self.j[sub]]
        return truth

    def bias(self) -> float:
        """mean(e·sign(truth))/std(e) of the output's error; 0 where there is none."""
        with np.errstate(invalid="ignore", over="ignore"):
            e = (decode(self.codes, self.out) - self.truth) / np.sqrt(np.mean(self.truth[np.isfinite(self.truth)] ** 2) or 1.0)
        e = (e * np.sign(self.truth))[np.isfinite(e)]
        spread = float(np.std(e)) if e.size else 0.0
        return float(np.mean(e)) / spread if spread else 0.0

    def telling(self) -> NDArray[np.int64]:
        """Elements of the search half that tell compositions apart: where the output is not the rounded truth, then nearest a midpoint."""
        half, count = self.search_half, 48 if self.narrow else 16
        finite = np.isfinite(self.truth[half])
        unit = ulp(self.truth[half], self.out)
        with np.errstate(invalid="ignore", over="ignore"):
            phase = np.abs(self.truth[half] / unit - np.floor(self.truth[half] / unit) - 0.5)
        shuffled = np.random.default_rng(2).random(len(half))
        if self.narrow:
            order = np.lexsort((np.where(finite, phase, 1.0), ~self.differs[half]))
        else:
            order = np.lexsort((shuffled, ~(self.differs[half] & finite)))
        return half[order[:count]]

    def equal(self, codes: Codes, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these codes are the output's at some elements; any NaN equals any NaN."""
        same: NDArray[np.bool_] = np.asarray(codes == self.codes[where])
        if self.nan.any():
            same |= self.nan[where] & is_nan(codes, self.out)
        return same

    def spread(self, half: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """`count` elements of a half: those that discriminate first, up to half of it, then any."""
        if len(half) <= count:
            return half
        rng = np.random.default_rng(3)
        telling = half[self.differs[half]]
        telling = rng.permutation(telling)[: count // 2]
        rest = rng.permutation(np.setdiff1d(half, telling, assume_unique=True))[: count - len(telling)]
        return np.concatenate([telling, rest])
