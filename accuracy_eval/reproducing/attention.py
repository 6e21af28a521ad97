"""One element of an attention: the keys its query gives most weight to, and what the reference says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from accuracy_eval.cpu_ref.attention import Attention, Query, query_of
from accuracy_eval.messages import code_text, number
from accuracy_eval.ops.attention import order
from accuracy_eval.ops.attention_problems import PROBLEMS
from accuracy_eval.ops.spec import Inputs
from accuracy_eval.reproducing.seen import Seen, judged

SHOWN = 8  # keys


def attended(seen: Sequence[Seen], inputs: Inputs, at: tuple[int, ...]) -> Iterator[str]:
    """Lines on an element of out or lse at `at`: every candidate's code and whether it keeps its budget, the reference and what keeps it,
    and the keys of the largest weights with score, weight and element of V."""
    case, name = seen[0].record.case, seen[0].tensor.name
    place = dict(zip("bhs" if name == "lse" else case.layout, at, strict=True))
    problems = {c: PROBLEMS[case.op](case, inputs, c) for c in dict.fromkeys(s.record.contract for s in seen)}
    queries = {c: query_of(problem, place["b"], place["h"], place["s"]) for c, problem in problems.items()}

    def reference(contract: str) -> tuple[float, float]:
        found = queries[contract].results[name]
        value, budget = (float(np.ravel(x)[place.get("d", 0)]) for x in (found.values, found.budget))
        return value, budget

    yield from judged(seen, reference)
    contract = seen[0].record.contract
    yield from _keys(problems[contract], queries[contract], inputs, place, order(case.layout))


def _keys(problem: Attention, query: Query, inputs: Inputs, place: dict[str, int], to_bhsd: tuple[int, ...]) -> Iterator[str]:
    seen, b, g, d = np.flatnonzero(query.seen), place["b"], query.shared, place.get("d")
    top = seen[np.argsort(-query.weights[seen], kind="stable")][:SHOWN]
    sink = f", {number(query.sink)} of the weight to the sink" if query.sink else ""
    keys = f"keys {seen[0]} … {seen[-1]} of {len(query.seen)}"
    yield f"  query {place['s']} of head {place['h']}, batch {b}: sees {keys}, head {g} of K and V, scale {number(problem.scale)}{sink}"
    yield f"  the keys of the largest weights{'' if len(top) == len(seen) else f', {len(top)} of {len(seen)}'}:"
    codes, scaled = inputs["v"].codes.transpose(to_bhsd), " (scaled)" if "v_scale" in inputs else ""
    for key in top.tolist():
        text = f"    key {key}: score {number(query.scores[key], 6)}, weight {number(query.weights[key], 6)}"
        if d is None:
            yield text
            continue
        v = problem.v[b, g, key, d]
        coded = f"v[{d}] {code_text(int(codes[b, g, key, d]), inputs['v'].format)} = {number(v, 6)}{scaled}"
        yield f"{text}, {coded}, weight · v {number(query.weights[key] * v, 6)}"
