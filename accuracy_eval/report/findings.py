"""What a reader must see first: findings, who is off in each, what to run next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accuracy_eval import messages
from accuracy_eval.records import ARRAYS, Attribution, Diagnosis, NotCompared, Pair, Results, Side, TensorResult, Verdict
from accuracy_eval.report.counts import QUIET
from accuracy_eval.report.rows import EXPLAINS, Row, reproduce, reproduce_element, tensor_rows
from accuracy_eval.report.summaries import pair_rank
from accuracy_eval.store.shards import LACKING
from accuracy_eval.visits import EXPECTED

NEXT_BY_VERDICT = {
    Verdict.INPUTS_DIFFER: "dump both again with one suite and one accuracy-eval version, then compare again",
    Verdict.MISSING: "dump the case there too (--resume completes a dump that broke off), or compare what both hold: --op, --case",
    Verdict.ERROR: "read the error, mend it, run the same accuracy-eval dump command with --resume, then compare again",
    Verdict.INCONCLUSIVE: "compare it beside a dump that holds what the reason names",
}
# pairs that say who is off; of others the sides do
_SAYS_WHO = (Attribution.A_OFF, Attribution.B_OFF, Attribution.BOTH_OFF, Attribution.NOT_COMPARABLE, Attribution.DIFFERENT_CONTRACTS)
MISSING_ARRAY = "save that array there too, under this name, or compare what both hold: --case NAME"
WIDE_ARRAY = "save that array in every file as float64 (exact up to 2^53), or its bytes as int32, two for each"
OTHER_SHARDS = (
    "dump the other shards there (accuracy-eval dump with --shard) and join them (accuracy-eval merge), "
    "or compare what both hold: --op, --case"
)
EXPECTED_CANDIDATE = (
    "run the candidate there (--candidate, --plugin), or narrow the suite's rule: "
    '[[expected]] takes vendor = "nvidia", "amd" or "cpu", and format and direction'
)
UNREACHED_CANDIDATE = "dump a case that the candidate takes, or mend what it says it supports"


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
    return max(result.pairs, key=pair_rank, default=None)


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
    if item.verdict is Verdict.MISSING and item.family == ARRAYS:
        return MISSING_ARRAY
    if item.verdict is Verdict.INCONCLUSIVE and item.family == ARRAYS:
        return WIDE_ARRAY
    if item.verdict is Verdict.MISSING and item.reason.startswith(LACKING):
        return OTHER_SHARDS
    if item.verdict is Verdict.MISSING and item.reason.startswith(EXPECTED):
        return EXPECTED_CANDIDATE
    if item.verdict is Verdict.MISSING and item.candidate not in messages.USUAL_CANDIDATES:
        return UNREACHED_CANDIDATE
    return NEXT_BY_VERDICT.get(item.verdict, "")
