"""A connection made by the installed ssh program: its ciphers and its keys, the same commands over it."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer.configuration import resolve
from accuracy_eval.transfer.links import MAX_OUTPUT_BYTES, READ_BYTES, Moved, Span, fetch
from accuracy_eval.transfer.locations import Location, Options
from accuracy_eval.transfer.splicing import file_to_pipe, pipe_to_file

PIPE_BYTES = 1 << 20  # of a pipe to or from ssh: fewer switches between the two
POLL_S = 0.002
WATCH_S = 0.05  # between looks at what ssh has written
SSH_FAILED = 255  # exit status of ssh when it failed itself, or the command was killed
ECHO_S = 5.0  # a host that takes longer to send one byte back has no shell


def available() -> bool:
    return shutil.which("ssh") is not None


def has_aes() -> bool:
    """Whether the processor has AES instructions; True where that cannot be found out."""
    with suppress(OSError):
        words = Path("/proc/cpuinfo").read_text().split()
        return "aes" in words or ("flags" not in words and "Features" not in words)
    return True


class OpenSsh:
    """A master process of ssh, and one small ssh a command that shares its connection: a Link."""

    name = "openssh"
    openssh = True  # requests of its size are right for its own server, and refused by no other that is in use

    def __init__(self, location: Location, options: Options, *, batch: bool, rtt_s: float | None = None) -> None:
        """`batch`: never ask; otherwise ssh asks on the terminal itself. `rtt_s`: the round trip where it is known."""
        self.label = resolve(location, options).label
        self.timeout_s = options.timeout_s
        self._location, self._options, self._batch = location, options, batch
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="ae-"))  # short: a socket's path holds 104 bytes
            self._control = f"{folder}/c"
            complaints = undo.enter_context(tempfile.TemporaryFile())
            command = ["ssh", "-MN", *_options(location, options, batch), "-S", self._control, "--", location.host]
            self._master = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints)
            undo.callback(self._end)
            self._await(complaints)
            self._held = undo.pop_all()
        try:
            self.rtt_s = self._round_trip() if rtt_s is None else rtt_s
        except (OSError, EOFError):
            self.rtt_s = 0.0  # no shell to ask
        except BaseException:
            self.close()
            raise

    def _await(self, complaints: IO[bytes]) -> None:
        deadline = time.monotonic() + self.timeout_s
        while not os.path.exists(self._control):
            if self._master.poll() is not None:
                complaints.seek(0)
                reason = complaints.read(1 << 16).decode("utf-8", "replace").strip() or f"exit status {self._master.returncode}"
                raise TransferError(f"{self.label}: ssh: {reason}")
            if self._batch and time.monotonic() > deadline:
                raise TimeoutError("ssh does not sign in")
            time.sleep(POLL_S)

    def _round_trip(self) -> float:
        pipe = self.start("cat", timeout_s=min(self.timeout_s, ECHO_S))
        try:
            times = []
            for _ in range(3):  # the first one contains the start of the command
                started = time.perf_counter()
                pipe.write(b".")
                if not pipe.read():
                    raise EOFError("the far end ran no command")
                times.append(time.perf_counter() - started)
            return min(times)
        finally:
            pipe.close()

    @property
    def alive(self) -> bool:
        return self._master.poll() is None

    def close(self) -> None:
        self._held.close()

    def _end(self) -> None:
        self._master.terminate()
        try:
            self._master.wait(5)
        except subprocess.TimeoutExpired:
            self._master.kill()
            self._master.wait()

    def another(self) -> OpenSsh:
        return OpenSsh(self._location, self._options, batch=True)

    def _command(self, *words: str) -> list[str]:
        return [
            "ssh",
            "-T",
            "-S",
            self._control,
            "-o",
            "ControlMaster=no",
            "-o",
            "BatchMode=yes",
            *words[:-1],
            "--",
            self._location.host,
            words[-1],
        ]

    def start(self, command: str, *, download: bool = False, timeout_s: float | None = None) -> ProcessPipe:
        return ProcessPipe(self._command(command), timeout_s or self.timeout_s)

    def fetch(self, command: str, span: Span, moved: Moved) -> tuple[int, bytes]:
        """The ssh program writes into the file itself, where nobody has to slow it down."""
        if self._options.rate_limit or not hasattr(os, "pidfd_open"):
            return fetch(self, command, span, moved)
        with ExitStack() as held:
            target = os.open(f"/proc/self/fd/{span.fd}", os.O_RDWR)  # with a position of its own
            held.callback(os.close, target)
            os.lseek(target, span.start, os.SEEK_SET)
            err = held.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(self._command(command), stdin=subprocess.DEVNULL, stdout=target, stderr=err)
            held.callback(_reap, process)
            ended = os.pidfd_open(process.pid)
            held.callback(os.close, ended)
            self._watch(ended, target, span.start, moved)
            return _result(process.wait(), err)

    def _watch(self, ended: int, target: int, position: int, moved: Moved) -> None:
        """Follow how far a process has written, until it ends; TimeoutError when it writes nothing for too long."""
        changed = time.monotonic()
        while time.monotonic() < changed + self.timeout_s:
            done, _, _ = select.select([ended], [], [], WATCH_S)
            reached = os.lseek(target, 0, os.SEEK_CUR)
            if reached > position:
                moved(reached - position)
                position, changed = reached, time.monotonic()
            if done:
                return
        raise TimeoutError

    def sftp(self, first: Sequence[Any] = ()) -> Any:
        import paramiko

        from accuracy_eval.transfer.asking import Client

        near, far = socket.socketpair()
        near.settimeout(self.timeout_s)
        with far:
            process = subprocess.Popen(self._command("-s", "sftp"), stdin=far.fileno(), stdout=far.fileno(), stderr=subprocess.DEVNULL)
        channel: Any = _SocketChannel(near, process)
        self._held.callback(channel.close)
        try:
            return Client(channel, first)
        except (paramiko.SSHException, EOFError, OSError):
            channel.close()
            return None


def _options(location: Location, options: Options, batch: bool) -> list[str]:
    """What ssh is told beyond its own configuration; host keys are checked as strictly as paramiko's side does."""
    settings = {
        "StrictHostKeyChecking": "accept-new" if options.accept_new else "yes",
        "BatchMode": "yes" if batch else "no",
        "ConnectTimeout": str(max(1, round(options.timeout_s))),
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "2",
        "Compression": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "ControlPersist": "no",
        "LogLevel": "ERROR",
    }
    if has_aes():
        settings["Ciphers"] = "^aes128-gcm@openssh.com"
    if options.known_hosts:
        settings |= {"UserKnownHostsFile": " ".join(f'"{p}"' for p in options.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
    words = [w for key, value in settings.items() for w in ("-o", f"{key}={value}")]
    if options.config_file is not None:
        words += ["-F", str(options.config_file)]
    port = location.port or options.port
    words += [w for pair in (("-p", str(port) if port else ""), ("-l", location.user or "")) if pair[1] for w in pair]
    return words + [w for path in options.identity_files for w in ("-i", str(path))]


class ProcessPipe:
    """A command run by a process of ssh: a Pipe."""

    def __init__(self, command: list[str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._err = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for stream in (self._in, self._out):
            os.set_blocking(stream.fileno(), False)
            with suppress(OSError, AttributeError):
                fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            _, ready, _ = select.select([], [self._in], [], self._timeout_s)
            if not ready:
                raise TimeoutError
            view = view[os.write(self._in.fileno(), view) :]

    def close_input(self) -> None:
        self._in.close()

    def read(self) -> bytes:
        ready, _, _ = select.select([self._out], [], [], self._timeout_s)
        if not ready:
            raise TimeoutError
        return os.read(self._out.fileno(), READ_BYTES)

    def send_file(self, span: Span, moved: Moved) -> None:
        position = span.start
        while position < span.end:
            _, ready, _ = select.select([], [self._in], [], self._timeout_s)
            if not ready:
                raise TimeoutError
            with suppress(BlockingIOError):
                count = file_to_pipe(span.fd, position, self._in.fileno(), min(READ_BYTES, span.end - position))
                if not count:
                    return
                position += count
                moved(count)

    def receive_file(self, span: Span, moved: Moved) -> None:
        position = span.start
        while position < span.end:
            ready, _, _ = select.select([self._out], [], [], self._timeout_s)
            if not ready:
                raise TimeoutError
            with suppress(BlockingIOError):
                count = pipe_to_file(self._out.fileno(), span.fd, position, min(READ_BYTES, span.end - position))
                if not count:
                    return
                position += count
                moved(count)
        while self.read():
            pass

    def finish(self) -> tuple[int, bytes]:
        try:
            status = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return _result(status, self._err)

    def close(self) -> None:
        for stream in (self._in, self._out, self._err):
            stream.close()
        _reap(self._process)


def _result(status: int, err: IO[bytes]) -> tuple[int, bytes]:
    err.seek(0)
    return (-1 if status == SSH_FAILED or status < 0 else status), err.read(MAX_OUTPUT_BYTES)


def _reap(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()


class _SocketChannel:
    """What paramiko's SFTP client needs of a channel, over a socket to an ssh process."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._sock = sock
        self._process = process

    def get_name(self) -> str:
        return "ssh"

    def send(self, data: bytes) -> int:
        return self._sock.send(data)

    def recv(self, size: int) -> bytes:
        return self._sock.recv(size)

    def recv_ready(self) -> bool:
        return bool(select.select([self._sock], [], [], 0)[0])

    def close(self) -> None:
        self._sock.close()
        self._process.terminate()
        self._process.wait()
