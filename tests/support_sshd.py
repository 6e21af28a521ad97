"""A real OpenSSH server on loopback, with keys and configuration of its own, started and stopped by the test that asks for it."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
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
    home         folder the tests may write to on the "far" side
    """

    folder: Path
    port: int
    user_key: Path
    process: subprocess.Popen[bytes]
    user: str = field(default_factory=getpass.getuser)

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
        return f"ssh://{self.user}@127.0.0.1:{port or self.port}/{path}"

    def know(self, *ports: int) -> None:
        """Write the known_hosts file that lists this server's key under its own and other ports."""
        key = " ".join(self.host_key.read_text().split()[:2])
        self.known_hosts.write_text("".join(f"[127.0.0.1]:{p} {key}\n" for p in (self.port, *ports)))

    def options(self, **more: object) -> Options:
        values: dict[str, object] = {
            "identity_files": (self.user_key,),
            "config_file": Path(os.devnull),
            "known_hosts": (self.known_hosts,),
            "timeout_s": 20.0,
        }
        return Options(**(values | more))  # type: ignore[arg-type]


@contextmanager
def running_sshd(folder: Path, *, extra: str = "", sftp: bool = True, authorized: str = "") -> Iterator[Server]:
    """A server whose only user is the one who runs the tests, signing in by key.

    extra        further lines of sshd_config
    sftp         whether it has the SFTP subsystem
    authorized   options before the key in authorized_keys (`command="…"`)
    """
    sshd = find_sshd()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "far").mkdir()
    make_key(folder / "host_key")
    user_key = make_key(folder / "user_key")
    keys = folder / "authorized_keys"
    keys.write_text(f"{authorized} {(folder / 'user_key.pub').read_text()}".lstrip())
    with suppress(PermissionError, FileExistsError):
        Path("/run/sshd").mkdir(mode=0o755)  # privilege separation needs it, and only the system's own start script makes it
    lines = (
        f"ListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nAuthorizedKeysFile {keys}\nSetEnv HOME={folder}\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nStrictModes no\nUsePAM no\n"
        "AllowTcpForwarding yes\nUseDNS no\nMaxStartups 100\nLogLevel ERROR\n"
        f"{'Subsystem sftp internal-sftp' if sftp else ''}\n{extra}\n"
    )
    for _ in range(5):  # another program may take the free port first
        port = _free_port()
        (folder / "sshd_config").write_text(f"Port {port}\n{lines}")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
        server = Server(folder, port, user_key, process)
        if _answers(server):
            break
    else:
        raise RuntimeError(f"sshd does not start: {(folder / 'log').read_text()}")
    server.know()
    try:
        yield server
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _answers(server: Server) -> bool:
    """Whether the server greets within 30 s; False as soon as it has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 5) as s:
            if s.recv(4) == b"SSH-":
                return server.process.poll() is None
        time.sleep(0.02)
    server.process.kill()
    server.process.wait(10)
    return False


class CuttingProxy:
    """A TCP proxy to a server that cuts every connection once `limit` bytes have passed one way ("up" to the server, or "down").

    cuts     how many connections it has cut
    passed   bytes let through that way, over all connections
    """

    def __init__(self, port: int, limit: int, direction: str) -> None:
        self._target, self._limit, self._direction = port, limit, direction
        self.cuts = self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut()
        for t in self._threads:
            t.join(10)

    def _cut(self) -> None:
        for s in self._open:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._open += [near, far]
            for a, b, way in ((near, far, "up"), (far, near, "down")):
                self._threads.append(threading.Thread(target=self._pump, args=(a, b, way), daemon=True))
                self._threads[-1].start()

    def _pump(self, a: socket.socket, b: socket.socket, way: str) -> None:
        left = self._limit
        with suppress(OSError):
            while data := a.recv(1 << 16):
                if way == self._direction:
                    if len(data) > left:
                        self.cuts += 1
                        self._cut()
                        return
                    left -= len(data)
                    self.passed += len(data)
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
