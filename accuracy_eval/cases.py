"""Case ids and suites: what to run, named so that two dumps can be joined.

A case id is readable and canonical: fields in a fixed order joined by '.', options at their default left out, floats as the
hex of their float64 bits, formats by family (an FNUZ and an OCP device have the same case):

    op . dims . layout . format[-output format] . recipe . option=value . input class or lane . direction . seed
    gemm.m512.n128.k256.nt.bfloat16.normal.s42        gemm.m512.n128.k256.nt.bfloat16-float32.alpha=3ff3333333333333.exact.bwd.s42

A suite is TOML, the same grammar for built-in and users' suites: every value may be a list, and a table stands for the product
of its lists. See docs/suites.md.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import get_family
from accuracy_eval.ops.registry import OPS, get_op
from accuracy_eval.ops.spec import validate
from accuracy_eval.records import Case, OptionValue

LANES = ("random", "exact", "coded", "metamorphic")
DIRECTIONS = ("fwd", "bwd")
MAX_ELEMENTS = 1 << 31  # per tensor, without --huge
_DIM = re.compile(r"([a-z])(\d+)\Z")
_SHAPE = re.compile(r"\d+(x\d+)*\Z")


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
        options[name] = _option_value(value, op.options[name])
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
        return text == "true"
    if isinstance(default, float):
        try:
            return float(struct.unpack(">d", bytes.fromhex(text))[0])
        except (ValueError, struct.error):
            raise UsageError(f"option value {text!r}: expected the 16 hex digits of a float64") from None
    return int(text) if isinstance(default, int) else text


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
    kept = {n: v for n, v in (options or {}).items() if n not in spec.options or spec.options[n] != v}
    kept = {n: float(v) if isinstance(spec.options.get(n), float) and isinstance(v, int) else v for n, v in kept.items()}
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


@dataclass(frozen=True)
class Expectation:
    """Candidates of an op that must run, on these vendors ("nvidia", "amd", "cpu"), for these formats and directions; empty: all."""

    op: str
    candidates: tuple[str, ...]
    vendor: tuple[str, ...] = ()
    format: tuple[str, ...] = ()
    direction: tuple[str, ...] = ()

    def covers(self, case: Case, vendor: str) -> bool:
        allowed = ((self.vendor, vendor), (self.format, case.format), (self.direction, case.direction))
        return case.op == self.op and all(not names or name in names for names, name in allowed)


def expectations(data: Any) -> tuple[Expectation, ...]:
    """What a suite or dump says must run: tables of Expectation's fields, or in short {op: names}. UsageError for another key."""
    rows = [{"op": op, "candidates": names} for op, names in data.items()] if isinstance(data, Mapping) else data or []
    found = []
    for row in rows:
        for key in row:
            if key not in Expectation.__dataclass_fields__:
                raise unknown("key of an expectation", key, Expectation.__dataclass_fields__)
        found.append(
            Expectation(str(row["op"]), *(tuple(_listed(row.get(k, ()))) for k in ("candidates", "vendor", "format", "direction")))
        )
    return tuple(found)


@dataclass(frozen=True)
class Suite:
    """A named list of cases. The digest covers the ids alone: two suites with equal digests ask for the same cases.

    expected  what must run besides the default; what does not fails the comparison
    whole     the suite that the cases are a part of; None: they are all of it
    chosen    how the part was chosen, in words: "--op gemm"
    """

    name: str
    description: str
    cases: tuple[Case, ...]
    expected: tuple[Expectation, ...]
    whole: Suite | None = None
    chosen: tuple[str, ...] = ()

    def part(self, cases: Iterable[Case], chosen: Iterable[str]) -> Suite:
        """Some of its cases; `chosen` says how they were picked."""
        kept = tuple(cases)
        if len(kept) == len(self.cases):
            return self
        return replace(self, cases=kept, whole=self.whole or self, chosen=(*self.chosen, *chosen))

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(sorted(case_id(c) for c in self.cases)).encode()).hexdigest()


def builtin_suites() -> dict[str, str]:
    """Names and descriptions of the suites that come with the package."""
    folder = resources.files("accuracy_eval") / "suites"
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name[:-5]: str(tomllib.loads(f.read_text("utf-8")).get("description", "")) for f in found}


