"""What a case of one op may be: all that a row of a suite or a `dump --op` line needs, from the registry alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from accuracy_eval.cli.tables import wrapped
from accuracy_eval.ops.spec import OpSpec
from accuracy_eval.records import Case

Row = tuple[str, str]  # name, text


@dataclass(frozen=True)
class OpDetail:
    """An op, as a reader needs it who writes cases.

    shapes      letters of the sizes, in the order in which they are given: "m×n×k"
    sizes       what each letter counts
    directions  fwd, bwd -> operands and outputs with their shapes, of a case without options
    choices     key of a suite's table -> names it may have, the one taken by default first ("": the key is left out)
    quantised   formats among them that need a recipe
    options     name -> default, allowed values, meaning
    table       a row of a suite; `command` runs it
    """

    name: str
    equation: str
    shapes: tuple[str, ...]
    sizes: Mapping[str, str]
    directions: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]
    quantised: tuple[str, ...]
    options: Mapping[str, Mapping[str, object]]
    table: Mapping[str, str]
    command: str


def op_detail(op: OpSpec) -> OpDetail:
    """All of it, read from the op."""
    stated = op.refuse(_example(op)) is not None  # the output's format must be, as in a cast
    choices = {
        "layout": op.layouts if op.layouts != ("",) else (),
        "format": op.formats,
        "out_format": (*(() if stated else ("",)), *op.out_formats) if op.out_formats else (),
        "recipe": op.recipes if op.recipes != ("",) else (),
        "lane": op.lanes,
        "direction": op.directions,
    }
    table = {"op": op.name, "shape": "x".join(str(op.sizes[d].example) for d in op.dims[0])} | _usual_formats(op, stated)
    words = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in table.items())
    return OpDetail(
        op.name,
        op.equation,
        tuple("×".join(d) for d in op.dims),
        {letter: size.says for letter, size in op.sizes.items()},
        {direction: _signature(op, direction) for direction in op.directions},
        {key: names for key, names in choices.items() if names},
        () if stated else tuple(f for f in op.formats if op.refuse(replace(_example(op), format=f))),
        {n: {"default": o.default, "allowed": o.allowed or type(o.default).__name__, "says": o.says} for n, o in op.options.items()},
        table,
        f"accuracy-eval dump {words} -o {op.name}.h5",
    )


USUAL = ("bfloat16", "float32")  # formats to try an op with


def _usual_formats(op: OpSpec, stated: bool) -> dict[str, str]:
    """Operands in a format that is in use; where the output's must be stated, wide operands and a narrower result."""
    found = [f for f in USUAL if f in op.formats] or [op.formats[0]]
    return {"format": found[-1], "out_format": found[0]} if stated else {"format": found[0]}


def _example(op: OpSpec) -> Case:
    """A case that states its sizes alone."""
    return Case(op.name, tuple((d, op.sizes[d].example) for d in op.dims[0]), op.layouts[0], op.formats[0], recipe=op.recipes[0])


def _signature(op: OpSpec, direction: str) -> str:
    """Operands and outputs, "a [m, k], b [n, k] → d [m, n]"."""
    case = replace(_example(op), direction=direction)
    operands = ", ".join(f"{o.name} {_shape(o.stored, case.dims)}" for o in op.operands(case, "ocp"))
    outputs = ", ".join(f"{o.name} {_shape(o.shape, case.dims)}" for o in op.outputs(case, "ocp"))
    return f"{operands} → {outputs}"


def _shape(shape: tuple[int, ...], dims: Mapping[str, int]) -> str:
    """Sizes by the letters they come from: [r, r·n]; the example's sizes are apart enough to be told from each other."""
    return f"[{', '.join(_size(n, dims) for n in shape)}]" if shape else "(a scalar)"


def _size(size: int, dims: Mapping[str, int]) -> str:
    names = {n // 2: f"{letter}/2" for letter, n in dims.items()}
    names |= {m * n: f"{a}·{b}" for (a, m), (b, n) in combinations(dims.items(), 2)}
    names |= {n: letter for letter, n in dims.items()}
    return names.get(size, str(size))


_UNSTATED = {"recipe": "(none)", "out_format": "(that of the operands)"}


def text(detail: OpDetail, width: int) -> str:
    """The detail on a terminal of `width` columns."""
    title = textwrap.wrap(f"{detail.name}: {detail.equation}", width, subsequent_indent="  ")
    return "\n".join([*title, "", *wrapped([*_rows(detail)], width), "", *_examples(detail)])


def _rows(detail: OpDetail) -> Iterator[Row]:
    yield "shape", " or ".join(detail.shapes)
    yield from ((f"  {letter}", says) for letter, says in detail.sizes.items())
    yield from detail.directions.items()
    for key, names in detail.choices.items():
        yield key, ", ".join(name or _UNSTATED[key] for name in names if key != "format" or name not in detail.quantised)
        if key == "format" and detail.quantised:
            yield "", f"with a recipe {', '.join(detail.quantised)}"
    yield "input", "normal and others: accuracy-eval list inputs"
    if detail.options:
        yield "options", "--option NAME=VALUE on the command line"
    for name, option in detail.options.items():
        allowed = option["allowed"]
        kinds = allowed if isinstance(allowed, str) else ", ".join(map(str, allowed))  # type: ignore[call-overload]
        yield f"  {name}", f"{option['says']} ({kinds}; default {_toml(option['default'])})"


def _examples(detail: OpDetail) -> list[str]:
    lines = ["In a suite; keys left out have the first of the names above:", "", "  [[cases]]"]
    lines += [f"  {key} = {_toml(value)}" for key, value in detail.table.items()]
    if detail.options:
        name, option = next(iter(detail.options.items()))
        lines.append(f"  options = {{ {name} = {_toml(option['default'])} }}")
    return [*lines, "", "At once:", "", f"  {detail.command}"]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int | float) else f'"{value}"'
