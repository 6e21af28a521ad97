"""Facts about the host a run happened on: processor, system, Python, numpy, environment, source. No torch, no GPU.

Each function reads one group and may raise; `platform` turns a raise into nulls with a reason. `root` and `environ` are
arguments so that any machine can be read from a folder of recorded files.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import platform as system
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

# Variables that change which kernel runs or how it rounds. Captured wholesale by prefix.
ENVIRONMENT_PREFIXES = (
    "CUDA_", "CUBLAS", "CUDNN", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "HIP_", "HIPBLAS", "ROCBLAS", "ROCR_", "ROC_", "HSA_",
    "MIOPEN_", "AMD_", "AMDGCN_", "GPU_", "TENSILE_", "TRITON_", "AOTRITON_", "FLASH_ATTENTION_", "NVTE_", "AITER_", "VLLM_", "MKL_",
    "OMP_", "KMP_", "ONEDNN_", "DNNL_", "OPENBLAS_", "ATEN_", "GOMP_", "LD_PRELOAD", "NUMBA_", "NPY_", "DISABLE_ADDMM_",
)  # fmt: skip
SECRET = re.compile(r"TOKEN|SECRET|KEY|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_USERINFO = re.compile(r"://[^/@\s]*@")  # a password inside an address

# Instruction set extensions that change which CPU kernel runs; x86 names, then Arm's.
ISA_FLAGS = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimdhp", "asimddp", "asimdfhm", "sve", "sve2", "bf16", "i8mm", "sme",
)  # fmt: skip


def processor(root: Path) -> dict[str, Any]:
    """cpu_model, cpu_vendor, cpu_isa (space-separated, in a fixed order), cpu_count (visible to this process)."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip().lower(), value.strip())
            elif fields:
                break  # one processor is enough
    flags = set(fields.get("flags", fields.get("features", "")).split())
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu_model": fields.get("model name") or _arm_model(fields) or system.processor() or None,
        "cpu_vendor": fields.get("vendor_id") or fields.get("cpu implementer"),
        "cpu_isa": " ".join(flag for flag in ISA_FLAGS if flag in flags) if flags else None,
        "cpu_count": len(affinity(0)) if affinity else os.cpu_count(),
    }


def _arm_model(fields: Mapping[str, str]) -> str | None:
    part = fields.get("cpu part")
    return f"arm {fields.get('cpu implementer', '?')}:{part}" if part else None


def operating_system(root: Path) -> dict[str, Any]:
    """os, kernel, libc, machine, python."""
    release: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (root / "etc/os-release").read_text(errors="replace").splitlines():
            name, _, value = line.partition("=")
            release[name] = value.strip().strip('"')
    return {
        "os": release.get("PRETTY_NAME") or system.system(),
        "kernel": system.release(),
        "libc": " ".join(system.libc_ver()).strip() or None,
        "machine": system.machine(),
        "python": f"{system.python_implementation()} {system.python_version()}",
    }


def hostname_hash(name: str | None = None) -> str:
    """12 hex digits that tell hosts apart without naming them."""
    return hashlib.sha256((system.node() if name is None else name).encode()).hexdigest()[:12]


def container(root: Path, environ: Mapping[str, str]) -> str | None:
    """What the process seems to run inside: kubernetes, docker, podman, apptainer, gvisor, containerd; None for no sign of any."""
    with contextlib.suppress(OSError):
        if "gVisor" in (root / "proc/version").read_text(errors="replace"):
            return "gvisor"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    with contextlib.suppress(OSError):
        text = (root / "proc/1/cgroup").read_text(errors="replace")
        return next((name for mark, name in _CGROUPS if mark in text), None)
    return None


_CGROUPS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("containerd", "containerd"), ("lxc", "lxc"))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that can change numbers, by name. Never one whose name looks like a secret, never a password in an address."""
    return {
        name: _USERINFO.sub("://", value)
        for name, value in sorted(environ.items())
        if name.startswith(ENVIRONMENT_PREFIXES) and not SECRET.search(name)
    }


def numpy_build() -> dict[str, Any]:
    """numpy_version, numpy_blas ("scipy-openblas 0.3.30"), numpy_threadpools (where threadpoolctl is installed)."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {}) if isinstance(config, dict) else {}
    pools = None
    with contextlib.suppress(ImportError):
        threadpoolctl = importlib.import_module("threadpoolctl")
        pools = "; ".join(
            f"{pool.get('internal_api')} {pool.get('version')} {pool.get('architecture', '')} threads {pool.get('num_threads')}"
            for pool in threadpoolctl.threadpool_info()
        )
    return {
        "numpy_version": np.__version__,
        "numpy_blas": " ".join(str(blas[key]) for key in ("name", "version") if blas.get(key)) or None,
        "numpy_threadpools": pools or None,
    }


PACKAGES = (
    "numba",
    "ml_dtypes",
    "h5py",
    "triton",
    "pytorch-triton-rocm",
    "triton-rocm",
    "aiter",
    "transformer-engine",
    "torchao",
    "flash-attn",
    "jax",
    "jaxlib",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def packages() -> dict[str, str]:
    """Versions of installed packages that can compute a case, by distribution name."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def checkout() -> Path | None:
    """The source folder this package runs from, if it is one: a pyproject.toml of its own name beside the package."""
    folder = Path(__file__).resolve().parents[2]
    with contextlib.suppress(OSError):
        if re.search(r'^name\s*=\s*"accuracy-eval"', (folder / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE):
            return folder
    return None


def git_commit(folder: Path | None) -> str | None:
    """Commit checked out in `folder` (40 hex digits), read from git's files: loose or packed references, linked worktrees too."""
    if folder is None or not (folder / ".git").exists():
        return None
    git = folder / ".git"
    if git.is_file():
        git = (folder / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()).resolve()
    common = git
    with contextlib.suppress(OSError):
        common = (git / (git / "commondir").read_text(encoding="utf-8").strip()).resolve()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head
    reference = head.removeprefix("ref:").strip()
    for base in (git, common):
        with contextlib.suppress(OSError):
            return (base / reference).read_text(encoding="utf-8").strip()
    with contextlib.suppress(OSError):
        for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
            commit, _, name = line.strip().partition(" ")
            if name == reference:
                return commit
    return None
