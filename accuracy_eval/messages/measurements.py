"""What was measured, in words: an element, counts, scale factors, the errors of a quantised result, what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from accuracy_eval.messages.values import REFERENCE, code_text, number, numbers_apart, visible
from accuracy_eval.records import ERRORS, ScaleFacts, Side, WorstElement

# how each error of a quantised result reads: what it is measured by, and the words around it
_ERROR_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "conversion": lambda m: f"{number(m.get('conversion_mismatch_count'))} wrong codes",
    "scale": lambda m: f"{number(m.get('scale_mismatch_count'))} wrong scales",
    "kernel": lambda m: f"{number(m.get('budget_max'), 3)} × budget",
    "total": lambda m: (
        f"{number(m.get('total_snr_db'))} dB"
        + (f" (ideal {number(m['ideal_snr_db'])} dB, excess {number(m['excess_db'], 2)} dB, of a row {number(m['excess_row_db'], 2)} dB)"
           if "excess_db" in m else "")
    ),
}  # fmt: skip
_EXPECTED = (("snr_db", "SNR", " dB"), ("bias_sigma", "bias", " σ"), ("mismatch_fraction", "flips", ""))


def element_text(element: WorstElement, fmt: str, actual: str, expected: str) -> str:
    """One element: "actual 0x3F12 = 0.5703 (mi300x), expected 0x3EED = 0.4629 (h200)"; the truth of a pair follows where known."""
    left, right = numbers_apart(element.actual, element.expected)
    text = f"actual {code_text(element.actual_code, fmt)} = {left}{_of(actual)}, expected "
    text += f"{code_text(element.expected_code, fmt)} = {right}" if element.expected_code is not None else right
    text += _of(expected)
    return text if element.reference is None else f"{text}, {REFERENCE} {number(element.reference, 9)}"


def _of(label: str) -> str:
    return f" ({visible(label)})" if label else ""


def counts_text(metrics: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """What differs and what is not finite: "214 of 65536 differ, NaN 0/0, Inf 0/0" (actual/expected); parts not measured are left out."""
    parts = []
    if metrics.get("mismatch_count") is not None:
        total = metrics.get("count", math.prod(shape))  # fewer than the shape holds where a part was looked at
        parts.append(f"{number(metrics['mismatch_count'])} of {number(total)} differ")
    for name, title in (("nan", "NaN"), ("inf", "Inf")):
        pair = metrics.get(f"{name}_actual"), metrics.get(f"{name}_expected")
        if pair != (None, None):
            parts.append(f"{title} {number(pair[0])}/{number(pair[1])}")
    return ", ".join(parts)


def failed_errors(side: Side) -> list[str]:
    """Which of the errors of a quantised result broke a limit, in the order of records.ERRORS."""
    broken = {g.error for g in side.gates if g.passed is False}
    return [e for e in ERRORS if e in broken]


def errors_text(side: Side) -> str:
    """The errors of a quantised result, each with its own verdict: "conversion 0 wrong codes, scale 0 wrong scales, kernel …"; "" where
    nothing was quantised, or the operands before that are not known."""
    judged = {g.error for g in side.gates}
    if judged <= {"", "kernel"}:
        return ""
    broken = failed_errors(side)
    return ", ".join(f"{e} {_ERROR_WORDS[e](side.metrics)}{' FAIL' if e in broken else ''}" for e in ERRORS if e in judged)


def scales_text(facts: ScaleFacts) -> str:
    """How scale factors differ: "exponent 0 (200), +1 (56); at most 1 of itself apart; rule rceil, expected floor"."""
    steps = ", ".join(f"{step:+d} ({count})" if step else f"0 ({count})" for step, count in facts.steps)
    parts = [f"exponent {steps}" if steps else "no finite pair"]
    if facts.nan_actual or facts.nan_expected:
        parts.append(f"NaN on one side {facts.nan_actual}/{facts.nan_expected}")
    if facts.max_rel is not None:
        parts.append(f"at most {number(facts.max_rel, 2)} of itself apart")
    parts.append(f"rule {facts.rule or 'unknown'}, expected {facts.expected_rule or 'unknown'}")
    return "; ".join(parts)


def expectation_text(expectation: Mapping[str, Any]) -> str:
    """Expected of normal data beside what was seen: "SNR 55.5 to 55.6 dB, seen 55.6; bias …; largest error 1e-5 of γ_K·|A||B|"."""
    parts = []
    for name, title, unit in _EXPECTED:
        if name in expectation and expectation[name][2] is not None:
            low, high, seen = (number(x, 3) for x in expectation[name])
            parts.append(f"{title} {low}{'' if low == high else f' to {high}'}{unit}, seen {seen}")
    bounds = expectation.get("bounds") or {}
    if bounds:
        shares = number(bounds["worst_case"], 2), number(bounds["probable"], 2)
        parts.append(f"largest error {shares[0]} of the worst case γ_K·|A||B|, {shares[1]} of its probable form")
    return "; ".join(parts)


def wrong_product(found: Mapping[str, Any]) -> str:
    """What a certificate noted about one run of an exact product: "run 2: row 17, column 300 wrong"."""

    def named(word: str) -> str:
        at, count = found[f"{word}s"], found[f"{word}_count"]
        more = f" and {count - len(at)} more" if count > len(at) else ""
        return f"{word}{'' if count == 1 else 's'} {', '.join(map(str, at)) or 'none'}{more}"

    return f"run {found['run'] + 1}: {named('row')}; {named('column')} wrong"
