"""The smallest faults that would have failed, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accuracy_eval.messages.values import number
from accuracy_eval.records import Side


def resolution_text(resolution: Mapping[str, Any]) -> str:
    """The smallest faults that would have failed: "element 3.1e-4, row 2.2e-3, gain 4e-6, the loss of any of 256 k".

    Kinds that no gate looks at (absent, or NaN in older files) are left out, and those of which no size fails: a gain, where all is zero.
    """
    found = {k: resolution.get(k) for k in ("element", "row", "column", "tile", "gain")}
    parts = [f"{k} {_short(v)}" for k, v in found.items() if v is not None and v == v and (k != "gain" or v != math.inf)]
    if "probes" in resolution:  # lines were seen by random projections: no size of fault in them is certain to be caught
        parts[1:1] = [f"{k} {_short(resolution[f'{k}_95'])} (19 of 20)" for k in ("row", "column")]
    seen, total = resolution.get("k_seen", 0), resolution.get("k_total", 0)
    if total and seen == total:
        parts.append(f"the loss of any of {total} k")
    elif total:
        parts.append(f"the loss of {seen} of {total} k (not of k = {resolution.get('k_unseen')})")
    if "probes" in resolution:
        exact = f"{resolution['exact_rows']} rows and {resolution['exact_columns']} columns exactly"
        parts.append(f"by {exact}, all by {resolution['probes']} projections (standard error {_short(resolution['standard_error'])})")
    return ", ".join(parts)


def side_resolution(side: Side) -> str:
    """What would have failed the side; where its gates let nothing be stated, that, with their limits."""
    if side.resolution:
        return resolution_text(side.resolution)
    limits = dict.fromkeys(f"{g.metric} {g.comparison} {number(g.limit)}" for g in side.gates if g.passed)
    return f"not stated: the limits that judged ({', '.join(limits)}) gave no size of a fault" if limits else ""


def _short(value: float | str | None) -> str:
    return "none" if value is None else number(value, 3)
