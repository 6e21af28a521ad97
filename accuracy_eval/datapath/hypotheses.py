"""What an explanation tries, in the order in which it tries it.

Stages go from simple to intricate: a plain chain; contiguous pieces of usual widths; contiguous pieces of a split count; pieces
dealt round robin. Within a stage the rules come in the order the output's error suggests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from accuracy_eval.datapath import rules
from accuracy_eval.datapath.compositions import SCALINGS, arithmetic
from accuracy_eval.datapath.evaluation import Problem
from accuracy_eval.datapath.orders import FWD, Order, Pieces, cut, ordered, parse_order
from accuracy_eval.datapath.rules import Rule, half, tfdpa
from accuracy_eval.datapath.units import UNITS, Unit, units_of
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import get_format

CHUNKS = (128, 64, 32, 256, 16, 8, 4, 512, 1024, 192, 384)  # usual widths of contiguous pieces
GRAINS = (8, 16, 32, 64, 128)  # a split contraction is cut at multiples of these
SPLITS = range(2, 65)
ROBINS = range(2, 33)
TILES = (16, 32, 64, 128)  # tiles a ragged k may be completed to
# MFMA tiles: lane groups × k's each holds, and how many of them one instruction takes
LANES = ("lanes4x4.2", "lanes2x4.2", "lanes4x8.4", "lanes2x8.4", "lanes4x16.8", "lanes2x16.8", "lanes4x2.1", "lanes2x2.1")
LANE_KINDS = ("trfdpa", "gtrfdpa", "rdna3", "rdna4", "exact", "flush")

TRUNCATES = ("tfdpa",)


@dataclass(frozen=True)
class Chain:
    """What is computed once for several hypotheses: everything before the join."""

    rule: Rule
    pre: str
    order: Order
    pieces: Pieces


def rules_for(problem: Problem, out: str, unit: str | None) -> list[tuple[str, Rule]]:
    """(pre, rule) of everything that may have made an output of format `out`, most usual first.

    unit  a name of a unit or part: only its rules, and fused multiply-adds on its vector lanes. None: every unit's.
    UsageError where nothing takes the operands.
    """
    pair = problem.a_format, problem.b_format
    rows = units_of(unit) if unit is not None else UNITS
    found: dict[tuple[str, Rule], None] = {}

    def add(pre: str, rule: Rule) -> None:
        if rule.accumulator != "float16" or out == "float16":
            found.setdefault((pre, rule))

    known = {u.name: u for u in rows if u.rule is not None}
    if unit is not None and not known:
        raise UsageError(f"unit {unit!r}: nothing is known of its arithmetic; explain without a unit tries the rules of all others")
    for row in rows:
        if row.rule is None or row.scales:
            continue
        for pre in _pres(row, pair):
            rule = replace(row.rule, e0=rules.E0) if row.rule.kind == "tfdpa" and unit is None else row.rule
            add(pre, rule)
            if rule.kind == "tfdpa" and rule.L > 4:  # the same unit through an instruction with half the products
                add(pre, replace(rule, L=rule.L // 2))
            if rule.kind == "emulated":
                add("fp16", tfdpa(16, rule.F) if rule.accumulator == "float32" else half(16, rule.F))
    if unit is None and "float16" in pair:
        add("", tfdpa(4, 25))
    if not problem.wide and all(get_format(f).kind == "float" for f in pair):
        add("", rules.FMA)
    if not found:
        raise UsageError(f"nothing known multiplies {' × '.join(pair)}" + (f" on {unit}" if unit else ""))
    return list(found)


def takes(unit: str, pair: tuple[str, str]) -> bool:
    """Whether anything known of a unit multiplies operands of these formats."""
    rows = [row for row in units_of(unit) if row.rule is not None and not row.scales]
    floats = "float64" not in pair and all(get_format(f).kind == "float" for f in pair)  # vector lanes take every float but float64
    return bool(rows) and (floats or any(_pres(row, pair) for row in rows))


def _pres(row: Unit, pair: tuple[str, str]) -> tuple[str, ...]:
    """How operands of those formats may reach the row's instruction; empty where they cannot."""
    if all(f in row.formats for f in pair):
        return ("",)
    if pair == ("float32", "float32") and "tfloat32" in row.formats:
        return ("tf32rz", "tf32rne") if row.arch.startswith("cdna") else ("tf32rne", "tf32rz")
    return ()


