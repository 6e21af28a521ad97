"""What all pairs of two dumps, and all tensors of a dump, say together: who is off, how often, how far two right ones are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from accuracy_eval import messages
from accuracy_eval.errors import counted
from accuracy_eval.records import Attribution, Pair, Side, TensorResult, Verdict
from accuracy_eval.report.counts import QUIET

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
    """

    a: str
    b: str
    verdict: Verdict
    who: str
    attributions: Counter[str]
    example: Pair
    apart: str

    @property
    def named(self) -> str:
        """Who is off, by name: of an output off its contract the sentence says whose."""
        return messages.visible(self.example.sentence) if self.example.attribution is Attribution.OFF_CONTRACT else self.who

    @property
    def answers(self) -> str:
        """How often each attribution came, the most frequent first: "44 same bytes, 15 equivalent"."""
        return ", ".join(f"{n} {who}" for who, n in sorted(self.attributions.items(), key=lambda item: (-item[1], item[0])))


def pair_summaries(tensors: Iterable[TensorResult]) -> dict[tuple[str, str], PairSummary]:
    """One summary per ordered pair of labels that occurs."""
    groups: dict[tuple[str, str], list[tuple[TensorResult, Pair]]] = {}
    for result in tensors:
        for pair in result.pairs:
            groups.setdefault((pair.a, pair.b), []).append((result, pair))
    summaries = {}
    for (a, b), found in groups.items():
        pairs = [pair for _, pair in found]
        worst = max(pairs, key=pair_rank)
        counts = Counter(messages.who_is_off(p) for p in pairs)
        summaries[a, b] = PairSummary(a, b, worst.verdict, messages.who_is_off(worst), counts, worst, _apart(found))
    return summaries


def _apart(found: Iterable[tuple[TensorResult, Pair]]) -> str:
    """By how much two right sides differ, by format: the share of elements and the largest difference; and how much of the budgets that is.

    The difference is in steps of the format, or in parts of a tensor's norm where results near zero make steps say nothing.
    """
    formats: dict[str, list[Pair]] = {}
    used = []
    for result, pair in found:
        sides = [s for s in result.sides if s.label in (pair.a, pair.b)]
        if pair.attribution is Attribution.EQUIVALENT and pair.metrics.get("count"):
            formats.setdefault(sides[0].format, []).append(pair)
            used += [s.metrics.get("budget_max") or 0.0 for s in sides]
    texts = []
    for fmt, pairs in formats.items():
        differ, count = (sum(p.metrics.get(n) or 0 for p in pairs) for n in ("mismatch_count", "count"))
        steps, norm = (max(p.metrics.get(n) or 0 for p in pairs) for n in ("ulp_max", "rel_fro"))
        largest = f"{messages.number(float(steps))} ulp" if steps <= FEW_STEPS else f"{messages.number(norm, 2)} of a tensor's norm"
        texts.append(f"{fmt} in {_percent(differ / count)} of elements, by at most {largest}")
    budget = [f"all within {_percent(max(used))} of their budgets"] if any(used) else []
    return "; ".join([*texts, *budget])


def _percent(share: float) -> str:
    """To two digits; what is not all does not read 100 %."""
    return f"{min(100 * share, 99.0 if share < 1 else 100.0):.0f} %" if share >= 0.1 else f"{messages.number(100 * share, 2)} %"


def side_summaries(tensors: Iterable[TensorResult]) -> dict[str, Counter[Verdict]]:
    """Verdicts of every dump against the reference, by label and, where one holds several, candidate."""
    return _side_verdicts(tensors, lambda side, result: messages.of_candidate(side.label, result.candidate))


def dump_summaries(tensors: Iterable[TensorResult]) -> dict[str, Counter[Verdict]]:
    """Verdicts of every dump against the reference, by label, its candidates together."""
    return _side_verdicts(tensors, lambda side, result: side.label)


def _side_verdicts(tensors: Iterable[TensorResult], key: Callable[[Side, TensorResult], str]) -> dict[str, Counter[Verdict]]:
    counts: dict[str, Counter[Verdict]] = {}
    for result in tensors:
        for side in result.sides:
            counts.setdefault(key(side, result), Counter())[side.verdict] += 1
    return counts


def attribution_sentence(tensors: Sequence[TensorResult]) -> str:
    """Who is off, in one sentence over all pairs: "h200 is off in 3 of 11 comparisons of h200 and cpu: <the worst one's sentence>".

    Others say how far two dumps are apart where both are right, and of how many tensors that is, where dumps do not hold the same ones.
    """
    first, *others = filter(None, [_attribution(tensors), _how_far(tensors), _in_part(tensors)])
    return " ".join([first if not others or first.endswith(".") else f"{first}.", *others])


def _how_far(tensors: Sequence[TensorResult]) -> str:
    """How far the two dumps are apart where both are right; "" for more dumps, whose pairs have lines of their own."""
    pairs = pair_summaries(tensors).values()
    texts = [f"Equivalent ones differ: {p.apart}." for p in pairs if p.apart]
    return texts[0] if len(pairs) == 1 and texts else ""


def _in_part(tensors: Sequence[TensorResult]) -> str:
    """How many tensors all dumps hold: "23 of 67 tensors are in both dumps, 44 in h200 alone."; "" where all do."""
    held = [frozenset(s.label for s in t.sides) for t in tensors]
    labels = list(dict.fromkeys(s.label for t in tensors for s in t.sides))
    common = sum(len(h) == len(labels) for h in held)
    if common == len(tensors):
        return ""
    dumps = "both dumps" if len(labels) == 2 else f"all {len(labels)} dumps"
    alone = [f"{n} in {messages.visible(label)} alone" for label in labels if (n := held.count(frozenset([label])))]
    both = f"{common} of {counted(len(tensors), 'tensor')} {'is' if common == 1 else 'are'} in {dumps}"
    return f"{', '.join([both, *alone])}."


def _attribution(tensors: Sequence[TensorResult]) -> str:
    summaries, counts = pair_summaries(tensors), side_summaries(tensors)
    bad = [f"{who} fails {c[Verdict.FAIL]} of {c.total()}" for who, c in counts.items() if c[Verdict.FAIL]]
    if not summaries:
        if not counts:
            return "Nothing was judged."
        return (", ".join(bad) if bad else "No dump fails") + " against the reference; no pair of dumps was compared."
    worst = max(summaries.values(), key=lambda s: pair_rank(s.example))
    plural = "" if worst.attributions.total() == 1 else "s"
    of = f"{worst.attributions.total()} comparison{plural} of {messages.visible(worst.a)} and {messages.visible(worst.b)}"
    if worst.example.verdict in QUIET or worst.example.attribution in ATTRIBUTION_RANK[:2]:
        more = "" if len(summaries) == 1 else f"; the other {len(summaries) - 1} pairs of dumps are no worse"
        if bad:  # results that have no counterpart in the other dump, such as a kernel of one's own
            return f"{', '.join(bad)} against the reference; in {of} nobody is off."
        return f"Nobody is off in {of}: {worst.answers}{more}."
    who = worst.who[:1].upper() + worst.who[1:] if worst.who in _GENERAL else worst.who
    example = messages.visible(worst.example.sentence) or "see the findings"
    return f"{who} in {worst.attributions[worst.who]} of {of}; for example: {example}"


_GENERAL = frozenset(w for w in messages.ATTRIBUTION_WORDS.values() if "{" not in w)  # words that begin a sentence, not a label
