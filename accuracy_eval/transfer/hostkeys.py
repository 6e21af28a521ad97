"""Host keys: known ones only. An unknown key is refused unless it may be remembered; a changed or revoked one always is."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_eval.errors import HostKeyError
from accuracy_eval.transfer.configuration import Target

if TYPE_CHECKING:
    import paramiko


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l prints it: type and SHA256 fingerprint."""
    return f"{key.get_name()} {key.fingerprint}"


@dataclass(frozen=True)
class Known:
    """What the known_hosts files say about one host."""

    keys: tuple[paramiko.PKey, ...]
    revoked: frozenset[str]  # in base64


def load(target: Target) -> Known:
    """The keys under which the target is known, and those revoked for it.

    Read here, not by paramiko, which fails on marked lines, takes no patterns and keeps one key a type. Lines of certificate
    authorities are left out: a host known only by its certificate is unknown here.
    """
    import paramiko
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    keys: list[paramiko.PKey] = []
    revoked: set[str] = set()
    for path in (*target.known_hosts, *target.global_known_hosts):
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or not matches(words[0], target.known_as):
                continue
            if marker == "@revoked":
                revoked.add(words[2])
            elif not marker:
                try:
                    entry = HostKeyEntry.from_line(" ".join(words), number)
                except (paramiko.SSHException, InvalidHostKey, ValueError) as e:
                    raise HostKeyError(
                        f"{target.label}: {path} line {number} cannot be read ({e}); correct it or name another known_hosts file"
                    ) from None
                if entry is not None and entry.key is not None:
                    keys.append(entry.key)
    return Known(tuple(keys), frozenset(revoked))


def matches(patterns: str, host: str) -> bool:
    """Whether a known_hosts name field means `host`: comma-separated names with * and ?, `!` refusing, or one hashed name."""
    import paramiko

    found = False
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            found = found or hmac.compare_digest(paramiko.HostKeys.hash_host(host, pattern), pattern)
            continue
        text = re.escape(pattern.lstrip("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(text, host, re.IGNORECASE):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def check(target: Target, key: paramiko.PKey) -> None:
    """Raise HostKeyError unless `key` is the target's known key, or is new and may be accepted (and is then remembered)."""
    known = load(target)
    if key.get_base64() in known.revoked:
        raise HostKeyError(
            f"{target.label}: host key {fingerprint(key)} is marked @revoked in {_names(target.known_hosts)}; do not connect to this host"
        )
    if key in known.keys:
        return
    if not known.keys:
        if target.accept_new:
            if target.remembers:
                remember(target, key)
            return
        raise HostKeyError(
            f"{target.label}: host key {fingerprint(key)} of {target.known_as} is unknown; it is in none of "
            f"{_names((*target.known_hosts, *target.global_known_hosts))}. Compare the fingerprint with the host's own "
            "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), then connect once with ssh, or allow new hosts (--accept-new)."
        )
    expected = next((k for k in known.keys if k.get_name() == key.get_name()), known.keys[0])
    raise HostKeyError(
        f"{target.label}: host key of {target.known_as} is {fingerprint(key)}, known is {fingerprint(expected)} "
        f"({_names(target.known_hosts)}). Someone may be between you and the host, or it was installed anew; if you know it was, "
        f"remove the old key with ssh-keygen -R '{target.known_as}'."
    )


def known_types(target: Target) -> list[str]:
    """Key types under which the host is known: asked for first, so that a host with several keys shows a known one."""
    return list(dict.fromkeys(k.get_name() for k in load(target).keys))


def remember(target: Target, key: paramiko.PKey) -> None:
    """Append the key to the first of the user's known_hosts files; where there is none it is accepted for this time only."""
    if not target.known_hosts:
        return
    path = target.known_hosts[0]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(fd, "r+b") as f:
        f.seek(0)
        text = f.read()
        start = b"" if not text or text.endswith(b"\n") else b"\n"
        f.write(start + f"{target.known_as} {key.get_name()} {key.get_base64()}\n".encode())


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths)) or "no known_hosts file"
