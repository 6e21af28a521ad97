"""What a reader must see first: findings, counts, who is off how often, what to run next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from accuracy_eval import messages
from accuracy_eval.errors import counted
from accuracy_eval.records import Attribution, Diagnosis, NotCompared, Pair, Results, Side, TensorResult, Verdict
from accuracy_eval.report.rows import EXPLAINS, Row, reproduce, reproduce_element, tensor_rows

ORDER = tuple(sorted(Verdict, key=lambda v: -v.severity))  # worst first
QUIET = (Verdict.PASS, Verdict.UNSUPPORTED)  # counted, not findings

NEXT_BY_VERDICT = {
    Verdict.INPUTS_DIFFER: "dump both again with one suite and one accuracy-eval version, then compare again",
    Verdict.MISSING: "dump the case there too (--resume completes a dump that broke off), or compare what both hold: --op, --case",
    Verdict.ERROR: "read the error, mend it, run the same accuracy-eval dump command with --resume, then compare again",
    Verdict.INCONCLUSIVE: "compare it beside a dump that holds what the reason names",
}
MISSING_CANDIDATE = "run the candidate there (--candidate, --plugin), or take it out of what the suite expects"


@dataclass(frozen=True)
class Finding:
    """One tensor (or one case not compared) that a person must look at. All texts are single lines.

    what      verdict's reason: how much, where, against which limit
    who       who is off, in words; where nobody is named, the label of the dump the reason speaks of
    source    where the limit comes from
    cause     named causes with their sentence
    steps     what to do next, in this order: commands (`is_command`), or in words where no command helps
    """

    verdict: Verdict
    case_id: str
    family: str
    candidate: str
    tensor: str
    who: str
    what: str
    source: str
    cause: str
    steps: tuple[str, ...]
    row: Row

    @property
    def title(self) -> str:
        """Case, tensor and candidate in one line."""
        return messages.of_candidate(self.case_id + (f" {self.tensor}" if self.tensor else ""), self.candidate)


def findings(results: Results) -> list[Finding]:
    """All findings, the worst verdict first, otherwise in the order of the results."""
    found = [_of_tensor(results, t) for t in results.tensors if t.verdict not in QUIET]
    found += [_of_skipped(results, n) for n in results.not_compared if n.verdict not in QUIET]
    return sorted(found, key=lambda f: -f.verdict.severity)


def alike(found: Iterable[Finding]) -> list[list[Finding]]:
    """Findings that say the same of several cases together, in the order of the first of each."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for f in found:
        groups.setdefault((f.verdict, f.who, f.what, f.cause), []).append(f)
    return list(groups.values())


def _of_tensor(results: Results, result: TensorResult) -> Finding:
    rows = list(tensor_rows(result))
    sides = [r for r in rows if isinstance(r.subject, Side)]
    pairs = [r for r in rows if isinstance(r.subject, Pair)]
    # the side says how much against which limit; a verdict only a pair has is told by the pair
    speaker = next((r for r in (*sides, *pairs) if r.verdict == result.verdict), None) or max(
        rows, key=lambda r: r.verdict.severity, default=None
    )
    if speaker is None:
        speaker = Row(
            NotCompared(result.case_id, result.family, result.candidate, "", result.verdict, "no side and no pair was judged", result.case)
        )
    pair = _worst_pair(result)
    named = who(result) if pair is not None and pair.attribution in _SAYS_WHO else _who_of_sides(result)
    gate = messages.deciding_gate(speaker.gates)
    cause = _causes_by_side(result) or _causes(speaker.diagnoses or (pair.diagnoses if pair else ()))
    return Finding(
        result.verdict, result.case_id, result.family, result.candidate, result.tensor, named or _subject(speaker),
        speaker.reason, messages.visible(gate.source) if gate else "", cause, next_steps(results, result), speaker,
    )  # fmt: skip


def _causes(diagnoses: Sequence[Diagnosis], whose: str = "") -> str:
    """Codes and sentences, `whose` behind each."""
    told = [d for d in diagnoses if d.code != "not-explained"] or diagnoses  # beside a named cause that goes without saying
    return "; ".join(f"{messages.visible(d.code)}: {messages.visible(d.sentence)}{whose}" for d in told)


