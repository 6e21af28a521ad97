"""Scale factors in one table: for each recipe how many are the same bytes, and what differs where they are not.

A row is one recipe, one dump (with its candidate) and what it was held against: the recipe's own scales, or another dump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from accuracy_eval.messages import REFERENCE, of_candidate, visible
from accuracy_eval.records import Pair, ScaleFacts, Side, TensorResult
from accuracy_eval.report.counts import over

_Compared = tuple[int, int, ScaleFacts]
"""Scales compared, those that differ, and what is said of them."""


@dataclass(frozen=True)
class ScaleAgreement:
    """What all scale factors of a recipe say of one dump against another, or against the reference.

    tensors, scales   compared
    differing         whose bytes are not the same
    steps             (exponent of actual less that of expected, how many), by step; NaN apart
    one_sided_nan     NaN on one side alone
    max_rel           largest relative difference of finite ones; None without one
    rule, expected_rule   rules that give every one of these tensors, joined by " or "; "" where none does
    """

    recipe: str
    actual: str
    expected: str
    tensors: int
    scales: int
    differing: int
    steps: tuple[tuple[int, int], ...]
    one_sided_nan: int
    max_rel: float | None
    rule: str
    expected_rule: str

    @property
    def sentence(self) -> str:
        """The difference, named; "" where there is none."""
        if not self.differing:
            return ""
        steps = ", ".join(f"exponent {step:+d} ({count})" for step, count in self.steps if step)
        rules = f"rule {self.rule or 'unknown'}, expected {self.expected_rule or 'unknown'}"
        nan = f"NaN on one side {self.one_sided_nan}" if self.one_sided_nan else ""
        return "; ".join(part for part in (steps or ("" if nan else "same exponents"), nan, rules) if part)


def scale_agreements(tensors: Iterable[TensorResult]) -> list[ScaleAgreement]:
    """`Scales.agreements` of these results."""
    return over(Scales(), tensors).agreements()


class Scales:
    """The scale factors of results that are seen once, in turn."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[_Compared]] = {}

    def add(self, t: TensorResult) -> None:
        for actual, expected, subject in _subjects(t):
            if subject.scales is not None:
                scales, differing = (subject.metrics.get(name) or 0 for name in ("count", "mismatch_count"))
                self._found.setdefault((t.case.recipe, actual, expected), []).append((scales, differing, subject.scales))

    def agreements(self) -> list[ScaleAgreement]:
        """All rows, by recipe: each dump against the recipe's scales, then each pair."""
        ordered = sorted(self._found.items(), key=lambda item: (item[0][0], item[0][2] != REFERENCE, item[0][1:]))
        return [_agreement(*key, of) for key, of in ordered]


def _subjects(t: TensorResult) -> Iterator[tuple[str, str, Side | Pair]]:
    for side in t.sides:
        yield of_candidate(side.label, t.candidate), REFERENCE, side
    for pair in t.pairs:
        yield of_candidate(pair.a, t.candidate), of_candidate(pair.b, t.candidate), pair


def _agreement(recipe: str, actual: str, expected: str, of: Sequence[_Compared]) -> ScaleAgreement:
    scales, differing, facts = zip(*of, strict=True)
    steps: Counter[int] = Counter()
    for f in facts:
        steps.update(dict(f.steps))
    return ScaleAgreement(
        recipe, actual, expected, len(of), sum(scales), sum(differing), tuple(sorted(steps.items())),
        sum(f.nan_actual + f.nan_expected for f in facts), max((f.max_rel for f in facts if f.max_rel is not None), default=None),
        _common(f.rule for f in facts), _common(f.expected_rule for f in facts),
    )  # fmt: skip


def _common(rules: Iterable[str]) -> str:
    """The rules that all of these name."""
    first, *others = [r.split(" or ") for r in rules]
    return " or ".join(r for r in first if all(r in other for other in others))


def scale_lines(rows: Sequence[ScaleAgreement]) -> list[str]:
    """One line of all that agree, one for each recipe and dump that does not; none without scale factors."""
    off = [r for r in rows if r.differing]
    if not rows:
        return []
    recipes, scales = len({r.recipe for r in rows}), sum(r.scales for r in rows)
    agree = f"scale factors of {recipes} recipes: {scales - sum(r.differing for r in rows)} of {scales} the same bytes ({_whose(rows)})"
    against = [(r, f"{r.actual} against {'its rule' if r.expected == REFERENCE else r.expected}") for r in off]
    return [visible(agree), *(visible(f"{r.recipe}, {who}: {r.differing} of {r.scales} differ; {r.sentence}") for r, who in against)]


def _whose(rows: Sequence[ScaleAgreement]) -> str:
    """Whose scales were held against what: "h200 against its rules", "cpu and h200 against their rules and each other"."""
    makers = list(dict.fromkeys(name for r in rows for name in (r.actual, r.expected) if name != REFERENCE))
    rules = f"{'its' if len(makers) == 1 else 'their'} rules" if any(r.expected == REFERENCE for r in rows) else ""
    each_other = "each other" if any(r.expected != REFERENCE for r in rows) else ""
    return f"{' and '.join(makers)} against {' and '.join(filter(None, (rules, each_other)))}"
