"""Switches of torch that change numbers: how each is read and set.

`SWITCHES` is the one place to add a switch. `read_flags` never fails: a switch that cannot be read is null and says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accuracy_eval.backends import fp32

Reader = Callable[[Any], Any]
Writer = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Switch:
    """One switch.

    read     the value now; raises where the build has no such switch or the state is contradictory
    write    sets it; None for switches that are only recorded, or set together (the float32 precisions, by `fp32`)
    since    torch version that brought it
    changes  what it does to numbers
    fallback second way to read, used when `read` raises, and its description
    resolved values "default" is known to read back as: torch replaces "default" by its choice when it is read
    """

    name: str
    read: Reader
    write: Writer | None
    since: str
    changes: str
    fallback: tuple[str, Reader] | None = None
    resolved: tuple[str, ...] = ()


def _attribute(path: str) -> tuple[Reader, Writer]:
    """Reader and writer of `torch.<path>`."""
    *parents, last = path.split(".")

    def owner(torch: Any) -> Any:
        for name in parents:
            torch = getattr(torch, name)
        return torch

    return lambda torch: getattr(owner(torch), last), lambda torch, value: setattr(owner(torch), last, value)


def _reduced(kind: str) -> tuple[Reader, Writer]:
    """Reduced-precision reductions: a pair (allowed, split-K allowed) from torch 2.10 on, one value before."""
    name = f"allow_{kind}_reduced_precision_reduction"

    def read(torch: Any) -> list[bool]:
        matmul = torch.backends.cuda.matmul
        try:
            split = bool(getattr(matmul, f"{name}_split_k"))
        except AttributeError:
            return [bool(getattr(matmul, name))]
        return [bool(getattr(matmul, name)), split]

    def write(torch: Any, value: list[bool]) -> None:
        setattr(torch.backends.cuda.matmul, name, tuple(value) if len(value) > 1 else value[0])

    return read, write


def _sdp(kind: str) -> tuple[Reader, Writer]:
    def read(torch: Any) -> bool:
        return bool(getattr(torch.backends.cuda, f"{kind}_sdp_enabled")())

    def write(torch: Any, value: bool) -> None:
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(value)

    return read, write


def _library(function: str) -> tuple[Reader, Writer]:
    """A preferred library: torch.backends.cuda.<function>(), an enumeration; recorded by the name of its member."""

    def read(torch: Any) -> str:
        return _enum_name(getattr(torch.backends.cuda, function)())

    def write(torch: Any, value: str) -> None:
        getattr(torch.backends.cuda, function)(value)

    return read, write


def _enum_name(member: Any) -> str:
    return str(getattr(member, "name", member)).rsplit(".", 1)[-1].lower()


def _read_deterministic(torch: Any) -> list[bool]:
    return [bool(torch.are_deterministic_algorithms_enabled()), bool(torch.is_deterministic_algorithms_warn_only_enabled())]


def _write_deterministic(torch: Any, value: list[bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _autocast(device: str) -> tuple[Reader, Writer]:
    def write(torch: Any, value: bool) -> None:
        torch.set_autocast_enabled(device, value)

    return lambda torch: bool(torch.is_autocast_enabled(device)), write


def _reads_flushed(torch: Any) -> bool:
    """Whether this thread flushes subnormals: torch has a setter only, so ask the arithmetic."""
    return bool((torch.full((1,), 2.0**-149, dtype=torch.float32, device="cpu") * 1.0 == 0).item())


def _sets_flushed(torch: Any, value: bool) -> None:
    torch.set_flush_denormal(value)


def _fp32(backend: str, operation: str) -> Reader:
    return lambda torch: fp32.effective(torch, backend, operation)


def _by_getter(backend: str, operation: str) -> tuple[str, Reader]:
    return (
        f'torch._C._get_fp32_precision_getter("{backend}", "{operation}") == "tf32"',
        lambda t: fp32.effective(t, backend, operation) == "tf32",
    )


def _only(read: Reader) -> tuple[Reader, None]:
    return read, None


_ALL_SWITCHES = (
    Switch("float32_matmul_precision", lambda t: t.get_float32_matmul_precision(), None, "1.12",
           "TF32 (bfloat16 on a CPU) in float32 matmul", ("stored value, new settings set aside", lambda t: fp32.capture(t).matmul)),
    Switch("cuda.matmul.allow_tf32", lambda t: bool(t.backends.cuda.matmul.allow_tf32), None, "1.7", "TF32 in float32 matmul",
           _by_getter("cuda", "matmul")),
    Switch("cudnn.allow_tf32", lambda t: bool(t.backends.cudnn.allow_tf32), None, "1.7", "TF32 in convolutions and recurrent layers",
           _by_getter("cuda", "conv")),
    *(
        Switch(f"{library}.{operation}.fp32_precision", _fp32(backend, operation), None, "2.9", f"float32 {operation} in {library}")
        for library, backend, operation in (
            ("cuda", "cuda", "matmul"), ("cudnn", "cuda", "conv"), ("cudnn", "cuda", "rnn"),
            ("mkldnn", "mkldnn", "matmul"), ("mkldnn", "mkldnn", "conv"), ("mkldnn", "mkldnn", "rnn"),
        )
    ),
    Switch("cuda.matmul.allow_fp16_reduced_precision_reduction", *_reduced("fp16"), "1.10",
           "float16 partial sums (allowed, split-K allowed)"),
    Switch("cuda.matmul.allow_bf16_reduced_precision_reduction", *_reduced("bf16"), "1.13",
           "bfloat16 partial sums (allowed, split-K allowed)"),
    Switch("cuda.matmul.allow_fp16_accumulation", *_attribute("backends.cuda.matmul.allow_fp16_accumulation"), "2.7",
           "float16 accumulator"),
    Switch("cpu.allow_fp16_reduced_precision_reduction", lambda t: bool(t._C._get_cpu_allow_fp16_reduced_precision_reduction()),
           lambda t, v: t._C._set_cpu_allow_fp16_reduced_precision_reduction(v), "2.6", "float16 sums in CPU products"),
    Switch("preferred_blas_library", *_library("preferred_blas_library"), "2.3", "which library computes a matmul"),
    Switch("default_blas_library", lambda t: _enum_name(t._C._get_blas_default_backend()), None, "2.12",
           "what 'default' means on this device"),
    Switch("preferred_linalg_library", *_library("preferred_linalg_library"), "1.11", "which library factorises"),
    Switch("preferred_rocm_fa_library", *_library("preferred_rocm_fa_library"), "2.7", "which library computes attention on ROCm",
           resolved=("aotriton",)),
    Switch("deterministic_algorithms", _read_deterministic, _write_deterministic, "1.8", "order of reductions (enabled, warn only)"),
    Switch("deterministic.fill_uninitialized_memory", *_attribute("utils.deterministic.fill_uninitialized_memory"), "2.2",
           "fills fresh tensors, which would hide elements never written"),
    Switch("cudnn.enabled", *_attribute("backends.cudnn.enabled"), "1.0", "convolution by cuDNN (MIOpen) or as a matmul"),
    Switch("cudnn.benchmark", *_attribute("backends.cudnn.benchmark"), "1.0", "algorithm chosen by timing"),
    Switch("cudnn.deterministic", *_attribute("backends.cudnn.deterministic"), "1.0", "only deterministic algorithms"),
    Switch("miopen.immediate", *_attribute("backends.miopen.immediate"), "2.9", "algorithm chosen without search"),
    Switch("mkldnn.enabled", *_only(lambda t: bool(t.backends.mkldnn.enabled)), "1.0", "CPU products by oneDNN"),
    Switch("mkldnn.deterministic", *_attribute("backends.mkldnn.deterministic"), "2.6", "only deterministic CPU algorithms"),
    *(Switch(f"sdp.{kind}", *_sdp(kind), since, f"attention by {kind}")
      for kind, since in (("flash", "2.0"), ("mem_efficient", "2.0"), ("math", "2.0"), ("cudnn", "2.5"))),
    Switch("sdp.allow_fp16_bf16_reduction_math", lambda t: bool(t.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()),
           lambda t, v: t.backends.cuda.allow_fp16_bf16_reduction_math_sdp(v), "2.5", "16-bit intermediates in attention by math"),
    Switch("tunable.enabled", lambda t: bool(t.cuda.tunable.is_enabled()), lambda t, v: t.cuda.tunable.enable(v), "2.3",
           "matmul kernel chosen by timing"),
    Switch("tunable.tuning_enabled", *_only(lambda t: bool(t.cuda.tunable.tuning_is_enabled())), "2.3", "new kernels are timed"),
    Switch("autocast.cuda", *_autocast("cuda"), "1.6", "operands cast to 16 bits"),
    Switch("autocast.cpu", *_autocast("cpu"), "1.10", "operands cast to 16 bits"),
    Switch("cpu.flush_denormal", _reads_flushed, _sets_flushed, "0.4", "subnormals become zero"),
)  # fmt: skip

SWITCHES: dict[str, Switch] = {switch.name: switch for switch in _ALL_SWITCHES}


def read_flags(torch: Any) -> dict[str, Any]:
    """Every switch by name, JSON data; null where it cannot be read.

    Two further keys: `readings`, for values read by another way than the usual, how; `unavailable`, for nulls, why.
    """
    values: dict[str, Any] = {}
    readings: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for switch in SWITCHES.values():
            try:
                values[switch.name], how = _read(switch, torch)
            except Exception as error:  # noqa: BLE001 - a record with a hole is worth more than no record
                values[switch.name], unavailable[switch.name] = None, reason(error)
            else:
                readings |= {switch.name: how} if how else {}
    return {**values, "readings": readings, "unavailable": unavailable}


def _read(switch: Switch, torch: Any) -> tuple[Any, str]:
    """A switch's value, and how it was read where that is another way than the usual; raises what the usual way raised."""
    try:
        return switch.read(torch), ""
    except Exception as error:
        if switch.fallback:
            how, read = switch.fallback
            try:
                return read(torch), how
            except Exception as second:  # noqa: BLE001 - the first error is the one to tell
                error.add_note(str(second))
        raise


def reason(error: BaseException) -> str:
    """One line of an exception, for a record."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
