"""A host's files by the best ways it offers, over a connection that can be made anew."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Iterator
from typing import Protocol

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer.links import Link, failures_named
from accuracy_eval.transfer.locations import Location, Options
from accuracy_eval.transfer.sessions import connect
from accuracy_eval.transfer.sftp import Sftp
from accuracy_eval.transfer.shell import Shell, Stat

SMALL_BYTES = 1 << 18  # up to here a few SFTP requests cost less than starting a command on the far host


class Files(Protocol):
    """What Shell and Sftp have in common."""

    method: str

    def stat(self, path: str) -> Stat: ...
    def make_folders(self, path: str) -> None: ...
    def replace(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def walk(self, path: str) -> list[tuple[str, int]]: ...
    def digest(self, path: str, length: int | None = None) -> str | None: ...
    def room(self, folder: str) -> int | None: ...
    def send(self, path: str, offset: int, blocks: Iterable[bytes], *, new: bool) -> None: ...
    def receive(self, path: str, offset: int, length: int | None = None) -> Iterator[bytes]: ...


class Remote:
    """A host's files: bytes as a stream through the shell, the rest by SFTP, either alone where it must.

    names         how files are looked up, renamed, removed
    stream(size)  how the bytes of a file of that size travel
    """

    def __init__(self, location: Location, options: Options) -> None:
        self._location = location
        self._options = options
        self._open()

    def _open(self) -> None:
        self.link: Link = connect(self._location, self._options)
        self.label = self.link.label
        try:
            with failures_named(self.label, "asking what the host offers"):
                self._look()
        except BaseException:
            self.link.close()
            raise

    def _look(self) -> None:
        method = self._options.method
        shell = Shell.probe(self.link) if method != "sftp" else None
        sftp = Sftp.probe(self.link) if method != "exec" else None
        self._home = sftp.home() if sftp is not None else ""
        if shell is not None and sftp is not None and shell.stat(self._home).kind != "folder":
            shell = None  # SFTP is shut into a folder of its own: the two speak of different files
        if shell is None and sftp is None:
            raise TransferError(f"{self.label}: offers neither a POSIX shell nor SFTP (method {method}); enable one of them there")
        self._ways: list[Files] = [f for f in (shell, sftp) if f is not None]
        self.names: Files = self._ways[-1]
        self._folders: set[str] = set()
        offers = " and ".join(f.method for f in self._ways)
        self._options.note(f"{self.label}: {offers}; round trip {1e3 * self.link.rtt_s:.1f} ms")

    def reconnect(self) -> None:
        """Make the connection anew."""
        self.link.close()
        self._open()

    def close(self) -> None:
        self.link.close()

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
        digest = hashlib.sha256(usedforsecurity=False)
        for block in ways[0].receive(path, 0, length):
            digest.update(block)
        return digest.hexdigest()

    def check_room(self, folder: str, needed: int) -> None:
        """TransferError if the disk of a folder has fewer bytes free than are needed; passes where the host cannot tell."""
        if needed <= SMALL_BYTES:
            return  # asking costs more than finding out
        free = self.names.room(folder or ".")
        if free is not None and free < needed:
            place = f"{self.label}:{folder}"
            raise TransferError(f"{place}: {needed} bytes are to be written, {free} are free; make room there or name another folder")
