"""Judging by a sampled reference: exact rows and columns by every gate, all others by random projections.

The exact lines are tensors of their own, judged like any other. The projections of all lines are held to what a line within its budget
can show (cpu_ref.sampling.limits); a line beyond it is suspect, and the worst suspects are computed exactly too, so that a fault has an
element, an index and causes. What is left is a verdict with scope "sampled" and the sizes of fault that it would have seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.attribution import attribute
from accuracy_eval.claims import hold_budgets
from accuracy_eval.cpu_ref.gemm import Panel
from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.cpu_ref.sampling import LINES, Limits, Sample, chance_limit, full_reference, limits, sampled_reference, whole
from accuracy_eval.diagnose import named, whole_words
from accuracy_eval.formats import Values, get_format
from accuracy_eval.gates import Profile
from accuracy_eval.judge import Subject, Under, broken_run, judge_tensor, misfit
from accuracy_eval.measuring import Rows, SideTensor, measure_pair
from accuracy_eval.ops.gemm import product_reference
from accuracy_eval.ops.spec import Inputs, Output, Reference, row_blocks
from accuracy_eval.ops.spec import Panel as Truth
from accuracy_eval.records import Coded, Diagnosis, GateResult, Side, Sketch, TensorResult, Verdict, WorstElement

Indices = NDArray[np.int64]
SUSPECTS = 64  # rows, and columns, that are computed exactly because their projections are beyond the limit
GATE = "projections"
SOURCE = "sub-Gaussian tail of random signs at 8 standard deviations, over the budgets of the exact lines (docs/budgets.md)"
# said of whole tensors: in a sample of rows (columns) a place along them, and the transpose, mean nothing
_WHOLE = frozenset({"block", "periodic", "zero-tail", "transposed"})
_PLACES = (_WHOLE | {"rows"}, _WHOLE | {"columns"})


def scoped(reference: Reference, mode: Literal["full", "sampled", "auto"]) -> Reference:
    """The reference as `mode` wants it: whole, or with a sample to judge by. "auto" samples products over 2^41 operations.

    Only products are sampled, and only where a sample is less than the whole; anything else costs little.
    """
    p = reference.problem
    if mode == "full" or not isinstance(p, Gemm) or reference.kind == "codes" or min(p.m, p.n) <= LINES:
        return reference
    if mode == "auto" and full_reference(p):
        return reference
    return replace(reference, sample=cache(partial(sampled_reference, p, contract=reference.contract, out_format=reference.format)))


def judge_sampled(
    subject: Subject,
    sides: Sequence[SideTensor],
    references: Mapping[str, Reference],
    profile: Profile,
    *,
    cross_format: bool = False,
    under: Under | None = None,
    inputs: Mapping[str, Inputs] = MappingProxyType({}),
) -> TensorResult:
    """As `judge.judge_tensor`, for references that have a `sample`. Pairs are measured whole: they need no reference."""
    output = subject.output
    judged: dict[str, Side] = {}
    for s in sides:
        reference = references[s.label]

        def judge(part: _Part, s: SideTensor = s, reference: Reference = reference) -> Side:
            looser = None if under is None else (lambda label, contract: part.reference(contract))
            result = judge_tensor(
                replace(subject, output=part.output), [part.side(s)], {s.label: part.reference(reference.contract)}, profile,
                under=looser, inputs={s.label: part.inputs(inputs.get(s.label, {}))},
            )  # fmt: skip
            return result.sides[0]

        judged[s.label] = misfit(s, output) or _View(output, reference, s).judged(judge)
    pairs = []
    for i, a in enumerate(sides):
        for b in sides[i + 1 :]:
            kind = a.format == b.format and references[a.label].problem is references[b.label].problem
            fit = all(misfit(s, output) is None for s in (a, b)) and (kind or cross_format)
            measured = measure_pair(a, b) if fit and not (kind and a.sha256 and a.sha256 == b.sha256) else None
            pairs.append(attribute(output, judged[a.label], judged[b.label], measured, referenced=True, kin=kind))
    return subject.result(list(judged.values()), pairs)


@dataclass(frozen=True)
class _Screen:
    """Projected errors of one output relative to their limits: rows [m], columns [n]; above 1 is suspect."""

    rows: Values
    columns: Values


@dataclass(frozen=True)
class _Part:
    """Some rows (axis 0) or columns (axis 1) of an output: a tensor of its own, the result of `problem`.

    source  the same of the operands before they were quantised, for rows: total error is judged row by row
    """

    axis: int
    at: Indices
    panel: Panel
    problem: Gemm
    output: Output
    contract: str
    source: Gemm | None = None

    def side(self, s: SideTensor) -> SideTensor:
        held = [self._codes(rows, s.shape) for rows in s.variants]
        variants = tuple((lambda first, end, codes=codes: codes[first:end]) for codes in held)
        return replace(s, shape=self.output.shape, variants=variants, never_written=0, changed=())

    def _codes(self, rows: Rows, shape: tuple[int, ...]) -> NDArray[Any]:
        if self.axis == 0:
            return np.concatenate([rows(int(i), int(i) + 1) for i in self.at])
        return np.concatenate([rows(first, end)[:, self.at] for first, end in row_blocks(shape)])

    def reference(self, contract: str) -> Reference:
        """The part's truth under a contract; the one it was sampled under is not computed again."""
        panel = self.panel

        def panels() -> Any:
            held = panel if contract == self.contract else whole(self.problem, contract, self.output.format)
            yield Truth(0, held.values, held.budget, held.typical)

        reference = replace(product_reference(self.problem, contract, self.output.format), panels=panels)
        return reference if self.source is None else replace(reference, unquantised=partial(self._unquantised, self.source))

    def _unquantised(self, source: Gemm) -> Iterator[Truth]:
        yield Truth(0, whole(source, None, self.output.format).values)

    def inputs(self, given: Inputs) -> Inputs:
        """Operands of the part; none where they are not those of a plain product."""
        p = self.problem
        if not given or not set(given) <= {"a", "b", "c", "bias"}:
            return {}
        found: dict[str, Coded | None] = {"a": p.a, "b": p.b, "c": p.c, "bias": p.bias}
        return {n: c for n, c in found.items() if c is not None and n in given}

    def index(self, found: Any) -> Any:
        """An index of the part as one of the whole output."""
        if not isinstance(found, list | tuple) or len(found) != 2:
            return found
        place = [int(i) for i in found]
        place[self.axis] = int(self.at[place[self.axis]])
        return place

    def moved(self, side: Side) -> Side:
        """A side of the part with the whole output's indices, without what only a whole tensor can show."""
        metrics = {k: self.index(v) if k.endswith("_index") else v for k, v in side.metrics.items()}
        for line in (("worst_row", "row_budget_index"), ("worst_col", "col_budget_index"))[self.axis]:
            if metrics.get(line) is not None:
                metrics[line] = int(self.at[metrics[line]])
        for tile in ("worst_tile", "tile_budget_index"):
            metrics.pop(tile, None)
        kept = tuple(self._diagnosis(d) for d in side.diagnoses if d.code not in _PLACES[self.axis])
        worst = tuple(self._element(e) for e in side.worst)
        # a map of the part would be read as one of the whole
        sketch = Sketch(side.sketch.ulp_histogram)
        return replace(side, metrics=metrics, diagnoses=kept, worst=worst, sketch=sketch)

    def _diagnosis(self, d: Diagnosis) -> Diagnosis:
        if d.code not in ("nan-in-actual", "inf-in-actual"):
            return d
        evidence = {**d.evidence, "index": self.index(d.evidence["index"])}
        return named(d.code, evidence, total=int(np.prod(self.output.shape)))

    def _element(self, e: WorstElement) -> WorstElement:
        return replace(e, index=tuple(self.index(e.index)))


