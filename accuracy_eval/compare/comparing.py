"""`compare_dumps`: dumps joined, judged and summed up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from accuracy_eval.compare.comparison import Comparison, Options
from accuracy_eval.compare.joining import never_visited
from accuracy_eval.compare.judging import ReferenceMode
from accuracy_eval.compare.summary import explanations, gathered
from accuracy_eval.compare.workers import dealt, default_workers, shared
from accuracy_eval.errors import UsageError
from accuracy_eval.records import Case, NotCompared, Results, TensorResult

Progress = Callable[[int, int, str], None]


def compare_dumps(
    *paths: str | Path,
    labels: Sequence[str] = (),
    reference: ReferenceMode = "auto",
    gates: str = "default",
    cases: Sequence[str] = (),
    keep: Callable[[Case], bool] = lambda case: True,
    cross_format: bool = False,
    verify: bool = True,
    reference_cache: str | Path | None = None,
    explain: bool = False,
    unit: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Judge one or more dumps (files or folders of parts).

    labels        names of the dumps in the report; by default the device's, numbered where two are equal
    reference     "full": every output against the float64 truth; "sampled": products by exact rows and columns and random projections;
                  "auto": full up to 2^41 operations a product; "none": the dumps against each other alone, no side passes
    gates         a profile's name or path
    cases, keep   only these case ids; only cases for which `keep` is true
    cross_format  compare encodings of one fp8 family by value
    verify        check the stored digests of what is read
    reference_cache  folder where references are kept between comparisons and read from
    explain       also name the order of operations that makes each product's bits, of `unit`'s arithmetic or of the dump's own device;
                  it changes no verdict
    workers       processes that share the cases; None: one a core from 1,000 cases on. The results are the same
    FileError for a file that cannot be used, UsageError for an unknown case or profile. Nothing judged is a result with exit code 2.
    """
    if not paths:
        raise UsageError("compare needs at least one dump")
    options = Options(tuple(map(str, paths)), tuple(labels), gates, reference, reference_cache, cross_format, verify, explain, unit)
    tensors: list[TensorResult] = []
    skipped: list[NotCompared] = []
    with Comparison(options) as comparison:
        joined = comparison.join(cases, keep)
        crew = default_workers(len(joined)) if workers is None else workers
        batches = dealt(list(joined), crew)
        number = 0
        for found in comparison.run(batches, joined) if crew == 1 else shared(options, batches, joined, crew):
            for key, results in found:
                for result in results:
                    (skipped if isinstance(result, NotCompared) else tensors).append(result)  # type: ignore[arg-type]
                number += 1
                if progress:
                    progress(number, len(joined), key[0])
        if not cases:
            skipped += [n for e in comparison.entries for n in never_visited(e, keep)]
        judged = gathered(comparison.entries, comparison.profile, tensors, skipped, reference, joined)
        return replace(judged, notes=(*judged.notes, *explanations(comparison.entries, tensors))) if explain else judged
