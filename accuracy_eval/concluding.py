"""What many results come to: their verdicts, labels and scopes counted, and the verdict and exit code of a whole comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from accuracy_eval.records import NotCompared, TensorResult, Verdict


@dataclass
class Tally:
    """What a verdict over many results asks of them, in counts: verdicts of tensors, labels and scopes of sides."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, results: Iterable[TensorResult]) -> Self:
        found = cls()
        for result in results:
            found.add(result)
        return found

    def add(self, result: TensorResult) -> None:
        self.count(result.verdict, (s.label for s in result.sides), (s.scope for s in result.sides))

    def count(self, verdict: Verdict, labels: Iterable[str], scopes: Iterable[str]) -> None:
        """Add one result by its verdict and the labels and scopes of its sides."""
        self.verdicts[verdict] += 1
        self.labels.update(labels)
        self.scopes.update(scopes)

    @property
    def nothing_judged(self) -> bool:
        return set(self.verdicts) <= {Verdict.INCONCLUSIVE}

    def unjudged(self, labels: Iterable[str]) -> list[str]:
        """The dumps of which no tensor was judged."""
        return [label for label in labels if not self.labels[label]]


def conclusion(tally: Tally, not_compared: Iterable[NotCompared], labels: Iterable[str]) -> tuple[Verdict, int]:
    """Verdict and exit code of a whole comparison: the worst of all; INCONCLUSIVE and 2 where no tensor was judged.

    Where nothing of some dump was judged the whole does not pass: what the others gave says nothing of it.
    """
    if tally.nothing_judged:
        return Verdict.INCONCLUSIVE, 2
    verdicts = {*tally.verdicts, *(n.verdict for n in not_compared)}
    if tally.unjudged(labels) and not any(v.exit_code for v in verdicts):
        return Verdict.INCONCLUSIVE, 2
    return max(verdicts, key=lambda v: v.severity), max(v.exit_code for v in verdicts)
