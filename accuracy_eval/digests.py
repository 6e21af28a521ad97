"""SHA-256 of codes, and of the program itself: the one definition every digest in a dump follows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.threads import map_threads

_THREADS_FROM = 1 << 20  # bytes: starting a thread costs as much as hashing 200 KB
_BLOCK = 1 << 24  # bytes copied at a time where an array is not contiguous or not little-endian


def sha256_codes(codes: NDArray[Any]) -> str:
    """SHA-256 (64 hex digits) of the little-endian codes in C order; the shape is not part of it.

    codes  any shape, 0-d and empty included, unsigned or signed integers (the bytes are the same). A contiguous array is hashed
           in place with the GIL released; another is copied in blocks of 16 MiB.
    """
    if codes.dtype.kind not in "ui":
        raise UsageError(f"codes must be integers, found dtype {codes.dtype}")
    digest = hashlib.sha256(usedforsecurity=False)
    for block in _blocks(codes):
        digest.update(block.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def sha256_many(arrays: Iterable[NDArray[Any]], *, threads: int | None = None) -> list[str]:
    """`sha256_codes` of several arrays, results in order: one thread an array where there is enough to hash."""
    work = list(arrays)
    return map_threads(sha256_codes, work, threads=1 if sum(a.nbytes for a in work) < _THREADS_FROM else threads)


def _blocks(codes: NDArray[Any]) -> Iterable[NDArray[Any]]:
    little = codes.dtype.newbyteorder("<")
    if codes.flags.c_contiguous and codes.dtype == little:
        yield codes
    elif codes.ndim == 0 or codes.nbytes <= _BLOCK:
        yield np.ascontiguousarray(codes, little)
    elif codes.nbytes // codes.shape[0] > _BLOCK:
        for row in codes:
            yield from _blocks(row)
    else:
        step = max(1, _BLOCK // (codes.nbytes // codes.shape[0]))
        for first in range(0, codes.shape[0], step):
            yield np.ascontiguousarray(codes[first : first + step], little)


@cache
def program_digest() -> str:
    """SHA-256 over the package's programs and tables (.py, .toml): equal digests do the same with the same input."""
    digest = hashlib.sha256(usedforsecurity=False)
    for name, file in _sources(resources.files("accuracy_eval"), ""):
        digest.update(f"{name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda f: f.name):
        if entry.is_dir():
            yield from _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".toml")):
            yield f"{prefix}{entry.name}", entry
