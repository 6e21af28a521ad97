"""What an explanation tries, in the order in which it tries it.

Stages go from simple to intricate: a plain chain; contiguous pieces of usual widths; a split contraction whose slices promote a short
accumulator; the threads of a matrix-vector kernel; contiguous pieces of a split count; pieces dealt round robin. Within a stage the rules
come in the order the output's error suggests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from accuracy_eval.datapath import rules
from accuracy_eval.datapath.compositions import SCALINGS, Join, arithmetic
from accuracy_eval.datapath.evaluation import Problem
from accuracy_eval.datapath.orders import FWD, PLAIN, PROMOTED, Order, Pieces, cut, ordered, parse_order
from accuracy_eval.datapath.planes import BLOCK_SCALES, GROUP
from accuracy_eval.datapath.rules import Rule, half, tfdpa
from accuracy_eval.datapath.units import UNITS, Unit, units_of
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, get_format

CHUNKS = (128, 64, 32, 256, 16, 8, 4, 512, 1024, 192, 384)  # usual widths of contiguous pieces
GRAINS = (4, 8, 16, 32, 64, 128)  # a split contraction is cut at multiples of these
SPLITS = range(2, 65)
ROBINS = range(2, 33)
TILES = (16, 32, 64, 128)  # tiles a ragged k may be completed to
# MFMA tiles: lane groups × k's each holds, and how many of them one instruction takes
LANES = ("lanes4x4.2", "lanes2x4.2", "lanes4x8.4", "lanes2x8.4", "lanes4x16.8", "lanes2x16.8", "lanes4x2.1", "lanes2x2.1")
LANE_KINDS = ("trfdpa", "gtrfdpa", "rdna3", "rdna4", "exact", "flush")

LANE_COUNTS = (4, 8, 16, 32, 64, 128, 256)  # threads of a matrix-vector kernel that share a dot product
SHORT_KINDS = ("tfdpa", "half", "trfdpa", "exact", "fma", "fma64", "muladd")  # zeros count for nothing, a block's products have no order
VECTOR_KINDS = ("fma", "fma64", "muladd")

TRUNCATES = ("tfdpa", "gst")


@dataclass(frozen=True)
class Chain:
    """What is computed once for several hypotheses: everything before the join."""

    rule: Rule
    pre: str
    order: Order
    pieces: Pieces
    inner: Pieces = PLAIN
    inner_join: Join = ""


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

    if unit is not None and _unknown(unit, pair):
        raise UsageError(
            f"unit {unit!r}: nothing is known of its arithmetic for {' × '.join(pair)}; without a unit the rules of all others are tried"
        )
    for row in rows:
        if row.rule is None or (row.scales and not _takes_scales(row, problem)):
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
        if "float32" in pair:  # narrower products are exact in float32: the same as fused
            add("", rules.MULADD)
    if not found:
        raise UsageError(f"nothing known multiplies {' × '.join(pair)}" + (f" on {unit}" if unit else ""))
    return list(found)


def _unknown(unit: str, pair: tuple[str, str]) -> bool:
    """Whether a unit has an instruction for these formats whose arithmetic nobody knows, or no known one at all."""
    rows = units_of(unit)
    return all(row.rule is None for row in rows) or any(row.rule is None and set(pair) <= set(row.formats) for row in rows)


def takes(unit: str, pair: tuple[str, str]) -> bool:
    """Whether all that may multiply operands of these formats on a unit is known, and anything does."""
    if _unknown(unit, pair):
        return False
    rows = [row for row in units_of(unit) if row.rule is not None and not row.scales]
    floats = "float64" not in pair and all(get_format(f).kind == "float" for f in pair)  # vector lanes take every float but float64
    return bool(rows) and (floats or any(_pres(row, pair) for row in rows))


def _pres(row: Unit, pair: tuple[str, str]) -> tuple[str, ...]:
    """How operands of those formats may reach the row's instruction; empty where they cannot."""
    if all(f in row.formats for f in pair):
        return ("mx",) if row.scales else ("",)
    if pair == ("float32", "float32") and "tfloat32" in row.formats:
        return ("tf32rz", "tf32rne") if row.arch.startswith("cdna") else ("tf32rne", "tf32rz")
    return ()


