"""Orders of k and ways to cut it: what a library and a tile do with the contraction before any arithmetic happens."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError

Index = NDArray[np.int64]

PROMOTED = 128  # products after which libraries add a short accumulator to a float32 sum

_RES = re.compile(r"res(\d+)")
_LANES = re.compile(r"lanes(\d+)x(\d+)\.(\d+)")
_CHUNK = re.compile(r"c(\d+)")
_ROBIN = re.compile(r"r(\d+)x(\d+)")


@dataclass(frozen=True)
class Order:
    """Where the k's go.

    residue  T > 0: the k's that do not fill a tile of T come first, filled up with zeros to a whole tile
    lanes    (G, W, U): inside every G·W consecutive k, G lane groups hold W each and an instruction takes U from each; (0, 0, 0): none
    """

    residue: int = 0
    lanes: tuple[int, int, int] = (0, 0, 0)

    def __str__(self) -> str:
        parts = [f"res{self.residue}"] if self.residue else []
        if self.lanes[0]:
            parts.append("lanes{}x{}.{}".format(*self.lanes))
        return " ".join(parts) or "fwd"


FWD = Order()


@dataclass(frozen=True)
class Pieces:
    """How the ordered k is cut: into groups of `group`; piece p of `count` takes groups p, p + count, …

    count    0: contiguous, one group a piece
    group    0: not cut at all
    residue  T > 0: every piece takes the k's that do not fill a tile of T first, as a kernel does with its slice of k
    """

    count: int = 0
    group: int = 0
    residue: int = 0

    def __str__(self) -> str:
        if not self.group:
            return ""
        cut = f"r{self.count}x{self.group}" if self.count else f"c{self.group}"
        return f"{cut} res{self.residue}" if self.residue else cut


PLAIN = Pieces()


def parse_order(text: str) -> Order | None:
    """`fwd`, `resT` or `lanesGxW.U`; None where the text is none of these."""
    if text == "fwd":
        return FWD
    if match := _RES.fullmatch(text):
        return Order(residue=_positive(text, match[1]))
    if match := _LANES.fullmatch(text):
        lanes = (_positive(text, match[1]), _positive(text, match[2]), _positive(text, match[3]))
        if lanes[1] % lanes[2]:
            raise UsageError(f"order {text!r}: an instruction takes {lanes[2]} of {lanes[1]} k's a lane group holds; it must divide them")
        return Order(lanes=lanes)
    return None


def parse_pieces(text: str) -> Pieces | None:
    """`cG` or `rSxG`; None where the text is neither."""
    if match := _CHUNK.fullmatch(text):
        return Pieces(0, _positive(text, match[1]))
    if match := _ROBIN.fullmatch(text):
        return Pieces(_positive(text, match[1]), _positive(text, match[2]))
    return None


def _positive(text: str, number: str) -> int:
    if int(number) < 1:
        raise UsageError(f"{text!r}: sizes start at 1")
    return int(number)


def ordered(k: int, order: Order) -> Index:
    """Positions of k in that order; k itself stands for a zero."""
    ks = _residue_first(np.arange(k, dtype=np.int64), order.residue, k)
    if order.lanes[0]:
        groups, width, use = order.lanes
        tile = groups * width
        padded = np.concatenate([ks, np.full(-len(ks) % tile, k, np.int64)])
        # [tile, group, step, u] → [tile, step, group, u]
        ks = np.ascontiguousarray(padded.reshape(-1, groups, width // use, use).transpose(0, 2, 1, 3)).reshape(-1)
    return ks


def _residue_first(positions: Index, tile: int, zero: int) -> Index:
    """The positions that do not fill a tile first, zeros after them."""
    short = len(positions) % tile if tile else 0
    if not short:
        return positions
    return np.concatenate([positions[:short], np.full(tile - short, zero, np.int64), positions[short:]])


def cut(positions: Index, pieces: Pieces, k: int) -> list[Index]:
    """The positions of every piece, in order of pieces; empty pieces are left out. k stands for a zero."""
    if not pieces.group:
        return [positions]
    parts = [positions[i : i + pieces.group] for i in range(0, len(positions), pieces.group)]
    if pieces.count:
        parts = [np.concatenate(parts[p :: pieces.count]) for p in range(min(pieces.count, len(parts)))]
    return [_residue_first(part, pieces.residue, k) for part in parts]


def instruction_order(k: int, group: str) -> Index | None:
    """Order of k inside a unit's instruction (`Unit.group`); None for increasing k."""
    order = parse_order(group) if group else None
    return ordered(k, order) if order is not None else None
