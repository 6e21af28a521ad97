"""The installed package as a wheel, made of its own files: no build tool, no network, the same bytes for the same code."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

from accuracy_eval.version import __version__

_PACKAGE = "accuracy_eval"
_WHEEL = "Wheel-Version: 1.0\nGenerator: accuracy-eval\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\naccuracy-eval = accuracy_eval.cli:main\n"


def build_wheel(folder: Path) -> Path:
    """Write `accuracy_eval-VERSION-py3-none-any.whl` into a folder and return its path. Works from an installed package too."""
    info = f"{_PACKAGE}-{__version__}.dist-info"
    files = dict(_package_files(Path(str(resources.files(_PACKAGE)))))
    files |= {f"{info}/METADATA": _metadata(), f"{info}/WHEEL": _WHEEL.encode(), f"{info}/entry_points.txt": _ENTRY_POINTS.encode()}
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,"]) + "\n").encode()
    path = folder / f"{_PACKAGE}-{__version__}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # of 1980: the archive does not depend on when or where it is made
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def _package_files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in root.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{_PACKAGE}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata() -> bytes:
    try:
        installed = metadata.distribution("accuracy-eval")
        text = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    except metadata.PackageNotFoundError:  # run from a source folder
        text = None
    return (text or f"Metadata-Version: 2.1\nName: accuracy-eval\nVersion: {__version__}\n").encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