def _takes_scales(row: Unit, problem: Problem) -> bool:
    """Whether the problem's block scales are such as the row's instruction takes."""
    return (BLOCK_SCALES.get(problem.block), problem.block) in row.scales and problem.instruction_scales


def stages(
    candidates: list[tuple[str, Rule]], k: int, block: int, ranked: Callable[[], list[tuple[str, Rule]]]
) -> Iterator[Iterator[Chain]]:
    """Stages of chains without repetitions, from simple to intricate; each is made as it is read.

    block   width of block scales, 0 without
    ranked  the candidates, most promising first, as known when the intricate stages begin
    """
    seen: set[int] = set()

    def fresh(chains: Iterable[Chain]) -> Iterator[Chain]:
        for chain in chains:
            r = chain.rule
            # two digests of 64 bits of 10⁴ chains coincide with probability 10⁻¹¹
            nested = (chain.pieces, chain.inner, chain.inner_join) if chain.inner.group else ()
            key = hash((chain.pre, nested, r.kind, r.F, r.P, r.e0, r.accumulator, _arithmetic_key(chain, k)))
            if key not in seen:
                seen.add(key)
                yield chain

    residues = [FWD] + [Order(residue=t) for t in TILES if k % t and k > t]
    if block:
        yield fresh(Chain(r, p, FWD, PLAIN if p == "mx" else Pieces(0, block)) for p, r in candidates)
        candidates = [c for c in candidates if c[0] == "mx"]
        yield fresh(Chain(r, p, FWD, Pieces(0, g)) for g in CHUNKS if g < k and g % GROUP == 0 for p, r in candidates)
        widths = sorted({_split_width(k, s, g) for s in SPLITS for g in (32, 64, 128)} - set(CHUNKS), reverse=True)
        yield fresh(Chain(r, p, FWD, Pieces(0, g)) for g in widths if g < k for p, r in candidates)
        yield fresh(Chain(r, p, FWD, Pieces(s, g)) for g in (32, 64, 128) for s in ROBINS if s * g < k + g for p, r in candidates)
        return
    lanes = [o for o in map(parse_order, LANES) if o is not None]
    plain = [Chain(r, p, o, Pieces()) for p, r in candidates for o in residues + (lanes if r.kind in LANE_KINDS else [])]
    yield fresh(plain)
    yield fresh(
        Chain(r, p, FWD, Pieces(0, g, t)) for g in CHUNKS if g < k for p, r in candidates for t in (0, *TILES) if not t or k % g % t
    )
    short = [(p, r) for p, r in candidates if r.kind == "tfdpa" and r.P < 23]
    slices = dict.fromkeys(_split_width(k, s, PROMOTED) for s in SPLITS)
    yield fresh(Chain(r, p, FWD, Pieces(0, g), Pieces(0, PROMOTED), "seq") for g in slices if PROMOTED < g < k for p, r in short)
    threads = [(p, r) for p, r in candidates if r.kind in VECTOR_KINDS]
    yield fresh(Chain(r, p, FWD, *cuts) for cuts in vector_cuts(k) for p, r in threads)
    candidates = [c for c in ranked() if c[1].kind != "muladd"]  # nothing that splits k has no fused multiply-add
    splits = sorted({_split_width(k, s, g) for s in SPLITS for g in GRAINS} - set(CHUNKS), reverse=True)
    for p, r in candidates:
        yield fresh(Chain(r, p, FWD, Pieces(0, g, t)) for g in splits if g < k for t in (0, *TILES) if not t or g % t or k % g % t)
    for p, r in candidates:
        orders = residues + (lanes[:4] if r.kind in LANE_KINDS else [])
        yield fresh(Chain(r, p, o, Pieces(s, g)) for g in GRAINS for s in ROBINS if s * g < k + g for o in orders)


