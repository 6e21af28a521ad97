"""What ~/.ssh/config says about a host, in the terms a session needs."""

from __future__ import annotations

import getpass
import glob
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer.locations import Location, Options, parse_location

MAX_INCLUDE_DEPTH = 16  # OpenSSH's own limit


@dataclass(frozen=True)
class Target:
    """Everything needed to reach one host.

    host           name or address to connect to; `alias` is what the user called it
    known_as       name under which known_hosts lists it
    jumps          hosts to go through, first first
    """

    alias: str
    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_only: bool
    known_as: str
    known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    accept_new: bool
    remembers: bool
    jumps: tuple[Location, ...] = ()
    proxy_command: str = ""
    connect_timeout_s: float = 30.0

    @property
    def label(self) -> str:
        """How messages name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" + ("" if self.port == 22 else f":{self.port}")


def resolve(location: Location, options: Options) -> Target:
    """The target of a location: location, then options, then the ssh configuration, then OpenSSH's defaults."""
    found = _lookup(location.host, options)
    user = location.user or str(found.get("user") or getpass.getuser())
    port = location.port or options.port or int(found.get("port") or 22)
    host = str(found.get("hostname") or location.host)
    tokens = {"%h": host, "%p": str(port), "%r": user, "%n": location.host, "%d": str(Path.home()), "%%": "%"}

    def paths(key: str, default: tuple[str, ...]) -> tuple[Path, ...]:
        words = str(found[key]).split() if key in found else default
        return tuple(Path(_expand(w.strip('"'), tokens)) for w in words if w.lower() != "none")

    alias = str(found.get("hostkeyalias") or host)
    strict = str(found.get("stricthostkeychecking", "ask")).lower()
    identities = found.get("identityfile", ())
    return Target(
        alias=location.host,
        host=host,
        port=port,
        user=user,
        identity_files=(*options.identity_files, *(Path(_expand(str(i), tokens)) for i in identities if str(i).lower() != "none")),
        identities_only=str(found.get("identitiesonly", "no")).lower() == "yes",
        known_as=alias if port == 22 or "hostkeyalias" in found else f"[{alias}]:{port}",
        known_hosts=options.known_hosts or paths("userknownhostsfile", ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")),
        global_known_hosts=() if options.known_hosts else paths("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts",)),
        # "no" would take a changed key as well; that is never done here
        accept_new=options.accept_new or strict in ("accept-new", "no", "off"),
        remembers=not options.dry_run,
        jumps=_jumps(str(found.get("proxyjump") or "")),
        proxy_command="" if str(found.get("proxycommand") or "").lower() == "none" else str(found.get("proxycommand") or ""),
        connect_timeout_s=float(found.get("connecttimeout") or options.timeout_s),
    )


def _jumps(text: str) -> tuple[Location, ...]:
    if not text or text.lower() == "none":
        return ()
    hops = []
    for hop in text.split(","):
        hop = hop.strip()
        match = re.fullmatch(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]\s]+\]|[^:@/\s-][^:@/\s]*)(?::(\d+))?/?", hop)
        if match is None:
            raise TransferError(f"ProxyJump {hop!r} is not [user@]host[:port]; correct it in the ssh configuration")
        hops.append(replace(parse_location(f"{match[2]}:"), user=match[1], port=int(match[3]) if match[3] else None))
    return tuple(hops)


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    text = re.sub(r"%[hprnd%]", lambda m: tokens[m[0]], text)
    text = re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], ""), text)
    return os.path.expanduser(text)


def _lookup(host: str, options: Options) -> Mapping[str, Any]:
    import paramiko

    user = Path.home() / ".ssh" / "config"
    files = [options.config_file] if options.config_file else [user, Path("/etc/ssh/ssh_config")]
    text = "".join(f"{_text(f, f.parent, 0)}\n" for f in files if f.exists())
    config = paramiko.SSHConfig()
    try:
        config.parse(io.StringIO(text))
        found: Mapping[str, Any] = config.lookup(host)
    except (paramiko.SSHException, ImportError, KeyError, ValueError) as e:
        names = ", ".join(str(f) for f in files)
        raise TransferError(f"{names}: cannot be understood for host {host!r} ({e}); correct it or name another file") from None
    return found


def _text(path: Path, base: Path, depth: int) -> str:
    """The file's text with Include lines replaced by what they name, which paramiko does not do."""
    if depth > MAX_INCLUDE_DEPTH:
        raise TransferError(f"{path}: Include nests deeper than {MAX_INCLUDE_DEPTH}; correct the ssh configuration")
    lines = []
    for line in path.read_text(errors="replace").splitlines():
        match = re.fullmatch(r"\s*include(?:\s+|\s*=\s*)(.+?)\s*", line, re.IGNORECASE)
        if match is None:
            lines.append(line)
            continue
        for pattern in match[1].split():
            found = sorted(glob.glob(str(base / os.path.expanduser(pattern.strip('"')))))
            lines.extend(_text(Path(f), base, depth + 1) for f in found if os.path.isfile(f))
    return "\n".join(lines)
