"""Switches of torch that change numbers: read for the record, set by the case, put back exactly.

`SWITCHES` is the one place to add a switch. `read_flags` never fails: a switch that cannot be read is null and says why.
`case_flags` sets every switch to what a case means and inherits nothing: not an earlier `set_float32_matmul_precision`, not an
ambient autocast, not a flushed subnormal mode. Afterwards everything is as it was, contradictory states included.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from accuracy_eval.backends import fp32
from accuracy_eval.errors import AccuracyEvalError, UnsupportedCase, unknown

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

Blas = Literal["default", "cublas", "cublaslt", "hipblas", "hipblaslt", "rocblas", "ck"]
Sdp = Literal["flash", "mem_efficient", "math", "cudnn"]
_BLAS = {
    "default": "default",
    "cublas": "cublas",
    "hipblas": "cublas",
    "rocblas": "cublas",
    "cublaslt": "cublaslt",
    "hipblaslt": "cublaslt",
    "ck": "ck",
}
_SDP = ("flash", "mem_efficient", "math", "cudnn")
WORKSPACES = (":4096:8", ":16:8")  # CUBLAS_WORKSPACE_CONFIG values under which cuBLAS is reproducible


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
                values[switch.name] = switch.read(torch)
            except Exception as error:  # noqa: BLE001 - a record with a hole is worth more than no record
                values[switch.name] = None
                if switch.fallback:
                    try:
                        values[switch.name] = switch.fallback[1](torch)
                        readings[switch.name] = switch.fallback[0]
                        continue
                    except Exception as second:  # noqa: BLE001 - as above
                        error.add_note(str(second))
                unavailable[switch.name] = reason(error)
    return {**values, "readings": readings, "unavailable": unavailable}


def reason(error: BaseException) -> str:
    """One line of an exception, for a record."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def overruled(environ: Mapping[str, str], *, tf32: bool) -> list[str]:
    """Environment variables that win over the switches against a case's meaning, one sentence each."""
    found = []
    override = environ.get("NVIDIA_TF32_OVERRIDE")
    if override == "0" and tf32:
        found.append("NVIDIA_TF32_OVERRIDE=0 forbids TF32 in every NVIDIA library")
    if override == "1" and not tf32:
        found.append("NVIDIA_TF32_OVERRIDE=1 forces TF32 in every NVIDIA library")
    emulation = environ.get("HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32", "-1")
    if emulation == "0" and tf32:
        found.append("HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32=0 computes TF32 matmul in float32")
    if environ.get("ONEDNN_DEFAULT_FPMATH_MODE", environ.get("DNNL_DEFAULT_FPMATH_MODE", "STRICT")).upper() not in ("STRICT", ""):
        found.append("ONEDNN_DEFAULT_FPMATH_MODE lowers the precision of float32 matmul on the CPU")
    return found


