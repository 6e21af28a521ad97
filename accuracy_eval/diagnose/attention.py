"""Causes in attention: some heads and queries are computed again with another scale, mask, number of keys, or heads of K and V.

A change explains the output when every sampled element that sees a key keeps the budget it then has, and no more than 1 % of the error's
energy is left (plus that of two roundings). If two changes do, none is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.budget import within_budget
from accuracy_eval.cpu_ref.attention import Attention, Result, backward, forward
from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.diagnose.sampling import Indices, places_of
from accuracy_eval.formats import Codes, Values, decode, round_to, ulp
from accuracy_eval.messages import number
from accuracy_eval.ops import attention
from accuracy_eval.ops.attention_problems import PROBLEMS
from accuracy_eval.records import Case

REST = 0.01  # of the error's energy may remain unexplained, as for products
CLEAR = 10.0  # times the energy of rounding the error must have
HEADS, PLACES = 8, 48  # that are computed again
LARGEST = 1 << 22  # scores of one part: 32 MiB of float64
BLOCKS = (8, 16, 32, 64, 128, 256)  # keys of which kernels take whole blocks alone

BY_QUERY = ("out", "lse", "dq")
BY_KEY = ("dk", "dv")

Span = tuple[int | None, int | None]  # query i sees keys i − first … i + last; None: from the first, to the end
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Change:
    """What is computed: as asked for, but for one thing.

    keys    how many there are at most
    shared  the head of K and V that each query head takes
    sink    the factor of sinks, None where they have no part
    """

    scale: float
    span: Span
    keys: int
    shared: tuple[int, ...]
    sink: float | None = 1.0
    code: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def seen(self, queries: Indices, keys: int) -> Flags:
        """[queries, keys]"""
        (first, last), i, j = self.span, queries[:, None], np.arange(keys)[None, :]
        found = np.broadcast_to(j < self.keys, (len(queries), keys))
        found = found if first is None else found & (j >= i - first)
        return found if last is None else found & (j <= i + last)


def softmax_scale(look: Look) -> Finding | None:
    return _named(look, "softmax-scale")


def wrong_mask(look: Look) -> Finding | None:
    return _named(look, "wrong-mask")


def keys_missing(look: Look) -> Finding | None:
    return _named(look, "keys-missing")


def wrong_kv_head(look: Look) -> Finding | None:
    return _named(look, "wrong-kv-head")


def wrong_sink(look: Look) -> Finding | None:
    return _named(look, "wrong-sink")


def _named(look: Look, code: str) -> Finding | None:
    if look.attention is None:
        look.attention = (_explanation(look),)
    found: Change | None = look.attention[0]
    return Finding(found.evidence, found.words) if found is not None and found.code == code else None


def _explanation(look: Look) -> Change | None:
    """The one change that explains the sampled output."""
    c = look.context
    if c.op not in PROBLEMS or c.output not in (*BY_QUERY, *BY_KEY) or not {*"qkv"} <= set(c.inputs) or c.actual is None:
        return None
    if tuple(letter for letter, _ in c.shape) not in attention.ATTENTION.dims or 0 in look.m.shape:
        return None  # arrays of an op may come under sizes of their own
    s = Sample(look)
    asked = _asked(s.problem)
    if s.largest > LARGEST:
        return None
    energy, rounding = s.errors(asked)
    if not energy > CLEAR * rounding:
        return None
    changes = _changes(asked, c.case, sinks=s.problem.sink is not None)
    found = [change for change in changes if s.error(change) <= REST * energy + 2 * rounding]
    return found[0] if len(found) == 1 else None


def _asked(problem: Attention) -> Change:
    heads, groups = problem.q.shape[1], problem.k.shape[1]
    span = (problem.window - 1 if problem.window else None, 0 if problem.window or problem.causal else None)
    return Change(problem.scale, span, problem.k.shape[2], tuple(h * groups // heads for h in range(heads)))


def _changes(asked: Change, case: Case, *, sinks: bool) -> Iterator[Change]:
    for value, what in _scales(asked.scale, case.dims["d"]).items():
        words = {"what": what, "asked": number(asked.scale)}
        yield replace(asked, scale=value, code="softmax-scale", evidence={"value": value}, words=words)
    for span in _spans(asked.span, case.dims["t"] - case.dims["s"]):
        words = {"asked": _span_text(asked.span)}
        yield replace(asked, span=span, code="wrong-mask", evidence={"mask": _span_text(span)}, words=words)
    for keys in _lengths(asked.keys):
        yield replace(asked, keys=keys, code="keys-missing", evidence={"from_key": keys}, words={"keys": str(asked.keys)})
    for shared, how in _sharings(len(asked.shared), case.dims["g"]).items():
        if shared != asked.shared:
            yield replace(asked, shared=shared, code="wrong-kv-head", evidence={"how": how})
    for factor, how in ((None, "has no part in the softmax"), (asked.scale, "is scaled as scores are")) if sinks else ():
        yield replace(asked, sink=factor, code="wrong-sink", evidence={"how": how})


def _scales(scale: float, d: int) -> dict[float, str]:
    """Scales that kernels have had in place of that one, each with what it is; the first name of a number stands."""
    padded = 1 << (d - 1).bit_length()
    named = (
        (1.0, "no scale"),
        (1 / d, "1/d"),
        (1 / math.sqrt(d), "1/√d, not the scale of the call"),
        (scale * scale, "the scale twice"),
        (scale * math.log2(math.e), "log2 e twice"),
        (scale * math.log(2), "base 2 in place of e: log2 e is missing"),
        (1 / math.sqrt(padded), f"1/√{padded}, of the padded head"),
    )
    found: dict[float, str] = {}
    for value, what in named:
        if not any(math.isclose(value, other) for other in (scale, *found)):
            found[value] = what
    return found


def _spans(asked: Span, more_keys: int) -> list[Span]:
    """Masks that are one key off, aligned to the other end, left out, or not asked for; none that shows no key."""
    first, last = asked
    if last is None:
        return list(dict.fromkeys([(None, 0), (None, more_keys)]))
    if first is None:
        return [(None, None), (None, last + 1), (None, last - 1)]
    both = ((first + 1, last), (first - 1, last), (first, last + 1), (first, last - 1), (first + 1, last - 1), (first - 1, last + 1))
    symmetric = [(first, first)] if first != last else []
    return [(None, None), (None, last), *((f, t) for f, t in both if f + t >= 0), *symmetric]


def _span_text(span: Span) -> str:
    first, last = (None if x is None else x * sign for x, sign in zip(span, (-1, 1), strict=True))
    if last is None:
        return "all" if first is None else f"from {_place(first)} on"
    return f"up to {_place(last)}" if first is None else f"{_place(first)} … {_place(last)}"


def _place(offset: int) -> str:
    return f"i {'+' if offset > 0 else '−'} {abs(offset)}" if offset else "i"


def _lengths(keys: int) -> list[int]:
    """Fewer keys: without the last, whole blocks, without the last block."""
    found = [keys - 1, *(keys // n * n for n in BLOCKS), *(keys - n for n in BLOCKS)]
    return [n for n in dict.fromkeys(found) if 0 < n < keys]


def _sharings(heads: int, groups: int) -> Mapping[tuple[int, ...], str]:
    """Other ways to deal the heads of K and V to query heads."""
    ways: dict[str, Callable[[int], int]] = {
        f"query head h takes head h mod {groups}": lambda h: h % groups,
        "every query head takes the next one's": lambda h: (h * groups // heads + 1) % groups,
        "every query head takes that of the one before": lambda h: (h * groups // heads - 1) % groups,
        "query heads take them from the last to the first": lambda h: groups - 1 - h * groups // heads,
        "all query heads take the first": lambda h: 0,
    }
    return {tuple(map(way, range(heads))): how for how, way in reversed(ways.items())}


@dataclass(frozen=True)
class Part:
    """Elements of one head of an output: places of queries, or of keys, and the codes there [places, …]."""

    batch: int
    head: int
    places: Indices
    codes: Codes


class Sample:
    """Parts of one output, the worst first, and what they would be under a change."""

    def __init__(self, look: Look) -> None:
        c = look.context
        self.look, self.output, self.fmt = look, c.output, look.fmt
        self.problem = PROBLEMS[c.op](c.case, c.inputs, c.contract)
        self.grad = attention.values(c.case, c.inputs, "grad_out") if c.direction == "bwd" else None
        letters = "bhs" if self.output == "lse" else c.layout.removesuffix("d")
        self.order = tuple(letters.index(x) for x in "bhs")
        self.sizes = tuple(look.m.shape[i] for i in self.order)

    @property
    def largest(self) -> int:
        """Scores of the largest part."""
        p = self.problem
        queries = p.q.shape[2] * p.q.shape[1] // p.k.shape[1] if self.output in BY_KEY else PLACES
        return int(queries * p.k.shape[2])

    @cached_property
    def parts(self) -> list[Part]:
        heads, length = self.sizes[0] * self.sizes[1], self.sizes[2]
        worst = [tuple(w.index[i] for i in self.order) for w in self.look.m.worst]
        first = list(dict.fromkeys(b * self.sizes[1] + h for b, h, _ in worst))
        chosen = places_of(first, heads, HEADS).tolist()
        found = []
        for head in sorted(chosen, key=lambda x: first.index(x) if x in first else len(first)):
            at = divmod(int(head), self.sizes[1])
            places = places_of([i for b, h, i in worst if (b, h) == at], length, PLACES)
            found.append(Part(*at, places, self._codes(*at, places)))
        return found

    def _codes(self, batch: int, head: int, places: Indices) -> Codes:
        rows = self.look.context.actual
        assert rows is not None
        if self.output == "lse":
            row = batch * self.sizes[1] + head
            line: Codes = np.asarray(rows(row, row + 1))[0, places]
            return line
        at = (batch, head, places)
        flat = np.ravel_multi_index([at[self.order.index(axis)] for axis in range(3)], self.look.m.shape[:3])
        return np.concatenate([np.asarray(rows(i, i + 1)) for i in flat.tolist()])

    def predicted(self, part: Part, change: Change) -> tuple[Values, Values, Flags] | None:
        """Values, budgets and which places see a key at all; None where no query head takes this one of K and V."""
        keys = self.problem.k.shape[2]
        if self.output in BY_QUERY:
            seen = change.seen(part.places, keys)
            found = self._computed(part.batch, [part.head], change.shared[part.head], part.places, change, seen)
            known: Flags = np.any(seen, axis=1)
            return found.values[0, 0], found.budget[0, 0], known
        heads, queries = [h for h, g in enumerate(change.shared) if g == part.head], np.arange(self.problem.q.shape[2])
        if not heads:
            return None
        found = self._computed(part.batch, heads, part.head, queries, change, change.seen(queries, keys))
        return found.values[0, 0, part.places], found.budget[0, 0, part.places], np.ones(len(part.places), np.bool_)

    def _computed(self, batch: int, heads: list[int], shared: int, queries: Indices, change: Change, seen: Flags) -> Result:
        """The output [1, 1, …] of these heads and queries of a batch, which take one head of K and V."""
        p, few = self.problem, np.ix_(np.array([batch]), np.array(heads), queries)
        k, v = (x[batch : batch + 1, shared : shared + 1] for x in (p.k, p.v))
        sink = None if p.sink is None or change.sink is None else change.sink * p.sink[heads]
        part = replace(p, q=p.q[few], k=k, v=v, scale=change.scale, sink=sink, mask=seen)
        return (forward(part) if self.grad is None else backward(part, self.grad[few]))[self.output]

    def error(self, change: Change) -> float:
        """Energy of what the change leaves; Inf where an element breaks its budget, or a part has none that is known."""
        rest = 0.0
        for part in self.parts:
            found = self.predicted(part, change)
            if found is None:
                return math.inf
            values, budget, known = found
            codes, values = part.codes[known], values[known]
            if not known.any() or not within_budget(codes, values, budget[known], self.fmt).all():
                return math.inf
            rest += _energy(decode(codes, self.fmt) - round_to(values, self.fmt))
        return rest

    def errors(self, asked: Change) -> tuple[float, float]:
        """Energy of the error, and of rounding."""
        found = [(part.codes, p[0]) for part in self.parts if (p := self.predicted(part, asked)) is not None]
        return (
            sum(_energy(decode(codes, self.fmt) - truth) for codes, truth in found),
            sum(_energy(ulp(truth, self.fmt)) for _, truth in found) / 12,
        )


def _energy(x: Values) -> float:
    return float(np.sum(np.square(x[np.isfinite(x)])))
