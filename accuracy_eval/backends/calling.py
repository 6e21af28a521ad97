"""A user's function on a device: clones of seeded operands, fresh gradients, poisoned memory, every run kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accuracy_eval.backends import flags, guards
from accuracy_eval.backends.base import POISONS, Result
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, get_format
from accuracy_eval.ops.spec import Output
from accuracy_eval.records import Coded

Function = Callable[..., Any]
Tensors = Mapping[str, Any]
_ALONE = "pass grad=False to judge the outputs alone"


@dataclass(frozen=True)
class Called:
    """What the runs of a function gave: outputs by name, then gradients as d<input>; inputs that a run changed in place."""

    results: tuple[Result, ...]
    changed: tuple[str, ...]


def named_outputs(found: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """A function's result by name: a mapping as it is, a tuple in the order of `names`. UsageError where it does not fit them."""
    if isinstance(found, Mapping):
        result = dict(found)
    elif isinstance(found, tuple | list):
        result = dict(zip(names or tuple(f"output{i}" for i in range(len(found))), found, strict=False))
        if names and len(names) != len(found):
            raise UsageError(f"the function returned {len(found)} tensors; expected {', '.join(names)}")
    else:
        result = {names[0] if names else "output": found}
    for name, tensor in result.items():
        if not hasattr(tensor, "detach"):
            raise UsageError(f"the function's output {name} is a {type(tensor).__name__}; expected a torch tensor")
    if names and set(result) != set(names):
        raise UsageError(f"the function returned {', '.join(result)}; expected {', '.join(names)}")
    return result


def _differentiable(tensor: Any) -> bool:
    return bool(tensor.is_floating_point()) and tensor.element_size() > 1


def call(
    backend: TorchBackend, function: Function, inputs: Tensors, upstream: Tensors, *, names: tuple[str, ...] = (), repeats: int = 2
) -> Called:
    """Run the function `repeats` times on clones of `inputs`, positional, and backward with `upstream` (by output) where that is given.

    Parameters of a module get their gradients dropped before each run, so that nothing adds up.
    """
    torch = backend.torch
    runs: list[dict[str, Any]] = []
    changed: dict[str, None] = {}
    with flags.case_flags(torch, tf32=False, device=backend.device):
        for index in range(max(1, repeats)):
            if hasattr(function, "zero_grad"):
                function.zero_grad(set_to_none=True)
            if runs:
                guards.leave_poison(torch, backend.device, [_output(n, t) for n, t in runs[0].items()], POISONS[index % 2])
            runs.append(_once(torch, function, inputs, upstream, names, changed))
    results = tuple(backend.result(_output(n, t), [run[n] for run in runs]) for n, t in runs[0].items())
    return Called(results, tuple(changed))


def _once(
    torch: Any, function: Function, inputs: Tensors, upstream: Tensors, names: tuple[str, ...], changed: dict[str, None]
) -> dict[str, Any]:
    leaves = {n: t.clone() if t.is_inference() else t.detach() for n, t in inputs.items()}
    wanted = [n for n, t in leaves.items() if upstream and _differentiable(t)]
    for n in wanted:
        leaves[n].requires_grad_()
    given = {n: t.clone() for n, t in leaves.items()}  # not leaves themselves: torch lets nobody change those in place
    outputs = named_outputs(function(*given.values()), names)
    found = {n: t.detach().clone() for n, t in outputs.items()}
    lost = None
    if wanted:
        try:
            found |= {n: g.detach().clone() for n, g in _gradients(torch, "function", outputs, leaves, wanted, upstream).items()}
        except RuntimeError as error:
            lost = error
    now = [n for n, t in given.items() if not torch.equal(_bits(torch, t.detach()), _bits(torch, inputs[n]))]
    if lost and now:
        raise UsageError(f"the function changed its input {now[0]!r} in place, and has no gradient: {lost}; {_ALONE}") from lost
    if lost:
        raise lost
    changed.update(dict.fromkeys(now))
    return found


def _bits(torch: Any, tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def _output(name: str, tensor: Any) -> Output:
    return Output(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def expected(
    torch: Any, reference: Function, inputs: Mapping[str, Coded], upstream: Mapping[str, Coded], names: tuple[str, ...]
) -> dict[str, Any]:
    """What a reference function gives on the CPU in float64: outputs, and gradients as d<input>, as float64 arrays."""
    leaves = {n: _wide(torch, c) for n, c in inputs.items()}
    wanted = [n for n, c in inputs.items() if upstream and get_format(c.format).bits > 8 and leaves[n].is_floating_point()]
    for n in wanted:
        leaves[n].requires_grad_()
    given = [t.clone() if n in wanted else t for n, t in leaves.items()]  # a leaf could not be changed in place
    outputs = named_outputs(reference(*given), names)
    found = {n: t.detach().double().numpy() for n, t in outputs.items()}
    if wanted:
        flow = {n: _wide(torch, c).to(outputs[n].dtype) for n, c in upstream.items()}
        found |= {n: g.detach().double().numpy() for n, g in _gradients(torch, "reference", outputs, leaves, wanted, flow).items()}
    return found


def _gradients(torch: Any, whose: str, outputs: Tensors, leaves: Tensors, wanted: list[str], upstream: Tensors) -> dict[str, Any]:
    """d<input> of every wanted leaf: zeros where the outputs do not depend on it. UsageError for an output that autograd does not know."""
    if detached := [n for n in upstream if not outputs[n].requires_grad]:
        raise UsageError(f"the {whose}'s output {', '.join(detached)} is detached: it has no gradient to the inputs; {_ALONE}")
    heads = [outputs[n] for n in upstream]
    found = torch.autograd.grad(heads, [leaves[n] for n in wanted], list(upstream.values()), allow_unused=True)
    return {f"d{n}": torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(wanted, found, strict=True)}


def _wide(torch: Any, coded: Coded) -> Any:
    """A tensor of the exact values: float64, or int64 for integers."""
    values = torch.from_numpy(decode(coded.codes, coded.format).copy())
    return values.long() if coded.format.startswith(("int", "uint")) else values
