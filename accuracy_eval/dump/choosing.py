"""Which candidates run for a case: those that were named, else the default, the user's, and what the suite expects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy_eval.backends.candidates import Candidate
from accuracy_eval.backends.states import STATES
from accuracy_eval.cases import case_id
from accuracy_eval.errors import UsageError, alike, unknown
from accuracy_eval.records import Case
from accuracy_eval.suite import Suite, with_bases
from accuracy_eval.visits import EVERY


@dataclass(frozen=True)
class Known:
    """A candidate as far as choosing goes; see `Candidate`."""

    name: str
    on_request: bool = False
    built_in: bool = True
    sources: tuple[tuple[str, str], ...] = ()


def share(suite: Suite, shard: tuple[int, int]) -> list[Case]:
    """The cases of a share (i, n) of the suite: those at positions i modulo n, and what metamorphic ones among them are compared with, so
    that each share can be judged by itself. UsageError where there are none."""
    index, shares = shard
    mine = {case_id(c) for c in with_bases(suite.cases[index::shares])}
    found = [c for c in suite.cases if case_id(c) in mine]
    if not found:
        raise UsageError(f"suite {suite.name}: no cases to run (shard {index}/{shares} of {len(suite.cases)})")
    return found


def known(candidates: Iterable[Candidate]) -> tuple[Known, ...]:
    return tuple(Known(c.name, c.on_request, c.built_in, tuple(sorted(c.sources.items()))) for c in candidates)


def expected_names(suite: Suite, case: Case, vendor: str) -> set[str]:
    """What the suite says must run for the case on that vendor's device."""
    return {name for e in suite.expected if e.covers(case, vendor) for name in e.candidates}


def chosen(there: Sequence[Known], names: Sequence[str], states: Sequence[str], expected: Collection[str]) -> tuple[str, ...]:
    """Names to run, each followed by itself in every state asked for. UsageError for an unknown state."""
    for state in states:
        if state not in STATES:
            raise unknown("state", state, STATES)
    wanted = [
        k.name for k in there
        if EVERY in names or k.name in names or k.name in expected or (not names and not k.on_request)
    ]  # fmt: skip
    return tuple(n for name in wanted for n in (name, *(f"{name}+{state}" for state in states)))


def registered_facts(cases: Iterable[Case], of: Callable[[Case], Sequence[Known]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every candidate by op and name, and whether somebody asked for it: by name, or, where none is named, by registering it."""
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        for k in of(case):
            asked = k.name in names or not (names or k.built_in)
            found.setdefault(case.op, {})[k.name] = {"asked": asked, "on_request": k.on_request}
    return found


def check_names(names: Sequence[str], running: Iterable[str], registered: Mapping[str, Mapping[str, Any]]) -> None:
    """UsageError for names of which no case runs one."""
    missing = set(names) - set(running) - {EVERY}
    if missing:
        there = sorted({name for of_op in registered.values() for name in of_op})
        close = alike(min(missing), there)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise UsageError(
            f"candidate {', '.join(sorted(missing))} is registered for no op of the suite{hint}; there are: {', '.join(there)}; "
            "register it with --plugin FILE or drop it"
        )