def _split_width(k: int, count: int, grain: int) -> int:
    """k's a slice takes where a contraction is cut into `count` slices of whole grains."""
    return -(-k // (count * grain)) * grain


def _arithmetic_key(chain: Chain, k: int) -> object:
    """Equal for chains of one rule that do the same arithmetic.

    Contiguous pieces have a short form: their width, and what each length of piece leaves over for its first tile. A first tile of whole
    blocks is no other arithmetic, nor is any where zeros count for nothing and blocks have one product.
    """
    rule, pieces = chain.rule, chain.pieces
    if pieces.group and not pieces.count and chain.order == FWD and not chain.inner.group and rule.kind in SHORT_KINDS and pieces.group < k:
        lengths = {min(pieces.group, k), k % pieces.group} - {0}
        first = tuple(sorted((n, n % pieces.residue) for n in lengths if pieces.residue and n % pieces.residue % rule.L))
        return rule.L, pieces.group, first
    # a T-FDPA rule's blocks say its width
    width = rule.L if rule.kind not in ("tfdpa", "half") else 0
    return width, arithmetic(rule, chain.order, pieces, k, chain.inner)


def vector_cuts(k: int) -> Iterator[tuple[Pieces, Pieces, Join]]:
    """How the threads of a matrix-vector kernel share one dot product: pieces, and how each is cut itself.

    k is dealt out one, two or four at a time, or a contiguous part each; a thread may add up so many k's at a time before it adds them
    to what it has; and threads may share a part of k, with the parts added after another.
    """
    for lanes, width in product(LANE_COUNTS, (1, 2, 4)):
        if lanes * width < k + width:
            yield Pieces(lanes, width), PLAIN, ""
            for unrolled in (4, 8, 16, 32):
                if lanes * unrolled < k and unrolled > width:
                    yield Pieces(lanes, width), Pieces(0, unrolled), "seq"
    for lanes in LANE_COUNTS:
        if lanes < k:
            yield Pieces(0, -(-k // lanes)), PLAIN, ""
    for lanes, width in product(LANE_COUNTS, (1, 2, 4)):
        if lanes * width < k:
            yield Pieces(0, lanes * width), Pieces(0, width), "half"
            yield Pieces(0, lanes * width), Pieces(lanes, 1), "half"


def joins(chain: Chain, problem: Problem) -> tuple[str, ...]:
    """Joins worth trying for a chain, without those that repeat another."""
    if problem.block and chain.pre != "mx":
        return ("blk",)
    if not chain.pieces.group:
        return ("",)
    count = len(cut(ordered(problem.k, chain.order), chain.pieces, problem.k))
    return {1: ("",), 2: ("seq",), 3: ("seq", "rev", "half")}.get(count, ("seq", "rev", "tree", "half", "last"))


def partials(chain: Chain, out: Format) -> tuple[str, ...]:
    """Formats to which the pieces' sums may have been rounded before the join: not at all, or to a 16-bit output's."""
    return ("", out.name) if chain.pieces.group and out.bits == 16 and chain.rule.accumulator == "float32" else ("",)


def epilogues(problem: Problem, out: Format) -> tuple[tuple[str, ...], ...]:
    """Epilogues the problem's scales, alpha, C and bias allow, without those that repeat another.

    A product in a 16-bit output may have been stored there before C or the bias was added.
    """
    scalings: tuple[tuple[str, ...], ...] = ((),)
    if problem.scaled_outside:
        scalings = tuple((s,) for s in SCALINGS)
    tails: tuple[tuple[str, ...], ...] = ((),) if problem.alpha == 1 else (("*alpha",),)
    if out.bits == 16 and (problem.c is not None or problem.bias is not None):
        tails += tuple((*t, f"~{out.name}") for t in tails)
    if problem.c is not None:
        tails = tuple((*t, "+fma(c)") for t in tails) + ((("+fma(d)",),) if problem.alpha != 1 or problem.beta != 1 else ())
    if problem.bias is not None:
        tails = tuple((*t, "+bias") for t in tails)
    return tuple(s + t for s in scalings for t in tails)


def by_signature(candidates: list[tuple[str, Rule]], bias: float) -> list[tuple[str, Rule]]:
    """Rules in the order an output's error suggests: mean(e·sign)/std(e) near −0.65 for truncating accumulators, near 0 for rounding.
    Instructions that take the block scales themselves come first."""
    likely = bias < -0.12
    return sorted(candidates, key=lambda c: (c[0] != "mx", (c[1].kind in TRUNCATES) != likely))
