"""One authenticated SSH connection: sockets, jumps, host key, keys and agent, channels with a limit on every wait."""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer import hostkeys
from accuracy_eval.transfer.buffering import HEAD_BYTES, Block
from accuracy_eval.transfer.configuration import Target, resolve
from accuracy_eval.transfer.links import MAX_OUTPUT_BYTES, READ_BYTES, Moved, Span, failures_named, fetch
from accuracy_eval.transfer.locations import Location, Options
from accuracy_eval.transfer.signing import sign_in
from accuracy_eval.transfer.splicing import write_at

if TYPE_CHECKING:
    import paramiko

    from accuracy_eval.transfer.ordering import OrderedTransport

MAX_JUMPS = 8
CIPHERS_FIRST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # 15 to 40 % faster than ctr with a separate MAC
KEEPALIVE_S = 15
LATER_S = 10
BURST_BYTES = 1 << 18  # sent at once
LEAST_BYTES = 1 << 18  # waited for, where more are to come
FAR_RTT_S = 0.02  # from here one channel does not fill a line: 2 MiB a round trip are 100 MB/s. A near host that is busy takes up to 12 ms
FAR_WINDOW_BYTES = 1 << 24
_QUIET = logging.NullHandler()
REACH = "check that `ssh` reaches the host by the same name"


class Session:
    """A connection made by paramiko, and those to the jump hosts on the way: a Link. Use as a context manager."""

    name = "paramiko"

    def __init__(self, location: Location, target: Target, transport: OrderedTransport, held: ExitStack, options: Options) -> None:
        self.target = target
        self.label = target.label
        self.transport = transport
        self.rtt_s = math.inf
        self.timeout_s = options.timeout_s
        self.openssh = "OpenSSH" in transport.remote_version
        self._location, self._options = location, options
        self._held = held

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return bool(self.transport.is_active())

    def close(self) -> None:
        """Close the connection and whatever it came through."""
        self._held.close()

    def another(self) -> Session:
        return connect(self._location, self._options)

    def start(self, command: str, *, download: bool = False, timeout_s: float | None = None) -> ChannelPipe:
        """A command in a channel of its own; a long output from a far host gets the window that the round trip needs."""
        window = FAR_WINDOW_BYTES if download and self.rtt_s > FAR_RTT_S else None
        channel = self._channel(window)
        channel.settimeout(timeout_s or self.timeout_s)
        with self._round_trip():
            channel.exec_command(command)
        return ChannelPipe(channel, self.timeout_s)

    def fetch(self, command: str, span: Span, moved: Moved) -> tuple[int, bytes]:
        return fetch(self, command, span, moved)

    def sftp(self, first: Sequence[Any] = ()) -> Any:
        import paramiko

        from accuracy_eval.transfer.asking import Client

        channel = self._channel(None)
        try:
            with self._round_trip():
                channel.invoke_subsystem("sftp")
            with self._round_trip():
                return Client(_BurstChannel(channel), first)
        except (paramiko.SSHException, EOFError):
            channel.close()
            return None

    def _channel(self, window: int | None) -> paramiko.Channel:
        from accuracy_eval.transfer.buffering import BlockPipe

        with self._round_trip():
            channel = self.transport.open_session(window_size=window, timeout=self.timeout_s)
        channel.in_buffer = BlockPipe()  # type: ignore[assignment]  # nothing has come yet: no command has been asked for
        channel.settimeout(self.timeout_s)
        return channel

    @contextmanager
    def _round_trip(self) -> Iterator[None]:
        """Around one question and its answer: the shortest of many counts, for a busy host that is near answers late now and then."""
        started = time.perf_counter()
        yield
        self.rtt_s = min(self.rtt_s, time.perf_counter() - started)


def send_burst(channel: Any, view: memoryview) -> int:
    """Send as much as the far end takes now, or a packet as soon as it takes one: how much; 0 when it takes no more."""
    packet = max(1, channel.out_max_packet_size - HEAD_BYTES)  # what one carries: no copy of a remainder
    if min(len(view), channel.out_window_size) <= packet:
        return int(channel.send(bytes(view[:packet])))  # waits for the window
    return int(channel.transport.send_data(channel, view[:BURST_BYTES]))


def read_blocks(channel: Any, most: int) -> list[Block]:
    """What `recv` would give, more of it and in the packets that it came in; [] at the end."""
    from paramiko.buffered_pipe import PipeTimeout

    try:
        blocks: list[Block] = channel.in_buffer.read_blocks(most, min(most, LEAST_BYTES), channel.timeout)
    except PipeTimeout:
        raise TimeoutError("timed out") from None
    room = channel._check_add_window(sum(map(len, blocks)))
    if room:
        channel.transport.announce(channel, room)
    return blocks


