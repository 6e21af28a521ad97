"""What a sample shows of one side: exact lines, and the projections of all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from accuracy_eval.claims import hold_budgets
from accuracy_eval.cpu_ref.gemm import Panel
from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.cpu_ref.sampling import Limits, Sample, chance_limit, limits, whole
from accuracy_eval.diagnose import named, whole_words
from accuracy_eval.formats import Values, get_format
from accuracy_eval.judge import broken_run
from accuracy_eval.measuring import Rows, SideTensor
from accuracy_eval.ops.spec import Output, Reference, row_blocks
from accuracy_eval.records import Diagnosis, GateResult, Side, Verdict
from accuracy_eval.sampled.parts import Indices, Part

SUSPECTS = 64  # rows, and columns, that are computed exactly because their projections are beyond the limit
GATE = "projections"
SOURCE = "sub-Gaussian tail of random signs at 8 standard deviations, over the budgets of the exact lines (docs/budgets.md)"


@dataclass(frozen=True)
class _Screen:
    """Projected errors of one output relative to their limits: rows [m], columns [n]; above 1 is suspect."""

    rows: Values
    columns: Values


class View:
    """What a sample shows of one side's output."""

    def __init__(self, output: Output, reference: Reference, side: SideTensor) -> None:
        assert reference.sample is not None
        self.output, self.reference, self.side = output, reference, side
        self.problem: Gemm = reference.problem
        self.sample: Sample = reference.sample()
        self.limits: Limits = limits(self.sample, output.format)
        found = [self._screened(rows, side) for rows in side.variants]
        # of all distinct results of the repeats
        self.screen = _Screen(*(np.max([getattr(f, axis) for f in found], axis=0) for axis in ("rows", "columns")))

    def _screened(self, codes: Rows, s: SideTensor) -> _Screen:
        p, f = self.sample.projections, get_format(s.format)
        rows, sums = np.empty(s.shape[0]), np.zeros_like(p.of_columns)
        with np.errstate(invalid="ignore", over="ignore"):
            for first, end in row_blocks(s.shape):
                values = Operand(codes(first, end), f).values()
                rows[first:end] = _root_mean_square(values @ p.across - p.of_rows[first:end])
                sums += values.T @ p.down[first:end]
            return _Screen(_excess(rows, self.limits.rows), _excess(_root_mean_square(sums - p.of_columns), self.limits.columns))

    def _part(self, axis: int) -> Part:
        """The rows (axis 0) or columns that are judged exactly: those of the sample and the worst suspects."""
        sample, contract, out = self.sample, self.reference.contract, self.output.format
        at, panel = (sample.rows, sample.row_panel) if axis == 0 else (sample.columns, sample.column_panel)
        take = self.problem.take_rows if axis == 0 else self.problem.take_columns
        more = np.sort(_suspects((self.screen.rows, self.screen.columns)[axis], at))
        if len(more):
            extra = whole(take(more), contract, out)
            order = np.argsort(np.concatenate([at, more]), kind="stable")
            at = np.concatenate([at, more])[order]
            pairs = [(getattr(panel, name), getattr(extra, name)) for name in ("values", "budget", "typical")]
            values, budget, typical = (np.take(np.concatenate(both, axis=axis), order, axis=axis) for both in pairs)
            panel = Panel(0, values, budget, typical=typical)
        shape = panel.values.shape
        part = Output(self.output.name, (shape[0], shape[1]), out, self.output.exact)
        source = self.reference.source.take_rows(at) if axis == 0 and self.reference.source is not None else None
        return Part(axis, at, panel, take(at), part, contract, source)

    def judged(self, judge: Callable[[Part], Side]) -> Side:
        """The side of the whole output, from its judged parts and its projections."""
        rows, columns = (self._part(axis) for axis in (0, 1))
        side = self._with_projections(self._joined((rows, judge(rows)), (columns, judge(columns))), (rows, columns))
        broken = broken_run(self.side)
        return replace(side, verdict=Verdict.FAIL, diagnoses=(*broken, *side.diagnoses)) if broken else side

    def _joined(self, rows: tuple[Part, Side], columns: tuple[Part, Side]) -> Side:
        """The worse part's side with the metrics that only the other knows, the stricter result of each gate, and where suspects lie."""
        part, worse = max((rows, columns), key=lambda p: (p[1].verdict.severity, p[1].metrics.get("budget_max") or 0.0))
        side, of_rows = part.moved(worse), rows[1]
        unknown = {k: v for k, v in of_rows.metrics.items() if side.metrics.get(k) is None and not k.endswith("_index")}
        side = replace(
            side, scope="sampled", resolution=self._resolution(of_rows), metrics={**side.metrics, **unknown},
            gates=_stricter(of_rows.gates, columns[1].gates),
        )  # fmt: skip
        if side.verdict is not Verdict.FAIL:
            return side
        known = {d.code for d in side.diagnoses}
        return replace(side, diagnoses=(*side.diagnoses, *(d for d in self._places() if d.code not in known)))

    def _with_projections(self, side: Side, parts: tuple[Part, Part]) -> Side:
        """The side held to the projections of the lines that no exact part holds."""
        left = [np.delete(x, p.at) for x, p in zip((self.screen.rows, self.screen.columns), parts, strict=True)]
        beyond = sum(int((x > 1).sum()) for x in left)
        gate = GateResult(GATE, "projected_error", max((float(x.max(initial=0.0)) for x in left), default=0.0), "<=", 1.0, True, SOURCE)
        if beyond and side.verdict is Verdict.FAIL:
            gate = replace(gate, passed=False)
        elif beyond:
            why = (
                f"{beyond} rows and columns are beyond the limit of a projection although the {SUSPECTS} furthest beyond it are within "
                "their budgets; --reference full decides"
            )
            gate = replace(gate, passed=None, note=why)
            side = replace(side, verdict=Verdict.INCONCLUSIVE, note=why)
        elif self._blind and side.verdict is Verdict.PASS:
            side = replace(side, verdict=Verdict.WARN, note=self._blind)
        return replace(side, gates=(*side.gates, gate))

    @cached_property
    def _blind(self) -> str:
        """Said where NaN or Inf in the reference leave elements that neither a row's nor a column's projection sees."""
        rows, columns = (int(np.isinf(x).sum()) for x in (self.limits.rows, self.limits.columns))
        if not rows or not columns:
            return ""
        return f"the reference of {rows} rows and {columns} columns holds NaN or Inf: where they meet only the exact rows and columns see"

    def _places(self) -> list[Diagnosis]:
        """Where the suspect lines are, if they are one run and not all: rows or columns, whichever show the larger errors.

        A single element shows the same error in its row and in its column, and is neither.
        """
        found = []
        for excess, limit in ((self.screen.rows, self.limits.rows), (self.screen.columns, self.limits.columns)):
            beyond = np.flatnonzero(excess > 1)
            found.append((beyond, float(np.max(excess[beyond] * limit[beyond], initial=0.0)), len(excess)))
        larger = max(range(2), key=lambda axis: found[axis][1])
        (lines, size, count), (_, other, _) = found[larger], found[1 - larger]
        if not len(lines) or lines[-1] - lines[0] + 1 != len(lines) or len(lines) == count or not size > 2.0 * other:
            return []
        line, first, last = ("row", "column")[larger], int(lines[0]), int(lines[-1])
        return [named(f"{line}s", {"first": first, "last": last}, **whole_words(line, first, last, count))]

    def _resolution(self, of_rows: Side) -> dict[str, Any]:
        """What would have failed: gains and lost products by the exact rows, elements and lines by the projections.

        A fault beside an error within the budget shows at least its own size less the limit; of a spread one, 19 in 20 show more than
        the 5 % quantile of χ² over the probes (Wilson and Hilferty 1931). Suspects are judged exactly, so that gates which do not hold
        them to their budgets leave nothing to say of elements and lines.
        """
        kept = {k: v for k, v in of_rows.resolution.items() if k in ("gain", "k_seen", "k_total", "k_unseen", "gain_95")}
        if not hold_budgets(of_rows.gates):
            return kept
        p = self.sample.projections
        probes = p.across.shape[1]
        spread = 2.0 / (9.0 * probes)
        seen = (1.0 - spread - 1.645 * spread**0.5) ** 1.5
        shown = (1.0 + chance_limit(probes) ** -0.5) / seen
        by_line = [
            float(np.max(np.where(size > 0, shown * limit / np.where(size > 0, size, 1.0), 0.0), initial=0.0))
            for limit, size in ((self.limits.rows, self.limits.row_norms), (self.limits.columns, self.limits.column_norms))
        ]
        return {
            "element": 2.0 * min(float(x.max(initial=0.0)) for x in (self.limits.rows, self.limits.columns)),
            "element_median": 2.0 * min(float(np.median(x)) for x in (self.limits.rows, self.limits.columns)),
            **kept,
            "row_95": by_line[0], "column_95": by_line[1],
            "exact_rows": len(self.sample.rows), "exact_columns": len(self.sample.columns),
            "probes": probes, "standard_error": p.standard_error,
        }  # fmt: skip


