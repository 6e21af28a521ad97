"""Which order of operations makes a GEMM's bits: a small language, as data.

    [pre] rule order [pieces [resT] [(pieces join)] [~format] join] [epilogue …] [>cast]

    tf32rne T8.25.23 fwd c64 seq        T32.13.13 fwd c128 blk >bfloat16        F fwd r16x1 (c16 seq) seq

    pre       tf32rne: float32 operands are rounded to TF32 first (ties to even) · tf32rz: cut · fp16: fp8 operands become float16 ·
              mx: the instruction takes the block scales (32 k's an E8M0, 16 an unsigned E4M3 one); *(ab) and its like then stand for
              the float32 factors of whole operands
    rule      one block of products (`rules`)
    order     fwd · resT: the k's that do not fill a tile of T come first, zeros after them · lanesGxW.U: inside every G·W k's, G lane
              groups hold W each and an instruction takes U from each (an MFMA tile)
    pieces    cG: contiguous chunks of G · rSxG: groups of G dealt to S accumulators in turn; each piece is a chain of its own from +0
              resT after them: the k's of each piece that do not fill a tile of T come first in it
              (pieces join) after them: each piece is itself cut and joined (what a thread adds up before threads are joined, or the
              threads of a block before blocks are)
    ~format   every piece is rounded to that format before it is joined (partial sums in a 16-bit workspace)
    join      seq: pieces are added in order, rounded to nearest · rev: from the last · tree: neighbours in pairs, again and again ·
              half: the upper half onto the lower, again and again (lanes of a warp) · last: all but the last piece are added up in
              ceil(count/2) buffers in turn, the last one takes the buffers in order · blk: acc = fma(piece, scale of A's block ·
              scale of B's block, acc) from +0
    epilogue  *(ab): times the product of the scales, itself rounded · *a*b · *b*a: one after the other · *alpha ·
              +fma(c): fma(beta, C, ·) · +fma(d): fma(alpha, ·, beta·C), in place of *alpha · +bias · ~format: rounded to that format
              before what follows (a product stored in 16 bits before C is added)
    cast      one rounding to the output's format; the accumulator's own is not written

Arithmetic after the chains is float32 (float64 for D). Split-K through a workspace, promotion inside a kernel and slices of a thread
block are the same arithmetic and have one spelling. Exchanging A and B changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath.orders import FWD, PLAIN, Order, Pieces, cut, ordered, parse_order, parse_pieces
from accuracy_eval.datapath.planes import PRES, order_of
from accuracy_eval.datapath.rules import Rule, parse_rule
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import get_format

Join = Literal["", "seq", "rev", "tree", "half", "last", "blk"]
JOINS = ("seq", "rev", "tree", "half", "last", "blk")
SCALINGS = ("*(ab)", "*a*b", "*b*a")
EPILOGUES = (*SCALINGS, "*alpha", "+fma(c)", "+fma(d)", "+bias")


@dataclass(frozen=True)
class Composition:
    """One sentence of the language; "" and FWD/PLAIN where a part is absent."""

    rule: Rule
    order: Order = FWD
    pieces: Pieces = PLAIN
    join: Join = ""
    pre: str = ""
    epilogue: tuple[str, ...] = ()
    cast: str = ""
    partial: str = ""  # format of the pieces' sums where they are rounded before the join
    inner: Pieces = PLAIN  # how each piece is cut itself
    inner_join: Join = ""

    def __str__(self) -> str:
        inner = f"({self.inner} {self.inner_join})" if self.inner.group else ""
        pieces = [str(self.pieces), inner, self.partial and f"~{self.partial}", self.join]
        parts = [self.pre, str(self.rule), str(self.order), *pieces, *self.epilogue, self.cast and f">{self.cast}"]
        return " ".join(p for p in parts if p)


def parse(text: str) -> Composition:
    """The composition a text says. UsageError names the word that does not fit and what may stand there."""
    words = re.sub(r"\(([cr][^()]*)\)", lambda m: "(" + m[1].replace(" ", "_") + ")", text).split()
    pre = words.pop(0) if words and words[0] in PRES else ""
    if not words:
        raise UsageError(f"composition {text!r} names no rule")
    result = Composition(parse_rule(words.pop(0)), pre=pre)
    stage = 0  # order, pieces, join, epilogue, cast: each word belongs to a stage not before the last one's
    for word in words:
        order, pieces = parse_order(word), parse_pieces(word)
        if order is not None and stage == 2 and order == Order(residue=order.residue):
            result = replace(result, pieces=replace(result.pieces, residue=order.residue))
        elif (inner := re.fullmatch(r"\((\w+)_(\w+)\)", word)) and stage == 2:
            result = replace(result, **_inner(text, inner[1], inner[2]))
        elif re.match(r"~\w", word) and stage == 2:
            result = replace(result, partial=get_format(word[1:]).name)
        elif order is not None and stage <= 1:
            merged = Order(order.residue or result.order.residue, order.lanes if order.lanes[0] else result.order.lanes)
            result, stage = replace(result, order=merged), 1
        elif pieces is not None and stage <= 1:
            result, stage = replace(result, pieces=pieces), 2
        elif word in JOINS and stage == 2:
            result, stage = replace(result, join=cast(Join, word)), 3
        elif (word in EPILOGUES or (word[0] == "~" and get_format(word[1:]))) and stage != 2 and stage <= 4:
            result, stage = replace(result, epilogue=(*result.epilogue, word)), 4
        elif re.match(r">\w", word) and stage != 2 and stage <= 4:
            result, stage = replace(result, cast=get_format(word[1:]).name), 5
        else:
            raise UsageError(
                f"composition {text!r}: {word.replace('_', ' ')!r} cannot stand there; the order is [{'|'.join(filter(None, PRES))}] rule "
                f"[fwd|resT|lanesGxW.U] [cG|rSxG [resT] [(pieces join)] [~format] {'|'.join(JOINS)}] [{' '.join(EPILOGUES)}] [>format]"
            )
    if stage == 2:
        raise UsageError(f"composition {text!r}: pieces need a join, one of {', '.join(JOINS)}")
    return result


def _inner(text: str, pieces: str, join: str) -> dict[str, Any]:
    """Fields of a piece's own pieces."""
    cut = parse_pieces(pieces)
    if cut is None or join not in JOINS or join == "blk":
        raise UsageError(f"composition {text!r}: '({pieces} {join})' cuts no piece; there go cG or rSxG and a join but blk")
    return {"inner": cut, "inner_join": join}


