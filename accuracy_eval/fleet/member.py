"""One host at work: what it has, the package it is given, its dump, and the end of both."""

from __future__ import annotations

import hashlib
import json
import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from accuracy_eval.errors import Interrupted, TransferError
from accuracy_eval.fleet.plan import Fleet, Host
from accuracy_eval.suite import Suite
from accuracy_eval.transfer import Options, Remote, transfer
from accuracy_eval.transfer.links import Pipe, failures_named
from accuracy_eval.transfer.links import run as run_command
from accuracy_eval.transfer.shell import argument_script
from accuracy_eval.version import __version__

Progress = Callable[[int, int, str], None]
HEARTBEAT_S = 5.0  # both ways; either side takes longer silence for the other's end
SILENCE_S = 60.0
CHECK_S = 300.0  # torch's first import on a cold network file system takes minutes

# Runs under any Python 3 and any version of the package: what cannot be found out is reported, never guessed.
_FACTS = """
import json, sys
device, suite = sys.argv[1:3]
facts = {"python": sys.version.split()[0]}
try:
    import accuracy_eval
    from accuracy_eval.version import __version__
    facts["version"] = __version__
    if __version__ == sys.argv[3]:
        from accuracy_eval.suite import load_suite
        from accuracy_eval.backends.open import open_backend
        facts["suite_digest"] = load_suite(suite, huge=True).digest
        backend = open_backend(device)
        facts["device"] = str(backend.platform().get("device_name") or backend.platform().get("label"))
        backend.close()
except Exception as error:
    facts["problem"] = type(error).__name__ + ": " + str(error)
print("facts " + json.dumps(facts))
"""


@dataclass(frozen=True)
class Facts:
    """What a host that can take part has."""

    device: str
    python: str


