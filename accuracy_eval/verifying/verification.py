"""verify: what is asked, run and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from accuracy_eval import inputs as generator
from accuracy_eval.arrays import as_coded
from accuracy_eval.backends.base import Result
from accuracy_eval.backends.calling import call, expected
from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id
from accuracy_eval.checking import Comparison
from accuracy_eval.errors import UsageError, VerdictError, unknown
from accuracy_eval.fitting import Truth, fitted, truths_of
from accuracy_eval.formats import Codes, Values, get_family, get_format
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import SideTensor
from accuracy_eval.messages import sides_message
from accuracy_eval.ops.on_arrays import encoding_of
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output, Panel, Reference, row_blocks, rows_and_columns
from accuracy_eval.quantize import get_recipe
from accuracy_eval.records import Case, Coded, Diagnosis, OptionValue, Verdict

LABEL = "actual"
USUAL = "normal"  # class of operands that are not seeded, too
FUNCTION = "function"  # names what has no name, and the stream of seeded operands where the reference is a function


@dataclass(frozen=True)
class Seeded:
    """An operand to be made: see `seeded`."""

    shape: tuple[int, ...]
    dtype: str
    input_class: str

    def codes(self, stream: str, name: str, seed: int) -> Coded:
        """`stream` is the op that is the reference, or FUNCTION: never the name of what is verified, so that a renamed kernel sees the
        same data."""
        fmt = get_format(self.dtype).name
        return Coded(generator.generate(stream, name, self.shape, self.input_class, seed, fmt), fmt)


def seeded(shape: tuple[int, ...], dtype: Any = "float32", input_class: str = "normal") -> Seeded:
    """An input for `verify`, made from its name, the seed and the op it is judged by: the same bits on every machine.

    dtype        any operand format: "float32", "bfloat16", "float8_e4m3fn", …; or the dtype of that name of torch, numpy, ml_dtypes
    input_class  "normal", "outlier", "cancellation", … (accuracy-eval list inputs). UsageError for unknown names.
    """
    if input_class not in generator.INPUT_CLASSES:
        raise unknown("input class", input_class, generator.INPUT_CLASSES, listed="inputs")
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype).removeprefix("torch."))
    return Seeded(tuple(int(s) for s in shape), get_format(name).name, input_class)


@dataclass(frozen=True)
class Verification:
    """What `verify` found: a Comparison for each output and gradient, and inputs that the function changed in place."""

    comparisons: Mapping[str, Comparison]
    changed: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of all; "FAIL" for an input that was changed, "INCONCLUSIVE" where nothing was judged."""
        found = [c.side.verdict for c in self.comparisons.values()] or [Verdict.INCONCLUSIVE]
        return str(max([*found, *(Verdict.FAIL for _ in self.changed)], key=lambda v: v.severity))

    @property
    def passed(self) -> bool:
        return self.verdict in (Verdict.PASS, Verdict.WARN)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Those of every comparison, in its order."""
        return tuple(d for c in self.comparisons.values() for d in c.diagnoses)

    @property
    def message(self) -> str:
        """The text a person reads, what failed first and in full; each comparison's own `message` is the whole."""
        notes = [f"FAIL: the function changed its input {name!r} in place" for name in self.changed]
        return "\n".join([*notes, *sides_message((c.result, c.side) for c in self.comparisons.values())])

    def raise_for_verdict(self) -> None:
        """VerdictError with the message unless everything passed."""
        if not self.passed:
            raise VerdictError(self.message)

    def __repr__(self) -> str:
        return f"<Verification {self.message}>"


