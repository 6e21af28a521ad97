"""Causes in a grouped product: rows that belong to another group, matrices B of other groups, gradients of B in each other's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from accuracy_eval.diagnose.context import EXPLAINED, Finding, Look
from accuracy_eval.diagnose.sampling import SAMPLE_COLUMNS, Indices, places_of
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Values, round_to, ulp
from accuracy_eval.ops.grouped import GROUPED, products_of
from accuracy_eval.ops.groups import groups_in
from accuracy_eval.records import Coded

REST = 0.01  # of the error's energy may remain unexplained, as for products
ROWS = 96  # that are computed again: wrong ones, others, and the first and last of groups
FEWEST = 12  # wrong elements among them


@dataclass(frozen=True)
class Change:
    """What a kernel takes for the ends of the groups [g + 1], and the group whose B (or, of dB, whose place) each one has [g]."""

    how: str
    ends: Indices
    owner: Indices


def wrong_group(look: Look) -> Finding | None:
    """The one change of groups that gives the sampled rows; None where none or several do."""
    c = look.context
    if (
        c.op != "grouped_gemm"
        or look.whole is None
        or not {"a", "b", "group_lens"} <= set(c.inputs)
        or look.quiet
        or min(look.m.shape) == 0
    ):
        return None
    if c.output not in ("d", "da", "db") or tuple(letter for letter, _ in c.shape) not in GROUPED.dims:
        return None  # arrays of an op may come under sizes of their own
    ends = np.array([0, *(g.stop for g in groups_in(c.inputs))])
    rows, columns = _places(look, ends), places_of([], look.cols, SAMPLE_COLUMNS)
    at = np.ix_(rows, columns)
    x, truth = (side[at] for side in look.whole)
    finite = np.isfinite(x) & np.isfinite(truth)
    wrong = look.wrong[at] & finite
    energy = float(np.sum((x - truth)[finite] ** 2))
    if int(wrong.sum()) < FEWEST:
        return None
    found: dict[str, None] = {}
    for change in _changes(ends, of_weights=c.output == "db"):
        p = _predicted(look, change, rows, columns)
        if p is None:
            continue
        y = round_to(p, look.fmt)
        off = np.maximum(np.abs(x - truth), np.abs(y - truth))
        told = (wrong | (np.abs(y - truth) > 4 * ulp(truth, look.fmt))) & finite
        near = np.abs(x - y) <= np.maximum(off / 4, 2 * ulp(y, look.fmt))
        if np.sum((x - y)[finite] ** 2) <= REST * energy and near[told].mean() >= EXPLAINED:
            found[change.how] = None
    return Finding({"how": next(iter(found))}) if len(found) == 1 else None


def _places(look: Look, ends: Indices) -> Indices:
    wrong = np.flatnonzero(look.wrong.any(axis=1))
    some = wrong[places_of([], len(wrong), ROWS // 3)].tolist() if len(wrong) else []
    edges = [] if look.context.output == "db" else [int(r) for end in ends[1:-1] for r in (end, end - 1) if 0 <= r < look.rows]
    spread = places_of([], look.rows, ROWS // 3).tolist()
    return np.unique(np.array([*some, *edges[:ROWS], *spread], np.int64))


def _changes(ends: Indices, *, of_weights: bool) -> Iterator[Change]:
    count, total = len(ends) - 1, int(ends[-1])
    own, lens = np.arange(count), np.diff(ends)
    for by, how in ((1, "one row late"), (-1, "one row early")):
        inner = np.clip(ends[1:-1] + by, 0, total)
        yield Change(f"groups begin {how}", np.array([0, *inner, total]), own)
    if len(set(lens.tolist())) > 1:
        yield Change("all groups have as many rows", np.arange(count + 1) * total // count, own)
    whose = "the gradient of B is that of" if of_weights else "rows meet the B of"
    for how, owners in (
        ("the group before", (np.roll(own, 1), np.maximum(own - 1, 0))),
        ("the group after", (np.roll(own, -1), np.minimum(own + 1, count - 1))),
        ("the first group", (0 * own,)),
        ("groups counted from the last", (own[::-1],)),
        ("groups counted without the empty ones", (np.maximum(np.cumsum(lens > 0) - 1, 0),)),
    ):
        for owner in owners:
            if (owner != own)[lens > 0].any():
                yield Change(f"{whose} {how}", ends, owner)


def _predicted(look: Look, change: Change, rows: Indices, columns: Indices) -> Values | None:
    """The sampled elements under a change; zeros where no group reaches. None where operands quantised by groups do not fit it."""
    c = look.context
    weights = c.output == "db"
    inputs = dict(c.inputs) if weights else {name: _of_others(name, x, change.owner) for name, x in c.inputs.items()}
    inputs["group_lens"] = replace(c.inputs["group_lens"], codes=np.diff(change.ends).astype(np.uint32))
    found, height = np.zeros((len(rows), len(columns))), look.m.shape[-2]
    try:
        held = np.flatnonzero(np.diff(change.ends)).tolist()
        products = dict(zip(held, (p.gemm for p in products_of(c.case, inputs, c.output)), strict=True))
        for number, owner in enumerate(change.owner.tolist()):
            first, end = (number * height, (number + 1) * height) if weights else change.ends[number : number + 2]
            gemm, mine = products.get(owner if weights else number), (rows >= first) & (rows < end)
            if gemm is not None and mine.any():
                found[mine] = gemm.a_rows(rows[mine] - first) @ gemm.b_columns(columns)
    except (UsageError, IndexError, ValueError):
        return None
    return found


def _of_others(name: str, x: Coded, owner: Indices) -> Coded:
    """The matrices B, and what belongs to them, of other groups; other operands as they are."""
    return replace(x, codes=x.codes[owner]) if name.split("_")[0] == "b" and x.codes.ndim and len(x.codes) == len(owner) else x
