"""A host's files by the best ways it offers, over a connection that can be made anew."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from threading import Thread
from typing import Protocol

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer import openssh
from accuracy_eval.transfer.links import Link, Moved, Mover, Span, failures_named
from accuracy_eval.transfer.locations import Location, Options
from accuracy_eval.transfer.openssh import OpenSsh
from accuracy_eval.transfer.sessions import FAR_RTT_S, REACH, connect
from accuracy_eval.transfer.shell import Shell, Stat, Survey

LARGE_BYTES = 256 << 20  # from here a second connection, of the ssh program, pays: it uses another core than our digests and files
CONNECTIONS, CHANNELS = 4, 3  # of a large file to a far host, and a connection
SEVERAL_FROM_BYTES = 1 << 24  # from here they pay
SMALL_BYTES = 1 << 18  # up to here a few SFTP requests cost less than starting a command on the far host


class Files(Protocol):
    """What Shell and Sftp have in common."""

    method: str
    link: Link

    def on(self, link: Link) -> Files: ...
    def close(self) -> None: ...
    def stat(self, path: str) -> Stat: ...
    def survey(self, target: str, part: str) -> Survey: ...
    def create(self, path: str) -> None: ...
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
        self._fast: Future[Link] | None = None
        self._settled = False
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
        from accuracy_eval.transfer.sftp import Sftp

        method = self._options.method
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(Sftp.probe, self.link, self._location.path) if method != "exec" else None
            shell = Shell.probe(self.link) if method != "sftp" else None
            sftp, found = (asked and asked.result()) or (None, None)
        self._home = sftp.home if sftp is not None else ""
        self._met = {} if found is None else {self.at(self._location.path): found}
        if shell is not None and sftp is not None and shell.home != self._home and shell.stat(self._home).kind != "folder":
            shell = None  # SFTP is shut into a folder of its own: the two speak of different files
        if shell is None and sftp is None:
            raise TransferError(f"{self.label}: offers neither a POSIX shell nor SFTP (method {method}); enable one of them there")
        self._further: list[Future[Link]] = []
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
        """Before a file is moved: begin the connections that its size and the round trip ask for, and say so once a connection."""
        if self.several(size):
            self.spread()
        if self._chosen or size < LARGE_BYTES or self._options.transport != "auto" or not isinstance(self.bulk, Shell):
            return
        self._chosen = True
        if self.several(size):
            self.note(f"{self.label}: by paramiko over {CONNECTIONS} connections, for the round trip is long")
        elif not openssh.available():
            self.note(f"{self.label}: by paramiko; there is no ssh program here")
        else:
            self._fast = _begin(partial(OpenSsh, self._location, self._options, batch=True, rtt_s=self.link.rtt_s))

    def _settle(self) -> None:
        """Take the installed ssh program for the bytes of large files, where it could sign in."""
        if self._fast is None or self._settled or self.shell is None:
            return
        self._settled = True
        try:
            with failures_named(self.label, "ssh"):
                self.bulk = self.shell.on(self._fast.result())
        except TransferError as error:
            self.note(f"{self.label}: by paramiko; {error}")
        else:
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

    def spread(self) -> list[Future[Link]]:
        """The further connections of a large file to a far host, being made from the first call on; kept for the next file."""
        if not self._further:
            self._further = [_begin(self.far.link.another) for _ in range(CONNECTIONS - 1)]
        return self._further

    def gather(self) -> None:
        """End the further connections."""
        for link in self._further:
            link.add_done_callback(_close)
        self._further = []

    def reconnect(self) -> None:
        """Make the connection anew."""
        self.close()
        self._open()

    def close(self) -> None:
        self.gather()
        self.link.close()
        if self._fast is not None:
            wait([self._fast])  # a process that is being started would outlive this one
            _close(self._fast)
            self._fast = None

    def at(self, path: str) -> str:
        """The path as both shell and SFTP understand it, wherever start-up files may have taken the shell."""
        return posixpath.normpath(posixpath.join(self._home, path)) if self._home else path

    def look(self, path: str) -> Stat:
        """What is at a path; for the one that was named at connecting the answer came with the connection."""
        return self._met.pop(path, None) or self.names.stat(path)

    def stream(self, size: int) -> Files:
        if size <= SMALL_BYTES or self.several(size):
            return self._ways[-1]
        self._settle()
        return self.bulk

    def make_folders(self, path: str, *, there: bool = False) -> None:
        """Make a folder and those above it unless it is known to be `there`, asking the host only once for each."""
        if path not in self._folders and not there:
            self.names.make_folders(path)
        self._folders.add(path)

    def digest(self, path: str, size: int, length: int | None = None) -> str:
        """SHA-256 of a far file of about `size` bytes, or of its first `length`."""
        return self._ways[-1 if size <= SMALL_BYTES else 0].digest(path, size, length)

    def computes(self, size: int) -> bool:
        """Whether the host digests a file of that size by itself, while this connection moves bytes."""
        return size > SMALL_BYTES and self.shell is not None and bool(self.shell.tools)

    def check_room(self, folder: str, needed: int, free: int | None = None) -> None:
        """TransferError if the disk of a folder has fewer bytes free than are needed; passes where the host cannot tell."""
        if needed <= SMALL_BYTES:
            return  # asking costs more than finding out
        free = self.names.room(folder or ".") if free is None else free
        if free is not None and free < needed:
            place = f"{self.label}:{folder}"
            raise TransferError(f"{place}: {needed} bytes are to be written, {free} are free; make room there or name another folder")


def _begin(connect: Callable[[], Link]) -> Future[Link]:
    """A connection that is being made; nobody has to wait for it."""
    future: Future[Link] = Future()

    def work() -> None:
        try:
            future.set_result(connect())
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future


def _close(link: Future[Link]) -> None:
    if link.exception() is None:
        link.result().close()
