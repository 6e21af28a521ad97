"""Around a run: outputs filled with a pattern, checked, and looked at for what no kernel wrote; operands and the process given back as they
were."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from accuracy_eval.backends.base import POISONS
from accuracy_eval.backends.candidates import Candidate, Run
from accuracy_eval.backends.surroundings import put_back
from accuracy_eval.backends.tensors import INTEGERS, integers_of
from accuracy_eval.errors import UsageError, described
from accuracy_eval.formats import get_format
from accuracy_eval.ops.spec import Output
from accuracy_eval.records import Case


def poisoned(torch: Any, device: str, outputs: Iterable[Output], byte: int) -> dict[str, Any]:
    """Tensors for `out=` whose every byte is `byte`, by output name."""
    return {o.name: _poisoned(torch, device, o, byte) for o in outputs}


def _poisoned(torch: Any, device: str, output: Output, byte: int) -> Any:
    size = get_format(output.format).storage.itemsize
    dtype = getattr(torch, output.format, torch.uint8)
    tensor = torch.empty(output.shape, dtype=torch.uint8 if size == 1 else dtype, device=device)
    tensor.view(getattr(torch, INTEGERS[size])).fill_(_pattern(byte, size))
    return tensor.view(dtype)


def leave_poison(torch: Any, device: str, outputs: Iterable[Output], byte: int) -> None:
    """Fill and free a block of each output's size: what a kernel allocates next gets those bytes."""
    held = poisoned(torch, device, outputs, byte)
    del held


def contained(candidate: Candidate, device: str) -> Run:
    """A user's kernel that can do no more to the dump than give a wrong result or raise: its operands are views in a dict of its own, what
    it changes of its process is put back, what would end the process is an error of the case, and a process that it forks ends with it."""

    def run(torch: Any, case: Case, tensors: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        views = {name: tensor.detach() for name, tensor in tensors.items()}
        try:
            with put_back(torch, on_gpu=device != "cpu"), _forks_ended():
                return candidate.run(torch, case, views, out)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise UsageError(f"candidate {candidate.name!r} raised {described(error)}, which would have ended the dump") from error

    return run


@contextmanager
def _forks_ended() -> Iterator[None]:
    """A process that was forked inside does not come out: the dump is its parent's."""
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != owner:
            os._exit(0)


def check(candidate: Candidate, outputs: Sequence[Output], result: Mapping[str, Any], device: str) -> None:
    """UsageError unless the outputs are all there, tensors of the device, in shape and format."""
    for o in outputs:
        if o.name not in result:
            raise UsageError(f"candidate {candidate.name!r} gave outputs {', '.join(map(str, result)) or 'none'}; the op has {o.name}")
        found, where = result[o.name], f"candidate {candidate.name!r} output {o.name}"
        if not hasattr(found, "detach"):
            raise UsageError(f"{where}: a {type(found).__name__}; expected a torch tensor")
        if found.device.type != device.partition(":")[0]:
            raise UsageError(f"{where}: on device {found.device.type}; expected {device}")
        shape, dtype = tuple(found.shape), str(found.dtype).removeprefix("torch.")
        # a byte is what torch gives where it has no dtype of the format, and what kernels return for scales
        accepted = (o.format, "uint8") if get_format(o.format).storage.itemsize == 1 else (o.format,)
        if shape != o.shape or dtype not in accepted:
            raise UsageError(f"{where}: shape {list(shape)} of {dtype}; expected {list(o.shape)} of {o.format}")


def settled(torch: Any, output: Output, tensor: Any, byte: int) -> Any:
    """The result with what it may leave as it was set to zero: rows that the op need not write and that still hold the fill."""
    if output.written is None:
        return tensor
    integers = integers_of(torch, tensor.detach().clone())
    rest = integers.view(-1, integers.shape[-1])[output.written :]
    rest[rest == _pattern(byte, rest.element_size())] = 0
    return integers.view(tensor.dtype)


def distinct(torch: Any, tensors: Sequence[Any]) -> tuple[list[Any], int]:
    """Of runs on outputs filled with POISONS in turn: the results that differ, first seen first, as integers; and how many elements kept
    the fill of both."""
    integers = [integers_of(torch, t.detach()) for t in tensors]
    found: list[Any] = []
    for t in integers:
        if not any(torch.equal(t, d) for d in found):
            found.append(t)
    if len(integers) < 2:
        return found, 0
    size = integers[0].element_size()
    first, second = ((t == _pattern(p, size)) for t, p in zip(integers, POISONS, strict=False))
    return found, int((first & second).sum())


@contextmanager
def given_back(torch: Any, tensors: Mapping[str, Any]) -> Iterator[list[str]]:
    """The block may write to the operands: whether it ends or raises, the next candidate gets them with the bytes that they had. Yields a
    list that then holds the names of those that were written to."""
    kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    changed: list[str] = []
    try:
        yield changed
    except BaseException:
        with suppress(RuntimeError):  # a lost device gives nothing back, and what lost it has been said
            restored(torch, tensors, kept)
        raise
    changed += restored(torch, tensors, kept)


def restored(torch: Any, tensors: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """Names of the operands whose bytes are not those of their copies any more; they get them back."""
    changed = []
    for name, copy in kept.items():
        if not torch.equal(integers_of(torch, tensors[name].detach()), integers_of(torch, copy)):
            changed.append(name)
            tensors[name].detach().copy_(copy)
    return changed


def _pattern(byte: int, size: int) -> int:
    """The integer whose every byte is `byte`, as the signed (1 byte: unsigned) integer torch holds."""
    value = int.from_bytes(bytes([byte] * size), "little")
    return value if size == 1 or value < 1 << (8 * size - 1) else value - (1 << (8 * size))