@contextmanager
def case_flags(
    torch: Any,
    *,
    tf32: bool,
    fp16_reduced: bool = False,
    bf16_reduced: bool = False,
    fp16_accumulation: bool = False,
    deterministic: bool = False,
    blas: Blas | None = None,
    sdp: Sdp | None = None,
    device: str = "cpu",
) -> Iterator[None]:
    """Set every switch to the case's meaning for the length of the block, then put everything back.

    tf32               TF32 in float32 matmul, convolution and recurrent layers
    fp16_reduced, bf16_reduced   16-bit partial sums between the parts of a split reduction (split-K itself stays allowed)
    fp16_accumulation  float16 accumulator inside the product
    deterministic      deterministic algorithms, and an error where there is none
    blas               library that must compute a matmul; None is "default", the framework's choice
    sdp                the one attention implementation allowed; None allows all
    device             where the case runs; decides which demands must hold

    Raises UnsupportedCase when a demanded value did not take. Switches a build does not have are left out: it then has
    neither the behaviour. Switches are process-wide: do not nest from several threads.
    """
    library = _BLAS.get(blas or "default")
    if library is None:
        raise unknown("BLAS library", blas, _BLAS)
    if sdp is not None and sdp not in _SDP:
        raise unknown("attention implementation", sdp, _SDP)
    on_gpu = str(device).startswith("cuda")
    _check_demands(torch, blas, library, deterministic and on_gpu, on_gpu)
    wanted: dict[str, Any] = {
        "cuda.matmul.allow_fp16_reduced_precision_reduction": [fp16_reduced, True],
        "cuda.matmul.allow_bf16_reduced_precision_reduction": [bf16_reduced, True],
        "cuda.matmul.allow_fp16_accumulation": fp16_accumulation,
        "cpu.allow_fp16_reduced_precision_reduction": False,
        "preferred_blas_library": library,
        "preferred_linalg_library": "default",
        "preferred_rocm_fa_library": "default",
        "deterministic_algorithms": [deterministic, False],
        "deterministic.fill_uninitialized_memory": False,
        "cudnn.enabled": True,
        "cudnn.benchmark": False,
        "cudnn.deterministic": deterministic,
        "miopen.immediate": False,
        "mkldnn.deterministic": deterministic,
        **{f"sdp.{kind}": sdp in (None, kind) for kind in _SDP},
        "sdp.allow_fp16_bf16_reduction_math": False,
        "tunable.enabled": False,
        "autocast.cuda": False,
        "autocast.cpu": False,
        "cpu.flush_denormal": False,
    }
    before: dict[str, Any] = {}
    precision = fp32.capture(torch)
    body: BaseException | None = None
    try:
        fp32.apply(torch, tf32=tf32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, value in wanted.items():
                _set(torch, SWITCHES[name], value, before)
        yield
    except BaseException as error:
        body = error
        raise
    finally:
        failures = _restore(torch, before, precision)
        if failures:
            text = "switches could not be put back, later results in this process are not to be trusted: " + "; ".join(failures)
            if body is None:
                raise AccuracyEvalError(text)
            body.add_note(text)


def _check_demands(torch: Any, blas: str | None, library: str, deterministic_gpu: bool, on_gpu: bool) -> None:
    """Refuse what the build can be known not to do, before anything is touched."""
    hip = getattr(torch.version, "hip", None)
    if library != "default":
        if not on_gpu:
            raise UnsupportedCase(f"BLAS library {blas!r} cannot be pinned for device cpu: the switch acts on GPUs only")
        if library == "ck" and hip is None:
            raise UnsupportedCase("BLAS library 'ck' exists in ROCm builds of torch only; this one is not")
        if str(blas).startswith(("hip", "roc")) and hip is None:
            raise UnsupportedCase(f"BLAS library {blas!r} exists in ROCm builds of torch only; this one is not")
        if str(blas).startswith("cu") and hip is not None:
            raise UnsupportedCase(f"BLAS library {blas!r} does not exist in a ROCm build of torch; name rocblas or hipblaslt")
    if deterministic_gpu and hip is None and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in WORKSPACES:
        raise UnsupportedCase(
            f"deterministic matmul needs CUBLAS_WORKSPACE_CONFIG set to one of {', '.join(WORKSPACES)} before the process starts; "
            f"found {os.environ.get('CUBLAS_WORKSPACE_CONFIG')!r}"
        )


def _set(torch: Any, switch: Switch, value: Any, before: dict[str, Any]) -> None:
    """Set one switch and check that it took; its old value goes into `before` first."""
    assert switch.write is not None, switch.name
    try:
        old = switch.read(torch)
    except Exception:  # noqa: BLE001 - the build has no such switch, hence not what it does either
        return
    if isinstance(old, list) and isinstance(value, list):
        value = value[: len(old)]
    if old == value or (value == "default" and old in switch.resolved):
        return
    before[switch.name] = old
    try:
        switch.write(torch, value)
        found = switch.read(torch)
    except Exception as error:
        raise UnsupportedCase(f"{switch.name} could not be set from {old!r} to {value!r}: {reason(error)}") from error
    if found != value and value != "default":  # what "default" reads back as is torch's choice
        raise UnsupportedCase(f"{switch.name} did not take: asked for {value!r}, found {found!r} afterwards")


def _restore(torch: Any, before: Mapping[str, Any], precision: fp32.Fp32State) -> list[str]:
    """Write every old value back, newest first; all are tried. Returns what failed."""
    failures = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, old in reversed(list(before.items())):
            switch = SWITCHES[name]
            assert switch.write is not None, name
            try:
                switch.write(torch, old)
                found = switch.read(torch)
            except Exception as error:  # noqa: BLE001 - the others must still be restored
                failures.append(f"{name} to {old!r} ({reason(error)})")
                continue
            if found != old:
                failures.append(f"{name} to {old!r} (found {found!r})")
    try:
        fp32.restore(torch, precision)
    except Exception as error:  # noqa: BLE001 - as above
        failures.append(f"float32 precisions ({reason(error)})")
    return failures
