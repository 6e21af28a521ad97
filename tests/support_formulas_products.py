"""Batched and grouped products as kernels compute them, and their mistakes: see `support_formulas`."""

from itertools import pairwise

import numpy as np
from support_formulas import _lost, _single


def _neighbour(x, by=1):
    return np.roll(x, by, axis=0)


def batched(values, case, at):
    a, b = _single(values, "a", "b")
    if case.direction == "fwd":
        return {"d": at("d", at("a", a) @ np.swapaxes(at("b", b), 1, 2))}
    g = at("upstream", _single(values, "grad_d")[0])
    da, db = at("da", g @ at("b", b)), np.swapaxes(g, 1, 2) @ at("a", a)
    return {"da": da, "db": at("db", db)}


BATCHED = {
    "B of the batch before": ("b", _neighbour),
    "A of the batch after": ("a", lambda a: _neighbour(a, -1)),
    "the first B for all": ("b", lambda b: np.broadcast_to(b[:1], b.shape)),
    "the last batch is lost": ("d", _lost(-1)),
    "the last batch holds the one before": ("d", lambda d: np.concatenate([d[:-1], d[-2:-1]])),
    "a batch starts a row late": ("d", lambda d: np.roll(d.reshape(-1, d.shape[2]), 1, axis=0).reshape(d.shape)),
    "A starts an element late": ("a", lambda a: np.roll(a.reshape(-1), -1).reshape(a.shape)),
    "the upstream gradient of the batch before": ("upstream", _neighbour),
    "the gradient of the last B is lost": ("db", _lost(-1)),
    "the gradient of B summed over the batch": ("db", lambda db: np.broadcast_to(db.sum(axis=0), db.shape)),
    "the gradient of B added to that of the batch before": ("db", lambda db: np.cumsum(db, axis=0)),
    "the gradient of B twice": ("db", lambda db: 2 * db),
    "the gradient of A is lost in the last column": ("da", _lost(-1, 2)),
}


def grouped(values, case, at):
    lens = values["group_lens"].astype(np.int64)
    a, b = _single(values, "a", "b")
    end = int(lens.sum())
    bounds = at("bounds", np.cumsum(np.concatenate([[0], lens])))
    owner = at("owner", np.arange(len(lens)), lens)
    forward = case.direction == "fwd"
    left = a if forward else _single(values, "grad_d")[0]
    rows = np.zeros((len(a), b.shape[1] if forward else b.shape[2]), np.float32)
    db = np.zeros_like(b)
    for i, (start, stop) in enumerate(pairwise(bounds)):
        start, stop = max(start, 0), min(stop, end)
        rows[start:stop] = at("tile", left[start:stop] @ (b[owner[i]].T if forward else b[owner[i]]))
        if not forward:
            db[i] = at("term", left[start:stop].T @ a[start:stop], left[start:stop], a[start:stop])
    return {"d": at("d", rows, bounds)} if forward else {"da": at("d", rows, bounds), "db": at("db", db, lens)}


def _ends_moved(by):
    return lambda ends: np.concatenate([ends[:1], ends[1:-1] + by, ends[-1:]])


def _last_filled(lens):
    return int(np.flatnonzero(lens)[-1])


GROUPED = {
    "offsets one too high": ("bounds", _ends_moved(1)),
    "offsets one too low": ("bounds", _ends_moved(-1)),
    "one offset one too high": ("bounds", lambda ends: ends + (np.arange(len(ends)) == 2)),
    "offsets of equal groups": ("bounds", lambda ends: np.linspace(0, ends[-1], len(ends)).astype(np.int64)),
    "B of the group before": ("owner", lambda owner, lens: np.roll(owner, 1)),
    "B of the group after": ("owner", lambda owner, lens: np.minimum(owner + 1, len(owner) - 1)),
    "the first B for all": ("owner", lambda owner, lens: 0 * owner),
    "empty groups are not counted": ("owner", lambda owner, lens: np.maximum(np.cumsum(lens > 0) - 1, 0)),
    "the last group is lost": ("d", lambda d, ends: np.where(np.arange(len(d))[:, None] < ends[-2], d, 0)),
    "the last row of each group is lost": ("tile", lambda d: np.where(np.arange(len(d))[:, None] == len(d) - 1, 0, d)),
    "ragged edges of tiles of 16 are lost": ("tile", lambda d: np.where(np.arange(len(d))[:, None] < len(d) // 16 * 16, d, 0)),
    "the gradient of B without the group's last row": ("term", lambda term, g, a: g[:-1].T @ a[:-1]),
    "the gradient of B of whole tiles of 8 rows": ("term", lambda term, g, a: g[: len(g) // 8 * 8].T @ a[: len(a) // 8 * 8]),
    "the gradient of B of the group before": ("db", lambda db, lens: np.roll(db, 1, axis=0)),
    "the gradient of B summed over all groups": ("db", lambda db, lens: np.broadcast_to(db.sum(axis=0), db.shape)),
    "the gradient of B not cleared between groups": ("db", lambda db, lens: np.cumsum(db, axis=0)),
    "the gradient of B added twice": ("db", lambda db, lens: 2 * db),
    "the gradient of the last B is lost": ("db", lambda db, lens: np.where(np.arange(len(db))[:, None, None] == _last_filled(lens), 0, db)),
    "an empty group keeps the gradient of the one before": (
        "db", lambda db, lens: np.stack([db[i - 1] if i and not n else db[i] for i, n in enumerate(lens)]),
    ),
    "a mean over the group's rows": ("db", lambda db, lens: db / np.maximum(lens, 1)[:, None, None]),
}  # fmt: skip
