"""torch on a CUDA, ROCm or CPU device: one code path, the vendor decided by the build (torch.version.hip), never by a name."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.backends import flags, platform
from accuracy_eval.backends.base import POISONS, Outcome, Prepared, Result, Source
from accuracy_eval.backends.candidates import Candidate, registered
from accuracy_eval.backends.certificates import Certificate, Checked, certifiable
from accuracy_eval.backends.drafts import Ahead, Draft, draft, stored_bytes
from accuracy_eval.backends.kernels import parse_kernel, record_kernels
from accuracy_eval.backends.reference import ready
from accuracy_eval.backends.staging import GATHERED_FROM, Staging
from accuracy_eval.backends.together import Together
from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import MissingDependency, UnsupportedCase, UsageError
from accuracy_eval.formats import get_format
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.relations import Fill
from accuracy_eval.ops.spec import Operand, Output
from accuracy_eval.records import Case, Coded
from accuracy_eval.threads import thread_count
from accuracy_eval.timeline import Span, Timeline

if TYPE_CHECKING:
    from accuracy_eval.datapath.card import Call

Codes = NDArray[Any]
ON_DEVICE_ELEMENTS = 1 << 18  # smaller operands are made on the host: a launch costs more than the copy
RANKS_LIMIT_S = 120.0  # a first call of a GPU library loads its kernels
MISALIGNED_OFFSET = 3  # elements
ROW_PADDING = 16  # elements added to the row stride of strided and misaligned operands
_HELD_AS = {"float8_ue4m3": "float8_e4m3fn"}  # torch has no unsigned scale format: the sign bit is 0
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def drafting_threads() -> int:
    """Cases whose operands are made at a time, each by one thread unless it is large."""
    return max(1, min(8, thread_count() // 2))


def import_torch() -> Any:
    """The torch module. MissingDependency says what to install."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            "this needs torch, which is not installed; install your vendor's build (or pip install 'accuracy-eval[torch]'), "
            "or use --device reference, which needs none"
        ) from error
    return torch


