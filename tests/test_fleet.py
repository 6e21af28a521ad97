"""run: a suite on several hosts at once, each a real OpenSSH server with a network of its own where the machine allows it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support_hosts import running_hosts
from support_interrupts import HEARING
from support_proxy import DelayProxy
from support_sshd import Server
from support_transfer import files_of

from accuracy_eval import __version__
from accuracy_eval.cli import run
from accuracy_eval.errors import HostNotReady, UsageError
from accuracy_eval.fleet import Hooks, build_wheel, load_fleet, run_fleet
from accuracy_eval.store import Dump, completed
from accuracy_eval.suite import load_suite
from accuracy_eval.transfer import Options

ROOT = Path(__file__).parent.parent
SUITE = """
name = "fleet"
[[cases]]
op = "gemm"
shape = ["96x64x128", "64x64x64", "33x31x65", "128x16x64", "384x384x512", "512x384x384"]
format = ["float32", "bfloat16", "float16"]
lane = ["random", "exact"]
"""
CASES = 36

SMOKE = len(load_suite("smoke").cases)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with running_hosts(tmp_path_factory.mktemp("hosts"), 3) as servers:
        yield servers


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


class Lab:
    """A folder with a fleet.toml, a suite and an ssh configuration that reaches the hosts by the names a, b, c."""

    def __init__(self, folder: Path, hosts: list[Server]) -> None:
        self.folder = folder
        self.hosts = hosts
        self.tables = {
            name: {"address": name, "python": sys.executable, "folder": str(folder / f"on-{name}"), "device": "reference"} for name in "abc"
        }
        self.env = {name: {"PYTHONPATH": str(ROOT)} for name in "abc"}
        (folder / "suite.toml").write_text(SUITE)
        self.ports = [h.port for h in hosts]
        self.addresses = [h.address for h in hosts]

    def write(self) -> Path:
        config = []
        for name, host, address, port in zip("abc", self.hosts, self.addresses, self.ports, strict=True):
            config.append(f"Host {name}\n HostName {address}\n Port {port}\n User {host.user}\n IdentityFile {host.user_key}")
            config.append(f" UserKnownHostsFile {host.known_hosts}")
        (self.folder / "ssh_config").write_text("\n".join(config) + "\n")
        lines = ['suite = "suite.toml"', 'out = "out"']
        for name, table in self.tables.items():
            lines += [f"[hosts.{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
            lines += [f"[hosts.{name}.env]", *(f"{k} = {json.dumps(v)}" for k, v in self.env[name].items())]
        (self.folder / "fleet.toml").write_text("\n".join(lines) + "\n")
        return self.folder / "fleet.toml"

    def arguments(self, *more: str) -> list[str]:
        return ["run", str(self.write()), "-F", str(self.folder / "ssh_config"), *more]

    def parts(self, name: str) -> Path:
        return self.folder / f"on-{name}" / f"{name}.h5.parts"

    def wrapper(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def lab(tmp_path: Path, hosts: list[Server]) -> Lab:
    return Lab(tmp_path, hosts)


def _at_work_in(folder: Path) -> list[str]:
    """Command lines of processes whose working folder is this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").resolve(strict=True) == folder:
                found.append((process / "cmdline").read_text())
    return found


