"""What paramiko's own thread and ours send at the same moment: channels that end, keys that are renewed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_EOF, MSG_SERVICE_REQUEST, MSG_USERAUTH_REQUEST
from support_sshd import Server
from support_transfer import MiB, make_file, move

from accuracy_eval.transfer import Action, connect, parse_location
from accuracy_eval.transfer.links import run
from accuracy_eval.transfer.packets import Packetizer
from accuracy_eval.transfer.sftp import Sftp
from accuracy_eval.transfer.shell import Stat

pytestmark = pytest.mark.usefixtures("no_agent")


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one each time that a connection has changed to new keys, its first ones included."""
    found: list[str] = []
    log = paramiko.Transport._log

    def watch(self: paramiko.Transport, level: int, message: str, *arguments: object) -> None:
        if message.startswith("Switch to new keys"):
            found.append(message)
        log(self, level, message, *arguments)

    monkeypatch.setattr(paramiko.Transport, "_log", watch)
    return found


def test_a_key_signs_in_with_one_question_after_the_one_for_the_service(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = [], Packetizer.send_message

    def watch(self: Packetizer, message: paramiko.Message) -> None:
        sent.append(message.asbytes()[0])
        send(self, message)

    monkeypatch.setattr(Packetizer, "send_message", watch)
    with connect(parse_location(server.at("/")), server.options()):
        asked = [kind for kind in sent if kind in (MSG_SERVICE_REQUEST, MSG_USERAUTH_REQUEST)]
    assert asked == [MSG_SERVICE_REQUEST, MSG_USERAUTH_REQUEST]


def test_what_is_there_is_asked_at_once(server: Server, tmp_path: Path) -> None:
    """One answer is no, and all go to the questions that they belong to."""
    (tmp_path / "a").write_bytes(bytes(7))
    with connect(parse_location(server.at("/")), server.options()) as session:
        probed = Sftp.probe(session, str(tmp_path))
        assert probed is not None
        sftp, named = probed
        survey = sftp.survey(f"{tmp_path}/a", f"{tmp_path}/a.part")
    assert named == Stat("folder", tmp_path.stat().st_size)
    assert survey[:3] == (Stat("file", 7), Stat("none"), named)
    assert survey.room is not None
    assert survey.room <= shutil.disk_usage(tmp_path).total


def test_the_end_of_input_goes_before_the_answer_to_a_close(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The far end closes the channel when the end of input is decided on and not sent yet."""
    with connect(parse_location(server.at("/")), server.options()) as session:
        send, sent, answered = session.transport._send_user_message, [], threading.Event()

        def delay_end_of_input(message: paramiko.Message) -> None:
            kind = message.asbytes()[0]
            if kind == MSG_CHANNEL_EOF:
                (tmp_path / "end").touch()
                answered.wait(0.5)
            sent.append(kind)
            send(message)
            if kind == MSG_CHANNEL_CLOSE:
                answered.set()

        pipe = session.start(f"while [ ! -e {tmp_path}/end ]; do sleep 0.01; done")
        monkeypatch.setattr(session.transport, "_send_user_message", delay_end_of_input)
        pipe.close_input()
        assert pipe.read() == b""
        pipe.close()
        assert answered.wait(300)
        assert sent == [MSG_CHANNEL_EOF, MSG_CHANNEL_CLOSE]
        assert run(session, "echo alive") == (0, b"alive\n", b"")


@pytest.mark.parametrize("method", ["exec", "sftp"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_keys_are_renewed_while_bytes_travel(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renewals: list[str], direction: str, method: str
) -> None:
    monkeypatch.setattr(paramiko.Packetizer, "REKEY_BYTES", MiB // 4)
    source, target = make_file(tmp_path / "a", 8 * MiB), tmp_path / "b"
    assert move(server, direction, source, target, transport="paramiko", method=method).action is Action.SENT
    assert target.read_bytes() == source.read_bytes()
    assert len(renewals) > 4


@pytest.mark.parametrize("limit", [MiB - 100_000, MiB - 1], ids=["near its end", "with its last packet"])
def test_a_file_may_end_while_keys_are_renewed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renewals: list[str], limit: int
) -> None:
    """The far end closes the channel before it sees that new keys are asked for: all it has to say is on its way already."""
    source = make_file(tmp_path / "a", MiB)
    monkeypatch.setattr(paramiko.Packetizer, "REKEY_BYTES", limit)
    for name in "bcdef":
        move(server, "down", source, tmp_path / name, transport="paramiko", method="exec")
        assert (tmp_path / name).read_bytes() == source.read_bytes()
    assert len(renewals) > 5  # more than connections; the last exchange may be cut short by the connection's end
