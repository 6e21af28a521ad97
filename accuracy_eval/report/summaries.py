"""What all pairs of two dumps, and all tensors of a dump, say together: who is off, how often, how far two right ones are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from accuracy_eval import messages
from accuracy_eval.errors import counted
from accuracy_eval.records import Attribution, Pair, TensorResult, Verdict
from accuracy_eval.report.counts import QUIET, over

FEW_STEPS = 16  # by which right results differ that are not near zero
ATTRIBUTION_RANK = (
    Attribution.IDENTICAL, Attribution.EQUIVALENT, Attribution.DIFFERENT_CONTRACTS, Attribution.NOT_COMPARABLE, Attribution.UNDETERMINED,
    Attribution.OFF_CONTRACT, Attribution.A_OFF, Attribution.B_OFF, Attribution.BOTH_OFF,
)  # fmt: skip


def pair_rank(pair: Pair) -> tuple[int, int]:
    """What is worse sorts last."""
    return pair.verdict.severity, ATTRIBUTION_RANK.index(pair.attribution)


@dataclass(frozen=True)
class PairSummary:
    """All pairs of two dumps: the worst verdict, its attribution, how often each attribution came.

    apart  how far those are apart that differ and are right on both sides: "bfloat16 in 12 % of elements, by at most 1 ulp; …"; or ""
    why    why pairs that pass were not held against each other, each reason once
    """

    a: str
    b: str
    verdict: Verdict
    who: str
    attributions: Counter[str]
    example: Pair
    apart: str
    why: tuple[str, ...] = ()

    @property
    def nobody_off(self) -> bool:
        return self.example.verdict in QUIET or self.example.attribution in (Attribution.IDENTICAL, Attribution.EQUIVALENT)

    @property
    def named(self) -> str:
        """Who is off, by name: of an output off its contract the sentence says whose; of pairs that pass and are not compared, nobody."""
        if self.verdict is Verdict.PASS and self.example.attribution in (Attribution.NOT_COMPARABLE, Attribution.DIFFERENT_CONTRACTS):
            return "nobody is off"
        return messages.visible(self.example.sentence) if self.example.attribution is Attribution.OFF_CONTRACT else self.who

    @property
    def answers(self) -> str:
        return _answers(self.attributions)


def _answers(attributions: Mapping[str, int], why: str = "") -> str:
    """How often each attribution came, the most frequent first: "44 same bytes, 15 equivalent"; `why` some are not comparable."""
    noted = {messages.ATTRIBUTION_WORDS[Attribution.NOT_COMPARABLE]: f" ({why})"} if why else {}
    ordered = sorted(attributions.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} {who}{noted.get(who, '')}" for who, n in ordered)


def pair_summaries(tensors: Iterable[TensorResult]) -> dict[tuple[str, str], PairSummary]:
    """One summary per ordered pair of labels that occurs."""
    return over(Pairs(), tensors).summaries()


class Pairs:
    """All pairs of results that are seen once, in turn."""

    def __init__(self) -> None:
        self._worst: dict[tuple[str, str], Pair] = {}
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        self._apart: dict[tuple[str, str], _Apart] = {}
        self._why: dict[tuple[str, str], dict[str, None]] = {}

    def add(self, result: TensorResult) -> None:
        for pair in result.pairs:
            key = pair.a, pair.b
            self._worst[key] = max(self._worst.get(key, pair), pair, key=pair_rank)
            self._counts.setdefault(key, Counter())[messages.who_is_off(pair)] += 1
            self._apart.setdefault(key, _Apart()).add(result, pair)
            if pair.attribution is Attribution.NOT_COMPARABLE and pair.verdict in QUIET:
                self._why.setdefault(key, {})[messages.visible(pair.sentence)] = None

    def summaries(self) -> dict[tuple[str, str], PairSummary]:
        """One summary per ordered pair of labels that occurs."""
        return {
            (a, b): PairSummary(
                a, b, worst.verdict, messages.who_is_off(worst), self._counts[a, b], worst, self._apart[a, b].text,
                tuple(self._why.get((a, b), ())),
            )
            for (a, b), worst in self._worst.items()
        }  # fmt: skip


@dataclass
class _Difference:
    """How far right results of one format are apart: elements that differ, of how many; the largest difference in steps and in norms.

    NaN equals NaN in all of these, whatever its code.
    """

    differ: int = 0
    count: int = 0
    steps: float = 0
    norm: float = 0.0

    def add(self, metrics: Mapping[str, Any]) -> None:
        self.differ += metrics.get("mismatch_count") or 0
        self.count += metrics["count"]
        self.steps = max(self.steps, metrics.get("ulp_max") or 0)
        self.norm = max(self.norm, metrics.get("rel_fro") or 0)


class _Apart:
    """By how much two right sides differ, by the format they compute in: the share of elements, the largest difference, the use of budgets.

    The difference is in steps of the format, or in parts of a tensor's norm where results near zero make steps say nothing.
    """

    def __init__(self) -> None:
        self._formats: dict[str, _Difference] = {}
        self._used = 0.0

    def add(self, result: TensorResult, pair: Pair) -> None:
        if pair.attribution is Attribution.EQUIVALENT and pair.metrics.get("count"):
            sides = [s for s in result.sides if s.label in (pair.a, pair.b)]
            fmt = "tfloat32" if result.case.format == "tfloat32" else sides[0].format  # stored as float32
            self._formats.setdefault(fmt, _Difference()).add(pair.metrics)
            self._used = max([self._used, *(s.metrics.get("budget_max") or 0.0 for s in sides)])

    @property
    def text(self) -> str:
        texts = []
        for fmt, d in self._formats.items():
            in_steps, in_norms = f"{messages.number(float(d.steps))} ulp", f"{messages.number(d.norm, 2)} of a tensor's norm"
            largest = in_steps if d.steps <= FEW_STEPS else in_norms
            how = f"{_percent(d.differ / d.count)} of elements, by at most {largest}" if d.differ else "codes of NaN alone"
            texts.append(f"{fmt} in {how}")
        budget = [f"all within {_percent(self._used)} of their budgets"] if self._used else []
        return "; ".join([*texts, *budget])


def _percent(share: float) -> str:
    """To two digits; what is not all does not read 100 %."""
    return f"{min(100 * share, 99.0 if share < 1 else 100.0):.0f} %" if share >= 0.1 else f"{messages.number(100 * share, 2)} %"


def dump_summaries(tensors: Iterable[TensorResult]) -> dict[str, Counter[Verdict]]:
    """Verdicts of every dump against the reference, by label, its candidates together."""
    counts: dict[str, Counter[Verdict]] = {}
    for result in tensors:
        for side in result.sides:
            counts.setdefault(side.label, Counter())[side.verdict] += 1
    return counts


def attribution_sentence(tensors: Iterable[TensorResult]) -> str:
    """`Attributions.sentence` of these results."""
    return over(Attributions(), tensors).sentence()


class Attributions:
    """Who is off over all results, which are seen once, in turn."""

    def __init__(self) -> None:
        self._pairs = Pairs()
        self._makers: dict[str, Counter[Verdict]] = {}  # verdicts against the reference, by label and candidate
        self._held: Counter[frozenset[str]] = Counter()  # tensors by the labels of the dumps that have them
        self._labels: dict[str, None] = {}

    def add(self, result: TensorResult) -> None:
        self._pairs.add(result)
        self._held[frozenset(s.label for s in result.sides)] += 1
        for side in result.sides:
            self._labels[side.label] = None
            self._makers.setdefault(messages.of_candidate(side.label, result.candidate), Counter())[side.verdict] += 1

    def pairs(self) -> dict[tuple[str, str], PairSummary]:
        """One summary per ordered pair of labels that occurs."""
        return self._pairs.summaries()

    def sentence(self) -> str:
        """Who is off, in one sentence over all pairs: "h200 is off in 3 of 11 comparisons of h200 and cpu: <the worst one's sentence>".

        Others say how far two dumps are apart where both are right, and of how many tensors that is, where dumps do not hold the same ones.
        """
        pairs = self.pairs()
        first, why = _attribution(pairs, self._makers), _why_not(pairs)
        others = [text for text in (_how_far(pairs), "" if why in first else f"Not comparable: {why}.", self._in_part()) if text]
        return " ".join([first if not others or first.endswith(".") else f"{first}.", *others])

    def _in_part(self) -> str:
        """How many tensors all dumps hold: "23 of 67 tensors are in both dumps, 44 in h200 alone."; "" where all do."""
        total, common = self._held.total(), sum(n for labels, n in self._held.items() if len(labels) == len(self._labels))
        if common == total:
            return ""
        dumps = "both dumps" if len(self._labels) == 2 else f"all {len(self._labels)} dumps"
        alone = [f"{n} in {messages.visible(label)} alone" for label in self._labels if (n := self._held[frozenset([label])])]
        both = f"{common} of {counted(total, 'tensor')} {'is' if common == 1 else 'are'} in {dumps}"
        return f"{', '.join([both, *alone])}."


def _how_far(summaries: Mapping[tuple[str, str], PairSummary]) -> str:
    """How far the two dumps are apart where both are right; "" for more dumps, whose pairs have lines of their own."""
    texts = [f"Equivalent ones differ: {p.apart}." for p in summaries.values() if p.apart]
    return texts[0] if len(summaries) == 1 and texts else ""


def _why_not(summaries: Mapping[tuple[str, str], PairSummary]) -> str:
    """Why passing results of the two dumps were not held against each other; "" for more dumps, or where all were."""
    texts = ["; or ".join(p.why) for p in summaries.values()]
    return texts[0] if len(texts) == 1 else ""


def _attribution(summaries: Mapping[tuple[str, str], PairSummary], counts: Mapping[str, Counter[Verdict]]) -> str:
    bad = [f"{who} fails {c[Verdict.FAIL]} of {c.total()}" for who, c in counts.items() if c[Verdict.FAIL]]
    if not summaries:
        if not counts:
            return "Nothing was judged."
        return (", ".join(bad) if bad else "No dump fails") + " against the reference; no pair of dumps was compared."
    worst = max(summaries.values(), key=lambda s: pair_rank(s.example))
    both = f"{messages.visible(worst.a)} and {messages.visible(worst.b)}"
    if worst.nobody_off:
        every = sum((s.attributions for s in summaries.values()), Counter[str]())
        of = f"{counted(every.total(), 'comparison')} of {both if len(summaries) == 1 else f'{len(summaries)} pairs of dumps'}"
        if bad:  # results that have no counterpart in the other dump, such as a kernel of one's own
            return f"{', '.join(bad)} against the reference; in {of} nobody is off."
        near = f"; for example: {messages.visible(worst.example.sentence)}" if worst.example.attribution is Attribution.UNDETERMINED else ""
        return f"Nobody is off in {of}: {_answers(every, _why_not(summaries))}{near}."
    who = worst.who[:1].upper() + worst.who[1:] if worst.who in _GENERAL else worst.who
    example = messages.visible(worst.example.sentence) or "see the findings"
    of = f"{counted(worst.attributions.total(), 'comparison')} of {both}"
    return f"{who} in {worst.attributions[worst.who]} of {of}{_among(summaries)}; for example: {example}"


def _among(summaries: Mapping[tuple[str, str], PairSummary]) -> str:
    """Behind the worst pair of several: how many there are, and in how many nobody is off."""
    if len(summaries) == 1:
        return ""
    return f", the worst of {len(summaries)} pairs of dumps ({sum(s.nobody_off for s in summaries.values())} with nobody off)"


_GENERAL = frozenset(w for w in messages.ATTRIBUTION_WORDS.values() if "{" not in w)  # words that begin a sentence, not a label
