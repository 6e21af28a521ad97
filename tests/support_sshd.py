"""A real OpenSSH server on loopback, with keys and configuration of its own, started and stopped by the test that asks for it."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from accuracy_eval.transfer import Options


def find_sshd() -> str:
    """Path of the server; its absence is a failure, never a skip: the transfer tests would test nothing."""
    path = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")
    if path is None or shutil.which("ssh-keygen") is None:
        raise RuntimeError("the transfer tests need an OpenSSH server: apt-get install openssh-server")
    return path


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)], check=True)
    return path


def fingerprint(public: Path) -> str:
    """The SHA256 fingerprint as ssh-keygen prints it."""
    out = subprocess.run(["ssh-keygen", "-lf", str(public)], check=True, capture_output=True, text=True).stdout
    return out.split()[1]


@dataclass
class Server:
    """A running sshd.

    folder       configuration, keys, known_hosts
    prefix       what its command line begins with: `ip netns exec NAME` puts it on a host of its own
    home         folder the tests may write to on the "far" side
    """

    folder: Path
    port: int
    user_key: Path
    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    user: str = field(default_factory=getpass.getuser)
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> bool:
        """Start it; whether it answers."""
        with (self.folder / "log").open("ab") as log:
            command = [*self.prefix, find_sshd(), "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return _answers(self)

    def kill(self) -> None:
        """End it and everything it has started, at once: what a power cut does."""
        for pid in (self.process.pid, *_descendants(self.process.pid)[::-1]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def home(self) -> Path:
        return self.folder / "far"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key.pub"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def at(self, path: Path | str, port: int | None = None) -> str:
        """The location of a path on this server."""
        return f"ssh://{self.user}@{self.address if port is None else '127.0.0.1'}:{port or self.port}/{path}"

    def know(self, *ports: int) -> None:
        """Write the known_hosts file that lists this server's key under its own and other ports."""
        key = " ".join(self.host_key.read_text().split()[:2])
        places = [(self.address, self.port), *(("127.0.0.1", p) for p in ports)]
        self.known_hosts.write_text("".join(f"[{a}]:{p} {key}\n" for a, p in places))

    def options(self, **more: object) -> Options:
        values: dict[str, object] = {
            "identity_files": (self.user_key,),
            "config_file": Path(os.devnull),
            "known_hosts": (self.known_hosts,),
            "timeout_s": 20.0,
            "retries": 0,
        }
        return Options(**(values | more))  # type: ignore[arg-type]


def _descendants(pid: int) -> list[int]:
    """Processes below one, deepest first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    below = children.get(pid, [])
    return [p for child in below for p in (*_descendants(child), child)]


@contextmanager
def running_sshd(
    folder: Path,
    *,
    extra: str = "",
    sftp: bool = True,
    authorized: str = "",
    address: str = "127.0.0.1",
    prefix: tuple[str, ...] = (),
) -> Iterator[Server]:
    """A server whose only user is the one who runs the tests, signing in by key.

    extra           further lines of sshd_config
    sftp            whether it has the SFTP subsystem
    authorized      options before the key in authorized_keys (`command="…"`)
    address         where it listens
    prefix          see Server
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "far").mkdir()
    make_key(folder / "host_key")
    user_key = make_key(folder / "user_key")
    keys = folder / "authorized_keys"
    keys.write_text(f"{authorized} {(folder / 'user_key.pub').read_text()}".lstrip())
    with suppress(PermissionError, FileExistsError):
        Path("/run/sshd").mkdir(mode=0o755)  # privilege separation needs it, and only the system's own start script makes it
    lines = (
        f"ListenAddress {address}\nHostKey {folder}/host_key\nPidFile none\nAuthorizedKeysFile {keys}\nSetEnv HOME={folder}\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nStrictModes no\nUsePAM no\n"
        "AllowTcpForwarding yes\nUseDNS no\nMaxStartups 100\nLogLevel ERROR\n"
        f"{'Subsystem sftp internal-sftp' if sftp else ''}\n{extra}\n"
    )
    for _ in range(5):  # another program may take the free port first
        server = Server(folder, _free_port(), user_key, address, prefix)
        (folder / "sshd_config").write_text(f"Port {server.port}\n{lines}")
        if server.start():
            break
    else:
        raise RuntimeError(f"sshd does not start: {(folder / 'log').read_text()}")
    server.know()
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _answers(server: Server) -> bool:
    """Whether the server greets within 120 s; False as soon as it has ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(OSError), socket.create_connection((server.address, server.port), 5) as s:
            if s.recv(4) == b"SSH-":
                return server.process.poll() is None
        time.sleep(0.02)
    server.process.kill()
    server.process.wait(60)
    return False