class _View:
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

    def _part(self, axis: int) -> _Part:
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
        return _Part(axis, at, panel, take(at), part, contract, source)

    def judged(self, judge: Callable[[_Part], Side]) -> Side:
        """The side of the whole output, from its judged parts and its projections."""
        s, screen = self.side, self.screen
        found = [(part, judge(part)) for part in (self._part(0), self._part(1))]
        part, worse = max(found, key=lambda p: (p[1].verdict.severity, p[1].metrics.get("budget_max") or 0.0))
        excess = (screen.rows, screen.columns)
        left = [np.delete(x, p.at) for x, (p, _) in zip(excess, found, strict=True)]  # lines that no exact part holds
        open_lines = sum(int((x > 1).sum()) for x in left)
        side = replace(part.moved(worse), scope="sampled", resolution=self._resolution(found[0][1]))
        side = replace(side, gates=_stricter(found[0][1].gates, found[1][1].gates))
        unknown = {k: v for k, v in found[0][1].metrics.items() if side.metrics.get(k) is None and not k.endswith("_index")}
        side = replace(side, metrics={**side.metrics, **unknown})
        if side.verdict is Verdict.FAIL:
            known = {d.code for d in side.diagnoses}
            side = replace(side, diagnoses=(*side.diagnoses, *(d for d in self._places() if d.code not in known)))
        gate = GateResult(GATE, "projected_error", max((float(x.max(initial=0.0)) for x in left), default=0.0), "<=", 1.0, True, SOURCE)
        if open_lines and side.verdict is not Verdict.FAIL:
            why = (
                f"{open_lines} rows and columns are beyond the limit of a projection although the {SUSPECTS} furthest beyond it are within "
                "their budgets; --reference full decides"
            )
            gate = replace(gate, passed=None, note=why)
            side = replace(side, verdict=Verdict.INCONCLUSIVE, note=why)
        elif open_lines:
            gate = replace(gate, passed=False)
        elif self._blind and side.verdict is Verdict.PASS:
            side = replace(side, verdict=Verdict.WARN, note=self._blind)
        side = replace(side, gates=(*side.gates, gate))
        broken = broken_run(s)
        return replace(side, verdict=Verdict.FAIL, diagnoses=(*broken, *side.diagnoses)) if broken else side

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
