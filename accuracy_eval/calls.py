"""A call as its caller describes it: an op, its options and the arrays it was given, and the truth these make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from accuracy_eval.arrays import as_coded
from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.ops.gemm import product_reference
from accuracy_eval.ops.on_arrays import (
    SOURCED,
    codes_under,
    encoding_of,
    one_code_truth,
    operand_errors,
    product_of_sources,
    quantize_output,
)
from accuracy_eval.ops.registry import OPS, get_op
from accuracy_eval.ops.spec import Output, Reference
from accuracy_eval.quantize import get_recipe, reference_scale
from accuracy_eval.records import Case, Coded, OptionValue

ELEMENTWISE = ("special", "reduce")  # families whose reference follows from the arrays alone
GEMM_INPUTS = ("a", "b", "c", "bias", "a_scale", "b_scale", *SOURCED)


@dataclass(frozen=True)
class Call:
    """What the caller says was computed.

    op      "" where the caller names none
    inputs  by the op's operand names, as stored
    stated  contract the caller states; None: the default of the operand formats
    """

    op: str
    layout: str
    inputs: Mapping[str, Coded]
    options: Mapping[str, OptionValue]
    recipe: str = ""
    stated: str | None = None

    @classmethod
    def described(
        cls,
        *,
        op: str | None,
        layout: str,
        inputs: Mapping[str, Any] | None,
        options: Mapping[str, OptionValue] | None,
        recipe: str | None = None,
        contract: str | None = None,
    ) -> Call:
        """From the arguments of `check` and `explain`.

        UsageError for an array of no known format, and for an op, option or recipe that does not exist: it would change nothing.
        """
        coded = {name: as_coded(array, f"input {name!r}") for name, array in (inputs or {}).items()}
        if op is not None:
            spec = get_op(op)
            sizes = () if spec.name in _TRUTHS or spec.family in ELEMENTWISE else spec.sizes
            allowed = (*spec.options, *sizes, *(("format",) if op == "cast" else ()))
            for name in options or {}:
                if name not in allowed:
                    raise unknown(f"{op} option", name, allowed or ("(none)",))
            if recipe:
                get_recipe(recipe)
        return cls(op or "", layout, coded, dict(options or {}), recipe or "", contract)

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of the operands, without scales and unquantised sources."""
        return tuple(c.format for n, c in self.inputs.items() if not n.endswith(("_scale", "_source")))

    @property
    def plain(self) -> bool:
        """Whether the truth follows from the arrays of any shape and format alone; others, and gradients, are those of the op's cases."""
        known = self.op in _TRUTHS or OPS[self.op].family in ELEMENTWISE
        return known and not self.backward

    @property
    def backward(self) -> bool:
        return any(name.startswith("grad_") for name in self.inputs)

    @property
    def contract(self) -> str:
        """What the call promises; "" where no contract applies."""
        if self.stated is not None:
            return self.stated
        if not self.op or not self.formats:
            return ""
        if self.op == "gemm":  # unlike a case, arrays do not say whether the call let 8-bit sums stay in the unit's short accumulator
            return default_contract(self.formats[:2], get_recipe(self.recipe).granularity if self.recipe else "")
        return get_op(self.op).contract(self.case())

    @property
    def sourced(self) -> bool:
        """Whether both operands of a product are there as they were before they were quantised."""
        return set(SOURCED) <= set(self.inputs)

    def case(self, shape: tuple[tuple[str, int], ...] = (), out_format: str = "") -> Case:
        """The call as a case, for messages and ops; `shape` and `out_format` as in `Case`."""
        families = dict.fromkeys(get_format(f).family for f in self.formats[: 2 if self.op == "gemm" else 1])
        options = tuple(sorted((k, v) for k, v in self.options.items() if k != "format"))
        return Case(self.op, shape, self.layout if self.op == "gemm" else "", "+".join(families), out_format, self.recipe, options)

    def truth(self, actual: Coded) -> Reference:
        """The reference of a plain call, computed from the inputs in the output format `actual` has.

        UsageError for inputs that are missing, too many or do not fit.
        """
        return _TRUTHS[self.op](self, actual) if self.op in _TRUTHS else self._elementwise(actual)

    def output(self, actual: Coded, truth: Reference) -> Output:
        """What `actual` is called, and whether one code is right."""
        if self.op == "quantize" and "x" in self.inputs:
            return quantize_output(self.inputs["x"], self.recipe, actual)[0]
        return Output("d" if self.op == "gemm" else "result", truth.shape, actual.format, exact=truth.kind == "codes")

    def output_shape(self, truth: Reference) -> tuple[int, ...]:
        """Shape the output must have: that of x, or x without its last axis, whatever shape the op computed it in."""
        if self.op in _TRUTHS or self.options.get("axis") == "first":
            return truth.shape
        x = self.inputs["x"].shape
        return x if truth.shape == self._elementwise_shape() else x[:-1]

    def _elementwise_shape(self) -> tuple[int, ...]:
        """Shape in which a special function or a reduction computes x: a matrix, or where the op has none, a line."""
        x = self.inputs["x"].shape
        return x if len(x) == 2 else (1, math.prod(x)) if ("m", "n") in OPS[self.op].dims else (math.prod(x),)

    def operand_mismatches(self, actual: Coded) -> dict[str, Any]:
        """Metrics of the codes and scales that the inputs show to be other than the recipe's; {} where they show none."""
        if self.op == "quantize" and "x_scale" in self.inputs:
            x, fmt = self.inputs["x"], get_format(actual.format)
            narrow = fmt.bits <= 8 and not fmt.scale_only
            return dict(codes_under(x, self.recipe, actual, self.inputs["x_scale"])[1]) if narrow and actual.shape == x.shape else {}
        return operand_errors(self.inputs, self.layout, self.recipe) if self.sourced else {}

    def product(self) -> Gemm:
        """The operands of a gemm. UsageError for inputs that are missing or no gemm's, and an alpha or beta that is no number."""
        for name in ("a", "b"):
            if name not in self.inputs:
                raise UsageError(f"op gemm: input {name!r} is missing; given: {', '.join(self.inputs)}")
        i = self.inputs
        extra = set(i) - set(GEMM_INPUTS)
        if extra:
            raise unknown("gemm input", sorted(extra)[0], GEMM_INPUTS)
        if "c" in i and "beta" not in self.options:
            raise UsageError('op gemm: input c has no part in the result without beta; pass options={"beta": 1.0}, or the beta of the call')
        left, right = (decode(i[n].codes, i[n].format) if n in i else None for n in ("a_scale", "b_scale"))
        alpha, beta = (number(f"option {n}", self.options.get(n, default)) for n, default in (("alpha", 1.0), ("beta", 0.0)))
        return Gemm(i["a"], i["b"], self.layout, alpha, beta, i.get("c"), i.get("bias"), left, right)

    def _gemm(self, actual: Coded) -> Reference:
        problem = self.product()
        for name in set(SOURCED) & set(self.inputs):
            source = self.inputs[name]
            if not self.sourced or source.shape != self.inputs[name[0]].shape:
                raise UsageError(
                    f"op gemm: {name} {list(source.shape)}; expected both {' and '.join(SOURCED)}, each in the shape of its operand"
                )
        reference = product_reference(problem, self.contract, actual.format)
        return product_of_sources(self.inputs, problem, reference) if self.sourced else reference

    def _quantize(self, actual: Coded) -> Reference:
        """Of a scale from `amax`; of codes, scales or values from `x`; under `x_scale`, codes are judged by the scales they stand with."""
        if set(self.inputs) == {"amax"}:
            amax = self.inputs["amax"]
            scale = reference_scale(decode(amax.codes, amax.format).astype(np.float32), get_recipe(self.recipe))
            return one_code_truth(np.asarray(scale), actual.format)
        if set(self.inputs) - {"x", "x_scale"} or "x" not in self.inputs or not self.recipe:
            raise UsageError(
                f"op quantize: recipe {self.recipe!r}, inputs {', '.join(self.inputs)}; expected a recipe and amax, x or x and x_scale"
            )
        x = self.inputs["x"]
        output, reference = quantize_output(x, self.recipe, actual)
        if output.name == "codes" and "x_scale" in self.inputs:
            return codes_under(x, self.recipe, actual, self.inputs["x_scale"])[0]
        return reference

    def _cast(self, actual: Coded) -> Reference:
        if "format" not in self.options or set(self.inputs) != {"x"}:
            raise UsageError('op cast: needs inputs={"x": …} and options={"format": …}')
        x, fmt = self.inputs["x"], get_format(str(self.options["format"]))
        rounded = encode(decode(x.codes, x.format), fmt, overflow=cast(Any, self.options.get("overflow")))
        return one_code_truth(rounded if actual.format == fmt.name else encode(decode(rounded, fmt), actual.format), actual.format)

    def _elementwise(self, actual: Coded) -> Reference:
        """Special functions and reductions, through their ops: operands become the shape the op has."""
        operands = {"x", "y"} if self.op == "pow" else {"x"}
        if set(self.inputs) != operands:
            raise UsageError(f"op {self.op}: inputs {', '.join(self.inputs)}; expected {', '.join(sorted(operands))}")
        shape = self._elementwise_shape()
        letters = ("m", "n") if len(shape) == 2 else ("n",)
        case = self.case(tuple(zip(letters, shape, strict=True)), get_format(actual.format).family)
        given = {n: Coded(c.codes.reshape(shape), c.format) for n, c in self.inputs.items()}
        (reference,) = OPS[self.op].reference(case, given, encoding_of(actual.format), self.contract).values()
        return reference


_TRUTHS: dict[str, Callable[[Call, Coded], Reference]] = {"gemm": Call._gemm, "quantize": Call._quantize, "cast": Call._cast}


def number(name: str, value: Any) -> float:
    """An argument as a float; UsageError where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} = {value!r}; expected a number") from error
