"""Results over time: what changed since a baseline, and how a metric moved over dated results."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy_eval import messages
from accuracy_eval.errors import FileError, UsageError, counted, unknown
from accuracy_eval.metrics.registry import KNOWN
from accuracy_eval.records import NotCompared, Results, Side, TensorResult, Verdict
from accuracy_eval.report import load_results

Key = tuple[str, str, str]  # case id, candidate, tensor ("" for a case not compared)

# The relative norm of n independent rounding errors, uniform within half an ulp, has a relative standard deviation of √0.8/(2√n); five of
# the difference of two are taken for noise.
_NOISE = 5 * math.sqrt(2) * math.sqrt(0.8) / 2
KINDS = {
    "new failure": "passed in the baseline, fails now",
    "fixed": "failed in the baseline, passes now",
    "drift": "same verdict, and the relative error moved by more than rounding noise does",
    "other bytes": "same verdict, other output bytes, no drift",
    "gone": "in the baseline, not here",
    "new": "here, not in the baseline",
}


@dataclass(frozen=True)
class Change:
    """One difference from the baseline: a kind of KINDS, where, and what it was and is."""

    kind: str
    key: Key
    text: str

    @property
    def line(self) -> str:
        case, candidate, tensor = self.key
        name = " ".join(filter(None, (messages.of_candidate(case, candidate), messages.visible(tensor))))
        return f"{self.kind}: {name}: {messages.visible(self.text)}"


def changes(before: Results, now: Results) -> list[Change]:
    """Every difference, kinds in the order of KINDS, otherwise in the order of the results.

    Cases are matched by id, candidate and tensor, dumps by their labels. UsageError if no label is in both.
    """
    labels = {d.label for d in before.dumps} & {d.label for d in now.dumps}
    if not labels:
        old, new = (", ".join(d.label for d in r.dumps) for r in (before, now))
        raise UsageError(f"the baseline holds {old}, this comparison {new}: no dump to compare with; name them alike with --label")
    was, here = _by_key(before), _by_key(now)
    found = [c for key, item in here.items() if key in was for c in _between(key, was[key], item, labels)]
    found += [Change("gone", key, f"was {item.verdict}") for key, item in was.items() if key not in here]
    found += [Change("new", key, f"is {item.verdict}") for key, item in here.items() if key not in was]
    order = list(KINDS)
    return sorted(found, key=lambda c: order.index(c.kind))


def other_dumps(before: Results, now: Results) -> str:
    """In what the dumps of a baseline are others than those judged now: labels, suites, results; "" where in none of these."""
    was, here = ({d.label: d for d in r.dumps} for r in (before, now))
    told = [
        f"{messages.visible(', '.join(labels))} {where} only"
        for labels, where in (([n for n in was if n not in here], "there"), ([n for n in here if n not in was], "here"))
        if labels
    ]
    suites: dict[str, list[str]] = {}
    for label in (n for n in was if n in here and was[n].suite_digest != here[n].suite_digest):
        old, new = was[label].suite, here[label].suite
        difference = f"of suite {old} there, {new} here" if old != new else f"of other cases or seeds of suite {old}"
        suites.setdefault(messages.visible(difference), []).append(messages.visible(label))
    told += [f"{', '.join(labels)} {difference}" for difference, labels in suites.items()]
    if not _by_key(before).keys() & _by_key(now).keys():
        told.append("no result in common")
    return "; ".join(told)


def summary(found: Sequence[Change], name: str, others: str = "") -> str:
    """The changes in one sentence; `others` says that the baseline is of other dumps."""
    counts = {kind: sum(c.kind == kind for c in found) for kind in KINDS}
    parts = ", ".join(f"{n} {kind}{'s' if kind == 'new failure' and n != 1 else ''}" for kind, n in counts.items() if n)
    of = f", whose dumps are others ({others})" if others else ""
    return f"since {messages.visible(name)}{of}: {parts or 'nothing changed'}"


def _by_key(results: Results) -> dict[Key, TensorResult | NotCompared]:
    """The worst of what is said about a key: a case may be missing from several dumps."""
    items: dict[Key, TensorResult | NotCompared] = {(t.case_id, t.candidate, t.tensor): t for t in results.tensors}
    for n in results.not_compared:
        key = (n.case_id, n.candidate, "")
        if key not in items or n.verdict.severity > items[key].verdict.severity:
            items[key] = n
    return items


def _between(key: Key, old: TensorResult | NotCompared, new: TensorResult | NotCompared, labels: set[str]) -> Iterator[Change]:
    failed = [item.verdict.exit_code != 0 for item in (old, new)]
    if failed == [False, True]:
        yield Change("new failure", key, f"{old.verdict}, now {new.verdict}{_reason(new)}")
    elif failed == [True, False]:
        yield Change("fixed", key, f"{old.verdict}{_reason(old)}; now {new.verdict}")
    elif isinstance(old, TensorResult) and isinstance(new, TensorResult):
        sides = {s.label: s for s in new.sides}
        for was in old.sides:
            if was.label in labels and was.label in sides:
                yield from _of_side(key, was, sides[was.label], math.prod(new.shape))


def _reason(item: TensorResult | NotCompared) -> str:
    if isinstance(item, NotCompared):
        return f": {item.reason}"
    worst = max(item.sides, key=lambda s: s.verdict.severity, default=None)
    return f": {worst.label} {messages.side_reason(worst)}" if worst is not None and worst.verdict is not Verdict.PASS else ""


def _of_side(key: Key, was: Side, side: Side, elements: int) -> Iterator[Change]:
    if not was.sha256 or was.sha256 == side.sha256:
        return
    old, new = was.metrics.get("rel_fro"), side.metrics.get("rel_fro")
    numbers = [x for x in (old, new) if isinstance(x, int | float) and math.isfinite(x)]
    moved = f"{side.label}: relative error {messages.number(old)}, now {messages.number(new)}"
    if len(numbers) == 2 and abs(numbers[1] - numbers[0]) > noise_floor(elements) * max(numbers):
        yield Change("drift", key, f"{moved} (noise: {messages.number(100 * noise_floor(elements), 2)} %)")
    else:
        yield Change("other bytes", key, moved)


def noise_floor(elements: int) -> float:
    """Part of itself by which the relative error of so many elements may move by rounding alone."""
    return _NOISE / math.sqrt(max(elements, 1))


# dated results


@dataclass(frozen=True)
class Dated:
    """Results and the date in their path; `versions` are those of every dump's libraries, by label."""

    date: str
    path: Path
    results: Results

    @property
    def versions(self) -> dict[str, str]:
        return {
            d.label: ", ".join(f"{t} {d.platform[k]}" for k, t in _VERSIONS if d.platform.get(k) is not None) for d in self.results.dumps
        }


