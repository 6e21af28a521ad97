"""The exact companion of a grouped product: that of one product of all rows, B's rows moved and signed group by group so that no two
groups are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from accuracy_eval.formats import get_format
from accuracy_eval.inputs.exact import ExactOperands, integer_codes
from accuracy_eval.ops.factors import Codes
from accuracy_eval.ops.groups import Group, groups_of, padded, padding_of
from accuracy_eval.ops.spec import Output, Panel, row_blocks, rows_and_columns
from accuracy_eval.records import Case


@lru_cache(maxsize=1)
def _exact(case: Case) -> ExactOperands:
    from accuracy_eval.inputs.exact import exact_gemm

    rows = case.dims["g"] * case.dims["m"]
    return exact_gemm(rows, case.dims["n"], case.dims["k"], direction="bwd" if case.direction == "bwd" else "fwd", seed=case.seed)


def _sign(group: Group) -> int:
    return -1 if group.number % 2 else 1


def exact_operands(case: Case, formats: Mapping[str, str]) -> dict[str, Codes]:
    """Codes of the operands of these formats, padding included."""
    made = _exact(case)
    b = np.stack([np.roll(made.b, g.number, axis=0) * _sign(g) for g in groups_of(case)])
    integers = {"a": made.a, "b": b}
    if made.grad_d is not None:
        moved = [np.roll(made.grad_d[g.start : g.stop], g.number, axis=1) for g in groups_of(case)]
        integers["grad_d"] = np.concatenate(moved)
    found = {name: integer_codes(x, formats[name]) for name, x in integers.items()}
    padding = padding_of(case)
    return {name: c if name == "b" or not padding else padded(c, padding, get_format(formats[name]).nan_code) for name, c in found.items()}


def _result(case: Case, output: Output) -> np.ndarray[Any, Any]:
    made, groups = _exact(case), groups_of(case)
    if output.name == "db":
        assert made.grad_d is not None
        a, grad = made.a.astype(np.float32), made.grad_d.astype(np.float32)
        db = np.stack([np.roll(grad[g.start : g.stop].T @ a[g.start : g.stop], g.number, axis=0) for g in groups])
        return np.swapaxes(db, 1, 2) if case.layout[1] == "n" else db
    whole = made.d() if output.name == "d" else made.da()
    shift = output.name == "d"
    parts = [np.roll(whole[g.start : g.stop], g.number if shift else 0, axis=1) * _sign(g) for g in groups]
    return padded(np.concatenate(parts), padding_of(case), 0)


def exact_panels(case: Case, output: Output) -> Iterator[Panel]:
    """The one right result, in codes."""
    codes = integer_codes(_result(case, output).astype(np.int64), output.format).reshape(rows_and_columns(output.shape))
    for first, end in row_blocks(output.shape):
        yield Panel(first, codes[first:end])
