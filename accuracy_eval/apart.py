"""How far apart two outputs may be where no reference judges them: by what each side's contract allows on the case's operands.

Two results that keep their promises are within B_a + B_b of each other before they are rounded, B the budgets of `cpu_ref.running`. The
truth itself is not asked: both sides may be off together, and nobody is named. A large product has its budgets computed for some
rows and columns; all others are held to what those say of the norm of a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.budget import within_budget
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.sampling import LINES, line_sums, sample_lines, whole
from accuracy_eval.formats import Codes, Values, decode, ulp
from accuracy_eval.measuring import SideTensor
from accuracy_eval.messages import index_text, number
from accuracy_eval.metrics.measured import Measured, NoiseMap
from accuracy_eval.ops.spec import Panel, Reference, row_blocks, rows_and_columns

# products up to both have all their budgets computed: 0.3 s of products and 1 s of limits on two cores
FULL_FLOP = 1 << 33
FULL_ELEMENTS = 1 << 22
NORMS = 2.0  # of a line outside the sample, in units of what 64 of its elements say: those may miss its heaviest


def _large(p: Gemm) -> bool:
    return (p.flop > FULL_FLOP or p.m * p.n > FULL_ELEMENTS) and min(p.m, p.n) > LINES


@dataclass(frozen=True)
class Distance:
    """Whether two outputs are as near as they must be, None where that could not be told, and how near they are in words."""

    passed: bool | None
    sentence: str


@dataclass(frozen=True)
class Apart:
    """The limits of one output between any two of its sides.

    meaning     by side label: sides of equal meaning received the same numbers
    references  by side label: the reference whose budgets say what the side's contract allows
    """

    meaning: Mapping[str, str]
    references: Mapping[str, Reference]

    def between(self, a: SideTensor, b: SideTensor, measured: Measured) -> Distance:
        """Whether two outputs are as near as both contracts promise; `measured` is a against b."""
        left, right = self.references[a.label], self.references[b.label]
        if left.kind == "codes":
            count = measured.metrics["value_mismatch_count"]
            return Distance(count == 0, f"{count} elements differ; every order of these sums gives the same bits")
        problem = left.problem
        if isinstance(problem, Gemm) and _large(problem):
            return _sampled(a, b, problem, measured)
        found = _Uses(a.format)
        for part in _panels(a, b, left, right):
            if part.budget is None:
                return Distance(None, "no budget is known for this output")
            found.add(part, part.budget)
        return found.distance(a.shape, "elements")


@dataclass(frozen=True)
class _Part:
    """Elements of both sides, 2-D: flat places in the output, codes, the sum of both budgets, and which are right whatever they are."""

    at: NDArray[np.int64]
    a: Codes
    b: Codes
    budget: Values | None
    settled: NDArray[np.bool_] | None = None


def _panels(a: SideTensor, b: SideTensor, left: Reference, right: Reference) -> Iterator[_Part]:
    """The whole output. Budgets of one reference are computed once."""
    columns = rows_and_columns(a.shape)[1]
    both = ((p, p) for p in left.panels()) if left is right else zip(left.panels(), right.panels(), strict=True)
    for p, q in both:
        end = p.first_row + len(p.values)
        x, y = a.variants[0](p.first_row, end), b.variants[0](p.first_row, end)
        budget = None if p.budget is None or q.budget is None else p.budget + q.budget
        masks = [m for m in (_settled(left, x, p), _settled(right, y, q)) if m is not None]
        at = np.arange(p.first_row * columns, end * columns).reshape(-1, columns)
        yield _Part(at, x, y, budget, np.logical_or.reduce(masks) if masks else None)


def _settled(reference: Reference, codes: Codes, panel: Panel) -> NDArray[np.bool_] | None:
    return None if reference.exempt is None else reference.exempt.mask(codes, panel.values, panel.first_row)


class _Uses:
    """How many elements are further apart than they may be, and which one uses most of it."""

    def __init__(self, fmt: str) -> None:
        self._format = fmt
        self._seen = self._beyond = self._at = 0
        self._most = 0.0

    def add(self, part: _Part, budget: Values) -> None:
        x, y = decode(part.a, self._format), decode(part.b, self._format)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            half_x, half_y = (np.where(np.isfinite(v), ulp(v, self._format) / 2, 0.0) for v in (x, y))
            near = within_budget(part.a, y, budget + half_y, self._format) | within_budget(part.b, x, budget + half_x, self._format)
            use = np.abs(x - y) / (budget + half_x + half_y)
        use = np.where(np.isfinite(use), use, 0.0)
        if part.settled is not None:
            near, use = near | part.settled, np.where(part.settled, 0.0, use)
        self._seen += near.size
        self._beyond += int((~near).sum())
        if use.size and use.max() > self._most:
            self._most, self._at = float(use.max()), int(part.at.reshape(-1)[use.argmax()])

    def distance(self, shape: tuple[int, ...], what: str) -> Distance:
        place = f" at {index_text(map(int, np.unravel_index(self._at, shape)))}" if self._most else ""
        if self._beyond:
            worst = f": {number(self._most, 3)} ×{place}" if self._most else ""
            return Distance(False, f"{self._beyond} of {self._seen} {what} are further apart than both budgets allow{worst}")
        used = f"; the worst uses {number(100 * self._most, 3)} % of that,{place}" if self._most else ""
        return Distance(True, f"{self._seen} {what} are as near as both budgets allow{used}")


def _sampled(a: SideTensor, b: SideTensor, problem: Gemm, measured: Measured) -> Distance:
    """Some rows and columns by the budgets of their elements; of every other line the norm of the difference."""
    m, n = problem.m, problem.n
    rows, columns = sample_lines(m), sample_lines(n)
    of_rows, of_columns = _allowed(problem.take_rows(rows), a, b), _allowed(problem.take_columns(columns), a, b)
    found = _Uses(a.format)
    found.add(_Part(rows[:, None] * n + np.arange(n), _rows_at(a, rows), _rows_at(b, rows), of_rows.budget), of_rows.budget)
    places = np.arange(m)[:, None] * n + columns
    found.add(_Part(places, _columns_at(a, columns), _columns_at(b, columns), of_columns.budget), of_columns.budget)
    near = found.distance(a.shape, f"elements of {len(rows)} rows and {len(columns)} columns")
    across, down = of_columns.error**2, of_rows.error**2
    far = [
        *_far("row", measured.rows, line_sums(across, down, columns)),
        *_far("column", measured.cols, line_sums(down.T, across.T, rows)),
    ]
    if near.passed and far:
        return Distance(
            False, f"{', '.join(far)}: further apart than the budgets of {len(rows)} rows and {len(columns)} columns let expect"
        )
    return Distance(near.passed, f"sampled: {near.sentence}")


@dataclass(frozen=True)
class _Allowed:
    """Of some lines, 2-D: the sum of both budgets before rounding, and the largest difference after it."""

    budget: Values
    error: Values


def _allowed(lines: Gemm, a: SideTensor, b: SideTensor) -> _Allowed:
    held = {contract: whole(lines, contract, a.format) for contract in dict.fromkeys((a.contract, b.contract))}
    panel = held[a.contract]
    first, second = (held[s.contract].budget for s in (a, b))
    assert first is not None
    assert second is not None
    budget = first + second
    with np.errstate(invalid="ignore", over="ignore"):
        error = budget + ulp(np.abs(panel.values) + budget, a.format)
    return _Allowed(budget, np.where(np.isfinite(panel.values), error, np.inf))


def _far(line: str, differences: NoiseMap | None, allowed: Values) -> list[str]:
    """The lines whose difference has a larger norm than its elements may have, in words."""
    if differences is None:
        return []
    beyond = np.flatnonzero(differences.error > NORMS * np.sqrt(allowed))
    return [f"{len(beyond)} {line}{'s' * (len(beyond) > 1)} (first: {beyond[0]})"] if len(beyond) else []


def _rows_at(s: SideTensor, at: NDArray[np.int64]) -> Codes:
    return np.concatenate([s.variants[0](int(i), int(i) + 1) for i in at])


def _columns_at(s: SideTensor, at: NDArray[np.int64]) -> Codes:
    return np.concatenate([s.variants[0](first, end)[:, at] for first, end in row_blocks(s.shape)])
