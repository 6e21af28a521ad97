"""The case space of dumps as a checklist: what was seen, what was skipped and why, and what no case ever reached.

Axes are the registries' own: an op's formats, layouts, recipes, directions and lanes, the input classes, the candidates the dump knew of.
A value that is in a registry and in no case of the dumps is *never reached*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from accuracy_eval.errors import counted
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.ops.registry import OPS
from accuracy_eval.ops.spec import OpSpec
from accuracy_eval.records import Case, CaseRecord
from accuracy_eval.store import Dump
from accuracy_eval.visits import Visit, visits

TILE = 16  # the narrowest tile of a matrix unit
AXES = ("format", "layout", "recipe", "direction", "lane", "input", "candidate")
NAMED = 8  # values of one axis that a line names as never reached; --json holds all


@dataclass(frozen=True)
class Cell:
    """One value of an axis: results done, and those skipped or failed by reason."""

    value: str
    seen: int
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return "seen" if self.seen else "skipped" if self.skipped else "never reached"


@dataclass(frozen=True)
class Question:
    """One line of an operator's checklist and the evidence for it; empty evidence is an open line."""

    text: str
    evidence: str


@dataclass(frozen=True)
class Coverage:
    """One op over the dumps: cells by axis, candidates, checklist."""

    op: str
    results: int
    axes: Mapping[str, tuple[Cell, ...]]
    candidates: tuple[Visit, ...]
    checklist: tuple[Question, ...]


def coverage_of(dumps: Sequence[Dump]) -> list[Coverage]:
    """Every op there is, those without a case included: what is not in the dumps is what a reader looks for."""
    records = [r for d in dumps for r in d.records]
    by_op: dict[str, list[CaseRecord]] = {name: [] for name in OPS}
    for r in records:
        by_op.setdefault(r.case.op, []).append(r)
    registered: dict[str, dict[str, dict[str, bool]]] = {}
    for d in dumps:
        for op, names in (d.info.get("candidates") or {}).items():
            registered.setdefault(op, {}).update(names)
    found = visits(records, registered)
    return [_op(OPS[op], mine, tuple(v for v in found if v.op == op)) for op, mine in by_op.items()]


def _op(spec: OpSpec, records: Sequence[CaseRecord], candidates: tuple[Visit, ...]) -> Coverage:
    known: dict[str, Iterable[str]] = {
        "format": spec.formats, "layout": [x for x in spec.layouts if x], "recipe": [x for x in spec.recipes if x],
        "direction": spec.directions, "lane": spec.lanes, "input": INPUT_CLASSES, "candidate": [v.candidate for v in candidates],
    }  # fmt: skip
    axes = {axis: cells for axis in AXES if (cells := _cells(axis, known[axis], records))}
    return Coverage(spec.name, len(records), axes, candidates, checklist(spec, records))


def _values(axis: str, record: CaseRecord) -> tuple[str, ...]:
    c: Case = record.case
    found = {
        "format": c.format.split("+"), "layout": [c.layout], "recipe": [c.recipe], "direction": [c.direction], "lane": [c.lane],
        "input": [c.input_class] if c.lane == "random" else [], "candidate": [record.candidate],
    }[axis]  # fmt: skip
    return tuple(dict.fromkeys(x for x in found if x))


def _cells(axis: str, known: Iterable[str], records: Sequence[CaseRecord]) -> tuple[Cell, ...]:
    seen: Counter[str] = Counter()
    skipped: dict[str, Counter[str]] = {}
    for r in records:
        for value in _values(axis, r):
            if r.status == "done":
                seen[value] += 1
            else:
                skipped.setdefault(value, Counter())[r.reason] += 1
    values = dict.fromkeys([*known, *seen, *skipped])
    return tuple(Cell(v, seen[v], dict(skipped.get(v, {}))) for v in values)


def checklist(spec: OpSpec, records: Sequence[CaseRecord]) -> tuple[Question, ...]:
    """What a reviewer of an operator asks, each with what in the dumps answers it."""
    done = [r for r in records if r.status == "done"]

    def count(what: str, kept: Iterable[CaseRecord]) -> str:
        number = sum(1 for _ in kept)
        return f"{number} {what}" if number else ""

    formats = dict.fromkeys(f for r in done for f in r.case.format.split("+"))
    shapes = {r.case.shape for r in done}
    tails = [s for s in shapes if any(n > TILE and n % TILE for _, n in s)]
    special = dict.fromkeys(r.case.input_class for r in done if r.case.lane == "random" and r.case.input_class != "normal")
    repeats = [r.repeats for r in done]
    times = " to ".join(str(n) for n in sorted({min(repeats), max(repeats)})) if repeats else ""
    skipped = Counter(r.reason for r in records if r.status == "unsupported")
    reasons = f"{skipped.total()} skipped for {counted(len(skipped), 'reason')}, no errors"
    lines = [
        Question("forward results", count("results", (r for r in done if r.case.direction == "fwd"))),
        Question("gradients", count("results", (r for r in done if r.case.direction == "bwd"))),
        Question("every format", f"{', '.join(formats)} of {', '.join(spec.formats)}" if set(formats) >= set(spec.formats) else ""),
        Question("shapes that no tile divides", f"{len(tails)} of {len(shapes)} shapes" if tails else ""),
        Question("inputs beyond the ordinary", ", ".join(special)),
        Question("runs compared as bytes", f"{times} runs each" if repeats and min(repeats) > 1 else ""),
        Question("nothing crashed, what was skipped has its reason", "" if any(r.status == "error" for r in records) else reasons),
    ]
    return tuple(q for q in lines if not (q.text.startswith("gradients") and "bwd" not in spec.directions))


def coverage_text(found: Iterable[Coverage], *, empty: bool = False) -> str:
    """A block an op: its axes, its checklist. Ops without a case are one line at the end, or with `empty` blocks of their own."""
    blocks, unreached = [], []
    for c in found:
        if not c.results and not empty:
            unreached.append(c.op)
            continue
        lines = [f"{c.op}: {counted(c.results, 'result')}"]
        for axis, cells in c.axes.items():
            parts = [", ".join(f"{x.value} {x.seen}" for x in cells if x.seen)]
            skipped = [x.value for x in cells if x.state == "skipped"]
            parts += [f"skipped {', '.join(skipped)}"] if skipped else []
            left = [x.value for x in cells if x.state == "never reached"]
            parts += [f"never reached {_cut(left)}"] if left else []
            lines.append(f"  {axis:9s} {'; '.join(p for p in parts if p)}")
        lines += [f"  [{'x' if q.evidence else ' '}] {q.text}{f': {q.evidence}' if q.evidence else ''}" for q in c.checklist]
        blocks.append("\n".join(lines))
    if unreached:
        blocks.append(f"never reached: {_cut(unreached)}")
    return "\n\n".join(blocks)


def _cut(names: list[str]) -> str:
    """The first NAMED of the names and how many more there are."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