def verify(
    fn: Callable[..., Any],
    *,
    reference: str | Callable[..., Any],
    inputs: Mapping[str, Any],
    grad: bool = True,
    layout: str = "",
    options: Mapping[str, OptionValue] | None = None,
    recipe: str = "",
    contract: str = "",
    gates: str = "",
    seed: int = 0,
    repeats: int = 2,
    device: str = "",
) -> Verification:
    """Run `fn` on clones of the inputs, forward and (grad) backward, `repeats` times, and judge every output and gradient.

    fn          called with tensors in the order of `inputs`; returns a tensor, a tuple, or a dict by name
    reference   an op (inputs by its operand names, as stored; options as in `check`, and sizes that no input shows, as {"k": 8} of topk),
                or a function of float64 tensors
    layout      of the op's operands; "" is nn for products, and for others an error that says what fits
    inputs      tensors, or `seeded(shape, dtype, input_class)`
    recipe      how fn quantises its operands: decides the gate where the reference is a function
    contract    what the call promises; "" is the op's default
    gates       profile; "" is "default" for an op, "turbo" for a function
    device      "cpu", "cuda", "cuda:N"; "" is that of the first tensor given, else a GPU if there is one
    UsageError for inputs that do not fit the op or a function that returns something else; what `fn` raises passes through.
    """
    backend = _backend(device, inputs)
    try:
        stream = get_op(reference).name if isinstance(reference, str) else FUNCTION
        given = {n: v.codes(stream, n, seed) if isinstance(v, Seeded) else as_coded(v, f"input {n!r}") for n, v in inputs.items()}
        tensors = {n: _on_device(backend, inputs[n], c) for n, c in given.items()}
        asked = _Asked(given, _classes(inputs), contract, grad, seed)
        if isinstance(reference, str):
            task = _op_task(reference, asked, layout, dict(options or {}))
        else:
            first = call(backend, fn, tensors, {}, repeats=1).results
            task = _function_task(backend.torch, _label(fn), first, reference, asked, recipe)
        upstream = {n: _on_device(backend, None, c) for n, c in task.upstream.items()}
        called = call(backend, fn, tensors, upstream, names=task.names, repeats=repeats)
        profile = load_profile(gates or task.profile)
        found = {r.name: _judged(r, repeats, profile, task.truths[r.name]) for r in called.results if r.name in task.truths}
        return Verification(found, called.changed)
    finally:
        backend.close()


def _backend(device: str, inputs: Mapping[str, Any]) -> TorchBackend:
    found = next((str(v.device) for v in inputs.values() if hasattr(v, "device") and hasattr(v, "detach")), "")
    backend = open_backend(device or found or "auto")
    if not isinstance(backend, TorchBackend):
        raise UsageError("verify runs torch functions, and torch is not installed here; check() judges arrays without it")
    return backend


def _on_device(backend: TorchBackend, given: Any, coded: Coded) -> Any:
    """The caller's own tensor where it is one, else a tensor of these codes."""
    return given.detach().to(backend.device) if hasattr(given, "detach") else backend.tensors.to_device(np.array(coded.codes), coded.format)


def _label(fn: Callable[..., Any]) -> str:
    name = str(getattr(fn, "__name__", type(fn).__name__))
    return FUNCTION if name == "<lambda>" else name


