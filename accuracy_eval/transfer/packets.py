"""paramiko's packets with fewer copies and system calls, and a limit on every wait. Imports paramiko: import it to make a connection."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

import paramiko
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.packet import NeedRekeyException
from paramiko.packet import Packetizer as TheirPacketizer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

READ_BYTES = 1 << 18  # at once
MOST_BYTES = 1 << 20  # of a packet: paramiko asks for 32 KiB, and OpenSSH sends no more than 256 KiB
LEAST_PADDING_BYTES = 4
MOST_PARTS = 512  # of one write: less than any system's limit
DATA_BYTES = 10  # of a packet before a channel's data: padding length, kind, channel, length
LENGTH_BYTES, TAG_BYTES, PREFIX_BYTES, BLOCK_BYTES = 4, 16, 4, 16  # RFC 5647; the nonce begins with the prefix


class AheadSocket:
    """A socket that reads as much as there is, and keeps it. The rest of its methods are the socket's own."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(READ_BYTES + MOST_BYTES))
        self._start = self._end = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send_parts(self, parts: Sequence[memoryview]) -> int:
        """Send as much of the parts as is taken now: how much."""
        if hasattr(self._sock, "sendmsg"):
            return int(self._sock.sendmsg(parts))
        return int(self._sock.send(b"".join(parts)))  # a channel through a jump host

    def recv(self, most: int) -> bytes:
        if self._start == self._end and not self.fill():
            return b""
        return bytes(self.take(min(most, self.waiting)))

    @property
    def waiting(self) -> int:
        """How many bytes are here already."""
        return self._end - self._start

    def fill(self) -> int:
        """Read more: how much; 0 at the end."""
        if self._end + READ_BYTES > len(self._buffer) or self._start == self._end:
            waiting = self.waiting
            self._buffer[:waiting] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, waiting
        room = self._buffer[self._end : self._end + READ_BYTES]
        if hasattr(self._sock, "recv_into"):
            count = int(self._sock.recv_into(room))
        else:  # a channel through a jump host
            data = self._sock.recv(len(room))
            count = len(data)
            room[:count] = data
        self._end += count
        return count

    def peek(self, count: int) -> memoryview:
        """The next bytes; valid until the next `fill`."""
        return self._buffer[self._start : self._start + count]

    def take(self, count: int) -> memoryview:
        view = self.peek(count)
        self._start += count
        return view


class Sealer:
    """AES-GCM in one direction: the cipher, and the nonce that counts its packets."""

    def __init__(self, cipher: Any, iv: bytes) -> None:
        self.cipher = cipher
        self._prefix = iv[:PREFIX_BYTES]
        self._count = int.from_bytes(iv[PREFIX_BYTES:], "big")
        self.bytes_done = self.packets_done = 0

    def nonce(self) -> bytes:
        count = self._count
        self._count = (count + 1) % 2**64
        return self._prefix + count.to_bytes(8, "big")

    def count(self, size: int) -> None:
        self.bytes_done += size
        self.packets_done += 1


class Noise:
    """Random bytes for padding, many with one system call."""

    def __init__(self) -> None:
        self._left = b""

    def take(self, count: int) -> bytes:
        if len(self._left) < count:
            self._left = os.urandom(1 << 12)
        taken, self._left = self._left[:count], self._left[count:]
        return taken


