"""Implementations of attention beside the framework's own choice: its kernels pinned, its compiled attention, the formula written out.

A kernel that does not take the case says why, and no other takes its place.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.ops.attention import Attend, attended, option, scale_of, written_out
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case

# what torch says, by release and device
NO_KERNEL = ("No available kernel", "No viable backend for scaled_dot_product_attention", "Invalid backend")
Run = Callable[[Any, Case, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


def pinned(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    """The framework's call; UnsupportedCase with its own reasons where the one kernel allowed does not take the case."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return get_op("attention").torch(torch, case, t, out)
        except RuntimeError as error:
            if not any(text in str(error) for text in NO_KERNEL):
                raise
            texts = (str(w.message).split(" (Triggered")[0] for w in said)
            reasons = [t for t in texts if not t.endswith(":")]  # headings, under which a CPU says nothing
            masked = option(case, "sink") and case.direction == "bwd"
            wanted = "; a sink is a mask, whose gradient is wanted" if masked else ""
            nothing = f"the kernel does not take the case, torch gives no reason ({str(error).splitlines()[0]}){wanted}"
            raise UnsupportedCase("; ".join(dict.fromkeys(reasons)) or nothing) from error


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention; the fields are those of `Candidate`. lse: it gives logsumexp as well."""

    name: str
    run: Run = pinned
    needs: tuple[str, ...] = ()
    deterministic: bool | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)
    supports: Callable[[Case, Mapping[str, Any]], str | None] = lambda case, platform: None
    graph_safe: bool = True
    lse: bool = False

    def applies(self, case: Case) -> bool:
        """The framework's public call, whose kernels can be pinned, has no logsumexp."""
        return self.lse or not option(case, "lse")


def _by(attend: Attend) -> Run:
    return lambda torch, case, t, out: attended(attend, torch, case, t)


def _formula(torch: Any, case: Case, q: Any, k: Any, v: Any, sink: Any) -> dict[str, Any]:
    return dict(zip(("out", "lse"), written_out(torch, case, q, k, v, sink), strict=True))


@functools.cache
def _compiled(torch: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def flex(torch: Any, case: Case, q: Any, k: Any, v: Any, sink: Any) -> dict[str, Any]:
    """flex_attention, compiled for these shapes. A sink is the score of one more key, of zeros: its gradient adds in float32."""
    from torch.nn.attention import flex_attention as module

    if not hasattr(module, "AuxRequest"):
        raise UnsupportedCase(f"torch {torch.__version__} has no flex_attention that returns what it computed besides; 2.9 has")
    keys, window, causal = case.dims["t"], int(option(case, "window")), bool(option(case, "causal") or option(case, "window"))
    given = None if sink is None else sink.float()

    def score(value: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return value if given is None else torch.where(key >= keys, given[head], value)

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        found = key <= query if causal else key >= 0
        found = found & (key > query - window) if window else found
        return found if given is None else found | (key >= keys)

    if sink is not None:
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    mask = module.create_block_mask(seen, None, None, q.shape[2], k.shape[2], device=q.device) if causal else None
    more = {"scale": scale_of(case), "enable_gqa": q.shape[1] != k.shape[1], "block_mask": mask}
    more |= {} if sink is None else {"score_mod": score}
    with torch._dynamo.config.patch(recompile_limit=1 << 16, fail_on_recompile_limit_hit=True):
        out, found = _compiled(torch)(q, k, v, return_aux=module.AuxRequest(lse=True), **more)
    return {"out": out, "lse": found.lse}


def _narrow(case: Case, platform: Mapping[str, Any]) -> str | None:
    return "takes float32, float16, bfloat16; the operands are float64" if case.format == "float64" else None


ATTENTIONS: tuple[Implementation, ...] = (
    Implementation("flash", switches={"sdp": "flash"}),
    Implementation("mem_efficient", needs=("gpu",), switches={"sdp": "mem_efficient"}),
    Implementation("math", deterministic=True, switches={"sdp": "math"}),
    Implementation("cudnn", needs=("nvidia",), switches={"sdp": "cudnn"}),
    Implementation("flex", _by(flex), ("gpu", "compiler"), supports=_narrow, graph_safe=False, lse=True),
    Implementation("eager", _by(_formula), lse=True),
)