def stages(candidates: list[tuple[str, Rule]], k: int, block: int, ranked: Callable[[], list[tuple[str, Rule]]]) -> Iterator[list[Chain]]:
    """Lists of chains without repetitions, from simple to intricate.

    block   width of block scales, 0 without
    ranked  the candidates, most promising first, as known when the intricate stages begin
    """
    seen: set[int] = set()

    def fresh(chains: Iterable[Chain]) -> list[Chain]:
        out = []
        for chain in chains:
            r = chain.rule
            arith = arithmetic(r, chain.order, chain.pieces, k)
            # a T-FDPA rule's blocks say its width; two digests of 64 bits of 10⁴ chains coincide with probability 10⁻¹¹
            key = hash((chain.pre, r.kind, r.F, r.P, r.e0, r.accumulator, r.L if r.kind not in ("tfdpa", "half") else 0, arith))
            if key not in seen:
                seen.add(key)
                out.append(chain)
        return out

    residues = [FWD] + [Order(residue=t) for t in TILES if k % t and k > t]
    if block:
        yield fresh(Chain(r, p, FWD, Pieces(0, block)) for p, r in candidates)
        return
    lanes = [o for o in map(parse_order, LANES) if o is not None]
    plain = [Chain(r, p, o, Pieces()) for p, r in candidates for o in residues + (lanes if r.kind in LANE_KINDS else [])]
    yield fresh(plain)
    yield fresh(Chain(r, p, o, Pieces(0, g)) for g in CHUNKS if g < k for p, r in candidates for o in residues)
    candidates = ranked()
    splits = sorted({-(-k // (s * g)) * g for s in SPLITS for g in GRAINS} - set(CHUNKS), reverse=True)
    for p, r in candidates:
        yield fresh(Chain(r, p, o, Pieces(0, g)) for g in splits if g < k for o in residues)
    for p, r in candidates:
        orders = residues + (lanes[:4] if r.kind in LANE_KINDS else [])
        yield fresh(Chain(r, p, o, Pieces(s, g)) for g in GRAINS for s in ROBINS if s * g < k + g for o in orders)


def joins(chain: Chain, problem: Problem) -> tuple[str, ...]:
    """Joins worth trying for a chain, without those that repeat another."""
    if problem.block:
        return ("blk",)
    if not chain.pieces.group:
        return ("",)
    count = len(cut(ordered(problem.k, chain.order), chain.pieces))
    return {1: ("",), 2: ("seq",), 3: ("seq", "rev")}.get(count, ("seq", "rev", "tree"))


def epilogues(problem: Problem) -> tuple[tuple[str, ...], ...]:
    """Epilogues the problem's scales, alpha, C and bias allow, without those that repeat another."""
    scalings: tuple[tuple[str, ...], ...] = ((),)
    if problem.a_scale is not None and not problem.block:
        scalings = tuple((s,) for s in SCALINGS)
    tails: tuple[tuple[str, ...], ...] = ((),) if problem.alpha == 1 else (("*alpha",),)
    if problem.c is not None:
        tails = tuple((*t, "+fma(c)") for t in tails) + ((("+fma(d)",),) if problem.alpha != 1 or problem.beta != 1 else ())
    if problem.bias is not None:
        tails = tuple((*t, "+bias") for t in tails)
    return tuple(s + t for s in scalings for t in tails)


def by_signature(candidates: list[tuple[str, Rule]], bias: float) -> list[tuple[str, Rule]]:
    """Rules in the order an output's error suggests: mean(e·sign)/std(e) near −0.65 for truncating accumulators, near 0 for rounding."""
    likely = bias < -0.12
    return sorted(candidates, key=lambda c: (c[1].kind in TRUNCATES) != likely)
