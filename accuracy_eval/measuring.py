"""Measuring one output of a case: every side against the reference and against each other, in one pass over row panels.

What is found is numbers; `judge` makes verdicts of them. Nothing here reads files or runs devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose import rows_of
from accuracy_eval.formats import encode
from accuracy_eval.gates import Gate
from accuracy_eval.metrics.aggregates import GATED
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import Meter
from accuracy_eval.metrics.total import TotalMeter
from accuracy_eval.ops.spec import Panel, Reference, row_blocks, rows_and_columns
from accuracy_eval.records import Coded
from accuracy_eval.resolution import ResolutionMeter

Codes = NDArray[Any]
Rows = Callable[[int, int], Codes]  # (first, end) -> codes [end - first, columns] of the tensor's 2-D view
WORST = 16
KEPT_ELEMENTS = 1 << 22  # of a reference kept whole, so that a diagnosis may look at it again (32 MiB)


@dataclass(frozen=True)
class SideTensor:
    """One dump's tensor as the judge sees it.

    variants       every distinct result of the repeats, first first; all are judged
    never_written  elements that held the poison of both runs
    changed        operands that the run wrote to: what came later had others
    contract       what the call promised
    derived        metrics of metrics.registry.DERIVED that whoever sees all outputs and operands of the side has found
    """

    label: str
    format: str
    shape: tuple[int, ...]
    sha256: str
    variants: tuple[Rows, ...]
    contract: str = ""
    never_written: int = 0
    changed: tuple[str, ...] = ()
    repeats: int = 1
    derived: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What measuring left of one side: a measurement per variant against the truth and against the rounded truth, its total error, the
    expected rows (codes or values) and their budgets where they were few enough to keep, what the reference could have shown, and how
    many elements differ from it and are right all the same, with the reason; how many have no bound at all, and how many are 0 without a
    step that could miss it."""

    truth: tuple[Measured, ...]
    rounded: tuple[Measured, ...]
    total: tuple[Mapping[str, Any], ...]
    expected: Rows | None
    resolution: Mapping[str, Any]
    coded: bool
    budget: NDArray[np.float64] | None
    exempt: tuple[int, str]
    unbounded: int
    trivial: int
    problem: Any


def side_of(label: str, tensor: Coded, sha256: str = "", contract: str = "") -> SideTensor:
    """A side held in memory."""
    rows = tensor.codes.reshape(rows_and_columns(tensor.shape))
    return SideTensor(label, tensor.format, tensor.shape, sha256, (lambda first, end: rows[first:end],), contract)


def kin_of(sides: Sequence[SideTensor], meaning: Mapping[str, Hashable]) -> list[list[SideTensor]]:
    """Sides that hold the same kind of number: one format, one meaning."""
    groups: dict[tuple[str, Hashable], list[SideTensor]] = {}
    for s in sides:
        groups.setdefault((s.format, meaning[s.label]), []).append(s)
    return list(groups.values())