_VERSIONS = (
    ("torch_version", "torch"),
    ("torch_cuda", "CUDA"),
    ("torch_rocm", "ROCm"),
    ("driver_version", "driver"),
    ("torch_blas", "BLAS"),
)
_DATE = re.compile(r"(?<!\d)(\d{4})-?(\d{2})-?(\d{2})(?:[T_](\d{2}):?-?(\d{2})(?::?-?(\d{2}))?)?(?!\d)")


def dated_results(folder: str | Path) -> list[Dated]:
    """Every results.json below `folder` with a date in its path (2026-11-30, 20261130, 2026-11-30T07:08), the oldest first.

    UsageError where there is none; FileError for one that cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileError(f"{root}: not a folder; history reads the results.json files below one")
    found = []
    for path in sorted(root.rglob("*.json")):
        match = None if path.name.startswith(".") else _DATE.search(str(path.relative_to(root)))
        if match and (path.name == "results.json" or path.name.endswith("results.json") or _DATE.search(path.stem)):
            year, month, day, *time = match.groups()
            clock = "".join(f"{'T' if i == 0 else ':'}{part}" for i, part in enumerate(t for t in time if t))
            found.append(Dated(f"{year}-{month}-{day}{clock}", path, load_results(path)))
    if not found:
        raise UsageError(f"{root}: no results.json with a date in its path; name folders by date, for example 2026-11-30/results.json")
    return sorted(found, key=lambda d: (d.date, str(d.path)))


@dataclass(frozen=True)
class Series:
    """A metric of one side over time: (index of the dated results, value, verdict)."""

    key: Key
    label: str
    points: tuple[tuple[int, float, Verdict], ...]

    @property
    def spread(self) -> float:
        """Largest over smallest value, 1 where nothing moved; infinite where a value left or reached 0."""
        values = [v for _, v, _ in self.points]
        low, high = min(values), max(values)
        return 1.0 if low == high else math.inf if low <= 0 else high / low

    @property
    def title(self) -> str:
        case, candidate, tensor = self.key
        return f"{messages.of_candidate(case, candidate)} {messages.visible(tensor)} · {messages.visible(self.label)}"


def series(dated: Sequence[Dated], metric: str, cases: Iterable[str] = ()) -> list[Series]:
    """The metric of every side that has it at two dates or more, those that moved most first. UsageError for an unknown metric or case."""
    if metric not in KNOWN:
        raise unknown("metric", metric, KNOWN, listed="metrics")
    wanted = set(cases)
    points: dict[tuple[Key, str], list[tuple[int, float, Verdict]]] = {}
    for i, d in enumerate(dated):
        for t in d.results.tensors:
            if wanted and t.case_id not in wanted:
                continue
            for s in t.sides:
                value = s.metrics.get(metric)
                if isinstance(value, int | float) and math.isfinite(value):
                    points.setdefault(((t.case_id, t.candidate, t.tensor), s.label), []).append((i, float(value), s.verdict))
    missing = wanted - {case for (case, _, _), _ in points}
    if missing:
        raise UsageError(f"case {', '.join(sorted(missing))}: none of {counted(len(dated), 'result')} has {metric} of it")
    found = [Series(key, label, tuple(values)) for (key, label), values in points.items() if len(values) > 1]
    return sorted(found, key=lambda s: (-s.spread, s.title))


def write_history(dated: Sequence[Dated], metric: str, found: Sequence[Series], folder: str | Path) -> list[Path]:
    """history.html and history.csv in `folder`, which is made if absent; what an earlier run left there stays until both are whole."""
    from accuracy_eval.report.files import write_texts
    from accuracy_eval.report.history_page import Chart, page

    at = {label: versions_at(dated, label) for label in {s.label for s in found}}
    charts = [Chart(s.title, s.points, at[s.label]) for s in found]
    html = page(metric, [d.date for d in dated], charts)
    return write_texts(Path(folder), {"history.html": html, "history.csv": _table(dated, metric, found)})


def _table(dated: Sequence[Dated], metric: str, found: Sequence[Series]) -> str:
    """The series as CSV, a line a point."""
    from accuracy_eval.report.flat import cell

    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["date", "file", "dump", "versions", "case_id", "candidate", "tensor", "verdict", metric])
    for s in found:
        for i, value, verdict in s.points:
            d = dated[i]
            texts = (d.date, d.path.name, s.label, d.versions.get(s.label, ""), *s.key, str(verdict))
            out.writerow([*map(cell, texts), repr(value)])
    return text.getvalue()


def versions_at(dated: Sequence[Dated], label: str) -> Mapping[int, str]:
    """Where a dump's library versions changed: index → what they are from there on."""
    found: dict[int, str] = {}
    last = None
    for i, d in enumerate(dated):
        now = d.versions.get(label)
        if now is not None and now != last:
            found[i] = last = now
    return found