class Member:
    """A host of a fleet and the connection to it."""

    def __init__(self, host: Host, fleet: Fleet, options: Options) -> None:
        self.host = host
        self._fleet = fleet
        self._options = options
        self._pushed = ""  # folder there that holds the package, where it was sent
        self._suite = fleet.suite
        self._remote: Remote | None = None

    @property
    def remote(self) -> Remote:
        if self._remote is None:
            self._remote = Remote(self.host.location(), self._options)
        return self._remote

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def push(self, wheel: Path) -> None:
        """Send the package and unpack it beside the dumps; a package of the same bytes stays."""
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        self._pushed = f"package-{__version__}-{digest[:16]}"
        there = posixpath.join(self._folder(), "package", wheel.name)
        self._send(wheel, there)
        unpack = 'cd "$1" && { [ -d "$2" ] || { rm -rf "$2.tmp" && "$3" -m zipfile -e "$4" "$2.tmp" && mv "$2.tmp" "$2"; }; }'
        self._run(unpack, self._folder(), self._pushed, self.host.python, f"package/{wheel.name}", what="unpacking the package")

    def check(self, suite: Suite, needed_bytes: int) -> Facts:
        """What the host has; TransferError with what to do where it cannot take part."""
        self.remote.make_folders(self._folder())
        if self._fleet.suite.endswith(".toml"):
            name = f"suite-{suite.digest[:16]}.toml"
            self._send(Path(self._fleet.suite), posixpath.join(self._folder(), name))
            self._suite = name
        out = self._run(
            _IN_FOLDER, *self._python("-", self.host.device, self._suite, __version__), data=_FACTS.encode(), what="asking its Python"
        )
        found = next((line[6:] for line in out.decode("utf-8", "replace").splitlines() if line.startswith("facts ")), None)
        if found is None:
            raise self._refusal(f"{self.host.python} does not answer as a Python 3 does; set python to the interpreter's path")
        facts = json.loads(found)
        version = facts.get("version")
        if version is not None and version != __version__:
            raise self._refusal(
                f"has accuracy-eval {version}, here is {__version__}; install {__version__} there, or run with --push to use this one"
            )
        if "problem" in facts:
            hint = "; install accuracy-eval there, or run with --push" if version is None and not self._pushed else ""
            raise self._refusal(f"{self.host.python} (Python {facts['python']}): {facts['problem']}{hint}")
        if facts["suite_digest"] != suite.digest:
            raise self._refusal(
                f"its suite {self._fleet.suite} has other cases (digest {facts['suite_digest'][:16]}… != {suite.digest[:16]}…); "
                "install the same build there, or run with --push"
            )
        free = self.remote.names.room(self._folder())
        if free is not None and free < needed_bytes:
            raise self._refusal(
                f"{self._folder()} has {free} bytes free, the dump may need {needed_bytes}; make room or set another folder"
            )
        return Facts(facts["device"], facts["python"])

    def forget(self) -> None:
        """Remove what earlier runs left of this dump."""
        name = self._fleet.dump_name(self.host)
        self._run('cd "$1" && rm -rf "$2" "$2.parts"', self._folder(), name, what="removing the earlier dump")

    def dump(self, progress: Progress, stop: Event) -> None:
        """Run the dump there, going on with what is there already; ends it there when this ends, however it ends."""
        words = ["-m", "accuracy_eval", "dump", self._suite, *self._fleet.arguments, "--device", self.host.device]
        words += ["-o", self._fleet.dump_name(self.host), "--resume", "--attended"]
        command = argument_script(_IN_FOLDER, *self._python(*words))
        finished = False
        with failures_named(self.remote.label, "dump"):
            pipe = self.remote.link.start(command, timeout_s=SILENCE_S)
            try:
                with _heartbeat(pipe, stop):
                    for line in _lines(pipe):
                        if stop.is_set():
                            break
                        finished = _report(line, progress) or finished
                pipe.close_input()  # a dump that still runs ends itself
                status, err = pipe.finish()
            finally:
                pipe.close()
        if stop.is_set():
            return
        if status < 0:
            raise Interrupted(f"{self.remote.label}: the dump was cut off; run again to go on from here")
        if not finished:
            reason = err.decode("utf-8", "replace").strip() or f"exit status {status}"
            raise self._refusal(f"the dump failed: {reason}")

    def fetch(self, progress: Callable[[int, int], None]) -> Path:
        """Bring the dump here, verified."""
        name = self._fleet.dump_name(self.host)
        source = self.host.location(posixpath.join(self._folder(), name))
        transfer([str(source)], str(self._fleet.out / name), options=self._options, progress=progress)
        return self._fleet.out / name

    def _folder(self) -> str:
        return self.remote.at(self.host.folder)

    def _python(self, *arguments: str) -> list[str]:
        env = dict(self.host.env)
        if self._pushed:
            env["PYTHONPATH"] = ":".join(p for p in (posixpath.join(self._folder(), self._pushed), env.get("PYTHONPATH")) if p)
        return [self._folder(), *(f"{k}={v}" for k, v in env.items()), self.host.python, *arguments]

    def _run(self, text: str, *words: str, what: str, data: bytes = b"") -> bytes:
        with failures_named(self.remote.label, what):
            status, out, err = run_command(self.remote.link, argument_script(text, *words), data=data, timeout_s=CHECK_S)
        if status != 0:
            raise self._refusal(f"{what}: {err.decode('utf-8', 'replace').strip() or f'exit status {status}'}")
        return out

    def _send(self, source: Path, there: str) -> None:
        transfer([str(source)], str(self.host.location(there)), options=self._options)

    def _refusal(self, text: str) -> TransferError:
        return TransferError(f"{self.host.name} ({self.remote.label}): {text}")


_IN_FOLDER = 'cd "$1" && shift && exec env "$@"'


def _lines(pipe: Pipe) -> Iterator[bytes]:
    """Lines of the command's output as they come."""
    rest = b""
    while block := pipe.read():
        *whole, rest = (rest + block).split(b"\n")
        yield from whole


def _report(line: bytes, progress: Progress) -> bool:
    """Pass on one line of an attended dump; whether it says that the dump is finished. Lines of other origin are left alone."""
    try:
        found: Any = json.loads(line)
    except ValueError:
        return False
    if isinstance(found, dict) and found.get("event") == "progress":
        progress(int(found["done"]), int(found["total"]), str(found["case"]))
    return isinstance(found, dict) and found.get("event") == "finished"


@contextmanager
def _heartbeat(pipe: Pipe, stop: Event) -> Iterator[None]:
    """Tells the attended dump that somebody still waits for it; once `stop` is set, that nobody does."""
    over = Event()

    def beat() -> None:
        due = 0.0
        while not over.wait(0.1):
            try:
                if stop.is_set():
                    pipe.close_input()
                    return
                if time.monotonic() >= due:
                    pipe.write(b"\n")
                    due = time.monotonic() + HEARTBEAT_S
            except (OSError, EOFError):
                return  # the reader of the pipe finds out why

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
