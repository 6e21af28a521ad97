"""Where files are: scp's way of naming them, and what may be asked of a transfer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from accuracy_eval.errors import UsageError

PART_SUFFIX = ".part"


@dataclass(frozen=True)
class Location:
    """A place: `host` "" is this machine. `user` and `port` are None where the ssh configuration decides."""

    host: str
    path: str
    user: str | None = None
    port: int | None = None

    @property
    def remote(self) -> bool:
        return bool(self.host)

    def __str__(self) -> str:
        if not self.remote:
            return self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        who = f"{self.user}@{host}" if self.user else host
        if not self.port:
            return f"{who}:{self.path}"
        return f"ssh://{who}:{self.port}/{quote(self.path, safe='/ ', errors='surrogateescape')}"


def parse_location(text: str) -> Location:
    """A Location from scp's syntax: `[user@]host:path`, `[user@][::1]:path`, `ssh://[user@]host[:port]/path`, else a local path.

    As in scp, a colon after a slash belongs to a local path (`./a:b`). A remote path is relative to the home directory unless it
    begins with a slash; `~/x` is `x`. After `ssh://host/` it is relative too; write `ssh://host//x` for `/x`.
    """
    if not text or "\x00" in text:
        raise UsageError(f"location {text!r}: expected [user@]host:path, ssh://[user@]host[:port]/path or a local path")
    if text.startswith(("ssh://", "scp://", "sftp://")):
        return _from_url(text)
    match = re.match(r"(?:(?P<user>[^@/:\[\]]+)@)?(?:\[(?P<six>[^\]/]+)\]|(?P<host>[^:/\[\]@]+)):", text, re.DOTALL)
    if match is None or (os.name == "nt" and len(match[0]) == 2):
        return Location("", text)
    host = match["six"] or match["host"]
    return Location(_host(host, text), _remote_path(text[match.end() :], text), match["user"])


def _from_url(text: str) -> Location:
    if re.search(r"[\x00-\x1f]", text):
        raise UsageError(f"location {text!r}: control characters in a URL are written as %XX")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as e:
        raise UsageError(f"location {text!r}: {e}; expected ssh://[user@]host[:port]/path") from None
    if not parts.hostname or parts.query or parts.fragment or parts.password is not None:
        raise UsageError(f"location {text!r}: expected ssh://[user@]host[:port]/path, without password, query or fragment")
    user = unquote(parts.username) if parts.username else None
    return Location(_host(parts.hostname, text), _remote_path(unquote(parts.path, errors="surrogateescape")[1:], text), user, port)


def _host(host: str, text: str) -> str:
    if host.startswith("-") or re.search(r"\s", host):
        raise UsageError(f"location {text!r}: host {host!r} begins with a dash or holds white space")
    return host


def _remote_path(path: str, text: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    elif path.startswith("~"):
        raise UsageError(f"location {text!r}: another user's home is not known here; give the path from the root")
    return path or "."


class Action(StrEnum):
    """What was done with a file, or would be (dry run)."""

    SENT = "sent"
    RESUMED = "resumed"
    SKIPPED = "already there, identical"


@dataclass(frozen=True)
class FileResult:
    """One file of a transfer.

    sha256        of its bytes, at both ends ("" in a dry run where nothing had to be read)
    resumed_from  bytes that were there already and verified
    method        how bytes travelled: "exec" (the login shell over paramiko), "openssh" (the same over the ssh program) or "sftp"; "" where
                  none did
    replaced      a file of other bytes had the name, and is gone
    """

    source: str
    destination: str
    size_bytes: int
    sha256: str
    action: Action
    resumed_from: int = 0
    method: str = ""
    replaced: bool = False


@dataclass(frozen=True)
class Options:
    """How to reach hosts and move files.

    port           used where the location gives none; goes before the ssh configuration's
    identity_files private keys tried before those of the ssh configuration
    config_file    None: ~/.ssh/config and /etc/ssh/ssh_config; Path(os.devnull): none
    known_hosts    files that replace the configuration's UserKnownHostsFile
    accept_new     an unknown host's key is accepted and remembered; a changed key never is
    timeout_s      longest silence of the other side before giving up
    ask            called with a prompt for a key's passphrase or a password; returns None to give up. None: never ask
    resume         use a partial file that an earlier transfer left, once the digest of its bytes is verified
    dry_run        connect and look, write nothing
    method         "auto": a stream through the login shell where there is one, else SFTP; or one of them by name
    transport      "paramiko"; "openssh": the installed ssh program; "auto": paramiko, and the ssh program for large files of near hosts
    retries        how often a transfer that was interrupted goes on by itself, over a new connection, without having moved on in between
    rate_limit     most bytes a second; 0: no limit
    note           called with one sentence for each choice made: how bytes travel, what is tried again
    """

    port: int | None = None
    identity_files: tuple[Path, ...] = ()
    config_file: Path | None = None
    known_hosts: tuple[Path, ...] = ()
    accept_new: bool = False
    timeout_s: float = 30.0
    ask: Callable[[str], str | None] | None = field(default=None, compare=False)
    resume: bool = True
    dry_run: bool = False
    method: str = "auto"
    transport: str = "auto"
    retries: int = 3
    rate_limit: float = 0.0
    note: Callable[[str], None] = field(default=lambda text: None, compare=False)

    def __post_init__(self) -> None:
        if self.method not in ("auto", "exec", "sftp"):
            raise UsageError(f"method {self.method!r}; allowed: auto, exec, sftp")
        if self.transport not in ("auto", "paramiko", "openssh"):
            raise UsageError(f"transport {self.transport!r}; allowed: auto, paramiko, openssh")
        if self.timeout_s <= 0:
            raise UsageError(f"timeout_s {self.timeout_s}; allowed: above 0")
        if self.retries < 0 or self.rate_limit < 0:
            raise UsageError(f"retries {self.retries}, rate_limit {self.rate_limit}; allowed: 0 and above")
