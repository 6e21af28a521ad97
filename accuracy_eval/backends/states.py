"""The same implementation in another state of the device: each is a candidate of its own, so that its outputs are judged like any other's.

`NAME+graph` replays a captured graph, `NAME+stream` runs beside other work, `NAME+misaligned` reads views off alignment, `NAME+alone`
computes some rows without the others. Equal digests say that the state does not matter; what differs is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from accuracy_eval.errors import unknown
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Operand
from accuracy_eval.records import Case

if TYPE_CHECKING:
    from accuracy_eval.backends.candidates import Candidate

Run = Callable[[Any, Case, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
WARMUPS = 3  # runs before a capture: libraries allocate workspaces and tune in the first ones
MISALIGNED = 3  # elements off alignment, as in input class `misaligned`
PADDING = 16  # elements between the rows of such a view
BUSY = 2048  # rows and columns of the product that keeps the other stream busy
ALONE = ("m", "b")  # axes along which an output depends on its own index alone


@dataclass(frozen=True)
class State:
    """One state. wrap turns a candidate's run into the run in that state; supports as in `Candidate`."""

    name: str
    sentence: str
    wrap: Callable[[Candidate], Run]
    needs: tuple[str, ...] = ()
    supports: Callable[[Candidate, Case], str | None] = lambda candidate, case: None


def _graph(candidate: Candidate) -> Run:
    def run(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                candidate.run(torch, case, t, {})
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # thread_local: the thread that writes the last case's outputs may ask its events meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = _owned(candidate.run(torch, case, t, {}), t)
        for name, tensor in found.items():
            _bytes(torch, tensor).copy_(_bytes(torch, out[name]))  # the poison of this run: what the replay leaves is seen
        graph.replay()
        torch.cuda.synchronize()
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    return run


def _owned(found: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs in memory of their own. The gradient of a sum is the operand itself, which poison for the output must not reach."""
    held = {x.untyped_storage().data_ptr() for x in operands.values()}
    return {name: x.clone() if x.untyped_storage().data_ptr() in held else x for name, x in found.items()}


def _bytes(torch: Any, tensor: Any) -> Any:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _stream(candidate: Candidate) -> Run:
    def run(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        busy, mine = torch.cuda.Stream(), torch.cuda.Stream()
        noise = torch.ones((BUSY, BUSY), dtype=torch.float16, device=next(iter(t.values())).device)
        for stream in (busy, mine):
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(busy):
            for _ in range(8):
                torch.mm(noise, noise)
        with torch.cuda.stream(mine):
            found = candidate.run(torch, case, t, out)
        with torch.cuda.stream(busy):
            torch.mm(noise, noise)
        torch.cuda.synchronize()
        return found

    return run


def _misaligned(candidate: Candidate) -> Run:
    def run(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        return candidate.run(torch, case, {n: off_alignment(torch, x) for n, x in t.items()}, out)

    return run


def off_alignment(torch: Any, tensor: Any) -> Any:
    """The same values in a view whose base is MISALIGNED elements off and whose rows lie PADDING elements apart."""
    if tensor.dim() == 0:
        return tensor
    rows, columns = tensor.numel() // max(tensor.shape[-1], 1), tensor.shape[-1]
    step = columns + PADDING
    buffer = torch.zeros(rows * step + MISALIGNED, dtype=tensor.dtype, device=tensor.device)
    strides = [1]
    for size in reversed(tensor.shape[1:]):
        strides.append(strides[-1] * size if len(strides) > 1 else step)
    view = buffer.as_strided(tuple(tensor.shape), tuple(reversed(strides)), MISALIGNED)
    view.copy_(tensor)
    return view


def _alone(candidate: Candidate) -> Run:
    def run(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        """The whole result, in which the first, middle and last index of the leading axis come from runs without the others."""
        spec = get_op(case.op)
        letter = next(x for x in ALONE if x in case.dims)
        size = case.dims[letter]
        found = candidate.run(torch, case, t, {})
        one = replace(case, shape=tuple((d, 1 if d == letter else n) for d, n in case.shape))
        axes = {o.name: _axis(o, letter) for o in spec.operands(case, "ocp")}
        for i in sorted({0, size // 2, size - 1}):
            part = {n: x if axes.get(n) is None else x.narrow(axes[n], i, 1).contiguous() for n, x in t.items()}
            for name, tensor in candidate.run(torch, one, part, {}).items():
                found[name] = found[name].clone()
                found[name][i] = tensor[0]
        return found

    return run


def _axis(operand: Operand, letter: str) -> int | None:
    """Position of the axis of that letter in the operand as stored."""
    axes = operand.axes[::-1] if operand.transposed else operand.axes
    return axes.index(letter) if letter in axes else None


def _alone_supports(candidate: Candidate, case: Case) -> str | None:
    if case.direction != "fwd" or case.recipe:
        return "rows by themselves: forward, operands without recipe"
    if not any(letter in case.dims for letter in ALONE):
        return f"{case.op} has no axis along which an output depends on its own index alone"
    return None


def _graph_supports(candidate: Candidate, case: Case) -> str | None:
    return None if candidate.graph_safe else f"{candidate.name} is not safe to capture"


STATES: dict[str, State] = {
    s.name: s
    for s in (
        State("graph", "captured in a CUDA or HIP graph and replayed", _graph, ("gpu",), _graph_supports),
        State("stream", "on a stream of its own, beside products on another", _stream, ("gpu",)),
        State("misaligned", "operands in views 3 elements off alignment, rows 16 elements apart", _misaligned),
        State("alone", "the first, middle and last row computed without the others", _alone, supports=_alone_supports),
    )
}


def named(candidates: Iterable[Candidate], names: Sequence[str]) -> Iterator[Candidate]:
    """The candidates of these names, in the order of the names; "NAME+STATE" is NAME in that state. Names that nobody has are left out."""
    there = {c.name: c for c in candidates}
    for name in names:
        base, plus, state = name.partition("+")
        if base in there:
            yield in_state(there[base], state) if plus else there[base]


def in_state(candidate: Candidate, name: str) -> Candidate:
    """The candidate in that state. UsageError for an unknown one."""
    if name not in STATES:
        raise unknown("state", name, STATES)
    state = STATES[name]

    def supports(case: Case, platform: Mapping[str, Any]) -> str | None:
        if get_op(case.op).ranks is not None:
            return "ranks compute in processes of their own, whose device has no other state"
        return state.supports(candidate, case) or candidate.supports(case, platform)

    return replace(
        candidate, name=f"{candidate.name}+{name}", run=state.wrap(candidate), supports=supports, needs=(*candidate.needs, *state.needs),
        built_in=False,
    )  # fmt: skip
