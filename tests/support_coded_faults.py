"""Faulty results of products with scales, coded and random, made with numpy: what the tests of their diagnoses put in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cases import make_case
from accuracy_eval.diagnose import Context, context_of, diagnose, rows_of
from accuracy_eval.formats import decode, encode
from accuracy_eval.metrics import measure
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.quantize import RECIPES
from accuracy_eval.records import Case, Coded, Diagnosis

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """One factor [rows, k]: code values, grid of scales, rows and elements of a block."""

    codes: NDArray[np.float64]
    grid: Grid
    block: tuple[int, int]

    def under(self, grid: Grid) -> NDArray[np.float64]:
        """Values under another grid of scales."""
        index = [np.minimum(np.arange(n) // b, g - 1) for n, b, g in zip(self.codes.shape, self.block, grid.shape, strict=True)]
        return self.codes * grid[np.ix_(*index)]


@dataclass(frozen=True)
class CodedProduct:
    """A case with its factors in canonical orientation."""

    case: Case
    a: Side
    b: Side
    inputs: dict[str, Coded]

    def result(self, a: Grid | None = None, b: Grid | None = None) -> NDArray[np.float64]:
        """D under these grids of scales."""
        left, right = self.a.under(self.a.grid if a is None else a), self.b.under(self.b.grid if b is None else b)
        return left @ right.T

    def diagnosed(self, values: NDArray[np.float64]) -> list[Diagnosis]:
        """What is said about these values as the result."""
        return diagnose(self.context(values))

    def context(self, values: NDArray[np.float64]) -> Context:
        return product_context(self.case, self.inputs, values)


def product_context(case: Case, inputs: dict[str, Coded], values: NDArray[np.float64]) -> Context:
    """What a diagnosis sees of a product whose result is `values`."""
    spec = get_op("gemm")
    (output,) = spec.outputs(case, "ocp")
    reference = spec.reference(case, inputs, "ocp", spec.contract(case))["d"]
    panels = list(reference.panels())
    expected = np.concatenate([p.values for p in panels])
    actual = encode(values, output.format)
    if reference.kind == "codes":
        m = measure(Coded(actual, output.format), Coded(expected, output.format))
    else:
        m = measure(Coded(actual, output.format), expected, budget=np.concatenate([p.budget for p in panels]))
    return context_of(
        case, m, output="d", actual=rows_of(actual), expected=rows_of(expected), inputs=inputs, contract=reference.contract,
    )  # fmt: skip


def coded_product(
    shape: tuple[int, int, int],
    fmt: str,
    recipe: str,
    layout: str = "nt",
    *,
    seed: int = 0,
    lane: str = "coded",
    out_format: str = "float32",
) -> CodedProduct:
    m, n, k = shape
    case = make_case("gemm", (("m", m), ("n", n), ("k", k)), layout=layout, format=fmt, recipe=recipe, out_format=out_format, lane=lane,
                     seed=seed)  # fmt: skip
    spec = get_op("gemm")
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))

    def side(name: str, rows: int, turned: bool, row: str) -> Side:
        codes = decode(inputs[name].codes, inputs[name].format)
        scale = inputs[f"{name}_scale"]
        grid: Any = decode(scale.codes, scale.format)
        if f"{name}_global" in inputs:
            grid = grid * decode(inputs[f"{name}_global"].codes, "float32")
        high, wide = RECIPES[row].block
        if grid.ndim < 2:
            grid = grid.reshape(-1, 1)
        elif turned:
            grid = grid.T
        return Side(codes.T if turned else codes, grid, (high or max(rows, 1), wide or max(k, 1)))

    a = side("a", m, layout[0] == "t", recipe)
    b = side("b", n, layout[1] == "n", RECIPES[recipe].weights or recipe)
    return CodedProduct(case, a, b, inputs)


def swizzled(grid: Grid) -> Grid:
    """The grid as plain rows of a buffer that holds it in tiles of 128 × 4, by the formula of the layout; 0 is padding."""
    rows, columns = grid.shape
    across = -(-columns // 4)
    buffer = np.zeros(-(-rows // 128) * across * 512)
    for r, c in np.ndindex(rows, columns):
        buffer[((r // 128) * across + c // 4) * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4] = grid[r, c]
    return buffer[: rows * columns].reshape(rows, columns)