def _classes(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {n: v.input_class for n, v in inputs.items() if isinstance(v, Seeded)}


@dataclass(frozen=True)
class _Asked:
    """What the caller asks for whatever the reference is: the operands, classes of those that are seeded, what the call promises,
    gradients or none, the seed."""

    given: dict[str, Coded]
    classes: Mapping[str, str]
    contract: str
    grad: bool
    seed: int

    @property
    def input_class(self) -> str:
        """The class whose gates apply: of several the first that is not the usual one."""
        return next((c for c in self.classes.values() if c != USUAL), USUAL)

    def titled(self, truth: Truth) -> Truth:
        """With the case's id, which says of several classes which operand has which: "a-outlier+b-normal"."""
        if len(set(self.classes.values())) < 2:
            return truth
        named = replace(truth.subject.case, input_class="+".join(f"{n}-{c}" for n, c in self.classes.items()))
        return replace(truth, subject=replace(truth.subject, name=case_id(named)))


@dataclass(frozen=True)
class _Task:
    """names: the outputs the function must give, in order, () for any; upstream: gradients of outputs; truths by output or gradient."""

    names: tuple[str, ...]
    profile: str
    upstream: Mapping[str, Coded]
    truths: Mapping[str, Truth]


def _op_task(op: str, asked: _Asked, layout: str, options: dict[str, OptionValue]) -> _Task:
    """The reference is an op of the registry: its forward case, and its backward one where it has that."""
    spec, given = get_op(op), asked.given
    encoding = encoding_of(*(c.format for c in given.values()))
    forward = replace(fitted(spec, given, layout, options, encoding), input_class=asked.input_class, seed=asked.seed)
    upstream: dict[str, Coded] = {}
    truths = truths_of(spec, forward, given, asked.contract, encoding)
    names = tuple(truths)
    if asked.grad and "bwd" in spec.directions:
        backward = replace(forward, direction="bwd")
        for o in spec.operands(backward, encoding):
            if o.name.startswith("grad_"):
                upstream[o.name.removeprefix("grad_")] = Seeded(o.shape, o.format, "normal").codes(spec.name, o.name, asked.seed)
        more = {f"grad_{n}": c for n, c in upstream.items()}
        truths |= truths_of(spec, backward, {**given, **more}, asked.contract, encoding)
    return _Task(names, "default", upstream, {n: asked.titled(t) for n, t in truths.items()})


def _function_task(
    torch: Any, label: str, first: tuple[Result, ...], reference: Callable[..., Any], asked: _Asked, recipe: str
) -> _Task:  # fmt: skip
    """The reference is a function of float64 tensors: outputs are named, and have formats, as in the first run of the function."""
    given, formats = asked.given, {r.name: r.format for r in first}
    upstream: dict[str, Coded] = {}
    if asked.grad and any(_differentiable(c.format) for c in given.values()):
        for r in first:
            if _differentiable(r.format):
                upstream[r.name] = Seeded(r.shape, r.format, "normal").codes(FUNCTION, f"grad_{r.name}", asked.seed)
    values = expected(torch, reference, given, upstream, tuple(formats))
    families = [get_family(c.format) for c in given.values() if get_format(c.format).kind == "float"]
    fmt = get_recipe(recipe).element if recipe else (families or ["float32"])[0]
    case = Case(label, (), format=fmt, recipe=recipe, input_class=asked.input_class, seed=asked.seed)
    truths = {}
    for name, value in values.items():
        forward = name in formats
        fmt = formats[name] if forward else given[name[1:]].format
        truth = Reference("values", fmt, tuple(value.shape), asked.contract, partial(_panels, value))
        direction = case if forward else replace(case, direction="bwd")
        truths[name] = Truth(Subject(direction, Output(name, tuple(value.shape), fmt), label, label), truth, {})
    return _Task(tuple(formats), "turbo", upstream, truths)


def _differentiable(fmt: str) -> bool:
    f = get_format(fmt)
    return f.kind == "float" and f.bits > 8


def _panels(values: Values) -> Iterator[Panel]:
    rows = values.reshape(rows_and_columns(values.shape))
    for first, end in row_blocks(values.shape):
        yield Panel(first, rows[first:end])


def _judged(result: Result, repeats: int, profile: Profile, truth: Truth) -> Comparison:
    views = [c.result().reshape(rows_and_columns(result.shape)) for c in result.codes]
    variants = tuple(partial(_rows, view) for view in views)
    contract = truth.reference.contract
    side = SideTensor(LABEL, result.format, result.shape, "", variants, contract, result.never_written, repeats=repeats)
    judged = judge_tensor(truth.subject, [side], {LABEL: truth.reference}, profile, inputs={LABEL: dict(truth.inputs)})
    return Comparison(judged.sides[0], judged)


def _rows(view: Codes, first: int, end: int) -> Codes:
    return view[first:end]
