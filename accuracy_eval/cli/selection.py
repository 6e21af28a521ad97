"""The options that pick cases, shared by every command that takes a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from accuracy_eval.records import Case
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
    """Adds --op, --shape, --format, --layout, --recipe, --input, --lane, --direction: each may be given several times."""
    for name, destination, text in reversed(_FILTERS):
        function = click.option(f"--{name}", destination, multiple=True, metavar=name.upper(), help=f"Only these: {text}.")(function)
    return function


def joined(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> str | None:
    """The values of an option that is given several times as one list with commas; None where it is not given."""
    return ",".join(value) if value else None


def as_options(chosen: Mapping[str, Sequence[str]]) -> list[str]:
    """What `selection` was given, as it is typed: "--op gemm"."""
    names = {destination: name for name, destination, _ in _FILTERS}
    return [f"--{names[destination]} {value}" for destination, values in chosen.items() for value in values]


def chosen_suite(suite: str | None, chosen: Mapping[str, tuple[str, ...]], *, seed: int | None, max_m: int | None, huge: bool) -> Suite:
    """The named suite filtered by the options, or without a name a suite built from them. UsageError when nothing is left."""
    from dataclasses import replace

    from accuracy_eval.errors import UsageError, counted
    from accuracy_eval.suite import filter_cases, load_suite, parse_suite, with_bases, with_seed

    def complete(cases: Sequence[Case]) -> tuple[Case, ...]:
        found = with_bases(cases)
        return tuple(found if seed is None else with_seed(found, seed))

    if suite is None:
        if not chosen["ops"] or not chosen["shapes"]:
            raise UsageError("name a suite (see accuracy-eval list suites), or give at least --op and --shape")
        table = {_KEYS[k]: list(v) for k, v in chosen.items() if v}
        found = parse_suite({"name": "command-line", "cases": [table]}, "from the command line", huge=huge)
        return replace(found, cases=complete(found.cases))
    found = load_suite(suite, max_m=max_m, huge=huge)
    kept = filter_cases(found.cases, **chosen)
    if not kept:
        raise UsageError(f"suite {suite}: none of its {counted(len(found.cases), 'case')} matches the given filters")
    return replace(found, cases=complete(found.cases)).part(complete(kept), as_options(chosen))
