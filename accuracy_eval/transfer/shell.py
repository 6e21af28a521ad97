"""Files of a host through its login shell: constant scripts, and names passed so that no shell can take them for anything else."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from accuracy_eval.errors import Interrupted, TransferError
from accuracy_eval.transfer.links import GO_ON, READ_BYTES, Link, Moved, Mover, Pipe, Span, run

SLOWEST_DIGEST_BYTES_PER_S = 20e6  # of a far host: how long to wait for a digest

# $1, $2 … hold names with every unusual byte as \0ooo; `n` undoes that. The underscore keeps trailing newlines.
_NAMES = 'n() { printf %b_ "$1"; }; p=$(n "$1"); p=${p%_}; q=$(n "$2"); q=${q%_}; '

# Fastest first: libraries use the processor's SHA instructions, most builds of sha256sum do not. Each reads standard input; the digest is
# the first word of 64 hex digits.
DIGEST_TOOLS = {
    "openssl": "openssl dgst -sha256",
    "python3": 'python3 -c "import sys,hashlib;h=hashlib.sha256();'
    '[h.update(b) for b in iter(lambda:sys.stdin.buffer.read(1048576),bytes())];print(h.hexdigest())"',
    "sha256sum": "sha256sum",
    "shasum": "shasum -a 256",
}
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
LEAST_BLOCK_BYTES = 1 << 12
EXISTS = 17  # exit status of a script that was to make a file which is there already

# Bytes go to their places, not to the end: two transfers of one file write the same bytes over each other. dd only moves the offset.
_NEW = f'set -C; true > "$p" || {{ [ -e "$p" ] && exit {EXISTS}; exit 1; }}; set +C; '
_KEEP = '{ sync "$p" 2>/dev/null || true; }'
_WRITE = f'cat 1<> "$p" && {_KEEP}'
INPUT, OUTPUT = 0, 1
LONG_BYTES = 1 << 24  # from here a wider pipe is worth the start of a program
_WRITE_AT = f'{{ dd bs=1 seek=%d count=0 2>/dev/null && cat; }} 1<> "$p" && {_KEEP}'
# Reads $p as it grows, until there is something on standard input and no more in the file; prints the digest, unless
# the name has gone to another file, then what there was on standard input. Where python3 cannot start, that alone is printed.
_FOLLOW = (
    '{ python3 -c "import hashlib,os,select,sys;h=hashlib.sha256();f=os.open(sys.argv[1],0);'
    "d=lambda:[h.update(b) for b in iter(lambda:os.read(f,1<<19),bytes())];"
    "[d() for _ in iter(lambda:len(select.select([0],[],[],.01)[0]),1)];"
    'd();print(h.hexdigest()*os.path.samestat(os.fstat(f),os.stat(sys.argv[1])));print(int(os.read(0,9)))" "$p" 2>/dev/null || cat; }'
)


_STATUS = re.compile(r"\b[0-9]{1,3}(?=\n*\Z)")


def _reader(start: int, end: int) -> str:
    """Prints a file from `start` to `end` at least: in blocks that begin there where it can, for small ones cost."""
    block = math.gcd(start, READ_BYTES)
    if block < LEAST_BLOCK_BYTES:
        return f'tail -c +{start + 1} "$p" | head -c {end - start}'
    return f'< "$p" dd bs={block} skip={start // block} count={-(-(end - start) // block)} 2>/dev/null'


_PASS = "cat"
# The same up to the positions, one a line, on standard input.
_FOLLOW_POSITIONS = (
    'python3 -c "import hashlib,os,sys;h=hashlib.sha256();f=os.open(sys.argv[1],0);'
    "[h.update(b) for p in sys.stdin for b in iter(lambda:os.read(f,min(1<<19,int(p)-os.lseek(f,0,1))),bytes())];"
    'print(h.hexdigest()*os.path.samestat(os.fstat(f),os.stat(sys.argv[1])))" "$p"'
)


class Stat(NamedTuple):
    """What is at a path: "file", "folder", "other" or "none"; the size of a file."""

    kind: str
    size: int = 0


class Survey(NamedTuple):
    """What is there before a file is sent, and the bytes free in its folder; None where the host cannot tell."""

    target: Stat
    part: Stat
    folder: Stat
    room: int | None


def encode_word(text: str) -> str:
    r"""A name as a shell word that sh, csh and fish all read alike: safe characters as they are, every other byte as \0ooo."""
    safe = re.compile(rb"[A-Za-z0-9_./=@%+,:-]")
    data = text.encode("utf-8", "surrogateescape")
    return "'" + "".join(chr(b) if safe.match(bytes([b])) else f"\\0{b:03o}" for b in data) + "'"


def script(text: str, *words: str) -> str:
    """The command line that runs `text` in sh with the words decoded as $p, $q. `text` must hold no single quote and no '!'."""
    return f"sh -c '{_NAMES}{text}' sh {' '.join(encode_word(w) for w in words)}"


_ARGUMENTS = 'n() { printf %b_ "$1"; }; i=$#; while [ $i -gt 0 ]; do w=$(n "$1"); shift; set -- "$@" "${w%_}"; i=$((i-1)); done; '


def argument_script(text: str, *words: str) -> str:
    """The command line that runs `text` in sh with the words, however many, decoded as $1, $2, …; `text` as for `script`."""
    return f"sh -c '{_ARGUMENTS}{text}' sh {' '.join(encode_word(w) for w in words)}"


def absolute_or_dotted(path: str) -> str:
    """The path so that no program takes it for an option."""
    return path if path.startswith("/") else f"./{path}"


class Shell:
    """File operations by commands. Needs a POSIX sh with cat, dd, df, find, head, mkdir, mv, rm, tail and wc."""

    def __init__(self, link: Link, home: str, tools: Iterable[str]) -> None:
        self.link = link
        self.home = home
        self.tools = tuple(tools)
        self.method = "exec" if link.name == "paramiko" else link.name

    @classmethod
    def probe(cls, link: Link) -> Shell | None:
        """A Shell where the login shell runs a script and prints nothing of its own; None otherwise (SFTP only, noisy start-up files)."""
        names = " ".join(DIGEST_TOOLS)
        command = script(f"echo begin; pwd -P; for t in {names}; do command -v $t >/dev/null 2>&1 && echo $t; done; echo end")
        _, out, _ = run(link, command)
        lines = out.decode("utf-8", "replace").split("\n")
        if lines[:1] != ["begin"] or lines[-2:] != ["end", ""] or not set(lines[2:-2]) <= set(DIGEST_TOOLS):
            return None
        return cls(link, lines[1], lines[2:-2])

    def on(self, link: Link) -> Shell:
        """The same host's shell by another connection."""
        return Shell(link, self.home, self.tools)

    def close(self) -> None:
        """Nothing stays open between commands."""

    def _run(self, text: str, *paths: str, timeout_s: float | None = None) -> bytes:
        status, out, err = run(self.link, script(text, *(absolute_or_dotted(p) for p in paths)), timeout_s=timeout_s)
        self._check(status, err, ", ".join(paths))
        return out

    def _check(self, status: int, err: bytes, what: str) -> None:
        """Raise what a command complained about."""
        place = f"{self.link.label}: {what}"
        if status == EXISTS:
            raise FileExistsError(what)
        said = err.decode("utf-8", "replace").strip()
        if status < 0:
            raise Interrupted(
                f"{place}: {said or 'the command ended without a status: it was killed there, or the connection was lost'}; {GO_ON}"
            )
        if status != 0:
            raise TransferError(f"{place}: {said or f'exit status {status}'}")

    def has(self, *tools: str) -> bool:
        """Whether the host has all these commands."""
        out = self._run(" && ".join(f"command -v {t} >/dev/null" for t in tools) + " && echo yes || echo no", ".")
        return out.strip() == b"yes"

    def run_in(self, folder: str, text: str, data: bytes, word: str = "") -> bytes:
        """What `text` prints when it runs in a folder, fed with `data`; `word` is $q there."""
        status, out, err = run(self.link, script(f'cd "$p" && {{ {text}; }}', absolute_or_dotted(folder), word), data=data)
        self._check(status, err, folder)
        return out

    def stat(self, path: str) -> Stat:
        text = 'if [ -d "$p" ]; then echo folder 0; elif [ -f "$p" ]; then echo file $(wc -c < "$p"); '
        text += 'elif [ -e "$p" ] || [ -L "$p" ]; then echo other 0; else echo none 0; fi'
        words = self._run(text, path).split()
        if len(words) != 2 or not words[1].isdigit():
            raise TransferError(f"{self.link.label}: {path}: cannot be read; check its permissions")
        return Stat(words[0].decode(), int(words[1]))

    def survey(self, target: str, part: str) -> Survey:
        folder = self.stat(posixpath.dirname(target) or ".")
        room = self.room(posixpath.dirname(target) or ".") if folder.kind == "folder" else None
        return Survey(self.stat(target), self.stat(part), folder, room)

    def make_folders(self, path: str) -> None:
        self._run('mkdir -p "$p"', path)

    def replace(self, old: str, new: str) -> None:
        self._run('if [ -d "$q" ]; then echo "is a folder" >&2; exit 1; fi; mv -f "$p" "$q"', old, new)

    def remove(self, path: str) -> None:
        self._run('rm -f "$p"', path)

    def walk(self, path: str) -> list[tuple[str, int]]:
        """(path relative to `path`, size) of every file below a folder."""
        out = self._run('cd "$p" && { find . -type f -printf "%s %P\\0" 2>/dev/null || find . -type f -print0; }', path)
        found = []
        for entry in out.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            size, _, name = entry.partition(" ")
            if size.isdigit():
                found.append((name, int(size)))
            else:  # a find without -printf
                found.append((entry[2:], self.stat(f"{path}/{entry[2:]}").size))
        return sorted(found)

    def digest(self, path: str, size: int, length: int | None = None) -> str:
        """SHA-256 of a file of about `size` bytes or of its first `length`: computed there, or by reading it back without a tool."""
        for tool in self.tools[:1]:
            command = DIGEST_TOOLS[tool]
            text = f'{command} < "$p"' if length is None else f'head -c {int(length)} "$p" | {command}'
            out = self._run(text, path, timeout_s=self.link.timeout_s + (length or size) / SLOWEST_DIGEST_BYTES_PER_S).decode(
                "utf-8", "replace"
            )
            if found := DIGEST.search(out):
                return found[0]
        digest = hashlib.sha256(usedforsecurity=False)
        pipe = self.link.start(script('cat "$p"' if length is None else _reader(0, length), absolute_or_dotted(path)), download=True)
        try:
            pipe.close_input()
            while block := pipe.read():
                digest.update(block)
            self._check(*pipe.finish(), path)
        finally:
            pipe.close()
        return digest.hexdigest()

    def room(self, folder: str) -> int | None:
        """Bytes free for the user on the disk of a folder; None where the host cannot tell."""
        words = self._run('df -Pk "$p" | tail -n 1', folder).split()
        numbers = [w for w in words[1:] if w.isdigit()]  # the device's name may hold spaces; size, used, available follow
        return int(numbers[2]) * 1024 if len(numbers) >= 3 else None

    def send(self, path: str, span: Span, moved: Moved, *, new: bool) -> str | None:
        """Write a span into a file and have the disk keep it; `new`: FileExistsError if the file is there already.

        Returns the SHA-256 of a new file, where the host could compute it meanwhile.
        """
        return self._send(path, span, moved, start=_NEW if new else "", follow=_FOLLOW if new and "python3" in self.tools else _PASS)

    def create(self, path: str) -> None:
        """Make an empty file; FileExistsError if there is one already."""
        self._run(_NEW, path)

    @contextmanager
    def writer(self, path: str) -> Iterator[Mover]:
        """Writes spans into a file that is there."""

        def write(span: Span, moved: Moved) -> None:
            self._send(path, span, moved, start="", follow=_PASS)

        yield write

    def _send(self, path: str, span: Span, moved: Moved, *, start: str, follow: str) -> str | None:
        write = _WRITE_AT % span.start if span.start else _WRITE
        start = self._widen(INPUT, span) + start
        pipe = self.link.start(script(f"{start}{{ {{ {write}; }}; echo $?; }} | {follow}", absolute_or_dotted(path)))
        try:
            stopped = False
            try:
                pipe.send_file(span, moved)
                pipe.close_input()
            except BrokenPipeError:  # the command has ended; what it says is the reason
                stopped = True
            out = b"".join(iter(pipe.read, b"")).decode("utf-8", "replace")
            status, err = pipe.finish()
            written = _STATUS.search(out)
            self._check(status or (int(written[0]) if written else -1), err, path)
            if stopped:
                raise Interrupted(f"{self.link.label}: {path}: the far end stopped reading; {GO_ON}")
            found = DIGEST.search(out)
            return found[0] if found else None
        finally:
            pipe.close()

    def receive(self, path: str, span: Span, moved: Moved) -> None:
        """Read a span of a file into one here; less where the file is shorter."""
        command = script(self._widen(OUTPUT, span) + _reader(span.start, span.end), absolute_or_dotted(path))
        self._check(*self.link.fetch(command, span, moved), path)

    def _widen(self, end: int, span: Span) -> str:
        """Makes the pipe between the server and a command hold 1 MiB, where it can and that pays: with 64 KiB they wait for each other, and
        the server moves what it cannot pass on within its own memory, again and again."""
        if "python3" not in self.tools or span.end - span.start < LONG_BYTES:
            return ""
        return f'python3 -ISc "import fcntl;fcntl.fcntl({end},fcntl.F_SETPIPE_SZ,1<<20)" 2>/dev/null; '

    @contextmanager
    def reader(self, path: str) -> Iterator[Mover]:
        """Reads spans of a file."""

        def read(span: Span, moved: Moved) -> None:
            self.receive(path, span, moved)

        yield read

    def follower(self, path: str) -> Follower | None:
        """Computes the digest of a file that grows there; None where the host cannot."""
        return Follower(self, path) if "python3" in self.tools else None


class Follower:
    """A command that digests a file there up to where it is told that its bytes have arrived."""

    def __init__(self, shell: Shell, path: str) -> None:
        self._shell, self._path = shell, path
        self._pipe: Pipe | None = None

    def reach(self, position: int) -> None:
        """Say that the bytes before a position are in the file."""
        if self._pipe is None:
            self._pipe = self._shell.link.start(script(_FOLLOW_POSITIONS, absolute_or_dotted(self._path)))
        with suppress(BrokenPipeError):  # seen in its output, which is not a digest then
            self._pipe.write(b"%d\n" % position)

    def hexdigest(self) -> str | None:
        """Of the bytes reached; None where that did not work out."""
        if self._pipe is None:
            return None
        with suppress(BrokenPipeError):
            self._pipe.close_input()
        found = DIGEST.search(b"".join(iter(self._pipe.read, b"")).decode("utf-8", "replace"))
        return found[0] if found else None

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
