"""`compare_dumps`: dumps joined, judged and summed up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from accuracy_eval.compare.comparison import Comparison, Judged, Options, as_text
from accuracy_eval.compare.how import ReferenceMode
from accuracy_eval.compare.joining import Joined, Key, never_visited, once
from accuracy_eval.compare.journal import Journal
from accuracy_eval.compare.summary import explanations, gathered
from accuracy_eval.compare.workers import dealt, default_workers, shared
from accuracy_eval.errors import NothingJudged, UsageError, counted
from accuracy_eval.kept import KeptResults
from accuracy_eval.records import Case, NotCompared, Results

Progress = Callable[[int, int, str], None]
FEW_CASES = 1000  # whose results are held as they are; what workers found is text already


def compare_dumps(
    *paths: str | Path,
    labels: Sequence[str] = (),
    reference: ReferenceMode = "auto",
    gates: str = "default",
    cases: Sequence[str] = (),
    keep: Callable[[Case], bool] = lambda case: True,
    candidates: Sequence[str] = (),
    cross_format: bool = False,
    verify: bool = True,
    reference_cache: str | Path | None = None,
    explain: bool = False,
    unit: str | None = None,
    workers: int | None = None,
    journal: str | Path | Callable[[Sequence[str]], Path] | None = None,
    progress: Progress | None = None,
) -> Results:
    """Judge one or more dumps (files or folders of parts).

    labels        names of the dumps in the report; by default the device's, numbered where two are equal
    reference     "full": every output against the float64 truth; "sampled": products by exact rows and columns and random projections;
                  "auto": full up to 2^41 operations a product; "none": the dumps against each other alone, no side passes
    gates         a profile's name or path
    cases, keep   only these case ids; only cases for which `keep` is true
    candidates    only these implementations, in whatever state they ran
    cross_format  compare encodings of one fp8 family by value
    verify        check the stored digests of what is read
    reference_cache  folder where references are kept between comparisons and read from
    explain       also name the order of operations that makes each product's bits, of `unit`'s arithmetic or of the dump's own device;
                  it changes no verdict
    workers       processes that share the cases; None: one a core from 1,000 results on. What is found is the same. They import the
                  script that calls this: there it stands under `if __name__ == "__main__":`
    journal       file, or (labels of the dumps) -> file, that keeps every case as it is judged. Where it holds cases of the same comparison
                  (program, limits, options, dumps by digest) they are taken over; the results are the same. It stays when all is done
    FileError for a file that cannot be used, UsageError for an unknown case, candidate or profile, NothingJudged where filters leave
    no case.
    Cases of which none could be judged are a result with exit code 2.
    """
    if not paths:
        raise UsageError("compare needs at least one dump")
    options = Options(tuple(map(str, paths)), tuple(labels), gates, reference, reference_cache, cross_format, verify, explain, unit)
    with Comparison(options) as comparison:
        joined = comparison.join(cases, keep, candidates)
        _require_cases(comparison, joined)
        with _journal(journal, comparison) as kept:
            judged = _judged(comparison, joined, kept, workers, progress)
        every = [result for key in joined for result in judged[key]]
        tensors = KeptResults([r for r in every if not isinstance(r, NotCompared)])
        skipped = [r for r in every if isinstance(r, NotCompared)]
        if not cases:
            skipped = once(skipped, [n for e in comparison.entries for n in never_visited(e, keep, candidates)])
        all_of_it = gathered(comparison.entries, comparison.profile, tensors, skipped, reference, joined, candidates)
        return replace(all_of_it, notes=(*all_of_it.notes, *explanations(comparison.entries, tensors))) if explain else all_of_it


def _require_cases(comparison: Comparison, joined: Joined) -> None:
    """NothingJudged where the filters leave no case of what the dumps hold."""
    records = [r for e in comparison.entries for r in e.dump.records]
    if records and not joined:
        ops = ", ".join(dict.fromkeys(r.case.op for r in records))
        held = f"{counted(len(records), 'result')} of {ops}"
        raise NothingJudged(f"nothing was judged: none of the cases asked for is in the dumps, which hold {held}")


def _judged(
    comparison: Comparison, joined: Joined, kept: Journal | None, workers: int | None, progress: Progress | None
) -> dict[Key, Judged]:
    """The results of every case: those that the journal holds, and what is left of them by one process or several."""
    judged = {key: kept.judged[key] for key in joined if kept and key in kept.judged}
    left = [key for key in joined if key not in judged]
    crew = default_workers(len(left)) if workers is None or not left else workers
    batches = dealt(left, crew)
    for found in comparison.run(batches, joined) if crew == 1 else shared(comparison.options, batches, joined, crew):
        held = found if len(judged) < FEW_CASES else as_text(found)
        if kept:
            kept.add(held)
        for key, results in held:
            judged[key] = results
            if progress:
                progress(len(judged), len(joined), key[0])
    return judged


def _journal(place: str | Path | Callable[[Sequence[str]], Path] | None, comparison: Comparison) -> Journal | AbstractContextManager[None]:
    if place is None:
        return nullcontext()
    return Journal(place([e.label for e in comparison.entries]) if callable(place) else Path(place), comparison.identity())
