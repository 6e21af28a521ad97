"""fleet.toml: which suite runs on which hosts, and how each is reached."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, unknown
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


_FLEET_KEYS = ("suite", "arguments", "out", "gates", "reference", "hosts")
_HOST_KEYS = tuple(f.name for f in fields(Host) if f.name != "name")
_REFERENCES = ("full", "sampled", "auto", "none")


def load_fleet(path: str | Path) -> Fleet:
    """The fleet a TOML file describes; relative paths in it start at its folder. UsageError names the key at fault."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"fleet {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"fleet {path}: not TOML: {error}") from error
    for key in data:
        if key not in _FLEET_KEYS:
            raise unknown(f"key in fleet {path}:", key, _FLEET_KEYS)
    suite = _text(data, "suite", "", str(path))
    if not suite:
        raise UsageError(f"fleet {path}: no suite; give suite = a built-in name (accuracy-eval list suites) or a .toml file")
    tables = data.get("hosts", {})
    if not isinstance(tables, dict) or not tables:
        raise UsageError(f"fleet {path}: no hosts; give each a table [hosts.NAME] with its address")
    arguments = data.get("arguments", [])
    if not isinstance(arguments, list) or not all(isinstance(a, str) for a in arguments):
        raise UsageError(f"fleet {path}: arguments {arguments!r}; expected a list of dump's options as strings")
    reference = _text(data, "reference", "auto", str(path))
    if reference not in _REFERENCES:
        raise unknown(f"reference in fleet {path}:", reference, _REFERENCES)
    return Fleet(
        suite=str(path.parent / suite) if suite.endswith(".toml") else suite,
        hosts=tuple(_host(name, table, f"fleet {path}, hosts.{name}") for name, table in tables.items()),
        out=path.parent / _text(data, "out", path.stem, str(path)),
        arguments=tuple(arguments),
        gates=_text(data, "gates", "default", str(path)),
        reference=reference,
    )


def _host(name: str, table: Any, where: str) -> Host:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise UsageError(f"{where}: a host's name holds letters, digits, '.', '_' and '-'; it names the host's dump")
    if not isinstance(table, dict) or "address" not in table:
        raise UsageError(f"{where}: no address; give [user@]host as ssh takes it, or ssh://[user@]host:port")
    for key in table:
        if key not in _HOST_KEYS:
            raise unknown(f"key in {where}:", key, _HOST_KEYS)
    env = table.get("env", {})
    if not isinstance(env, dict) or not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", k) and isinstance(v, str) for k, v in env.items()):
        raise UsageError(f"{where}: env {env!r}; expected a table of variables, each with a string")
    found = Host(name, **{k: _text(table, k, "", where) for k in table if k != "env"}, env=env)
    found.location()
    return found


def _text(table: Mapping[str, Any], key: str, default: str, where: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {key} {value!r}; expected a string")
    return value
