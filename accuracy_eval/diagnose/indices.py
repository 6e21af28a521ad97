"""Causes in operands that are indices: the result is computed again with all of them one off, or counted from the other end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Values, decode, encode, ulp
from accuracy_eval.ops.registry import OPS
from accuracy_eval.ops.spec import Operand
from accuracy_eval.records import Coded

REST = 0.01  # of the error's energy may remain unexplained, as for products
LEAST = 16  # elements: of one number, as the mean of a loss, one of the changes comes near any error

Indices = NDArray[np.int64]
# how they are used -> (indices, one more than the largest) -> those used; past an end a kernel may read on at the other, or stay
CHANGES: tuple[tuple[str, Callable[[Indices, int], Indices]], ...] = (
    ("one too high", lambda i, below: (i + 1) % below),
    ("one too high", lambda i, below: np.minimum(i + 1, below - 1)),
    ("one too low", lambda i, below: (i - 1) % below),
    ("one too low", lambda i, below: np.maximum(i - 1, 0)),
    ("counted from the last", lambda i, below: below - 1 - i),
)


def wrong_index(look: Look) -> Finding | None:
    """The one index operand, used in one other way, that gives what the output holds; None where none or several do."""
    c = look.context
    spec = OPS.get(c.op)
    if spec is None or not c.inputs or look.whole is None or tuple(letter for letter, _ in c.shape) not in spec.dims:
        return None  # arrays of an op may come under sizes of their own
    operands = [o for o in spec.operands(c.case, c.encoding) if o.below and o.name in c.inputs]
    x, t = look.whole
    good = np.isfinite(x) & np.isfinite(t)
    energy, rounding = float(np.sum((x - t)[good] ** 2)), float(np.sum(ulp(t[good], look.fmt) ** 2)) / 12
    if not operands or x.size < LEAST or not energy > (0 if look.exact else 10 * rounding):
        return None
    allowed = REST * energy + (0 if look.exact else 2 * rounding)
    found = {
        (o.name, how) for o in operands for how, p in _predictions(look, o)
        if np.sum((x - p)[good] ** 2) <= allowed and look.explains(p)
    }  # fmt: skip
    if len(found) != 1:
        return None
    ((operand, how),) = found
    return Finding({"operand": operand}, {"how": how})


def _predictions(look: Look, operand: Operand) -> Iterator[tuple[str, Values]]:
    """How the operand may have been used, and the output, rounded, that follows."""
    c, given = look.context, look.context.inputs[operand.name]
    indices = given.codes.view(np.int32).astype(np.int64)
    for how, change in CHANGES:
        changed = np.where(indices < 0, indices, change(indices, operand.below))  # negative ones stand for something else
        inputs = {**c.inputs, operand.name: Coded(changed.astype(np.int32).view(np.uint32), given.format)}
        reference = OPS[c.op].reference(c.case, inputs, c.encoding, c.contract or "exact")[c.output]
        values = np.concatenate([p.values for p in reference.panels()])
        codes = values if reference.kind == "codes" else encode(np.nan_to_num(values), look.fmt)
        yield how, decode(codes, look.fmt)
