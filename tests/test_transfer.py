"""Locations, names, plans: everything about a transfer that needs no connection."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_sshd import find_sshd, make_key

from accuracy_eval.errors import HostKeyError, TransferError, UsageError
from accuracy_eval.transfer import Location, Options, hostkeys, parse_location, transfer
from accuracy_eval.transfer.configuration import resolve
from accuracy_eval.transfer.moving import _safe
from accuracy_eval.transfer.shell import absolute_or_dotted, encode_word, script

LOCATIONS = {
    "a.h5": Location("", "a.h5"),
    "/data/a.h5": Location("", "/data/a.h5"),
    "./a:b": Location("", "./a:b"),
    "dir/a:b": Location("", "dir/a:b"),
    "host:a.h5": Location("host", "a.h5"),
    "host:": Location("host", "."),
    "host:~": Location("host", "."),
    "host:~/dumps/": Location("host", "dumps/"),
    "host:/data/a b": Location("host", "/data/a b"),
    "host:a:b": Location("host", "a:b"),
    "me@host:a": Location("host", "a", "me"),
    "me@[::1]:a": Location("::1", "a", "me"),
    "ssh://host/a": Location("host", "a"),
    "ssh://me@host:2222//data/a%20b": Location("host", "/data/a b", "me", 2222),
    "sftp://[::1]:22/": Location("::1", ".", None, 22),
    "ssh://host:22/a%23b%25%0A%3f%ff": Location("host", "a#b%\n?\udcff", None, 22),
}


@pytest.mark.parametrize("text", LOCATIONS)
def test_locations_are_read_as_scp_reads_them(text: str) -> None:
    assert parse_location(text) == LOCATIONS[text]


@pytest.mark.parametrize("location", [x for x in LOCATIONS.values() if x.remote], ids=str)
def test_a_location_prints_as_what_it_is_read_from(location: Location) -> None:
    assert parse_location(str(location)) == location


@pytest.mark.parametrize(
    "text",
    ["", "a\x00b", "-oProxyCommand=x:a", "host:~other/a", "ssh://host:99999/a", "ssh://me:secret@host/a", "ssh:///a", "ssh://host/a\nb"],
)
def test_locations_that_mean_nothing_or_harm_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="location"):
        parse_location(text)


HOSTILE = [
    "plain",
    "-rf",
    "a b",
    " ",
    "a'b",
    'a"b',
    "a\nb",
    "\n",
    "a\n\n",
    "é 漢 🙂",
    "$(touch pwned)",
    "`touch pwned`",
    "a;b&c|d",
    "a\\b",
    "\\0101",
]
HOSTILE += ["*", "?[x]", "~", "a!b", "#", "%s%n", "a\tb", "\x1b[31m", "'; touch pwned; '", "\\", "--help", "b\udcff\udcfe"]


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_reaches_the_script_byte_for_byte(shell: str, name: str) -> None:
    assert shutil.which(shell)
    command = script('printf %s "$p"; printf "|%s" "$q"', name, "x")
    out = subprocess.run([shell, "-c", command], capture_output=True, check=True).stdout
    assert out == name.encode("utf-8", "surrogateescape") + b"|x"


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b))
def test_any_bytes_reach_the_script(name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")
    assert subprocess.run(["sh", "-c", script('printf %s "$p"', text)], capture_output=True, check=True).stdout == name


def test_a_coded_word_holds_nothing_a_shell_would_look_at() -> None:
    assert encode_word("a b'c\n") == "'a\\0040b\\0047c\\0012'"
    assert absolute_or_dotted("-rf") == "./-rf"
    assert absolute_or_dotted("/-rf") == "/-rf"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", ".", ""])
def test_a_name_that_leaves_the_destination_is_refused(name: str) -> None:
    remote: Any = SimpleNamespace(label="me@host")
    with pytest.raises(TransferError, match=r"me@host:dumps: the host lists a file .* outside the destination; refused"):
        _safe(remote, "dumps", name)
    assert _safe(remote, "dumps", "a/b.h5") == Path("a/b.h5")


def test_sides_that_do_not_fit_are_usage_errors() -> None:
    cases: list[tuple[list[str], str, str]] = [
        ([], "host:", "nothing to transfer: no sources were given"),
        (["a", "host:b"], "c", "sources are partly local, partly remote; name them in separate transfers"),
        (["a"], "b", "a to b: neither side is remote; copy with cp, or write one side as [user@]host:path"),
    ]
    for sources, destination, message in cases:
        with pytest.raises(UsageError) as e:
            transfer(sources, destination)
        assert str(e.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [({"method": "ftp"}, "method 'ftp'; allowed: auto, exec, sftp"), ({"timeout_s": 0.0}, "timeout_s 0.0; allowed: above 0")],
)
def test_options_that_make_no_sense_are_usage_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as e:
        Options(**options)
    assert str(e.value) == message


def _resolve(tmp_path: Path, config: str, location: str, **options: Any) -> Any:
    path = tmp_path / "config"
    path.write_text(config)
    return resolve(parse_location(location), Options(config_file=path, **options))


CONFIG = """
Include more/*.conf
Host lab lab2
    HostName lab.example.org
    Port 2200
    User ann
    IdentityFile /keys/%r_key
    UserKnownHostsFile /kh/%h "/kh/second"
    StrictHostKeyChecking accept-new
    ProxyJump bob@gate:22022,[::1]
Host old
    HostKeyAlias museum
    ProxyCommand nc %h %p
    StrictHostKeyChecking no
    ConnectTimeout 7
    IdentitiesOnly yes
Host *
    User everyone
"""


def test_the_ssh_configuration_is_honoured(tmp_path: Path) -> None:
    lab = _resolve(tmp_path, CONFIG, "lab:x")
    assert (lab.host, lab.port, lab.user, lab.label) == ("lab.example.org", 2200, "ann", "ann@lab.example.org:2200")
    assert lab.identity_files == (Path("/keys/ann_key"),)
    assert lab.known_hosts == (Path("/kh/lab.example.org"), Path("/kh/second"))
    assert lab.known_as == "[lab.example.org]:2200"
    assert lab.accept_new
    assert lab.jumps == (Location("gate", ".", "bob", 22022), Location("::1", "."))
    old = _resolve(tmp_path, CONFIG, "old:x")
    assert (old.known_as, old.proxy_command, old.connect_timeout_s, old.identities_only) == ("museum", "nc old 22", 7.0, True)
    assert (old.user, old.port) == ("everyone", 22)


def test_what_the_location_and_options_say_goes_before_the_configuration(tmp_path: Path) -> None:
    target = _resolve(tmp_path, CONFIG, "ssh://eve@lab:99/x", port=77, known_hosts=(Path("/k"),), identity_files=(Path("/i"),))
    assert (target.user, target.port) == ("eve", 99)
    assert (target.known_hosts, target.global_known_hosts) == ((Path("/k"),), ())
    assert target.identity_files[0] == Path("/i")
    assert _resolve(tmp_path, CONFIG, "lab:x", port=77).port == 77


def test_included_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.conf").write_text("Host lab\n  Port 4\n")
    assert _resolve(tmp_path, CONFIG, "lab:x").port == 4
    (tmp_path / "more" / "a.conf").write_text(f"Include {tmp_path}/more/a.conf\n")
    with pytest.raises(TransferError, match="Include nests deeper than 16"):
        _resolve(tmp_path, CONFIG, "lab:x")


def test_a_configuration_that_cannot_be_understood_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=f"{tmp_path}/config: cannot be understood for host 'lab'"):
        _resolve(tmp_path, "Host 'lab\n", "lab:x")
    with pytest.raises(TransferError, match=r"ProxyJump 'a b' is not \[user@\]host\[:port\]"):
        _resolve(tmp_path, "Host lab\n ProxyJump a b\n", "lab:x")


def test_a_damaged_known_hosts_file_is_named(tmp_path: Path) -> None:
    from accuracy_eval.transfer import hostkeys

    known = tmp_path / "known_hosts"
    known.write_text("# a comment\nhost ssh-ed25519 !!!notbase64\n")
    with pytest.raises(HostKeyError, match=f"{known} line 2 cannot be read"):
        hostkeys.load(_resolve(tmp_path, "", "host:x", known_hosts=(known,)))
    assert hostkeys.load(_resolve(tmp_path, "", "other:x", known_hosts=(known,))).keys == ()


MATCHES = [
    ("host", "host", True),
    ("HOST", "host", True),
    ("host,other", "other", True),
    ("*.lab.org", "a.lab.org", True),
    ("*.lab.org,!b.lab.org", "b.lab.org", False),
    ("h?st", "host", True),
    ("host", "hos", False),
    ("[host]:22022", "[host]:22022", True),
    ("[host]:22022", "host", False),
    ("[h]:2", "h", False),
    ("*", "anything", True),
]


@pytest.mark.parametrize(("patterns", "host", "expected"), MATCHES)
def test_known_hosts_patterns_mean_what_openssh_means(patterns: str, host: str, expected: bool) -> None:
    assert hostkeys.matches(patterns, host) is expected


def test_a_hashed_name_counts_and_every_key_of_a_host_is_known(tmp_path: Path) -> None:
    import paramiko

    lines = []
    for name in ("old", "new"):
        make_key(tmp_path / name)
        lines.append("host " + (tmp_path / f"{name}.pub").read_text())
    known = tmp_path / "known_hosts"
    known.write_text("".join(lines))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "host " not in known.read_text()
    with known.open("a") as f:
        f.write("@cert-authority * ssh-ed25519 AAAA\n")
    target = _resolve(tmp_path, "", "host:x", known_hosts=(known,))
    for name in ("old", "new"):
        hostkeys.check(target, paramiko.PKey.from_path(tmp_path / name))
    make_key(tmp_path / "third")
    with pytest.raises(HostKeyError, match="known is ssh-ed25519"):
        hostkeys.check(target, paramiko.PKey.from_path(tmp_path / "third"))


def test_a_missing_server_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *a, **k: None)
    with pytest.raises(RuntimeError, match="the transfer tests need an OpenSSH server: apt-get install openssh-server"):
        find_sshd()


def test_importing_transfer_loads_no_ssh_library_and_no_terminal_library() -> None:
    names = "'paramiko', 'rich', 'click', 'h5py', 'numba', 'torch'"
    code = f"import sys, accuracy_eval.transfer; print([m for m in ({names}) if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_channel_s_buffer_gives_back_what_it_was_fed_in_any_portions() -> None:
    from paramiko.buffered_pipe import PipeTimeout

    from accuracy_eval.transfer.buffering import BlockPipe

    pipe = BlockPipe()
    for block in (b"abc", b"", b"defgh", b"i"):
        pipe.feed(block)
    assert (len(pipe), pipe.read_ready()) == (9, True)
    assert [pipe.read(2), pipe.read(4), pipe.read(100)] == [b"ab", b"cdef", b"ghi"]
    assert not pipe.read_ready()
    for timeout in (0.0, 0.01):
        with pytest.raises(PipeTimeout):
            pipe.read(1, timeout)
    threading.Timer(0.02, pipe.feed, (b"late",)).start()
    assert pipe.read(10, 5.0) == b"late"
    pipe.feed(b"rest")
    assert pipe.empty() == b"rest"
    pipe.close()
    assert pipe.read(1) == b""
