"""paramiko's packets with fewer copies and system calls, and a limit on every wait. Imports paramiko: import it to make a connection."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

import paramiko
from paramiko.packet import NeedRekeyException
from paramiko.packet import Packetizer as TheirPacketizer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

READ_BYTES = 1 << 18  # at once
MOST_BYTES = 1 << 20  # of a packet: paramiko asks for 32 KiB, and OpenSSH sends no more than 256 KiB
LENGTH_BYTES, TAG_BYTES, PREFIX_BYTES, BLOCK_BYTES = 4, 16, 4, 16  # RFC 5647; the nonce begins with the prefix


class AheadSocket:
    """A socket that reads as much as there is, and keeps it. The rest of its methods are the socket's own."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(READ_BYTES + MOST_BYTES))
        self._start = self._end = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

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


class Packetizer(TheirPacketizer):
    """Reads many packets with one system call, and seals and opens those of AES-GCM itself; other ciphers stay paramiko's.

    timeout_s   how long the network may take no byte of a packet; TimeoutError then, and the connection is closed
    """

    if TYPE_CHECKING:  # paramiko's annotations leave these out

        def _check_keepalive(self) -> None: ...
        def _trigger_rekey(self) -> None: ...

    timeout_s = 30.0

    def __init__(self, sock: Any) -> None:
        self._ahead = AheadSocket(sock)
        super().__init__(cast(Any, self._ahead))
        self._sending = RLock()
        self._opener: Sealer | None = None
        self._sealer: Sealer | None = None
        self._sequence = 0  # of the next packet to come
        self._overflow = 0  # bytes that came since new keys were asked for
        self._gathered: bytearray | None = None

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
            payload = data.asbytes()
            padding = BLOCK_BYTES - (1 + len(payload)) % BLOCK_BYTES
            padding += BLOCK_BYTES if padding < 4 else 0
            plain = b"".join((padding.to_bytes(1, "big"), payload, os.urandom(padding)))
            length = len(plain).to_bytes(LENGTH_BYTES, "big")
            self._write(length, sealer.cipher.encrypt(sealer.nonce(), plain, length))
            sealer.count(len(plain))
            if self._worn(sealer) and not self.need_rekey():
                self._trigger_rekey()

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Packets sent meanwhile leave together at the end: nothing inside may wait for the far end."""
        with self._sending:
            self._gathered = bytearray()
            try:
                yield
            finally:
                gathered, self._gathered = self._gathered, None
                self.write_all(gathered)

    def _write(self, *parts: bytes) -> None:
        if self._gathered is None:
            self.write_all(b"".join(parts))
        else:
            for part in parts:
                self._gathered += part

    def write_all(self, out: Buffer) -> None:
        view = memoryview(out)
        moved = time.monotonic()
        while view:
            try:
                count = self._ahead.send(view)
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
            view, moved = view[count:], time.monotonic()

    def read_message(self) -> tuple[int, paramiko.Message]:
        opener = self._opener
        if opener is None:
            kind, message = super().read_message()
            self._sequence = message.seqno + 1
            return kind, message
        self._await(LENGTH_BYTES, idle=True)
        length = bytes(self._ahead.peek(LENGTH_BYTES))
        size = int.from_bytes(length, "big")
        if not BLOCK_BYTES <= size <= MOST_BYTES - LENGTH_BYTES - TAG_BYTES:
            raise paramiko.SSHException(f"a packet of {size} bytes: what arrives is not SSH, or was changed on the way")
        self._await(LENGTH_BYTES + size + TAG_BYTES, idle=False)
        packet = self._ahead.take(LENGTH_BYTES + size + TAG_BYTES)
        plain = opener.cipher.decrypt(opener.nonce(), packet[LENGTH_BYTES:], length)
        message = paramiko.Message(plain[2 : size - plain[0]])
        message.seqno = self._sequence
        self._sequence = (self._sequence + 1) % 2**32
        opener.count(len(packet))
        if self.need_rekey():
            self._overflow += len(packet)
            if self._overflow >= self.REKEY_BYTES_OVERFLOW_MAX:
                raise paramiko.SSHException("the far end does not renew its keys")
        elif self._worn(opener):
            self._trigger_rekey()
        return plain[1], message

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
