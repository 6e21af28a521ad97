"""Judged cases kept in a file while a comparison runs, so that one that was interrupted goes on where it stopped.

A line is a SHA-256 and JSON: the first names the comparison (`Comparison.identity`), every other a case with its results. Each digest
covers that name too, so no line says anything about another comparison. Reading ends at the first line that is not whole, and the file
is cut there: what was half written when the process ended is judged again.

A journal saves time and nothing else: where it cannot be written any more it is removed, and the comparison goes on. A file that is none
is left as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from accuracy_eval.compare.comparison import Found, Judged
from accuracy_eval.compare.joining import Key
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.json_data import from_json, to_json
from accuracy_eval.kept import Packed, json_line, packed_data
from accuracy_eval.locking import locked
from accuracy_eval.records import NotCompared, TensorResult, Verdict

HEADER = re.compile(rb'[0-9a-f]{64} \{"comparison": "[^"]*"\}\n')
IRREGULAR = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class Journal:
    """The journal of a comparison. Use as a context manager; `judged` holds what an earlier run of the same comparison left.

    UsageError while another process writes it; FileError where it cannot be opened, or something else is there.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self._identity = path, identity
        try:
            descriptor = locked(path, lambda: _opened(path))
        except BlockingIOError:
            raise UsageError(f"{path.parent}: another comparison is writing there; wait for it, or name another folder with -o") from None
        self._file: BinaryIO = _journal(path, descriptor)
        self._given_up = False
        self.judged: dict[Key, Judged] = {}
        whole = 0
        for end, data in self._lines():
            if not self._take(whole == 0, data):
                break
            whole = end
        with self._or_given_up():
            self._file.seek(whole)
            self._file.truncate()
            if not whole:
                self._write(json_line({"comparison": identity}))
                self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, found: Found) -> None:
        """Keep results. Cases with an error are left out: a process that was lost may not be the next time."""
        if self._given_up:
            return
        with self._or_given_up():
            for (ident, candidate), results in found:
                if all(r.verdict is not Verdict.ERROR for r in results):
                    self._write(f"[{json_line(ident)}, {json_line(candidate)}, [{', '.join(map(_text, results))}]]")
            self._file.flush()

    @contextmanager
    def _or_given_up(self) -> Iterator[None]:
        """Where the disk takes no more, the journal is removed."""
        try:
            yield
        except OSError as error:
            self._given_up = True
            with suppress(OSError):
                self.path.unlink()
            with suppress(OSError):  # what is still buffered fails again
                self._file.close()
            why = f"{self.path}: {error.strerror}"
            print(f"compare: {why}; judged results are not kept any more, and nothing else changes", file=sys.stderr, flush=True)

    def _write(self, line: str) -> None:
        text = line.encode("ascii")
        self._file.write(self._digest(text) + b" " + text + b"\n")

    def _digest(self, text: bytes) -> bytes:
        return hashlib.sha256(self._identity.encode() + text, usedforsecurity=False).hexdigest().encode()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """(offset behind it, text) of every line whose digest is right, up to the first whose is not."""
        end = 0
        for line in self._file:
            end += len(line)
            digest, _, text = line.partition(b" ")
            if not text.endswith(b"\n") or digest != self._digest(text[:-1]):
                return
            yield end, text

    def _take(self, first: bool, text: bytes) -> bool:
        """Whether a line is what it should be; its results are then held."""
        data = json.loads(text)
        if first:
            return bool(data == {"comparison": self._identity})
        ident, candidate, results = data
        self.judged[ident, candidate] = _judged(results)
        return True


def _opened(path: Path) -> int:
    """A descriptor of the file, made where there is none. FileError where it cannot be, or something else is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        with suppress(FileNotFoundError, NotADirectoryError):
            _require_regular(path, os.lstat(path).st_mode)
        raise FileError(f"{path}: cannot be written: {error.strerror}; name another folder with -o") from error
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except FileError:
        os.close(descriptor)
        raise
    return descriptor


def _journal(path: Path, descriptor: int) -> BinaryIO:
    """The file, open. FileError unless it is empty or a journal: whose it is nobody knows, so it is not touched."""
    file = os.fdopen(descriptor, "r+b")
    start = file.readline(1024)
    if start and not HEADER.fullmatch(start):
        size = file.seek(0, os.SEEK_END)
        file.close()
        raise _taken(path, f"a file of {size} bytes that is not a journal of a comparison")
    file.seek(0)
    return file


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise _taken(path, IRREGULAR.get(stat.S_IFMT(mode), "a device"))


def _taken(path: Path, what: str) -> FileError:
    return FileError(f"{path}: {what}, where a comparison keeps what it has judged; move it away, or name another folder with -o")


def _text(result: TensorResult | Packed | NotCompared) -> str:
    """A result with its kind."""
    kind = "not_compared" if isinstance(result, NotCompared) else "tensor"
    return f'["{kind}", {result.text if isinstance(result, Packed) else json_line(to_json(result))}]'


def _judged(results: Iterable[tuple[str, Any]]) -> Judged:
    """What `_text` wrote of one key; tensors stay packed."""
    held = list(results)
    texts = iter(packed_data(data for kind, data in held if kind == "tensor"))
    return [next(texts) if kind == "tensor" else from_json(NotCompared, data) for kind, data in held]
