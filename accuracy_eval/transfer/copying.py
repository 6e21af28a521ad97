"""One file from here to there or back: resumed where its beginning is proven, verified before it takes its name."""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from accuracy_eval.errors import DigestMismatch, TransferError
from accuracy_eval.transfer.locations import PART_SUFFIX, Action, FileResult, Location, Options
from accuracy_eval.transfer.sessions import Session, connect, failures_named
from accuracy_eval.transfer.sftp import Sftp
from accuracy_eval.transfer.shell import Shell, Stat

BLOCK_BYTES = 1 << 20
SMALL_BYTES = 1 << 18  # up to here a few SFTP requests cost less than starting a command on the far host
SETTLING_TRIES, SETTLING_S = 20, 0.25
Meter = Callable[[int], None]  # called with bytes just done


class Files(Protocol):
    """What Shell and Sftp have in common."""

    method: str

    def stat(self, path: str) -> Stat: ...
    def make_folders(self, path: str) -> None: ...
    def replace(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def walk(self, path: str) -> list[tuple[str, int]]: ...
    def digest(self, path: str, length: int | None = None) -> str | None: ...
    def send(self, path: str, offset: int, blocks: Any) -> None: ...
    def receive(self, path: str, offset: int) -> Iterator[bytes]: ...


class Remote:
    """A host's files by the best way it offers: bytes as a stream through the shell, the rest by SFTP, either alone where it must.

    names         how files are looked up, renamed, removed
    stream(size)  how the bytes of a file of that size travel
    """

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self.label = session.label
        with failures_named(self.label, "asking what the host offers"):
            shell = Shell.probe(session) if options.method != "sftp" else None
            sftp = Sftp.probe(session) if options.method != "exec" else None
            self._home = sftp.home() if sftp is not None else ""
            if shell is not None and sftp is not None and shell.stat(self._home).kind != "folder":
                shell = None  # SFTP is shut into a folder of its own: the two speak of different files
        if shell is None and sftp is None:
            raise TransferError(f"{self.label}: offers neither a POSIX shell nor SFTP (method {options.method}); enable one of them there")
        self._ways: list[Files] = [f for f in (shell, sftp) if f is not None]
        self.names: Files = self._ways[-1]
        self._folders: set[str] = set()

    @classmethod
    def connect(cls, location: Location, options: Options) -> Remote:
        session = connect(location, options)
        try:
            return cls(session, options)
        except BaseException:
            session.close()
            raise

    def close(self) -> None:
        self.session.close()

    def at(self, path: str) -> str:
        """The path as both shell and SFTP understand it, wherever start-up files may have taken the shell."""
        return posixpath.normpath(posixpath.join(self._home, path)) if self._home else path

    def stream(self, size: int) -> Files:
        return self._ways[-1] if size <= SMALL_BYTES else self._ways[0]

    def make_folders(self, path: str) -> None:
        """Make a folder and those above it, asking the host only once for each."""
        if path not in self._folders:
            self.names.make_folders(path)
            self._folders.add(path)

    def digest(self, path: str, size: int, length: int | None = None) -> str:
        """SHA-256 of a far file of about `size` bytes, or of its first `length`: computed there, else by reading them back."""
        ways = self._ways[::-1] if size <= SMALL_BYTES else self._ways
        for files in ways:
            found = files.digest(path, length)
            if found is not None:
                return found
        digest, left = hashlib.sha256(usedforsecurity=False), length
        for block in ways[0].receive(path, 0):
            digest.update(block if left is None else block[:left])
            left = None if left is None else max(0, left - len(block))
        return digest.hexdigest()


def put(remote: Remote, source: Path, target: str, options: Options, meter: Meter) -> FileResult:
    """Send one file. `meter` is called with bytes as they are done, skipped ones included."""
    place = f"{remote.label}:{target}"
    part = target + PART_SUFFIX
    with failures_named(remote.label, target), source.open("rb") as file:
        before = os.fstat(file.fileno())
        size = before.st_size
        there = remote.names.stat(target)
        if there.kind in ("folder", "other"):
            raise TransferError(f"{place}: is a {there.kind}, not a file; name another destination")
        if there.kind == "file" and there.size == size:
            mine = _digest_of(file, size).hexdigest()
            if remote.digest(target, size) == mine:
                meter(size)
                return FileResult(str(source), place, size, mine, Action.SKIPPED)
        digest, offset = _resume_put(remote, file, part, size, options)
        action = Action.RESUMED if offset else Action.SENT
        if options.dry_run:
            return FileResult(str(source), place, size, "", action, offset, remote.stream(size).method)
        remote.make_folders(posixpath.dirname(target))
        meter(offset)
        file.seek(offset)
        remote.stream(size).send(part, offset, _blocks(file, size - offset, digest, meter))
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise TransferError(f"{source}: changed while it was being sent to {place}; send it again once it is complete")
        _verify(place, digest.hexdigest(), f"{remote.label}:{part}", remote.digest(part, size), lambda: remote.names.remove(part))
        remote.names.replace(part, target)
    return FileResult(str(source), place, size, digest.hexdigest(), action, offset, remote.stream(size).method)


def _resume_put(remote: Remote, file: Any, part: str, size: int, options: Options) -> tuple[Any, int]:
    """(digest of the bytes already there, how many): 0 unless the far part begins the file, which its digest must prove."""
    there = remote.names.stat(part)
    for _ in range(SETTLING_TRIES):
        if not options.resume or there.kind != "file" or not 0 < there.size <= size:
            break
        digest = _digest_of(file, there.size)
        same = digest.hexdigest() == remote.digest(part, there.size, there.size)
        before, there = there, remote.names.stat(part)
        if there == before:
            if same:
                return digest, there.size
            break
        time.sleep(SETTLING_S)  # the far end is still writing what it had received when the last connection broke
    return hashlib.sha256(usedforsecurity=False), 0


def get(remote: Remote, source: str, size: int, target: Path, options: Options, meter: Meter) -> FileResult:
    """Fetch one file of `size` bytes. `meter` is called with bytes as they are done, skipped ones included."""
    place = f"{remote.label}:{source}"
    part = target.with_name(target.name + PART_SUFFIX)
    with failures_named(remote.label, source):
        if target.is_dir():
            raise TransferError(f"{target}: is a folder, not a file; name another destination")
        theirs = ""
        if target.is_file() and target.stat().st_size == size:
            theirs = remote.digest(source, size)
            with target.open("rb") as file:
                if _digest_of(file, size).hexdigest() == theirs:
                    meter(size)
                    return FileResult(place, str(target), size, theirs, Action.SKIPPED)
        digest, offset = _resume_get(remote, source, part, size, options)
        action = Action.RESUMED if offset else Action.SENT
        if options.dry_run:
            return FileResult(place, str(target), size, "", action, offset, remote.stream(size).method)
        target.parent.mkdir(parents=True, exist_ok=True)
        meter(offset)
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.truncate()
            for block in remote.stream(size).receive(source, offset):
                file.write(block)
                digest.update(block)
                meter(len(block))
            file.flush()
            os.fsync(file.fileno())
        found = part.stat().st_size
        if found < size:
            raise TransferError(f"{place}: {found} of {size} bytes arrived; run again to go on from here")
        _verify(place, theirs or remote.digest(source, size), str(part), digest.hexdigest(), part.unlink)
        os.replace(part, target)
    return FileResult(place, str(target), size, digest.hexdigest(), action, offset, remote.stream(size).method)


def _resume_get(remote: Remote, source: str, part: Path, size: int, options: Options) -> tuple[Any, int]:
    there = part.stat().st_size if part.is_file() else 0
    if options.resume and 0 < there <= size:
        with part.open("rb") as file:
            digest = _digest_of(file, there)
        if digest.hexdigest() == remote.digest(source, there, there):
            return digest, there
    return hashlib.sha256(usedforsecurity=False), 0


def _verify(place: str, wanted: str, where: str, found: str, remove: Callable[[], object]) -> None:
    if found != wanted:
        remove()
        raise DigestMismatch(
            f"{place}: sha256 {found} of {where} != {wanted} of the source; the bytes changed on the way or at the far end "
            "and were removed. Run again; if it repeats, check the disk and memory of both hosts."
        )


def _digest_of(file: Any, length: int) -> Any:
    """The running SHA-256 after the first `length` bytes of an open file."""
    digest = hashlib.sha256(usedforsecurity=False)
    file.seek(0)
    for _ in _blocks(file, length, digest, lambda n: None):
        pass
    return digest


def _blocks(file: Any, length: int, digest: Any, meter: Meter) -> Iterator[bytes]:
    """Blocks of the next `length` bytes, digested as they pass; counted once the taker asks for the next."""
    while length:
        block = file.read(min(BLOCK_BYTES, length))
        if not block:
            return
        digest.update(block)
        yield block
        length -= len(block)
        meter(len(block))
