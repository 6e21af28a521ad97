"""Some rows or columns of an output, computed exactly: a tensor of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import Panel
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.sampling import whole
from accuracy_eval.diagnose import named
from accuracy_eval.measuring import Rows, SideTensor
from accuracy_eval.ops.gemm import product_reference
from accuracy_eval.ops.spec import Inputs, Output, Reference, row_blocks
from accuracy_eval.ops.spec import Panel as Truth
from accuracy_eval.records import Coded, Diagnosis, Side, Sketch, WorstElement

Indices = NDArray[np.int64]
# said of whole tensors: in a sample of rows (columns) a place along them, and the transpose, mean nothing
_WHOLE = frozenset({"block", "periodic", "zero-tail", "transposed"})
_PLACES = (_WHOLE | {"rows"}, _WHOLE | {"columns"})


@dataclass(frozen=True)
class Part:
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
