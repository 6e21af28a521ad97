"""What a coded case says: A is one-hot, so every element of D is one element of B times the scale of one block of A and of B.

Scales are powers of two and neighbouring blocks differ, so an element that is a power of two away from the right one met the scales of
other blocks, and how far away says of which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.diagnose.context import Context, Limits, Look
from accuracy_eval.diagnose.hypotheses import Hypothesis
from accuracy_eval.diagnose.sampling import Indices, problem_of
from accuracy_eval.quantize import misreadings

NOTHING = np.empty((0, 0))  # an exact finding predicts no values
EXAMINED = 4096  # wrong elements whose origin is looked for
ENOUGH = 0.4  # of them must share a move: where pairs change places half of them go up, half down
# (columns, k) away, the nearest first
MOVES = tuple((d, 0) if axis == 0 else (0, d) for size in range(1, 129) for axis in (1, 0) for d in (size, -size))


def lost_places(look: Look) -> list[Hypothesis]:
    """Rows that are zero say which k never arrived; of k that no row selects nothing is known, and that is said."""
    p, noise = problem_of(look), look.m.rows
    if p is None or noise is None or look.quiet:
        return []
    wrong = noise.mismatches > 0
    gone = wrong & (noise.error == noise.reference) & (noise.reference > 0)
    if not gone.any() or (wrong != gone).any() or (look.whole is not None and look.whole[0][gone].any()):
        return []  # twice the expected value is as far from it as zero
    seen = _single_k(p)
    if seen is None:
        return []
    lost, kept = np.unique(seen[gone]), np.unique(seen[~gone])
    found = []
    if lost.size == 1 and lost[0] not in kept:
        k = int(lost[0])
        unseen = any(0 <= beside < p.k and beside not in kept for beside in (k - 1, k + 1))
        words = {"k": f"{k} (and maybe of its neighbours, which no row shows)"} if unseen else {}
        found.append(Hypothesis("lost-k", {"k": k}, {"total": str(p.k), **words}, NOTHING))
    if kept.size and kept[-1] < lost[0] and (lost.size > 1 or lost[0] == p.k - 1):
        earliest, latest = int(kept[-1]) + 1, int(lost[0])
        words = {"from_k": f"{earliest} … {latest}"} if earliest < latest else {}
        found.append(Hypothesis("k-tail-missing", {"from_k": latest}, {"k": str(p.k), **words}, NOTHING))
    return found


def _single_k(p: Gemm) -> Indices | None:
    """The k of the only nonzero element of each row of op(A); None if A is not one-hot."""
    codes = p.a.codes
    places = []
    for i in range(0, p.m, 128):
        part = codes[i : i + 128] if p.layout[0] == "n" else codes[:, i : i + 128].T
        if (np.count_nonzero(part, axis=1) != 1).any():
            return None
        places.append(np.argmax(part != 0, axis=1))
    return np.concatenate(places)


@dataclass(frozen=True)
class _Scales:
    """Scales of one side: exponents [row blocks, blocks along k], and where each element of D takes its own from, [m or 1, n or 1]."""

    name: str
    exponents: Indices
    rows: Indices
    blocks: Indices

    def met(self, exponents: Indices) -> Indices:
        """The exponent that each element of D meets in this grid."""
        return exponents[self.rows, self.blocks]

    @property
    def own(self) -> Indices:
        return self.met(self.exponents)

    @property
    def numbers(self) -> Indices:
        """Block numbers from 1; 0 is padding."""
        return np.arange(1, self.exponents.size + 1).reshape(self.exponents.shape)


def misplaced_scales(look: Look) -> list[Hypothesis]:
    """Scales left out, exchanged, or of other blocks: the one reading that gives every element of D exactly; empty where none or two do."""
    p = problem_of(look)
    if p is None or look.quiet or look.whole is None or p.a_scale is None or p.b_scale is None:
        return []
    sigma = _single_k(p)
    if sigma is None:
        return []
    a = _scales("a", p.left, p.layout[0] == "t", np.arange(p.m)[:, None], sigma[:, None])
    b = _scales("b", p.right, p.layout[1] == "n", np.arange(p.n)[None, :], sigma[:, None])
    steps = _steps(*look.whole)
    if a is None or b is None or steps is None:
        return []
    found = [h for h, predicted in _readings(a, b) if np.array_equal(np.broadcast_to(predicted, steps.shape), steps)]
    if not found:
        found = [h for h in (_of_blocks(a, steps), _of_blocks(b, steps)) if h is not None]
    if len({(h.code, h.evidence.get("operand"), h.words.get("operand")) for h in found}) != 1:
        return []
    # blocks beyond what exponents can number look alike: readings that cannot be told apart are all said
    told = dict.fromkeys(h.words["what"] for h in found if "what" in h.words)
    return [replace(found[0], words={**found[0].words, "what": " or ".join(told)})] if told else found[:1]


def _scales(name: str, operand: Operand, turned: bool, rows: Indices, k: Indices) -> _Scales | None:
    """The grid of an operand with the contracted axis last; None where a scale is no power of two."""
    grid, block = operand.scale_grid, operand.block or (1, 1)
    if turned:
        grid, block = grid.T, block[::-1]
    fraction, exponent = np.frexp(grid)
    if (fraction != 0.5).any():
        return None
    last = np.array(grid.shape) - 1
    return _Scales(name, exponent.astype(np.int64) - 1, np.minimum(rows // block[0], last[0]), np.minimum(k // block[1], last[1]))


def _steps(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> Indices | None:
    """Exponent of actual / expected, where every quotient is a power of two."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction, exponent = np.frexp(actual / expected)
    return exponent.astype(np.int64) - 1 if (fraction == 0.5).all() else None


