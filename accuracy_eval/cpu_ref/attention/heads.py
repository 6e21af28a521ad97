"""All heads of an attention, on all cores; and one query of one head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from accuracy_eval.cpu_ref.attention.gradients import Gradients
from accuracy_eval.cpu_ref.attention.head import Head
from accuracy_eval.cpu_ref.attention.problem import Attention, Flags
from accuracy_eval.cpu_ref.attention.result import Result, added, stacked, zeros
from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.cpu_ref.reach import Reach
from accuracy_eval.formats import Values
from accuracy_eval.threads import map_threads

_NO_WARNING = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # Inf − Inf and 0·Inf are NaN; a budget may overflow


def forward(a: Attention) -> dict[str, Result]:
    """out [b, h, s, d] and lse [b, h, s]."""
    found = [head for row in _of_heads(a, lambda head: {"out": head.out, "lse": head.lse}) for head in row]
    shape = a.q.shape[:3]
    return {"out": stacked([x["out"] for x in found], (*shape, a.v.shape[3])), "lse": stacked([x["lse"] for x in found], shape)}


@_NO_WARNING
def backward(a: Attention, grad: Values) -> dict[str, Result]:
    """dq [b, h, s, d], dk and dv [b, g, t, d], and dsink [h] with a sink, for the upstream gradient of out, [b, h, s, d].

    Without queries all are zero.
    """
    if a.q.size == 0:
        shapes = {"dq": a.q.shape, "dk": a.k.shape, "dv": a.v.shape, **({"dsink": a.sink.shape} if a.sink is not None else {})}
        return {name: zeros(shape) for name, shape in shapes.items()}
    h, g = a.q.shape[1], a.k.shape[1]
    found = _of_heads(a, lambda head: Gradients(head, grad[head.at]).results())
    dq = stacked([x["dq"] for row in found for x in row], a.q.shape)
    more = {}
    for name, shape in (("dk", a.k.shape), ("dv", a.v.shape)):
        shared = [[[row[j][name] for j in range(i * h // g, (i + 1) * h // g)] for i in range(g)] for row in found]
        more[name] = stacked([added(a, parts) for row in shared for parts in row], shape)
    if a.sink is not None:
        more["dsink"] = stacked([added(a, [row[j]["dsink"] for row in found]) for j in range(h)], (h,))
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


@dataclass(frozen=True)
class Query:
    """One query of one head.

    shared   its head of K and V
    seen     [t]: which keys it sees
    scores   [t] of all keys, scaled; weights [t], 0 of keys it does not see; sink: the weight that a sink takes, 0 without one
    results  out [d] and lse [] by name
    """

    shared: int
    seen: Flags
    scores: Values
    weights: Values
    sink: float
    results: Mapping[str, Result]


@_NO_WARNING
def query_of(a: Attention, batch: int, head: int, query: int) -> Query:
    """What one query sees, and its results."""
    keys, visible = a.k.shape[2], a.visible()
    seen = np.ones((1, keys), np.bool_) if visible is None else visible[query : query + 1]
    found = Head(replace(a, q=a.q[:, :, query : query + 1], mask=seen), batch, head)
    p, shared = found.p[0], head * a.k.shape[1] // a.q.shape[1]
    line = {n: Result(r.values[0], r.budget[0], r.reach) for n, r in (("out", found.out), ("lse", found.lse))}
    return Query(shared, seen[0], a.scale * (a.k[batch, shared] @ a.q[batch, head, query]), p[:keys], float(p[keys:].sum()), line)
