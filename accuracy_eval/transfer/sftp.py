"""Files of a host through SFTP: what every host has, and all that some have."""

from __future__ import annotations

import hashlib
import os
import stat as modes
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer.links import Link, Moved, Mover, Span
from accuracy_eval.transfer.shell import Stat
from accuracy_eval.transfer.splicing import write_at

OPENSSH_REQUEST_BYTES = 261_120  # OpenSSH's limits@openssh.com; paramiko's own 32 KiB halves the speed
OTHER_REQUEST_BYTES = 32_768  # what every server must take
OUTSTANDING = 32  # requests on their way: 8 MiB, enough for 160 MB/s at 50 ms


class Sftp:
    """File operations by the SFTP subsystem."""

    method = "sftp"

    def __init__(self, link: Link, client: Any, request: int) -> None:
        self.link = link
        self._client = client
        self._request = request

    @classmethod
    def probe(cls, link: Link) -> Sftp | None:
        """An Sftp where the host has the subsystem, else None."""
        client = link.sftp()
        return None if client is None else cls(link, client, OPENSSH_REQUEST_BYTES if link.openssh else OTHER_REQUEST_BYTES)

    def on(self, link: Link) -> Sftp:
        """The same host's files by another connection."""
        client = link.sftp()
        if client is None:
            raise TransferError(f"{link.label}: has no SFTP on a further connection")
        return Sftp(link, client, self._request)

    def home(self) -> str:
        """The folder that relative names start from."""
        with self._round_trip():
            return str(self._client.normalize("."))

    @contextmanager
    def _round_trip(self) -> Iterator[None]:
        """Around one question and its answer: a busy host answers late now and then, a near one not always."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.link.rtt_s = min(self.link.rtt_s, time.perf_counter() - started)

    def stat(self, path: str) -> Stat:
        try:
            with self._round_trip():
                found = self._client.stat(_wire(path))
        except FileNotFoundError:
            return Stat("none")
        mode = found.st_mode or 0
        kind = "folder" if modes.S_ISDIR(mode) else "file" if modes.S_ISREG(mode) else "other"
        return Stat(kind, found.st_size or 0)

    def make_folders(self, path: str) -> None:
        if path in ("", "/", ".") or self.stat(path).kind == "folder":
            return
        self.make_folders(path.rpartition("/")[0] or ("/" if path.startswith("/") else ""))
        try:
            self._client.mkdir(_wire(path))
        except OSError:
            if self.stat(path).kind != "folder":  # another writer may have made it meanwhile
                raise

    def replace(self, old: str, new: str) -> None:
        try:
            self._client.posix_rename(_wire(old), _wire(new))
        except OSError as e:
            if "unsupported" not in str(e).lower():
                raise
            if self.stat(new).kind == "file":  # a server without the extension: rename refuses an existing name
                self._client.remove(_wire(new))
            self._client.rename(_wire(old), _wire(new))

    def remove(self, path: str) -> None:
        if self.stat(path).kind != "none":
            self._client.remove(_wire(path))

    def walk(self, path: str) -> list[tuple[str, int]]:
        """(path relative to `path`, size) of every file below a folder; links to files count, links to folders do not."""
        found: list[tuple[str, int]] = []
        todo = [""]
        while todo:
            prefix = todo.pop()
            for entry in self._client.listdir_attr(_wire(f"{path}/{prefix}" if prefix else path)):
                name, mode = f"{prefix}{entry.filename}", entry.st_mode or 0
                if modes.S_ISDIR(mode):
                    todo.append(f"{name}/")
                elif modes.S_ISREG(mode):
                    found.append((name, entry.st_size or 0))
                elif modes.S_ISLNK(mode):
                    target = self.stat(f"{path}/{name}")
                    if target.kind == "file":
                        found.append((name, target.size))
        return sorted(found)

    def digest(self, path: str, size: int, length: int | None = None) -> str:
        """SHA-256 of a file or of its first `length` bytes, by reading it back."""
        digest = hashlib.sha256(usedforsecurity=False)
        for block in self._blocks(path, 0, self.stat(path).size if length is None else length):
            digest.update(block)
        return digest.hexdigest()

    def room(self, folder: str) -> int | None:
        """Bytes free for the user on the disk of a folder; None where the host cannot tell."""
        message = self._extended("statvfs@openssh.com", _wire(folder))
        if message is None:
            return None
        _, fragment, _, _, available = (message.get_int64() for _ in range(5))
        return int(fragment * available)

    def _extended(self, name: str, *arguments: Any) -> Any:
        """The answer to an OpenSSH extension; None where the server does not have it."""
        from paramiko.sftp import CMD_EXTENDED

        try:
            return self._client._request(CMD_EXTENDED, name, *arguments)[1]
        except (OSError, AttributeError):
            return None

    def send(self, path: str, span: Span, moved: Moved, *, new: bool) -> None:
        """Write a span into a file and have the disk keep it; `new`: FileExistsError if the file is there already."""
        with self._writing(path, new=new) as write:
            write(span, moved)

    def writer(self, path: str) -> AbstractContextManager[Mover]:
        """Writes spans into a file that is there."""
        return self._writing(path, new=False)

    @contextmanager
    def _writing(self, path: str, *, new: bool) -> Iterator[Mover]:
        try:
            file = self._client.open(_wire(path), "wxb" if new else "r+b")
        except OSError:
            if new and self.stat(path).kind == "file":
                raise FileExistsError(path) from None
            raise
        with file:
            yield _Writer(self._client, file.handle, self._request).write
            self._extended("fsync@openssh.com", file.handle)

    def receive(self, path: str, span: Span, moved: Moved) -> None:
        """Read a span of a file into one here; less where the file is shorter."""
        with self.reader(path) as read:
            read(span, moved)

    @contextmanager
    def reader(self, path: str) -> Iterator[Mover]:
        """Reads spans of a file."""

        def read(span: Span, moved: Moved) -> None:
            position = span.start
            for block in _Reader(self._client, file.handle, self._request).blocks(span.start, span.end):
                position += write_at(span.fd, [block], position)
                moved(len(block))

        with self._client.open(_wire(path), "rb") as file:
            yield read

    def _blocks(self, path: str, start: int, end: int) -> Iterator[bytes]:
        with self._client.open(_wire(path), "rb") as file:
            yield from _Reader(self._client, file.handle, self._request).blocks(start, end)


def _wire(path: str) -> bytes:
    """The path's bytes: a local name need not be UTF-8. (paramiko's annotations say str, its code takes both.)"""
    return path.encode("utf-8", "surrogateescape")


class _Writer:
    """Writes with many requests on their way, each answer looked at: paramiko's own pipelining can lose a full disk."""

    def __init__(self, client: Any, handle: bytes, request: int) -> None:
        self._client = client
        self._handle = handle
        self._request = request
        self._outstanding = 0

    def write(self, span: Span, moved: Moved) -> None:
        from paramiko.sftp import CMD_WRITE, int64

        for position in range(span.start, span.end, self._request):
            data = os.pread(span.fd, min(self._request, span.end - position), position)
            self._client._async_request(self, CMD_WRITE, self._handle, int64(position), data)
            self._outstanding += 1
            self._settle(OUTSTANDING)
            moved(len(data))
        self._settle(0)

    def _settle(self, allowed: int) -> None:
        """Take in answers until at most `allowed` are missing, and those that have come already."""
        while self._outstanding > allowed or (self._outstanding and self._client.sock.recv_ready()):
            self._client._read_response()

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Called by the client with the answer to one request."""
        self._outstanding -= 1
        self._client._convert_status(message)


class _Reader:
    """Reads with many requests on their way, in one thread.

    paramiko's own prefetch can lose its pipeline to a race and then buffers without limit; this keeps OUTSTANDING requests and hands
    blocks on in order.
    """

    def __init__(self, client: Any, handle: bytes, request: int) -> None:
        self._client = client
        self._handle = handle
        self._request = request
        self._waiting: dict[int, tuple[int, int]] = {}  # request number -> offset, length
        self._arrived: dict[int, bytes] = {}  # offset -> data

    def blocks(self, offset: int, end: int) -> Iterator[bytes]:
        order: deque[tuple[int, int]] = deque()
        ask = offset
        while True:
            while ask < end and len(order) < OUTSTANDING:
                length = min(self._request, end - ask)
                self._ask(ask, length)
                order.append((ask, length))
                ask += length
            if not order:
                return
            at, length = order.popleft()
            while length:
                while at not in self._arrived:
                    self._client._read_response()
                data = self._arrived.pop(at)
                if not data:
                    return  # the file is shorter than it was; the caller compares sizes
                yield data
                at, length = at + len(data), length - len(data)
                if length:  # a server may give less than was asked for
                    self._ask(at, length)

    def _ask(self, offset: int, length: int) -> None:
        from paramiko.sftp import CMD_READ, int64

        number = self._client._async_request(self, CMD_READ, self._handle, int64(offset), length)
        self._waiting[number] = offset, length

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Called by the client with the answer to one request."""
        from paramiko.sftp import CMD_DATA, CMD_STATUS

        offset, _ = self._waiting.pop(number)
        if kind == CMD_DATA:
            self._arrived[offset] = message.get_string()
            return
        if kind != CMD_STATUS:
            raise TransferError(f"SFTP: answer of kind {kind} to a read")
        with suppress(EOFError):
            self._client._convert_status(message)
        self._arrived[offset] = b""