def load_suite(name: str, *, max_m: int | None = None, huge: bool = False) -> Suite:
    """A built-in suite by name, or a user's by path (ending in .toml). `max_m` caps the rows of model GEMMs."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            text, label = path.read_text("utf-8"), str(path)
        except OSError as error:
            raise UsageError(f"suite {name}: {error.strerror}") from error
    else:
        names = builtin_suites()
        if name not in names:
            raise unknown("suite", name, [*names, "a path ending in .toml"])
        text, label = (resources.files("accuracy_eval") / "suites" / f"{name}.toml").read_text("utf-8"), name
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"suite {label}: not TOML: {error}") from error
    return parse_suite(data, label, max_m=max_m, huge=huge)


_SUITE_KEYS = ("name", "description", "cases", "models", "expected")
_TABLE_KEYS = ("op", "shape", "layout", "format", "out_format", "recipe", "input", "lane", "direction", "seed", "options")


def parse_suite(data: Mapping[str, Any], label: str, *, max_m: int | None = None, huge: bool = False) -> Suite:
    """The suite a TOML document describes. UsageError names the suite, the table and the key at fault."""
    for key in data:
        if key not in _SUITE_KEYS:
            raise unknown(f"key in suite {label}:", key, _SUITE_KEYS)
    cases: dict[str, Case] = {}
    for number, table in enumerate(data.get("cases", []), 1):
        for case in _expand(table, f"suite {label}, cases table {number}", huge=huge):
            cases.setdefault(case_id(case), case)
    if "models" in data:
        for case in _model_cases(data["models"], f"suite {label}, models", max_m, huge):
            cases.setdefault(case_id(case), case)
    if not cases:
        raise UsageError(f"suite {label} holds no cases; expected [[cases]] tables or a [models] table")
    return Suite(
        str(data.get("name", Path(label).stem)), str(data.get("description", "")), tuple(cases.values()), expectations(data.get("expected"))
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _expand(table: Mapping[str, Any], where: str, *, huge: bool) -> Iterator[Case]:
    for key in table:
        if key not in _TABLE_KEYS:
            raise unknown(f"key in {where}:", key, _TABLE_KEYS)
    if "op" not in table or "shape" not in table:
        raise UsageError(f"{where}: needs op and shape; found {', '.join(table) or 'nothing'}")
    options = table.get("options", {})
    choices = [[(name, v) for v in _listed(values)] for name, values in options.items()]
    for op_name in _listed(table["op"]):
        try:
            op = get_op(op_name)
        except UsageError as error:
            error.add_note(f"in {where}")
            raise
        for shape, layout, fmt, out, recipe, input_class, lane, direction, seed, *chosen in itertools.product(
            [s for text in _listed(table["shape"]) for s in _shapes(text, op.dims, where)],
            _listed(table.get("layout", op.layouts[0])), _listed(table.get("format", op.formats[0])), _listed(table.get("out_format", "")),
            _listed(table.get("recipe", op.recipes[0])), _listed(table.get("input", "normal")), _listed(table.get("lane", "random")),
            _listed(table.get("direction", "fwd")), _listed(table.get("seed", 0)), *choices,
        ):  # fmt: skip
            if lane != "random" and input_class != _listed(table.get("input", "normal"))[0]:
                continue  # a companion does not depend on the input class: one for all of them
            try:
                yield make_case(
                    op_name, shape, layout=layout, format=fmt, out_format=out, recipe=recipe, options=dict(chosen),
                    input_class=input_class, lane=lane, direction=direction, seed=seed, huge=huge,
                )  # fmt: skip
            except UsageError as error:
                error.add_note(f"in {where}")
                raise


def _shapes(shape: Any, dims: Sequence[tuple[str, ...]], where: str) -> Iterator[tuple[tuple[str, int], ...]]:
    """Sizes as text, "512x128x256" in the op's order of letters, or a table of lists {m = [1, 16], n = 64, k = 128}."""
    if isinstance(shape, Mapping):
        letters = next((d for d in dims if set(d) == set(shape)), None)
        if letters is None:
            raise unknown(f"shape letters in {where}:", "".join(shape), ["".join(d) for d in dims])
        for sizes in itertools.product(*(_listed(shape[d]) for d in letters)):
            yield tuple(zip(letters, sizes, strict=True))
        return
    text = str(shape)
    if not _SHAPE.match(text):
        raise UsageError(f"{where}: shape {shape!r}: expected sizes joined by x, such as 512x128x256, or a table of lists by letter")
    sizes = tuple(int(s) for s in text.split("x"))
    letters = next((d for d in dims if len(d) == len(sizes)), None)
    if letters is None:
        raise UsageError(f"{where}: shape {text} has {len(sizes)} sizes; allowed: {' or '.join('×'.join(d) for d in dims)}")
    yield tuple(zip(letters, sizes, strict=True))