def _readings(a: _Scales, b: _Scales) -> Iterator[tuple[Hypothesis, Indices]]:
    """Every way to miss the right scales that has a name, with the steps it makes in D."""
    scaled = [s for s in (a, b) if s.own.any()]
    for sides in ([s] for s in scaled) if len(scaled) < 2 else ([a], [b], [a, b]):
        ignored = sum((-s.own for s in sides), np.zeros((1, 1), np.int64))
        yield Hypothesis("scale-ignored", {"operand": ", ".join(s.name for s in sides)}, {}, NOTHING), ignored
    fits = a.rows.max() < b.exponents.shape[0] and b.rows.max() < a.exponents.shape[0]
    if fits and a.exponents.shape[1] == b.exponents.shape[1] and a.exponents.size > 1:
        swapped = b.exponents[a.rows, a.blocks] + a.exponents[b.rows, b.blocks] - a.own - b.own
        yield Hypothesis("scale-swapped", {}, {}, NOTHING), swapped
    for s in (a, b):
        for (what, moved), (_, stand_in) in zip(misreadings(s.exponents), misreadings(s.numbers), strict=True):
            if (stand_in > 0).all():  # padding holds no power of two that could be told from a block's
                yield _misread(s, stand_in, what), s.met(moved) - s.own


def _misread(s: _Scales, stand_in: Indices, what: str) -> Hypothesis:
    """`stand_in`: number of the block that was read for each block."""
    wrong = np.argwhere(s.exponents != s.exponents.reshape(-1)[stand_in - 1])
    example = ""
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        read = np.unravel_index(int(stand_in[place]) - 1, s.exponents.shape)
        example = f": block {list(place)} met the scale of block {[int(i) for i in read]}"
    words = {"operand": s.name, "what": what + example, "total": str(s.exponents.size)}
    return Hypothesis("scale-index", {"blocks": len(wrong)}, words, NOTHING)


def _of_blocks(s: _Scales, steps: Indices) -> Hypothesis | None:
    """Each block of one side by itself: all elements under it are the same step away, to the exponent of another block."""
    rows, blocks = (np.broadcast_to(x, steps.shape) for x in (s.rows, s.blocks))
    low, high = (np.full(s.exponents.shape, sign * (1 << 20)) for sign in (1, -1))
    np.minimum.at(low, (rows, blocks), steps)
    np.maximum.at(high, (rows, blocks), steps)
    seen = low <= high
    if (low != high)[seen].any():
        return None
    met = np.where(seen, s.exponents + low, s.exponents)
    stand_in = s.numbers.copy()
    for place in np.argwhere(seen & (low != 0)):
        same = np.argwhere(s.exponents == met[tuple(place)])
        if not len(same):
            return None
        near = same[np.abs(same - place).sum(axis=1).argmin()]
        stand_in[tuple(place)] = s.numbers[tuple(near)]
    return _misread(s, stand_in, "other blocks were used")


def origins(context: Context) -> str:
    """Where the wrong elements of a coded product come from: "D[3, 7] should be b[7, 33] and is b[7, 32]: 512 of 1024 wrong elements …".

    Each value, less the scale of A's block, is compared with the elements of B times their scales a few columns or k away; the move that
    gives most of them is said. "" for other lanes, and where none gives a good part of them.
    """
    look = Look(context)
    p = problem_of(look)
    if context.lane != "coded" or p is None or look.quiet or look.whole is None or p.k * p.n > Limits.elements:
        return ""
    sigma = _single_k(p)
    if sigma is None:
        return ""
    actual, expected = look.whole
    wrong = np.argwhere(actual != expected)
    some = wrong[np.linspace(0, len(wrong) - 1, min(len(wrong), EXAMINED)).astype(np.int64)]
    rows, columns = some.T
    k = sigma[rows]
    b = p.b_values(slice(0, p.k), slice(0, p.n)).T  # [n, k]
    with np.errstate(divide="ignore", invalid="ignore"):
        held = actual[rows, columns] * (b[columns, k] / expected[rows, columns])
    best, here = (0, 0), np.zeros(len(some), np.bool_)
    for move in MOVES:
        to, at = columns + move[0], k + move[1]
        inside = (to >= 0) & (to < p.n) & (at >= 0) & (at < p.k)
        same = inside & (b[np.where(inside, to, 0), np.where(inside, at, 0)] == held)
        if same.sum() > here.sum():
            best, here = move, same
    if here.sum() < ENOUGH * len(some):
        return ""
    n = int(np.flatnonzero(here)[0])
    i, j, place = int(rows[n]), int(columns[n]), int(k[n])
    return (
        f"D[{i}, {j}] should be b[{j}, {place}] and is b[{j + best[0]}, {place + best[1]}]: {int(here.sum())} of {len(some)} wrong "
        f"elements are those of column {best[0]:+d}, k {best[1]:+d}"
    )
