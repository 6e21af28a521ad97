"""paramiko's transport without two of its races. Imports paramiko: to be imported where a connection is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, cMSG_CHANNEL_WINDOW_ADJUST

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
        _channel_handler_table: dict[int, Any]

        def _send_message(self, data: paramiko.Message) -> None: ...

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, packetizer_class=Packetizer)
        self.clear_to_send_lock = RLock()  # type: ignore[assignment]  # held around methods that take it themselves
        self._channel_handler_table = {**self._channel_handler_table, MSG_CHANNEL_CLOSE: _handle_close}
        self._kept: deque[paramiko.Message] = deque()

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
