"""The numerics card of an open backend."""

from __future__ import annotations

from collections.abc import Sequence

from accuracy_eval.backends.base import Backend
from accuracy_eval.datapath.card import NumericsCard, numerics_card
from accuracy_eval.errors import unknown
from accuracy_eval.formats import get_family, get_format

LENGTHS = (256, 1024)  # contractions beyond the questions' 64 at which the order of additions is recorded


def probed(backend: Backend, formats: Sequence[str] = (), *, lengths: Sequence[int] = LENGTHS) -> NumericsCard:
    """Ask the device everything about its products, of these operand formats or of all.

    UsageError for a format that the device has no product of, and for a backend that is no device.
    """
    calls = backend.products()
    families = [get_format(c.format).family for c in calls]
    wanted = [get_family(f) for f in formats]
    for f in wanted:
        if f not in families:
            raise unknown("operand format to probe", f, sorted(set(families)))
    chosen = [c for c, family in zip(calls, families, strict=True) if not wanted or family in wanted]
    return numerics_card(chosen, device=str(backend.platform().get("device_name") or backend.name), lengths=lengths)
