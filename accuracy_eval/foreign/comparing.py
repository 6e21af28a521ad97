"""Array files against each other: each name a case, judged by structure and the limits of its format. No side is the truth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from accuracy_eval.checking import check
from accuracy_eval.errors import UsageError
from accuracy_eval.foreign.arrays import read_arrays
from accuracy_eval.gates import load_profile
from accuracy_eval.records import (
    RESULTS_SCHEMA,
    Attribution,
    Case,
    Coded,
    DumpInfo,
    NotCompared,
    Pair,
    Results,
    Side,
    TensorResult,
    Verdict,
    conclusion,
)  # fmt: skip
from accuracy_eval.version import PRODUCER

FAMILY = "arrays"


def compare_arrays(*paths: str | Path, labels: Sequence[str] = ()) -> Results:
    """Judge two or more array files. A name that one file lacks is MISSING; FileError for a file that cannot be read."""
    if len(paths) < 2:
        raise UsageError("arrays are compared with each other: give two files or more")
    if labels and len(labels) != len(paths):
        raise UsageError(f"{len(labels)} labels for {len(paths)} files; give one each")
    held = [read_arrays(p) for p in paths]
    stems = [Path(p).stem for p in paths]
    named = list(labels) or [s if stems.count(s) == 1 else f"{s}-{i}" for i, s in enumerate(stems, 1)]
    tensors: list[TensorResult] = []
    missing: list[NotCompared] = []
    for name in dict.fromkeys(n for arrays in held for n in arrays):
        there = {label: arrays[name] for label, arrays in zip(named, held, strict=True) if name in arrays}
        missing += [
            NotCompared(name, FAMILY, "", label, Verdict.MISSING, f"not in {Path(path).name}")
            for label, path in zip(named, paths, strict=True)
            if label not in there
        ]
        if len(there) > 1:
            tensors.append(_compared(name, there))
    verdict, exit_code = conclusion(tensors, missing)
    info = tuple(DumpInfo(label, str(path), "", FAMILY, "", {}) for label, path in zip(named, paths, strict=True))
    notes = ("arrays without operands: compared with each other, by structure and the limits of their formats; no side is the truth",)
    profile = load_profile("default")
    return Results(RESULTS_SCHEMA, PRODUCER, "arrays", profile.info(), info, tuple(tensors), tuple(missing), verdict, exit_code, notes)


def _compared(name: str, there: dict[str, Coded]) -> TensorResult:
    pairs = tuple(_pair(a, there[a], b, there[b]) for a, b in itertools.combinations(there, 2))
    first = next(iter(there.values()))
    sides = tuple(Side(label, c.format, "", Verdict.INCONCLUSIVE, note="no reference") for label, c in there.items())
    verdict = max((p.verdict for p in pairs), key=lambda v: v.severity)
    return TensorResult(name, Case(FAMILY, (), format=first.format), FAMILY, "", "array", first.shape, verdict, sides, pairs)


def _pair(a: str, left: Coded, b: str, right: Coded) -> Pair:
    found = check(left, right).side
    same = left.format == right.format and found.metrics.get("mismatch_count") == 0
    attribution = Attribution.IDENTICAL if same else Attribution.UNDETERMINED
    sentence = "same bytes" if same else found.diagnoses[0].sentence if found.diagnoses else ""
    return Pair(a, b, found.verdict, attribution, sentence, found.metrics, found.gates, found.worst, found.diagnoses)