class TorchBackend:
    """Runs candidates through torch on one device ("cpu", "cuda:0"; on ROCm builds "cuda" is the AMD GPU).

    limit_s  seconds that the ranks of a case wait for each other
    """

    def __init__(self, device: str = "cpu", *, torch: Any = None, limit_s: float = RANKS_LIMIT_S) -> None:
        self.torch = torch if torch is not None else import_torch()
        self.device = device
        self.on_gpu = device != "cpu"
        if self.on_gpu and not self.torch.cuda.is_available():
            raise UsageError(f"device {device!r}: torch {self.torch.__version__} sees no GPU; allowed here: cpu, reference")
        with flags.case_flags(self.torch, tf32=False, device=device):  # the record shows the switches that cases run under
            self._platform = platform.detect(self.torch, device)
        self.name = device
        self.encoding: Literal["ocp", "fnuz"] = "fnuz" if self._platform.get("fp8_encoding") == "fnuz" else "ocp"
        self._certified: tuple[Case, Certificate] | None = None
        self._together = Together("nccl" if self.on_gpu else "gloo", self.torch.cuda.device_count, limit_s)
        self._staging = Staging(self.torch)
        self._pool = ThreadPoolExecutor(max(2, min(16, thread_count())), thread_name_prefix="digest")
        self._drafts = Ahead(self._draft, self._drafted_bytes, drafting_threads() if self.on_gpu else 0)
        self._timeline = Timeline()  # of what is being prepared or run now

    def platform(self) -> dict[str, Any]:
        return dict(self._platform)

    def candidates(self, op: str) -> tuple[Candidate, ...]:
        return registered(op)

    def products(self) -> tuple[Call, ...]:
        """Every way in which the device multiplies matrices, for probes."""
        from accuracy_eval.backends.products import calls_of

        return calls_of(self)

    def healthy(self) -> bool:
        """Whether the GPU still answers. Nothing is allocated: a full memory is no loss."""
        if not self.on_gpu:
            return True
        try:
            self.torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        self._drafts.close()
        self._together.close()
        self._pool.shutdown(wait=True)

    # operands

    def expect(self, cases: Iterable[Case]) -> None:
        """On a GPU threads of the host make the operands of the next cases; on a CPU the cores have enough to do."""
        self._drafts.expect(cases)

    def prepare(self, case: Case) -> Prepared:
        """Operands on the device in stored orientation, digests of their canonical codes under way on host threads."""
        spec = get_op(case.op)
        operands = spec.operands(case, self.encoding)
        recipe, ranks = bool(case.recipe) and spec.received is not None, spec.ranks is not None
        if not recipe and not ranks:
            for o in operands:
                self.dtype(o.format)
            if case.format == "tfloat32" and not self.on_gpu:
                raise UnsupportedCase("TF32 is a mode of GPU matrix units; this is a CPU")
        made = self._drafts.take(case)
        self._timeline = Timeline(made.timeline)
        held = {o.name: Coded(made.codes[o.name], o.format) for o in operands if o.name in made.codes}
        if recipe:
            tensors = {name: self.to_device(coded.codes, coded.format) for name, coded in made.received.items()}
            return Prepared(case, self._sources(held), tensors, self._sources(made.received), self._timeline)
        if ranks:  # they stay on the host until each rank has its row
            return Prepared(case, self._sources(held), held, timeline=self._timeline)
        relation = spec.relation(case)
        fill = relation.fill if relation else ""
        sources, placed = [], {}
        for o in operands:
            source, tensor = self._operand(case, o, made.codes.get(o.name))
            sources.append(source)
            placed[o.name] = self._place(
                tensor.transpose(-2, -1).contiguous() if o.transposed else tensor, case.input_class if case.lane == "random" else "", fill
            )
        return Prepared(case, tuple(sources), placed, timeline=self._timeline)

    def _draft(self, case: Case) -> Draft:
        return draft(case, self.encoding, compiled=False if self.on_gpu else None, on_device=self._makes)

    def _drafted_bytes(self, case: Case) -> int:
        operands = get_op(case.op).operands(case, self.encoding)
        return stored_bytes(o for o in operands if not (case.lane == "random" and self._makes(case, o)))

    def _makes(self, case: Case, o: Operand) -> bool:
        """Whether a random operand is made on the device."""
        if not self.on_gpu or math.prod(o.shape) < ON_DEVICE_ELEMENTS or o.domain != "any" or case.option("c", "values") != "values":
            return False
        from accuracy_eval.backends import torch_inputs

        return torch_inputs.supports(case.input_class, o.format)

    def _sources(self, made: Mapping[str, Coded]) -> tuple[Source, ...]:
        return tuple(self._source(name, coded) for name, coded in made.items())

    def _source(self, name: str, coded: Coded) -> Source:
        return Source(name, coded.format, coded.shape, self._digest(ready(coded.codes)), lambda: coded.codes)

    def _digest(self, host: Future[Codes]) -> Future[str]:
        timeline = self._timeline

        def made() -> str:
            codes = host.result()
            with timeline.stage("digest", codes.nbytes):
                return sha256_codes(codes)

        return self._pool.submit(made)

    @contextmanager
    def _stage(self, name: str, size: int) -> Iterator[None]:
        """The block is work of that stage: on a GPU, what it queues there is timed, not the queueing."""
        if not self.on_gpu:
            with self._timeline.stage(name, size):
                yield
            return
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.time()
        start.record()
        yield
        end.record()

        def taken() -> float | None:
            try:
                return float(start.elapsed_time(end)) / 1000
            except RuntimeError:  # the device answers no more: a later case made it so
                return None

        self._timeline.add(Span(name, began, taken, size))

    def _operand(self, case: Case, o: Operand, codes: Codes | None) -> tuple[Source, Any]:
        """An operand on the device, from its codes or made there."""
        if codes is not None:
            return self._source(o.name, Coded(codes, o.format)), self.to_device(codes, o.format)
        from accuracy_eval.backends import torch_inputs

        with self._stage("make", stored_bytes([o])):
            tensor = torch_inputs.generate(self.torch, self.device, case.op, o.name, o.shape, case.input_class, case.seed, o.format)
        host = self.to_host(tensor, o.format)
        return Source(o.name, o.format, o.shape, self._digest(host), host.result), tensor

    def _place(self, tensor: Any, input_class: str, fill: Fill = "") -> Any:
        """Views that libraries treat differently: rows wider apart than they are long, and a base 3 elements off alignment.

        fill  what lies between the rows, where that is not zeros; rows are then wider apart
        """
        if not tensor.dim() or (input_class not in ("misaligned", "strided") and not fill):
            return tensor
        offset = MISALIGNED_OFFSET if input_class == "misaligned" else 0
        shape = (math.prod(tensor.shape[:-1]), tensor.shape[-1]) if tensor.dim() > 1 else (1, tensor.numel())
        stride = -(-shape[1] // ROW_PADDING) * ROW_PADDING + ROW_PADDING
        buffer = self.torch.zeros(shape[0] * stride + offset + ROW_PADDING, dtype=tensor.dtype, device=self.device)
        if fill:
            buffer.fill_(float("nan") if fill == "nan" else self.torch.finfo(tensor.dtype).max)
        view = buffer.as_strided(shape, (stride, 1), offset)
        view.copy_(tensor.reshape(shape))
        return view.unflatten(0, tensor.shape[:-1]) if tensor.dim() > 1 else view[0]

    # codes between host and device

    def dtype(self, fmt: str) -> Any:
        """The torch dtype of a format. UnsupportedCase when this torch has none."""
        dtype = getattr(self.torch, fmt, None)
        if dtype is None:
            raise UnsupportedCase(f"torch {self.torch.__version__} has no dtype {fmt}")
        return dtype

    def to_device(self, codes: Codes, fmt: str) -> Any:
        """A tensor of the format's dtype holding these codes, bit for bit; of bytes where an element has fewer than 8 bits."""
        width = codes.dtype.itemsize
        integers = np.ascontiguousarray(codes).reshape(codes.shape).view(_INTEGERS[width])
        held = self.torch.from_numpy(integers.copy() if not integers.flags.writeable else integers)
        with self._stage("to_device", codes.nbytes):
            tensor = held.to(self.device)
        return tensor if get_format(fmt).bits < 8 else tensor.view(self.dtype(_HELD_AS.get(fmt, fmt)))

    def _integers(self, tensor: Any) -> Any:
        return tensor.contiguous().view(getattr(self.torch, _INTEGERS[tensor.element_size()]))

    def to_host(self, tensor: Any, fmt: str) -> Future[Codes]:
        """The tensor's codes on the host: copied through pinned memory, large ones by pieces of it; ready when the copy is done."""
        storage = get_format(fmt).storage
        integers = self._integers(tensor)
        if not self.on_gpu:
            return self._pool.submit(lambda: integers.numpy().view(storage))
        size = integers.numel() * integers.element_size()
        if size >= GATHERED_FROM:
            made, timeline = self.torch.cuda.Event(), self._timeline
            made.record()

            def gather() -> Codes:
                with timeline.stage("to_host", size):
                    return self._staging.gathered(integers, made).view(storage).reshape(integers.shape)

            return self._pool.submit(gather)
        with self._timeline.stage("pin", size):
            buffer = self._staging.take(size)
            host = buffer[:size].view(integers.dtype).view(integers.shape)
        with self._stage("to_host", size):
            host.copy_(integers, non_blocking=True)
        event = self.torch.cuda.Event()
        event.record()

        def wait() -> Codes:
            event.synchronize()
            keep = integers  # alive until the copy is done
            del keep
            return self._staging.lend(buffer, size).view(storage).reshape(integers.shape)

        return self._pool.submit(wait)

    # running

    def run(self, prepared: Prepared, candidate: Candidate, *, repeats: int, kernels: bool = False, certify: bool = False) -> Outcome:
        self._timeline = Timeline()
        case = prepared.case
        outputs = get_op(case.op).outputs(case, self.encoding)
        for o in outputs:
            if get_format(o.format).storage.itemsize > 1 or hasattr(self.torch, o.format):
                self.dtype(o.format)
        reason = candidate.filtered(case, self._platform)
        if reason:
            raise UnsupportedCase(reason)
        if get_op(case.op).ranks is not None:
            return self._together.run(prepared, candidate, outputs, repeats)
        tf32 = case.format == "tfloat32"
        # kernels of others may write to their operands; the copy also gives the next candidate what it should have
        kept = {} if candidate.built_in else {n: t.detach().clone() for n, t in prepared.tensors.items()}
        handled = stored_bytes(outputs) + sum(t.numel() * t.element_size() for t in prepared.tensors.values())
        found: list[dict[str, Any]] = []
        certificate = self._certificate(prepared) if certify and certifiable(case) else None
        checked: list[Checked] = []
        with flags.case_flags(self.torch, tf32=tf32, device=self.device, **candidate.switches):
            for index in range(max(1, repeats)):
                out = {o.name: self.poisoned(o, POISONS[index % 2]) for o in outputs}
                self.leave_poison(outputs, POISONS[index % 2])
                with self._stage("run", handled):
                    result = self.call(candidate, prepared, out)
                self.check(candidate, outputs, result)
                if not candidate.built_in:  # a kernel may hand out the same buffer on every call
                    result = {name: t.detach().clone() for name, t in result.items()}
                found.append({o.name: self._settled(o, result[o.name], POISONS[index % 2]) for o in outputs})
                if certificate:
                    checked.append(certificate.check(found[-1]["d"]))
                del out
        changed = self.restored(prepared.tensors, kept)
        if self.on_gpu:
            self.torch.cuda.synchronize()
        # variables that beat the switches: the result stands, and the report says why it may be off
        overruled = flags.overruled(os.environ, tf32=tf32)
        results = tuple(self.result(o, [r[o.name] for r in found]) for o in outputs)
        notes: dict[str, Any] = {"overruled": overruled, "operands_changed": changed}
        if certificate:
            notes["certificate"] = {"runs": len(checked), "wrong": [{"run": i, **w} for i, c in enumerate(checked) if (w := c.wrong())]}
        if kernels:
            notes |= self._kernels(candidate, prepared, outputs, tf32)
        return Outcome(results, len(found), {name: note for name, note in notes.items() if note}, self._timeline)

    def _certificate(self, prepared: Prepared) -> Certificate:
        """The certificate of a case's operands, made once for all candidates."""
        if self._certified is None or self._certified[0] != prepared.case:
            self._certified = prepared.case, Certificate(self.torch, prepared.case, prepared.tensors)
        return self._certified[1]

    def restored(self, tensors: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
        """Names of the operands whose bytes are not those of their copies any more; they get them back."""
        changed = []
        for name, copy in kept.items():
            if not self.torch.equal(self._integers(tensors[name].detach()), self._integers(copy)):
                changed.append(name)
                tensors[name].detach().copy_(copy)
        return changed

    def _kernels(self, candidate: Candidate, prepared: Prepared, outputs: tuple[Output, ...], tf32: bool) -> dict[str, Any]:
        """What the names of the kernels of one more run tell, or why there are none."""
        out = {o.name: self.poisoned(o, POISONS[0]) for o in outputs}
        with flags.case_flags(self.torch, tf32=tf32, device=self.device, **candidate.switches):
            names = record_kernels(self.torch, lambda: self.call(candidate, prepared, out))
        return {"kernels": [parse_kernel(n) for n in names]} if names else {"kernels_unknown": names.reason}

    def call(self, candidate: Candidate, prepared: Prepared, out: dict[str, Any]) -> dict[str, Any]:
        """One run, under the flags that are set. UnsupportedCase where torch says that it has no such thing."""
        try:
            with warnings.catch_warnings():
                # autograd's own thread meets the GPU for the first time; it then does what the warning says
                warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
                return candidate.run(self.torch, prepared.case, prepared.tensors, out)
        except UnsupportedCase:
            raise
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if isinstance(error, NotImplementedError) or "not implemented for" in str(error) or "not supported" in str(error):
                raise UnsupportedCase(f"torch {self.torch.__version__}: {str(error).splitlines()[0]}") from error
            raise

    def check(self, candidate: Candidate, outputs: Sequence[Output], result: Mapping[str, Any]) -> None:
        """UsageError unless the outputs are all there, in shape and format."""
        for o in outputs:
            if o.name not in result:
                raise UsageError(f"candidate {candidate.name!r} gave outputs {', '.join(result) or 'none'}; the op has {o.name}")
            shape, dtype = tuple(result[o.name].shape), str(result[o.name].dtype).removeprefix("torch.")
            # a byte is what torch gives where it has no dtype of the format, and what kernels return for scales
            accepted = (o.format, "uint8") if get_format(o.format).storage.itemsize == 1 else (o.format,)
            if shape != o.shape or dtype not in accepted:
                raise UsageError(
                    f"candidate {candidate.name!r} output {o.name}: shape {list(shape)} of {dtype}; expected {list(o.shape)} of {o.format}"
                )

    def poisoned(self, output: Output, byte: int) -> Any:
        """A tensor for `out=` whose every byte is `byte`."""
        size = get_format(output.format).storage.itemsize
        dtype = getattr(self.torch, output.format, self.torch.uint8)
        tensor = self.torch.empty(output.shape, dtype=self.torch.uint8 if size == 1 else dtype, device=self.device)
        tensor.view(getattr(self.torch, _INTEGERS[size])).fill_(_pattern(byte, size))
        return tensor.view(dtype)

    def _settled(self, output: Output, tensor: Any, byte: int) -> Any:
        """The result with what it may leave as it was set to zero: rows that the op need not write and that still hold the fill."""
        if output.written is None:
            return tensor
        integers = self._integers(tensor.detach().clone())
        rest = integers.view(-1, integers.shape[-1])[output.written :]
        rest[rest == _pattern(byte, rest.element_size())] = 0
        return integers.view(tensor.dtype)

    def leave_poison(self, outputs: Iterable[Output], byte: int) -> None:
        """Fill and free a block of each output's size: what a kernel allocates next gets those bytes."""
        held = [self.poisoned(o, byte) for o in outputs]
        del held

    def result(self, output: Output, tensors: list[Any]) -> Result:
        """The distinct results of runs on outputs filled with POISONS in turn, and the elements that kept the fill of both."""
        integers = [self._integers(t.detach()) for t in tensors]
        distinct: list[Any] = []
        for t in integers:
            if not any(self.torch.equal(t, d) for d in distinct):
                distinct.append(t)
        unwritten = 0
        if len(integers) > 1:
            size = integers[0].element_size()
            first, second = ((t == _pattern(p, size)) for t, p in zip(integers, POISONS, strict=False))
            unwritten = int((first & second).sum())
        hosts: list[Future[Codes]] = [self.to_host(t, output.format) for t in distinct]
        return Result(output.name, output.format, output.shape, tuple(hosts), unwritten)


def _pattern(byte: int, size: int) -> int:
    """The integer whose every byte is `byte`, as the signed (1 byte: unsigned) integer torch holds."""
    value = int.from_bytes(bytes([byte] * size), "little")
    return value if size == 1 or value < 1 << (8 * size - 1) else value - (1 << (8 * size))
