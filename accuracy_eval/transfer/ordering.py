"""paramiko's transport without two of its races. Imports paramiko: to be imported where a connection is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, cMSG_CHANNEL_DATA, cMSG_CHANNEL_WINDOW_ADJUST

from accuracy_eval.transfer.asking import Authentication
from accuracy_eval.transfer.buffering import HEAD_BYTES, BlockPipe
from accuracy_eval.transfer.packets import Packetizer


def _handle_close(channel: Any, message: paramiko.Message) -> None:
    """Answer the far end's close after whatever another thread is about to send.

    paramiko answers at once. An end of input that was decided on just before, and is sent just after, then names a channel that is no
    more, for which OpenSSH ends the connection with everything that runs over it.
    """
    with channel.lock:
        answer = channel._close_internal()  # wakes the other thread if it waits
        channel.transport._unlink_channel(channel.chanid)
    with getattr(channel, "sending", nullcontext()):
        for m in filter(None, answer):
            channel.transport._send_user_message(m)


class OrderedTransport(paramiko.Transport):
    """Keeps what is to be sent while keys are exchanged in order and sends it afterwards; nobody waits for that.

    paramiko lets every sender wait, its own thread too when it has to answer the end of a channel: the very thread that would take
    in the new keys then waits for them, and the connection ends after 30 s. A channel often ends just then: a file's last bytes are the
    ones that pass REKEY_BYTES. How much can be kept is bounded by the channels' windows.

    A channel that has an attribute `sending`, a lock held by the thread that uses it, is closed in order too.
    """

    if TYPE_CHECKING:  # paramiko's annotations leave these out
        active: bool
        packetizer: Packetizer
        _channels: Any
        _expected_packet: tuple[int, ...]
        _channel_handler_table: dict[int, Any]

        def _send_message(self, data: paramiko.Message) -> None: ...

    service_asked = False  # for, by whoever signs in
    _authentication: Authentication | None = None

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, packetizer_class=Packetizer)
        self.clear_to_send_lock = RLock()  # type: ignore[assignment]  # held around methods that take it themselves
        self._channel_handler_table = {**self._channel_handler_table, MSG_CHANNEL_CLOSE: _handle_close}
        self._kept: deque[paramiko.Message] = deque()
        self.packetizer.deliver = self._deliver

    def _deliver(self, number: int, data: memoryview) -> bool:
        """Hand data to its channel at once, where nothing else is due."""
        channel = self._channels.get(number)
        if self._expected_packet or channel is None or not isinstance(channel.in_buffer, BlockPipe):
            return False
        channel.in_buffer.feed(data)
        return True

    def send_data(self, channel: Any, view: memoryview) -> int:
        """Send data that the channel has room for, at once and without waiting: how much."""
        packet = max(1, channel.out_max_packet_size - HEAD_BYTES)
        with channel.lock:
            if channel.closed or channel.eof_sent:
                return 0
            ready: int = min(len(view), channel.out_window_size)
            channel.out_window_size -= ready
        with self.burst():
            for start in range(0, ready, packet):
                self._send_data(channel.remote_chanid, view[start : min(ready, start + packet)])
        return ready

    def _send_data(self, number: int, data: memoryview) -> None:
        if self.clear_to_send.is_set():
            self.packetizer.send_data(number, data)
            return
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_DATA)
        message.add_int(number)
        message.add_string(bytes(data))
        self._send_user_message(message)

    @property
    def auth_handler(self) -> Any:
        """paramiko makes one of its own for every attempt to sign in; ours takes its place."""
        return self._authentication

    @auth_handler.setter
    def auth_handler(self, theirs: Any) -> None:
        self._authentication = None if theirs is None else Authentication(self)

    def _send_user_message(self, data: paramiko.Message) -> None:
        with self.clear_to_send_lock:
            if self.clear_to_send.is_set():
                self._send_message(data)
            elif self.active:
                self._kept.append(data)

    def announce(self, channel: Any, room: int) -> None:
        """Let the far end send so many bytes more."""
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
        message.add_int(channel.remote_chanid)
        message.add_int(room)
        self._send_user_message(message)

    @contextmanager
    def burst(self) -> Iterator[None]:
        """What this thread sends meanwhile leaves together at the end: nothing inside may wait for the far end."""
        with self.clear_to_send_lock, self.packetizer.gather():
            yield

    def _parse_newkeys(self, m: paramiko.Message) -> None:
        with self.clear_to_send_lock:
            super()._parse_newkeys(m)  # type: ignore[misc]
            while self._kept:
                self._send_message(self._kept.popleft())
