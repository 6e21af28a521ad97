"""The operands of a case as codes: those that its op makes itself, and generated values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.ops.spec import Encoding, Inputs, Operand, OpSpec
from accuracy_eval.records import Case, Coded

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
    return {o.name: own[o.name] if o.name in own else random_codes(case, o, compiled=compiled) for o in operands}


def random_codes(case: Case, operand: Operand, *, compiled: bool | None = None) -> Codes:
    """Codes of one operand of a random-lane case, canonical orientation."""
    from accuracy_eval import inputs

    if operand.domain == "nan":
        return nan_codes(operand)
    if case.input_class == "wide":
        return _wide_codes(case, operand)
    codes = inputs.generate(
        case.op, operand.name, operand.shape, case.input_class, case.seed, operand.format, axes=operand.axes, compiled=compiled
    )
    if operand.domain == "any" or case.input_class == "codes":
        return codes
    from accuracy_eval.cpu_ref.special import into_domain

    return into_domain(codes, operand.format, operand.domain)


def nan_codes(operand: Operand) -> Codes:
    """An operand that the op must not read: NaN everywhere."""
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
