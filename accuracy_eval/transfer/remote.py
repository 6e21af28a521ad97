"""A host's files by the best ways it offers, over a connection that can be made anew."""

from __future__ import annotations

import posixpath
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Protocol

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer import openssh
from accuracy_eval.transfer.links import Link, Moved, Mover, Span, failures_named
from accuracy_eval.transfer.locations import Location, Options
from accuracy_eval.transfer.openssh import OpenSsh
from accuracy_eval.transfer.sessions import FAR_RTT_S, REACH, connect
from accuracy_eval.transfer.sftp import Sftp
from accuracy_eval.transfer.shell import Shell, Stat

LARGE_BYTES = 256 << 20  # from here a second connection, of the ssh program, pays: it uses another core than our digests and files
CONNECTIONS, CHANNELS = 4, 3  # of a large file to a far host, and a connection
SEVERAL_FROM_BYTES = 1 << 24  # from here they pay
SMALL_BYTES = 1 << 18  # up to here a few SFTP requests cost less than starting a command on the far host


class Files(Protocol):
    """What Shell and Sftp have in common."""

    method: str
    link: Link

    def on(self, link: Link) -> Files: ...
    def stat(self, path: str) -> Stat: ...
    def make_folders(self, path: str) -> None: ...
    def replace(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def walk(self, path: str) -> list[tuple[str, int]]: ...
    def digest(self, path: str, size: int, length: int | None = None) -> str: ...
    def room(self, folder: str) -> int | None: ...
    def send(self, path: str, span: Span, moved: Moved, *, new: bool) -> str | None: ...
    def receive(self, path: str, span: Span, moved: Moved) -> None: ...
    def writer(self, path: str) -> AbstractContextManager[Mover]: ...
    def reader(self, path: str) -> AbstractContextManager[Mover]: ...


class Remote:
    """A host's files: bytes as a stream through the shell, the rest by SFTP, either alone where it must.

    names         how files are looked up, renamed, removed
    bulk          how the bytes of large files travel, to near hosts
    stream(size)  how the bytes of a file of that size do
    """

    def __init__(self, location: Location, options: Options) -> None:
        self._location = location
        self._options = options
        self._open()

    def _open(self) -> None:
        self.link = self._connect()
        self.label = self.link.label
        self._fast: Link | None = None
        try:
            with failures_named(self.label, "asking what the host offers"):
                self._look()
        except BaseException:
            self.link.close()
            raise

    def _connect(self) -> Link:
        if self._options.transport == "openssh":
            with failures_named(self._location.host, "connecting by ssh", REACH):
                return OpenSsh(self._location, self._options, batch=self._options.ask is None)
        return connect(self._location, self._options)

    def _look(self) -> None:
        method = self._options.method
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(Sftp.probe, self.link) if method != "exec" else None
            shell = Shell.probe(self.link) if method != "sftp" else None
            sftp = asked.result() if asked is not None else None
        self._home = sftp.home() if sftp is not None else ""
        if shell is not None and sftp is not None and shell.home != self._home and shell.stat(self._home).kind != "folder":
            shell = None  # SFTP is shut into a folder of its own: the two speak of different files
        if shell is None and sftp is None:
            raise TransferError(f"{self.label}: offers neither a POSIX shell nor SFTP (method {method}); enable one of them there")
        self._ways: list[Files] = [f for f in (shell, sftp) if f is not None]
        self.names: Files = self._ways[-1]
        self.bulk: Files = self._ways[0]
        self._chosen = False
        self._folders: set[str] = set()
        offers = " and ".join(f.method for f in self._ways)
        self.note(f"{self.label}: {offers}; round trip {1e3 * self.link.rtt_s:.1f} ms")

    def note(self, text: str) -> None:
        self._options.note(text)

    def choose(self, size: int) -> None:
        """Once a connection: take the installed ssh program for the bytes of large files where it can sign in, and say what was taken."""
        shell = self.bulk
        if self._chosen or size < LARGE_BYTES or self._options.transport != "auto" or not isinstance(shell, Shell):
            return
        self._chosen = True
        if self.several(size):
            self.note(f"{self.label}: by paramiko over {CONNECTIONS} connections, for the round trip is long")
            return
        if not openssh.available():
            self.note(f"{self.label}: by paramiko; there is no ssh program here")
            return
        try:
            with failures_named(self.label, "ssh"):
                self._fast = OpenSsh(self._location, self._options, batch=True)
        except TransferError as error:
            self.note(f"{self.label}: by paramiko; {error}")
            return
        self.bulk = shell.on(self._fast)
        self.note(f"{self.label}: by openssh: a large file, a near host")

    @property
    def shell(self) -> Shell | None:
        """The host's shell, where it is used."""
        return next((f for f in self._ways if isinstance(f, Shell)), None)

    def several(self, size: int) -> bool:
        """Whether so many bytes go over several connections."""
        return size > SEVERAL_FROM_BYTES and self.link.rtt_s > FAR_RTT_S

    @property
    def far(self) -> Files:
        """How the bytes of a large file travel in segments: SFTP asks for the next one before the last has arrived."""
        return self._ways[-1]

    def reconnect(self) -> None:
        """Make the connection anew."""
        self.close()
        self._open()

    def close(self) -> None:
        self.link.close()
        if self._fast is not None:
            self._fast.close()
            self._fast = None

    def at(self, path: str) -> str:
        """The path as both shell and SFTP understand it, wherever start-up files may have taken the shell."""
        return posixpath.normpath(posixpath.join(self._home, path)) if self._home else path

    def stream(self, size: int) -> Files:
        return self._ways[-1] if size <= SMALL_BYTES or self.several(size) else self.bulk

    def make_folders(self, path: str) -> None:
        """Make a folder and those above it, asking the host only once for each."""
        if path not in self._folders:
            self.names.make_folders(path)
            self._folders.add(path)

    def digest(self, path: str, size: int, length: int | None = None) -> str:
        """SHA-256 of a far file of about `size` bytes, or of its first `length`."""
        return self._ways[-1 if size <= SMALL_BYTES else 0].digest(path, size, length)

    def computes(self, size: int) -> bool:
        """Whether the host digests a file of that size by itself, while this connection moves bytes."""
        return size > SMALL_BYTES and self.shell is not None and bool(self.shell.tools)

    def check_room(self, folder: str, needed: int) -> None:
        """TransferError if the disk of a folder has fewer bytes free than are needed; passes where the host cannot tell."""
        if needed <= SMALL_BYTES:
            return  # asking costs more than finding out
        free = self.names.room(folder or ".")
        if free is not None and free < needed:
            place = f"{self.label}:{folder}"
            raise TransferError(f"{place}: {needed} bytes are to be written, {free} are free; make room there or name another folder")
