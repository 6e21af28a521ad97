"""Versions of the numerical libraries loaded into this process.

Wheels carry private copies, so a library is asked only under the path found in /proc/self/maps, and only if it is loaded
already: nothing is ever loaded from here.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _four_digits(number: int) -> str:
    """130100 → 13.1.0: major·10000 + minor·100 + patch."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _cublas(library: ctypes.CDLL) -> str:
    values = []
    for kind in range(3):  # libraryPropertyType: major, minor, patch
        value = ctypes.c_int()
        if library.cublasGetProperty(kind, ctypes.byref(value)) != 0:
            raise OSError("cublasGetProperty failed")
        values.append(value.value)
    return ".".join(map(str, values))


def _cublaslt(library: ctypes.CDLL) -> str:
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return _four_digits(library.cublasLtGetVersion())


def _integer(library: ctypes.CDLL, function: str) -> int:
    """What a function with one out parameter says."""
    value = ctypes.c_int()
    if getattr(library, function)(ctypes.byref(value)) != 0:
        raise OSError(f"{function} failed")
    return value.value


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cudart(library: ctypes.CDLL) -> str:
    return _cuda_version(_integer(library, "cudaRuntimeGetVersion"))


def _cuda_driver(library: ctypes.CDLL) -> str:
    return _cuda_version(_integer(library, "cuDriverGetVersion"))


def _cudnn(library: ctypes.CDLL) -> str:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    return _four_digits(number) if number >= 10000 * 9 else f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def _hip(library: ctypes.CDLL) -> str:
    number = _integer(library, "hipRuntimeGetVersion")
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _rocblas(library: ctypes.CDLL) -> str:
    size = ctypes.c_size_t()
    if library.rocblas_get_version_string_size(ctypes.byref(size)) != 0:
        raise OSError("rocblas_get_version_string_size failed")
    text = ctypes.create_string_buffer(size.value + 1)
    if library.rocblas_get_version_string(text, size) != 0:
        raise OSError("rocblas_get_version_string failed")
    return text.value.decode()


def _miopen(library: ctypes.CDLL) -> str:
    values = [ctypes.c_size_t() for _ in range(3)]
    if library.miopenGetVersion(*(ctypes.byref(value) for value in values)) != 0:
        raise OSError("miopenGetVersion failed")
    return ".".join(str(value.value) for value in values)


def _openblas(library: ctypes.CDLL) -> str:
    for name in ("openblas_get_config", "scipy_openblas_get_config64_", "scipy_openblas_get_config"):
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            return str(function().decode())
    raise OSError("no version function")


Version = Callable[[ctypes.CDLL], str]

# File name (without lib and .so…) -> how to ask for the version; None: path and size only. hipBLASLt tells its version through
# a handle alone, which would allocate; torch's tunable validators report it.
LIBRARIES: dict[str, tuple[re.Pattern[str], Version | None]] = {
    name: (re.compile(rf"/lib{pattern}(?:-[0-9a-f]+)?\.so[\d.]*$"), version)
    for name, pattern, version in (
        ("cublas", "cublas", _cublas),
        ("cublaslt", "cublasLt", _cublaslt),
        ("cudart", "cudart", _cudart),
        ("cuda_driver", "cuda", _cuda_driver),
        ("cudnn", "cudnn", _cudnn),
        ("hip", "amdhip64", _hip),
        ("rocblas", "rocblas", _rocblas),
        ("hipblaslt", "hipblaslt", None),
        ("miopen", "MIOpen", _miopen),
        ("nccl", "nccl", None),
        ("rccl", "rccl", None),
        ("mkl", "mkl_core", None),
        ("openblas", r"(?:scipy_)?openblas(?:64_)?p?(?:-r0)?", _openblas),
        ("aotriton", "aotriton_v2", None),
    )
}


def loaded(root: Path = Path("/"), *, hashes: bool = False) -> dict[str, Any]:
    """Every known library in this process: `library.<name>.version`, `.file` (last three parts of its path), `.size_bytes`,
    and `.sha256` if `hashes` (seconds for some GPU libraries).

    A version that cannot be asked is None.
    """
    paths = {line.split(maxsplit=5)[5] for line in (root / "proc/self/maps").read_text().splitlines() if line.count("/") and ".so" in line}
    found: dict[str, Any] = {}
    for name, (pattern, version) in LIBRARIES.items():
        for path in sorted(paths):
            if pattern.search(path):
                found[f"library.{name}.version"] = _ask(path, version)
                found[f"library.{name}.file"] = "/".join(Path(path).parts[-3:])
                found[f"library.{name}.size_bytes"] = _size(path)
                if hashes:
                    found[f"library.{name}.sha256"] = _sha256(path)
                break
    return found


def _ask(path: str, version: Version | None) -> str | None:
    if version is None:
        return None
    try:
        # RTLD_NOLOAD: a handle to what is loaded, or an error; never a second copy
        return version(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    except (OSError, AttributeError):
        return None


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def _sha256(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
