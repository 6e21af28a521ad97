"""Causes in a collective: a rank whose part is missing from a sum or in it twice, blocks that lie where others belong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Values, decode, ulp
from accuracy_eval.ops.collectives import COLLECTIVES

REST = 0.01  # of the error's energy may remain unexplained, as for products
CLEAR = 10.0  # times the energy of rounding has the error of a row or block that is wrong
SAMPLE = 64  # elements by which a block is looked for; all of it then decides
FEWEST = 8  # elements of a block that can be told from others


def lost_rank(look: Look) -> Finding | None:
    return _part_of_a_rank(look, -1.0)


def doubled_rank(look: Look) -> Finding | None:
    return _part_of_a_rank(look, 1.0)


def _part_of_a_rank(look: Look, sign: float) -> Finding | None:
    """The one rank whose part, taken off the truth or added to it, leaves nothing of the error in the rows that are wrong."""
    c = look.context
    collective = COLLECTIVES.get(c.op)
    if collective is None or not collective.sums or "x" not in c.inputs or look.whole is None:
        return None
    actual, truth = look.whole
    wrong = _wrong(actual, truth, look)
    if not wrong.any():
        return None
    x = decode(c.inputs["x"].codes, c.inputs["x"].format)
    ranks = len(x)
    error = (actual - truth)[wrong]
    energy, rounding = _energy(error), _rounding(truth[wrong], look)
    found = []
    for rank in range(ranks):
        part = collective.result(x[rank].reshape(1, -1, actual.shape[1]), ranks).reshape(actual.shape)[wrong]
        if _energy(error - sign * part) <= REST * energy + 2 * rounding:
            found.append(rank)
    if len(found) != 1:
        return None
    holders = np.flatnonzero(wrong).tolist()
    return Finding({"rank": found[0]}, {"where": "" if len(holders) == ranks else f" at rank {', '.join(map(str, holders))}"})


def rank_order(look: Look) -> Finding | None:
    """Blocks of n elements that are wrong, and each one what belongs to another place: where every one of them is found."""
    c = look.context
    collective = COLLECTIVES.get(c.op)
    if collective is None or (collective.sums and collective.takes == "one") or "x" not in c.inputs or look.whole is None:
        return None
    ranks = len(c.inputs["x"].codes)
    actual, truth = (v.reshape(-1, _block(collective.gives, v.shape[1], ranks)) for v in look.whole)
    wrong = np.flatnonzero(_wrong(actual, truth, look))
    places = np.arange(len(truth) // ranks if collective.alike else len(truth))  # all ranks expect the same: the first stands for them
    if not len(wrong) or truth.shape[1] < FEWEST:
        return None
    found = [_owner(actual[i], truth[places], look) for i in wrong]
    if any(place is None for place in found):
        return None
    at, holds = (divmod(int(i), len(truth) // ranks) for i in (wrong[0], found[0] or 0))
    words = {"which": _place(at, collective.gives), "other": _place(holds, collective.gives), "total": str(len(truth))}
    return Finding({"count": len(wrong)}, words)


def _block(gives: str, columns: int, ranks: int) -> int:
    return columns // ranks if gives == "each" else columns


def _place(at: tuple[int, int], gives: str) -> str:
    return f"block {at[1]} of rank {at[0]}" if gives == "each" else f"rank {at[0]}"


def _owner(block: Values, truth: Values, look: Look) -> int | None:
    """The one block of the truth that this one is."""
    few = block[:SAMPLE]
    near = [i for i, t in enumerate(truth) if _same(few, t[:SAMPLE], look)]
    whole = [i for i in near if _same(block, truth[i], look)]
    return whole[0] if len(whole) == 1 else None


def _same(a: Values, b: Values, look: Look) -> bool:
    return _energy(a - b) <= REST * _energy(b) + 2 * _rounding(b, look)


def _wrong(actual: Values, truth: Values, look: Look) -> NDArray[np.bool_]:
    """Rows whose error is more than rounding."""
    return np.array([_energy(a - t) > CLEAR * _rounding(t, look) for a, t in zip(actual, truth, strict=True)], np.bool_)


def _energy(x: Values) -> float:
    return float(np.sum(np.square(x[np.isfinite(x)])))


def _rounding(x: Values, look: Look) -> float:
    return float(np.sum(np.square(ulp(x[np.isfinite(x)], look.fmt)))) / 12
