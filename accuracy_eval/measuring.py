"""Measuring one output of a case: every side against the reference and against each other, in one pass over row panels.

What is found is numbers; `judge` makes verdicts of them. Nothing here reads files or runs devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.claims import Claims
from accuracy_eval.diagnose import rows_of
from accuracy_eval.formats import encode, get_format
from accuracy_eval.gates import Gate
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import Meter
from accuracy_eval.metrics.rounding_bias import RoundingMeter
from accuracy_eval.metrics.total import TotalMeter
from accuracy_eval.ops.spec import Panel, Reference, row_blocks, rows_and_columns
from accuracy_eval.records import Coded

Codes = NDArray[Any]
Tolerances = tuple[tuple[float, float], ...]  # rtol and atol of each
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
    """What measuring left of one side.

    truth, rounded  a measurement per variant against the truth, and against the truth rounded to the format
    total       per variant its total error (metrics.total, where anything was quantised) and what many elements share (Reference.shared)
    expected    expected rows, codes if `coded`, else float64 values; budget: what each element may be off by. None where there were too
                many to keep
    resolution  what the gates would have failed: claims.Claims
    exempt      how many elements differ from the truth and are right all the same, and why
    unbounded   elements without any bound; trivial: elements that are 0 without a step that could miss it
    problem     the GEMM behind the reference; None for other ops
    """

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
    sides: Sequence[SideTensor], reference: Reference | None, gates: Sequence[Gate]
) -> tuple[dict[str, Found], dict[tuple[str, str], Measured]]:
    """All sides of one format against the reference, by label, and against each other, by both labels: one pass over the panels.

    Without a reference there is nothing to find about a side alone. Sides of equal bytes are measured once and make no pair.
    """
    shape, fmt = sides[0].shape, sides[0].format
    # the digest was verified when the side was read
    keys = {s.label: s.sha256 if s.sha256 and len(s.variants) == 1 else s.label for s in sides}
    distinct = {keys[s.label]: s for s in reversed(sides)}
    tolerances = tuple(dict.fromkeys((g.rtol, g.atol) for g in gates if g.metric == "allclose_violations"))
    by_side = {k: _SideMeters(s, reference, gates, tolerances) for k, s in distinct.items()} if reference else {}
    unequal = [(a.label, b.label) for a, b in itertools.combinations(sides, 2) if keys[a.label] != keys[b.label]]
    by_pair = {pair: _between_codes(shape, fmt, tolerances) for pair in unequal}
    seen = _Seen(reference, shape, fmt, gates) if reference else None
    rounding = any(m.rounded for m in by_side.values())
    unquantised = reference.unquantised() if reference and reference.unquantised else None
    for panel in reference.panels() if reference else _panels(shape):
        first, end = panel.first_row, panel.first_row + len(panel.values)
        codes = {k: [rows(first, end) for rows in s.variants] for k, s in distinct.items()}
        rounded = encode(panel.values, fmt) if rounding else panel.values
        source = next(unquantised) if unquantised is not None else None
        for k, meters in by_side.items():
            meters.update(codes[k], panel, rounded, source)
        for (a, b), m in by_pair.items():
            m.update(first, codes[keys[a]][0], codes[keys[b]][0])
        if seen is not None:
            seen.update(panel)
    found = {k: meters.found(seen) for k, meters in by_side.items()} if seen is not None else {}
    return {s.label: found[keys[s.label]] for s in sides if found}, {pair: m.result() for pair, m in by_pair.items()}


def _between_codes(shape: tuple[int, ...], fmt: str, tolerances: Tolerances) -> Meter:
    return Meter(shape, fmt, expected_format=fmt, allclose=tolerances, top=WORST)


class _Seen:
    """What is kept of a reference as its panels pass by."""

    def __init__(self, reference: Reference, shape: tuple[int, ...], fmt: str, gates: Sequence[Gate]) -> None:
        self.reference = reference
        self.unbounded = self.trivial = 0
        self._kept: list[Panel] | None = [] if math.prod(shape) <= KEPT_ELEMENTS else None
        self._claims = Claims(shape, fmt, reference, gates)

    def update(self, panel: Panel) -> None:
        if self._kept is not None:
            self._kept.append(panel)
        self._claims.update(panel)
        if panel.budget is None:
            return
        self.unbounded += int(np.isinf(panel.budget).sum())
        self.trivial += int(((panel.budget == 0) & (panel.values == 0)).sum())

    @cached_property
    def resolution(self) -> Mapping[str, Any]:
        return self._claims.result()

    @cached_property
    def expected(self) -> Rows | None:
        return rows_of(np.concatenate([p.values for p in self._kept])) if self._kept else None

    @cached_property
    def budget(self) -> NDArray[np.float64] | None:
        budgets = [p.budget for p in self._kept or () if p.budget is not None]
        return np.concatenate(budgets) if budgets else None


class _SideMeters:
    """The meters of every variant of one side: against the truth, against the rounded truth where a gate asks for it, of total error."""

    def __init__(self, side: SideTensor, reference: Reference, gates: Sequence[Gate], tolerances: Tolerances) -> None:
        self._reference, self._format = reference, side.format
        shape, fmt, coded = side.shape, side.format, reference.kind == "codes"
        rounded = not coded and any(g.round_expected for g in gates)

        def against_truth() -> Meter:
            return _between_codes(shape, fmt, tolerances) if coded else Meter(shape, fmt, reference=True, allclose=tolerances, top=WORST)

        self.truth = [against_truth() for _ in side.variants]
        self.rounded = [_between_codes(shape, fmt, tolerances) for _ in side.variants] if rounded else []
        self._total = [TotalMeter(rows_and_columns(shape)[0], fmt) for _ in side.variants]
        columns, narrow = rows_and_columns(shape)[1], get_format(fmt).kind == "float" and get_format(fmt).bits == 16
        self._alike = [RoundingMeter(columns, fmt, reference.alike) for _ in side.variants if narrow and reference.alike]
        of_whole = reference.shared or (lambda codes: {})
        self._shared = [of_whole(rows(0, rows_and_columns(shape)[0])) for rows in side.variants]
        self._exempt = 0

    def update(self, codes: Sequence[Codes], panel: Panel, rounded: NDArray[Any], source: Panel | None) -> None:
        """The codes of every variant in the rows of a panel; `rounded`: its values in the side's format; `source` as in TotalMeter."""
        first = panel.first_row
        settled, counts = zip(*(_settled(c, panel, self._reference, self._format) for c in codes), strict=True)
        self._exempt += max(counts)
        for m, c in zip(self.truth, settled, strict=True):
            m.update(first, c, panel.values, panel.budget, panel.typical)
        if self._alike and panel.budget is not None:
            for r, c in zip(self._alike, codes, strict=True):
                r.update(c, panel.values, panel.budget)
        if self.rounded:
            for m, c in zip(self.rounded, settled, strict=True):
                m.update(first, c, rounded)
        if source is not None:
            assert (source.first_row, source.values.shape) == (first, panel.values.shape)
            for t, c in zip(self._total, codes, strict=True):
                t.update(first, c, panel.values, source.values, panel.budget, panel.typical)

    def found(self, seen: _Seen) -> Found:
        """What the panels so far have shown."""
        reference = self._reference
        truth = tuple(m.result() for m in self.truth)
        alike = [r.result() for r in self._alike] or [{} for _ in truth]
        return Found(
            truth,
            tuple(m.result() for m in self.rounded) or truth,
            tuple(
                {**(t.result() if reference.unquantised else {}), **m, **r}
                for t, m, r in zip(self._total, self._shared, alike, strict=True)
            ),
            seen.expected, seen.resolution, reference.kind == "codes", seen.budget,
            (self._exempt, reference.exempt.why if reference.exempt else ""),
            seen.unbounded, seen.trivial, reference.problem,
        )  # fmt: skip


def _settled(codes: Codes, panel: Panel, reference: Reference, fmt: str) -> tuple[Codes, int]:
    """The codes with the expected ones where others are right too; how many those are."""
    right = None if reference.exempt is None else reference.exempt.mask(codes, panel.values, panel.first_row)
    if right is None:
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