class Packetizer(TheirPacketizer):
    """Reads many packets with one system call, and seals and opens those of AES-GCM itself; other ciphers stay paramiko's.

    timeout_s   how long the network may take no byte of a packet; TimeoutError then, and the connection is closed
    deliver     called with the number of a channel and data for it; where it says True, `read_message` goes on to the next packet
    """

    if TYPE_CHECKING:  # paramiko's annotations leave these out

        def _check_keepalive(self) -> None: ...
        def _trigger_rekey(self) -> None: ...

    timeout_s = 30.0
    deliver: Callable[[int, memoryview], bool] = staticmethod(lambda channel, data: False)

    def __init__(self, sock: Any) -> None:
        self._ahead = AheadSocket(sock)
        super().__init__(cast(Any, self._ahead))
        self._sending = RLock()
        self._opener: Sealer | None = None
        self._sealer: Sealer | None = None
        self._sequence = 0  # of the next packet to come
        self._overflow = 0  # bytes that came since new keys were asked for
        self._gathered: list[bytes] | None = None
        self._noise = Noise()

    def set_inbound_cipher(self, block_engine: Any, *arguments: Any, **options: Any) -> None:
        super().set_inbound_cipher(block_engine, *arguments, **options)
        self._opener = Sealer(block_engine, options["iv_in"]) if options.get("aead") else None
        self._overflow = 0

    def set_outbound_cipher(self, block_engine: Any, *arguments: Any, **options: Any) -> None:
        with self._sending:
            super().set_outbound_cipher(block_engine, *arguments, **options)
            self._sealer = Sealer(block_engine, options["iv_out"]) if options.get("aead") else None

    def reset_seqno_in(self) -> None:
        super().reset_seqno_in()
        self._sequence = 0

    def send_message(self, data: paramiko.Message) -> None:
        with self._sending:
            sealer = self._sealer
            if sealer is None:
                super().send_message(data)
                return
            self._seal(sealer, data.asbytes())

    def send_data(self, channel: int, data: memoryview) -> None:
        """A packet of a channel's data."""
        head = b"".join((MSG_CHANNEL_DATA.to_bytes(1, "big"), channel.to_bytes(4, "big"), len(data).to_bytes(4, "big")))
        with self._sending:
            if self._sealer is None:
                super().send_message(paramiko.Message(head + data))
            else:
                self._seal(self._sealer, head, data)

    def _seal(self, sealer: Sealer, *payload: Buffer) -> None:
        size = 1 + sum(map(len, payload))  # type: ignore[arg-type]  # bytes and views of them
        padding = BLOCK_BYTES - size % BLOCK_BYTES
        padding += BLOCK_BYTES if padding < LEAST_PADDING_BYTES else 0
        plain = b"".join((padding.to_bytes(1, "big"), *payload, self._noise.take(padding)))
        length = len(plain).to_bytes(LENGTH_BYTES, "big")
        self._write(length, sealer.cipher.encrypt(sealer.nonce(), plain, length))
        sealer.count(len(plain))
        if self._worn(sealer) and not self.need_rekey():
            self._trigger_rekey()

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Packets sent meanwhile leave together at the end: nothing inside may wait for the far end."""
        with self._sending:
            self._gathered = []
            try:
                yield
            finally:
                gathered, self._gathered = self._gathered, None
                self._write_parts(gathered)

    def _write(self, *parts: bytes) -> None:
        if self._gathered is None:
            self._write_parts(parts)
        else:
            self._gathered += parts

    def write_all(self, out: Buffer) -> None:
        self._write_parts([out])

    def _write_parts(self, parts: Sequence[Buffer]) -> None:
        views = [memoryview(p) for p in parts]
        moved = time.monotonic()
        while views:
            try:
                count = self._ahead.send_parts(views[:MOST_PARTS])
            except TimeoutError:
                if self.closed:
                    raise EOFError from None
                if time.monotonic() > moved + self.timeout_s:
                    self.close()  # a packet that was sent in part is followed by nothing
                    raise TimeoutError("timed out") from None
                continue
            except OSError:
                raise EOFError from None
            if count == 0:
                raise EOFError
            moved = time.monotonic()
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if count:
                views[0] = views[0][count:]

    def read_message(self) -> tuple[int, paramiko.Message]:
        while (opener := self._opener) is not None:
            plain = self._open(opener)
            end = len(plain) - plain[0]
            if plain[1] == MSG_CHANNEL_DATA and not self.need_rekey():  # the caller sees to new keys
                size = int.from_bytes(plain[DATA_BYTES - 4 : DATA_BYTES], "big")
                data = memoryview(plain)[DATA_BYTES : DATA_BYTES + size]
                if DATA_BYTES + size == end and self.deliver(int.from_bytes(plain[2:6], "big"), data):
                    continue
            message = paramiko.Message(plain[2:end])
            message.seqno = (self._sequence - 1) % 2**32
            return plain[1], message
        kind, message = super().read_message()
        self._sequence = message.seqno + 1
        return kind, message

    def _open(self, opener: Sealer) -> bytes:
        """The next packet: padding length, payload, padding."""
        self._await(LENGTH_BYTES, idle=True)
        length = bytes(self._ahead.peek(LENGTH_BYTES))
        size = int.from_bytes(length, "big")
        if not BLOCK_BYTES <= size <= MOST_BYTES - LENGTH_BYTES - TAG_BYTES:
            raise paramiko.SSHException(f"a packet of {size} bytes: what arrives is not SSH, or was changed on the way")
        self._await(LENGTH_BYTES + size + TAG_BYTES, idle=False)
        packet = self._ahead.take(LENGTH_BYTES + size + TAG_BYTES)
        plain = bytes(opener.cipher.decrypt(opener.nonce(), packet[LENGTH_BYTES:], length))
        self._sequence = (self._sequence + 1) % 2**32
        opener.count(len(packet))
        if self.need_rekey():
            self._overflow += len(packet)
            if self._overflow >= self.REKEY_BYTES_OVERFLOW_MAX:
                raise paramiko.SSHException("the far end does not renew its keys")
        elif self._worn(opener):
            self._trigger_rekey()
        return plain

    def _worn(self, sealer: Sealer) -> bool:
        return bool(sealer.bytes_done >= self.REKEY_BYTES or sealer.packets_done >= self.REKEY_PACKETS)

    def _await(self, count: int, *, idle: bool) -> None:
        """Until so many bytes are here; `idle`: between packets, where new keys may be asked for."""
        while self._ahead.waiting < count:
            try:
                if not self._ahead.fill():
                    raise EOFError
            except TimeoutError:
                if self.closed or self.handshake_timed_out():
                    raise EOFError from None
                if idle and not self._ahead.waiting and self.need_rekey():
                    raise NeedRekeyException from None
                self._check_keepalive()
            except OSError:
                if self.closed:
                    raise EOFError from None
                raise
