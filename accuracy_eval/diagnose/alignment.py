"""Operands off alignment that were read from the boundary below: the result keeps the budget of rows that begin some elements early."""

from __future__ import annotations

import numpy as np

from accuracy_eval.budget import within_budget
from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.ops.registry import OPS
from accuracy_eval.ops.spec import OpSpec
from accuracy_eval.records import Coded

EARLY = (1, 2, 3)  # elements; operands of class misaligned begin 3 behind a boundary, zeros before each row


def misaligned_read(look: Look) -> Finding | None:
    """How many elements early all operands were read, which alone gives what the output holds; None where nothing or several do."""
    c = look.context
    spec = OPS.get(c.op)
    if c.input_class != "misaligned" or c.recipe or spec is None or not c.inputs or look.whole is None:
        return None
    if tuple(letter for letter, _ in c.shape) not in spec.dims:
        return None  # arrays of an op may come under sizes of their own
    found = [n for n in EARLY if _explains(look, spec, n)]
    return Finding({"elements": found[0]}) if len(found) == 1 else None


def _explains(look: Look, spec: OpSpec, early: int) -> bool:
    c = look.context
    assert c.actual is not None
    given = {o.name: c.inputs[o.name] for o in spec.operands(c.case, c.encoding) if not o.below and o.shape and o.name in c.inputs}
    inputs = {**c.inputs, **{name: Coded(_moved(coded, early), coded.format) for name, coded in given.items()}}
    for p in spec.reference(c.case, inputs, c.encoding, c.contract)[c.output].panels():
        codes = np.asarray(c.actual(p.first_row, p.first_row + len(p.values)))
        right = codes == p.values if p.budget is None else within_budget(codes, p.values, p.budget, look.fmt)
        if not right.all():
            return False
    return True


def _moved(coded: Coded, early: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    found = np.zeros_like(coded.codes)
    found[..., early:] = coded.codes[..., :-early]
    return found
