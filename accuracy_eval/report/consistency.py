"""What a results file concludes must follow from what it holds: a verdict or an exit code that was edited is refused, never believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accuracy_eval.concluding import Tally, conclusion
from accuracy_eval.gates import COMPARISONS
from accuracy_eval.records import GateResult, Pair, Results, Side, TensorResult, Verdict


def contradictions(results: Results) -> Iterator[str]:
    """Every place that says another thing than what it rests on: gates on their numbers, sides on their gates, tensors on their sides and
    pairs, the whole on its tensors and on what was not compared."""
    limits = {g.gate for g in results.gates}
    tally = Tally()
    for i, t in enumerate(results.tensors):
        tally.add(t)
        yield from (f"tensors[{i}].{text}" for text in _of_subjects("sides", t.sides, limits))
        yield from (f"tensors[{i}].{text}" for text in _of_subjects("pairs", t.pairs, limits))
        allowed = _possible(t)
        if t.verdict not in allowed:
            yield f"tensors[{i}].verdict is {t.verdict}, its sides and pairs give {' or '.join(sorted(allowed))}"
    verdict, exit_code = conclusion(tally, results.not_compared, [d.label for d in results.dumps])
    if results.verdict is not verdict:
        yield f"verdict is {results.verdict}, what the file holds gives {verdict}"
    if results.exit_code != exit_code:
        yield f"exit_code is {results.exit_code}, what the file holds gives {exit_code}"


def _of_subjects(name: str, subjects: Sequence[Side | Pair], limits: set[str]) -> Iterator[str]:
    """What is wrong with sides or pairs. Of gates that are no limits of the profile, such as a caller's tolerance, more may decide than a
    number."""
    for j, subject in enumerate(subjects):
        for k, gate in enumerate(subject.gates):
            if gate.gate in limits and gate.passed is not (kept := _kept(gate)):
                yield f"{name}[{j}].gates[{k}].passed is {gate.passed}, its value and limit give {kept}"
        if any(g.passed is False for g in subject.gates) and subject.verdict is not Verdict.FAIL:
            yield f"{name}[{j}].verdict is {subject.verdict}, and a gate of it is broken"


def _kept(gate: GateResult) -> bool | None:
    """What a limit's numbers say; its own answer for a comparison of a newer version."""
    if gate.comparison not in COMPARISONS:
        return gate.passed
    return None if gate.value is None else bool(COMPARISONS[gate.comparison](gate.value, gate.limit))


def _possible(t: TensorResult) -> set[Verdict]:
    """The worst of sides and pairs; without a reference only the sides that fail count beside the pairs."""
    pairs = [p.verdict for p in t.pairs]
    several = [[*(s.verdict for s in t.sides), *pairs], [*(s.verdict for s in t.sides if s.verdict is Verdict.FAIL), *pairs]]
    return {max(verdicts, key=lambda v: v.severity) for verdicts in several if verdicts} or {t.verdict}
