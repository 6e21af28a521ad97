"""What goes wrong between hosts, each fault on a real OpenSSH server: wrong bytes never take the file's name, and running again goes on."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support_proxy import CuttingProxy
from support_sshd import Server, make_key, running_sshd
from support_transfer import MiB, make_file, move, sha256_of

from accuracy_eval.errors import DigestMismatch, Interrupted, TransferError
from accuracy_eval.transfer import Action, FileResult, Options, Remote, transfer

pytestmark = pytest.mark.usefixtures("no_agent")


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


OFFSETS = random.Random(7).sample(range(2 * MiB // 20, 2 * MiB), 20)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize(("number", "offset"), list(enumerate(OFFSETS)))
def test_a_connection_cut_anywhere_is_resumed_to_the_same_bytes(
    server: Server, tmp_path: Path, direction: str, number: int, offset: int
) -> None:
    source, target = make_file(tmp_path / "a", 2 * MiB, offset), tmp_path / "there" / "b"
    method = ("exec", "sftp")[number % 2]
    with CuttingProxy(server.port, offset, direction) as proxy:
        server.know(proxy.port)
        with pytest.raises(Interrupted, match="run again to go on from here"):
            move(server, direction, source, target, proxy.port, method=method)
        assert proxy.cuts == 1
    part = target.with_name("b.part")
    await_file(part)  # the far end may still be starting to write what has reached it
    on_disk = part.stat().st_size
    assert on_disk < offset
    assert not target.exists()
    result = move(server, direction, source, target, method=method)
    server.know()
    assert on_disk <= result.resumed_from < 2 * MiB  # the far end may have written more of what it had, once the connection was gone
    assert result.sha256 == sha256_of(source) == sha256_of(target)
    assert not part.exists()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_line_that_breaks_again_and_again_gets_the_file_through_by_itself(server: Server, tmp_path: Path, direction: str) -> None:
    source, target = make_file(tmp_path / "a", 12 * MiB), tmp_path / "b"
    notes: list[str] = []
    with CuttingProxy(server.port, 5 * MiB, direction) as proxy:
        server.know(proxy.port)
        result = move(server, direction, source, target, proxy.port, retries=2, note=notes.append)
        cuts = proxy.cuts
    server.know()
    assert cuts >= 2
    assert sum("trying again in" in n for n in notes) == cuts
    assert (result.action, result.sha256) == (Action.RESUMED, sha256_of(source))
    assert sha256_of(target) == sha256_of(source)


def test_a_line_that_never_gets_further_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accuracy_eval.transfer.moving.BACK_OFF_S", 0.01)
    with CuttingProxy(server.port, MiB, "up") as proxy:
        server.know(proxy.port)
        target = tmp_path / "b"
        proxy._limit = MiB
        with pytest.raises(Interrupted) as e:
            # the first attempt gets further; those after it are cut before the sign-in is over
            transfer(
                [str(make_file(tmp_path / "a", 4 * MiB))],
                server.at(target, proxy.port),
                options=server.options(retries=2),
                progress=lambda done, total: setattr(proxy, "_limit", 1000),
            )
        assert proxy.cuts == 3
    server.know()
    assert e.value.__notes__ == ["given up after 2 more attempts"]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_server_that_is_killed_and_comes_back_costs_nothing(tmp_path: Path, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accuracy_eval.transfer.sessions.FAR_RTT_S", 5.0)  # the window of a far host would hold the whole file
    source, target = make_file(tmp_path / "a", 8 * MiB), tmp_path / "b"
    with running_sshd(tmp_path / "s") as server:
        returned: list[threading.Timer] = []

        def progress(done: int, total: int) -> None:
            if 2 * MiB < done < total and not returned:
                server.kill()
                returned.append(threading.Timer(0.4, server.start))
                returned[0].start()

        notes: list[str] = []
        options = server.options(retries=5, rate_limit=40e6, note=notes.append)
        ends = ([str(source)], server.at(target)) if direction == "up" else ([server.at(source)], str(target))
        (result,) = transfer(*ends, options=options, progress=progress)
        returned[0].join()
    assert any("trying again" in n for n in notes), notes
    assert (result.action, result.sha256) == (Action.RESUMED, sha256_of(source))
    assert sha256_of(target) == sha256_of(source)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server and a folder there that takes 4 MiB: a disk of that size where one can be mounted, else by a limit on a file's size."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    with running_sshd(tmp_path / "s") as server:
        if not mounted:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4 * MiB, 4 * MiB))
        try:
            yield server, folder
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("method", ["exec", "sftp"])
def test_a_disk_that_fills_at_the_far_end_is_named_and_leaves_no_false_file(
    small_disk: tuple[Server, Path], tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = small_disk
    source, target = make_file(tmp_path / "a", 6 * MiB), folder / "b"
    monkeypatch.setattr("accuracy_eval.transfer.remote.Remote.check_room", lambda *a: None)  # as if it had filled meanwhile
    with pytest.raises(TransferError, match=f"{server.label}: {target}"):
        move(server, "up", source, target, method=method)
    assert not target.exists()
    assert target.with_name("b.part").stat().st_size <= 4 * MiB
    small = make_file(tmp_path / "c", MiB)
    target.with_name("b.part").unlink()
    assert move(server, "up", small, folder / "c", method=method).sha256 == sha256_of(folder / "c")


@pytest.mark.parametrize("method", ["exec", "sftp"])
def test_a_file_larger_than_what_is_free_is_refused_before_a_byte_is_sent(server: Server, tmp_path: Path, method: str) -> None:
    free = os.statvfs(tmp_path)
    size = free.f_bavail * free.f_frsize + (64 << 30)
    source = tmp_path / "a"
    with source.open("wb") as file:
        file.truncate(size)
    (tmp_path / "far").mkdir()
    with pytest.raises(
        TransferError, match=rf"{server.label}:{tmp_path}/far: {size} bytes are to be written, \d+ are free; make room there"
    ):
        move(server, "up", source, tmp_path / "far" / "b", method=method)
    with pytest.raises(TransferError, match=rf"{tmp_path}/back: {size} bytes are to be written, \d+ are free; make room"):
        move(server, "down", source, tmp_path / "back" / "b", method=method)
    assert list((tmp_path / "far").iterdir()) == []


def test_a_file_that_changes_while_it_is_fetched_is_found(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end changes when the far end's digest is made and that end, beyond what a connection has on its way, is still to come."""
    source, target = make_file(tmp_path / "a", 64 * MiB), tmp_path / "b"
    changed = []
    digest, digested = Remote.digest, threading.Event()

    def watched(*arguments: Any) -> str:
        found = digest(*arguments)
        digested.set()
        return found

    def progress(done: int, total: int) -> None:
        if done > 8 * MiB and not changed:
            changed.append(done)
            assert digested.wait(300)
            with source.open("r+b") as f:
                f.seek(-7, 2)
                f.write(b"changed")

    monkeypatch.setattr(Remote, "digest", watched)
    with pytest.raises(DigestMismatch, match="the bytes changed on the way or at the far end"):
        transfer([server.at(source)], str(target), options=server.options(), progress=progress)
    assert not target.exists()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_copy_that_rots_after_the_transfer_is_found_and_mended(server: Server, tmp_path: Path, direction: str) -> None:
    source, target = make_file(tmp_path / "a", MiB), tmp_path / "b"
    move(server, direction, source, target)
    with target.open("r+b") as f:
        f.seek(MiB // 2)
        f.write(b"rot")
    assert sha256_of(target) != sha256_of(source)
    assert move(server, direction, source, target).action == Action.SENT
    assert sha256_of(target) == sha256_of(source)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("method", ["exec", "sftp"])
def test_a_line_that_goes_silent_is_given_up_after_the_time_out(server: Server, tmp_path: Path, direction: str, method: str) -> None:
    source, target = make_file(tmp_path / "a", 16 * MiB), tmp_path / "b"
    with CuttingProxy(server.port, 2 * MiB, direction, stall=True) as proxy:
        server.know(proxy.port)
        with pytest.raises(Interrupted, match=r"no answer in time \(timed out\); .*run again to go on from here"):
            move(server, direction, source, target, proxy.port, method=method, timeout_s=2.0)
        assert proxy.cuts == 1
    server.know()
    assert target.with_name("b.part").stat().st_size < 16 * MiB
    assert move(server, direction, source, target, method=method).sha256 == sha256_of(target)


def test_a_locked_key_signs_in_through_the_agent_without_a_question(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    answer = tmp_path / "answer"
    answer.write_text("#!/bin/sh\necho open sesame\n")
    answer.chmod(0o700)
    keys = server.folder / "authorized_keys"
    before = keys.read_text()
    keys.write_text(key.with_name("locked.pub").read_text())
    agent_socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
    try:
        while not agent_socket.exists():
            assert agent.poll() is None
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent_socket))
        environment = os.environ | {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True, env=environment)

        def never(prompt: str) -> str:
            raise AssertionError(prompt)

        result = move(server, "up", make_file(tmp_path / "a", 10), tmp_path / "b", identity_files=(key,), ask=never)
    finally:
        keys.write_text(before)
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
    assert result.sha256 == sha256_of(tmp_path / "b")


