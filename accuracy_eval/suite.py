"""Suites: named lists of cases, from TOML or filtered on the command line.

Built-in and users' suites have the same grammar: every value may be a list, and a table stands for the product of its lists. See
docs/suites.md.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from accuracy_eval.cases import DIRECTIONS, LANES, case_id, make_case
from accuracy_eval.errors import UsageError, counted, unknown
from accuracy_eval.formats import get_family
from accuracy_eval.ops.registry import OPS, get_op
from accuracy_eval.ops.spec import OpSpec
from accuracy_eval.records import Case
from accuracy_eval.toml_data import check_table, read_toml

_SHAPE = re.compile(r"\d{1,18}(x\d{1,18})*\Z")
# keys of the tables of a suite, with the kind of value that each has
_EXPECTED_KINDS = {"op": "text", **dict.fromkeys(("candidates", "vendor", "format", "direction"), "text or texts")}
_SUITE_KINDS = {
    "name": "text",
    "description": "text",
    "cases": "tables",
    "models": "table",
    "experts": "table",
    "expected": "table or tables",
}
_CASES_KINDS = {
    **dict.fromkeys(("op", "layout", "format", "out_format", "recipe", "input", "lane", "direction"), "text or texts"),
    "shape": "any",
    "seed": "integer or integers",
    "options": "table",
}
VENDORS = ("nvidia", "amd", "cpu")
_MODEL_SIZES = ("seq", "h", "i", "hq", "hkv", "v")  # of every model; d, the width of a head, is 128 where it is not stated
_EXPERT_SIZES = ("e", "i", "h")  # of every model with experts: how many, their inner size, the model's
_EXPERT_LISTS = ("ranks", "m")
_EXPERT_KINDS = {"name": "text", **dict.fromkeys(_EXPERT_SIZES, "integer")}
_MODEL_KINDS = {"name": "text", "d": "integer", **dict.fromkeys(_MODEL_SIZES, "integer")}


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
    """What a suite or dump says must run: tables of Expectation's fields, or in short {op: names}. UsageError for another key or kind."""
    rows = [{"op": op, "candidates": names} for op, names in data.items()] if isinstance(data, Mapping) else data or []
    for row in rows:
        check_table(row, _EXPECTED_KINDS, "an expectation", required=("op",))
    lists = ("candidates", "vendor", "format", "direction")
    return tuple(Expectation(row["op"], *(tuple(_listed(row.get(key, ()))) for key in lists)) for row in rows)


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
    """A built-in suite by name, or a user's by path (ending in .toml). `max_m` caps the rows of model GEMMs, of each group
    where they have experts."""
    if name.endswith(".toml"):
        return parse_suite(read_toml(name, "suite"), name, max_m=max_m, huge=huge)
    names = builtin_suites()
    if name not in names:
        raise unknown("suite", name, [*names, "a path ending in .toml"])
    text = (resources.files("accuracy_eval") / "suites" / f"{name}.toml").read_text("utf-8")
    return parse_suite(tomllib.loads(text), name, max_m=max_m, huge=huge)


def parse_suite(data: Mapping[str, Any], label: str, *, max_m: int | None = None, huge: bool = False) -> Suite:
    """The suite a TOML document describes. UsageError names the suite, the table and the key at fault."""
    check_table(data, _SUITE_KINDS, f"suite {label}")
    cases: dict[str, Case] = {}
    for number, table in enumerate(data.get("cases", []), 1):
        for case in _expand(table, f"suite {label}, cases table {number}", huge=huge):
            cases.setdefault(case_id(case), case)
    if "models" in data:
        for case in _model_cases(data["models"], f"suite {label}, models", max_m, huge):
            cases.setdefault(case_id(case), case)
    if "experts" in data:
        for case in _expert_cases(data["experts"], f"suite {label}, experts", max_m, huge):
            cases.setdefault(case_id(case), case)
    if not cases:
        raise UsageError(f"suite {label} holds no cases; expected [[cases]] tables, a [models] or an [experts] table")
    expected = expectations(data.get("expected"))
    for rule in expected:
        _check_expectation(rule, f"suite {label}, expected {rule.op}")
    return Suite(data.get("name", Path(label).stem), data.get("description", ""), tuple(cases.values()), expected)


def _check_expectation(rule: Expectation, where: str) -> None:
    """UsageError for names that no case has: nothing would be expected of anything."""
    get_op(rule.op)
    if not rule.candidates:
        raise UsageError(f"{where}: no candidates; name those that must run")
    for key, names, allowed in (("vendor", rule.vendor, VENDORS), ("direction", rule.direction, DIRECTIONS)):
        _known(f"{key} in {where}:", names, allowed)
    for part in (part for name in rule.format for part in name.split("+")):
        get_family(part)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _expand(table: Mapping[str, Any], where: str, *, huge: bool) -> Iterator[Case]:
    check_table(table, _CASES_KINDS, where)
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
            [s for text in _listed(table["shape"]) for s in _shapes(text, op, where)],
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


