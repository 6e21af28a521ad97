"""The products that are mutated: 32 × 48 results in six operand formats, each with its reference and what a right device gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.formats import Codes, Values, concrete, decode, encode
from accuracy_eval.inputs.exact import integer_codes
from accuracy_eval.ops.gemm import FORMATS as PLAIN_FORMATS
from accuracy_eval.ops.operands import exact_companion, random_codes
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.spec import Operand as OpOperand
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.prove.arithmetic import Unit, float32_sums
from accuracy_eval.quantize import get_recipe, quantize
from accuracy_eval.records import Case, Coded

M, N = 32, 48
SEED = 1


@dataclass(frozen=True)
class Column:
    """One kind of product of the table: operand family, how operands are quantised, output family."""

    name: str
    format: str
    recipe: str
    out_format: str


COLUMNS = (
    Column("float32", "float32", "", "float32"),
    Column("bfloat16", "bfloat16", "", "bfloat16"),
    Column("e4m3", "fp8_e4m3", "tensorwise", "bfloat16"),
    Column("e4m3 1x128", "fp8_e4m3", "block1x128", "bfloat16"),
    Column("mxfp4", "fp4_e2m1", "mxfp4", "bfloat16"),
    Column("nvfp4", "fp4_e2m1", "nvfp4", "bfloat16"),
)


@dataclass(frozen=True)
class Problem:
    """One product D = A·Bᵀ to mutate.

    a, b           float64 values of the operands' codes, [M, K] and [N, K]
    a_scale, b_scale   what multiplies them, broadcastable to a and b; None where operands are not quantised
    a_codes        codes of A, for mutations of bits
    reference      the truth and its budget, panels held in memory
    """

    column: Column
    case: Case
    output: Output
    contract: str
    a: Values
    b: Values
    a_scale: Values | None
    b_scale: Values | None
    a_codes: Coded
    reference: Reference

    @cached_property
    def healthy(self) -> Values:
        """A correct device's result before output rounding: one float32 rounding per product, float64 [M, N]."""
        return self.result(self.a, self.b)

    @cached_property
    def codes(self) -> Codes:
        return self.round(self.healthy)

    def round(self, values: Values) -> Codes:
        """One rounding to the output format."""
        return encode(values, self.output.format)

    def result(self, a: Values, b: Values, *, scales: tuple[Values, Values] | None = None, unit: Unit | None = None) -> Values:
        """What a device makes of these code values: float64 [M, N], representable in float32."""
        left, right = scales or (self.a_scale, self.b_scale)
        if left is not None and right is not None:
            a, b = a * left, b * right
        return (unit or float32_sums)(a, b)


def problem(column: Column, k: int, *, lane: str = "random", input_class: str = "normal") -> Problem:
    """The product of a column at one K, with its reference."""
    shape = (("m", M), ("n", N), ("k", k))
    case = Case("gemm", shape, "nt", column.format, column.out_format, column.recipe, (), input_class, lane, "fwd", SEED)
    source = "bfloat16" if column.recipe else column.format
    if lane == "exact":
        exact = exact_companion(case)
        made = {"a": integer_codes(exact.a, source), "b": integer_codes(exact.b, source)}
    else:
        made = {n: random_codes(case, OpOperand(n, (size, k), source, (axis, "k"))) for n, size, axis in (("a", M, "m"), ("b", N, "n"))}
    coded = {n: Coded(c, concrete(column.format, "ocp").name) for n, c in made.items()}
    scales: dict[str, Any] = {"a": None, "b": None}
    blocks: dict[str, Any] = {"a": None, "b": None}
    if column.recipe:
        recipe = get_recipe(column.recipe)
        for n, c in made.items():
            q = quantize(c, source, recipe if n == "a" else recipe.weights or recipe)
            coded[n], scales[n] = Coded(q.codes, q.format), decode(q.scale, q.scale_format)
            blocks[n] = (q.blocks[0], q.blocks[1]) if scales[n].ndim == 2 else None
            if q.global_scale is not None:
                scales[n] = scales[n] * decode(q.global_scale, "float32")
    gemm = Gemm(
        coded["a"], coded["b"], "nt", a_scale=scales["a"], b_scale=scales["b"], a_block=blocks["a"], b_block=blocks["b"],
    )  # fmt: skip
    plain = Gemm(Coded(made["a"], source), Coded(made["b"], source), "nt") if column.recipe else None
    output = Output("d", (M, N), concrete(column.out_format, "ocp").name)
    contract = default_contract("gemm", [column.format], column.recipe)
    if lane == "exact":
        codes = integer_codes(exact.d(), output.format, exact.unit)
        reference = Reference("codes", output.format, (M, N), contract, lambda: iter((Panel(0, codes),)))
    else:
        parts = list(of_product(panels(gemm, contract=contract, out_format=output.format)))
        before = None if plain is None else (lambda: of_product(panels(plain)))
        reference = Reference("values", output.format, (M, N), contract, lambda: iter(parts), unquantised=before)

    def grid(x: Operand) -> Values | None:
        return x.scale_of() if column.recipe else None

    return Problem(
        column, case, output, contract, decode(coded["a"].codes, coded["a"].format), decode(coded["b"].codes, coded["b"].format),
        grid(gemm.left), grid(gemm.right), coded["a"], reference,
    )  # fmt: skip


def lanes(column: Column) -> tuple[str, ...]:
    """The lanes there are for a column: integer companions exist for unscaled operands."""
    return ("random", "exact") if column.format in PLAIN_FORMATS else ("random",)
