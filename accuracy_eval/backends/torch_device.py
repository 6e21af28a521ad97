"""torch on a CUDA, ROCm or CPU device: one code path, the vendor decided by the build (torch.version.hip), never by a name."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal

from accuracy_eval.backends import flags, guards, platform
from accuracy_eval.backends.base import POISONS, Outcome, Prepared, Result, Source
from accuracy_eval.backends.candidates import Candidate, registered
from accuracy_eval.backends.certificates import Certificate, Checked, certifiable
from accuracy_eval.backends.drafts import Ahead, Draft, draft, stored_bytes
from accuracy_eval.backends.kernels import parse_kernel, record_kernels
from accuracy_eval.backends.reference import ready
from accuracy_eval.backends.tensors import Codes, Tensors
from accuracy_eval.backends.together import Together
from accuracy_eval.errors import MissingDependency, UnsupportedCase, UsageError, described, plain_text
from accuracy_eval.formats import get_format
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.relations import Fill
from accuracy_eval.ops.spec import Operand, Output
from accuracy_eval.records import Case, Coded
from accuracy_eval.threads import thread_count
from accuracy_eval.timeline import Timeline

if TYPE_CHECKING:
    from accuracy_eval.datapath.card import Call

ON_DEVICE_ELEMENTS = 1 << 18  # smaller operands are made on the host: a launch costs more than the copy
RANKS_LIMIT_S = 120.0  # a first call of a GPU library loads its kernels
MISALIGNED_OFFSET = 3  # elements
ROW_PADDING = 16  # elements added to the row stride of strided and misaligned operands


def drafting_threads() -> int:
    """Cases whose operands are made at a time, each by one thread unless it is large."""
    return max(1, min(8, thread_count() // 2))


def import_torch() -> Any:
    """The torch module. MissingDependency says what to install, or why what is installed cannot be loaded."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise _unloadable(error) from error
        raise MissingDependency(
            "this needs torch, which is not installed; install your vendor's build (or pip install 'accuracy-eval[torch]'), "
            "or use --device reference, which needs none"
        ) from error
    except (ImportError, OSError, MemoryError) as error:
        raise _unloadable(error) from error
    return torch


def _unloadable(error: BaseException) -> MissingDependency:
    return MissingDependency(
        f"torch is installed, but cannot be loaded: {described(error)}; see that python -c 'import torch' runs "
        "(a limit on memory? a build for another driver?), or use --device reference, which needs no torch"
    )


