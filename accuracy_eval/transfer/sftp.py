"""Files of a host through SFTP: what every host has, and all that some have. Imports paramiko: import it to make a connection."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat as modes
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from paramiko import SFTPAttributes
from paramiko.sftp import (
    CMD_CLOSE,
    CMD_DATA,
    CMD_EXTENDED,
    CMD_OPEN,
    CMD_READ,
    CMD_REALPATH,
    CMD_STAT,
    CMD_STATUS,
    SFTP_FLAG_CREATE,
    SFTP_FLAG_EXCL,
    SFTP_FLAG_READ,
    SFTP_FLAG_WRITE,
    int64,
)

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer.asking import Answer
from accuracy_eval.transfer.buffering import Block
from accuracy_eval.transfer.links import Link, Moved, Mover, Span
from accuracy_eval.transfer.shell import Stat, Survey
from accuracy_eval.transfer.splicing import write_at

OPENSSH_REQUEST_BYTES = 261_120  # OpenSSH's limits@openssh.com; paramiko's own 32 KiB halves the speed
OTHER_REQUEST_BYTES = 32_768  # what every server must take
STATVFS, FSYNC = "statvfs@openssh.com", "fsync@openssh.com"
NO_ATTRIBUTES = 0
OUTSTANDING = 32  # requests on their way: 8 MiB, enough for 160 MB/s at 50 ms


class Sftp:
    """File operations by the SFTP subsystem."""

    method = "sftp"

    def __init__(self, link: Link, client: Any, request: int, home: str) -> None:
        self.link = link
        self.home = home
        self._client = client
        self._request = request

    @classmethod
    def probe(cls, link: Link, path: str) -> tuple[Sftp, Stat | None] | None:
        """An Sftp where the host has the subsystem, and what is at a path, if that could be told."""
        client = link.sftp([(CMD_REALPATH, "."), (CMD_STAT, _wire(path))])
        if client is None:
            return None
        named, found = client.first_answers
        names = _told(named)
        names.get_int()  # one
        request = OPENSSH_REQUEST_BYTES if link.openssh else OTHER_REQUEST_BYTES
        known = not found.error or isinstance(found.error, FileNotFoundError)
        return cls(link, client, request, names.get_text()), _stat(found) if known else None

    def on(self, link: Link) -> Sftp:
        """The same host's files by another connection."""
        client = link.sftp()
        if client is None:
            raise TransferError(f"{link.label}: has no SFTP on a further connection")
        return Sftp(link, client, self._request, self.home)

    def close(self) -> None:
        """End what `on` has begun."""
        self._client.close()

    @contextmanager
    def _round_trip(self) -> Iterator[None]:
        """Around one question and its answer: a busy host answers late now and then, a near one not always."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.link.rtt_s = min(self.link.rtt_s, time.perf_counter() - started)

    def stat(self, path: str) -> Stat:
        with self._round_trip():
            (answer,) = self._client.ask((CMD_STAT, _wire(path)))
        return _stat(answer)

    def survey(self, target: str, part: str) -> Survey:
        folder = posixpath.dirname(target) or "."
        asked = [(CMD_STAT, _wire(p)) for p in (target, part, folder)]
        whole, begun, above, room = self._client.ask(*asked, (CMD_EXTENDED, STATVFS, _wire(folder)))
        return Survey(_stat(whole), _stat(begun), _stat(above), None if room.error else _free(room.message))

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
        (answer,) = self._client.ask((CMD_EXTENDED, STATVFS, _wire(folder)))
        return None if answer.error else _free(answer.message)

    def create(self, path: str) -> None:
        """Make an empty file; FileExistsError if there is one already."""
        self._client.tell(CMD_CLOSE, self._open_new(path))

    def send(self, path: str, span: Span, moved: Moved, *, new: bool) -> None:
        """Write a span into a file and have the disk keep it; `new`: FileExistsError if the file is there already."""
        with self._writing(path, new=new) as write:
            write(span, moved)

    def writer(self, path: str) -> AbstractContextManager[Mover]:
        """Writes spans into a file that is there."""
        return self._writing(path, new=False)

    @contextmanager
    def _writing(self, path: str, *, new: bool) -> Iterator[Mover]:
        handle = self._open_new(path) if new else self._open(path, SFTP_FLAG_READ | SFTP_FLAG_WRITE)
        try:
            yield _Writer(self._client, handle, self._request).write
        except BaseException:
            self._let_go(handle)
            raise
        self._client.ask((CMD_EXTENDED, FSYNC, handle), (CMD_CLOSE, handle))  # a server without fsync keeps the file all the same

    def receive(self, path: str, span: Span, moved: Moved) -> None:
        """Read a span of a file into one here; less where the file is shorter."""
        with self.reader(path) as read:
            read(span, moved)

    @contextmanager
    def reader(self, path: str) -> Iterator[Mover]:
        """Reads spans of a file."""

        def read(span: Span, moved: Moved) -> None:
            position = span.start
            for blocks in _Reader(self._client, handle, self._request).blocks(span.start, span.end):
                count = write_at(span.fd, blocks, position)
                position += count
                moved(count)

        with self._reading(path) as handle:
            yield read

    def _blocks(self, path: str, start: int, end: int) -> Iterator[Block]:
        with self._reading(path) as handle:
            for blocks in _Reader(self._client, handle, self._request).blocks(start, end):
                yield from blocks

    @contextmanager
    def _reading(self, path: str) -> Iterator[bytes]:
        handle = self._open(path, SFTP_FLAG_READ)
        try:
            yield handle
        finally:
            self._let_go(handle)

    def _let_go(self, handle: bytes) -> None:
        with suppress(OSError, EOFError):  # the connection may be lost, and is why
            self._client.tell(CMD_CLOSE, handle)

    def _open_new(self, path: str) -> bytes:
        try:
            return self._open(path, SFTP_FLAG_WRITE | SFTP_FLAG_CREATE | SFTP_FLAG_EXCL)
        except OSError:
            if self.stat(path).kind == "file":
                raise FileExistsError(path) from None
            raise

    def _open(self, path: str, flags: int) -> bytes:
        (answer,) = self._client.ask((CMD_OPEN, _wire(path), flags, NO_ATTRIBUTES))
        return bytes(_told(answer).get_binary())


def _told(answer: Answer) -> Any:
    """The message; raises what the server refused with."""
    if answer.error is not None:
        raise answer.error
    return answer.message


def _stat(answer: Answer) -> Stat:
    if isinstance(answer.error, FileNotFoundError):
        return Stat("none")
    found = SFTPAttributes._from_msg(_told(answer))  # type: ignore[attr-defined]
    mode = found.st_mode or 0
    kind = "folder" if modes.S_ISDIR(mode) else "file" if modes.S_ISREG(mode) else "other"
    return Stat(kind, found.st_size or 0)


def _free(message: Any) -> int:
    """Bytes free for the user, of an answer to STATVFS."""
    _, fragment, _, _, available = (message.get_int64() for _ in range(5))
    return int(fragment * available)


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
        for position in range(span.start, span.end, self._request):
            data = os.pread(span.fd, min(self._request, span.end - position), position)
            self._client.write(self, self._handle, position, data)
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
        self._arrived: dict[int, list[Block]] = {}  # offset -> data

    def blocks(self, offset: int, end: int) -> Iterator[list[Block]]:
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
                count = sum(map(len, data))
                at, length = at + count, length - count
                if length:  # a server may give less than was asked for
                    self._ask(at, length)

    def _ask(self, offset: int, length: int) -> None:
        number = self._client._async_request(self, CMD_READ, self._handle, int64(offset), length)
        self._waiting[number] = offset, length

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Called by the client with the answer to one request."""
        offset, _ = self._waiting.pop(number)
        if kind == CMD_DATA:
            self._arrived[offset] = self._client.data
            return
        if kind != CMD_STATUS:
            raise TransferError(f"SFTP: answer of kind {kind} to a read")
        with suppress(EOFError):
            self._client._convert_status(message)
        self._arrived[offset] = []
