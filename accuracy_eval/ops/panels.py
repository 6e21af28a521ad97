"""References from the values and errors of an output: whole, or block of rows by block of rows where the whole would not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import gemm
from accuracy_eval.formats import Codes, Values
from accuracy_eval.metrics.rounding_bias import Alike
from accuracy_eval.ops.spec import Exempt, Output, Panel, Reference, bounded, row_blocks, rows_and_columns

Part = tuple[Values, Values]  # values and how far off they may be before they are rounded, of one shape
Lines = Part | tuple[Values, Values, Values]  # the same, and how far off many of them together


def by_rows(
    output: Output, contract: str, walked: tuple[int, ...], part: Callable[[int, int], Lines], *, exempt: Exempt | None = None
) -> Reference:
    """The reference of an output made from rows of something of shape `walked` [..., n].

    part  (first, end) of those rows -> the same rows of the output's 2-D view, or [r] where it has one number a row
    """

    def blocks() -> Iterator[Panel]:
        for first, end in row_blocks(walked):
            values, budget, *typical = part(first, end)
            yield Panel(first, *bounded(values, budget), *(bounded(values, t)[1] for t in typical))

    def panels() -> Iterator[Panel]:
        if len(output.shape) > 1:
            yield from blocks()
            return
        found = list(blocks())  # numbers, one a row: a panel of one row
        shape = rows_and_columns(output.shape)
        values, budget = (np.concatenate([getattr(p, name) for p in found] or [np.empty(0)]) for name in ("values", "budget"))
        yield Panel(0, values.reshape(shape), budget.reshape(shape))

    return Reference("values", output.format, output.shape, contract, panels, exempt=exempt)


def one_code(output: Output, rows: Callable[[int, int], Codes], *, contract: str = "exact") -> Reference:
    """The reference of an output that has one right code an element; rows (first, end) of its 2-D view -> codes."""

    def panels() -> Iterator[Panel]:
        for first, end in row_blocks(output.shape):
            yield Panel(first, rows(first, end))

    return Reference("codes", output.format, output.shape, contract, panels, resolution={"element": "one code"})


def of_product(panels: Iterable[gemm.Panel], *, first_row: int = 0) -> Iterator[Panel]:
    """The panels of a product whose first row is row `first_row` of the output."""
    for p in panels:
        yield Panel(first_row + p.first_row, p.values, p.budget, p.typical)


def turned(found: Reference, output: Output) -> Reference:
    """The reference of a matrix from that of its transpose."""

    def panels() -> Iterator[Panel]:
        parts = list(found.panels())
        names = ["values", "budget"] + (["typical"] if all(p.typical is not None for p in parts) else [])
        yield Panel(0, **{name: np.ascontiguousarray(np.concatenate([getattr(p, name) for p in parts]).T) for name in names})

    def flipped(codes: Codes, values: Values, first_row: int) -> NDArray[np.bool_] | None:
        assert found.exempt is not None
        mask = found.exempt.mask(codes.T, values.T, first_row)
        return None if mask is None else mask.T

    exempt = None if found.exempt is None else Exempt(flipped, found.exempt.why)
    return replace(found, shape=output.shape, panels=panels, exempt=exempt)


def whole(
    outputs: Sequence[Output],
    contract: str,
    compute: Callable[[], Mapping[str, Part]],
    *,
    exempt: Callable[[Output], Exempt | None] = lambda output: None,
    alike: Alike | None = None,
) -> dict[str, Reference]:
    """References of outputs that one computation gives by name, each in its own shape; it runs once, when the first is read.

    exempt, alike  of the references
    """
    once = cache(compute)

    def reference(output: Output) -> Reference:
        def panels() -> Iterator[Panel]:
            yield Panel(0, *(v.reshape(rows_and_columns(output.shape)) for v in bounded(*once()[output.name])))

        return Reference("values", output.format, output.shape, contract, panels, exempt=exempt(output), alike=alike)

    return {o.name: reference(o) for o in outputs}
