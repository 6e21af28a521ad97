"""The framework's attention pinned to one of its kernels. A kernel that does not take the case says why, and no other takes its place."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case

NO_KERNEL = ("No available kernel", "No viable backend for scaled_dot_product_attention")  # what torch says, by release and device


@dataclass(frozen=True)
class Kernel:
    """One implementation behind scaled_dot_product_attention; the fields are those of `Candidate`."""

    name: str
    needs: tuple[str, ...] = ()
    deterministic: bool | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)


def run(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """The framework's call; UnsupportedCase with its own reasons where the one kernel allowed does not take the case."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return get_op("attention").torch(torch, case, t, out)
        except RuntimeError as error:
            if not any(text in str(error) for text in NO_KERNEL):
                raise
            reasons = [str(w.message).split(" (Triggered")[0] for w in said]
            raise UnsupportedCase("; ".join(dict.fromkeys(reasons)) or str(error).splitlines()[0]) from error


ATTENTIONS: tuple[Kernel, ...] = (
    Kernel("flash", switches={"sdp": "flash"}),
    Kernel("mem_efficient", ("gpu",), switches={"sdp": "mem_efficient"}),
    Kernel("math", deterministic=True, switches={"sdp": "math"}),
    Kernel("cudnn", ("nvidia",), switches={"sdp": "cudnn"}),
)
