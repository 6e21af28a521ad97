"""The options that pick cases, shared by every command that takes a suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from accuracy_eval.cases import Suite

F = TypeVar("F", bound=Callable[..., Any])

_FILTERS = (
    ("op", "ops", "gemm, exp, cast, quantize, …"),
    ("shape", "shapes", "sizes in the op's order: 512x128x256 is m × n × k of a gemm"),
    ("format", "formats", "number format of the operands: bfloat16, fp8_e4m3, …"),
    ("layout", "layouts", "gemm operand layout: nt, nn, tn, tt (first letter A, second B)"),
    ("recipe", "recipes", "how operands are quantised: tensorwise, rowwise, mxfp8, …"),
    ("input", "inputs", "input class: normal, cancellation, codes, …"),
    ("lane", "lanes", "random, exact, coded or metamorphic"),
    ("direction", "directions", "fwd or bwd"),
)

FILTERS = tuple(destination for _, destination, _ in _FILTERS)


def selection(function: F) -> F:
    """Adds --op, --shape, --format, --layout, --recipe, --input, --lane, --direction: each may be given several times."""
    for name, destination, text in reversed(_FILTERS):
        function = click.option(f"--{name}", destination, multiple=True, metavar=name.upper(), help=f"Only these: {text}.")(function)
    return function


def chosen_suite(suite: str | None, chosen: dict[str, tuple[str, ...]], *, seed: int | None, max_m: int | None, huge: bool) -> Suite:
    """The named suite filtered by the options, or without a name a suite built from them. UsageError when nothing is left."""
    from dataclasses import replace

    from accuracy_eval.cases import filter_cases, load_suite, parse_suite, with_bases, with_seed
    from accuracy_eval.errors import UsageError, counted

    if suite is None:
        if not chosen["ops"] or not chosen["shapes"]:
            raise UsageError("name a suite (see accuracy-eval list suites), or give at least --op and --shape")
        keys = {"ops": "op", "shapes": "shape", "formats": "format", "layouts": "layout", "recipes": "recipe", "inputs": "input",
                "lanes": "lane", "directions": "direction"}  # fmt: skip
        table = {keys[k]: list(v) for k, v in chosen.items() if v}
        found = parse_suite({"name": "command-line", "cases": [table]}, "from the command line", huge=huge)
    else:
        whole = load_suite(suite, max_m=max_m, huge=huge)
        kept = filter_cases(whole.cases, **chosen)
        if not kept:
            raise UsageError(f"suite {suite}: none of its {counted(len(whole.cases), 'case')} matches the given filters")
        found = replace(whole, cases=tuple(kept))
    found = replace(found, cases=tuple(with_bases(found.cases)))
    return found if seed is None else replace(found, cases=tuple(with_seed(found.cases, seed)))
