"""Files of a host through its login shell: constant scripts, and names passed so that no shell can take them for anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer.sessions import Session, exit_status

if TYPE_CHECKING:
    import paramiko

SLOWEST_DIGEST_BYTES_PER_S = 20e6  # of a far host: how long to wait for a digest
RECEIVE_BYTES = 1 << 20

# $1, $2 … hold names with every unusual byte as \0ooo; `n` undoes that. The underscore keeps trailing newlines.
_NAMES = 'n() { printf %b_ "$1"; }; p=$(n "$1"); p=${p%_}; q=$(n "$2"); q=${q%_}; '

# Preferred first. Each reads standard input; the digest is the last word, or the first that is 64 hex digits.
DIGEST_TOOLS = {
    "sha256sum": "sha256sum",
    "python3": 'python3 -c "import sys,hashlib;h=hashlib.sha256();'
    '[h.update(b) for b in iter(lambda:sys.stdin.buffer.read(1048576),bytes())];print(h.hexdigest())"',
    "shasum": "shasum -a 256",
    "openssl": "openssl dgst -sha256",
}


class Stat(NamedTuple):
    """What is at a path: "file", "folder", "other" or "none"; the size of a file."""

    kind: str
    size: int = 0


def encode_word(text: str) -> str:
    r"""A name as a shell word that sh, csh and fish all read alike: safe characters as they are, every other byte as \0ooo."""
    safe = re.compile(rb"[A-Za-z0-9_./=@%+,:-]")
    data = text.encode("utf-8", "surrogateescape")
    return "'" + "".join(chr(b) if safe.match(bytes([b])) else f"\\0{b:03o}" for b in data) + "'"


def script(text: str, *words: str) -> str:
    """The command line that runs `text` in sh with the words decoded as $p, $q. `text` must hold no single quote and no '!'."""
    return f"sh -c '{_NAMES}{text}' sh {' '.join(encode_word(w) for w in words)}"


def absolute_or_dotted(path: str) -> str:
    """The path so that no program takes it for an option."""
    return path if path.startswith("/") else f"./{path}"


class Shell:
    """File operations by commands. Needs a POSIX sh with cat, wc, mkdir, mv, rm, tail, head and find."""

    method = "exec"

    def __init__(self, session: Session, tools: Iterable[str]) -> None:
        self._session = session
        self.tools = tuple(tools)

    @classmethod
    def probe(cls, session: Session) -> Shell | None:
        """A Shell where the login shell runs a script and prints nothing of its own; None otherwise (SFTP only, noisy start-up files)."""
        names = " ".join(DIGEST_TOOLS)
        command = script(f"echo begin; for t in {names}; do command -v $t >/dev/null 2>&1 && echo $t; done; echo end")
        _, out, _ = session.run(command)
        lines = out.decode("utf-8", "replace").split("\n")
        if lines[:1] != ["begin"] or lines[-2:] != ["end", ""] or not set(lines[1:-2]) <= set(DIGEST_TOOLS):
            return None
        return cls(session, lines[1:-2])

    def _run(self, text: str, *paths: str, timeout_s: float | None = None) -> bytes:
        status, out, err = self._session.run(script(text, *(absolute_or_dotted(p) for p in paths)), timeout_s=timeout_s)
        if status != 0:
            reason = err.decode("utf-8", "replace").strip() or f"exit status {status}"
            raise TransferError(f"{self._session.label}: {', '.join(paths)}: {reason}")
        return out

    def stat(self, path: str) -> Stat:
        text = 'if [ -d "$p" ]; then echo folder 0; elif [ -f "$p" ]; then echo file $(wc -c < "$p"); '
        text += 'elif [ -e "$p" ] || [ -L "$p" ]; then echo other 0; else echo none 0; fi'
        words = self._run(text, path).split()
        if len(words) != 2 or not words[1].isdigit():
            raise TransferError(f"{self._session.label}: {path}: cannot be read; check its permissions")
        return Stat(words[0].decode(), int(words[1]))

    def make_folders(self, path: str) -> None:
        self._run('mkdir -p "$p"', path)

    def replace(self, old: str, new: str) -> None:
        self._run('if [ -d "$q" ]; then echo "is a folder" >&2; exit 1; fi; mv -f "$p" "$q"', old, new)

    def remove(self, path: str) -> None:
        self._run('rm -f "$p"', path)

    def walk(self, path: str) -> list[tuple[str, int]]:
        """(path relative to `path`, size) of every file below a folder."""
        out = self._run('cd "$p" && find . -type f -print0', path)
        names = sorted(n.decode("utf-8", "surrogateescape")[2:] for n in out.split(b"\0") if n)
        return [(n, self.stat(f"{path}/{n}").size) for n in names]

    def digest(self, path: str, length: int | None = None) -> str | None:
        """SHA-256 of a file or of its first `length` bytes, computed there; None where the host has no tool for it."""
        if not self.tools:
            return None
        size = self.stat(path).size if length is None else length
        tool = DIGEST_TOOLS[self.tools[0]]
        text = f'{tool} < "$p"' if length is None else f'head -c {int(length)} "$p" | {tool}'
        out = self._run(text, path, timeout_s=self._session.timeout_s + size / SLOWEST_DIGEST_BYTES_PER_S).decode("utf-8", "replace")
        found = re.search(r"\b[0-9a-f]{64}\b", out)
        return found[0] if found else None

    def send(self, path: str, offset: int, blocks: Iterable[bytes]) -> None:
        """Write blocks to a file: a new one (offset 0), or behind the `offset` bytes it has."""
        channel = self._session.channel()
        try:
            channel.exec_command(script(f'cat {">>" if offset else ">"} "$p"', absolute_or_dotted(path)))
            packet = max(1, channel.out_max_packet_size - 64)
            for block in blocks:
                view = memoryview(block)
                for i in range(0, len(view), packet):
                    self._send_all(channel, bytes(view[i : i + packet]), path)
            channel.shutdown_write()
            self._finish(channel, path)
        finally:
            channel.close()

    def _send_all(self, channel: paramiko.Channel, data: bytes, path: str) -> None:
        while data:
            try:
                sent = channel.send(data)
            except TimeoutError:
                raise
            except OSError:
                sent = 0
            if sent == 0:  # the command has ended; what it said is the reason
                self._finish(channel, path)
                raise TransferError(f"{self._session.label}: {path}: the far end stopped reading; run again to go on from here")
            data = data[sent:]

    def receive(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on."""
        channel = self._session.channel(download=True)
        try:
            text = f'tail -c +{int(offset) + 1} "$p"' if offset else 'cat "$p"'
            channel.exec_command(script(text, absolute_or_dotted(path)))
            channel.shutdown_write()
            while block := channel.recv(RECEIVE_BYTES):
                yield block
            self._finish(channel, path)
        finally:
            channel.close()

    def _finish(self, channel: paramiko.Channel, path: str) -> None:
        """Raise what the command complained about; a connection that was cut gives no status."""
        err = b""
        while block := channel.recv_stderr(1 << 16):
            err += block
        status = exit_status(channel, self._session.timeout_s)
        if status == -1:
            raise TransferError(f"{self._session.label}: {path}: the connection was lost; run again to go on from here")
        if status != 0:
            text = err.decode("utf-8", "replace").strip() or f"exit status {status}"
            raise TransferError(f"{self._session.label}: {path}: {text}")
