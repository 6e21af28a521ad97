"""References from the values and errors of an output: whole, or block of rows by block of rows where the whole would not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from accuracy_eval.formats import Values
from accuracy_eval.ops.spec import Exempt, Output, Panel, Reference, bounded, row_blocks, rows_and_columns

Part = tuple[Values, Values]  # values and how far off they may be before they are rounded, of one shape


def by_rows(
    output: Output, contract: str, walked: tuple[int, ...], part: Callable[[int, int], Part], *, exempt: Exempt | None = None
) -> Reference:
    """The reference of an output made from rows of something of shape `walked` [..., n].

    part  (first, end) of those rows -> the same rows of the output's 2-D view, or [r] where it has one number a row
    """

    def blocks() -> Iterator[Panel]:
        for first, end in row_blocks(walked):
            yield Panel(first, *bounded(*part(first, end)))

    def panels() -> Iterator[Panel]:
        if len(output.shape) > 1:
            yield from blocks()
            return
        found = list(blocks())  # numbers, one a row: a panel of one row
        shape = rows_and_columns(output.shape)
        values, budget = (np.concatenate([getattr(p, name) for p in found] or [np.empty(0)]) for name in ("values", "budget"))
        yield Panel(0, values.reshape(shape), budget.reshape(shape))

    return Reference("values", output.format, output.shape, contract, panels, exempt=exempt)


def whole(outputs: Sequence[Output], contract: str, compute: Callable[[], Mapping[str, Part]]) -> dict[str, Reference]:
    """References of outputs that one computation gives by name, each in its own shape; it runs once, when the first is read."""
    once = cache(compute)

    def reference(output: Output) -> Reference:
        def panels() -> Iterator[Panel]:
            yield Panel(0, *(v.reshape(rows_and_columns(output.shape)) for v in bounded(*once()[output.name])))

        return Reference("values", output.format, output.shape, contract, panels)

    return {o.name: reference(o) for o in outputs}
