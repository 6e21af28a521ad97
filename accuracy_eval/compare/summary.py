"""What the judged cases say together: the worst verdict, the exit code, and what a reader must know of the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from accuracy_eval.compare.how import ReferenceMode
from accuracy_eval.compare.joining import Entry, Key
from accuracy_eval.gates import Profile
from accuracy_eval.records import (
    RESULTS_SCHEMA,
    Case,
    CaseRecord,
    DumpInfo,
    NotCompared,
    Results,
    TensorResult,
    Verdict,
    conclusion,
    unjudged,
)
from accuracy_eval.version import PRODUCER
from accuracy_eval.visits import Visit, among, besides_default, states_text, visits, visits_text


def gathered(
    entries: Sequence[Entry], profile: Profile, tensors: Sequence[TensorResult], skipped: Sequence[NotCompared], mode: ReferenceMode,
    joined: Mapping[Key, Mapping[str, CaseRecord]], candidates: Sequence[str] = (),
) -> Results:  # fmt: skip
    verdict, exit_code = conclusion(tensors, skipped, [e.label for e in entries])
    notes = []
    if all(t.verdict is Verdict.INCONCLUSIVE for t in tensors):
        why = ": the dumps have no case in common that ran on all of them" if len(entries) > 1 else ""
        notes.append(f"nothing was judged{why if joined else ': no case of the dumps is among those asked for'}")
    else:
        notes += _unjudged(entries, tensors, skipped)
    files: dict[Path, list[str]] = {}
    for e in entries:
        files.setdefault(e.dump.path.resolve(), []).append(e.label)
    notes += [f"{' and '.join(labels)} are the same file {path.name}" for path, labels in files.items() if len(labels) > 1]
    suites = {(str(e.dump.info.get("suite", "")), e.dump.info.get("suite_digest", "")) for e in entries}
    if len(suites) > 1:
        names = sorted({name for name, _ in suites})
        those = f"different suites ({', '.join(names)})" if len(names) > 1 else f"different versions of suite {names[0]}"
        notes.append(_seeds(entries) or f"the dumps are of {those}; equal case ids were joined")
    notes += _parts(entries)
    sampled = sum(s.scope == "sampled" for t in tensors for s in t.sides)
    if sampled:
        total = sum(len(t.sides) for t in tensors)
        notes.append(
            f"{sampled} of {total} outputs were judged by a sampled reference (exact rows and columns, random projections of all others); "
            "--reference full computes all of it"
        )
    visited: dict[str, list[Visit]] = {}
    for e in entries:
        asked = [records[e.label] for records in joined.values() if e.label in records]
        ops = {r.case.op for r in asked}
        known = e.dump.info.get("candidates") or {}
        registered = {op: {n: v for n, v in names.items() if among(n, candidates)} for op, names in known.items() if op in ops}
        visited[e.label] = visits(asked, registered)
        notes += [f"{e.label}: {line}" for line in states_text(asked)]
    notes += besides_default(visited)
    if mode == "none":
        notes.append("no reference: the dumps were judged against each other alone, and no side passes by itself")
    info = tuple(_dump_info(e) for e in entries)
    return Results(
        RESULTS_SCHEMA,
        PRODUCER,
        profile.name,
        profile.info(),
        info,
        tuple(tensors),
        tuple(skipped),
        verdict,
        exit_code,
        tuple(notes),
        profile.file,
        tuple(f"{label}: {line}" for label, found in visited.items() for line in visits_text(found)),
    )


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


def _unjudged(entries: Sequence[Entry], tensors: Sequence[TensorResult], skipped: Sequence[NotCompared]) -> list[str]:
    """Which dumps nothing was judged of, each with the most frequent reason of its worst verdict."""
    notes = []
    for label in unjudged(tensors, [e.label for e in entries]):
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


def explanations(entries: Sequence[Entry], tensors: Sequence[TensorResult]) -> list[str]:
    """What --explain found, in counts."""
    from accuracy_eval.explanations import explanations_text

    return explanations_text(tensors, exact=[e.label for e in entries if e.dump.platform.get("backend") == "reference"])


def _dump_info(e: Entry) -> DumpInfo:
    suite, digest = (str(e.dump.info.get(k, "")) for k in ("suite", "suite_digest"))
    return DumpInfo(
        e.label, str(e.dump.path), e.dump.content_digest, suite, digest, dict(e.dump.platform), dict(e.dump.info.get("numerics", {}))
    )
