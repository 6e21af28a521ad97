"""Files to be moved, and moving them either way."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from support_sshd import Server

from accuracy_eval.transfer import FileResult, transfer

MiB = 1 << 20


def make_file(path: Path, size: int, seed: int = 0) -> Path:
    """A file of bytes that no compression and no hole makes shorter, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.random.default_rng(seed).bytes(size))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path from there."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def move(server: Server, direction: str, source: Path, target: Path, port: int | None = None, **more: Any) -> FileResult:
    """Up to the server or down from it: on loopback both ends see the same files."""
    options = server.options(**more)
    if direction == "up":
        return transfer([str(source)], server.at(target, port), options=options)[0]
    return transfer([server.at(source, port)], str(target), options=options)[0]
