"""Why a side or a pair has its verdict, in one clause: gate, cause, attribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accuracy_eval.messages.gates import deciding_gate, gate_clause, place_of
from accuracy_eval.messages.values import visible
from accuracy_eval.records import Attribution, Diagnosis, Pair, Side, Verdict

EXPLAINED = "explained-by-datapath"
CONSISTENT = "consistent, not identified"  # of an explanation: as its status says
ATTRIBUTION_WORDS = {
    Attribution.NOT_COMPARABLE: "not comparable",
    Attribution.IDENTICAL: "same bytes",
    Attribution.DIFFERENT_CONTRACTS: "each by its own contract",
    Attribution.OFF_CONTRACT: "off its contract",
    Attribution.BOTH_OFF: "both off",
    Attribution.A_OFF: "{a} is off",
    Attribution.B_OFF: "{b} is off",
    Attribution.EQUIVALENT: "equivalent",
    Attribution.UNDETERMINED: "undetermined",
}
_NEAR = "within limits"  # of a pair that no reference judges and that passes: nobody is named, and nobody need be
_NO_REASON = "no gate applies and no reason was recorded"


def causes(diagnoses: Iterable[Diagnosis], verdict: Verdict) -> str:
    """The named causes in one line: "k-tail-missing, gain"; "" when there are none. The arithmetic that made a PASS is no cause of it."""
    told = (d for d in diagnoses if d.code != EXPLAINED or verdict is not Verdict.PASS)
    return ", ".join(dict.fromkeys(visible(_cause_name(d)) for d in told))


def _cause_name(d: Diagnosis) -> str:
    """A diagnosis' code; of an explanation that does not tell one arithmetic from another, that."""
    identified = d.evidence.get("identified", d.evidence.get("status") != CONSISTENT)
    return d.code if d.code != EXPLAINED or identified else CONSISTENT


def who_is_off(pair: Pair) -> str:
    """The attribution in words: "mi300x is off", "same bytes", …"""
    if pair.attribution is Attribution.UNDETERMINED and pair.verdict is Verdict.PASS:
        return _NEAR
    return ATTRIBUTION_WORDS[pair.attribution].format(a=visible(pair.a), b=visible(pair.b))


def kept_contract(side: Side, name: str = "") -> str:
    """What a side off its contract keeps: "h200 keeps tf32 instead of fp32acc"."""
    return f"{name or visible(side.label)} keeps {visible(side.off_contract)} instead of {visible(side.contract)}"


def side_reason(side: Side) -> str:
    """Why a side has its verdict, in one clause."""
    gate = deciding_gate(side.gates)
    if gate is not None and (gate.passed is False or side.verdict is Verdict.PASS):
        return gate_clause(gate, side.contract, place_of(gate, side.metrics, side.worst))
    return _found(side.diagnoses, side.note) or (gate_clause(gate, side.contract) if gate else _NO_REASON)


def pair_reason(pair: Pair) -> str:
    """Why a pair has its verdict, in one sentence: the comparison's own, else its deciding gate."""
    gate = deciding_gate(pair.gates)
    clause = gate_clause(gate, place=place_of(gate, pair.metrics, pair.worst)) if gate else _NO_REASON
    return visible(pair.sentence) or _found(pair.diagnoses, "") or clause


def _found(diagnoses: Sequence[Diagnosis], note: str) -> str:
    """What was found, where no gate decided: the first sentence there is."""
    return next((visible(text) for text in (*(d.sentence for d in diagnoses), note) if text), "")
