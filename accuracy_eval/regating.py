"""Results judged again under another profile, from the metrics they hold: no dump is read and nothing is measured.

What the results cannot answer is refused: a limit on a number that was not measured, a reference that was sampled or absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from accuracy_eval.attribution import between
from accuracy_eval.concluding import Tally, conclusion
from accuracy_eval.diagnose import fails
from accuracy_eval.errors import UsageError
from accuracy_eval.gates import Gate, Profile, load_profile
from accuracy_eval.judge import Subject, decided
from accuracy_eval.metrics.registry import DERIVED
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Output
from accuracy_eval.records import Attribution, Pair, Results, Side, TensorResult, Verdict

_STAYS = ("nondeterministic", "never-written", "explained-by-datapath", "not-explained")  # said of the bytes, whatever the limits


def regated(results: Results, gates: str) -> Results:
    """The same comparison under the profile `gates` (a name or a path). UsageError names the first thing that needs the dumps."""
    profile = load_profile(gates)
    _check_derived(results.tensors, profile)
    kept = [t for t in results.tensors if not _left_out(t, profile)]
    tensors = tuple(_tensor(t, profile) for t in kept)
    verdict, exit_code = conclusion(Tally.of(tensors), results.not_compared, [d.label for d in results.dumps])
    note = f"judged again under {profile.name}, from the metrics of a comparison under {results.profile}; new failures have no causes named"
    return replace(
        results,
        profile=profile.name,
        profile_file=profile.file,
        gates=profile.info(),
        tensors=tensors,
        verdict=verdict,
        exit_code=exit_code,
        notes=(*results.notes, note),
    )


def _tensor(t: TensorResult, profile: Profile) -> TensorResult:
    gates = _subject(t, _output(t, profile)).gates(profile, t.sides[0].contract if t.sides else "")
    sides = {s.label: _side(t, s, gates, profile) for s in t.sides}
    pairs = tuple(_pair(p, sides[p.a], sides[p.b]) for p in t.pairs)
    verdict = max([*(s.verdict for s in sides.values()), *(p.verdict for p in pairs)], key=lambda v: v.severity, default=t.verdict)
    return replace(t, verdict=verdict, sides=tuple(sides.values()), pairs=pairs)


def _subject(t: TensorResult, output: Output) -> Subject:
    return Subject(t.case, output, t.case_id, t.family, t.candidate)


def _output(t: TensorResult, profile: Profile) -> Output:
    """What the op says about the tensor, stored or derived."""
    found = {o.name: o for o in (*get_op(t.case.op).outputs(t.case, _encoding(t)), *_derived(t))}
    if t.tensor not in found:
        raise UsageError(f"{t.case_id}: op {t.case.op} of this version has no output {t.tensor!r}; {_remedy(profile)}")
    return found[t.tensor]


def _derived(t: TensorResult) -> tuple[Output, ...]:
    return get_op(t.case.op).derived(t.case, _encoding(t))


def _encoding(t: TensorResult) -> Encoding:
    return "fnuz" if any(s.format.endswith("fnuz") for s in t.sides) else "ocp"


def _limited(t: TensorResult, derived: Output, profile: Profile) -> bool:
    """Whether the profile says anything about a derived tensor of the case; where it does not, a comparison has no result for it."""
    return bool(_subject(t, derived).gates(profile, ""))


def _left_out(t: TensorResult, profile: Profile) -> bool:
    return any(o.name == t.tensor and not _limited(t, o, profile) for o in _derived(t))


def _check_derived(tensors: Sequence[TensorResult], profile: Profile) -> None:
    """UsageError where the profile limits a derived tensor that the first one did not, for a case whose outputs were all measured."""
    cases: dict[tuple[str, str], list[TensorResult]] = {}
    for t in tensors:
        cases.setdefault((t.case_id, t.candidate), []).append(t)
    for found in cases.values():
        first, names = found[0], {t.tensor for t in found}
        measured = set.intersection(*({s.label for s in t.sides if s.metrics} for t in found))
        for o in _derived(first):
            if measured and o.name not in names and _limited(first, o, profile):
                raise UsageError(f"{first.case_id}: {profile.name} limits {o.name}, which were not measured; {_remedy(profile)}")


def _remedy(profile: Profile) -> str:
    return f"compare the dumps with --gates {profile.file or profile.name}"


def _side(t: TensorResult, side: Side, gates: tuple[Gate, ...], profile: Profile) -> Side:
    if fails(side.diagnoses) and not side.metrics:  # another shape or format: there was nothing to measure
        return side
    if side.scope != "full":
        raise UsageError(
            f"{t.case_id} ({side.label}): judged by a sampled reference, whose metrics are not those of the whole; {_remedy(profile)}"
        )
    if not side.metrics or side.note.startswith("no reference"):
        raise UsageError(
            f"{t.case_id} ({side.label}): judged without a reference, so there is nothing to hold limits against; {_remedy(profile)}"
        )
    wanted = [g for g in gates if g.key in side.metrics or g.key not in DERIVED]
    for gate in wanted:
        _check_measured(t, side, gate, profile)
    several = any(d.code == "nondeterministic" for d in side.diagnoses)
    fatal = fails(side.diagnoses) or any(d.code == "never-written" for d in side.diagnoses)
    judged = tuple(g.judge(side.metrics) for g in wanted)
    seen = side.resolution if judged == side.gates else {}  # what other limits fail only the dumps tell
    again = decided(replace(side, gates=judged, resolution=seen, note=""), fatal=fatal)
    if several and again.verdict is not Verdict.FAIL:
        again = replace(
            again, verdict=Verdict.INCONCLUSIVE, note=f"repeats differ, and results hold the metrics of one; {_remedy(profile)}"
        )
    elif again.verdict is Verdict.PASS and side.verdict is Verdict.WARN and "% of its budget" not in side.note:
        again = replace(again, verdict=Verdict.WARN, note=side.note)
    both = again.verdict is Verdict.FAIL and side.verdict is Verdict.FAIL
    kept = side.diagnoses if both else tuple(d for d in side.diagnoses if d.code in _STAYS)
    return replace(again, diagnoses=kept, off_contract=side.off_contract if both else "", note=again.note or (side.note if both else ""))


def _check_measured(t: TensorResult, side: Side, gate: Gate, profile: Profile) -> None:
    where = f"{t.case_id} ({side.label}): gate {gate.name}"
    if gate.round_expected:
        raise UsageError(f"{where} judges by the rounded expected values, against which nothing was measured; {_remedy(profile)}")
    if gate.key not in side.metrics:
        raise UsageError(f"{where} limits {gate.key}, which was not measured; {_remedy(profile)}")


def _pair(pair: Pair, a: Side, b: Side) -> Pair:
    sides = max(a.verdict, b.verdict, key=lambda v: v.severity)
    if pair.attribution is Attribution.NOT_COMPARABLE:
        return replace(pair, verdict=max(sides, pair.verdict, key=lambda v: v.severity) if fails((*a.diagnoses, *b.diagnoses)) else sides)
    if pair.attribution is Attribution.IDENTICAL:
        return replace(pair, verdict=sides, sentence=f"same bytes; both {sides}")
    attribution, sentence = between(a, b, pair.metrics)
    return replace(pair, verdict=sides, attribution=attribution, sentence=sentence)
