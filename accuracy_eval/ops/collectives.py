"""Collectives: what r ranks hold after they exchanged what they had. Row i of every operand and output is rank i's.

A row of COLLECTIVES says how the output follows from the operand and which call of torch.distributed one rank makes. Sums promise that
each addition is rounded to the format that travels, in any order or tree (docs/budgets.md); what only moves is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.hops import hop_budget, hop_overflows, rank_sum
from accuracy_eval.cpu_ref.overflow import Overflows, Reached, taken_as_right
from accuracy_eval.formats import Codes, Values, decode, encode, get_format
from accuracy_eval.inputs.exact import INPUT_CLASS
from accuracy_eval.inputs.philox import STREAM_16, stream_key, words
from accuracy_eval.ops.relations import PERMUTED_RANKS
from accuracy_eval.ops.spec import Encoding, Exempt, Inputs, Joint, Operand, OpSpec, Output, Panel, Reference, Size, operand_formats
from accuracy_eval.records import Case, Coded

SUMMED = ("float32", "float16", "bfloat16")
MOVED = (*SUMMED, "fp8_e4m3", "fp8_e5m2")
MOST_RANKS = 128  # every rank has a term of at least ±1 in an exact sum of bfloat16 numbers
Call = Callable[[Any, Any, Any], object]


@dataclass(frozen=True)
class Collective:
    """One collective over r ranks, in blocks of n elements.

    takes, gives  blocks that a rank has before and after: one, or one for each rank ("each")
    sums          whether blocks are added; else they only move
    result        (blocks [r, w, n], r) -> blocks [r, w, n] of the output; those of sums are added up before: [1, w, n]
    call          (torch.distributed, the rank's operand, its output): what a rank does
    alike         all ranks must end with the same bytes
    """

    name: str
    equation: str
    takes: Literal["one", "each"]
    gives: Literal["one", "each"]
    sums: bool
    result: Callable[[NDArray[Any], int], NDArray[Any]]
    call: Call
    alike: bool


def _either(new: str, old: str) -> Call:
    """A function of torch.distributed by its name, or by the one it had before torch 2.13."""

    def call(distributed: Any, x: Any, out: Any) -> object:
        function = getattr(distributed, new, None) or getattr(distributed, old)
        return function(out, x)

    return call


def _in_place_sum(distributed: Any, x: Any, out: Any) -> object:
    out.copy_(x)
    return distributed.all_reduce(out)


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("all_reduce", "yᵢ = Σⱼ xⱼ", "one", "one", True, lambda x, r: np.repeat(x, r, 0), _in_place_sum, True),
        Collective("reduce_scatter", "yᵢ = Σⱼ xⱼᵢ", "each", "one", True, lambda x, r: x.swapaxes(0, 1),
                   _either("reduce_scatter_single", "reduce_scatter_tensor"), False),
        Collective("all_gather", "yᵢⱼ = xⱼ", "one", "each", False, lambda x, r: np.repeat(x.swapaxes(0, 1), r, 0),
                   _either("all_gather_single", "all_gather_into_tensor"), True),
        Collective("all_to_all", "yᵢⱼ = xⱼᵢ", "each", "each", False, lambda x, r: x.swapaxes(0, 1),
                   lambda distributed, x, out: distributed.all_to_all_single(out, x), False),
    )
}  # fmt: skip


def _rows(c: Collective, case: Case, which: Literal["takes", "gives"]) -> tuple[int, int]:
    r, n = case.dims["r"], case.dims["n"]
    return r, n if getattr(c, which) == "one" else r * n


def _operands(c: Collective, case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    return (Operand("x", _rows(c, case, "takes"), operand_formats(case, 1, encoding)[0], ("r", "n")),)


def _outputs(c: Collective, case: Case, encoding: Encoding) -> tuple[Output, ...]:
    return (Output("y", _rows(c, case, "gives"), operand_formats(case, 1, encoding)[0], exact=not c.sums),)


def _integers(c: Collective, case: Case, encoding: Encoding) -> dict[str, Codes]:
    """Of the exact lane: integers ±1 … ±top, no zeros, so that the loss of any rank shows in every element. Sums of magnitudes are integers
    that the format holds. Words of the stream `OP/x/SHAPE/exact`: bit 0 is the sign, the others the magnitude mod top."""
    if case.lane != "exact":
        return {}
    (x,) = _operands(c, case, encoding)
    fmt = get_format(x.format)
    top = (2 << fmt.fraction_bits) // (case.dims["r"] if c.sums else 1)
    w = words(stream_key(c.name, x.name, x.shape, INPUT_CLASS, case.seed), STREAM_16, 0, x.shape[0] * x.shape[1]).astype(np.int64)
    return {x.name: encode(((1 + (w >> 1) % top) * (1 - 2 * (w & 1))).astype(np.float64).reshape(x.shape), fmt)}


def _torch(c: Collective, torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """What one rank does, in a process group of all: its own row in, its own row out. Numbers of 8 bits travel as bytes."""
    x, y = t["x"], out["y"]
    if x.element_size() == 1:
        c.call(torch.distributed, x.view(torch.uint8), y.view(torch.uint8))
    else:
        c.call(torch.distributed, x, y)
    return {"y": y}


def _reference(c: Collective, case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    (output,), x = _outputs(c, case, encoding), inputs["x"]
    r, n = case.dims["r"], case.dims["n"]
    w = 1 if c.takes == "one" else r
    if not c.sums:
        moved = c.result(x.codes.reshape(r, w, n), r).reshape(output.shape)
        return {"y": Reference("codes", output.format, output.shape, contract, lambda: iter((Panel(0, moved),)))}
    promise, values = parse_contract(contract), decode(x.codes, x.format)

    def spread(summed: NDArray[Any]) -> NDArray[Any]:
        return c.result(summed.reshape(1, w, n), r).reshape(output.shape)

    def panels() -> Iterator[Panel]:
        truth = rank_sum(values)
        budget = hop_budget(values, promise, output.format)
        yield Panel(0, spread(truth), spread(np.where(np.isfinite(truth), np.where(np.isnan(budget), np.inf, budget), 0.0)))

    overflows = _overflows(spread, values, contract, output.format)
    why = f"elements Inf or NaN: a partial sum of {contract} may overflow there in some order"
    exempt = Exempt(partial(taken_as_right, overflows, output.format), why)
    return {"y": Reference("values", output.format, output.shape, contract, panels, exempt=exempt)}


def _overflows(spread: Callable[[NDArray[Any]], NDArray[Any]], values: Values, contract: str, fmt: str) -> Overflows:
    @cache
    def flags() -> tuple[NDArray[Any], ...]:  # asked for only where something is Inf or NaN
        given = np.asarray(~np.isfinite(values).all(axis=0))
        return tuple(spread(f) for f in (*hop_overflows(values, parse_contract(contract), fmt), given))

    def overflows(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Reached:
        up, down, given = (f[rows, columns] for f in flags())
        return Reached(up, down, given, np.zeros(len(rows), bool))

    return overflows


def _joint(case: Case, inputs: Inputs, encoding: Encoding, outputs: Mapping[str, Coded]) -> Joint:
    """Elements that some rank holds otherwise than rank 0."""
    y = outputs["y"].codes
    return Joint({"y": {"rank_mismatch_count": int((y != y[:1]).any(axis=0).sum())}})


def _contract(c: Collective, case: Case) -> str:
    return f"hops({case.format})" if c.sums else "exact"


def _refuse(case: Case) -> str | None:
    if not 2 <= case.dims["r"] <= MOST_RANKS:
        return f"r={case.dims['r']} ranks; allowed: 2 to {MOST_RANKS}"
    return None


def _op(c: Collective) -> OpSpec:
    return OpSpec(
        name=c.name,
        family="collective",
        equation=c.equation,
        dims=(("r", "n"),),
        sizes={"r": Size(f"ranks, 2 to {MOST_RANKS}, a process each", 4), "n": Size("elements of a block", 1000)},
        formats=SUMMED if c.sums else MOVED,
        operands=partial(_operands, c),
        own_codes=partial(_integers, c),
        outputs=partial(_outputs, c),
        torch=partial(_torch, c),
        ranks=lambda case: case.dims["r"],
        reference=partial(_reference, c),
        joint=_joint if c.alike else None,
        contract=partial(_contract, c),
        lanes=("random", "exact", "metamorphic") if c.sums else ("random", "exact"),
        relation=lambda case: PERMUTED_RANKS if case.lane == "metamorphic" else None,
        refuse=_refuse,
    )


COLLECTIVE_OPS = tuple(_op(c) for c in COLLECTIVES.values())
