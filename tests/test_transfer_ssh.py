"""Transfers against a real OpenSSH server on loopback."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paramiko
import pytest
from support_proxy import CuttingProxy
from support_sshd import Server, fingerprint, make_key, running_sshd
from support_transfer import files_of
from test_transfer import HOSTILE

from accuracy_eval.errors import DigestMismatch, HostKeyError, TransferError, UsageError
from accuracy_eval.transfer import Action, Location, Options, connect, transfer
from accuracy_eval.transfer.remote import SMALL_BYTES

SIZE = 3 * (1 << 20) + 17
UTF8 = [n for n in HOSTILE if "\udcff" not in n]
pytestmark = pytest.mark.usefixtures("no_agent")


def _data(size: int = SIZE, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def _file(path: Path, size: int = SIZE, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_data(size, seed))
    return path


@pytest.mark.parametrize("size", [0, 1, SIZE])
def test_a_file_goes_there_and_comes_back(any_server: Server, tmp_path: Path, size: int) -> None:
    source = _file(tmp_path / "a.h5", size)
    sha256 = hashlib.sha256(_data(size)).hexdigest()
    method = (
        "sftp" if (size <= SMALL_BYTES and "shell_only" not in str(any_server.folder)) or "sftp_only" in str(any_server.folder) else "exec"
    )
    (put,) = transfer([str(source)], any_server.at(tmp_path / "far" / "b.h5"), options=any_server.options())
    assert (tmp_path / "far" / "b.h5").read_bytes() == _data(size)
    place = f"{any_server.user}@127.0.0.1:{any_server.port}:{tmp_path}/far/b.h5"
    assert dataclasses.astuple(put) == (str(source), place, size, sha256, Action.SENT, 0, method, False)
    (got,) = transfer([any_server.at(tmp_path / "far" / "b.h5")], str(tmp_path / "back" / "c.h5"), options=any_server.options())
    assert dataclasses.astuple(got) == (place, str(tmp_path / "back" / "c.h5"), size, sha256, Action.SENT, 0, method, False)
    assert files_of(tmp_path / "back") == {"c.h5": _data(size)}
    assert files_of(tmp_path / "far") == {"b.h5": _data(size)}


def test_folders_go_there_and_come_back(any_server: Server, tmp_path: Path) -> None:
    for i, name in enumerate(["d/one", "d/sub/two", "d/sub/deep/three", "single"]):
        _file(tmp_path / "src" / name, 100 * i, i)
    sources = [str(tmp_path / "src" / "d"), str(tmp_path / "src" / "single")]
    results = transfer(sources, any_server.at(tmp_path / "far"), options=any_server.options())
    assert [r.action for r in results] == [Action.SENT] * 4
    assert files_of(tmp_path / "far") == files_of(tmp_path / "src")
    transfer([any_server.at(tmp_path / "far" / "d")], str(tmp_path / "back"), options=any_server.options())
    assert files_of(tmp_path / "back" / "d") == files_of(tmp_path / "src" / "d")
    again = transfer(sources, any_server.at(tmp_path / "far"), options=any_server.options())
    assert [r.action for r in again] == [Action.SKIPPED] * 4


def test_a_folder_with_a_slash_gives_its_contents(server: Server, tmp_path: Path) -> None:
    _file(tmp_path / "src" / "sub" / "x", 10)
    transfer([f"{tmp_path}/src/"], server.at(tmp_path / "far"), options=server.options())
    assert files_of(tmp_path / "far") == {"sub/x": _data(10)}
    transfer([server.at(f"{tmp_path}/far/")], str(tmp_path / "back"), options=server.options())
    assert files_of(tmp_path / "back") == {"sub/x": _data(10)}


def test_partial_and_temporary_files_of_a_folder_stay_behind(server: Server, tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5.part", "c.h5.x-1-0.tmp"):
        _file(tmp_path / "src" / name, 5)
    transfer([f"{tmp_path}/src/"], server.at(tmp_path / "far"), options=server.options())
    transfer([server.at(f"{tmp_path}/src/")], str(tmp_path / "back"), options=server.options())
    assert list(files_of(tmp_path / "far")) == list(files_of(tmp_path / "back")) == ["a.h5"]


def test_a_relative_path_starts_at_the_home_folder(any_server: Server, tmp_path: Path) -> None:
    home = Path.home()
    name = f"accuracy-eval-test-{os.getpid()}"
    try:
        transfer([str(_file(tmp_path / "a", 10))], any_server.at(f"{name}/x"), options=any_server.options())
        assert (home / name / "x").read_bytes() == _data(10)
        transfer([any_server.at(f"{name}/x")], f"{tmp_path}/back/", options=any_server.options())
        assert files_of(tmp_path / "back") == {"x": _data(10)}
    finally:
        for path in (home / name).glob("*"):
            path.unlink()
        (home / name).rmdir()


def test_hostile_names_survive_both_ways(any_server: Server, tmp_path: Path) -> None:
    for i, name in enumerate(UTF8):
        _file(tmp_path / "src" / name, 10 + i, i)
    transfer([f"{tmp_path}/src/"], any_server.at(tmp_path / "far"), options=any_server.options())
    assert files_of(tmp_path / "far") == files_of(tmp_path / "src")
    transfer([any_server.at(f"{tmp_path}/far/")], str(tmp_path / "back"), options=any_server.options())
    assert files_of(tmp_path / "back") == files_of(tmp_path / "src")
    assert not list(tmp_path.rglob("pwned")) + list(Path.home().glob("pwned"))


def test_many_hostile_names_travel_together(any_server: Server, tmp_path: Path) -> None:
    names = [f"{name}{i}" for i in range(2) for name in UTF8]
    for i, name in enumerate(names):
        _file(tmp_path / "src" / "d'\n" / name, 10 + i, i)
    put = transfer([f"{tmp_path}/src/"], any_server.at(tmp_path / "far"), options=any_server.options())
    assert files_of(tmp_path / "far") == files_of(tmp_path / "src")
    transfer([any_server.at(f"{tmp_path}/far/")], str(tmp_path / "back"), options=any_server.options())
    assert files_of(tmp_path / "back") == files_of(tmp_path / "src")
    assert {r.method for r in put} == {"sftp" if "sftp_only" in str(any_server.folder) else "tar"}
    assert not list(tmp_path.rglob("pwned")) + list(Path.home().glob("pwned"))


def test_files_go_from_host_to_host(server: Server, shell_only: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _file(tmp_path / "src" / "d" / "a")
    _file(tmp_path / "src" / "b", 10, 1)
    options = _config(tmp_path / "config", ("one", server, ""), ("two", shell_only, ""))
    results = transfer([f"one:{tmp_path}/src/d", f"one:{tmp_path}/src/b"], f"two:{tmp_path}/far/", options=options)
    assert files_of(tmp_path / "far") == files_of(tmp_path / "src")
    assert [(r.source, r.destination) for r in results] == [
        (f"{server.label}:{tmp_path}/src/{name}", f"{shell_only.label}:{tmp_path}/far/{name}") for name in ("d/a", "b")
    ]
    assert list((tmp_path / "cache" / "accuracy-eval").iterdir()) == []


@pytest.mark.parametrize("name", ["-rf", "a b", "a'b", "a\nb", "$(touch pwned)", "~"], ids=ascii)
def test_a_single_hostile_name_can_be_named(server: Server, tmp_path: Path, name: str) -> None:
    source = _file(tmp_path / "src" / name, 20)
    to = f"{server.user}@127.0.0.1:{tmp_path}/far/{name}"
    transfer([str(source)], to, options=server.options(port=server.port))
    assert files_of(tmp_path / "far") == {name: _data(20)}
    transfer([to], f"{tmp_path}/back/", options=server.options(port=server.port))
    assert files_of(tmp_path / "back") == {name: _data(20)}


def test_a_name_that_is_not_utf8_can_be_sent(any_server: Server, tmp_path: Path) -> None:
    _file(tmp_path / "src" / "b\udcff\udcfe", 20)
    transfer([f"{tmp_path}/src/"], any_server.at(tmp_path / "far"), options=any_server.options())
    assert files_of(tmp_path / "far") == {"b\udcff\udcfe": _data(20)}


def test_an_identical_file_is_not_sent_again_and_a_different_one_is(any_server: Server, tmp_path: Path) -> None:
    source, far = _file(tmp_path / "a"), tmp_path / "far"
    to = any_server.at(f"{far}/")
    actions = [transfer([str(source)], to, options=any_server.options())[0].action for _ in range(2)]
    inode = (far / "a").stat().st_ino
    changed = bytearray(_data())
    changed[-1] ^= 1
    (far / "a").write_bytes(changed)
    actions.append(transfer([str(source)], to, options=any_server.options())[0].action)
    assert actions == [Action.SENT, Action.SKIPPED, Action.SENT]
    assert (far / "a").read_bytes() == _data()
    assert (far / "a").stat().st_ino != inode
    back = str(tmp_path / "back")
    actions = [transfer([any_server.at(far / "a")], back, options=any_server.options())[0].action for _ in range(2)]
    Path(back).write_bytes(changed)
    actions.append(transfer([any_server.at(far / "a")], back, options=any_server.options())[0].action)
    assert actions == [Action.SENT, Action.SKIPPED, Action.SENT]
    assert Path(back).read_bytes() == _data()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_transfer_goes_on_where_it_stopped(any_server: Server, tmp_path: Path, direction: str) -> None:
    size = 8 << 20
    source, target = _file(tmp_path / "a", size), tmp_path / "there" / "b"

    def run(port: int) -> Any:
        if direction == "up":
            return transfer([str(source)], any_server.at(target, port), options=any_server.options())
        return transfer([any_server.at(source, port)], str(target), options=any_server.options())

    with CuttingProxy(any_server.port, 5 << 20, direction) as proxy:
        any_server.know(proxy.port)
        with pytest.raises(TransferError, match="run again to go on from here"):
            run(proxy.port)
        assert proxy.cuts == 1
    part = target.with_name("b.part")
    assert not target.exists()
    assert 1 << 20 < part.stat().st_size < size
    assert _data(size).startswith(part.read_bytes())
    with CuttingProxy(any_server.port, 1 << 40, direction) as proxy:
        any_server.know(proxy.port)
        (result,) = run(proxy.port)
        passed = proxy.passed
    any_server.know()
    assert result.action == Action.RESUMED
    assert 1 << 20 < result.resumed_from < size
    if direction == "up" or any_server.folder.parent.name[:9] != "sftp_only":  # where fetched bytes are also read back to be verified
        assert passed < size - result.resumed_from + (1 << 19)
    assert files_of(target.parent) == {"b": _data(size)}


@pytest.mark.parametrize("content", [_data(1000, seed=9), _data(SIZE + 1)[: SIZE + 1]], ids=["other_bytes", "longer"])
def test_a_partial_file_that_does_not_begin_the_file_is_not_continued(any_server: Server, tmp_path: Path, content: bytes) -> None:
    source = _file(tmp_path / "a")
    for name in ("far", "back"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.part").write_bytes(content)
    (put,) = transfer([str(source)], any_server.at(f"{tmp_path}/far/"), options=any_server.options())
    (got,) = transfer([any_server.at(source)], f"{tmp_path}/back/", options=any_server.options())
    assert (put.action, got.action) == (Action.SENT, Action.SENT)
    assert files_of(tmp_path / "far") == files_of(tmp_path / "back") == {"a": _data()}


def test_a_complete_partial_file_only_needs_its_name(server: Server, tmp_path: Path) -> None:
    source = _file(tmp_path / "a")
    _file(tmp_path / "far" / "a.part")
    (put,) = transfer([str(source)], server.at(f"{tmp_path}/far/"), options=server.options())
    assert (put.action, put.resumed_from) == (Action.RESUMED, SIZE)
    assert files_of(tmp_path / "far") == {"a": _data()}


def test_resuming_can_be_refused(server: Server, tmp_path: Path) -> None:
    source = _file(tmp_path / "a")
    _file(tmp_path / "far" / "a.part", 1000)
    (put,) = transfer([str(source)], server.at(f"{tmp_path}/far/"), options=server.options(resume=False))
    assert (put.action, put.resumed_from) == (Action.SENT, 0)


_MEDDLER = """#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
*'cat 1<> '*) { head -c 7; printf X; tail -c +2; } | sh -c "$SSH_ORIGINAL_COMMAND" ;;
*' skip='*) sh -c "$SSH_ORIGINAL_COMMAND" | tr a b ;;
*) exec sh -c "$SSH_ORIGINAL_COMMAND" ;;
esac
"""


@pytest.fixture(scope="module")
def meddler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A far end that changes bytes on their way to or from its disk."""
    folder = tmp_path_factory.mktemp("meddler")
    (folder / "meddle").write_text(_MEDDLER)
    (folder / "meddle").chmod(0o755)
    with running_sshd(folder / "s", authorized=f'command="{folder}/meddle"', sftp=False) as s:
        yield s


