"""What dumps were made on, side by side: one fact a line, those that differ marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy_eval.records import DumpInfo, to_json


@dataclass(frozen=True)
class Fact:
    """A property of every dump: text, number or None for unknown, in the order of the dumps."""

    name: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        return len({repr(v) for v in self.values}) > 1


def platform_facts(dumps: Sequence[DumpInfo]) -> list[Fact]:
    """File, digests and suite of every dump, then its platform's properties, nested ones flattened with dots."""
    facts = [Fact(name.replace("_", " "), tuple(getattr(d, name) for d in dumps)) for name in _IDENTITY]
    flat = [_flat(d.platform) for d in dumps]
    names = dict.fromkeys(name for table in flat for name in table)
    return facts + [Fact(name, tuple(table.get(name) for table in flat)) for name in names]


_IDENTITY = ("file", "content_digest", "suite", "suite_digest")


def _flat(platform: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in platform.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value if value is None or isinstance(value, bool | int | float | str) else json.dumps(to_json(value))
    return flat
