"""Several hosts on one machine: each in a network namespace where that is allowed, else each on a loopback address of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support_sshd import Server, running_sshd


@contextmanager
def running_hosts(folder: Path, count: int) -> Iterator[list[Server]]:
    """`count` hosts, each with an OpenSSH server."""
    with ExitStack() as stack:
        servers = []
        for number in range(count):
            address, prefix = stack.enter_context(_host(number))
            servers.append(stack.enter_context(running_sshd(folder / f"host{number}", address=address, prefix=prefix)))
        yield servers


@contextmanager
def _host(number: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The address of a new host, and what runs a command on it."""
    name = f"ae{os.getpid()}-{number}"
    near, far = f"n{os.getpid()}-{number}", f"f{os.getpid()}-{number}"
    net = f"10.{100 + os.getpid() % 100}.{number}"
    made = _ip("netns", "add", name) and _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
    if not made:
        _ip("netns", "del", name)
        yield f"127.0.0.{number + 2}", ()
        return
    try:
        for words in (
            f"addr add {net}.1/30 dev {near}",
            f"link set {near} up",
            f"-n {name} addr add {net}.2/30 dev {far}",
            f"-n {name} link set {far} up",
            f"-n {name} link set lo up",
        ):
            assert _ip(*words.split()), words
        yield f"{net}.2", ("ip", "netns", "exec", name)
    finally:
        _ip("netns", "del", name)


def _ip(*words: str) -> bool:
    with suppress(OSError):
        return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0
    return False