def test_bytes_that_change_at_the_far_end_are_found(meddler: Server, tmp_path: Path) -> None:
    source, far = _file(tmp_path / "a", 1000), tmp_path / "far" / "a"
    with pytest.raises(DigestMismatch) as e:
        transfer([str(source)], meddler.at(far), options=meddler.options())
    changed = bytearray(_data(1000))
    changed[7:8] = b"X"
    host = f"{meddler.user}@127.0.0.1:{meddler.port}"
    assert str(e.value) == (
        f"{host}:{far}: sha256 {hashlib.sha256(changed).hexdigest()} of {host}:{far}.part != {hashlib.sha256(_data(1000)).hexdigest()} "
        "of the source; the bytes changed on the way or at the far end and were removed. "
        "Run again; if it repeats, check the disk and memory of both hosts."
    )
    assert files_of(tmp_path / "far") == {}


def test_bytes_that_change_on_the_way_here_are_found(meddler: Server, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"banana" * 100)
    with pytest.raises(DigestMismatch, match=hashlib.sha256(b"bbnbnb" * 100).hexdigest()):
        transfer([meddler.at(source)], str(tmp_path / "back" / "a"), options=meddler.options())
    assert files_of(tmp_path / "back") == {}


def test_a_start_up_file_that_prints_is_worked_around(tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.write_text('#!/bin/sh\ncase "$SSH_ORIGINAL_COMMAND" in internal-sftp) exec /usr/lib/openssh/sftp-server ;; esac\n')
    with noisy.open("a") as f:
        f.write('echo "Welcome!"\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    noisy.chmod(0o755)
    with running_sshd(tmp_path / "s", authorized=f'command="{noisy}"') as s:
        (put,) = transfer([str(_file(tmp_path / "a", 100))], s.at(tmp_path / "far" / "a"), options=s.options())
    assert put.method == "sftp"
    assert files_of(tmp_path / "far") == {"a": _data(100)}


def test_a_file_that_changes_while_it_is_sent_is_refused(server: Server, tmp_path: Path) -> None:
    source = _file(tmp_path / "a")

    def progress(done: int, total: int) -> None:
        if 0 < done < total:
            with source.open("ab") as f:
                f.write(b"more")

    with pytest.raises(TransferError, match="changed while it was being sent"):
        transfer([str(source)], server.at(tmp_path / "far" / "a"), options=server.options(), progress=progress)
    assert not (tmp_path / "far" / "a").exists()


def test_an_unknown_host_is_refused_before_anything_is_sent(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    with pytest.raises(HostKeyError) as e:
        transfer([str(_file(tmp_path / "a"))], server.at(tmp_path / "far" / "a"), options=server.options(known_hosts=(known,)))
    place = f"[127.0.0.1]:{server.port}"
    assert str(e.value) == (
        f"{server.user}@127.0.0.1:{server.port}: host key ssh-ed25519 {fingerprint(server.host_key)} of {place} is unknown; "
        f"it is in none of {known}. Compare the fingerprint with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), "
        "then connect once with ssh, or allow new hosts (--accept-new)."
    )
    assert not known.exists()
    assert not (tmp_path / "far").exists()


def test_a_new_host_can_be_accepted_and_is_then_known(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "ssh" / "known_hosts"
    source, to = str(_file(tmp_path / "a", 10)), server.at(tmp_path / "far" / "a")
    transfer([source], to, options=server.options(known_hosts=(known,), accept_new=True, dry_run=True))
    assert not known.exists()
    transfer([source], to, options=server.options(known_hosts=(known,), accept_new=True))
    assert known.read_text() == f"[127.0.0.1]:{server.port} {' '.join(server.host_key.read_text().split()[:2])}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    transfer([source], to, options=server.options(known_hosts=(known,)))
    found = subprocess.run(["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", str(known)], capture_output=True, check=True)
    assert b"found" in found.stdout


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_refused_with_both_fingerprints(server: Server, tmp_path: Path, accept_new: bool) -> None:
    make_key(tmp_path / "other")
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {(tmp_path / 'other.pub').read_text()}")
    before = known.read_text()
    with pytest.raises(HostKeyError) as e:
        transfer(
            [str(_file(tmp_path / "a"))], server.at(tmp_path / "x"), options=server.options(known_hosts=(known,), accept_new=accept_new)
        )
    assert str(e.value) == (
        f"{server.user}@127.0.0.1:{server.port}: host key of [127.0.0.1]:{server.port} is ssh-ed25519 {fingerprint(server.host_key)}, "
        f"known is ssh-ed25519 {fingerprint(tmp_path / 'other.pub')} ({known}). Someone may be between you and the host, "
        f"or it was installed anew; if you know it was, remove the old key with ssh-keygen -R '[127.0.0.1]:{server.port}'."
    )
    assert known.read_text() == before


def test_a_changed_key_of_another_type_is_refused(server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "other", kind="ecdsa")
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {(tmp_path / 'other.pub').read_text()}")
    with pytest.raises(HostKeyError, match="known is ecdsa-sha2-nistp256"):
        transfer([str(_file(tmp_path / "a"))], server.at(tmp_path / "x"), options=server.options(known_hosts=(known,), accept_new=True))


def test_a_revoked_host_key_is_refused_even_where_new_ones_are_accepted(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"@revoked * {server.host_key.read_text()}")
    with pytest.raises(HostKeyError, match="is marked @revoked"):
        transfer([str(_file(tmp_path / "a"))], server.at(tmp_path / "x"), options=server.options(known_hosts=(known,), accept_new=True))


def _config(path: Path, *servers: tuple[str, Server, str]) -> Options:
    """Options that know nothing but a configuration file with an alias for each server."""
    lines = []
    for alias, s, more in servers:
        lines += [f"Host {alias}", f"  HostName 127.0.0.1\n  Port {s.port}\n  User {s.user}\n  IdentityFile {s.user_key}"]
        lines += [f"  UserKnownHostsFile {s.known_hosts}\n  {more}"]
    path.write_text("\n".join(lines) + "\n")
    return Options(config_file=path, timeout_s=20.0)


def test_an_alias_of_the_ssh_configuration_is_enough(server: Server, tmp_path: Path) -> None:
    options = _config(tmp_path / "config", ("lab", server, ""))
    transfer([str(_file(tmp_path / "a", 10))], f"lab:{tmp_path}/far/", options=options)
    assert files_of(tmp_path / "far") == {"a": _data(10)}


def test_a_transfer_goes_through_a_jump_host(server: Server, shell_only: Server, tmp_path: Path) -> None:
    with CuttingProxy(shell_only.port, 1 << 40, "up") as proxy:
        shell_only.know(proxy.port)
        gate = dataclasses.replace(shell_only, port=proxy.port)
        options = _config(tmp_path / "config", ("gate", gate, ""), ("lab", server, "ProxyJump gate"))
        transfer([str(_file(tmp_path / "a"))], f"lab:{tmp_path}/far/", options=options)
        assert proxy.passed > SIZE
    shell_only.know()
    assert files_of(tmp_path / "far") == {"a": _data()}


def test_jump_hosts_chain_and_each_must_be_known(server: Server, shell_only: Server, sftp_only: Server, tmp_path: Path) -> None:
    servers = (("one", shell_only, ""), ("two", server, ""), ("lab", sftp_only, "ProxyJump one,two"))
    options = _config(tmp_path / "config", *servers)
    transfer([str(_file(tmp_path / "a", 10))], f"lab:{tmp_path}/far/", options=options)
    assert files_of(tmp_path / "far") == {"a": _data(10)}
    unknown = tmp_path / "nobody"
    text = (tmp_path / "config").read_text().replace(str(server.known_hosts), str(unknown))
    (tmp_path / "config").write_text(text)
    with pytest.raises(HostKeyError, match=f":{server.port}: host key .* is unknown"):
        transfer([str(tmp_path / "a")], f"lab:{tmp_path}/far2/", options=options)


def test_a_circle_of_jump_hosts_is_refused(server: Server, tmp_path: Path) -> None:
    options = _config(tmp_path / "config", ("a", server, "ProxyJump b"), ("b", server, "ProxyJump a"))
    with pytest.raises(TransferError, match="more than 8 jump hosts"):
        transfer([str(_file(tmp_path / "x", 1))], "a:x", options=options)


def test_a_proxy_command_carries_the_connection(server: Server, shell_only: Server, tmp_path: Path) -> None:
    command = f"ssh -F none -i {shell_only.user_key} -o UserKnownHostsFile={shell_only.known_hosts} -p {shell_only.port} -W %h:%p 127.0.0.1"
    options = _config(tmp_path / "config", ("lab", server, f"ProxyCommand {command}"))
    transfer([str(_file(tmp_path / "a"))], f"lab:{tmp_path}/far/", options=options)
    assert files_of(tmp_path / "far") == {"a": _data()}


@pytest.fixture
def locked(server: Server, tmp_path: Path) -> Iterator[Path]:
    """A key with a passphrase that the server accepts."""
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    keys = server.folder / "authorized_keys"
    before = keys.read_text()
    keys.write_text(before + key.with_name("locked.pub").read_text())
    yield key
    keys.write_text(before)


def test_a_key_with_a_passphrase_is_asked_for(server: Server, locked: Path, tmp_path: Path) -> None:
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "open sesame"

    source, to = str(_file(tmp_path / "a", 10)), server.at(tmp_path / "far" / "a")
    transfer([source], to, options=server.options(identity_files=(locked,), ask=ask))
    assert prompts == [f"Passphrase of {locked}: "]
    with pytest.raises(TransferError) as e:
        transfer([source], to, options=server.options(identity_files=(locked,)))
    assert str(e.value) == (
        f"{server.user}@127.0.0.1:{server.port}: not signed in; tried {locked} (needs its passphrase); the server takes publickey. "
        "Add a key to the agent or name one (IdentityFile)."
    )
    with pytest.raises(TransferError, match="wrong passphrase"):
        transfer([source], to, options=server.options(identity_files=(locked,), ask=lambda prompt: "guess"))


def test_a_certificate_beside_the_key_signs_in(tmp_path: Path) -> None:
    authority, key = make_key(tmp_path / "authority"), make_key(tmp_path / "mine")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", getpass.getuser(), f"{key}.pub"]
    subprocess.run(sign, check=True, capture_output=True)
    with running_sshd(tmp_path / "s", extra=f"TrustedUserCAKeys {authority}.pub") as s:
        transfer([str(_file(tmp_path / "a", 10))], s.at(tmp_path / "far" / "a"), options=s.options(identity_files=(key,)))
        (tmp_path / "mine-cert.pub").unlink()
        with pytest.raises(TransferError, match=rf"not signed in; tried {key};"):
            transfer([str(tmp_path / "a")], s.at(tmp_path / "far" / "b"), options=s.options(identity_files=(key,)))
    assert files_of(tmp_path / "far") == {"a": _data(10)}


class _Questioner(paramiko.ServerInterface):
    """A server that asks a password and a code, as those with one-time passwords do. OpenSSH needs the system's PAM set up for that."""

    def __init__(self) -> None:
        self.answers: list[list[str]] = []

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str | bytes) -> paramiko.InteractiveQuery:
        return paramiko.InteractiveQuery("", "", ("Password: ", False), ("Code: ", True))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.answers.append(responses)
        return paramiko.AUTH_SUCCESSFUL if responses == ["open sesame", "123456"] else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


def test_a_server_s_own_questions_are_asked(tmp_path: Path) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(str(make_key(tmp_path / "host")))
    questioner, prompts = _Questioner(), []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")

        def serve() -> None:
            transport = paramiko.Transport(listener.accept()[0])
            transport.add_server_key(key)
            transport.start_server(server=questioner)
            served.append(transport)

        def ask(prompt: str) -> str:
            prompts.append(prompt)
            return {"Password: ": "open sesame", "Code: ": "123456"}[prompt.partition(": ")[2]]

        served: list[paramiko.Transport] = []
        thread = threading.Thread(target=serve)
        thread.start()
        options = Options(config_file=Path(os.devnull), known_hosts=(tmp_path / "known_hosts",), ask=ask, timeout_s=20)
        with connect(Location("127.0.0.1", ".", "ann", port), options) as session:
            assert session.alive
        thread.join()
        served[0].close()
    assert prompts == [f"ann@127.0.0.1:{port}: Password: ", f"ann@127.0.0.1:{port}: Code: "]
    assert questioner.answers == [["open sesame", "123456"]]


def test_a_key_of_the_agent_signs_in(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
    try:
        while not agent_socket.exists():
            assert agent.poll() is None
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent_socket))
        subprocess.run(["ssh-add", "-q", str(server.user_key)], check=True, capture_output=True)
        monkeypatch.setenv("HOME", str(tmp_path))
        transfer([str(_file(tmp_path / "a", 10))], server.at(tmp_path / "far" / "a"), options=server.options(identity_files=()))
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
    assert files_of(tmp_path / "far") == {"a": _data(10)}


def test_a_key_the_server_does_not_take_is_named(server: Server, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")
    with pytest.raises(TransferError, match=rf"not signed in; tried {stranger}; the server takes publickey\."):
        transfer([str(_file(tmp_path / "a", 10))], server.at(tmp_path / "b"), options=server.options(identity_files=(stranger,)))


def test_a_dry_run_connects_looks_and_writes_nothing(any_server: Server, tmp_path: Path) -> None:
    for name in ("new", "same", "begun"):
        _file(tmp_path / "src" / name)
    for folder in ("far", "back"):
        _file(tmp_path / folder / "same")
        _file(tmp_path / folder / "begun.part", 1000)
    before = files_of(tmp_path)
    expected = [Action.RESUMED, Action.SENT, Action.SKIPPED]
    put = transfer([f"{tmp_path}/src/"], any_server.at(tmp_path / "far"), options=any_server.options(dry_run=True))
    assert [r.action for r in put] == expected
    got = transfer([any_server.at(f"{tmp_path}/src/")], str(tmp_path / "back"), options=any_server.options(dry_run=True))
    assert [r.action for r in got] == expected
    assert files_of(tmp_path) == before


def test_progress_counts_every_byte_once(any_server: Server, tmp_path: Path) -> None:
    for i, name in enumerate(["a", "b", "c"]):
        _file(tmp_path / "src" / name, SIZE - i)
    _file(tmp_path / "far" / "a", SIZE)
    _file(tmp_path / "far" / "b.part", 1000)
    total = 3 * SIZE - 3
    for sources, to in (([f"{tmp_path}/src/"], any_server.at(tmp_path / "far")), ([any_server.at(f"{tmp_path}/src/")], f"{tmp_path}/back")):
        seen: list[tuple[int, int]] = []
        transfer(sources, to, options=any_server.options(), progress=lambda *x, seen=seen: seen.append(x))
        assert seen == sorted(seen)
        assert {t for _, t in seen} == {total}
        assert seen[-1][0] == total
        assert len(seen) > 6


def test_what_is_not_there_is_named(any_server: Server, tmp_path: Path) -> None:
    with pytest.raises(TransferError) as e:
        transfer([str(tmp_path / "none")], any_server.at(tmp_path / "x"), options=any_server.options())
    assert str(e.value) == f"{tmp_path}/none: no such file or folder; nothing was sent"
    with pytest.raises(TransferError) as e:
        transfer([any_server.at(tmp_path / "none")], str(tmp_path / "x"), options=any_server.options())
    assert str(e.value) == (f"{any_server.user}@127.0.0.1:{any_server.port}:{tmp_path}/none: no such file or folder; nothing was fetched")


def test_a_destination_below_a_file_is_an_error_that_names_it(any_server: Server, tmp_path: Path) -> None:
    _file(tmp_path / "far", 3)
    with pytest.raises(TransferError, match=f"127.0.0.1:{any_server.port}: {tmp_path}/far/b"):
        transfer([str(_file(tmp_path / "a", 10))], any_server.at(tmp_path / "far" / "b" / "c"), options=any_server.options())


def test_two_files_of_one_name_are_not_put_over_each_other(server: Server, tmp_path: Path) -> None:
    a, b = _file(tmp_path / "1" / "x", 5), _file(tmp_path / "2" / "x", 6)
    with pytest.raises(UsageError) as e:
        transfer([str(a), str(b)], server.at(tmp_path / "far"), options=server.options())
    assert str(e.value) == f"{a} and {b} would both become {tmp_path}/far/x; transfer them to different folders"
    assert not (tmp_path / "far").exists()


def test_a_host_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = f"ssh://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(TransferError, match="SSH handshake"):
            transfer([str(_file(tmp_path / "a", 1))], to, options=Options(config_file=Path(os.devnull), timeout_s=0.5))


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as held:  # nobody else gets the port, and nobody listens
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(TransferError) as e:
            transfer([str(_file(tmp_path / "a", 1))], f"ssh://127.0.0.1:{port}/x", options=Options(config_file=Path(os.devnull)))
    remedy = "check that `ssh` reaches the host by the same name"
    assert str(e.value) == f"{getpass.getuser()}@127.0.0.1:{port}: connecting: [Errno 111] Connection refused; {remedy}"


_MEASURE = """
import sys
from pathlib import Path
from accuracy_eval.transfer import Options, transfer
source, small, to, back, key, known, method = sys.argv[1:]
options = Options(identity_files=(Path(key),), known_hosts=(Path(known),), config_file=Path("/dev/null"), method=method)
transfer([small], to + "small", options=options)

def peak():
    (found,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(found) * 1024

before = peak()
transfer([source], to + "big", options=options)
transfer([to + "big"], back, options=options)
print(peak() - before)
"""


@pytest.mark.parametrize("method", ["exec", "sftp"])
def test_memory_does_not_grow_with_the_file(server: Server, tmp_path: Path, method: str) -> None:
    big, small = _file(tmp_path / "big", 64 << 20), _file(tmp_path / "small", 1 << 20)
    words = [big, small, server.at(f"{tmp_path}/far/"), tmp_path / "back", server.user_key, server.known_hosts, method]
    run = subprocess.run([sys.executable, "-c", _MEASURE, *map(str, words)], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 32 << 20
    assert (tmp_path / "back").stat().st_size == 64 << 20
