"""Changes of layer norm, RMS norm and their gradients that kernels have had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from accuracy_eval.formats import Values
from accuracy_eval.ops.norms import eps_of
from accuracy_eval.records import Case

OTHER_EPS = (1e-5, 1e-6)
TILES = (8, 16, 32, 64, 128, 256)  # columns or rows of which kernels take whole tiles alone, or to which they pad a width


@dataclass(frozen=True)
class _Norm:
    """What is computed of x [m, n].

    root        of the mean square and eps is taken; outside: and eps is added to it
    centred     a mean is subtracted
    columns     that are counted in the mean and the mean square; divisor: of the sum of squares
    weight      [n]; added: [n] or 0
    along       factor of what the gradient has along the normalised row; level: of its mean
    rows        that reach the gradients of weight and bias
    """

    eps: float
    centred: bool
    columns: int
    divisor: float
    weight: Values
    added: Values
    rows: int
    root: bool = True
    outside: bool = False
    along: float = 1.0
    level: float = 1.0
    weighted: bool = True

    def results(self, x: Values, g: Values | None) -> dict[str, Values]:
        seen = x[:, : self.columns]
        mean = seen.mean(axis=1, keepdims=True) if self.centred else 0.0
        square = ((seen - mean) ** 2).sum(axis=1, keepdims=True) / self.divisor
        size = np.sqrt(square) + self.eps if self.outside else square + self.eps
        r = 1 / (np.sqrt(size) if self.root and not self.outside else size)
        h = (x - mean) * r
        if g is None:
            return {"y": h * self.weight + self.added}
        q = g * self.weight if self.weighted else g
        rest = q - self.along * h * (q * h).mean(axis=1, keepdims=True) - self.level * q.mean(axis=1, keepdims=True)
        return {"dx": r * rest, "dweight": (g * h)[: self.rows].sum(axis=0), "dbias": g[: self.rows].sum(axis=0)}


def norm_changes(case: Case, values: Mapping[str, Values]) -> Iterator[tuple[str, Mapping[str, Values]]]:
    x, weight, bias, g = values["x"], values["weight"], values.get("bias"), values.get("grad_y")
    m, n = x.shape
    centred = case.op == "layernorm"
    asked = _Norm(eps_of(case), centred, n, n, weight, np.zeros(n) if bias is None else bias, m, level=1.0 if centred else 0.0)
    for what, change in (*_of_roots(asked, n), *(_forward(asked) if g is None else _backward(asked))):
        yield what, change.results(x, g)


def _of_roots(a: _Norm, n: int) -> Iterator[tuple[str, _Norm]]:
    if a.eps:
        yield "eps is missing", replace(a, eps=0.0)
        yield "eps is added to the root, not under it", replace(a, outside=True)
    yield "the root is missing", replace(a, root=False)
    for eps in OTHER_EPS:
        if eps != a.eps:
            yield f"eps is {eps:g}, not {a.eps:g}", replace(a, eps=eps)
    yield ("the mean is not subtracted" if a.centred else "the mean is subtracted"), replace(a, centred=not a.centred)
    for divisor in dict.fromkeys([n - 1, *(-(-n // t) * t for t in TILES), 1]):
        if divisor != n and divisor > 0:
            yield f"the sum of squares is divided by {divisor}, not {n}", replace(a, divisor=divisor)
    for columns in dict.fromkeys([n - 1, *(n // t * t for t in TILES)]):
        if 0 < columns < n:
            yield f"columns from {columns} on are not counted in the statistics", replace(a, columns=columns)


def _forward(a: _Norm) -> Iterator[tuple[str, _Norm]]:
    yield "the weight is missing", replace(a, weight=np.ones_like(a.weight))
    yield "the weight is added to 1", replace(a, weight=1 + a.weight)
    if a.added.any():
        yield "the bias is missing", replace(a, added=np.zeros_like(a.added))


def _backward(a: _Norm) -> Iterator[tuple[str, _Norm]]:
    yield "the gradient is not multiplied by the weight", replace(a, weighted=False)
    yield "the weight is added to 1", replace(a, weight=1 + a.weight)
    yield "the part along the normalised row is missing", replace(a, along=0.0)
    yield "the part along the normalised row is added, not subtracted", replace(a, along=-1.0)
    yield (("the mean of the gradient is not subtracted", replace(a, level=0.0)) if a.level
           else ("the mean of the gradient is subtracted", replace(a, level=1.0)))  # fmt: skip
    if a.level:
        yield "neither the mean nor the part along the normalised row is subtracted", replace(a, level=0.0, along=0.0)
    for rows in dict.fromkeys([a.rows - 1, *(a.rows // t * t for t in TILES), *(a.rows - t for t in TILES)]):
        if 0 < rows < a.rows:
            yield f"rows from {rows} on do not reach the sum", replace(a, rows=rows)
