"""The switches of torch as a case means them, put back exactly.

`case_flags` sets every switch to what a case means and inherits nothing: not an earlier `set_float32_matmul_precision`, not an
ambient autocast, not a flushed subnormal mode. Afterwards everything is as it was, contradictory states included.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from accuracy_eval.backends import fp32
from accuracy_eval.backends.switches import SWITCHES, Switch, reason
from accuracy_eval.errors import AccuracyEvalError, UnsupportedCase, unknown

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
    wanted = _wanted(
        library, sdp, deterministic=deterministic, fp16_reduced=fp16_reduced, bf16_reduced=bf16_reduced,
        fp16_accumulation=fp16_accumulation,
    )  # fmt: skip
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


def _wanted(
    library: str, sdp: str | None, *, deterministic: bool, fp16_reduced: bool, bf16_reduced: bool, fp16_accumulation: bool
) -> dict[str, Any]:
    """The value of every switch but the float32 precisions, by its name in SWITCHES."""
    return {
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
