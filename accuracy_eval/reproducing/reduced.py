"""One element of a reduction or a softmax: the row or column it depends on, and what the reference says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from accuracy_eval.messages import index_text
from accuracy_eval.ops.reduce import axis_of
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Inputs, Reference
from accuracy_eval.reproducing.seen import Seen, coded_lines, judged


def reduced(seen: Sequence[Seen], inputs: Inputs, encoding: Encoding, at: tuple[int, ...]) -> Iterator[str]:
    """Lines on the element at `at`: every candidate's code and whether it keeps its budget, the reference and what keeps it, and the
    elements of x it was reduced from."""
    case, name = seen[0].record.case, seen[0].tensor.name

    def reference(contract: str) -> tuple[float, float]:
        return _at(get_op(case.op).reference(case, inputs, encoding, contract)[name], at)

    yield from judged(seen, reference)
    x = inputs["x"]
    line, place = (x.codes[at[0]], f"[{at[0]}, :]") if axis_of(case) == "last" else (x.codes[:, at[-1]], f"[:, {at[-1]}]")
    yield f"  x{place} {x.format}, element {index_text(at)} is made of all of it"
    yield from coded_lines(line, x.format)


def _at(reference: Reference, at: tuple[int, ...]) -> tuple[float, float]:
    """Truth and budget of an element of the reference."""
    row, column = divmod(int(np.ravel_multi_index(at, reference.shape)), reference.shape[-1])
    panel = next(p for p in reference.panels() if p.first_row <= row < p.first_row + len(p.values))
    where = row - panel.first_row, column
    return float(panel.values[where]), 0.0 if panel.budget is None else float(np.broadcast_to(panel.budget, panel.values.shape)[where])
