"""Every mutation of every product judged under a profile: what each gate catches, what none sees, which claims hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from accuracy_eval.diagnose import fails
from accuracy_eval.formats import Codes, Values, get_format
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.messages import COMPARISON_WORDS, numbers_apart
from accuracy_eval.prove.claims import CLAIMS, HEALTHY_PASSES, Cell
from accuracy_eval.prove.mutations import MUTATIONS, Mutation, NotApplicable
from accuracy_eval.prove.products import COLUMNS, Problem, lanes, problem
from accuracy_eval.records import Coded, GateResult, Side, Verdict

LENGTHS = (64, 8192)


@dataclass(frozen=True)
class Proof:
    """What a profile's gates did with every mutation.

    cells         in the order of MUTATIONS, COLUMNS, LENGTHS, lanes
    healthy       the unchanged results: status "pass", or "caught" by a false alarm
    cannot_fail   (gate, column, K, lane) where a gate applies and no mutation of a product breaks it
    broken        claims that do not hold, each in a sentence
    """

    profile: str
    cells: tuple[Cell, ...]
    healthy: tuple[Cell, ...]
    cannot_fail: tuple[tuple[str, str, int, str], ...]
    broken: tuple[str, ...]


def prove(profile: str = "default", *, lengths: Sequence[int] = LENGTHS, input_class: str = "normal") -> Proof:
    """Judge every mutation under a profile (a built-in name or a .toml file)."""
    return prove_all([profile], lengths=lengths, input_class=input_class)[0]


def prove_all(profiles: Iterable[str], *, lengths: Sequence[int] = LENGTHS, input_class: str = "normal") -> list[Proof]:
    """The same for several profiles; products and mutants are made once."""
    loaded = [load_profile(name) for name in profiles]
    made = [
        (p, {m.name: m.change(p) for m in MUTATIONS.values()})
        for c in COLUMNS for k in lengths for lane in lanes(c) for p in (problem(c, k, lane=lane, input_class=input_class),)
    ]  # fmt: skip
    return [_prove(p, made, input_class) for p in loaded]


def _prove(profile: Profile, made: Sequence[tuple[Problem, dict[str, Values | NotApplicable]]], input_class: str) -> Proof:
    cells: list[Cell] = []
    healthy: list[Cell] = []
    cannot_fail: list[tuple[str, str, int, str]] = []
    for p, mutants in made:
        where = p.column.name, p.case.dims["k"], p.case.lane
        plain = _judge(p, p.codes, profile)
        healthy.append(
            Cell("", *where, "caught" if plain.verdict is Verdict.FAIL else "pass", _caught_by(plain), _seen(plain.gates, p.contract))
        )
        here = [_cell(name, p, values, profile, where) for name, values in mutants.items()]
        cells += here
        finite = [c for c in here if c.mutation not in ("one NaN", "one Inf")]  # those fail whatever the gates say
        unbroken = {g.gate for g in plain.gates} - {name for c in finite for name in c.by} - set(_caught_by(plain))
        cannot_fail += [(g, *where) for g in sorted(unbroken)]
    order = list(MUTATIONS)
    cells.sort(key=lambda c: order.index(c.mutation))
    return Proof(profile.name, tuple(cells), tuple(healthy), tuple(cannot_fail), tuple(_broken(profile.name, cells, healthy, input_class)))


def _judge(p: Problem, codes: Codes, profile: Profile) -> Side:
    """The judge's verdict on one result, as it gives it for a dump's."""
    side = side_of("mutant", Coded(codes, p.output.format), contract=p.contract)
    return judge_tensor(Subject(p.case, p.output, "proof", "gemm"), [side], {"mutant": p.reference}, profile).sides[0]


def _cell(name: str, p: Problem, made: Values | NotApplicable, profile: Profile, where: tuple[str, int, str]) -> Cell:
    if isinstance(made, NotApplicable):
        return Cell(name, *where, "n/a", (), str(made))
    codes = p.round(made)
    if np.array_equal(codes, p.codes):
        return Cell(name, *where, "same", (), _why_same(MUTATIONS[name], p, made))
    side = _judge(p, codes, profile)
    if side.verdict is Verdict.FAIL:
        return Cell(name, *where, "caught", _caught_by(side))
    return Cell(name, *where, "missed", (), _seen(side.gates, p.contract))


def _caught_by(side: Side) -> tuple[str, ...]:
    """Gates that failed, in the profile's order, then structural checks."""
    gates = [g.gate for g in side.gates if g.passed is False]
    return tuple(dict.fromkeys([*gates, *(d.code for d in side.diagnoses if fails([d]) or not side.gates)]))


def telling(by: Sequence[str]) -> tuple[str, ...]:
    """The gates that say something: those on many elements together only where no single element fails."""
    return tuple(name for name in by if "budget" not in by or name not in ("rows", "columns", "tiles"))


def _seen(gates: Sequence[GateResult], contract: str) -> str:
    """What the gates saw."""
    by_limit: dict[str, list[str]] = {}
    for g in gates:
        if g.value is not None:
            value, limit = numbers_apart(g.value, g.limit, 3)
            under = f" under {contract}" if g.metric == "budget_max" else ""
            by_limit.setdefault(f"{COMPARISON_WORDS[g.comparison]} {limit}", []).append(f"{g.metric} {value}{under}")
    return ", ".join(f"{', '.join(seen)} ({limit})" for limit, seen in by_limit.items()) or "no gate of the profile applies"


def _why_same(mutation: Mutation, p: Problem, made: Values) -> str:
    if not np.array_equal(made, p.healthy):
        return f"every change is below half an ulp of {p.output.format} and rounds away"
    if mutation.kind != "arithmetic":
        return "what is changed is zero in these operands"
    if mutation.name == "TF32 inputs" and get_format(p.a_codes.format).fraction_bits <= 10:
        return "operands of at most 10 fraction bits: rounding to TF32 changes none"
    return "every partial sum of these operands is held exactly by this arithmetic"


def _broken(profile: str, cells: Iterable[Cell], healthy: Iterable[Cell], input_class: str) -> list[str]:
    """Claims that do not hold. Limits in absolute units mean something for normal operands only: other classes test the structure."""
    found: dict[str, list[str]] = {}
    if profile in HEALTHY_PASSES:
        for c in healthy:
            if c.status != "pass":
                found.setdefault(f"{', '.join(c.by)} fails a healthy result", []).append(_place(c))
    claims = [claim for claim in CLAIMS if claim.profile == "*" or (claim.profile == profile and input_class == "normal")]
    for c in cells:
        for claim in claims:
            if claim.covers(c) and c.status not in ("n/a", "same") and (c.status != "caught" or (claim.by and claim.by not in c.by)):
                what = f"{claim.by or f'profile {profile}'} claims to catch {c.mutation!r} ({claim.source}) and does not"
                found.setdefault(what, []).append(_place(c))
    return [f"{what}: {', '.join(places)}" for what, places in found.items()]


def _place(c: Cell) -> str:
    return f"{c.column} K={c.k} ({c.lane} lane)"
