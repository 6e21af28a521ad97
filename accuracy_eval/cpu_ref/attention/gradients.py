"""Gradients of one query head, with what they may be off by."""

from __future__ import annotations

import math
from functools import cached_property, partial

import numpy as np

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.attention.head import Head
from accuracy_eval.cpu_ref.attention.problem import STEP, WALK
from accuracy_eval.cpu_ref.attention.result import Result
from accuracy_eval.cpu_ref.magnitudes import norm
from accuracy_eval.cpu_ref.magnitudes import root as squares_root
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import Values, get_format

BLOCK = 32  # queries or keys whose part of a gradient may be stored in the operands' format before the next is added


class Gradients:
    """dP, δ and dS of a head for the upstream gradient g [s, d] of O, and the sums of products made from them.

    dp, ds, dp_error [s, t]; delta, delta_error [s, 1]: steps, and one standard deviation of their errors
    keys  rows of k, v and of ds.T that are no sink's
    """

    def __init__(self, head: Head, g: Values) -> None:
        self.head, self.g, self.out = head, g, head.out
        self.keys = slice(head.a.k.shape[2])
        self.dp = g @ head.v.T
        self.delta = (g * head.o).sum(axis=1, keepdims=True)
        self.ds = np.where(head.seen, head.p * (self.dp - self.delta), 0.0)
        # δ from a stored O; dP from a float32 accumulator
        a, d = head.a, g.shape[1]
        delta_error = np.hypot(norm(g * a.half(head.o), 1) / math.sqrt(3), WALK * a.ulp * math.sqrt(d) * norm(g * head.o, 1))
        self.delta_error = delta_error + norm(g * (self.out.budget / LAMBDA), 1)
        self.dp_error = WALK * a.ulp * math.sqrt(d) * squares_root(g, head.v.T) + a.ulp * d / (2 * STEP) * np.abs(self.dp) / LAMBDA

    def results(self) -> dict[str, Result]:
        """dq [s, d], dk and dv [t, d], and dsink [1] with a sink."""
        values = self._values()
        budgets = self._budgets(values)
        return {n: Result(x, budgets[n], partial(self._reach, n, x, budgets[n])) for n, x in values.items()}

    def _values(self) -> dict[str, Values]:
        head, scale = self.head, self.head.a.scale
        found = {
            "dq": scale * (self.ds @ head.k),
            "dk": scale * (self.ds.T @ head.q)[self.keys],
            "dv": (head.p.T @ self.g)[self.keys],
        }
        return found | ({"dsink": self.ds[:, -1:].sum(axis=0)} if head.a.sink is not None else {})

    def _budgets(self, values: dict[str, Values]) -> dict[str, Values]:
        head, g, p, ds, a, keys = self.head, self.g, self.head.p, self.ds, self.head.a, self.keys
        p_shift, ds_shift = self._shifts()
        p_deviation = np.sqrt((p * head.random) ** 2 + a.half(p) ** 2 / 3)
        of_key = np.sqrt((ds * head.random) ** 2 + a.half(ds) ** 2 / 3 + (p * self.dp_error) ** 2)
        by_query = np.hypot(of_key, p * self.delta_error)
        s = abs(a.scale)
        dq = LAMBDA * s * (squares_root(of_key, head.k) + self.delta_error * np.abs(p @ head.k)) + s * (ds_shift @ np.abs(head.k))
        dk = LAMBDA * s * squares_root(by_query.T, head.q) + s * (ds_shift.T @ np.abs(head.q)) + self._between_blocks()
        dv = LAMBDA * squares_root(p_deviation.T, g) + p_shift.T @ np.abs(g) + self._between_blocks()
        found = {
            "dq": dq + a.accumulated(head.k.shape[0], s * squares_root(ds, head.k), values["dq"]),
            "dk": dk[keys] + a.accumulated(len(g), s * squares_root(ds.T, head.q)[keys], values["dk"]),
            "dv": dv[keys] + a.accumulated(len(g), squares_root(p.T, g)[keys], values["dv"]),
        }
        if a.sink is not None:
            dsink = LAMBDA * norm(by_query[:, -1], 0) + ds_shift[:, -1:].sum(axis=0)
            found["dsink"] = dsink + a.accumulated(len(g), norm(ds[:, -1], 0), values["dsink"])
        return found

    def _shifts(self) -> tuple[Values, Values]:
        """[s, t]: errors of P and dS that many elements share, or that are bounded alone."""
        head, p = self.head, self.head.p
        of_p, of_ds = p * head.common, np.abs(self.ds) * head.common
        if not head.coarse.any():
            return of_p, of_ds
        low, high = head.p_bounds(stored_log=True)
        moved = np.where(head.coarse, np.maximum(high - p, p - low), 0.0)
        largest = np.abs(self.dp - self.delta) + LAMBDA * (self.dp_error + self.delta_error)
        return of_p + moved, of_ds + np.where(moved == 0, 0.0, moved * largest)

    def _between_blocks(self) -> float:
        """What storing a gradient between blocks of queries costs beside float16's smallest steps; elsewhere the rest covers it."""
        fmt = get_format(self.head.a.format)
        return LAMBDA * WALK * math.sqrt(-(-len(self.g) // BLOCK)) * fmt.smallest_subnormal if fmt.bits <= 16 else 0.0

    @cached_property
    def _stored_reach(self) -> tuple[Reach, Reach]:
        """P and dS, as they are multiplied: P NaN where S may be."""
        head, a, upstream = self.head, self.head.a, Reach.exactly(self.g)
        low, high = head.p_bounds(stored_log=True)
        p = Reach(low, high, np.broadcast_to(head.row_nan, low.shape))
        dp = (upstream @ Reach.exactly(head.v.T)).in_sums(a.largest).narrowed(self.dp, LAMBDA * self.dp_error)
        delta = (upstream * self.out.reach().stored(a.format)).total(1).in_sums(a.largest)
        delta = delta.narrowed(self.delta, LAMBDA * self.delta_error)
        return p.stored(a.format), (p * (dp + -delta)).stored(a.format)

    def _reach(self, name: str, value: Values, budget: Values) -> Reach:
        found = self._sums_reach(name)
        if name in ("dk", "dv"):
            found = found.transposed.columns(self.keys).transposed
        return found.in_sums(self.head.a.largest).narrowed(value, budget)

    def _sums_reach(self, name: str) -> Reach:
        p, ds = self._stored_reach
        if name == "dsink":
            return ds.columns(slice(-1, None)).total(0)
        left, right = {"dq": (ds, self.head.k), "dk": (ds.transposed, self.head.q), "dv": (p.transposed, self.g)}[name]
        return left @ Reach.exactly(right)