def _causes_by_side(result: TensorResult) -> str:
    """What is said of each side that fails, with its label, where that is not the same of all; "" where it is."""
    said: dict[str, list[Side]] = {}
    for s in result.sides:
        if s.verdict is Verdict.FAIL and s.diagnoses:
            said.setdefault(_causes(s.diagnoses), []).append(s)
    if len(said) < 2:
        return ""
    return "; ".join(_causes(of[0].diagnoses, f" ({', '.join(messages.visible(s.label) for s in of)})") for of in said.values())


def _subject(row: Row) -> str:
    """Whom a row speaks of where nobody is named: of a pair that nothing judges, both."""
    return messages.visible(f"{row.actual} or {row.expected}" if isinstance(row.subject, Pair) else row.actual)


def is_command(step: str) -> bool:
    """Whether a step is a command to run; others are words."""
    return step.startswith("accuracy-eval ")


def next_steps(results: Results, result: TensorResult | NotCompared) -> tuple[str, ...]:
    """What to do about a result: the command that looks at this case alone, and the one that shows its worst element; in words what to do
    about a case that was not compared.

    Of a product that failed the first also asks which arithmetic made the bits; where that was asked already, the second stands alone.
    """
    if isinstance(result, NotCompared):
        return tuple(filter(None, [_advice(result)]))
    wrong = (row for row in tensor_rows(result) if row.worst and row.verdict is not Verdict.PASS)
    element = next((command for row in wrong if (command := reproduce_element(results, row, row.worst[0].index))), "")
    asks = result.family == "gemm" and result.verdict is Verdict.FAIL
    if asks and element and any(d.code in EXPLAINS for s in result.sides for d in s.diagnoses):
        return (element,)
    return tuple(filter(None, [reproduce(results, result.case_id) + (" --explain" if asks else ""), element]))


def who(result: TensorResult) -> str:
    """Who is off, in words: the worst pair's attribution, else the sides that failed; "" where nobody is."""
    pair = _worst_pair(result)
    if pair is not None and (pair.attribution in _SAYS_WHO or pair.verdict in QUIET):
        return messages.who_is_off(pair)
    return _who_of_sides(result) or (messages.who_is_off(pair) if pair else "")


def _worst_pair(result: TensorResult) -> Pair | None:
    return max(result.pairs, key=_pair_rank, default=None)


def _who_of_sides(result: TensorResult) -> str:
    bad = [s for s in result.sides if s.verdict is Verdict.FAIL]
    off = [messages.of_candidate(s.label, result.candidate) for s in bad if not s.off_contract]
    said = [f"{', '.join(off)} {'is' if len(off) == 1 else 'are'} off"] if off else []
    said += [messages.kept_contract(s, messages.of_candidate(s.label, result.candidate)) for s in bad if s.off_contract]
    return "; ".join(said)


def _of_skipped(results: Results, item: NotCompared) -> Finding:
    row = Row(item)
    return Finding(
        item.verdict, item.case_id, item.family, item.candidate, "", messages.visible(item.label), row.reason, "", "",
        next_steps(results, item), row,
    )  # fmt: skip


def _advice(item: NotCompared) -> str:
    if item.verdict is Verdict.MISSING and item.candidate not in messages.USUAL_CANDIDATES:
        return MISSING_CANDIDATE
    return NEXT_BY_VERDICT.get(item.verdict, "")


_SAYS_WHO = (Attribution.A_OFF, Attribution.B_OFF, Attribution.BOTH_OFF, Attribution.NOT_COMPARABLE, Attribution.DIFFERENT_CONTRACTS)
_ATTRIBUTION_RANK = (
    Attribution.IDENTICAL, Attribution.EQUIVALENT, Attribution.DIFFERENT_CONTRACTS, Attribution.NOT_COMPARABLE, Attribution.UNDETERMINED,
    Attribution.OFF_CONTRACT, Attribution.A_OFF, Attribution.B_OFF, Attribution.BOTH_OFF,
)  # fmt: skip


