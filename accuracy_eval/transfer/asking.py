"""paramiko's SFTP client and its signing in, with questions that travel together: a far host answers them in one round trip.

Imports paramiko: to be imported where a connection is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.sftp import CMD_DATA, CMD_INIT, CMD_STATUS, CMD_VERSION, CMD_WRITE

from accuracy_eval.transfer.buffering import Block

PROTOCOL = 3  # what OpenSSH speaks, and paramiko
HEAD_BYTES, BEFORE_DATA_BYTES = 5, 8  # of a packet: its length and kind; number of the request and length of what was read
MOST_BYTES = 1 << 24  # of a packet: OpenSSH sends no more than 256 KiB
Question = tuple[Any, ...]  # the kind of request and its arguments, as paramiko's _async_request takes them


class Answer(NamedTuple):
    """What the server says to a request: the kind and the rest of the message; `error` instead where it refuses."""

    kind: int
    message: Any
    error: OSError | None


class _Answers:
    """Takes the answers in, in whatever order they come."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[int, Any]] = {}

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Called by the client with the answer to one request."""
        self.found[number] = kind, message


class Client(paramiko.SFTPClient):
    """`first` are questions that follow the greeting at once; `first_answers` holds what came back."""

    if TYPE_CHECKING:  # paramiko's annotations leave these out
        sock: Any
        request_number: int
        _lock: Any
        _expecting: Any

        def _write_all(self, out: Any) -> None: ...
        def _send_packet(self, t: int, packet: paramiko.Message) -> None: ...
        def _async_request(self, fileobj: Any, t: int, *args: Any) -> int: ...
        def _read_response(self, waitfor: int | None = None) -> Any: ...
        def _convert_status(self, msg: Any) -> None: ...

    def __init__(self, channel: Any, first: Sequence[Question] = ()) -> None:
        self._first = first
        self.first_answers: list[Answer] = []
        self.data: list[Block] = []
        super().__init__(channel)

    def _read_packet(self) -> tuple[int, bytes]:
        """(kind, the rest); of a file's bytes only what comes before them, and they themselves become `data`."""
        head = self._read_all(HEAD_BYTES)
        size, kind = int.from_bytes(head[:-1], "big") - 1, head[-1]
        if not 0 <= size < MOST_BYTES:
            raise paramiko.SSHException(f"SFTP: a packet of {size} bytes: what arrives is not SFTP")
        if kind != CMD_DATA:
            return kind, self._read_all(size)
        before = self._read_all(BEFORE_DATA_BYTES)
        length = int.from_bytes(before[-4:], "big")
        self.data = self._take(min(length, size - BEFORE_DATA_BYTES))
        self._read_all(max(0, size - BEFORE_DATA_BYTES - length))  # a later protocol's flag
        return kind, before

    def _read_all(self, count: int) -> bytes:
        return b"".join(self._take(count))

    def _take(self, count: int) -> list[Block]:
        if hasattr(self.sock, "take"):
            return list(self.sock.take(count))
        return [super()._read_all(count)]  # type: ignore[misc]

    def write(self, answers: Any, handle: bytes, position: int, data: bytes) -> None:
        """Ask for bytes to be written; `answers` is called with what comes back."""
        with self._lock:
            number = self.request_number
            self.request_number += 1
            self._expecting[number] = answers
        words = (
            number.to_bytes(4, "big"),
            len(handle).to_bytes(4, "big"),
            handle,
            position.to_bytes(8, "big"),
            len(data).to_bytes(4, "big"),
        )
        size = 1 + sum(map(len, words)) + len(data)
        self._write_all(memoryview(b"".join((size.to_bytes(4, "big"), CMD_WRITE.to_bytes(1, "big"), *words, data))))

    def _send_version(self) -> int:
        greeting = paramiko.Message()
        greeting.add_int(PROTOCOL)
        self._send_packet(CMD_INIT, greeting)
        answers = _Answers()
        numbers = self._send(self._first, answers)
        kind, data = self._read_packet()
        if kind != CMD_VERSION:
            raise paramiko.SSHException(f"SFTP: answer of kind {kind} to the greeting")
        self.first_answers = self._collect(numbers, answers)
        return int.from_bytes(data[:4], "big")

    def ask(self, *questions: Question) -> list[Answer]:
        """The answers to all of the questions, asked at once."""
        answers = _Answers()
        return self._collect(self._send(questions, answers), answers)

    def tell(self, *request: Any) -> None:
        """Ask for something without waiting for the answer."""
        self._async_request(type(None), *request)

    def _send(self, questions: Sequence[Question], answers: _Answers) -> list[int]:
        return [self._async_request(answers, *q) for q in questions]

    def _collect(self, numbers: Sequence[int], answers: _Answers) -> list[Answer]:
        while len(answers.found) < len(numbers):
            self._read_response()
        return [self._judged(*answers.found[n]) for n in numbers]

    def _judged(self, kind: int, message: Any) -> Answer:
        try:
            if kind == CMD_STATUS:
                self._convert_status(message)
        except OSError as error:
            return Answer(kind, message, error)
        return Answer(kind, message, None)


class Authentication(AuthHandler):
    """Asks for the service once a connection, and sends the request to sign in behind that question: the server takes them in order."""

    if TYPE_CHECKING:  # paramiko's annotations leave this out
        transport: Any

    def _request_auth(self) -> None:
        if not self.transport.service_asked:
            self.transport.service_asked = True
            super()._request_auth()  # type: ignore[misc]
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)  # type: ignore[misc]

    def _parse_service_accept(self, message: paramiko.Message) -> None:
        """The request is on its way already."""