def test_no_secret_is_in_messages(server: Server, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    notes: list[str] = []
    with pytest.raises(TransferError) as e:
        move(
            server,
            "up",
            make_file(tmp_path / "a", 10),
            tmp_path / "b",
            identity_files=(key,),
            ask=lambda prompt: "s3cret",
            note=notes.append,
        )
    assert "s3cret" not in "".join([str(e.value), *notes])


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where reading a hole of a sparse file costs nothing; an ordinary one where there is none."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(("direction", "size"), [("up", 5 << 30), ("down", (4 << 30) + 64 * MiB)])
def test_five_gibibytes_go_on_past_four_and_over_several_new_keys(tmp_path: Path, memory: Path, direction: str, size: int) -> None:
    left = 20 * MiB
    marks = {position: f"at {position}".encode() for position in (0, (4 << 30) - 5, size - left // 2, size - 20)}
    source, target, part = memory / "a", memory / "b", memory / "b.part"
    for path, length in ((source, size), (part, size - left)):  # the part: all but 20 MiB, as an earlier attempt left it
        with path.open("wb") as file:
            file.truncate(length)
            for position, mark in marks.items():
                if position < length:
                    file.seek(position)
                    file.write(mark)
    with running_sshd(tmp_path / "s", extra="RekeyLimit 4M") as server:
        result = move(server, direction, source, target, timeout_s=60.0)
    assert (result.action, result.resumed_from, result.size_bytes) == (Action.RESUMED, size - left, size)
    with target.open("rb") as file:
        for position, mark in marks.items():
            file.seek(position)
            assert file.read(len(mark)) == mark
    assert target.stat().st_size == size


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("method", ["exec", "sftp"])
def test_two_transfers_of_one_file_at_once_leave_it_whole(server: Server, tmp_path: Path, direction: str, method: str) -> None:
    source, target = make_file(tmp_path / "a", 8 * MiB), tmp_path / "b"
    ends: list[FileResult | TransferError] = []

    def work() -> None:
        try:
            ends.append(move(server, direction, source, target, method=method, retries=8, rate_limit=40e6))
        except TransferError as error:
            ends.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [e.sha256 for e in ends if isinstance(e, FileResult)] == [sha256_of(source)] * 2, ends
    assert target.read_bytes() == source.read_bytes()
    assert not (tmp_path / "b.part").exists()


def test_a_transfer_that_another_one_holds_up_says_so(server: Server, tmp_path: Path) -> None:
    import fcntl

    source, target = make_file(tmp_path / "a", MiB), tmp_path / "b"
    with (tmp_path / "b.part").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Interrupted) as e:
            move(server, "down", source, target)
    assert str(e.value) == f"{target}.part: another transfer is writing it; wait until that has ended, or name another destination"


@pytest.mark.parametrize("direction", ["up", "down"])
def test_ten_thousand_small_files_go_through_and_are_left_alone_the_second_time(server: Server, tmp_path: Path, direction: str) -> None:
    rng = np.random.default_rng(1)
    for i in range(10_000):
        path = tmp_path / "src" / f"d{i % 7}" / f"{i}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(int(rng.integers(0, 2000))))
    far = server.at(f"{tmp_path}/{'dst' if direction == 'up' else 'src/'}")
    ends = ([f"{tmp_path}/src/"], far) if direction == "up" else ([far], str(tmp_path / "dst"))
    seen: list[tuple[int, int]] = []
    results = transfer(*ends, options=server.options(), progress=lambda *x: seen.append(x))
    assert {r.action for r in results} == {Action.SENT}
    assert len(results) == 10_000
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    assert subprocess.run(["diff", "-rq", str(tmp_path / "src"), str(tmp_path / "dst")], check=False).returncode == 0
    (tmp_path / "dst" / "d3" / "3.h5").write_bytes(b"rot")
    again = transfer(*ends, options=server.options())
    assert [r.source.rpartition("/")[2] for r in again if r.action == Action.SENT] == ["3.h5"]
    assert subprocess.run(["diff", "-rq", str(tmp_path / "src"), str(tmp_path / "dst")], check=False).returncode == 0


def test_options_hold_no_default_that_gives_up_early() -> None:
    assert Options().retries >= 1