def _shapes(shape: Any, op: OpSpec, where: str) -> Iterator[tuple[tuple[str, int], ...]]:
    """Sizes as text, "512x128x256" in the op's order of letters, or a table of lists {m = [1, 16], n = 64, k = 128}."""
    dims = op.dims
    if isinstance(shape, Mapping):
        letters = next((d for d in dims if set(d) == set(shape)), None)
        if letters is None:
            raise unknown(f"shape letters in {where}:", "".join(shape), ["".join(d) for d in dims])
        check_table(shape, dict.fromkeys(letters, "integer or integers"), f"{where}, shape")
        for sizes in itertools.product(*(_listed(shape[d]) for d in letters)):
            yield tuple(zip(letters, sizes, strict=True))
        return
    text = str(shape)
    if not _SHAPE.match(text):
        raise UsageError(f"{where}: shape {shape!r}: expected sizes joined by x, such as 512x128x256, or a table of lists by letter")
    sizes = tuple(int(s) for s in text.split("x"))
    letters = next((d for d in dims if len(d) == len(sizes)), None)
    if letters is None:
        taken = " or ".join("×".join(d) for d in dims)
        raise UsageError(f"{where}: shape {text} has {counted(len(sizes), 'size')}; {op.name} takes {taken}")
    yield tuple(zip(letters, sizes, strict=True))


def _model_cases(table: Mapping[str, Any], where: str, max_m: int | None, huge: bool) -> Iterator[Case]:
    """The GEMMs of dense transformers: N, K of the qkv, attention output, gate-up, down and vocabulary projections, M = sequence length."""
    check_table(table, {"model": "tables", **{k: kind for k, kind in _CASES_KINDS.items() if k not in ("op", "shape")}}, where)
    shapes: dict[tuple[int, int, int], None] = {}
    for entry in table.get("model", []):
        check_table(entry, _MODEL_KINDS, f"{where}: model {entry.get('name', '?')}", required=("name", *_MODEL_SIZES))
        for size in ("d", *_MODEL_SIZES):
            if entry.get(size, 1) < 1:
                raise UsageError(f"{where}: model {entry['name']}: {size} = {entry[size]}; sizes of a model are 1 or more")
        d, h, i = entry.get("d", 128), entry["h"], entry["i"]
        m = min(entry["seq"], max_m or entry["seq"])
        for n, k in (((entry["hq"] + 2 * entry["hkv"]) * d, h), (h, h), (2 * i, h), (h, i), (entry["v"], h)):
            shapes.setdefault((m, n, k))
    spec = {"op": "gemm", **{k: v for k, v in table.items() if k != "model"}}
    spec["shape"] = [f"{m}x{n}x{k}" for m, n, k in shapes]
    yield from _expand(spec, where, huge=huge)


def _expert_cases(table: Mapping[str, Any], where: str, max_m: int | None, huge: bool) -> Iterator[Case]:
    """The grouped GEMMs of a rank's experts: N, K of the gate-up and down projections, e / ranks groups where that is whole, of m rows on
    average."""
    kinds = {k: kind for k, kind in _CASES_KINDS.items() if k not in ("op", "shape")}
    check_table(table, {"model": "tables", **dict.fromkeys(_EXPERT_LISTS, "integer or integers"), **kinds}, where, required=_EXPERT_LISTS)
    ranks, rows = (_listed(table[key]) for key in _EXPERT_LISTS)
    shapes: dict[tuple[int, int, int, int], None] = {}
    for entry in table.get("model", []):
        check_table(entry, _EXPERT_KINDS, f"{where}: model {entry.get('name', '?')}", required=("name", *_EXPERT_SIZES))
        e, i, h = (entry[size] for size in _EXPERT_SIZES)
        if min(e, i, h, *ranks, *rows) < 1:
            raise UsageError(f"{where}: model {entry['name']}: e = {e}, i = {i}, h = {h}, ranks {ranks}, m {rows}; sizes are 1 or more")
        for count, m, (n, k) in itertools.product(ranks, rows, ((2 * i, h), (h, i))):
            if e % count == 0:
                shapes.setdefault((e // count, min(m, max_m or m), n, k))
    spec = {"op": "grouped_gemm", **{k: v for k, v in table.items() if k in kinds}}
    spec["shape"] = ["x".join(map(str, sizes)) for sizes in shapes]
    yield from _expand(spec, where, huge=huge)


def filter_cases(
    cases: Iterable[Case],
    *,
    ops: Sequence[str] = (),
    shapes: Sequence[str] = (),
    formats: Sequence[str] = (),
    out_formats: Sequence[str] = (),
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
    outputs = {get_family(f) for f in out_formats}
    return [
        c
        for c in cases
        if (not ops or c.op in ops)
        and (not shapes or "x".join(str(size) for _, size in c.shape) in shapes)
        and (not families or c.format in families)
        and (not outputs or c.out_format in outputs)
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
