"""What the judged cases say together: the worst verdict, the exit code, and what a reader must know of the comparison."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from accuracy_eval.compare.how import ReferenceMode
from accuracy_eval.compare.joining import Entry, Key
from accuracy_eval.concluding import Tally, conclusion
from accuracy_eval.gates import Profile
from accuracy_eval.kept import KeptResults
from accuracy_eval.records import (
    RESULTS_SCHEMA,
    Case,
    CaseRecord,
    DumpInfo,
    NotCompared,
    Results,
)
from accuracy_eval.store.schema import DEVICE
from accuracy_eval.store.shards import to_merge
from accuracy_eval.version import PRODUCER
from accuracy_eval.visits import Visit, among, besides_default, states_text, visits, visits_text


def gathered(
    entries: Sequence[Entry], profile: Profile, tensors: KeptResults, skipped: Sequence[NotCompared], mode: ReferenceMode,
    joined: Mapping[Key, Mapping[str, CaseRecord]], candidates: Sequence[str] = (),
) -> Results:  # fmt: skip
    """The results of a comparison: `skipped` are the cases not compared, `joined` the records of all that were asked for."""
    labels = [e.label for e in entries]
    tally = tensors.tally()
    verdict, exit_code = conclusion(tally, skipped, labels)
    asked = {label: [records[label] for records in joined.values() if label in records] for label in labels}
    visited = {e.label: _visits(e, asked[e.label], candidates) for e in entries}
    notes = [
        *_unjudged(entries, tally, skipped, asked_for=bool(joined)),
        *_same_files(entries),
        *_suites(entries),
        *_parts(entries),
        *_to_merge(entries),
        *_sampled(tally),
        *(f"{label}: {line}" for label in labels for line in states_text(asked[label])),
        *besides_default(visited),
    ]
    if mode == "none":
        notes.append("no reference: the dumps were judged against each other alone, and no side passes by itself")
    return Results(
        RESULTS_SCHEMA, PRODUCER, profile.name, profile.info(), tuple(_dump_info(e) for e in entries), tensors, tuple(skipped),
        verdict, exit_code, tuple(notes), profile.file,
        tuple(f"{label}: {line}" for label, found in visited.items() for line in visits_text(found)),
    )  # fmt: skip


def _visits(e: Entry, asked: Sequence[CaseRecord], candidates: Sequence[str]) -> list[Visit]:
    """What became of the candidates that are registered for the ops of the cases asked for."""
    ops = {r.case.op for r in asked}
    known = e.dump.info.get("candidates") or {}
    registered = {op: {n: v for n, v in names.items() if among(n, candidates)} for op, names in known.items() if op in ops}
    return visits(asked, registered)


def _same_files(entries: Sequence[Entry]) -> list[str]:
    """Which dumps are one file under several names."""
    files: dict[Path, list[str]] = {}
    for e in entries:
        files.setdefault(e.dump.path.resolve(), []).append(e.label)
    return [f"{' and '.join(labels)} are the same file {path.name}" for path, labels in files.items() if len(labels) > 1]


def _suites(entries: Sequence[Entry]) -> list[str]:
    """That the dumps are not of one suite."""
    suites = {(str(e.dump.info.get("suite", "")), e.dump.info.get("suite_digest", "")) for e in entries}
    if len(suites) < 2:
        return []
    names = sorted({name for name, _ in suites})
    those = f"different suites ({', '.join(names)})" if len(names) > 1 else f"different versions of suite {names[0]}"
    return [_seeds(entries) or f"the dumps are of {those}; equal case ids were joined"]


def _sampled(tally: Tally) -> list[str]:
    """How many outputs a sample stood for."""
    sampled = tally.scopes["sampled"]
    if not sampled:
        return []
    how = "a sampled reference (exact rows and columns, random projections of all others)"
    return [f"{sampled} of {tally.scopes.total()} outputs were judged by {how}; --reference full computes all of it"]


def _seeds(entries: Sequence[Entry]) -> str:
    """That the dumps hold the same cases but for the seed; "" where they differ otherwise."""
    found: dict[int, list[str]] = {}
    cases: set[frozenset[Case]] = set()
    for e in entries:
        seeds = {r.case.seed for r in e.dump.records}
        if len(seeds) != 1:
            return ""
        found.setdefault(seeds.pop(), []).append(e.label)
        cases.add(frozenset(replace(r.case, seed=0) for r in e.dump.records))
    if len(found) < 2 or len(cases) > 1:
        return ""
    those = ", ".join(f"{seed} in {' and '.join(labels)}" for seed, labels in sorted(found.items()))
    return f"the dumps have the same cases of other operands, by seed {those}: dump all with one --seed"


def _unjudged(entries: Sequence[Entry], tally: Tally, skipped: Sequence[NotCompared], *, asked_for: bool) -> list[str]:
    """That nothing was judged, or of which dumps, each with the most frequent reason of its worst verdict."""
    if tally.nothing_judged:
        why = ": the dumps have no case in common that ran on all of them" if len(entries) > 1 else ""
        return [f"nothing was judged{why if asked_for else ': no case of the dumps is among those asked for'}"]
    notes = []
    for label in tally.unjudged(e.label for e in entries):
        reasons = Counter((n.verdict, n.reason) for n in skipped if n.label == label)
        why = max(reasons, key=lambda r: (r[0].severity, reasons[r]))[1] if reasons else "it holds none of the cases"
        notes.append(f"nothing of {label} could be judged: {why}")
    return notes


def _parts(entries: Sequence[Entry]) -> list[str]:
    """Which dumps hold a part of their suite, those that hold as much of it together."""
    found: dict[str, list[str]] = {}
    for e in entries:
        if text := e.dump.part_text():
            found.setdefault(text, []).append(e.label)
    return [f"{' and '.join(labels)} {'holds' if len(labels) == 1 else 'hold'} {text}" for text, labels in found.items()]


def _to_merge(entries: Sequence[Entry]) -> list[str]:
    """The command that makes one dump of those of one device that hold different shards of one suite."""
    devices: dict[tuple[str, ...], list[Entry]] = {}
    for e in entries:
        devices.setdefault(tuple(str(e.dump.platform.get(name)) for name in DEVICE), []).append(e)
    return [
        f"{' and '.join(e.label for e in those)} are shards of one suite and device; merge these and compare the whole: "
        f"accuracy-eval merge {' '.join(shlex.quote(str(e.dump.path)) for e in those)} -o all.h5"
        for those in devices.values()
        if to_merge([e.dump.info for e in those])
    ]


def explanations(entries: Sequence[Entry], tensors: KeptResults) -> list[str]:
    """What --explain found, in counts."""
    from accuracy_eval.explanations import explanations_text, gives_no_wider

    exact = [e.label for e in entries if e.dump.platform.get("backend") == "reference"]
    return explanations_text(tensors, exact, narrow=[e.label for e in entries if gives_no_wider(e.dump.platform)])


def _dump_info(e: Entry) -> DumpInfo:
    suite, digest = (str(e.dump.info.get(k, "")) for k in ("suite", "suite_digest"))
    return DumpInfo(
        e.label, str(e.dump.path), e.dump.content_digest, suite, digest, dict(e.dump.platform), dict(e.dump.info.get("numerics", {}))
    )