class _BurstChannel:
    """A channel as paramiko's SFTP client uses it, which copies what `send` has left for every packet of a request."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def send(self, data: bytes) -> int:
        return send_burst(self._channel, memoryview(data))

    def take(self, count: int) -> list[Block]:
        """The next bytes in the packets that they came in; EOFError where the channel ends before."""
        taken: list[Block] = []
        while count:
            blocks = read_blocks(self._channel, count)
            if not blocks:
                raise EOFError
            taken += blocks
            count -= sum(map(len, blocks))
        return taken


class ChannelPipe:
    """A command in a paramiko channel: a Pipe."""

    def __init__(self, channel: Any, timeout_s: float) -> None:
        self._channel = channel
        self._sending = channel.sending = RLock()
        self._timeout_s = timeout_s

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                with self._sending:
                    sent = send_burst(self._channel, view)
            except TimeoutError:
                raise
            except OSError:
                sent = 0
            if not sent:
                raise BrokenPipeError
            view = view[sent:]

    def close_input(self) -> None:
        with self._sending:
            self._channel.shutdown_write()

    def read(self) -> bytes:
        with self._sending:  # room for more is announced
            return bytes(self._channel.recv(READ_BYTES))

    def send_file(self, span: Span, moved: Moved) -> None:
        for position in range(span.start, span.end, READ_BYTES):
            block = os.pread(span.fd, min(READ_BYTES, span.end - position), position)
            self.write(block)
            moved(len(block))

    def receive_file(self, span: Span, moved: Moved) -> None:
        position = span.start
        while position < span.end:
            with self._sending:  # room for more is announced
                blocks = read_blocks(self._channel, min(READ_BYTES, span.end - position))
            if not blocks:
                break
            count = write_at(span.fd, blocks, position)
            position += count
            moved(count)
        while self.read():
            pass

    def finish(self) -> tuple[int, bytes]:
        err = bytearray()
        while len(err) < MAX_OUTPUT_BYTES and (block := self._channel.recv_stderr(1 << 16)):
            err += block
        self._channel.status_event.wait(self._timeout_s)  # paramiko's own wait has no limit
        return (self._channel.recv_exit_status() if self._channel.exit_status_ready() else -1), bytes(err)

    def close(self) -> None:
        self._channel.close()


def connect(location: Location, options: Options) -> Session:
    """An authenticated session with a verified host key.

    TransferError for what is wrong on the way, HostKeyError for an unknown or changed key; nothing is sent to such a host.
    """
    return _connect(location, options, None, 0)


def _connect(location: Location, options: Options, through: Session | None, depth: int) -> Session:
    from accuracy_eval.transfer.ordering import OrderedTransport

    logging.getLogger("paramiko").addHandler(_QUIET)  # what goes wrong is raised; unhandled, Python would print it as well
    if depth > MAX_JUMPS:
        raise TransferError(f"{location.host}: more than {MAX_JUMPS} jump hosts; ProxyJump of the ssh configuration goes in circles")
    target = resolve(location, options)
    with ExitStack() as undo:
        if through is None:
            for hop in target.jumps:
                through = undo.enter_context(_connect(hop, replace(options, port=None), through, depth + 1))
        with failures_named(target.label, f"connecting through {through.label}" if through else "connecting", REACH):
            transport = OrderedTransport(_socket(target, options, through, undo))
        undo.callback(transport.close)
        transport.daemon = True
        transport.packetizer.timeout_s = options.timeout_s
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = options.timeout_s
        _prefer(transport, target)
        with failures_named(target.label, "SSH handshake", REACH):
            transport.start_client(timeout=options.timeout_s)
            key = transport.get_remote_server_key()
        hostkeys.check(target, key)
        with failures_named(target.label, "signing in", REACH):
            sign_in(transport, target, options)
            transport.set_keepalive(KEEPALIVE_S)
        return Session(location, target, transport, undo.pop_all(), options)


def _socket(target: Target, options: Options, through: Session | None, undo: ExitStack) -> Any:
    """A connected socket, or the channel through a jump host that stands for one. `undo` learns how to close it."""
    if through is not None:
        return through.transport.open_channel("direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=options.timeout_s)
    if target.proxy_command:
        return _proxy(target.proxy_command, undo)
    sock = undo.enter_context(socket.create_connection((target.host, target.port), timeout=target.connect_timeout_s))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # paramiko does not: 40 ms a small write
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a peer that stops acknowledging ends the connection, after our own limits, which name it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * (options.timeout_s + LATER_S)))
    return sock


def _proxy(command: str, undo: ExitStack) -> socket.socket:
    """A socket whose other end is the command's standard input and output; the command ends with it."""
    near, far = socket.socketpair()
    with far:
        process = subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], stdin=far.fileno(), stdout=far.fileno())
    undo.callback(_end, process)
    undo.enter_context(near)
    return near


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _prefer(transport: paramiko.Transport, target: Target) -> None:
    security = transport.get_security_options()
    ciphers = tuple(security.ciphers)
    security.ciphers = tuple(c for c in CIPHERS_FIRST if c in ciphers) + tuple(c for c in ciphers if c not in CIPHERS_FIRST)
    types = tuple(security.key_types)
    known = [t for name in hostkeys.known_types(target) for t in ((name,) if name != "ssh-rsa" else ("rsa-sha2-512", "rsa-sha2-256"))]
    security.key_types = tuple(t for t in known if t in types) + tuple(t for t in types if t not in known)
