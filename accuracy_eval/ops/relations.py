"""Metamorphic relations of a product: how its result must change when its operands are changed in a known way. One row each.

A case of lane "metamorphic" runs changed operands; its base is the random-lane case with the same operands unchanged, in the same
dump. Nothing here needs to know the right result: a kernel that reads padding, depends on the rows beside its own or drops the
tail of K contradicts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import unknown
from accuracy_eval.formats import Values, decode, encode
from accuracy_eval.ops.spec import Option, option_of
from accuracy_eval.records import Case

Codes = NDArray[Any]
Fill = Literal["", "nan", "max"]

SCALE = 16.0
PADDING = 28  # zeros at the end of K
BATCH = 4  # times as many rows has the base
# matrix units whose rounding treats the two signs differently: CDNA3 floors, RDNA3 and RDNA4 count opposite signs one unit more
UNEVEN = ("gfx94", "gfx11", "gfx12")


@dataclass(frozen=True)
class Relation:
    """One relation of D = A·Bᵀ, operands in canonical orientation (a [m, k], b [n, k]).

    sentence  what must hold
    operands  (codes of the base's operands, their formats) -> codes of this case's
    result    (values of the base's D) -> values of this case's D, exactly
    dims      (dims of this case) -> dims of the base that differ
    bitwise   the same bits on every device, but where `uneven` says that it is one of UNEVEN; else within both budgets
    partner   another relation of the same base, whose D is taken off the base's before the two are compared
    fill      what the memory between the rows of the operands holds
    """

    name: str
    sentence: str
    operands: Callable[[Mapping[str, Codes], Mapping[str, str]], dict[str, Codes]] = lambda codes, formats: dict(codes)
    result: Callable[[Values], Values] = lambda d: d
    dims: Callable[[Mapping[str, int]], dict[str, int]] = lambda dims: {}
    bitwise: bool = False
    uneven: bool = False
    partner: str = ""
    fill: Fill = ""

    def base(self, case: Case) -> Case:
        """The random-lane case this one is a change of."""
        dims = {**case.dims, **self.dims(case.dims)}
        options = tuple((n, v) for n, v in case.options if n != "relation")
        return replace(case, shape=tuple((d, dims[d]) for d, _ in case.shape), options=options, lane="random")

    def others(self, case: Case) -> tuple[Case, ...]:
        """The cases this one is compared with: its base, and its partner where it has one."""
        partner = (replace(case, options=(("relation", self.partner),)),) if self.partner else ()
        return (self.base(case), *partner)

    def exact_on(self, arch: str) -> bool:
        """Whether the relation holds bit for bit on a part."""
        return self.bitwise and not (self.uneven and arch.startswith(UNEVEN))


def _times(factor: float) -> Callable[[Mapping[str, Codes], Mapping[str, str]], dict[str, Codes]]:
    return lambda codes, formats: {**codes, "a": encode(decode(codes["a"], formats["a"]) * factor, formats["a"])}


def _shuffled(size: int) -> NDArray[np.int64]:
    """A fixed permutation without structure: by the golden ratio's multiples."""
    return np.argsort((np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)), kind="stable")


def _padded(codes: Mapping[str, Codes], formats: Mapping[str, str]) -> dict[str, Codes]:
    return {n: np.pad(c, ((0, 0), (0, PADDING))) for n, c in codes.items()}  # code 0 is +0 in every operand format


def _reordered(codes: Mapping[str, Codes], formats: Mapping[str, str]) -> dict[str, Codes]:
    return {n: c[:, _shuffled(c.shape[1])] for n, c in codes.items()}


def _half(first: int) -> Callable[[Mapping[str, Codes], Mapping[str, str]], dict[str, Codes]]:
    def operands(codes: Mapping[str, Codes], formats: Mapping[str, str]) -> dict[str, Codes]:
        a = codes["a"].copy()
        a[:, 1 - first :: 2] = 0
        return {**codes, "a": a}

    return operands


RELATIONS: dict[str, Relation] = {
    r.name: r
    for r in (
        Relation("scaled", "16·A gives 16·D, bit for bit", _times(SCALE), lambda d: SCALE * d, bitwise=True),
        Relation("negated", "-A gives -D, bit for bit", _times(-1.0), lambda d: -d, bitwise=True, uneven=True),
        Relation("padded_k", "zeros appended to K change nothing", _padded, dims=lambda dims: {"k": dims["k"] - PADDING}),
        Relation("permuted_rows", "the rows of A in another order give the rows of D in that order",
                 lambda codes, formats: {**codes, "a": codes["a"][_shuffled(len(codes["a"]))]}, lambda d: d[_shuffled(len(d))]),
        Relation("permuted_k", "the order of the products changes nothing beyond rounding", _reordered),
        Relation("batch", "a row does not depend on the rows beside it: the first quarter of A gives the first quarter of D",
                 lambda codes, formats: {**codes, "a": codes["a"][: len(codes["a"]) // BATCH]}, lambda d: d[: len(d) // BATCH],
                 lambda dims: {"m": BATCH * dims["m"]}),
        Relation("even_k", "the products of even k and those of odd k add up to D", _half(0), partner="odd_k"),
        Relation("odd_k", "the products of odd k and those of even k add up to D", _half(1), partner="even_k"),
        Relation("padding_nan", "NaN in the memory between the operands' rows changes nothing", fill="nan"),
        Relation("padding_max", "the largest number in the memory between the operands' rows changes nothing", fill="max"),
    )
}  # fmt: skip


OPTIONS = {"relation": Option("scaled", "of the metamorphic lane: how the operands are changed", tuple(RELATIONS))}

# of sums over ranks (ops.collectives): the ranks in the opposite order, so that no two neighbours keep their direction
PERMUTED_RANKS = Relation(
    "permuted_ranks", "the order of the ranks changes nothing beyond rounding", lambda codes, formats: {"x": codes["x"][::-1].copy()}
)


def relation_of(case: Case) -> Relation | None:
    """The relation of a metamorphic case; None in other lanes. UsageError for an unknown one."""
    if case.lane != "metamorphic":
        return None
    name = str(option_of(OPTIONS, case, "relation"))
    if name not in RELATIONS:
        raise unknown("relation", name, RELATIONS)
    return RELATIONS[name]


def refuse(case: Case) -> str | None:
    """Why a relation cannot be asked of a case, or None."""
    relation = relation_of(case)
    if relation is None:
        return "option relation belongs to the metamorphic lane" if "relation" in dict(case.options) else None
    more = [n for n, _ in case.options if n != "relation"]
    if case.direction != "fwd" or case.recipe or more:
        return "metamorphic cases are plain products: forward, no recipe, no option besides relation"
    if any(size < 0 for size in relation.dims(case.dims).values()):
        return f"relation {relation.name} needs k of {PADDING} or more: so many are zeros"
    return None
