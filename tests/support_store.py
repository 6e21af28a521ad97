"""Records and codes for tests of dump files."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.formats import FORMATS
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.store import write_part

INFO = {"suite": "core", "suite_digest": "ab" * 32, "producer": "accuracy-eval 0.1.0"}
PLATFORM = {"vendor": "amd", "arch": "gfx942", "driver": None}


def sha256(codes: np.ndarray[Any, Any]) -> str:
    """The digest by the plainest route: little-endian bytes in C order."""
    return hashlib.sha256(codes.astype(codes.dtype.newbyteorder("<")).tobytes()).hexdigest()


def codes_of(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    f = FORMATS[name]
    return np.random.default_rng(seed).integers(0, 1 << f.bits, shape, np.uint64).astype(f.storage)


def tensor(name: str, fmt: str, codes: np.ndarray[Any, Any], role: str = "output") -> TensorRecord:
    return TensorRecord(name, role, fmt, tuple(codes.shape), sha256(codes))


def record(
    m: int = 4, n: int = 6, *, seed: int = 0, candidate: str = "default", fmt: str = "bfloat16"
) -> tuple[CaseRecord, dict[str, Any]]:
    """A GEMM case whose output and one source are described, the output's codes beside it."""
    case = Case("gemm", (("m", m), ("n", n), ("k", 8)), "nt", fmt, seed=seed)
    d = codes_of(fmt, (m, n), seed)
    source = tensor("a", "float32", codes_of("float32", (m, 8), seed), "source")
    made = CaseRecord(f"gemm.m{m}.n{n}.k8.nt.{fmt}.normal.s{seed}", case, candidate, "done", "", (tensor("d", fmt, d), source), "fp32acc")
    return made, {"d": d}


def write(folder: Path, *, info: dict[str, Any] | None = None, platform: dict[str, Any] | None = None, **options: Any) -> Path:
    made, arrays = record(**options)
    return write_part(folder, made, arrays, info=info or INFO, platform=platform or PLATFORM)


def unsupported(reason: str = "no fp8 on this device") -> CaseRecord:
    made, _ = record(8, 8)
    return dataclasses.replace(made, id="gemm.m8.n8.k8.nt.fp8_e4m3.normal.s0", status="unsupported", reason=reason, tensors=())
