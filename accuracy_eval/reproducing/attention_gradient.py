"""One element of an attention's gradient: the largest terms of its sum, by head, query and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accuracy_eval.cpu_ref.attention_terms import Terms, terms_of
from accuracy_eval.messages import number
from accuracy_eval.ops.attention import order, problem_of, values
from accuracy_eval.ops.spec import Inputs
from accuracy_eval.reproducing.seen import Seen, coded, judged

SHOWN = 8  # terms


@dataclass(frozen=True)
class Sum:
    """How an element of one gradient is made.

    formula  of a term
    over     what the terms run over, in words
    at       names a term: fields of Terms
    shown    what a term is made of: fields of Terms, by their symbols
    factor   the operand whose element each term has, and where it is; None: none has
    """

    formula: str
    over: str
    at: tuple[str, ...]
    shown: Mapping[str, str]
    factor: tuple[str, tuple[str, ...]] | None


_MEANT = {"dP": "Σ grad_out · v", "δ": "Σ grad_out · out"}
_WEIGHT = {"score": "score", "weight": "weight"}
_SLOPE = _WEIGHT | {"dP": "dp", "δ": "delta"}
_BY_QUERY, _BY_KEY = ("batch", "head", "query"), ("batch", "shared", "key")
_SUMS = {
    "dq": Sum("scale · weight · (dP − δ) · k", "keys that the query sees", ("key",), _SLOPE, ("k", _BY_KEY)),
    "dk": Sum("scale · weight · (dP − δ) · q", "queries that see the key", ("head", "query"), _SLOPE, ("q", _BY_QUERY)),
    "dv": Sum("weight · grad_out", "queries that see the key", ("head", "query"), _WEIGHT, ("grad_out", _BY_QUERY)),
    "dsink": Sum("weight of the sink · (0 − δ)", "queries", ("batch", "query"), _WEIGHT | {"δ": "delta"}, None),
}


def differentiated(seen: Sequence[Seen], inputs: Inputs, at: tuple[int, ...]) -> Iterator[str]:
    """Lines on an element of dq, dk, dv or dsink at `at`: every candidate's code and whether it keeps its budget, the reference and what
    keeps it, and the largest terms with what they are made of."""
    case, name = seen[0].record.case, seen[0].tensor.name
    place = dict(zip("h" if name == "dsink" else case.layout, at, strict=True))
    problem = problem_of(case, inputs)
    found = terms_of(problem, values(case, inputs, "grad_out"), name, place)
    yield from judged(seen, lambda _: (found.value, found.budget))
    what, of = ("key", " of K and V") if name in ("dk", "dv") else ("query", "")
    where = f"head {place['h']}" if name == "dsink" else f"{what} {place['s']} of head {place['h']}{of}, batch {place['b']}"
    yield f"  {where}: scale {number(problem.scale)}"
    yield from _lines(_SUMS[name], found, inputs, place.get("d", 0), order(case.layout))


def _lines(how: Sum, found: Terms, inputs: Inputs, d: int, to_bhsd: tuple[int, ...]) -> Iterator[str]:
    count = len(found.term)
    top = np.argsort(np.where(np.isnan(found.term), -np.inf, -np.abs(found.term)), kind="stable")[:SHOWN].tolist()
    meant = ", ".join(f"{symbol} = {_MEANT[symbol]}" for symbol in how.shown if symbol in _MEANT)
    yield f"  Σ {how.formula} over {how.over}{meant and f'; {meant}'}"
    yield f"  the largest terms{'' if len(top) == count else f', {len(top)} of {count}'}:"
    for i in top:
        where = ", ".join(f"{field} {getattr(found, field)[i]}" for field in how.at)
        parts = [f"{symbol} {number(getattr(found, field)[i], 6)}" for symbol, field in how.shown.items()]
        if how.factor:
            name, at = how.factor
            code = inputs[name].codes.transpose(to_bhsd)[(*(getattr(found, field)[i] for field in at), d)]
            parts.append(f"{name}[{d}] {coded(code, inputs[name].format)}")
        yield f"    {where}: {', '.join(parts)}, term {number(found.term[i], 6)}"
