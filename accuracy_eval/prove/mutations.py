"""Known faults: of the finished result, of some of its products, of the arithmetic. One row each in MUTATIONS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from accuracy_eval.formats import Values, decode, get_format, round_to
from accuracy_eval.prove.arithmetic import Unit, bfloat16_partials, fourteen_bits
from accuracy_eval.prove.products import SEED, Problem
from accuracy_eval.quantize import get_recipe


class NotApplicable(str):
    """Why a mutation means nothing for a product."""


Change = Callable[[Problem], Values | NotApplicable]


@dataclass(frozen=True)
class Mutation:
    """One fault.

    kind    what it breaks: "result" the finished output, "product" some of the terms, "arithmetic" how they are added
    change  the result before output rounding, float64, any shape
    """

    name: str
    sentence: str
    kind: Literal["result", "product", "arithmetic"]
    change: Change


def _output(change: Callable[[Values], Values]) -> Change:
    """A mutation of the finished output's values."""
    return lambda p: change(decode(p.codes, p.output.format))


def _set(value: float) -> Callable[[Values], Values]:
    def change(d: Values) -> Values:
        out = d.copy()
        out[5, 7] = value
        return out

    return change


def _row(factor: float) -> Callable[[Values], Values]:
    def change(d: Values) -> Values:
        out = d.copy()
        out[5] *= factor
        return out

    return change


LOST = 3  # of the products of every element, the K / LOST-th is lost
TAIL = 8  # products dropped at the end of K


def _lost_k(p: Problem) -> Values:
    a = p.a.copy()
    a[:, a.shape[1] // LOST] = 0
    return p.result(a, p.b)


def _dropped_tail(p: Problem) -> Values:
    a = p.a.copy()
    a[:, -TAIL:] = 0
    return p.result(a, p.b)


def _nibbles(p: Problem) -> Values | NotApplicable:
    if get_format(p.a_codes.format).bits != 4:
        return NotApplicable("codes of a byte and more are not packed in pairs")
    pairs = p.a.reshape(len(p.a), -1, 2)
    return p.result(pairs[:, :, ::-1].reshape(p.a.shape), p.b)


def _other_encoding(p: Problem) -> Values | NotApplicable:
    if p.column.format != "fp8_e4m3":
        return NotApplicable("only fp8 formats have two encodings")
    return p.result(decode(p.a_codes.codes, "float8_e4m3fnuz"), p.b)


def _scale(factor: float) -> Change:
    def change(p: Problem) -> Values | NotApplicable:
        if p.a_scale is None or p.b_scale is None:
            return NotApplicable("operands have no scale")
        scale = np.broadcast_to(p.a_scale, p.a.shape).copy()
        rows, width = get_recipe(p.column.recipe).block
        # the only scale there is, or that of one block of one row: the second, where there are two
        part = (slice(5, 6), slice(width, 2 * width) if p.a.shape[1] > width else slice(None)) if rows else slice(None)
        scale[part] *= factor
        return p.result(p.a, p.b, scales=(scale, p.b_scale))

    return change


def _swapped_scales(p: Problem) -> Values | NotApplicable:
    if p.a_scale is None or p.b_scale is None:
        return NotApplicable("operands have no scale")
    if p.a_scale.size == 1:
        return NotApplicable("one scale an operand: their product stays the same")
    blocks = [np.broadcast_to(s, x.shape) for s, x in ((p.a_scale, p.a), (p.b_scale, p.b))]
    return p.result(p.a, p.b, scales=(np.resize(blocks[1], p.a.shape), np.resize(blocks[0], p.b.shape)))


def _tf32(p: Problem) -> Values:
    def cut(x: Values) -> Values:
        return round_to(x, "tfloat32")

    return p.result(cut(p.a), cut(p.b))


NEAR = 0.9  # of an element's budget: what no single element shows, and no healthy unit reaches in many at once


def _near_budget(rows: slice, columns: slice) -> Change:
    """Elements whose errors are NEAR their budget, of random signs."""

    def change(p: Problem) -> Values | NotApplicable:
        if p.reference.kind == "codes":
            return NotApplicable("codes that must be equal have no budget")
        (panel,) = p.reference.panels()
        assert panel.budget is not None
        out = p.healthy.copy()
        signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=out.shape)
        out[rows, columns] = (panel.values + NEAR * signs * panel.budget)[rows, columns]
        return out

    return change


def _unit(unit: Unit) -> Change:
    return lambda p: p.result(p.a, p.b, unit=unit)


MUTATIONS: dict[str, Mutation] = {
    m.name: m
    for m in (
        Mutation("twice", "every element is doubled", "result", _output(lambda d: 2 * d)),
        Mutation("zero", "every element is zero", "result", _output(np.zeros_like)),
        Mutation("one NaN", "one element is NaN", "result", _output(_set(math.nan))),
        Mutation("one Inf", "one element is infinite", "result", _output(_set(math.inf))),
        Mutation("one column short", "the result has N - 1 columns", "result", _output(lambda d: d[:, :-1])),
        Mutation("shifted", "every row holds its neighbour's values", "result", _output(lambda d: np.roll(d, 1, axis=0))),
        Mutation("transposed", "the result is stored column by column", "result", _output(lambda d: d.T.reshape(d.shape))),
        Mutation("gate/up swapped", "the halves of N change places", "result", _output(lambda d: np.roll(d, d.shape[1] // 2, axis=1))),
        Mutation("a zero row", "one of 32 rows is zero", "result", _output(_row(0.0))),
        Mutation("a row 1 % off", "one of 32 rows is multiplied by 1.01", "result", _output(_row(1.01))),
        Mutation("a lost k", "one product of K is missing from every element", "product", _lost_k),
        Mutation("K tail dropped", "the last 8 products are missing from every element", "product", _dropped_tail),
        Mutation("nibbles swapped", "the two codes in each byte of A change places", "product", _nibbles),
        Mutation("FNUZ for OCP", "A's codes are read in the other fp8 encoding", "product", _other_encoding),
        Mutation("scale exponent +1", "a scale of A is doubled: the tensor's, or that of one block", "product", _scale(2.0)),
        Mutation("scale exponent -1", "a scale of A is halved: the tensor's, or that of one block", "product", _scale(0.5)),
        Mutation("scales swapped", "A's codes meet B's scales and B's A's, row by row", "product", _swapped_scales),
        Mutation("a row near its budget", "every error in one of 32 rows is 0.9 of its element's budget", "arithmetic",
                 _near_budget(slice(5, 6), slice(None))),
        Mutation("a column near its budget", "the same in one of 48 columns", "arithmetic", _near_budget(slice(None), slice(5, 6))),
        Mutation("all near their budget", "the same everywhere", "arithmetic", _near_budget(slice(None), slice(None))),
        Mutation("bf16 partials", "four partial sums are rounded to bfloat16, then added", "arithmetic", _unit(bfloat16_partials)),
        Mutation("14-bit accumulator", "sums keep 14 significant bits, cut toward zero", "arithmetic", _unit(fourteen_bits)),
        Mutation("TF32 inputs", "operands are rounded to 10 fraction bits", "arithmetic", _tf32),
    )
}  # fmt: skip