def _until(condition: Any, what: str, limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_fleet_with_a_host_that_dies_a_slow_one_and_an_old_one(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    old = lab.folder / "old" / "accuracy_eval"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("")
    (old / "version.py").write_text('__version__ = "0.0.9"\n')
    lab.env["c"] = {"PYTHONPATH": str(old.parent)}
    assert run(lab.arguments("-q")) == 2
    label = lab.hosts[2].label
    assert capsys.readouterr().err == (
        "accuracy-eval: 1 of 3 hosts cannot take part:\n"
        f"  c ({label}): has accuracy-eval 0.0.9, here is {__version__}; install {__version__} there, or run with --push to use this one\n"
    )
    assert not (lab.folder / "out").exists()
    assert not lab.parts("a").exists()

    lab.env["c"] = lab.env["a"]
    lab.tables["c"]["device"] = "model:MI300X"
    lab.tables["b"]["python"] = lab.wrapper("slow", f'sleep 1; exec {sys.executable} "$@"')
    killed: list[threading.Timer] = []
    dead = lab.hosts[0]

    def progress(host: str, done: int, total: int, what: str) -> None:
        assert total == CASES
        if host == "a" and not killed and completed(lab.parts("a")):
            dead.kill()
            assert not (lab.folder / "on-a" / "a.h5").exists()
            assert len(completed(lab.parts("a"))) < CASES
            killed.append(threading.Timer(0.5, dead.start))
            killed[0].start()

    notes: list[str] = []
    fetched: list[tuple[str, int]] = []
    with DelayProxy(lab.hosts[1].port, 0.02, lab.hosts[1].address) as slow:
        lab.hosts[1].know(slow.port)
        lab.addresses[1], lab.ports[1] = "127.0.0.1", slow.port
        fleet = load_fleet(lab.write())
        options = Options(config_file=lab.folder / "ssh_config")
        hooks = Hooks(progress, lambda host, done, total: fetched.append((host, total)), notes.append)
        paths = run_fleet(fleet, options=options, hooks=hooks)
        killed[0].join()
        assert any(n.startswith("a: ") and "trying again in" in n for n in notes)
        assert paths == [lab.folder / "out" / f"{name}.h5" for name in "abc"]
        assert {("a", paths[0].stat().st_size), ("b", paths[1].stat().st_size)} <= set(fetched)
        code = run(lab.arguments())  # everything is there already: nothing is dumped or sent again
    lab.hosts[1].know()
    text = capsys.readouterr().out
    assert code == 0
    assert text.startswith(f"PASS a vs b vs c · {CASES} PASS")

    by_hand = lab.folder / "by-hand"
    assert run(["compare", *map(str, paths), "-o", str(by_hand), "-q", *(w for name in "abc" for w in ("--label", name))]) == 0
    assert files_of(by_hand) == files_of(lab.folder / "out" / "report")
    assert {"results.json", "summary.xlsx"} < set(files_of(by_hand))
    arguments = ["dump", str(lab.folder / "suite.toml"), "--device", "reference", "-o", str(lab.folder / "hand.h5"), "-q"]
    assert run(arguments) == 0
    assert {Dump.open(p).content_digest for p in (*paths[:2], lab.folder / "hand.h5")} == {Dump.open(paths[0]).content_digest}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing_running_and_goes_on(lab: Lab, sent: signal.Signals) -> None:
    lab.tables = {"a": lab.tables["a"]}
    (lab.folder / "suite.toml").write_text(re.sub("shape = .*", 'shape = ["640x641x642", "640x640x648", "656x640x640"]', SUITE))
    process = subprocess.Popen([*HEARING, *lab.arguments()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _until(lambda: lab.parts("a").exists() and len(completed(lab.parts("a"))) >= 2, "the dump begins")
    assert _at_work_in(lab.folder / "on-a")
    process.send_signal(sent)
    _, err = process.communicate(timeout=300)
    if sent == signal.SIGINT:
        assert process.returncode == 130, err
        assert "interrupted" in err
    _until(lambda: not _at_work_in(lab.folder / "on-a"), "the dump ends with who waits for it")
    kept = {p.name: p.stat().st_mtime_ns for p in lab.parts("a").glob("*.h5")}
    assert 2 <= len(kept) < 18
    seen: list[int] = []

    def progress(host: str, done: int, total: int, what: str) -> None:
        seen.append(done)

    options = Options(config_file=lab.folder / "ssh_config")
    (path,) = run_fleet(load_fleet(lab.folder / "fleet.toml"), options=options, hooks=Hooks(progress))
    assert len(Dump.open(path).records) == 18
    assert seen[0] == len(kept) + 1  # what was there is not done again


def test_a_host_without_the_package_is_given_it(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    packages = str(Path(np.__file__).parent.parent)
    bare = lab.wrapper("bare", f'exec {sys.executable} -S "$@"')  # no site, no editable install: only what PYTHONPATH brings
    lab.tables = {"a": lab.tables["a"] | {"python": bare}}
    lab.env["a"] = {"PYTHONPATH": packages}
    (lab.folder / "suite.toml").write_text(re.sub("shape = .*", 'shape = ["16x16x32"]', SUITE))
    assert run(lab.arguments("-q")) == 2
    assert "No module named 'accuracy_eval'; install accuracy-eval there, or run with --push" in capsys.readouterr().err
    assert run(lab.arguments("-q", "--push", "--to", "none")) == 0
    (package,) = (lab.folder / "on-a").glob(f"package-{__version__}-*")
    before = package.stat().st_ino
    assert run(lab.arguments("-q", "--push", "--fresh", "--to", "none")) == 0
    assert package.stat().st_ino == before
    assert len(Dump.open(lab.folder / "out" / "a.h5").records) == 6


def test_the_wheel_is_one_that_installers_take(tmp_path: Path) -> None:
    path = build_wheel(tmp_path / "first")
    assert path.read_bytes() == build_wheel(tmp_path / "second").read_bytes()
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        assert {"accuracy_eval/suites/smoke.toml", "accuracy_eval/py.typed", f"accuracy_eval-{__version__}.dist-info/WHEEL"} <= names
        assert not [n for n in names if "__pycache__" in n]
        lines = wheel.read(f"accuracy_eval-{__version__}.dist-info/RECORD").decode().splitlines()
        listed = {}
        for line in lines:
            name, digest, size = line.rsplit(",", 2)
            listed[name] = digest, size
        assert set(listed) == names
        for name in names - {f"accuracy_eval-{__version__}.dist-info/RECORD"}:
            data = wheel.read(name)
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert listed[name] == (f"sha256={sha256}", str(len(data)))
    installed = tmp_path / "installed"
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(installed)]
    pip = [sys.executable, "-m", "pip", "install", *options, str(path)]
    subprocess.run(pip, check=True, capture_output=True)
    code = "import accuracy_eval.version as v, sys; print(v.__version__, v.__file__.startswith(sys.argv[1]))"
    here = tmp_path / "elsewhere"
    here.mkdir()
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", code, str(installed)]
    out = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=True).stdout
    assert out == f"{__version__} True\n"


def test_every_host_that_cannot_take_part_is_listed_with_what_to_do(lab: Lab) -> None:
    lab.tables["a"]["python"] = "/nowhere/python"
    lab.tables["b"]["device"] = "cuda:9"
    lab.addresses[2] = "127.0.0.77"  # nobody listens there
    with pytest.raises(HostNotReady) as e:
        run_fleet(load_fleet(lab.write()), options=Options(config_file=lab.folder / "ssh_config"))
    first, a, b, c = str(e.value).split("\n")
    assert first == "3 of 3 hosts cannot take part:"
    assert a.startswith(f"  a ({lab.hosts[0].label}): ")
    assert "/nowhere/python" in a
    assert b.startswith(f"  b ({lab.hosts[1].label}): {sys.executable} (Python ")
    assert "cuda" in b
    assert c.startswith("  c: ")
    assert "Connection refused" in c
    assert not (lab.folder / "out").exists()


def test_a_host_without_room_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accuracy_eval.fleet.running.SPARE_BYTES", 1 << 60)
    with pytest.raises(HostNotReady, match=r"has \d+ bytes free, the dump may need 11529\d+; make room or set another folder"):
        run_fleet(load_fleet(lab.write()), options=Options(config_file=lab.folder / "ssh_config"))


GOOD = 'suite = "smoke"\n[hosts.a]\naddress = "me@a"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("suite = ", "not TOML"),
        ('[hosts.a]\naddress = "a"\n', "no suite; give suite = a built-in name"),
        ('suite = "smoke"\n', "no hosts; give each a table [hosts.NAME] with its address"),
        (f'colour = "red"\n{GOOD}', "unknown key in fleet "),
        ('suite = "smoke"\n[hosts.a]\n', "hosts.a: no address; give [user@]host as ssh takes it"),
        ('suite = "smoke"\n[hosts.a]\nadress = "me@a"\n', "hosts.a: 'adress' (did you mean address?)"),
        (f"{GOOD}port = 22\n", "hosts.a: 'port'; allowed: address, device, env, folder, python"),
        (f"{GOOD}python = 3\n", "hosts.a: python = 3; expected a string"),
        (f"{GOOD}env = {{A = 1}}\n", "expected a table of variables, each with a string"),
        ('suite = "smoke"\n[hosts."../a"]\naddress = "a"\n', "it names the host's dump"),
        (f'reference = "some"\n{GOOD}', "'some'; allowed: auto, full, none, sampled"),
        (f"arguments = 3\n{GOOD}", "arguments = 3; expected a list of strings"),
        (f'gates = "trubo"\n{GOOD}', "'trubo' (did you mean turbo?)"),
        ('suite = "smoke"\n[hosts.a]\naddress = "-oProxyCommand=x"\n', "begins with a dash"),
    ],
)
def test_a_fleet_file_that_makes_no_sense_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(UsageError) as e:
        load_fleet(tmp_path / "fleet.toml")
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("smoke", "smokee"), "unknown suite 'smokee' (did you mean smoke?)"),
        (GOOD.replace("smoke", "absent.toml"), "absent.toml"),
        (f'arguments = ["--op", "gem"]\n{GOOD}', "unknown op 'gem' (did you mean gemm?)"),
        (f'arguments = ["--recipe", "rowwise", "--op", "exp"]\n{GOOD}', f"none of its {SMOKE} cases matches the given filters"),
        (f'arguments = ["--repeat"]\n{GOOD}', "--repeats"),
        (f'arguments = ["-o", "x.h5"]\n{GOOD}', "-o x.h5 has -o, but each host's dump is called as the host is"),
        (f'arguments = ["--device", "cpu"]\n{GOOD}', 'which belongs to a host: device = "…" under [hosts.NAME]'),
        (f'arguments = ["--plan", "cpu"]\n{GOOD}', "give it to accuracy-eval dump here"),
    ],
)
def test_what_a_dump_refuses_is_said_before_any_host_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a host was asked")

    monkeypatch.setattr("accuracy_eval.fleet.running.Member", asked)
    (tmp_path / "fleet.toml").write_text(text)
    assert run(["run", str(tmp_path / "fleet.toml")]) == 2
    assert message in capsys.readouterr().err


def test_a_fleet_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_fleet(tmp_path / "fleet.toml")


def test_an_attended_dump_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE.replace("64x64x64", "1024x1024x4096"))
    command = [sys.executable, "-m", "accuracy_eval", "dump", "suite.toml", "--device", "reference", "-o", "x.h5", "--attended"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    first = next(
        event for event in map(json.loads, process.stdout) if event != {"event": "alive"}
    )  # before it or not, by the machine's load
    assert first["event"] == "progress"
    assert (first["done"], first["total"]) == (1, CASES)
    process.stdin.close()
    assert process.wait(300) == -signal.SIGKILL
    process.stdout.close()
    assert not (tmp_path / "x.h5").exists()
