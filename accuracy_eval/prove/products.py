"""The products that are mutated: 32 × 48 results in six operand formats, each with its reference and what a right device gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from accuracy_eval.contracts import default_contract
from accuracy_eval.formats import Codes, Values, decode, encode
from accuracy_eval.ops.gemm import FORMATS as PLAIN_FORMATS
from accuracy_eval.ops.gemm import GEMM
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.spec import Output, Reference
from accuracy_eval.prove.arithmetic import Unit, float32_sums
from accuracy_eval.quantize import get_recipe
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
    contract = default_contract([column.format], get_recipe(column.recipe).granularity if column.recipe else "")
    inputs = stored_inputs(GEMM, case, "ocp", operand_codes(GEMM, case, "ocp"))
    (output,) = GEMM.outputs(case, "ocp")
    truth = GEMM.reference(case, inputs, "ocp", contract)[output.name]
    parts = tuple(truth.panels())
    reference = Reference(truth.kind, truth.format, truth.shape, contract, lambda: iter(parts), unquantised=truth.unquantised)
    assert GEMM.products is not None
    (product,) = GEMM.products(case, inputs, output.name)
    sides = product.gemm.left, product.gemm.right
    a, b = (decode(inputs[name].codes, inputs[name].format) for name in "ab")
    scales = [side.scale_of() if column.recipe else None for side in sides]
    return Problem(column, case, output, contract, a, b, scales[0], scales[1], inputs["a"], reference)


def lanes(column: Column) -> tuple[str, ...]:
    """The lanes there are for a column: integer companions exist for unscaled operands."""
    return ("random", "exact") if column.format in PLAIN_FORMATS else ("random",)