def _stricter(rows: Sequence[GateResult], columns: Sequence[GateResult]) -> tuple[GateResult, ...]:
    """Of each gate's results on two parts the broken one, else the one that was applied, else the one with less margin."""

    def strictness(g: GateResult) -> tuple[int, float]:
        return (2 if g.passed is False else 1 if g.passed else 0), -(math.inf if g.margin is None else g.margin)

    others = {g.gate: g for g in columns}
    return tuple(max(g, others.get(g.gate, g), key=strictness) for g in rows)


def _root_mean_square(x: Values) -> Values:
    return np.asarray(np.sqrt(np.mean(x * x, axis=1)))


def _excess(error: Values, limit: Values) -> Values:
    """error / limit; 0 where there is no limit, Inf where the error is NaN or the limit is 0 and broken."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(error == 0, 0.0, error / limit)
    return np.where(np.isinf(limit), 0.0, np.where(np.isfinite(ratio), ratio, np.inf))


def _suspects(excess: Values, held: Indices) -> Indices:
    """Indices of the lines furthest beyond their limit, at most SUSPECTS, that are not held already."""
    beyond = np.flatnonzero(excess > 1)
    new = np.setdiff1d(beyond, held)
    return np.asarray(new[np.argsort(-excess[new], kind="stable")][:SUSPECTS])
