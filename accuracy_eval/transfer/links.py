"""What a connection to a host has to offer, whichever program made it: commands with their standard streams, and the SFTP subsystem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from accuracy_eval.errors import Interrupted, TransferError

GO_ON = "if the connection was lost, run again to go on from here"
MAX_OUTPUT_BYTES = 1 << 26
READ_BYTES = 1 << 20


Moved = Callable[[int], None]  # told how many bytes have just gone their way; may take its time


class Span(NamedTuple):
    """The bytes from `start` to `end` of a file that is open here."""

    fd: int
    start: int
    end: int


Mover = Callable[[Span, Moved], None]


class Pipe(Protocol):
    """A command at work on the host. Every wait raises TimeoutError after the link's time-out."""

    def write(self, data: bytes) -> None:
        """To its standard input; BrokenPipeError when it reads no more."""

    def close_input(self) -> None: ...

    def read(self) -> bytes:
        """From its standard output; b"" at the end."""

    def send_file(self, span: Span, moved: Moved) -> None:
        """A file's bytes, as many as there are, to its standard input; BrokenPipeError when it reads no more."""

    def receive_file(self, span: Span, moved: Moved) -> None:
        """Its standard output, until that ends or the span is full, into a file; what comes after that is lost."""

    def finish(self) -> tuple[int, bytes]:
        """(exit status, standard error) once it has ended; status −1 where the far end gives none (killed, connection lost)."""

    def close(self) -> None: ...


class Link(Protocol):
    """A connection to one host.

    label    user@host[:port] for messages
    name     which program carries it: "paramiko" or "openssh"
    rtt_s    the shortest round trip seen so far
    openssh  whether the far end is an OpenSSH server
    """

    label: str
    name: str
    rtt_s: float
    timeout_s: float
    openssh: bool

    @property
    def alive(self) -> bool: ...

    def start(self, command: str, *, download: bool = False, timeout_s: float | None = None) -> Pipe:
        """Start a command; `download`: its output is long."""

    def fetch(self, command: str, span: Span, moved: Moved) -> tuple[int, bytes]:
        """What a command without input prints into a span of a file here; exit status and standard error as of Pipe.finish.

        What it prints beyond the span may lie behind that or be lost.
        """

    def sftp(self, first: Sequence[Any] = ()) -> Any:
        """An asking.Client that has asked the first questions, or None where the host has no such subsystem."""

    def another(self) -> Link:
        """A further connection to the same host."""

    def close(self) -> None: ...


def run(link: Link, command: str, *, data: bytes = b"", timeout_s: float | None = None) -> tuple[int, bytes, bytes]:
    """(exit status, stdout, stderr) of a command fed with `data`; −1 where the far end gives no status."""
    pipe = link.start(command, timeout_s=timeout_s)
    try:
        try:
            if data:
                pipe.write(data)
            pipe.close_input()
        except BrokenPipeError:
            pass  # it has ended without reading all: its status says why
        out = bytearray()
        while block := pipe.read():
            out += block
            if len(out) > MAX_OUTPUT_BYTES:
                raise TransferError(f"{link.label}: a command printed more than {MAX_OUTPUT_BYTES} bytes")
        status, err = pipe.finish()
        return status, bytes(out), err
    finally:
        pipe.close()


def fetch(link: Link, command: str, span: Span, moved: Moved) -> tuple[int, bytes]:
    """Link.fetch through a pipe."""
    pipe = link.start(command, download=True)
    try:
        pipe.close_input()
        pipe.receive_file(span, moved)
        return pipe.finish()
    finally:
        pipe.close()


@contextmanager
def failures_named(label: str, what: str, remedy: str = GO_ON) -> Iterator[None]:
    """Turns what paramiko, sockets and pipes raise into errors naming host, step and remedy: Interrupted where trying again helps."""
    import paramiko

    try:
        yield
    except TimeoutError as e:
        raise Interrupted(f"{label}: {what}: no answer in time ({str(e) or 'timed out'}); {remedy}") from e
    except (paramiko.SSHException, EOFError, ConnectionError) as e:
        raise Interrupted(f"{label}: {what}: {str(e) or type(e).__name__}; {remedy}") from e
    except (OSError, UnicodeError) as e:
        kind = Interrupted if str(e) == "Socket is closed" else TransferError  # a closed channel has no error number
        raise kind(f"{label}: {what}: {str(e) or type(e).__name__}; {remedy}") from e