def arithmetic(rule: Rule, order: Order, pieces: Pieces, k: int, inner: Pieces = PLAIN) -> tuple[bytes, ...]:
    """What decides the pieces' sums: every piece's blocks of k, in order; equal for compositions that differ in spelling only.

    Zeros leave a sum as it is (but for RDNA units, which count them), so they are left out, and so are pieces of nothing else. The
    products of a T-FDPA block have no order, nor a block a width beyond its products.
    """
    out = []
    for part in positions_of(order, pieces, inner, k):
        blocks = order_of(k, rule.L, part).reshape(-1, rule.L)
        if rule.kind in ("tfdpa", "half", "trfdpa", "exact"):
            blocks = np.sort(blocks, axis=1)
        if rule.kind not in ("rdna3", "rdna4"):
            blocks = blocks[(blocks != k).any(axis=1)]
        if blocks.size:
            marked = blocks.astype(np.int32)
            marked[:, 0] |= 1 << 30  # where a block begins
            kept = marked[blocks != k] if rule.kind in ("tfdpa", "half", "trfdpa", "exact", "fma", "fma64", "muladd") else marked
            out.append(kept.tobytes())
    return tuple(out)


def positions_of(order: Order, pieces: Pieces, inner: Pieces, k: int) -> list[NDArray[np.int64]]:
    """Positions of k of every chain, in order; those of one piece are neighbours."""
    return [chain for piece in cut(ordered(k, order), pieces, k) for chain in cut(piece, inner, k)]


def canonical(composition: Composition, k: int) -> Composition:
    """The one spelling of all compositions that do the same for a contraction of k: the plainest."""
    c = composition
    if c.inner.group:
        return c
    key = arithmetic(c.rule, c.order, c.pieces, k)
    count = len(key)

    def plainest(*changes: dict[str, Any]) -> Composition:
        """The first change that leaves the arithmetic as it is."""
        for change in changes:
            simpler = replace(c, **change)
            if simpler != c and arithmetic(simpler.rule, simpler.order, simpler.pieces, k) == key:
                return simpler
        return c

    if c.join != "blk":
        c = plainest({"pieces": PLAIN}, {"pieces": Pieces(0, c.pieces.group)}, {"pieces": replace(c.pieces, count=0)})
        c = plainest(*({"pieces": replace(c.pieces, residue=t)} for t in (0, 16, 32, 64) if t < c.pieces.residue))
    if c.join in ("", "seq", "rev") or not c.pieces.group:  # the other joins pair pieces of zeros too
        shorter = ({"order": replace(c.order, residue=t)} for t in (16, 32, 64) if t < c.order.residue)
        c = plainest({"order": FWD}, {"order": replace(c.order, residue=0)}, {"order": replace(c.order, lanes=(0, 0, 0))}, *shorter)
    join = c.join
    if not c.pieces.group:
        join = ""
    elif join != "blk" and (count == 2 or (join == "tree" and count == 3)):
        join = "seq"
    elif join == "last" and count == 3:
        join = "half"
    rule = c.rule
    while rule.kind in ("tfdpa", "half") and rule.L > 4 and arithmetic(replace(rule, L=rule.L // 2), c.order, c.pieces, k) == key:
        rule = replace(rule, L=rule.L // 2)
    return replace(c, rule=rule, join=join, partial=c.partial if c.pieces.group else "")
