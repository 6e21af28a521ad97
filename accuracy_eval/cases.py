"""Cases and their ids: what to run, named so that two dumps can be joined.

An id is readable and canonical: fields in a fixed order joined by '.', options at their default left out, floats as the
hex of their float64 bits, formats by family (an FNUZ and an OCP device have the same case):

    op . dims . layout . format[-output format] . recipe . option=value . input class or lane . direction . seed
    gemm.m512.n128.k256.nt.bfloat16.normal.s42        gemm.m512.n128.k256.nt.bfloat16-float32.alpha=3ff3333333333333.exact.bwd.s42
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import get_family
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import validate
from accuracy_eval.records import Case, OptionValue

LANES = ("random", "exact", "coded", "metamorphic")
DIRECTIONS = ("fwd", "bwd")
MAX_ELEMENTS = 1 << 31  # per tensor, without --huge
_DIM = re.compile(r"([a-z])(\d+)\Z")


def case_id(case: Case) -> str:
    """The canonical id. Two cases with equal ids compute the same thing from the same inputs."""
    fields = [case.op, *(f"{letter}{size}" for letter, size in case.shape)]
    if case.layout:
        fields.append(case.layout)
    fields.append(case.format + (f"-{case.out_format}" if case.out_format else ""))
    if case.recipe:
        fields.append(case.recipe)
    fields += [f"{name}={_option_text(value)}" for name, value in case.options]
    fields.append(case.input_class if case.lane == "random" else case.lane)
    if case.direction != "fwd":
        fields.append(case.direction)
    fields.append(f"s{case.seed}")
    return ".".join(fields)


def parse_case(text: str) -> Case:
    """The case whose id is `text`. UsageError says which field is not understood."""
    op_name, *fields = text.split(".")
    op = get_op(op_name)
    shape = []
    letters = {letter for dims in op.dims for letter in dims}
    while fields and (match := _DIM.match(fields[0])) and match[1] in letters:
        shape.append((match[1], int(match[2])))
        fields.pop(0)
    layout = fields.pop(0) if fields and op.layouts != ("",) and fields[0] in op.layouts else ""
    if not fields:
        raise UsageError(f"case id {text!r}: no number format; expected {_GRAMMAR}")
    formats, _, out_format = fields.pop(0).partition("-")
    recipe = fields.pop(0) if fields and fields[0] in op.recipes and fields[0] else ""
    options: dict[str, OptionValue] = {}
    while fields and "=" in fields[0]:
        name, _, value = fields.pop(0).partition("=")
        if name not in op.options:
            raise unknown(f"{op_name} option", name, op.options or ["(none)"])
        options[name] = _option_value(value, op.options[name].default)
    if len(fields) not in (2, 3) or not re.fullmatch(r"s\d+", fields[-1]) or (len(fields) == 3 and fields[1] not in DIRECTIONS):
        raise UsageError(f"case id {text!r}: {'.'.join(fields)!r} is not an input class and seed; expected {_GRAMMAR}")
    lane = fields[0] if fields[0] in LANES else "random"
    return make_case(
        op_name, tuple(shape), layout=layout, format=formats, out_format=out_format, recipe=recipe, options=options,
        input_class="normal" if lane != "random" else fields[0], lane=lane,
        direction=fields[1] if len(fields) == 3 else "fwd", seed=int(fields[-1][1:]), huge=True,
    )  # fmt: skip


_GRAMMAR = "op.dims[.layout].format[-output][.recipe][.option=value…].class[.bwd].s<seed>, e.g. gemm.m512.n128.k256.nt.bfloat16.normal.s42"


def _option_text(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return struct.pack(">d", value).hex() if isinstance(value, float) else str(value)


def _option_value(text: str, default: OptionValue) -> OptionValue:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise UsageError(f"option value {text!r}: expected true or false")
        return text == "true"
    if isinstance(default, float):
        try:
            return float(struct.unpack(">d", bytes.fromhex(text))[0])
        except (ValueError, struct.error):
            raise UsageError(f"option value {text!r}: expected the 16 hex digits of a float64") from None
    if isinstance(default, int) and not re.fullmatch(r"-?\d+", text):
        raise UsageError(f"option value {text!r}: expected an integer")
    return int(text) if isinstance(default, int) else text


def _same(default: OptionValue, value: OptionValue) -> bool:
    """True is no 1."""
    return default == value and isinstance(default, bool) == isinstance(value, bool)


def make_case(
    op: str,
    shape: Sequence[tuple[str, int]],
    *,
    layout: str = "",
    format: str = "float32",
    out_format: str = "",
    recipe: str = "",
    options: Mapping[str, OptionValue] | None = None,
    input_class: str = "normal",
    lane: str = "random",
    direction: str = "fwd",
    seed: int = 0,
    huge: bool = False,
) -> Case:
    """A validated case in canonical form: formats as families, default options dropped, the rest sorted.

    UsageError for anything the op does not allow, and for a tensor over 2^31 elements unless `huge`.
    """
    from accuracy_eval.inputs import INPUT_CLASSES

    spec = get_op(op)
    if input_class not in INPUT_CLASSES:
        raise unknown("input class", input_class, INPUT_CLASSES, listed="inputs")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; seeds are 0 or more")
    kept = {n: v for n, v in (options or {}).items() if n not in spec.options or not _same(spec.options[n].default, v)}
    real = {n for n, option in spec.options.items() if isinstance(option.default, float)}
    kept = {n: float(v) if n in real and type(v) is int else v for n, v in kept.items()}
    family = "+".join(get_family(p) for p in format.split("+"))
    out = get_family(out_format) if out_format else ""
    case = Case(
        op, tuple(shape), layout or spec.layouts[0], family, out, recipe, tuple(sorted(kept.items())),
        input_class if lane == "random" else "normal", lane, direction, seed,
    )  # fmt: skip
    validate(spec, case)
    if not huge:
        shapes = [(t.name, t.shape) for t in spec.operands(case, "ocp")] + [(t.name, t.shape) for t in spec.outputs(case, "ocp")]
        for name, sizes in shapes:
            elements = 1
            for size in sizes:
                elements *= size
            if elements > MAX_ELEMENTS:
                raise UsageError(f"{case_id(case)}: {name} {list(sizes)} has {elements} elements; allowed without --huge: {MAX_ELEMENTS}")
    return case


def shape_text(case: Case) -> str:
    """The shape part "m512.n128.k256" of the id, by which workbooks are grouped."""
    return ".".join(f"{letter}{size}" for letter, size in case.shape)
