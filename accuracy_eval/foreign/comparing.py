"""Array files against each other: each name a case, judged by structure and the limits of its format. No side is the truth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accuracy_eval.checking import check
from accuracy_eval.concluding import Tally, conclusion
from accuracy_eval.errors import UsageError, counted, unknown
from accuracy_eval.foreign.arrays import read_arrays
from accuracy_eval.foreign.integers import Wide
from accuracy_eval.gates import load_profile
from accuracy_eval.messages import deciding_gate, gate_clause, index_text, number
from accuracy_eval.records import (
    ARRAYS,
    RESULTS_SCHEMA,
    Attribution,
    Case,
    Coded,
    Diagnosis,
    DumpInfo,
    NotCompared,
    Pair,
    Results,
    Side,
    TensorResult,
    Verdict,
)  # fmt: skip
from accuracy_eval.version import PRODUCER


def compare_arrays(*paths: str | Path, labels: Sequence[str] = (), names: Sequence[str] = ()) -> Results:
    """Judge two or more array files, or only the arrays of these names. A name that one file lacks is MISSING, 64-bit integers beyond
    32 bits are INCONCLUSIVE; FileError for a file that cannot be read, UsageError for a name that none has."""
    if len(paths) < 2:
        raise UsageError("arrays are compared with each other: give two files or more")
    if labels and len(labels) != len(paths):
        raise UsageError(f"{counted(len(labels), 'label')} for {counted(len(paths), 'file')}; give one each, as --label A --label B")
    held = [read_arrays(p) for p in paths]
    stems = [Path(p).stem for p in paths]
    named = list(labels) or [s if stems.count(s) == 1 else f"{s}-{i}" for i, s in enumerate(stems, 1)]
    tensors: list[TensorResult] = []
    missing: list[NotCompared] = []
    known = dict.fromkeys(n for arrays in held for n in arrays)
    for name in names:
        if name not in known:
            raise unknown("array", name, known)
    for name in [n for n in known if n in names or not names]:
        there: dict[str, Coded] = {}
        for label, path, arrays in zip(named, paths, held, strict=True):
            match arrays.get(name):
                case Coded() as array:
                    there[label] = array
                case Wide(reason):
                    why = f"not comparable: {Path(path).name} holds {reason}"
                    missing.append(NotCompared(name, ARRAYS, "", label, Verdict.INCONCLUSIVE, why))
                case None:
                    missing.append(NotCompared(name, ARRAYS, "", label, Verdict.MISSING, f"not in {Path(path).name}"))
        if len(there) > 1:
            tensors.append(_compared(name, there))
    verdict, exit_code = conclusion(Tally.of(tensors), missing, named)
    info = tuple(DumpInfo(label, str(path), "", ARRAYS, "", {}) for label, path in zip(named, paths, strict=True))
    notes = ("arrays without operands: compared with each other, by structure and the limits of their formats; no side is the truth",)
    profile = load_profile("default")
    return Results(RESULTS_SCHEMA, PRODUCER, ARRAYS, profile.info(), info, tuple(tensors), tuple(missing), verdict, exit_code, notes)


def _compared(name: str, there: dict[str, Coded]) -> TensorResult:
    pairs = tuple(_pair(a, there[a], b, there[b]) for a, b in itertools.combinations(there, 2))
    first = next(iter(there.values()))
    sides = tuple(Side(label, c.format, "", Verdict.INCONCLUSIVE, note="no reference") for label, c in there.items())
    verdict = max((p.verdict for p in pairs), key=lambda v: v.severity)
    return TensorResult(name, Case(ARRAYS, (), format=first.format), ARRAYS, "", "array", first.shape, verdict, sides, pairs)


def _pair(a: str, left: Coded, b: str, right: Coded) -> Pair:
    found = check(left, right).side
    same = left.format == right.format and found.metrics.get("mismatch_count") == 0
    attribution = Attribution.IDENTICAL if same else Attribution.UNDETERMINED
    sentence, diagnoses = "same bytes" if same else _apart(found), found.diagnoses
    if left.shape != right.shape:
        sentence = f"{a} is {list(left.shape)}, {b} is {list(right.shape)}"
        diagnoses = tuple(replace(d, sentence=sentence) if d.code == "shape-mismatch" else d for d in diagnoses)
    diagnoses = tuple(_in_words_of_files(d, a, b) for d in diagnoses)
    if left.shape == right.shape and left.format != right.format:
        sentence = f"{a} is {left.format}, {b} is {right.format}; {sentence}"
    return Pair(a, b, found.verdict, attribution, sentence, found.metrics, found.gates, found.worst, diagnoses)


def _in_words_of_files(d: Diagnosis, a: str, b: str) -> Diagnosis:
    """A diagnosis whose sentence speaks of what is expected, said of the file that has it: neither is the truth."""
    kind = {"nan-in-expected": "NaN", "inf-in-expected": "Inf"}.get(d.code)
    if not kind:
        return d
    there = f"{counted(d.evidence['count'], 'element')} {'is' if d.evidence['count'] == 1 else 'are'} {kind} in {b} and not in {a}"
    return replace(d, sentence=f"{there}, the first at {d.evidence['index']}")


def _apart(found: Side) -> str:
    """How far apart two arrays are, and the limit that decided: neither is the truth, so neither is said to be wrong."""
    m, gate = found.metrics, deciding_gate(found.gates)
    if gate is None:
        return found.note
    most = next((w for w in found.worst if abs(w.error) == m.get("max_abs")), None)
    size = f", by up to {number(m['max_abs'], 3)}{f' at {index_text(most.index)}' if most else ''}" if m.get("max_abs") else ""
    return f"{number(m.get('mismatch_count'))} of {number(m.get('count'))} elements differ{size}; {gate_clause(gate)}"
