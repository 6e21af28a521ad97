"""Dumps joined by case and candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from accuracy_eval.errors import UsageError, counted, unknown
from accuracy_eval.labels import default_labels
from accuracy_eval.messages import REFERENCE
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding
from accuracy_eval.records import Case, CaseRecord, NotCompared, Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import expectations
from accuracy_eval.visits import among, unvisited

Key = tuple[str, str]
"""A case's id and the candidate that ran it."""
Joined = dict[Key, dict[str, CaseRecord]]
"""The records of each key by dump label."""


@dataclass(frozen=True)
class Entry:
    """One dump in a comparison."""

    label: str
    dump: Dump

    @property
    def encoding(self) -> Encoding:
        return "fnuz" if self.dump.platform.get("fp8_encoding") == "fnuz" else "ocp"

    @property
    def vendor(self) -> str:
        return str(self.dump.platform.get("vendor"))


def labels_of(dumps: Sequence[Dump], given: Sequence[str]) -> list[str]:
    """The given names, one a dump, or those by default. UsageError for another number of them, equal ones, and the name of what judges."""
    if not given:
        return default_labels([(d.platform, d.path) for d in dumps])
    if len(given) != len(dumps):
        raise UsageError(f"{counted(len(given), 'label')} for {counted(len(dumps), 'dump')}; give one each, as --label A --label B")
    if not all(label.strip() for label in given):
        raise UsageError("a label is empty; a report could not say which dump it means: give each a name, or leave --label out")
    if REFERENCE in given:
        raise UsageError(f"label {REFERENCE}: reports call so what every dump is judged by; choose another name")
    if len(set(given)) != len(given):
        raise UsageError(f"labels {', '.join(given)}: two are equal; a report could not tell the dumps apart")
    return list(given)


def join(entries: Sequence[Entry], cases: Sequence[str], keep: Callable[[Case], bool], candidates: Sequence[str] = ()) -> Joined:
    """Records by (case id, candidate) and dump label, in the order of the first dump that has them.

    cases, keep, candidates  as `compare_dumps` takes them. UsageError for a case or a candidate that no dump has.
    """
    there = {name for e in entries for name in _candidates_of(e)} if candidates else set()
    for name in candidates:
        if not any(among(found, [name]) for found in there):
            raise unknown("candidate", name, there)
    joined: Joined = {}
    for e in entries:
        for r in e.dump.records:
            if (not cases or r.id in cases) and keep(r.case) and among(r.candidate, candidates):
                joined.setdefault((r.id, r.candidate), {})[e.label] = r
    absent = set(cases) - {ident for ident, _ in joined}
    if absent:
        raise UsageError(
            f"case {', '.join(sorted(absent))}: in none of the dumps; accuracy-eval inspect {entries[0].dump.path} lists what there is"
        )
    return joined


def _candidates_of(e: Entry) -> Iterator[str]:
    """What ran, was registered, or was expected of the dump."""
    yield from (r.candidate for r in e.dump.records)
    yield from (name for names in (e.dump.info.get("candidates") or {}).values() for name in names)
    yield from (name for rule in expectations(e.dump.info.get("expected")) for name in rule.candidates)


def never_visited(e: Entry, keep: Callable[[Case], bool], candidates: Sequence[str] = ()) -> Iterator[NotCompared]:
    """Candidates that were expected of the dump and did not run."""
    records = [r for r in e.dump.records if keep(r.case)]
    known = {r.id: r.case for r in records}
    for u in unvisited(records, e.dump.info, e.vendor):
        if not among(u.candidate, candidates):
            continue
        case = known.get(u.case_id)
        yield NotCompared(u.case_id or f"{u.op} (all cases)", get_op(u.op).family, u.candidate, e.label, Verdict.MISSING, u.reason, case)


def once(skipped: Iterable[NotCompared], unvisited: Sequence[NotCompared]) -> list[NotCompared]:
    """Both; of one result only that it was expected and did not run, which says why it was filtered too."""
    told = {(n.case_id, n.candidate, n.label) for n in unvisited}
    return [*(n for n in skipped if (n.case_id, n.candidate, n.label) not in told), *unvisited]