class TorchBackend:
    """Runs candidates through torch on one device ("cpu", "cuda:0"; on ROCm builds "cuda" is the AMD GPU).

    limit_s  seconds that the ranks of a case wait for each other
    """

    def __init__(self, device: str = "cpu", *, torch: Any = None, limit_s: float = RANKS_LIMIT_S) -> None:
        self.torch = torch if torch is not None else import_torch()
        self.device = device
        self.on_gpu = device != "cpu"
        if self.on_gpu and not self.torch.cuda.is_available():
            raise UsageError(f"device {device!r}: torch {self.torch.__version__} sees no GPU; allowed here: cpu, model:UNIT, reference")
        with flags.case_flags(self.torch, tf32=False, device=device):  # the record shows the switches that cases run under
            self._platform = platform.detect(self.torch, device)
        self.name = device
        self.encoding: Literal["ocp", "fnuz"] = "fnuz" if self._platform.get("fp8_encoding") == "fnuz" else "ocp"
        self._certified: tuple[Case, Certificate] | None = None
        self._together = Together("nccl" if self.on_gpu else "gloo", self.torch.cuda.device_count, limit_s)
        self.tensors = Tensors(self.torch, device)
        self._drafts = Ahead(self._draft, self._drafted_bytes, drafting_threads() if self.on_gpu else 0)

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
        self.tensors.close()

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
                self.tensors.dtype(o.format)
            if case.format == "tfloat32" and not self.on_gpu:
                raise UnsupportedCase("TF32 is a mode of GPU matrix units; this is a CPU")
        made = self._drafts.take(case)
        self.tensors.timeline = timeline = Timeline(made.timeline)
        held = {o.name: Coded(made.codes[o.name], o.format) for o in operands if o.name in made.codes}
        if recipe:
            tensors = {name: self.tensors.to_device(coded.codes, coded.format) for name, coded in made.received.items()}
            return Prepared(case, self._sources(held), tensors, self._sources(made.received), timeline)
        if ranks:  # they stay on the host until each rank has its row
            return Prepared(case, self._sources(held), held, timeline=timeline)
        relation = spec.relation(case)
        fill = relation.fill if relation else ""
        sources, placed = [], {}
        for o in operands:
            source, tensor = self._operand(case, o, made.codes.get(o.name))
            sources.append(source)
            placed[o.name] = self._place(
                tensor.transpose(-2, -1).contiguous() if o.transposed else tensor, case.input_class if case.lane == "random" else "", fill
            )
        return Prepared(case, tuple(sources), placed, timeline=timeline)

    def _draft(self, case: Case) -> Draft:
        return draft(case, self.encoding, compiled=False if self.on_gpu else None, on_device=self._makes)

    def _drafted_bytes(self, case: Case) -> int:
        operands = get_op(case.op).operands(case, self.encoding)
        return stored_bytes(o for o in operands if not (case.lane == "random" and self._makes(case, o)))

    def _makes(self, case: Case, o: Operand) -> bool:
        """Whether a random operand is made on the device."""
        if not self.on_gpu or math.prod(o.shape) < ON_DEVICE_ELEMENTS or o.domain != "any":
            return False
        from accuracy_eval.backends import torch_inputs

        return torch_inputs.supports(case.input_class, o.format)

    def _sources(self, made: Mapping[str, Coded]) -> tuple[Source, ...]:
        return tuple(self._source(name, coded) for name, coded in made.items())

    def _source(self, name: str, coded: Coded) -> Source:
        return Source(name, coded.format, coded.shape, self.tensors.digest(ready(coded.codes)), lambda: coded.codes)

    def _operand(self, case: Case, o: Operand, codes: Codes | None) -> tuple[Source, Any]:
        """An operand on the device, from its codes or made there."""
        if codes is not None:
            return self._source(o.name, Coded(codes, o.format)), self.tensors.to_device(codes, o.format)
        from accuracy_eval.backends import torch_inputs

        with self.tensors.stage("make", stored_bytes([o])):
            tensor = torch_inputs.generate(self.torch, self.device, case.op, o.name, o.shape, case.input_class, case.seed, o.format)
        host = self.tensors.to_host(tensor, o.format)
        return Source(o.name, o.format, o.shape, self.tensors.digest(host), host.result), tensor

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

    # running

    def run(self, prepared: Prepared, candidate: Candidate, *, repeats: int, kernels: bool = False, certify: bool = False) -> Outcome:
        self.tensors.timeline = timeline = Timeline()
        case, op = prepared.case, get_op(prepared.case.op)
        outputs = op.outputs(case, self.encoding)
        for o in outputs:
            if get_format(o.format).storage.itemsize > 1 or hasattr(self.torch, o.format):
                self.tensors.dtype(o.format)
        reason = candidate.filtered(case, self._platform)
        if reason:
            raise UnsupportedCase(reason)
        if op.ranks is not None:
            return self._together.run(prepared, candidate, outputs, repeats)
        certificate = self._certificate(prepared) if certify and certifiable(case) else None
        with guards.given_back(self.torch, {} if candidate.built_in else prepared.tensors) as changed:
            runs, checked = self._runs(prepared, candidate, outputs, max(1, repeats), certificate)
            names = self._kernels(candidate, prepared, outputs) if kernels else {}
        if self.on_gpu:
            self.torch.cuda.synchronize()
        # variables that beat the switches: the result stands, and the report says why it may be off
        notes: dict[str, Any] = {"overruled": flags.overruled(os.environ, tf32=case.format == "tfloat32"), "operands_changed": changed}
        results = tuple(self.result(o, [r[o.name] for r in runs]) for o in outputs)
        if certificate:
            notes["certificate"] = {"runs": len(checked), "wrong": [{"run": i, **w} for i, c in enumerate(checked) if (w := c.wrong())]}
        return Outcome(results, len(runs), {name: note for name, note in (notes | names).items() if note}, timeline)

    def _runs(
        self, prepared: Prepared, candidate: Candidate, outputs: Sequence[Output], count: int, certificate: Certificate | None
    ) -> tuple[list[dict[str, Any]], list[Checked]]:
        """The outputs of `count` runs by name, each run on another pattern; and what the certificate says of each."""
        runs: list[dict[str, Any]] = []
        checked: list[Checked] = []
        handled = stored_bytes(outputs) + sum(t.numel() * t.element_size() for t in prepared.tensors.values())
        with self._flags(prepared.case, candidate):
            for poison in islice(cycle(POISONS), count):
                out = guards.poisoned(self.torch, self.device, outputs, poison)
                guards.leave_poison(self.torch, self.device, outputs, poison)
                with self.tensors.stage("run", handled):
                    result = self.call(candidate, prepared, out)
                guards.check(candidate, outputs, result, self.device)
                if not candidate.built_in:  # a kernel may hand out the same buffer on every call
                    result = {name: t.detach().clone() for name, t in result.items()}
                runs.append({o.name: guards.settled(self.torch, o, result[o.name], poison) for o in outputs})
                if certificate:
                    checked.append(certificate.check(runs[-1]["d"]))
                del out
        return runs, checked

    def _flags(self, case: Case, candidate: Candidate) -> AbstractContextManager[None]:
        return flags.case_flags(self.torch, tf32=case.format == "tfloat32", device=self.device, **candidate.switches)

    def _certificate(self, prepared: Prepared) -> Certificate:
        """The certificate of a case's operands, made once for all candidates."""
        if self._certified is None or self._certified[0] != prepared.case:
            self._certified = prepared.case, Certificate(self.torch, prepared.case, prepared.tensors)
        return self._certified[1]

    def _kernels(self, candidate: Candidate, prepared: Prepared, outputs: Sequence[Output]) -> dict[str, Any]:
        """What the names of the kernels of one more run tell, or why there are none."""
        out = guards.poisoned(self.torch, self.device, outputs, POISONS[0])
        with self._flags(prepared.case, candidate):
            names = record_kernels(self.torch, lambda: self.call(candidate, prepared, out))
        return {"kernels": [parse_kernel(n) for n in names]} if names else {"kernels_unknown": names.reason}

    def call(self, candidate: Candidate, prepared: Prepared, out: dict[str, Any]) -> dict[str, Any]:
        """One run, under the flags that are set. UnsupportedCase where torch says that it has no such thing."""
        run = candidate.run if candidate.built_in else guards.contained(candidate, self.device)
        try:
            with warnings.catch_warnings():
                # autograd's own thread meets the GPU for the first time; it then does what the warning says
                warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
                return run(self.torch, prepared.case, prepared.tensors, out)
        except UnsupportedCase:
            raise
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            text = plain_text(error)
            if isinstance(error, NotImplementedError) or "not implemented for" in text or "not supported" in text:
                raise UnsupportedCase(f"torch {self.torch.__version__}: {text.splitlines()[0]}") from error
            raise

    def result(self, output: Output, tensors: Sequence[Any]) -> Result:
        """The distinct results of runs on outputs filled with POISONS in turn, and the elements that kept the fill of both."""
        found, unwritten = guards.distinct(self.torch, tensors)
        return Result(output.name, output.format, output.shape, tuple(self.tensors.to_host(t, output.format) for t in found), unwritten)
