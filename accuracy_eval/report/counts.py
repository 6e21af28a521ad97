"""How many tensors, and results not compared, came to which verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from accuracy_eval import messages
from accuracy_eval.errors import counted
from accuracy_eval.records import NotCompared, Results, TensorResult, Verdict

ORDER = tuple(sorted(Verdict, key=lambda v: -v.severity))  # worst first
QUIET = (Verdict.PASS, Verdict.UNSUPPORTED)  # counted, not findings


class Summary(Protocol):
    """What results say together, which are seen once, in turn."""

    def add(self, result: Any, /) -> None: ...


S = TypeVar("S", bound=Summary)


def over(summary: S, results: Iterable[Any]) -> S:
    """`summary`, after it has seen these results."""
    for result in results:
        summary.add(result)
    return summary


def count_verdicts(
    results: Results, key: Callable[[TensorResult | NotCompared], tuple[str, ...]]
) -> dict[tuple[str, ...], Counter[Verdict]]:
    """Verdicts of tensors and of results not compared, counted by `key`, keys in order of first appearance."""
    return over(Counts(key), _judged(results)).by_key


class Counts:
    """Verdicts by `key` of results that are seen once, in turn; keys in order of first appearance."""

    def __init__(self, key: Callable[[TensorResult | NotCompared], tuple[str, ...]]) -> None:
        self._key = key
        self.by_key: dict[tuple[str, ...], Counter[Verdict]] = {}

    def add(self, item: TensorResult | NotCompared) -> None:
        self.by_key.setdefault(self._key(item), Counter())[item.verdict] += 1

    def total(self) -> Counter[Verdict]:
        return sum(self.by_key.values(), Counter())


def by_format(item: TensorResult | NotCompared) -> tuple[str, ...]:
    """Family, format and lane: the grouping of counts in short reports."""
    return (item.family, item.case.format, item.case.lane) if item.case else (item.family, "", "")


def total(results: Results) -> Counter[Verdict]:
    return Counter(item.verdict for item in _judged(results))


def _judged(results: Results) -> Iterator[TensorResult | NotCompared]:
    yield from results.tensors
    yield from results.not_compared


def counts_sentence(counts: Counter[Verdict]) -> str:
    """Counts in words, the worst first: "3 FAIL, 1 WARN, 20 PASS"."""
    return ", ".join(f"{counts[v]} {v}" for v in ORDER if counts[v]) or "nothing judged"


def counted_sentence(results: Results) -> str:
    """What counts are of, where they are not of tensors alone."""
    tensors, others = len(results.tensors), len(results.not_compared)
    return f"counted: {counted(tensors, 'tensor')}, and {counted(others, 'result')} not compared" if others else ""


@dataclass(frozen=True)
class Unsupported:
    """Results that are not there for one reason, counted by label of the dump and by family."""

    reason: str
    labels: Counter[str]
    families: Counter[str]

    @property
    def who(self) -> str:
        """How many results of which dump: "4 × h200, 2 × cpu"."""
        return ", ".join(f"{n} × {messages.visible(label)}" for label, n in self.labels.most_common())

    @property
    def what(self) -> str:
        return ", ".join(messages.visible(family) for family, _ in self.families.most_common())


def unsupported(results: Results) -> list[Unsupported]:
    """Why cases did not run, the most frequent reason first."""
    found: dict[str, list[NotCompared]] = {}
    for item in results.not_compared:
        if item.verdict is Verdict.UNSUPPORTED:
            found.setdefault(item.reason, []).append(item)
    groups = [Unsupported(reason, Counter(i.label for i in items), Counter(i.family for i in items)) for reason, items in found.items()]
    return sorted(groups, key=lambda group: -group.labels.total())
