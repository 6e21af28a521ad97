"""The options that pick cases, shared by every command that takes a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from accuracy_eval.ops.spec import OpSpec
    from accuracy_eval.records import Case, OptionValue
    from accuracy_eval.suite import Suite

F = TypeVar("F", bound=Callable[..., Any])

_FILTERS = (
    ("op", "ops", "gemm, exp, cast, quantize, …"),
    ("shape", "shapes", "sizes in the op's order (list ops NAME): 512x128x256 is m × n × k of a gemm"),
    ("format", "formats", "number format of the operands: bfloat16, fp8_e4m3, …"),
    ("out-format", "out_formats", "number format of the output, where it is not the operands'"),
    ("layout", "layouts", "gemm operand layout: nt, nn, tn, tt (first letter A, second B)"),
    ("recipe", "recipes", "how operands are quantised: tensorwise, rowwise, mxfp8, …"),
    ("input", "inputs", "input class: normal, cancellation, codes, …"),
    ("lane", "lanes", "random, exact, coded or metamorphic"),
    ("direction", "directions", "fwd or bwd"),
)

FILTERS = tuple(destination for _, destination, _ in _FILTERS)
_KEYS = {destination: name.replace("-", "_") for name, destination, _ in _FILTERS}  # the key of a suite's table


def selection(function: F) -> F:
    """Adds --op, --shape, --format, --layout, --recipe, --input, --lane, --direction: each takes commas and may be given several times."""
    for name, destination, text in reversed(_FILTERS):
        option = click.option(
            f"--{name}", destination, multiple=True, callback=_parted, metavar=f"{name.upper()},…", help=f"Only these: {text}."
        )
        function = option(function)
    return function


def _parted(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for text in value for part in text.split(","))


def joined(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> str | None:
    """The values of an option that is given several times as one list with commas; None where it is not given."""
    return ",".join(value) if value else None


listed = partial(click.option, multiple=True, callback=joined)  # an option that takes commas and may be given several times


def as_options(chosen: Mapping[str, Sequence[str]]) -> list[str]:
    """What `selection` was given, as it is typed: "--op gemm"."""
    names = {destination: name for name, destination, _ in _FILTERS}
    return [f"--{names[destination]} {value}" for destination, values in chosen.items() for value in values]


def chosen_suite(
    suite: str | None,
    chosen: Mapping[str, tuple[str, ...]],
    *,
    seed: int | None,
    max_m: int | None,
    huge: bool,
    stated: Sequence[str] = (),
) -> Suite:
    """The named suite filtered by the options, or without a name a suite built from them. UsageError when nothing is left.

    stated  options of the op, "beta=1.0": those of a built suite, of a named one those that its cases must have
    """
    from dataclasses import replace

    from accuracy_eval.errors import UsageError, counted
    from accuracy_eval.ops.registry import get_op
    from accuracy_eval.suite import filter_cases, load_suite, parse_suite, with_bases, with_seed

    def complete(cases: Sequence[Case]) -> tuple[Case, ...]:
        found = with_bases(cases)
        return tuple(found if seed is None else with_seed(found, seed))

    if suite is None:
        if not chosen["ops"] or not chosen["shapes"]:
            raise UsageError("name a suite (see accuracy-eval list suites), or give at least --op and --shape")
        table: dict[str, Any] = {_KEYS[k]: list(v) for k, v in chosen.items() if v}
        if stated:
            table["options"] = _op_options(stated, [get_op(name) for name in chosen["ops"]])
        found = parse_suite({"name": "command-line", "cases": [table]}, "from the command line", huge=huge)
        return replace(found, cases=complete(found.cases))
    found = load_suite(suite, max_m=max_m, huge=huge)
    ops = {c.op: get_op(c.op) for c in found.cases}
    asked = _op_options(stated, list(ops.values()))
    kept = [c for c in filter_cases(found.cases, **chosen) if all(_has(ops[c.op], c, name, values) for name, values in asked.items())]
    if not kept:
        raise UsageError(f"suite {suite}: none of its {counted(len(found.cases), 'case')} matches the given filters")
    filters = [*as_options(chosen), *(f"--option {text}" for text in stated)]
    return replace(found, cases=complete(found.cases)).part(complete(kept), filters)


def _has(op: OpSpec, case: Case, name: str, values: Sequence[OptionValue]) -> bool:
    return name in op.options and op.option(case, name) in values


def _op_options(texts: Sequence[str], ops: Sequence[OpSpec]) -> dict[str, list[OptionValue]]:
    """Values by name of "beta=1.0", "bias=true"; each as its op has it. UsageError for what none of the ops has."""
    from accuracy_eval.errors import UsageError, unknown

    found: dict[str, list[OptionValue]] = {}
    known = {name: option.default for op in ops for name, option in op.options.items()}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option {text}: expected NAME=VALUE, for example beta=1.0; accuracy-eval list ops NAME has their names")
        if name not in known:
            raise unknown("option", name, known or ["(none)"])
        try:
            found.setdefault(name, []).append(_as_kind(value, known[name]))
        except (KeyError, ValueError) as error:
            raise UsageError(f"--option {text}: expected a {type(known[name]).__name__} like {known[name]!r}") from error
    return found


def _as_kind(text: str, default: OptionValue) -> OptionValue:
    return {"true": True, "false": False}[text.lower()] if isinstance(default, bool) else type(default)(text)