def _model_cases(table: Mapping[str, Any], where: str, max_m: int | None, huge: bool) -> Iterator[Case]:
    """The GEMMs of dense transformers: N, K of the qkv, attention output, gate-up, down and vocabulary projections, M = sequence length."""
    entries = table.get("model", [])
    keys = ("name", "seq", "h", "i", "hq", "hkv", "v")
    shapes: dict[tuple[int, int, int], None] = {}
    for entry in entries:
        missing = [k for k in keys if k not in entry]
        if missing:
            raise UsageError(f"{where}: model {entry.get('name', '?')}: missing {', '.join(missing)}; expected {', '.join(keys)}")
        d, h, i = int(entry.get("d", 128)), int(entry["h"]), int(entry["i"])
        m = min(int(entry["seq"]), max_m or int(entry["seq"]))
        for n, k in (((entry["hq"] + 2 * entry["hkv"]) * d, h), (h, h), (2 * i, h), (h, i), (entry["v"], h)):
            shapes.setdefault((m, int(n), int(k)))
    spec = {"op": "gemm", **{k: v for k, v in table.items() if k != "model"}}
    spec["shape"] = [f"{m}x{n}x{k}" for m, n, k in shapes]
    yield from _expand(spec, where, huge=huge)


def filter_cases(
    cases: Iterable[Case],
    *,
    ops: Sequence[str] = (),
    shapes: Sequence[str] = (),
    formats: Sequence[str] = (),
    layouts: Sequence[str] = (),
    recipes: Sequence[str] = (),
    inputs: Sequence[str] = (),
    lanes: Sequence[str] = (),
    directions: Sequence[str] = (),
) -> list[Case]:
    """The cases that match every given filter; an empty filter matches all. Unknown names raise UsageError."""
    for op in ops:
        get_op(op)
    _known("layout", layouts, {x for op in OPS.values() for x in op.layouts if x})
    _known("recipe", recipes, {x for op in OPS.values() for x in op.recipes if x})
    for shape in shapes:
        if not _SHAPE.match(shape):
            raise UsageError(f"shape {shape!r}: expected sizes joined by x, such as 512x128x256")
    _known("lane", lanes, LANES)
    _known("direction", directions, DIRECTIONS)
    if inputs:
        from accuracy_eval.inputs import INPUT_CLASSES

        _known("input class", inputs, INPUT_CLASSES)
    families = {"+".join(get_family(p) for p in f.split("+")) for f in formats}
    return [
        c
        for c in cases
        if (not ops or c.op in ops)
        and (not shapes or "x".join(str(size) for _, size in c.shape) in shapes)
        and (not families or c.format in families)
        and (not layouts or c.layout in layouts)
        and (not recipes or c.recipe in recipes)
        and (not inputs or (c.lane == "random" and c.input_class in inputs))
        and (not lanes or c.lane in lanes)
        and (not directions or c.direction in directions)
    ]


def with_bases(cases: Sequence[Case]) -> list[Case]:
    """The cases, and the ones that metamorphic cases among them are compared with."""
    found = {case_id(c): c for c in cases}
    for c in cases:
        relation = get_op(c.op).relation(c)
        if relation is not None:
            for other in relation.others(c):
                found.setdefault(case_id(other), other)
    return list(found.values())


def _known(kind: str, names: Sequence[str], allowed: Iterable[str]) -> None:
    for name in names:
        if name not in allowed:
            raise unknown(kind, name, allowed)


def with_seed(cases: Iterable[Case], seed: int) -> list[Case]:
    """The same cases under another seed."""
    return [replace(c, seed=seed) for c in cases]


def shape_text(case: Case) -> str:
    """The shape part "m512.n128.k256" of the id, by which workbooks are grouped."""
    return ".".join(f"{letter}{size}" for letter, size in case.shape)


__all__ = [
    "LANES",
    "OPS",
    "Expectation",
    "Suite",
    "builtin_suites",
    "case_id",
    "expectations",
    "filter_cases",
    "load_suite",
    "make_case",
    "parse_case",
    "parse_suite",
    "shape_text",
    "with_bases",
    "with_seed",
]  # fmt: skip
