"""What an element of an attention's gradient is the sum of, by head, query and key.

dQ sums scale·P·(dP − δ)·K over keys, dK scale·P·(dP − δ)·Q and dV P·dO over queries of all heads that share the key, dsink P·(0 − δ) over
batches and queries, P being the sink's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.attention import Attention, Head, backward
from accuracy_eval.formats import Values

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Terms:
    """One element: its value, its budget, and its terms, all [n].

    batch, head, shared, query, key  where a term is: shared is the head of K and V; the key of a sink is the number of keys
    score, weight  S and P there
    dp, delta      what reaches P there: Σ dO·V, and Σ dO·O of the query
    term           of the sum
    """

    value: float
    budget: float
    batch: Indices
    head: Indices
    shared: Indices
    query: Indices
    key: Indices
    score: Values
    weight: Values
    dp: Values
    delta: Values
    term: Values


@np.errstate(over="ignore", invalid="ignore")
def terms_of(a: Attention, grad: Values, name: str, place: Mapping[str, int]) -> Terms:
    """The element of output `name` (dq, dk, dv, dsink) at `place`: batch b, head h (of K and V in dk, dv), query or key s, d.

    grad [b, h, s, d]: the upstream gradient of out. Keys that a query does not see have no term.
    """
    heads, groups = a.q.shape[1], a.k.shape[1]
    by_key = name in ("dk", "dv")
    head = place["h"]
    shared = head if by_key else head * groups // heads
    batches = np.array([place["b"]]) if "b" in place else np.arange(len(a.q))
    takers = np.flatnonzero(np.arange(heads) * groups // heads == shared) if by_key else np.array([head])
    queries = np.array([place["s"]]) if name == "dq" else np.arange(a.q.shape[2])
    visible, few = a.visible(), np.ix_(batches, takers, queries)
    part = replace(
        a, q=a.q[few], k=a.k[batches, shared][:, None], v=a.v[batches, shared][:, None], mask=None if visible is None else visible[queries],
        sink=None if a.sink is None else a.sink[takers],
    )  # fmt: skip
    keys = a.k.shape[2]
    columns = np.array([place["s"]]) if by_key else np.array([keys]) if name == "dsink" else np.arange(keys)
    found: dict[str, list[NDArray[np.generic]]] = {}
    for i, batch in enumerate(batches):
        for j, taker in enumerate(takers):
            of = Head(part, i, j)
            g = grad[few][i, j]
            dp, delta = (g @ of.v.T)[:, columns], (g * of.o).sum(axis=1, keepdims=True)
            p, d = of.p[:, columns], place.get("d", 0)
            factors = {"dq": a.scale * of.k[columns, d][None], "dk": a.scale * of.q[:, d][:, None], "dv": g[:, d][:, None]}
            reaching = 1.0 if name == "dv" else dp - delta
            where = {"batch": batch, "head": taker, "shared": shared, "query": queries[:, None], "key": columns[None]}
            what = {"score": of.s[:, columns], "weight": p, "dp": dp, "delta": delta, "term": p * reaching * factors.get(name, 1.0)}
            seen = of.seen[:, columns]
            for field, x in {**where, **what}.items():
                found.setdefault(field, []).append(np.broadcast_to(x, seen.shape)[seen])
    result = backward(part, grad[few])[name]
    at = {"dq": (0, 0, 0), "dsink": (0,)}.get(name, (0, 0, place.get("s", 0))) + ((place["d"],) if "d" in place else ())
    return Terms(float(result.values[at]), float(result.budget[at]), **{n: np.concatenate(x) for n, x in found.items()})
