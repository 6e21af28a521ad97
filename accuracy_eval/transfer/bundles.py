"""Many small files at once: one stream of tar, one sha256sum and one rename for hundreds of them, instead of a dozen questions for each.

The same promises as for one file: digests at both ends, temporary names until they agree, files that are there already stay.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from accuracy_eval.errors import DigestMismatch, TransferError
from accuracy_eval.transfer.links import failures_named
from accuracy_eval.transfer.locations import PART_SUFFIX, Action, FileResult
from accuracy_eval.transfer.remote import Remote
from accuracy_eval.transfer.shell import Shell, absolute_or_dotted

BATCH = 500  # files a command: its names and digests fit a channel's window
TOOLS = ("tar", "xargs", "sha256sum")  # the far end needs all of them
METHOD = "tar"


@dataclass(frozen=True)
class Small:
    """One small file: where it is here, and its name below the folder there."""

    here: Path
    name: str


def put_many(remote: Remote, shell: Shell, folder: str, files: Sequence[Small]) -> list[FileResult]:
    """Send a batch into a folder there."""
    with failures_named(remote.label, folder):
        remote.make_folders(folder)
        contents = {f.name: f.here.read_bytes() for f in files}
        digests = {name: _sha256(data) for name, data in contents.items()}
        there = _digests(shell, folder, list(contents))
        new = [f.name for f in files if there.get(f.name) != digests[f.name]]
        if new:
            _place(remote, shell, folder, {n: contents[n] for n in new}, digests)

    def result(f: Small) -> FileResult:
        place = f"{remote.label}:{posixpath.join(folder, f.name)}"
        return _result(str(f.here), place, contents[f.name], digests[f.name], f.name in new, f.name in there)

    return [result(f) for f in files]


def _place(remote: Remote, shell: Shell, folder: str, contents: dict[str, bytes], digests: dict[str, str]) -> None:
    """Unpack files into a folder of their own there, verify them, move them to their places: a command for each folder of theirs."""
    staging = f".accuracy-eval-{_sha256(chr(0).join(contents).encode('utf-8', 'surrogateescape'))[:16]}{PART_SUFFIX}"
    below = posixpath.join(folder, staging)
    remote.names.make_folders(below)
    try:
        shell.run_in(below, "tar -xof -", _tar(contents.items()))
        arrived = _digests(shell, below, list(contents))
        for name in contents:
            _verify(f"{remote.label}:{posixpath.join(folder, name)}", arrived.get(name, "missing"), digests[name])
        for parent in dict.fromkeys(posixpath.dirname(n) for n in contents):
            remote.make_folders(posixpath.join(folder, parent) if parent else folder)
            names = [n for n in contents if posixpath.dirname(n) == parent]
            shell.run_in(
                below,
                'xargs -0 sh -c "mv -f -- \\"\\$@\\" \\"\\$0\\"" "$q"',
                _words(names),
                absolute_or_dotted(posixpath.join("..", parent)),
            )
        shell.run_in(folder, "sync -f . 2>/dev/null || true", b"")
    finally:
        if shell.link.alive:
            shell.run_in(folder, 'rm -rf "$q"', b"", f"./{staging}")


def get_many(remote: Remote, shell: Shell, folder: str, files: Sequence[Small]) -> list[FileResult]:
    """Fetch a batch from a folder there."""
    with failures_named(remote.label, folder):
        theirs = _digests(shell, folder, [f.name for f in files])
        here = {f.name: f.here for f in files}
        present = {n: path.read_bytes() for n, path in here.items() if path.is_file()}
        contents = {n: data for n, data in present.items() if _sha256(data) == theirs.get(n)}
        new = [n for n in here if n not in contents]
        if new:
            out = shell.run_in(folder, "tar -cf - --no-recursion --null -T -", _words(new))
            contents |= _untar(out, set(new), remote.label)
        for name in new:
            data = contents.get(name)
            place = f"{remote.label}:{posixpath.join(folder, name)}"
            if data is None:
                raise TransferError(f"{place}: is gone; it was there when the folder was listed")
            _verify(place, _sha256(data), theirs.get(name, "missing"))
            _write(here[name], data)

    def result(name: str, path: Path) -> FileResult:
        place = f"{remote.label}:{posixpath.join(folder, name)}"
        return _result(place, str(path), contents[name], theirs[name], name in new, name in present)

    return [result(name, path) for name, path in here.items()]


def _digests(shell: Shell, folder: str, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of those files below a folder that are there."""
    printed = {_as_printed(f"./{n}"): n for n in names}
    out = shell.run_in(folder, "xargs -0 sha256sum 2>/dev/null || true", _words(names)).decode("utf-8", "surrogateescape")
    found = {}
    for line in out.split("\n"):
        digest, _, name = line.lstrip("\\").partition("  ")
        if name in printed:
            found[printed[name]] = digest
    return found


def _as_printed(name: str) -> str:
    """A name in sha256sum's output: backslashes, line feeds and carriage returns are escaped."""
    return name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _words(names: Iterable[str]) -> bytes:
    """Names as xargs -0 and tar --null read them; the dot keeps any from being an option."""
    return b"".join(f"./{n}\0".encode("utf-8", "surrogateescape") for n in names)


def _tar(entries: Iterable[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for name, data in entries:
            entry = tarfile.TarInfo(f"./{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _untar(data: bytes, wanted: set[str], label: str) -> dict[str, bytes]:
    """Contents of the files that were asked for; whatever else the archive holds is not looked at."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for entry in _regular(archive):
                name = entry.name.removeprefix("./")
                if name in wanted:
                    found[name] = cast(IO[bytes], archive.extractfile(entry)).read()
    except tarfile.TarError as error:
        raise TransferError(f"{label}: its tar made an archive that cannot be read ({error}); use --transport paramiko or SFTP") from None
    return found


def _regular(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    return (entry for entry in archive if entry.isreg())


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART_SUFFIX)
    part.write_bytes(data)
    os.replace(part, path)


def _verify(place: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise DigestMismatch(
            f"{place}: sha256 {found} != {wanted} of the source; the bytes changed on the way or at the far end. Run again."
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data, usedforsecurity=False).hexdigest()


def _result(source: str, destination: str, data: bytes, digest: str, sent: bool, existed: bool) -> FileResult:
    action, method = (Action.SENT, METHOD) if sent else (Action.SKIPPED, "")
    return FileResult(source, destination, len(data), digest, action, 0, method, sent and existed)