def _pair_rank(pair: Pair) -> tuple[int, int]:
    return pair.verdict.severity, _ATTRIBUTION_RANK.index(pair.attribution)


def passing_limits(results: Results) -> list[str]:
    """For every gate that was broken, the limit nearest to its own that all values would have kept, where that is within NEAR times of it;
    a hint, never a reason to loosen it."""
    broken: dict[tuple[str, str, str, float], list[float]] = {}
    for t in results.tensors:
        for s in t.sides:
            for g in s.gates:
                if g.passed is False and g.value is not None:
                    broken.setdefault((g.gate, g.metric, g.comparison, g.limit), []).append(g.value)
    lines = []
    for (gate, metric, comparison, limit), values in broken.items():
        if comparison == "==":
            most, only = messages.exact(max(values, key=abs)), messages.exact(limit)
            lines.append(f"gate {messages.visible(gate)}: nothing but {metric} == {only} passes; found up to {most}")
            continue
        upper = comparison in ("<=", "<")
        worst = _outward(max(values) if upper else min(values), upper)
        if not _near(worst, limit, upper):
            continue
        would = f"{metric} {'<=' if upper else '>='} {messages.number(worst, 3)} would pass"
        lines.append(f"gate {messages.visible(gate)}: {would}, the limit is {messages.number(limit)} (broken by {len(values)})")
    return lines


NEAR = 10.0  # a limit broken by more than this is broken by a fault, and no other limit is the answer


def _near(value: float, limit: float, upper: bool) -> bool:
    """Whether a value beyond its limit is within NEAR times of it; where that means nothing (signs, limits of 0), it is taken for near."""
    if not math.isfinite(value):
        return False
    return min(value, limit) <= 0 or (value <= NEAR * limit if upper else limit <= NEAR * value)


def _outward(value: float, up: bool) -> float:
    """`value` with three digits, rounded so that it keeps the limit it becomes."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return (math.ceil if up else math.floor)(round(value / unit, 9)) * unit


def count_verdicts(
    results: Results, key: Callable[[TensorResult | NotCompared], tuple[str, ...]]
) -> dict[tuple[str, ...], Counter[Verdict]]:
    """Verdicts of tensors and of cases not compared, counted by `key`, keys in order of first appearance."""
    counts: dict[tuple[str, ...], Counter[Verdict]] = {}
    for item in _judged(results):
        counts.setdefault(key(item), Counter())[item.verdict] += 1
    return counts


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
    tensors, cases = len(results.tensors), len(results.not_compared)
    return f"counted: {counted(tensors, 'tensor')}, and {counted(cases, 'case')} not compared" if cases else ""


@dataclass(frozen=True)
class Unsupported:
    """Cases that did not run for one reason, counted by label of the dump and by family."""

    reason: str
    labels: Counter[str]
    families: Counter[str]

    @property
    def who(self) -> str:
        """How many cases of which dump: "4 × h200, 2 × cpu"."""
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


FEW_STEPS = 16  # by which right results differ that are not near zero


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
        worst = max(pairs, key=_pair_rank)
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
    worst = max(summaries.values(), key=lambda s: _pair_rank(s.example))
    plural = "" if worst.attributions.total() == 1 else "s"
    of = f"{worst.attributions.total()} comparison{plural} of {messages.visible(worst.a)} and {messages.visible(worst.b)}"
    if worst.example.verdict in QUIET or worst.example.attribution in _ATTRIBUTION_RANK[:2]:
        more = "" if len(summaries) == 1 else f"; the other {len(summaries) - 1} pairs of dumps are no worse"
        if bad:  # results that have no counterpart in the other dump, such as a kernel of one's own
            return f"{', '.join(bad)} against the reference; in {of} nobody is off."
        return f"Nobody is off in {of}: {worst.answers}{more}."
    who = worst.who[:1].upper() + worst.who[1:] if worst.who in _GENERAL else worst.who
    example = messages.visible(worst.example.sentence) or "see the findings"
    return f"{who} in {worst.attributions[worst.who]} of {of}; for example: {example}"


_GENERAL = frozenset(w for w in messages.ATTRIBUTION_WORDS.values() if "{" not in w)  # words that begin a sentence, not a label
