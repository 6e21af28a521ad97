"""One query head: scores, weights, and its results with what they may be off by."""

from __future__ import annotations

import math

import numpy as np

from accuracy_eval.contracts import LAMBDA, TYPICAL
from accuracy_eval.cpu_ref.attention.problem import WALK, Attention, Flags
from accuracy_eval.cpu_ref.attention.result import Result
from accuracy_eval.cpu_ref.attention.rows import beside, log_sum_exp, log_sum_exp_of_others, product_of_seen
from accuracy_eval.cpu_ref.flush import SMALLEST
from accuracy_eval.cpu_ref.magnitudes import norm
from accuracy_eval.cpu_ref.magnitudes import root as squares_root
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.cpu_ref.special import evaluate
from accuracy_eval.formats import Values, arithmetic_format, ulp

SOFT = 4.0  # ulps of the scalar arithmetic that scaling, exponential, division and rescaling take each time
COARSE = 0.125  # error of S from which its effect on P is bounded instead of taken to first order


class Head:
    """S, P, O and L of one query head; a sink is one more key, of zeros, behind the others.

    at                     batch and number of the head
    q [s, d], k, v [t, d]  operands; seen [s, t]: which keys a query sees
    s, error [s, t]        scores, −Inf where a key is not seen, and the largest error of each, Inf where it may be anything
    overflows [s, t]       where a partial sum of S may
    p [s, t]               weights; o [s, d]: P·V; log [s]: L
    nothing [s, 1]         queries all of whose scores are −Inf
    coarse [s, 1]          queries some of whose scores are off by more than COARSE
    random, common [s, t]  relative errors of P elsewhere: those of each element by itself, and those alike in many
    """

    def __init__(self, a: Attention, batch: int, head: int) -> None:
        self.a, self.at = a, (batch, head)
        shared = head * a.k.shape[1] // a.q.shape[1]
        self.q, self.k, self.v = a.q[batch, head], a.k[batch, shared], a.v[batch, shared]
        s = a.scale * (self.q @ self.k.T)
        root = a.scale * squares_root(self.q, self.k.T)
        visible = a.visible()
        self.seen: Flags = np.ones(s.shape, np.bool_) if visible is None else visible
        if a.sink is not None:  # its score is made by no product
            s, root, self.seen = beside(s, a.sink[head]), beside(root, 0.0), beside(self.seen, True)
            self.k, self.v = (np.pad(x, ((0, 1), (0, 0))) for x in (self.k, self.v))
        self.s = np.where(self.seen, s, -np.inf)
        top = self.s.max(axis=1, keepdims=True)
        self.nothing: Flags = top == -np.inf
        weights = np.where(self.nothing, 0.0, evaluate("exp", self.s - top))
        total = weights.sum(axis=1, keepdims=True)
        self.p = np.where(self.nothing, 0.0, weights / total)
        self.log = (top + evaluate("log", total))[:, 0]
        self.o = product_of_seen(self.p, self.seen & ~self.nothing, self.v)
        self._bound_errors(np.abs(s), top, root)

    def _bound_errors(self, size: Values, top: Values, root: Values) -> None:
        """Sets the errors of S and P from |S| [s, t], its largest of each row [s, 1] and √(q²·k²) [s, t]."""
        a, d = self.a, self.q.shape[1]
        level = np.maximum(size, np.where(np.isfinite(top), np.abs(top), 0.0))  # s − max and s − L round at the larger of the two
        step, width = a.adding
        random = np.hypot(WALK * step * root * math.sqrt(d), SOFT * a.ulp * (1 + level) / math.sqrt(3))
        common = step * d / (2 * width) * np.where(root == 0.0, 0.0, np.maximum(size, root))
        error = LAMBDA * random + common
        self.overflows: Flags = math.sqrt(d) * root / min(a.scale, 1.0) >= a.largest  # Cauchy and Schwarz: some partial sum may
        self.error = np.where(self.overflows | np.isnan(error), np.inf, error)
        far = (np.where(self.seen, self.error, 0.0) > COARSE).any(axis=1, keepdims=True)
        self.coarse: Flags = far & ~np.isnan(top) & ~self.nothing
        first_order = (self.p != 0) & ~self.coarse
        self.random, self.common = np.where(first_order, random, 0.0), np.where(first_order, common, 0.0)

    def p_bounds(self, *, stored_log: bool) -> tuple[Values, Values]:
        """The smallest and the largest P of coarse rows, p elsewhere.

        With one set of scores a key's own error moves it against the others, P = 1/(1 + Σ of the others); made from scores and a stored L,
        whose own scores had other errors, P = e^(S − L).
        """
        if not self.coarse.any():
            return self.p, self.p
        found = []
        for sign in (-1.0, 1.0):
            own, others = self._moved(sign), self._moved(-sign)
            if stored_log:
                step = ulp(self.log, arithmetic_format(self.a.format).name)[:, None]
                moved = evaluate("exp", own - log_sum_exp(others) + sign * np.where(np.isfinite(step), step, 0.0))
            else:
                moved = 1.0 / (1.0 + evaluate("exp", log_sum_exp_of_others(others) - own))
            moved = np.where(np.isnan(moved), 0.0 if sign < 0 else np.inf if stored_log else 1.0, moved)
            found.append(np.where(self.coarse, np.where(self.seen, moved, 0.0), self.p))
        return found[0], found[1]

    def _moved(self, sign: float) -> Values:
        """S, off by its whole error in one direction."""
        return np.where(self.seen, self.s + sign * self.error, -np.inf)

    @property
    def row_nan(self) -> Flags:
        """Rows [s, 1] whose P may be NaN: an S that overflows, a score that is Inf or NaN behind a mask, no score at all."""
        unknown = ~np.isfinite(self.k).all(axis=1)[None, :] | ~np.isfinite(self.q).all(axis=1)[:, None]
        found: Flags = (self.overflows | unknown).any(axis=1, keepdims=True) | self.nothing
        return found

    @property
    def out(self) -> Result:
        """O [s, d]."""
        a, v = self.a, np.where(np.isfinite(self.v), self.v, 0.0)
        deviation = np.sqrt((self.p * self.random) ** 2 + a.half_weight(self.p) ** 2 / 3)
        off = norm(deviation if a.narrow else self.p * self.random, 1)
        spread = np.hypot(squares_root(deviation, v), off * np.abs(self.o))
        reach = np.abs(v)
        shift = (self.p * self.common) @ reach + (self.p * self.common).sum(axis=1, keepdims=True) * np.abs(self.o)
        adding = a.accumulated(self.p.shape[1], squares_root(self.p, v), self.o)
        fixed = shift + adding + SOFT * a.ulp * np.abs(self.o)
        if self.coarse.any():
            low, high = self.p_bounds(stored_log=False)
            moved = np.maximum(high - self.p, self.p - low)
            fixed = fixed + moved @ reach + moved.sum(axis=1, keepdims=True) * np.abs(self.o)
        budget = LAMBDA * spread + fixed
        return Result(self.o, budget, lambda: self._out_reach(reach, budget), TYPICAL * spread + fixed if a.narrow else None)

    def _out_reach(self, size: Values, budget: Values) -> Reach:
        """What O may hold; size [t, d]: |V|, 0 where it is Inf or NaN."""
        hidden = (~self.seen | (self.p < SMALLEST)).astype(np.float32) @ (~np.isfinite(self.v)).astype(np.float32) > 0
        found = Reach.around(self.o, budget, hidden | self.row_nan)
        narrow = self.a.narrow
        if narrow is None:
            return found
        # weights are divided by their sum after they are multiplied: until then the result is larger
        before = self.p @ size / self.p.max(axis=1, keepdims=True) * narrow.scale >= self.a.largest
        return Reach(np.where(before, -np.inf, found.low), np.where(before, np.inf, found.high), found.nan | before)

    @property
    def lse(self) -> Result:
        """L [s]."""
        fixed = (self.p * self.common).sum(axis=1) + SOFT * self.a.ulp * (1 + np.abs(self.log))
        spread = norm(self.p * self.random, 1)[:, 0]
        budget, typical = LAMBDA * spread + fixed, TYPICAL * spread + fixed
        if self.a.narrow:  # the sum may be of rounded weights
            half = self.a.half_weight(self.p)
            rounded, together = norm(half, 1)[:, 0] / math.sqrt(3), -np.log1p(-half.sum(axis=1))
            budget, typical = budget + np.fmin(LAMBDA * rounded, together), typical + TYPICAL * rounded
        if self.coarse.any():
            least, most = (log_sum_exp(self._moved(sign))[:, 0] for sign in (-1.0, 1.0))
            moved = np.where(self.coarse[:, 0], np.fmax(most - self.log, self.log - least), 0.0)
            budget, typical = budget + moved, typical + moved
        return Result(self.log, budget, lambda: Reach.around(self.log, budget, self.row_nan[:, 0]), typical if self.a.narrow else None)
