"""Which implementations a dump visited, and which it should have: registered, filtered with a reason, visited, crashed.

A suite declares what must run where (`cases.Expectation`); whoever names a candidate or registers one expects it to be reached at least
once. What was expected and did not run is missing, never silently skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accuracy_eval.errors import counted
from accuracy_eval.records import CaseRecord
from accuracy_eval.suite import Expectation, expectations

EVERY = "all"  # stands for every candidate there is
EXPECTED = "expected here by the suite"  # how the reason begins of what a rule of the suite says must run


def among(candidate: str, names: Sequence[str]) -> bool:
    """Whether a candidate, in whatever state it ran, is one of those named; none named: every one is."""
    return not names or EVERY in names or candidate in names or candidate.partition("+")[0] in names


@dataclass(frozen=True)
class Visit:
    """One candidate of an op over a dump. filtered, crashed: how often, by reason. asked: somebody named or registered it."""

    op: str
    candidate: str
    asked: bool = False
    visited: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    crashed: Mapping[str, int] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        return bool(self.visited or self.crashed)


@dataclass(frozen=True)
class Unvisited:
    """An expected candidate that did not run: for one case, or (case_id "") for the whole dump."""

    case_id: str
    op: str
    candidate: str
    reason: str


def visits(records: Iterable[CaseRecord], registered: Mapping[str, Mapping[str, Any]]) -> list[Visit]:
    """Every candidate that the dump knew of, by op and name, in the order of registration.

    registered   the dump's info["candidates"]: op -> name -> {"asked": …}; {} for a dump that holds none
    """
    asked = {(op, name): bool(facts.get("asked")) for op, names in registered.items() for name, facts in names.items()}
    counts: dict[tuple[str, str], dict[str, Counter[str]]] = {key: {} for key in asked}
    for r in records:
        counts.setdefault((r.case.op, r.candidate), {}).setdefault(r.status, Counter())[r.reason] += 1

    def visit(op: str, name: str, found: Mapping[str, Counter[str]]) -> Visit:
        none: Counter[str] = Counter()
        done, filtered, crashed = (found.get(status, none) for status in ("done", "unsupported", "error"))
        return Visit(op, name, asked.get((op, name), False), done.total(), filtered, crashed)

    return [visit(op, name, found) for (op, name), found in counts.items()]


def unvisited(records: Sequence[CaseRecord], info: Mapping[str, Any], vendor: str) -> Iterator[Unvisited]:
    """What was expected of the dump and did not run, with why."""
    ran = {(r.id, r.candidate): r for r in records}
    cases = {r.id: r.case for r in records}
    rules: tuple[Expectation, ...] = expectations(info.get("expected"))
    for ident, case in cases.items():
        for name in dict.fromkeys(n for rule in rules if rule.covers(case, vendor) for n in rule.candidates):
            record = ran.get((ident, name))
            if record is None:
                yield Unvisited(ident, case.op, name, f"{EXPECTED}, and not registered: no such implementation in the dump")
            elif record.status == "unsupported":
                yield Unvisited(ident, case.op, name, f"{EXPECTED}, and filtered: {record.reason}")
    for v in visits(records, info.get("candidates") or {}):
        if v.asked and not v.reached and any(c.op == v.op for c in cases.values()):
            yield Unvisited("", v.op, v.candidate, f"never reached: {_reasons(v.filtered) or 'no case asked for it'}")


def _reasons(filtered: Mapping[str, int]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in filtered.items())


def visits_text(found: Iterable[Visit]) -> list[str]:
    """One line an op: what was visited how often, filtered why, crashed; ops with their default alone are left out."""
    by_op: dict[str, list[Visit]] = {}
    for v in found:
        by_op.setdefault(v.op, []).append(v)
    lines = []
    for op, entries in by_op.items():
        if len(entries) == 1:
            continue
        parts = [", ".join(f"{v.candidate} {v.visited}" for v in entries if v.visited)]
        parts += [f"filtered ({reason}): {', '.join(names)}" for reason, names in _by_reason(entries).items()]
        parts += [f"crashed {v.candidate}: {_reasons(v.crashed)}" for v in entries if v.crashed]
        idle = [v.candidate for v in entries if not v.reached and not v.filtered]
        parts += [f"not asked for: {', '.join(idle)}"] if idle else []
        lines.append(f"{op}: {'; '.join(p for p in parts if p)}")
    return lines


def besides_default(found: Mapping[str, Iterable[Visit]]) -> list[str]:
    """One line on what ran besides each dump's default, by label; none where nothing did."""
    ran: dict[str, Counter[str]] = {}
    for label, entries in found.items():
        for v in entries:
            if v.candidate != "default" and v.visited:
                ran.setdefault(label, Counter())[v.candidate] += v.visited
    named = [f"{label} {', '.join(f'{name} {count}' for name, count in counts.items())}" for label, counts in ran.items()]
    return [f"besides default ran: {'; '.join(named)} (compare -v lists every candidate)"] if named else []


def _by_reason(entries: Iterable[Visit]) -> dict[str, list[str]]:
    """Candidates by the reason that filtered them, with how often."""
    found: dict[str, list[str]] = {}
    for v in entries:
        for reason, count in v.filtered.items():
            found.setdefault(reason, []).append(f"{v.candidate} {count}")
    return found


def states_text(records: Sequence[CaseRecord]) -> list[str]:
    """One line a candidate that also ran in another state: in how many outputs its bytes are those of the candidate itself."""
    digests = {(r.id, r.candidate): {t.name: t.sha256 for t in r.tensors if t.role == "output"} for r in records if r.status == "done"}
    same: Counter[str] = Counter()
    total: Counter[str] = Counter()
    first: dict[str, str] = {}
    for (ident, name), outputs in digests.items():
        base, plus, _ = name.partition("+")
        if not plus or (ident, base) not in digests:
            continue
        for output, digest in outputs.items():
            if "#" in output:
                continue
            total[name] += 1
            same[name] += digest == digests[ident, base].get(output)
            if digest != digests[ident, base].get(output):
                first.setdefault(name, f"{ident} {output}")
    return [
        f"{name}: {same[name]} of {counted(n, 'output')} {'has' if n == 1 else 'have'} the bytes of {name.partition('+')[0]}"
        + (f"; the first that does not: {first[name]}" if name in first else "")
        for name, n in total.items()
    ]
