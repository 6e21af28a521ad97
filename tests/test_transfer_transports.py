"""What carries the bytes: paramiko or the ssh program, one connection or several; the result is the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_proxy import CuttingProxy, DelayProxy
from support_sshd import Server, make_key
from support_transfer import MiB, make_file, move, sha256_of

from accuracy_eval.errors import Interrupted, TransferError
from accuracy_eval.transfer import Action, transfer
from accuracy_eval.transfer import remote as remotes
from accuracy_eval.transfer.openssh import OpenSsh
from accuracy_eval.transfer.parallel import AHEAD_BYTES, SEGMENT_BYTES, Segments

pytestmark = pytest.mark.usefixtures("no_agent")


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("size", [0, 1000, 3 * MiB])
def test_the_ssh_program_alone_carries_files_both_ways(any_server: Server, tmp_path: Path, direction: str, size: int) -> None:
    source, target = make_file(tmp_path / "a 'b", size), tmp_path / "there" / "c d"
    result = move(any_server, direction, source, target, transport="openssh")
    assert (result.action, result.sha256) == (Action.SENT, sha256_of(source))
    assert sha256_of(target) == sha256_of(source)
    assert result.method in ("openssh", "sftp")
    assert move(any_server, direction, source, target, transport="openssh").action == Action.SKIPPED


def test_the_ssh_program_leaves_no_process_and_no_socket(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "t").mkdir()
    move(server, "up", make_file(tmp_path / "a", MiB), tmp_path / "b", transport="openssh")
    assert list((tmp_path / "t").iterdir()) == []
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True, check=False).stdout
    assert "ssh\n" not in children


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_under_the_ssh_program_is_resumed(server: Server, tmp_path: Path, direction: str) -> None:
    source, target = make_file(tmp_path / "a", 12 * MiB), tmp_path / "b"
    with CuttingProxy(server.port, 7 * MiB, direction) as proxy:
        server.know(proxy.port)
        with pytest.raises(Interrupted, match="run again to go on from here"):
            move(server, direction, source, target, proxy.port, transport="openssh")
        assert proxy.cuts == 1
    server.know()
    result = move(server, direction, source, target, transport="openssh")
    assert (result.action, result.sha256) == (Action.RESUMED, sha256_of(target))


def test_the_ssh_program_refuses_an_unknown_host_too(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    source = make_file(tmp_path / "a", 10)
    with pytest.raises(TransferError, match="Host key verification failed"):
        move(server, "up", source, tmp_path / "b", transport="openssh", known_hosts=(known,))
    assert not (tmp_path / "b").exists()
    result = move(server, "up", source, tmp_path / "b", transport="openssh", known_hosts=(known,), accept_new=True)
    assert result.sha256 == sha256_of(tmp_path / "b")
    make_key(tmp_path / "other")
    known.write_text(f"[127.0.0.1]:{server.port} {(tmp_path / 'other.pub').read_text()}")
    with pytest.raises(TransferError, match="IDENTIFICATION HAS CHANGED"):
        move(server, "up", source, tmp_path / "c", transport="openssh", known_hosts=(known,), accept_new=True)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_large_files_of_a_near_host_go_by_the_ssh_program_and_it_is_said(
    server: Server, tmp_path: Path, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotes, "LARGE_BYTES", 4 * MiB)
    monkeypatch.setattr(remotes, "FAR_RTT_S", 5.0)
    for size, method in ((4 * MiB - 1, "exec"), (4 * MiB, "openssh")):
        notes: list[str] = []
        source, target = make_file(tmp_path / f"a{size}", size), tmp_path / f"b{size}"
        assert move(server, direction, source, target, note=notes.append).method == method
        assert [n for n in notes if ": by " in n] == [f"{server.label}: by openssh: a large file, a near host"] * (method == "openssh")
        assert sha256_of(target) == sha256_of(source)


def test_large_files_of_a_far_host_go_by_paramiko_and_it_is_said(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "LARGE_BYTES", 4 * MiB)
    monkeypatch.setattr(remotes, "FAR_RTT_S", 0.0)
    notes: list[str] = []
    source = make_file(tmp_path / "a", 20 * MiB)
    assert move(server, "down", source, tmp_path / "b", note=notes.append).method == "sftp"
    assert notes[-1] == f"{server.label}: by paramiko over {remotes.CONNECTIONS} connections, for the round trip is long"
    assert sha256_of(tmp_path / "b") == sha256_of(source)


def test_without_an_ssh_program_paramiko_does_it(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "LARGE_BYTES", MiB)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    notes: list[str] = []
    assert move(server, "up", make_file(tmp_path / "a", 4 * MiB), tmp_path / "b", note=notes.append).method == "exec"
    assert notes[-1].endswith("by paramiko; there is no ssh program here")


def test_where_the_ssh_program_cannot_sign_in_paramiko_does_it(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "LARGE_BYTES", MiB)
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    keys = server.folder / "authorized_keys"
    before = keys.read_text()
    keys.write_text(key.with_name("locked.pub").read_text())
    notes: list[str] = []
    try:
        result = move(
            server,
            "up",
            make_file(tmp_path / "a", 4 * MiB),
            tmp_path / "b",
            identity_files=(key,),
            ask=lambda p: "open sesame",
            note=notes.append,
        )
    finally:
        keys.write_text(before)
    assert result.method == "exec"
    assert "Permission denied" in notes[-1]


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
@pytest.mark.parametrize("method", ["exec", "sftp"])
def test_a_far_host_is_served_by_several_connections(server: Server, tmp_path: Path, direction: str, transport: str, method: str) -> None:
    source, target = make_file(tmp_path / "a", 40 * MiB + 3), tmp_path / "b"
    with DelayProxy(server.port, 0.012) as proxy:
        server.know(proxy.port)
        result = move(server, direction, source, target, proxy.port, transport=transport, method=method)
        connections = len(proxy._open) // 2
    server.know()
    assert connections == remotes.CONNECTIONS
    assert (result.action, result.sha256) == (Action.SENT, sha256_of(source))
    assert sha256_of(target) == sha256_of(source)


def test_the_connections_to_a_far_host_serve_the_next_file_too(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "FAR_RTT_S", 0.0)
    sources = [make_file(tmp_path / f"a{i}", 20 * MiB + i, seed=i) for i in range(5)]
    with DelayProxy(server.port, 0.0) as proxy:
        server.know(proxy.port)
        transfer([str(s) for s in sources], server.at(f"{tmp_path}/b/", proxy.port), options=server.options())
        connections = len(proxy._open) // 2
    server.know()
    assert connections == remotes.CONNECTIONS
    assert [sha256_of(tmp_path / "b" / s.name) for s in sources] == [sha256_of(s) for s in sources]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_several_connections_that_are_cut_lose_no_more_than_what_was_on_its_way(
    server: Server, tmp_path: Path, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accuracy_eval.transfer.remote.FAR_RTT_S", 0.0)
    size = AHEAD_BYTES + 6 * SEGMENT_BYTES
    source, target = make_file(tmp_path / "a", size), tmp_path / "b"
    limit = size // remotes.CONNECTIONS - 2 * MiB  # the first connection to reach it ends them all
    with CuttingProxy(server.port, limit, direction) as proxy:
        server.know(proxy.port)
        with pytest.raises(Interrupted):
            move(server, direction, source, target, proxy.port, transport="paramiko")
        assert proxy.cuts >= 1
    server.know()
    assert not target.exists()
    arrived = target.with_name("b.part").stat().st_size
    assert 0 < arrived < size
    result = move(server, direction, source, target, transport="paramiko")
    assert result.resumed_from >= (arrived if direction == "down" else arrived - AHEAD_BYTES)
    assert result.sha256 == sha256_of(source) == sha256_of(target)


def test_gaps_at_the_end_of_a_partial_file_cost_only_the_end(server: Server, tmp_path: Path) -> None:
    size = AHEAD_BYTES + 4 * MiB
    source = make_file(tmp_path / "a", size)
    data = bytearray(source.read_bytes()[: size - MiB])
    data[-2 * MiB : -MiB] = bytes(MiB)
    for direction in ("up", "down"):
        target = tmp_path / direction / "b"
        target.parent.mkdir()
        target.with_name("b.part").write_bytes(data)
        result = move(server, direction, source, target)
        assert (result.action, result.resumed_from) == (Action.RESUMED, size - MiB - AHEAD_BYTES)
        assert sha256_of(target) == sha256_of(source)


def test_segments_are_dealt_in_order_and_never_far_ahead() -> None:
    segments = Segments(0, 100 * SEGMENT_BYTES + 1)
    dealt = [segments.take() for _ in range(AHEAD_BYTES // SEGMENT_BYTES)]
    assert [s for s, _ in filter(None, dealt)] == [i * SEGMENT_BYTES for i in range(AHEAD_BYTES // SEGMENT_BYTES)]
    segments.done(SEGMENT_BYTES)
    assert segments.frontier == 0
    segments.done(0)
    assert segments.wait_beyond(0) == segments.frontier == 2 * SEGMENT_BYTES
    error = OSError("gone")
    segments.fail(error)
    assert segments.take() is None
    with pytest.raises(OSError, match="gone"):
        segments.wait_beyond(segments.frontier)


def test_the_last_segment_ends_where_the_file_does() -> None:
    segments = Segments(5, SEGMENT_BYTES + 6)
    assert segments.take() == (5, SEGMENT_BYTES + 5)
    assert segments.take() == (SEGMENT_BYTES + 5, SEGMENT_BYTES + 6)
    assert segments.take() is None
    segments.done(SEGMENT_BYTES + 5)
    segments.done(5)
    assert segments.frontier == SEGMENT_BYTES + 6


def test_a_command_s_exit_status_and_complaint_come_through_the_ssh_program(server: Server) -> None:
    from accuracy_eval.transfer import Location
    from accuracy_eval.transfer.links import run

    link = OpenSsh(Location("127.0.0.1", ".", server.user, server.port), server.options(), batch=True)
    try:
        assert run(link, "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")
        assert run(link, "cat", data=b"x" * 300_000)[1] == b"x" * 300_000
        assert 0 < link.rtt_s < 5
    finally:
        link.close()
    assert not link.alive


_MEASURE = """
import sys
from pathlib import Path
from accuracy_eval.transfer import Options, transfer
source, to, back, key, known, transport = sys.argv[1:]
options = Options(identity_files=(Path(key),), known_hosts=(Path(known),), config_file=Path("/dev/null"), transport=transport)
transfer([source], to, options=options)
transfer([to], back, options=options)
(peak,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(int(peak) * 1024)
"""


@pytest.mark.parametrize("transport", ["paramiko", "auto"])
def test_a_large_file_takes_less_than_150_megabytes_of_memory(server: Server, tmp_path: Path, transport: str) -> None:
    source = make_file(tmp_path / "a", 72 * MiB)
    with DelayProxy(server.port, 0.012) as proxy:  # far enough for several connections
        server.know(proxy.port)
        words = [source, server.at(tmp_path / "b", proxy.port), tmp_path / "c", server.user_key, server.known_hosts, transport]
        run = subprocess.run([sys.executable, "-c", _MEASURE, *map(str, words)], capture_output=True, text=True, check=True)
    server.know()
    assert int(run.stdout) < 150e6
    assert sha256_of(tmp_path / "c") == sha256_of(source)
