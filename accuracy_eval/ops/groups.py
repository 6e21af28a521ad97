"""The groups of a grouped product: how its rows are cut, and what lies behind them."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from accuracy_eval.errors import UsageError
from accuracy_eval.ops.factors import SOURCE, Codes
from accuracy_eval.ops.spec import Inputs, Option, option_of
from accuracy_eval.records import Case

OPTIONS = {
    "lens": Option("equal", "rows of the groups: m each, cut anywhere, or none in every third", ("equal", "ragged", "zeros")),
    "align": Option(1, "groups are cut in units of so many rows"),
    "padding": Option(0, "rows of NaN behind the last group, which must reach nothing"),
    "source": SOURCE,
}
option = partial(option_of, OPTIONS)


@lru_cache(maxsize=64)
def group_lens(g: int, m: int, lens: str, align: int, seed: int) -> tuple[int, ...]:
    """Rows of each group, g·m together: all m; or cut at places drawn from the seed, in units of `align`; "zeros" leaves every third
    group, the second first, without rows."""
    if lens == "equal":
        return (m,) * g
    from accuracy_eval.inputs.philox import STREAM_16, stream_key, words

    filled = [i for i in range(g) if lens == "ragged" or i % 3 != 1] or [0]
    units = g * m // align
    drawn = words(stream_key("grouped_gemm", "group_lens", (g, m), lens, seed), STREAM_16, 0, 8 * -(-len(filled) // 8))
    cuts = np.sort(drawn[: len(filled) - 1].astype(np.int64) * (units + 1) >> 16)
    found = np.zeros(g, np.int64)
    found[filled] = np.diff(np.concatenate([[0], cuts, [units]])) * align
    return tuple(int(n) for n in found)


def lens_of(case: Case) -> tuple[int, ...]:
    g, m = case.dims["g"], case.dims["m"]
    return group_lens(g, m, str(option(case, "lens")), int(option(case, "align")), case.seed)


def padding_of(case: Case) -> int:
    """Rows behind the last group."""
    return int(option(case, "padding"))


class Group(NamedTuple):
    """Number of a group and the rows it has."""

    number: int
    start: int
    stop: int


def groups_of(case: Case) -> list[Group]:
    """Every group, those without rows too."""
    return _cut(lens_of(case))


def groups_in(inputs: Inputs) -> list[Group]:
    """The same of a call's own lengths, which need not be those of any case."""
    return _cut(tuple(int(n) for n in inputs["group_lens"].codes))


def _cut(lens: tuple[int, ...]) -> list[Group]:
    ends = np.cumsum((0, *lens))
    return [Group(i, int(ends[i]), int(ends[i + 1])) for i in range(len(ends) - 1)]


def implied(inputs: Inputs) -> dict[str, int]:
    """The average rows of a group, and as padding what these leave over, of the rows of `a` [t, k] and the matrices of `b` [g, ·, ·].

    UsageError for lengths that `a` has no rows for.
    """
    a, b, lens = (inputs.get(name) for name in ("a", "b", "group_lens"))
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 3 or not b.shape[0]:
        return {}
    rows, groups = a.shape[0], b.shape[0]
    if lens is not None and lens.shape == (groups,):
        found = lens.codes.astype(np.int64)
        if found.max(initial=0) > rows or found.sum() > rows:
            shown = ", ".join(str(n) for n in found.astype(np.int32)[:8]) + (", …" if groups > 8 else "")
            raise UsageError(f"op grouped_gemm: group_lens {shown}; expected lengths that add up to the {rows} rows of a, or less")
    return {"m": rows // groups, **({"padding": rows % groups} if rows % groups else {})}


def padded(codes: Codes, count: int, code: int) -> Codes:
    """`codes` [rows, …] with `count` rows of one code behind."""
    return np.concatenate([codes, np.full((count, *codes.shape[1:]), code, codes.dtype)])
