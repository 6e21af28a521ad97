"""The operands of a case as codes: generated values, or the integers of an exact or coded companion."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.ops import quantised
from accuracy_eval.ops.spec import Encoding, Inputs, Operand, OpSpec
from accuracy_eval.records import Case, Coded

if TYPE_CHECKING:
    from accuracy_eval.inputs.coded import CodedOperands
    from accuracy_eval.inputs.exact import ExactOperands

Codes = NDArray[Any]


def operand_codes(spec: OpSpec, case: Case, encoding: Encoding, *, compiled: bool | None = None) -> dict[str, Codes]:
    """Codes of every operand in its canonical orientation (`Operand.shape`), by name.

    The same bits on every host. `compiled` picks numba (True), numpy (False) or by size (None): equal bits either way.
    """
    operands = spec.operands(case, encoding)
    relation = spec.relation(case)
    if relation is not None:
        unchanged = operand_codes(spec, relation.base(case), encoding, compiled=compiled)
        return relation.operands(unchanged, {o.name: o.format for o in operands})
    own = spec.own_codes(case, encoding) if spec.own_codes else {}
    if case.lane == "exact" and len(own) == len(operands):
        return {o.name: own[o.name] for o in operands}
    if case.lane == "exact":
        from accuracy_eval.inputs.exact import integer_codes

        exact = exact_companion(case)
        made = {o.name: getattr(exact, o.name) for o in operands}
        return {o.name: _nan_codes(o) if made[o.name] is None else integer_codes(made[o.name], o.format) for o in operands}
    if case.lane == "coded" and case.recipe:
        return quantised.coded_sources(case)
    if case.lane == "coded":
        coded = coded_companion(case, operands[0].format)
        return {"a": coded.a, "b": coded.b}
    return {o.name: own[o.name] if o.name in own else random_codes(case, o, compiled=compiled) for o in operands}


def nan_in_c(case: Case) -> bool:
    """Whether the case wants NaN in operand c, and nothing of its input class."""
    return dict(case.options).get("c") == "nan"


def random_codes(case: Case, operand: Operand, *, compiled: bool | None = None) -> Codes:
    """Codes of one operand of a random-lane case, canonical orientation."""
    from accuracy_eval import inputs

    if operand.name == "c" and nan_in_c(case):
        return _nan_codes(operand)
    if case.input_class == "wide":
        return _wide_codes(case, operand)
    codes = inputs.generate(
        case.op, operand.name, operand.shape, case.input_class, case.seed, operand.format, axes=operand.axes, compiled=compiled
    )
    if operand.domain == "any" or case.input_class == "codes":
        return codes
    from accuracy_eval.cpu_ref.special import into_domain

    return into_domain(codes, operand.format, operand.domain)


def _nan_codes(operand: Operand) -> Codes:
    """A C that beta = 0 must not read: NaN everywhere."""
    fmt = get_format(operand.format)
    return np.full(operand.shape, fmt.nan_code, fmt.storage)


def _wide_codes(case: Case, operand: Operand) -> Codes:
    """Operands all over a function's interesting interval: evenly over its numbers, or over its exponents."""
    from accuracy_eval import inputs
    from accuracy_eval.cpu_ref.special_functions import FUNCTIONS

    def generate(input_class: str, **more: Any) -> Codes:
        return inputs.generate(case.op, operand.name, operand.shape, input_class, case.seed, operand.format, axes=operand.axes, **more)

    if case.op not in FUNCTIONS:
        return generate("wide")
    interval = FUNCTIONS[case.op].wide["xy".index(operand.name)]
    if interval.spacing == "log":
        return generate("wide", domain=(-interval.high if interval.signed else interval.low, interval.high))
    middle, half = (interval.low + interval.high) / 2, (interval.high - interval.low) / 2
    return encode(middle + half * decode(generate("uniform"), operand.format), operand.format, overflow="saturate")


def as_stored(operand: Operand, codes: Codes) -> Codes:
    """The codes as the op receives them: transposed to the operand's storage order, C-contiguous."""
    return np.ascontiguousarray(np.swapaxes(codes, -1, -2)) if operand.transposed else codes


def stored_inputs(
    spec: OpSpec, case: Case, encoding: Encoding, codes: dict[str, Codes], *, compiled: bool = True
) -> dict[str, Coded]:  # fmt: skip
    """The inputs a reference takes, with formats: operands in stored orientation; under a recipe what the op receives, and besides
    the unquantised operands as `NAME_source`, in canonical orientation. `compiled` as in `quantize`."""
    operands = spec.operands(case, encoding)
    if not case.recipe or spec.received is None:
        return {o.name: Coded(as_stored(o, codes[o.name]), o.format) for o in operands}
    sources = {o.name: Coded(codes[o.name], o.format) for o in operands}
    return {**spec.received(case, sources, encoding, compiled), **{f"{name}_source": coded for name, coded in sources.items()}}


def quantised_inputs(spec: OpSpec, case: Case, inputs: Inputs) -> dict[str, Coded]:
    """Of the inputs of a case, the codes and scales our quantiser made; empty without a recipe."""
    if not case.recipe or spec.received is None:
        return {}
    return {name: coded for name, coded in inputs.items() if not name.endswith("_source")}


@lru_cache(maxsize=1)
def exact_companion(case: Case) -> ExactOperands:
    """The integers of an exact case: operands, and the product they must give. One case is remembered."""
    from accuracy_eval.inputs.exact import exact_gemm

    m, n, k = (case.dims[d] for d in "mnk")
    options = dict(case.options)
    out = get_format(case.out_format) if case.out_format else None
    limit = 256 if out is None or out.bits > 8 else 2 << out.fraction_bits  # the integers an output of 8 bits holds
    return exact_gemm(
        m, n, k, direction="bwd" if case.direction == "bwd" else "fwd", seed=case.seed, limit=limit,
        alpha=float(options.get("alpha", 1.0)) * float(options.get("result_scale", 1.0)), beta=float(options.get("beta", 0.0)),
        has_bias=bool(options.get("bias", False)),
    )  # fmt: skip


@lru_cache(maxsize=1)
def coded_companion(case: Case, fmt: str) -> CodedOperands:
    """The one-hot A and counting B of a coded case. One case is remembered."""
    from accuracy_eval.inputs.coded import coded_gemm

    m, n, k = (case.dims[d] for d in "mnk")
    return coded_gemm(m, n, k, fmt, seed=case.seed)
