"""fleet.toml: which suite runs on which hosts, and how each is reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.gates import load_profile
from accuracy_eval.toml_data import check_table, read_toml
from accuracy_eval.transfer import Location, parse_location


@dataclass(frozen=True)
class Host:
    """One host of a fleet.

    name     names its dump; letters, digits, `.`, `_` and `-`
    address  [user@]host or ssh://[user@]host[:port], with all that the ssh configuration says about it
    python   the interpreter there
    folder   where it works there; relative to the home folder
    device   what `dump --device` takes
    env      environment of the dump, such as HIP_VISIBLE_DEVICES
    """

    name: str
    address: str
    python: str = "python3"
    folder: str = "accuracy-eval"
    device: str = "auto"
    env: Mapping[str, str] = field(default_factory=dict)

    def location(self, path: str = ".") -> Location:
        """A path on the host, relative to the home folder unless it begins with a slash."""
        text = f"{self.address.rstrip('/')}/" if self.address.startswith("ssh://") else f"{self.address}:"
        found = parse_location(text)
        return Location(found.host, path, found.user, found.port)


@dataclass(frozen=True)
class Fleet:
    """What a fleet.toml says.

    suite      a built-in suite's name or the path of a .toml file
    arguments  further options of `dump`, the same on every host
    out        folder here for the dumps
    """

    suite: str
    hosts: tuple[Host, ...]
    out: Path
    arguments: tuple[str, ...] = ()
    gates: str = "default"
    reference: str = "auto"

    def dump_name(self, host: Host) -> str:
        """File name of a host's dump, here and there."""
        return f"{host.name}.h5"


_FLEET_KINDS = {"suite": "text", "arguments": "texts", "out": "text", "gates": "text", "reference": "text", "hosts": "table"}
_HOST_KINDS = {f.name: "table" if f.name == "env" else "text" for f in fields(Host) if f.name != "name"}
_REFERENCES = ("full", "sampled", "auto", "none")


def load_fleet(path: str | Path) -> Fleet:
    """The fleet a TOML file describes; relative paths in it start at its folder. UsageError names the key at fault."""
    path = Path(path)
    data = read_toml(path, "fleet")
    check_table(data, _FLEET_KINDS, f"fleet {path}")
    suite = data.get("suite", "")
    if not suite:
        raise UsageError(f"fleet {path}: no suite; give suite = a built-in name (accuracy-eval list suites) or a .toml file")
    tables = data.get("hosts", {})
    if not tables:
        raise UsageError(f"fleet {path}: no hosts; give each a table [hosts.NAME] with its address")
    reference = data.get("reference", "auto")
    if reference not in _REFERENCES:
        raise unknown(f"reference in fleet {path}:", reference, _REFERENCES)
    gates = data.get("gates", "default")
    found = Fleet(
        suite=str(path.parent / suite) if suite.endswith(".toml") else suite,
        hosts=tuple(_host(name, table, f"fleet {path}, hosts.{name}") for name, table in tables.items()),
        out=path.parent / data.get("out", path.stem),
        arguments=tuple(data.get("arguments", ())),
        gates=str(path.parent / gates) if gates.endswith(".toml") else gates,
        reference=reference,
    )
    load_profile(found.gates)  # one that there is not is said now, not when all is dumped
    return found


def _host(name: str, table: Any, where: str) -> Host:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise UsageError(f"{where}: a host's name holds letters, digits, '.', '_' and '-'; it names the host's dump")
    if isinstance(table, dict):
        check_table(table, _HOST_KINDS, where)
    if not isinstance(table, dict) or "address" not in table:
        raise UsageError(f"{where}: no address; give [user@]host as ssh takes it, or ssh://[user@]host:port")
    env = table.get("env", {})
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", k) and isinstance(v, str) for k, v in env.items()):
        raise UsageError(f"{where}: env {env!r}; expected a table of variables, each with a string")
    found = Host(name, **table)
    found.location()
    return found
