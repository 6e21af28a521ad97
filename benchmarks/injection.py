"""Single faults put into the GEMM outputs of a dump: does the stated resolution say from what size on they are caught?

    python benchmarks/injection.py h200.h5 [more.h5 …] [--faults 100] [--cases 400] [--json]

For every random-lane GEMM output that passes, faults of four kinds are added to the stored values, which are then rounded to the
output format again: one element changed; normal noise in one row; normal noise in one column; everything multiplied by 1 ± g. For
each fault the size from which the budget gate fails is found by bisection, and confirmed by the judge itself just above and just
below. The size caught in 95 % of a kind's faults is compared with the predicted one (`element_95`, `row_95`, `column_95`, `gain_95`
of `Side.resolution`). A fifth kind, the products of one k left out, has no size: the share caught is compared with k_seen / k_total.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accuracy_eval.budget import within_budget
from accuracy_eval.formats import decode, encode, ulp
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.metrics.aggregates import FEWEST, LIMIT, TILE
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output, Reference
from accuracy_eval.records import Case, Coded, Side, Verdict
from accuracy_eval.store import Dump

KINDS = ("element", "row", "column", "gain")
EVERY = 1 << 14  # single elements changed: all of an output both ways where that is no more
FACTOR = 1.5  # how far the observed size may be from the predicted one


@dataclass(frozen=True)
class Faults:
    """Single faults of one kind in one output, side by side: values + size · change at the flat places `at`; all [faults, elements]."""

    at: np.ndarray
    change: np.ndarray


@dataclass(frozen=True)
class Tensor:
    """One output of a dump: its codes [m, n], values, truth, budget and typical budget."""

    name: str
    case: Case
    output: Output
    contract: str
    codes: np.ndarray
    values: np.ndarray
    truth: np.ndarray
    budget: np.ndarray
    typical: np.ndarray
    reference: Reference

    @property
    def operands(self) -> str:
        """Format of the operands, and the recipe that quantised them."""
        return f"{self.case.format} {self.case.recipe}".strip()

    def judge(self, codes: np.ndarray) -> Side:
        side = side_of("dump", Coded(codes.reshape(self.output.shape), self.output.format), contract=self.contract)
        subject = Subject(self.case, self.output, self.name, "gemm")
        return judge_tensor(subject, [side], {"dump": self.reference}, load_profile("default")).sides[0]

    def faulty(self, f: Faults, sizes: np.ndarray) -> np.ndarray:
        """Codes at the places of each fault."""
        with np.errstate(over="ignore", invalid="ignore"):
            return encode(self.values.reshape(-1)[f.at] + sizes[:, None] * f.change, self.output.format)

    def caught(self, f: Faults, sizes: np.ndarray) -> np.ndarray:
        """Which faults the budget gates see: as the judge decides, without its metrics."""
        fmt, codes = self.output.format, self.faulty(f, sizes)
        truth, budget = self.truth.reshape(-1)[f.at], self.budget.reshape(-1)[f.at]
        together = self.together(f, decode(codes, fmt), truth)
        if fmt == "float64":
            # an interval of float64 numbers is widened by an ulp, as much as the budget itself
            values = decode(codes, fmt)
            return together | (np.abs(values - truth) - np.spacing(np.abs(values)) / 2 > budget).any(axis=1)
        return together | ~within_budget(codes, truth, budget, fmt).all(axis=1)

    def tiles(self) -> Iterator[tuple[int, int]]:
        """Corners of the tiles that a gate looks at."""
        m, n = self.values.shape
        corners = ((i, j) for i in range(0, m, TILE) for j in range(0, n, TILE))
        return (c for c in corners if min(TILE, m - c[0]) * min(TILE, n - c[1]) >= FEWEST)

    def together(self, f: Faults, values: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Which faults the gate on the row or column they fill sees; those of a whole output in its worst row, column or tile."""
        if f.at.shape[1] < FEWEST:
            return np.zeros(len(values), bool)
        near = np.where(np.abs(truth) >= np.abs(values), np.abs(values), np.nextafter(np.abs(values), 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.maximum(np.abs(values - truth) - ulp(near, self.output.format) / 2, 0)
            square = np.where(left > 0, np.square(left / self.typical.reshape(-1)[f.at]), 0.0)
        if f.at.shape[1] < self.values.size:
            return np.sqrt(square.mean(axis=1)) > LIMIT
        lines = square.reshape(-1, *self.values.shape)
        uses = [lines.mean(axis=axis).max(axis=1) for axis in (1, 2) if lines.shape[axis] >= FEWEST]
        uses += [lines[:, i : i + TILE, j : j + TILE].mean(axis=(1, 2)) for i, j in self.tiles()]
        return np.sqrt(np.max([*uses, np.zeros(len(values))], axis=0)) > LIMIT


def tensors(path: str) -> Iterator[Tensor]:
    """Every random-lane GEMM output of a dump."""
    dump = Dump.open(path)
    for record in dump.records:
        case = record.case
        if case.op != "gemm" or case.lane != "random" or record.status != "done":
            continue
        spec = get_op(case.op)
        inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
        references = spec.reference(case, inputs, "ocp", record.contract)
        for output in spec.outputs(case, "ocp"):
            stored = next(t for t in record.tensors if t.role == "output" and t.name == output.name)
            panels = list(references[output.name].panels())
            if not panels or not math.prod(output.shape):
                continue
            truth, budget, typical = (np.concatenate([getattr(p, part) for p in panels]) for part in ("values", "budget", "typical"))
            codes = np.array(dump.view(record, stored)).reshape(truth.shape)
            held = replace(references[output.name], panels=lambda panels=panels: iter(panels))
            yield Tensor(
                f"{record.id} @{record.candidate} {output.name}",
                case,
                output,
                record.contract,
                codes,
                decode(codes, output.format),
                truth,
                budget,
                typical,
                held,
            )


def faults(t: Tensor, kind: str, count: int, rng: np.random.Generator) -> Faults:
    """Faults of a kind at random places, of unit size; noise and gain are relative to what they change. Zero lines are left out."""
    m, n = t.values.shape
    every = np.arange(m * n).reshape(m, n)
    if kind == "gain":
        return Faults(np.repeat(every.reshape(1, -1), 2, axis=0), t.values.reshape(-1) * np.array([[1.0], [-1.0]]))
    if kind == "element":
        # thresholds of 16-bit outputs come in powers of two: a sample's 95 % point may fall on either side of a step
        at = np.tile(every.reshape(-1, 1), (2, 1)) if 2 * m * n <= EVERY else rng.integers(m * n, size=(EVERY, 1))
        return Faults(at, np.repeat([[1.0], [-1.0]], len(at) // 2, axis=0))
    lines = every if kind == "row" else every.T
    at = lines[rng.integers(len(lines), size=count)]
    rms = np.sqrt(np.mean(np.square(t.truth.reshape(-1)[at]), axis=1, keepdims=True))
    at, rms = at[rms[:, 0] > 0], rms[rms[:, 0] > 0]
    return Faults(at, rng.standard_normal(at.shape) * rms)


def thresholds(t: Tensor, f: Faults, start: float) -> np.ndarray:
    """The size from which each fault is caught, within 1 %; Inf where none up to 4^40 × start is."""
    low = high = np.full(len(f.at), start)
    for _ in range(40):
        found = t.caught(f, high)
        if found.all():
            break
        low, high = np.where(found, low, high), np.where(found, high, 4 * high)
    never = ~t.caught(f, high)
    for _ in range(40):
        found = t.caught(f, low) & ~never
        if not found.any():
            break
        low, high = np.where(found, low / 4, low), np.where(found, low, high)
    while len(f.at) and (high / low).max() > 1.01:
        middle = np.sqrt(low * high)
        found = t.caught(f, middle)
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    return np.where(never, math.inf, high)


def lost_k(t: Tensor, count: int, rng: np.random.Generator) -> tuple[int, int]:
    """Of `count` values of k (those that change anything): how many were caught when their products were left out, and tried."""
    p = t.reference.problem
    a, b = p.a_values(slice(0, p.m), slice(0, p.k)), p.b_values(slice(0, p.k), slice(0, p.n))
    every = np.arange(p.m * p.n)[None]
    lost = [p.scalars[0] * np.outer(a[:, k], b[k]).reshape(1, -1) for k in rng.permutation(p.k)[:count]]
    tried = [x for x in lost if x.any()]
    return sum(bool(t.caught(Faults(every, -x), np.ones(1))[0]) for x in tried), len(tried)


def confirmed_by_judge(t: Tensor, f: Faults, index: int, size: float) -> bool:
    """Whether the judge fails a fault at that size and passes it 2 % below."""
    verdicts = []
    for s in (size, size / 1.02):
        codes = t.codes.copy().reshape(-1)
        codes[f.at[index]] = t.faulty(Faults(f.at[index : index + 1], f.change[index : index + 1]), np.array([s]))[0]
        verdicts.append(t.judge(codes).verdict)
    return verdicts[0] is Verdict.FAIL and verdicts[1] is not Verdict.FAIL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+")
    parser.add_argument("--faults", type=int, default=100, help="rows, columns and k of each output; of single elements all, up to 16384")
    parser.add_argument("--cases", type=int, default=400, help="outputs at most, spread over the dumps")
    parser.add_argument("--confirm", type=int, default=1, help="faults of a kind for each output that the judge itself confirms")
    parser.add_argument("--json", action="store_true", help="every kind × output as JSON")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    found = [t for path in options.dumps for t in tensors(path)]
    chosen = [found[i] for i in np.unique(np.linspace(0, len(found) - 1, min(options.cases, len(found))).astype(int))]
    rows: list[dict[str, Any]] = []
    total = checked = confirmed = failing = 0
    for t in chosen:
        healthy = t.judge(t.codes)
        if healthy.verdict is Verdict.FAIL:
            failing += 1
            continue
        for kind in KINDS:
            predicted = float(healthy.resolution[f"{kind}_95"])
            if not 0 < predicted < math.inf:
                continue
            made = faults(t, kind, options.faults, rng)
            sizes = thresholds(t, made, predicted)
            for index in range(min(options.confirm, len(sizes))):
                if sizes[index] < math.inf:
                    checked += 1
                    confirmed += confirmed_by_judge(t, made, index, sizes[index])
            if len(sizes):
                total += len(sizes)
                observed = float(np.quantile(sizes, 0.95, method="higher"))
                found_here = {"predicted": predicted, "observed": observed, "faults": len(sizes)}
                rows.append({"output": t.name, "operands": t.operands, "kind": kind, **found_here})
        if t.reference.problem is not None and healthy.resolution["k_total"]:
            caught, tried = lost_k(t, options.faults, rng)
            total += tried
            if tried and healthy.resolution["k_seen"]:
                share = healthy.resolution["k_seen"] / healthy.resolution["k_total"]
                found_here = {"predicted": share, "observed": caught / tried, "faults": tried}
                rows.append({"output": t.name, "operands": t.operands, "kind": "lost k", **found_here})
    if options.json:
        print(json.dumps(rows))
    print(report(rows))
    print(f"\n{total} faults in {len(chosen) - failing} outputs; {failing} more failed before any fault. "
          f"The judge itself confirmed {confirmed} of {checked} sizes.")  # fmt: skip
    return 0 if rows and held(rows) >= 0.9 else 1


def ratios(rows: list[dict[str, Any]]) -> np.ndarray:
    return np.array([r["observed"] / r["predicted"] for r in rows])


def held(rows: list[dict[str, Any]]) -> float:
    """Share of kinds × outputs whose observed size is within FACTOR of the predicted one."""
    x = ratios(rows)
    return float(np.mean((x <= FACTOR) & (x >= 1 / FACTOR)))


def report(rows: list[dict[str, Any]]) -> str:
    """By operands and kind: the ratio observed / predicted, 5 % · median · 95 % of the outputs, and the share within the factor."""
    kinds = (*KINDS, "lost k")
    lines = ["| operands | outputs | faults | " + " | ".join(kinds) + " |", "|-" * (3 + len(kinds)) + "|"]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        groups[r["operands"]].append(r)
    for operands, of in [*sorted(groups.items()), ("all", rows)]:
        cells = [_cell([r for r in of if r["kind"] == kind]) for kind in kinds]
        lines.append(f"| {operands} | {sum(r['kind'] == 'element' for r in of)} | {sum(r['faults'] for r in of)} | {' | '.join(cells)} |")
    lines.append(f"\n{100 * held(rows):.1f} % of {len(rows)} kinds × outputs within {FACTOR}×.")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    low, middle, high = np.quantile(ratios(rows), [0.05, 0.5, 0.95])
    return f"{low:.2f} · {middle:.2f} · {high:.2f}, {100 * held(rows):.0f} %"


if __name__ == "__main__":
    sys.exit(main())
