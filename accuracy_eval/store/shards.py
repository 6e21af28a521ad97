"""Which shards of a suite a dump holds: the cases at positions i modulo n of those that were chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from accuracy_eval.errors import counted
from accuracy_eval.store.schema import dump_json

KEY = "shards"  # of a dump's info
MOST_CASES = 1 << 20  # a file that claims more is not believed: each position is looked at
MOST_DIVISIONS = 64  # into other numbers of shards: the same, for each of them
LACKING = "not in the part of its suite that it holds"  # how the reason begins of what a shard may lack because it is one
NAMED = 8  # missing ones that a text names


@dataclass(frozen=True)
class Shards:
    """Not all of the `cases` that were chosen of a suite: those of the shards (i, n) in `held`."""

    cases: int
    held: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self | None:
        """What a dump's info says; None where the dump is no shard, or says nothing that can be read."""
        try:
            cases, held = info[KEY]["cases"], frozenset((i, n) for i, n in info[KEY]["held"])
        except (KeyError, TypeError, ValueError):
            return None
        good = type(cases) is int and 0 < cases <= MOST_CASES and all(type(i) is type(n) is int and 0 <= i < n for i, n in held)
        return cls(cases, held) if good and held and len({n for _, n in held}) <= MOST_DIVISIONS else None

    def info(self) -> dict[str, Any]:
        """What a dump's info says of them."""
        return {KEY: {"cases": self.cases, "held": [list(shard) for shard in sorted(self.held)]}}

    @property
    def of_all(self) -> int:
        """How many shards there are, in the coarsest division that holds each of these whole; those without a case do not count."""
        return min(math.lcm(*(n for _, n in self.held)), self.cases)

    def missing(self) -> list[str]:
        """The shards that are not held, as `--shard` takes them."""
        divisions = {n: {i for i, m in self.held if m == n} for n in {n for _, n in self.held}}
        n = math.lcm(*divisions)
        return [f"{i}/{n}" for i in range(self.of_all) if not any(i % m in held for m, held in divisions.items())]

    def text(self) -> str:
        """`shard 2/4`, or of several how many there are and which are missing."""
        if len(self.held) == 1:
            return "shard {}/{}".format(*min(self.held))
        missing = self.missing()
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        held = f"{self.of_all - len(missing)} of {counted(self.of_all, 'shard')}"
        return f"{held} (missing: {', '.join(missing[:NAMED])}{more})"


def to_merge(infos: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are of several dumps that hold different shards of one suite: `merge` makes one of them, if of one device."""
    found = [Shards.of(info) for info in infos]
    held = [shard for s in found if s for shard in s.held]
    divisions = {_division(info, s) for info, s in zip(infos, found, strict=True) if s}
    return len(found) > 1 and None not in found and len(divisions) == 1 and len(set(held)) == len(held)


def _division(info: Mapping[str, Any], shards: Shards) -> bytes:
    """Which part of which suite the shards divide."""
    return dump_json([info.get("suite_digest"), info.get("chosen"), shards.cases])


def joined(infos: Iterable[Mapping[str, Any]]) -> Shards | None:
    """Of several dumps together; None where they are all there, one is no shard, or they are of different parts of suites."""
    held: set[tuple[int, int]] = set()
    divided: dict[bytes, int] = {}  # the cases of each part of a suite
    for info in infos:
        shards = Shards.of(info)
        if shards is None:
            return None
        held |= shards.held
        divided[_division(info, shards)] = shards.cases
    if len(divided) != 1:
        return None
    together = Shards(min(divided.values()), frozenset(held))
    return together if together.missing() else None
