"""Which order of operations makes a GEMM's bits: a small language, as data.

    [pre] rule order [pieces join] [epilogue …] [>cast]          tf32rne T8.25.23 fwd c64 seq      T32.13.13 fwd c128 blk >bfloat16

    pre       tf32rne: float32 operands are rounded to TF32 first (ties to even) · tf32rz: cut · fp16: fp8 operands become float16
    rule      one block of products (`rules`)
    order     fwd · resT: the k's that do not fill a tile of T come first, zeros after them · lanesGxW.U: inside every G·W k's, G lane
              groups hold W each and an instruction takes U from each (an MFMA tile)
    pieces    cG: contiguous chunks of G · rSxG: groups of G dealt to S accumulators in turn; each piece is a chain of its own from +0
    join      seq: pieces are added in order, rounded to nearest · rev: from the last · tree: neighbours in pairs, again and again ·
              blk: acc = fma(piece, scale of A's block · scale of B's block, acc) from +0
    epilogue  *(ab): times the product of the scales, itself rounded · *a*b · *b*a: one after the other · *alpha ·
              +fma(c): fma(beta, C, ·) · +fma(d): fma(alpha, ·, beta·C), in place of *alpha · +bias
    cast      one rounding to the output's format; the accumulator's own is not written

Arithmetic after the chains is float32 (float64 for D). Split-K through a workspace, promotion inside a kernel and slices of a thread
block are the same arithmetic and have one spelling. Exchanging A and B changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from accuracy_eval.datapath.orders import FWD, PLAIN, Order, Pieces, cut, ordered, parse_order, parse_pieces
from accuracy_eval.datapath.planes import PRES, order_of
from accuracy_eval.datapath.rules import Rule, parse_rule
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import get_format

Join = Literal["", "seq", "rev", "tree", "blk"]
JOINS = ("seq", "rev", "tree", "blk")
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

    def __str__(self) -> str:
        parts = [self.pre, str(self.rule), str(self.order), str(self.pieces), self.join, *self.epilogue, self.cast and f">{self.cast}"]
        return " ".join(p for p in parts if p)


def parse(text: str) -> Composition:
    """The composition a text says. UsageError names the word that does not fit and what may stand there."""
    words = text.split()
    pre = words.pop(0) if words and words[0] in PRES else ""
    if not words:
        raise UsageError(f"composition {text!r} names no rule")
    result = Composition(parse_rule(words.pop(0)), pre=pre)
    stage = 0  # order, pieces, join, epilogue, cast: each word belongs to a stage not before the last one's
    for word in words:
        order, pieces = parse_order(word), parse_pieces(word)
        if order is not None and stage <= 1:
            merged = Order(order.residue or result.order.residue, order.lanes if order.lanes[0] else result.order.lanes)
            result, stage = replace(result, order=merged), 1
        elif pieces is not None and stage <= 1:
            result, stage = replace(result, pieces=pieces), 2
        elif word in JOINS and stage == 2:
            result, stage = replace(result, join=cast(Join, word)), 3
        elif word in EPILOGUES and stage != 2 and stage <= 4:
            result, stage = replace(result, epilogue=(*result.epilogue, word)), 4
        elif re.match(r">\w", word) and stage != 2 and stage <= 4:
            result, stage = replace(result, cast=get_format(word[1:]).name), 5
        else:
            raise UsageError(
                f"composition {text!r}: {word!r} cannot stand there; the order is [{'|'.join(filter(None, PRES))}] rule "
                f"[fwd|resT|lanesGxW.U] [cG|rSxG {'|'.join(JOINS)}] [{' '.join(EPILOGUES)}] [>format]"
            )
    if stage == 2:
        raise UsageError(f"composition {text!r}: pieces need a join, one of {', '.join(JOINS)}")
    return result


def arithmetic(rule: Rule, order: Order, pieces: Pieces, k: int) -> tuple[bytes, ...]:
    """What decides the pieces' sums: every piece's blocks of k, in order; equal for compositions that differ in spelling only.

    Zeros leave a sum as it is (but for RDNA units, which count them), so they are left out, and so are pieces of nothing else. The
    products of a T-FDPA block have no order, nor a block a width beyond its products.
    """
    out = []
    for part in cut(ordered(k, order), pieces):
        blocks = order_of(k, rule.L, part).reshape(-1, rule.L)
        if rule.kind in ("tfdpa", "half", "trfdpa", "exact"):
            blocks = np.sort(blocks, axis=1)
        if rule.kind not in ("rdna3", "rdna4"):
            blocks = blocks[(blocks != k).any(axis=1)]
        if blocks.size:
            marked = blocks.astype(np.int32)
            marked[:, 0] |= 1 << 30  # where a block begins
            kept = marked[blocks != k] if rule.kind in ("tfdpa", "half", "trfdpa", "exact", "fma", "fma64") else marked
            out.append(kept.tobytes())
    return tuple(out)


def canonical(composition: Composition, k: int) -> Composition:
    """The one spelling of all compositions that do the same for a contraction of k: the plainest."""
    c = composition
    key = arithmetic(c.rule, c.order, c.pieces, k)
    count = len(key)
    plainer: list[dict[str, Any]] = []
    if c.join != "blk":
        plainer.append({"pieces": PLAIN})
        if c.pieces.count:
            plainer.append({"pieces": Pieces(0, c.pieces.group)})
    if c.join not in ("blk", "tree"):  # a tree pairs pieces of zeros too
        plainer += [{"order": FWD}, {"order": replace(c.order, residue=0)}, {"order": replace(c.order, lanes=(0, 0, 0))}]
        plainer += [{"order": replace(c.order, residue=t)} for t in (16, 32, 64) if t < c.order.residue]
    for change in plainer:
        simpler = replace(c, **change)
        if simpler != c and arithmetic(simpler.rule, simpler.order, simpler.pieces, k) == key:
            c = simpler
            if "order" in change:
                break
    join = c.join
    if not c.pieces.group:
        join = ""
    elif (join == "rev" and count == 2) or (join == "tree" and count <= 3):
        join = "seq"
    rule = c.rule
    while rule.kind in ("tfdpa", "half") and rule.L > 4 and arithmetic(replace(rule, L=rule.L // 2), c.order, c.pieces, k) == key:
        rule = replace(rule, L=rule.L // 2)
    return replace(c, rule=rule, join=join)
