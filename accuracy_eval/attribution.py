"""Who is off: two judged sides and their distance make an attribution.

The first that fits, in the order of `records.Attribution`. Without a reference only bytes and distance speak, and nobody is named.
How far two outputs may be apart follows from their budgets (`apart`); where no operands say it, near is not
known to be near enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accuracy_eval.apart import Distance
from accuracy_eval.diagnose import Context, structural
from accuracy_eval.formats import get_format
from accuracy_eval.messages import MISMATCHES, deciding_gate, index_of, index_text, kept_contract, number
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.registry import OF_MANY
from accuracy_eval.ops.spec import Output
from accuracy_eval.records import Attribution, Diagnosis, GateResult, Pair, Side, Sketch, Verdict, WorstElement
from accuracy_eval.sketch import sketch_of


def reported(m: Measured) -> dict[str, Any]:
    """The metrics a report shows: every one that was measured, and the NaN and Inf counts of both sides."""
    counts: dict[str, Any] = {}
    for side, c in (("actual", m.classes.actual), ("expected", m.classes.expected)):
        counts[f"nan_{side}"], counts[f"inf_{side}"] = c.nan, c.pos_inf + c.neg_inf
    return {**m.metrics, **counts}


def worst_elements(m: Measured, gates: Sequence[GateResult]) -> tuple[WorstElement, ...]:
    """The elements of largest error, before them the one at which the deciding gate was broken."""
    gate = deciding_gate(gates)
    if gate is None or gate.passed is not False or gate.metric in OF_MANY:
        return m.worst
    index = index_of(gate.metric, m.metrics)
    if gate.metric in MISMATCHES:  # a code that is right is within half a unit of the last place, so those that are not lead by ulp
        index = next((e.index for e in m.worst_ulp if e.actual_code != e.expected_code), None)
    element = None if index is None else m.element(index)
    return m.worst if element is None else (element, *(w for w in m.worst if w.index != index))


def _of_same_bytes(output: Output) -> dict[str, Any]:
    """What needs no measuring: equal bytes differ nowhere."""
    count = math.prod(output.shape)
    equal = {"count": count, "mismatch_count": 0, "nonfinite_mismatch": 0, "zero_sign_mismatch": 0}
    return {**equal, "mismatch_fraction": 0.0, "max_abs": 0.0, "ulp_max": 0} if count else equal


def attribute(
    output: Output, a: Side, b: Side, measured: Measured | None, *, referenced: bool, kin: bool, distance: Distance | None = None
) -> Pair:
    """Who is off, from the verdicts of both sides and their bytes; without a reference, from the bytes and the distance alone.

    measured  None where the bytes are equal, or where the sides are not comparable
    kin       both sides hold the same kind of number: one format, one reference
    distance  without a reference: whether both budgets allow what lies between the sides; None where no budget is known
    """
    several = any(d.code == "nondeterministic" for d in (*a.diagnoses, *b.diagnoses))
    same = kin and a.sha256 == b.sha256 and bool(a.sha256) and not several
    metrics = reported(measured) if measured else _of_same_bytes(output) if same else {}
    worst = measured.worst if measured else ()
    sketch = sketch_of(measured) if measured else Sketch()

    def pair(verdict: Verdict, attribution: Attribution, sentence: str, found: Sequence[Diagnosis] = ()) -> Pair:
        return Pair(a.label, b.label, verdict, attribution, sentence, metrics, worst=worst, diagnoses=tuple(found), sketch=sketch)

    sides = max(a.verdict, b.verdict, key=lambda v: v.severity)
    if measured is None and not same:
        if any(d.code in ("shape-mismatch", "format-mismatch") for d in (*a.diagnoses, *b.diagnoses)):
            return pair(Verdict.FAIL, Attribution.NOT_COMPARABLE, "a shape or format is not what the case asks for")
        what = f"formats {a.format} and {b.format}" if a.format != b.format else "outputs for two fp8 encodings"
        why = f"{what} hold different numbers; each side was judged by its own reference, --cross-format compares values"
        return pair(sides, Attribution.NOT_COMPARABLE, why)
    if same and not referenced:
        return pair(Verdict.PASS, Attribution.IDENTICAL, "same bytes; nothing says whether they are right")
    if same:
        stand = f"both {sides}" if a.verdict is b.verdict else f"{a.label} {a.verdict}, {b.label} {b.verdict}"
        return pair(sides, Attribution.IDENTICAL, f"same bytes; {stand}")
    assert measured is not None
    if not referenced:
        known = _distance(output, measured, distance)
        found = [d for d in structural(Context(measured)) if not (known.passed and d.code in OVERFLOW)]
        verdict = Verdict.FAIL if found or known.passed is False else Verdict.PASS if known.passed else Verdict.INCONCLUSIVE
        return pair(verdict, Attribution.UNDETERMINED, f"{known.sentence}; without a reference nobody can be named", found)
    return pair(sides, *between(a, b, measured.metrics))


def between(a: Side, b: Side, metrics: Mapping[str, Any]) -> tuple[Attribution, str]:
    """Who is off of two sides that were judged by a reference and measured against each other, and the sentence that says so."""
    good_a, good_b = (s.verdict in (Verdict.PASS, Verdict.WARN) for s in (a, b))
    if a.contract != b.contract:
        text = f"{a.label} promises {a.contract}, {b.label} {b.contract}; each was judged by its own"
        return Attribution.DIFFERENT_CONTRACTS, text
    named = [s for s in (a, b) if s.off_contract]
    if named and all(s.off_contract or s.verdict in (Verdict.PASS, Verdict.WARN) for s in (a, b)):
        return Attribution.OFF_CONTRACT, "; ".join(map(kept_contract, named))
    if a.verdict is Verdict.FAIL and b.verdict is Verdict.FAIL:
        return Attribution.BOTH_OFF, f"{a.label} and {b.label} are both off the reference"
    if a.verdict is Verdict.FAIL and good_b:
        return Attribution.A_OFF, f"{a.label} is off; {b.label} is right"
    if b.verdict is Verdict.FAIL and good_a:
        return Attribution.B_OFF, f"{b.label} is off; {a.label} is right"
    if good_a and good_b:
        count, total = metrics.get("mismatch_count"), metrics.get("count")
        return Attribution.EQUIVALENT, f"{number(count)} of {number(total)} elements differ, both sides within their limits"
    return Attribution.UNDETERMINED, f"{a.label} {a.verdict}, {b.label} {b.verdict}"


# rtol and atol under which two arrays of one format are taken for roundings of one result: those of torch.testing.assert_close
CLOSE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}

OVERFLOW = ("inf-in-actual", "inf-in-expected")  # an Inf beside the largest finite value, where both budgets span the threshold
STRAY = 8.0  # normal errors: none of 2^40 elements is that many standard deviations off


def _distance(output: Output, m: Measured, known: Distance | None) -> Distance:
    """Whether two outputs are as near as they must be. Without budgets the norm can say that they are not, and never that they are."""
    fmt = get_format(output.format)
    if output.exact or fmt.kind == "int":
        return Distance(m.metrics["mismatch_count"] == 0, f"{m.metrics['mismatch_count']} codes differ; integers and codes must be equal")
    if known is not None and known.passed is not None:
        return known
    why = f"could not check: {known.sentence if known else 'no operands say how far apart these may be'}"
    near, found = _plainly_near(output, m)
    return Distance(None, f"{why}; {found}") if near else Distance(False, found)


def _plainly_near(output: Output, m: Measured) -> tuple[bool, str]:
    """Whether two outputs are as near as roundings of one result usually are, and how near that is, in words."""
    fmt = get_format(output.format)
    rel, steps = m.metrics.get("rel_fro"), m.metrics.get("ulp_max")
    if fmt.bits <= 8:
        return bool(steps is not None and steps <= 1), f"the largest difference is {number(steps)} code steps; usual is 1"
    allowed = 2 * CLOSE[fmt.name][0]
    stray = _stray(m, allowed)
    if stray is not None:
        far = f"{number(stray.actual)} and {number(stray.expected)}"
        return False, f"{far} at {index_text(stray.index)} are further apart than roundings of one result"
    return bool(rel is not None and rel <= allowed), f"relative difference {number(rel)}; usual is up to {number(allowed)}"


def _stray(m: Measured, allowed: float) -> WorstElement | None:
    """The first of the worst elements that a norm of the whole hides: its difference is over `allowed`, relative to itself and to STRAY
    root mean squares of the tensor."""
    rel, rmse = m.metrics.get("rel_fro"), m.metrics.get("rmse")
    typical = rmse / rel if rel and rmse else 0.0
    return next((w for w in m.worst if abs(w.actual - w.expected) > allowed * max(abs(w.expected), STRAY * typical)), None)
