"""What dumps were made on, side by side: one fact a line, those that differ marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy_eval.json_data import to_json
from accuracy_eval.records import DumpInfo


@dataclass(frozen=True)
class Fact:
    """A property of every dump: text, number or None for unknown, in the order of the dumps.

    optional  what is unknown was not asked for, and differs from nothing
    """

    name: str
    values: tuple[Any, ...]
    optional: bool = False

    @property
    def differs(self) -> bool:
        return len({repr(v) for v in self.values if v is not None or not self.optional}) > 1

    @property
    def lacking(self) -> bool:
        """Whether some dump does not have it, and those that do agree."""
        known = {repr(v) for v in self.values if v is not None}
        return len(known) == 1 and None in self.values


def platform_facts(dumps: Sequence[DumpInfo]) -> list[Fact]:
    """File, digests and suite of every dump, then its platform's properties, nested ones flattened with dots; numerics have a card. What no
    dump knows is left out."""
    facts = [Fact(name.replace("_", " "), tuple(getattr(d, name) for d in dumps)) for name in _IDENTITY]
    flat = [_flat(d.platform) for d in dumps]
    carded = any(d.numerics for d in dumps)
    names = dict.fromkeys(name for table in flat for name in table if not (carded and name.startswith("numerics.")))
    facts += [Fact(name, tuple(table.get(name) for table in flat)) for name in names]
    return [f for f in facts if any(v is not None for v in f.values)]


def lacking_facts(dumps: Sequence[DumpInfo]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """What some dumps do not have and the others agree on: (labels of those that have it, names and values)."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for fact in platform_facts(dumps):
        if fact.lacking:
            having = ", ".join(d.label for d, v in zip(dumps, fact.values, strict=True) if v is not None)
            found.setdefault(having, []).append((fact.name, next(v for v in fact.values if v is not None)))
    return list(found.items())


def numerics_facts(dumps: Sequence[DumpInfo]) -> tuple[list[Fact], list[Fact]]:
    """The numerics cards of probed devices: a sentence per way to multiply, and every answer. Both empty where no device was probed."""
    cards = [{_way(c): c for c in d.numerics.get("formats", ())} for d in dumps]
    sentences, answers = [], []
    for way in dict.fromkeys(w for card in cards for w in card):
        forms = [card.get(way, {}) for card in cards]
        sentences.append(Fact(way, tuple(_said(f) for f in forms), optional=True))
        asked = dict.fromkeys(name for f in forms for name, found in f.get("answers", {}).items() if found is not None)
        answers += [Fact(f"{way}: {name}", tuple(_answer(f.get("answers", {}).get(name)) for f in forms), optional=True) for name in asked]
    return sentences, answers


def _way(card: Mapping[str, Any]) -> str:
    mode = f", {card['mode']}" if card.get("mode") else ""
    return f"{card.get('format')} → {card.get('out')}{mode}"


def _said(card: Mapping[str, Any]) -> str | None:
    if not card:
        return None
    tree = f"; added {card['tree']}" if card.get("tree") else ""
    return f"{card.get('sentence')}{tree}" + ("" if card.get("deterministic", True) else "; repeated products differ")


def _answer(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


_IDENTITY = ("file", "content_digest", "suite", "suite_digest")


def _flat(platform: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in platform.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value if value is None or isinstance(value, bool | int | float | str) else json.dumps(to_json(value))
    return flat
