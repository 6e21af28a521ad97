"""Scaled dot-product attention and its gradients in float64, with the error that independent roundings of its steps leave.

Per head, with S = scale·Q·Kᵀ (and a mask), P = softmax(S): O = P·V, L = log Σ e^S. Backward from dO: dV = Pᵀ·dO, dP = dO·Vᵀ,
δ = Σ dO·O, dS = P·(dP − δ), dQ = scale·dS·K, dK = scale·dSᵀ·Q. Several query heads may share one of K and V: their gradients add.

With operands of 8 bits the weights e^(S − max), which their sum divides at the end, are rounded to 8 bits too. That sum, and so L, may be
of the rounded ones.

A sink is a number a head learns: the score of one more key, whose value is zero. It joins the denominator of P, and L; its gradient is
Σ dS of its column over batch and queries.

What a fused kernel rounds: S and dP keep a float32 accumulator; P and dS are rounded to the operands' format before they are multiplied;
O, from which δ comes, is stored in it. Each is one independent error per element; a sum of products with them is off by LAMBDA standard
deviations at most (docs/budgets.md). Float64 operands keep everything in float64.

Where errors of S are no longer small beside 1, P is anything between two bounds instead; backward, P comes from S and a stored L, and may
exceed 1. Beyond its range S is NaN to P. A key that a mask hides has no part in the result, but Inf and NaN in it may reach the result all
the same, as P = 0 times Inf. Where every score is −Inf the result is NaN by the formula, and 0 where a kernel takes the row for masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA, TYPICAL
from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.cpu_ref.flush import SMALLEST, lost_steps, stored
from accuracy_eval.cpu_ref.magnitudes import norm
from accuracy_eval.cpu_ref.magnitudes import root as squares_root
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.cpu_ref.special import evaluate
from accuracy_eval.formats import Values, get_format, ulp
from accuracy_eval.threads import map_threads

WALK = 0.3  # rms of one rounding in ulps, as in the budget of a product
SOFT = 4.0  # ulps of the scalar arithmetic that scaling, exponential, division and rescaling take each time
STEP = 4  # products a truncating matrix unit adds per rounding (the coarsest the contract allows)
COARSE = 0.125  # error of S from which its effect on P is bounded instead of taken to first order
BLOCK = 32  # queries or keys whose part of a gradient may be stored in the operands' format before the next is added


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
    mask: NDArray[np.bool_] | None = None

    def half(self, x: Values) -> Values:
        """What one rounding to the operands' format costs at most."""
        return stored(np.abs(x), self.format) / 2

    @property
    def largest(self) -> float:
        """Of the arithmetic between the roundings."""
        return get_format("float64" if self.format == "float64" else "float32").max

    @property
    def ulp(self) -> float:
        """A relative step of the arithmetic between the roundings."""
        return 2.0**-52 if self.format == "float64" else 2.0**-23

    @property
    def adding(self) -> tuple[float, int]:
        """A relative step of sums of products, and how many a truncating unit adds for each."""
        return (self.narrow.ulp, self.narrow.step) if self.narrow else (self.ulp, STEP)

    def half_weight(self, p: Values) -> Values:
        """What rounding P costs at most, [s, t]."""
        return self.narrow.half(p) if self.narrow else self.half(p)

    def visible(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
        """[s, t]: which keys a query sees; None: all."""
        if self.mask is not None or not (self.causal or self.window):
            return self.mask
        i, j = np.arange(self.q.shape[2])[:, None], np.arange(self.k.shape[2])[None, :]
        return (j <= i) & ((j > i - self.window) if self.window else True)


@dataclass(frozen=True)
class Result:
    """A tensor's values and the largest error of each, float64, same shape; and what it may hold instead, asked for where it does.

    typical  what many elements may be off by together, in the root mean square; None where only single ones have a limit
    """

    values: Values
    budget: Values
    reach: Callable[[], Reach]
    typical: Values | None = None


@dataclass(frozen=True)
class Query:
    """One query of one head.

    shared   its head of K and V
    seen     [t]: which keys it sees
    scores   [t] of all keys, scaled; weights [t], 0 of keys it does not see; sink: the weight that a sink takes, 0 without one
    results  out [d] and lse [] by name
    """

    shared: int
    seen: NDArray[np.bool_]
    scores: Values
    weights: Values
    sink: float
    results: Mapping[str, Result]


_NO_WARNING = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # Inf − Inf and 0·Inf are NaN; a budget may overflow
Flags = NDArray[np.bool_]


def forward(a: Attention) -> dict[str, Result]:
    """out [b, h, s, d] and lse [b, h, s]."""
    found = [head for row in _of_heads(a, lambda head: {"out": head.out, "lse": head.lse}) for head in row]
    shape = a.q.shape[:3]
    return {"out": _stacked([x["out"] for x in found], (*shape, a.v.shape[3])), "lse": _stacked([x["lse"] for x in found], shape)}


@_NO_WARNING
def query_of(a: Attention, batch: int, head: int, query: int) -> Query:
    """What one query sees, and its results."""
    keys, visible = a.k.shape[2], a.visible()
    seen = np.ones((1, keys), np.bool_) if visible is None else visible[query : query + 1]
    found = Head(replace(a, q=a.q[:, :, query : query + 1], mask=seen), batch, head)
    p, shared = found.p[0], head * a.k.shape[1] // a.q.shape[1]
    line = {n: Result(r.values[0], r.budget[0], r.reach) for n, r in (("out", found.out), ("lse", found.lse))}
    return Query(shared, seen[0], a.scale * (a.k[batch, shared] @ a.q[batch, head, query]), p[:keys], float(p[keys:].sum()), line)


@_NO_WARNING
def backward(a: Attention, grad: Values) -> dict[str, Result]:
    """dq [b, h, s, d], dk and dv [b, g, t, d], and dsink [h] with a sink, for the upstream gradient of out, [b, h, s, d]."""
    h, g = a.q.shape[1], a.k.shape[1]
    found = _of_heads(a, lambda head: head.gradients(grad[head.at]))
    dq = _stacked([x["dq"] for row in found for x in row], a.q.shape)
    more = {}
    for name, shape in (("dk", a.k.shape), ("dv", a.v.shape)):
        shared = [[[row[j][name] for j in range(i * h // g, (i + 1) * h // g)] for i in range(g)] for row in found]
        more[name] = _stacked([_sum(a, parts) for row in shared for parts in row], shape)
    if a.sink is not None:
        more["dsink"] = _stacked([_sum(a, [row[j]["dsink"] for row in found]) for j in range(h)], (h,))
    return {"dq": dq, **more}


def _of_heads(a: Attention, of: Callable[[Head], dict[str, Result]]) -> list[list[dict[str, Result]]]:
    """What `of` says of every head, [b][h]. Heads share the cores, one thread each, and nothing but results is kept of them: what they may
    hold instead is asked for seldom, and computed again then."""

    @_NO_WARNING
    def found(at: tuple[int, int]) -> dict[str, Result]:
        return {n: Result(r.values, r.budget, partial(again, at, n), r.typical) for n, r in of(Head(a, *at)).items()}

    @_NO_WARNING
    def again(at: tuple[int, int], name: str) -> Reach:
        return of(Head(a, *at))[name].reach()

    batches, heads = a.q.shape[:2]
    with one_thread():
        every = map_threads(found, [(i, j) for i in range(batches) for j in range(heads)])
    return [every[i * heads : (i + 1) * heads] for i in range(batches)]


def _stacked(parts: list[Result], shape: tuple[int, ...]) -> Result:
    def stacked(items: Sequence[Any], f: str) -> NDArray[Any]:
        return np.stack([getattr(x, f) for x in items]).reshape(shape)

    def reach() -> Reach:
        found = [p.reach() for p in parts]
        return Reach(*(stacked(found, f) for f in ("low", "high", "nan")))

    typical = stacked(parts, "typical") if all(p.typical is not None for p in parts) else None
    return Result(stacked(parts, "values"), stacked(parts, "budget"), reach, typical)


def _sum(a: Attention, parts: list[Result]) -> Result:
    """Gradients of heads that share an operand: each may be rounded to its format before they are added."""
    if len(parts) == 1:
        return parts[0]
    values, budget = (np.sum([getattr(p, f) for p in parts], axis=0) for f in ("values", "budget"))
    rounded = LAMBDA * np.sqrt(np.sum([a.half(p.values) ** 2 for p in parts], axis=0) / 3.0)

    def reach() -> Reach:
        found = [p.reach().stored(a.format) for p in parts]
        return reduce(Reach.__add__, found)

    return Result(values, budget + rounded, reach)


class Head:
    """One query head."""

    def __init__(self, a: Attention, batch: int, head: int) -> None:
        self.at = batch, head
        shared = head * a.k.shape[1] // a.q.shape[1]
        self.a, self.q, self.k, self.v = a, a.q[batch, head], a.k[batch, shared], a.v[batch, shared]
        d = self.q.shape[1]
        s = a.scale * (self.q @ self.k.T)
        root = a.scale * squares_root(self.q, self.k.T)
        visible = a.visible()
        self.seen: Flags = np.ones(s.shape, np.bool_) if visible is None else visible
        if a.sink is not None:  # a key of zeros behind the others, whose score no product makes
            s, root, self.seen = _beside(s, a.sink[head]), _beside(root, 0.0), _beside(self.seen, True)
            self.k, self.v = (np.pad(x, ((0, 1), (0, 0))) for x in (self.k, self.v))
        masked = np.where(self.seen, s, -np.inf)
        top = masked.max(axis=1, keepdims=True)
        self.nothing = top == -np.inf
        weights = np.where(self.nothing, 0.0, evaluate("exp", masked - top))
        total = weights.sum(axis=1, keepdims=True)
        self.p = np.where(self.nothing, 0.0, weights / total)
        self.log = (top + evaluate("log", total))[:, 0]
        size = np.abs(s)
        # relative errors of an element of P: of its exponent, and of the arithmetic around it
        level = np.maximum(size, np.where(np.isfinite(top), np.abs(top), 0.0))  # s − max and s − L round at the larger of the two
        step, width = a.adding
        random = np.hypot(WALK * step * root * math.sqrt(d), SOFT * a.ulp * (1 + level) / math.sqrt(3))
        common = step * d / (2 * width) * np.where(root == 0.0, 0.0, np.maximum(size, root))
        error = LAMBDA * random + common
        self.overflows: Flags = math.sqrt(d) * root / min(a.scale, 1.0) >= a.largest  # Cauchy and Schwarz: some partial sum may
        error = np.where(self.overflows | np.isnan(error), np.inf, error)
        self.coarse: Flags = (np.where(self.seen, error, 0.0) > COARSE).any(axis=1, keepdims=True) & ~np.isnan(top) & ~self.nothing
        first = (self.p != 0) & ~self.coarse
        self.random, self.common = np.where(first, random, 0.0), np.where(first, common, 0.0)
        self.s, self.error = masked, error
        self.o = _weighted(self.p, self.seen & ~self.nothing, self.v)

    def _moved(self, *, stored_log: bool) -> tuple[Values, Values]:
        """The smallest and the largest P of rows whose errors are not small, p elsewhere.

        With one set of scores a key's own error moves it against the others, P = 1/(1 + Σ of the others); made from scores and a stored L,
        whose own scores had other errors, P = e^(S − L).
        """
        if not self.coarse.any():
            return self.p, self.p
        found = []
        for sign in (-1.0, 1.0):
            own, others = (np.where(self.seen, self.s + side * self.error, -np.inf) for side in (sign, -sign))
            if stored_log:
                step = ulp(self.log, "float64" if self.a.format == "float64" else "float32")[:, None]
                moved = evaluate("exp", own - _level(others) + sign * np.where(np.isfinite(step), step, 0.0))
            else:
                moved = 1.0 / (1.0 + evaluate("exp", _level_of_others(others) - own))
            moved = np.where(np.isnan(moved), 0.0 if sign < 0 else np.inf if stored_log else 1.0, moved)
            found.append(np.where(self.coarse, np.where(self.seen, moved, 0.0), self.p))
        return found[0], found[1]

    @property
    def _p_reach(self) -> Reach:
        """P as a backward pass makes it: NaN where S may be."""
        low, high = self._moved(stored_log=True)
        return Reach(low, high, np.broadcast_to(self._row_nan, low.shape))

    @property
    def _row_nan(self) -> Flags:
        """Rows [s, 1] whose P may be NaN: an S that overflows, a score that is Inf or NaN behind a mask, no score at all."""
        unknown = ~np.isfinite(self.k).all(axis=1)[None, :] | ~np.isfinite(self.q).all(axis=1)[:, None]
        found: Flags = (self.overflows | unknown).any(axis=1, keepdims=True) | self.nothing
        return found

    def _accumulated(self, length: int, root: Values, value: Values) -> Values:
        """What adding `length` products costs, the root of whose squares' sum is given: a truncating unit's bias, and a walk."""
        step, width = self.a.adding
        steps = length / width
        allowed: Values = step * (steps / 2 * np.maximum(root, np.abs(value)) + LAMBDA * WALK * math.sqrt(length) * root)
        return allowed + lost_steps(length, flushes=self.a.format != "float64")

    def _blocks(self, length: int) -> float:
        """What storing a gradient between blocks costs beside float16's smallest steps; elsewhere the rest covers it."""
        fmt = get_format(self.a.format)
        return LAMBDA * WALK * math.sqrt(-(-length // BLOCK)) * fmt.smallest_subnormal if fmt.bits <= 16 else 0.0

    @property
    def out(self) -> Result:
        a, v = self.a, np.where(np.isfinite(self.v), self.v, 0.0)
        low, high = self._moved(stored_log=False)
        deviation = np.sqrt((self.p * self.random) ** 2 + a.half_weight(self.p) ** 2 / 3)
        off = norm(deviation if a.narrow else self.p * self.random, 1)
        spread = np.hypot(squares_root(deviation, v), off * np.abs(self.o))
        reach = np.abs(v)
        shift = (self.p * self.common) @ reach + (self.p * self.common).sum(axis=1, keepdims=True) * np.abs(self.o)
        adding = self._accumulated(self.p.shape[1], squares_root(self.p, v), self.o)
        fixed = shift + adding + SOFT * a.ulp * np.abs(self.o)
        if self.coarse.any():
            moved = np.maximum(high - self.p, self.p - low)
            fixed = fixed + moved @ reach + moved.sum(axis=1, keepdims=True) * np.abs(self.o)
        budget = LAMBDA * spread + fixed

        def reached() -> Reach:
            hidden = (~self.seen | (self.p < SMALLEST)).astype(np.float32) @ (~np.isfinite(self.v)).astype(np.float32) > 0
            found = Reach.around(self.o, budget, hidden | self._row_nan)
            if a.narrow is None:
                return found
            # weights are divided by their sum after they are multiplied: until then the result is larger
            before = self.p @ reach / self.p.max(axis=1, keepdims=True) * a.narrow.scale >= a.largest
            return Reach(np.where(before, -np.inf, found.low), np.where(before, np.inf, found.high), found.nan | before)

        return Result(self.o, budget, reached, TYPICAL * spread + fixed if a.narrow else None)

    @property
    def lse(self) -> Result:
        fixed = (self.p * self.common).sum(axis=1) + SOFT * self.a.ulp * (1 + np.abs(self.log))
        spread = norm(self.p * self.random, 1)[:, 0]
        budget, typical = LAMBDA * spread + fixed, TYPICAL * spread + fixed
        if self.a.narrow:  # the sum may be of rounded weights
            half = self.a.half_weight(self.p)
            rounded, together = norm(half, 1)[:, 0] / math.sqrt(3), -np.log1p(-half.sum(axis=1))
            budget, typical = budget + np.fmin(LAMBDA * rounded, together), typical + TYPICAL * rounded
        if self.coarse.any():
            least, most = (_level(np.where(self.seen, self.s + sign * self.error, -np.inf))[:, 0] for sign in (-1.0, 1.0))
            moved = np.where(self.coarse[:, 0], np.fmax(most - self.log, self.log - least), 0.0)
            budget, typical = budget + moved, typical + moved
        return Result(self.log, budget, lambda: Reach.around(self.log, budget, self._row_nan[:, 0]), typical if self.a.narrow else None)

    def gradients(self, g: Values) -> dict[str, Result]:
        a, p, d, t = self.a, self.p, g.shape[1], self.k.shape[0]
        out = self.out
        dp = g @ self.v.T
        delta = (g * self.o).sum(axis=1, keepdims=True)
        ds = np.where(self.seen, p * (dp - delta), 0.0)
        # δ from a stored O; dP from a float32 accumulator
        delta_error = np.hypot(norm(g * a.half(self.o), 1) / math.sqrt(3), WALK * a.ulp * math.sqrt(d) * norm(g * self.o, 1))
        delta_error = delta_error + norm(g * (out.budget / LAMBDA), 1)
        dp_error = WALK * a.ulp * math.sqrt(d) * squares_root(g, self.v.T) + a.ulp * d / (2 * STEP) * np.abs(dp) / LAMBDA
        shift = np.abs(ds) * self.common
        deviation = np.sqrt((ds * self.random) ** 2 + a.half(ds) ** 2 / 3 + (p * dp_error) ** 2)
        by_query = np.hypot(deviation, p * delta_error)
        p_deviation = np.sqrt((p * self.random) ** 2 + a.half(p) ** 2 / 3)
        p_shift = p * self.common
        low, high = self._moved(stored_log=True)
        if self.coarse.any():
            moved = np.where(self.coarse, np.maximum(high - p, p - low), 0.0)
            p_shift = p_shift + moved
            reaches = np.abs(dp - delta) + LAMBDA * (dp_error + delta_error)
            shift = shift + np.where(moved == 0, 0.0, moved * reaches)
        s, keys = abs(a.scale), slice(a.k.shape[2])  # those behind them are sinks
        values = {"dq": a.scale * (ds @ self.k), "dk": a.scale * (ds.T @ self.q)[keys], "dv": (p.T @ g)[keys]}
        dq_budget = LAMBDA * s * (squares_root(deviation, self.k) + delta_error * np.abs(p @ self.k)) + s * (shift @ np.abs(self.k))
        dk_budget = LAMBDA * s * squares_root(by_query.T, self.q) + s * (shift.T @ np.abs(self.q)) + self._blocks(len(g))
        dv_budget = LAMBDA * squares_root(p_deviation.T, g) + p_shift.T @ np.abs(g) + self._blocks(len(g))
        budgets = {
            "dq": dq_budget + self._accumulated(t, s * squares_root(ds, self.k), values["dq"]),
            "dk": dk_budget[keys] + self._accumulated(len(g), s * squares_root(ds.T, self.q)[keys], values["dk"]),
            "dv": dv_budget[keys] + self._accumulated(len(g), squares_root(p.T, g)[keys], values["dv"]),
        }
        if a.sink is not None:
            values["dsink"] = ds[:, -1:].sum(axis=0)
            sink_budget = LAMBDA * norm(by_query[:, -1], 0) + shift[:, -1:].sum(axis=0)
            budgets["dsink"] = sink_budget + self._accumulated(len(g), norm(ds[:, -1], 0), values["dsink"])

        @lru_cache(maxsize=1)
        def steps() -> tuple[Reach, Reach]:
            """P and dS, as they are multiplied."""
            upstream, p_reach = Reach.exactly(g), self._p_reach
            dp_reach = (upstream @ Reach.exactly(self.v.T)).in_sums(a.largest).narrowed(dp, LAMBDA * dp_error)
            delta_reach = (upstream * out.reach().stored(a.format)).total(1).in_sums(a.largest).narrowed(delta, LAMBDA * delta_error)
            return p_reach.stored(a.format), (p_reach * (dp_reach + -delta_reach)).stored(a.format)

        def sums(name: str) -> Reach:
            p_reach, ds_reach = steps()
            if name == "dsink":
                return ds_reach.columns(slice(-1, None)).total(0)
            left, right = {"dq": (ds_reach, self.k), "dk": (ds_reach.transposed, self.q), "dv": (p_reach.transposed, g)}[name]
            return left @ Reach.exactly(right)

        def reach(name: str) -> Reach:
            found = sums(name)
            if name in ("dk", "dv"):
                found = found.transposed.columns(keys).transposed
            return found.in_sums(a.largest).narrowed(values[name], budgets[name])

        return {n: Result(x, budgets[n], partial(reach, n)) for n, x in values.items()}


def _beside(x: NDArray[Any], last: Any) -> NDArray[Any]:
    """x [m, n] with one more column of that value."""
    return np.concatenate([x, np.full((len(x), 1), last, x.dtype)], axis=1)


def _weighted(p: Values, seen: Flags, v: Values) -> Values:
    """p·v over the keys that are seen."""
    finite = np.isfinite(v)
    found: Values = p @ np.where(finite, v, 0.0)
    if finite.all():
        return found
    for end in (np.inf, -np.inf, np.nan):
        here = np.isnan(v) if np.isnan(end) else v == end
        found = np.where(seen.astype(np.float32) @ here.astype(np.float32) > 0, found + end, found)
    return found


def _level(s: Values) -> Values:
    """log Σ e^s of rows, [m, 1]; ±Inf where the largest is."""
    top: Values = s.max(axis=1, keepdims=True)
    from_zero = np.where(np.isinf(top), 0.0, top)
    sums = evaluate("exp", s - from_zero).sum(axis=1, keepdims=True)
    return np.asarray(np.where(np.isinf(top), top, top + evaluate("log", sums)))


def _level_of_others(s: Values) -> Values:
    """log Σ e^s over the other elements of a row, for each element."""
    first = s.argmax(axis=1)[:, None]
    rest = s.copy()
    np.put_along_axis(rest, first, -np.inf, axis=1)
    level = _level(s)
    with np.errstate(invalid="ignore"):
        found = level + evaluate("log1p", -evaluate("exp", s - level))
    found = np.where(np.isinf(level), level, found)
    np.put_along_axis(found, first, _level(rest), axis=1)
    return np.asarray(found)