def measure_sides(
    sides: Sequence[SideTensor],
    reference: Reference | None,
    gates: Sequence[Gate],
    by_side: dict[str, Found],
    by_pair: dict[tuple[str, str], Measured],
) -> None:
    """All sides of one format against the reference and each other, one pass over the panels."""
    shape, fmt = sides[0].shape, sides[0].format
    tolerances = tuple(dict.fromkeys((g.rtol, g.atol) for g in gates if g.metric == "allclose_violations"))
    coded = reference is not None and reference.kind == "codes"
    rounded = reference is not None and not coded and any(g.round_expected for g in gates)

    def meter(truth: bool) -> Meter:
        if truth and not coded:
            return Meter(shape, fmt, reference=True, allclose=tolerances, top=WORST)
        return Meter(shape, fmt, expected_format=fmt, allclose=tolerances, top=WORST)

    lines = frozenset(g.metric for g in gates) & frozenset(GATED)
    # equal bytes are measured once: the digest was verified when the side was read
    keys = {s.label: s.sha256 if s.sha256 and len(s.variants) == 1 else s.label for s in sides}
    distinct = {keys[s.label]: s for s in reversed(sides)}
    kept: list[Panel] | None = [] if reference and math.prod(shape) <= KEPT_ELEMENTS else None
    resolution = None if reference is None or coded else ResolutionMeter(rows_and_columns(shape)[1], fmt, reference.problem, lines)
    truth = {k: [meter(True) for _ in s.variants] for k, s in distinct.items()} if reference else {}
    against_rounded = {k: [meter(False) for _ in s.variants] for k, s in distinct.items()} if rounded else {}
    total = {k: [TotalMeter(rows_and_columns(shape)[0], fmt) for _ in s.variants] for k, s in distinct.items()}
    unquantised = reference.unquantised() if reference and reference.unquantised else None
    unequal = [(a, b) for a, b in itertools.combinations(sides, 2) if keys[a.label] != keys[b.label]]
    pairs = {(a.label, b.label): meter(False) for a, b in unequal}
    exempt, unbounded, trivial = dict.fromkeys(truth, 0), 0, 0
    for panel in reference.panels() if reference else _panels(shape):
        first, end = panel.first_row, panel.first_row + len(panel.values)
        codes = {k: [rows(first, end) for rows in s.variants] for k, s in distinct.items()}
        expected = encode(panel.values, fmt) if rounded else panel.values
        for k in truth:
            settled = [_settled(c, panel, reference, fmt) for c in codes[k]]
            exempt[k] += max(count for _, count in settled)
            for m, (c, _) in zip(truth[k], settled, strict=True):
                m.update(first, c, panel.values, panel.budget, panel.typical)
            for m, (c, _) in zip(against_rounded.get(k, ()), settled, strict=False):
                m.update(first, c, expected)
        if unquantised is not None:
            source = next(unquantised)
            assert source.first_row == first
            assert source.values.shape == panel.values.shape
            for k in truth:
                for t, c in zip(total[k], codes[k], strict=True):
                    t.update(first, c, panel.values, source.values, panel.budget, panel.typical)
        for (a, b), m in pairs.items():
            m.update(first, codes[keys[a]][0], codes[keys[b]][0])
        if panel.budget is not None:
            unbounded += int(np.isinf(panel.budget).sum())
            trivial += int(((panel.budget == 0) & (panel.values == 0)).sum())
        if kept is not None:
            kept.append(panel)
        if resolution is not None and panel.budget is not None:
            resolution.update(first, panel.values, panel.budget, panel.typical)
        elif panel.budget is None:
            resolution = None
    if reference is None:
        by_pair.update({pair: m.result() for pair, m in pairs.items()})
        return
    seen = reference.resolution if resolution is None else resolution.result().as_dict()
    expected_rows = rows_of(np.concatenate([p.values for p in kept])) if kept else None
    budgets = [p.budget for p in kept or () if p.budget is not None]
    budget = np.concatenate(budgets) if budgets else None
    results = {k: [m.result() for m in meters] for k, meters in truth.items()}
    roundeds = {k: [m.result() for m in meters] for k, meters in against_rounded.items()}
    why, problem = reference.exempt.why if reference.exempt else "", reference.problem
    for s in sides:
        k = keys[s.label]
        totals = tuple(t.result() if unquantised is not None else {} for t in total[k])
        against = tuple(roundeds.get(k, results[k]))
        by_side[s.label] = Found(
            tuple(results[k]), against, totals, expected_rows, seen, coded, budget, (exempt[k], why), unbounded, trivial, problem
        )
    by_pair.update({pair: m.result() for pair, m in pairs.items()})


def _settled(codes: Codes, panel: Panel, reference: Reference | None, fmt: str) -> tuple[Codes, int]:
    """The codes with the expected ones where others are right too; how many those are."""
    right = None if reference is None or reference.exempt is None else reference.exempt.mask(codes, panel.values, panel.first_row)
    if reference is None or right is None:
        return codes, 0
    settled = codes.copy()
    settled[right] = panel.values[right] if reference.kind == "codes" else encode(panel.values[right], fmt)
    return settled, int(right.sum())


def _panels(shape: tuple[int, ...]) -> Iterator[Panel]:
    for first, end in row_blocks(shape):
        yield Panel(first, np.empty((end - first, 0)))


def measure_pair(a: SideTensor, b: SideTensor) -> Measured:
    """One side against the other, whole."""
    m = Meter(a.shape, a.format, expected_format=b.format, top=WORST)
    for first, end in row_blocks(a.shape):
        m.update(first, a.variants[0](first, end), b.variants[0](first, end))
    return m.result()
