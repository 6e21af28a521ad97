"""A step of a formula left out or exchanged: the output is computed again under each such change, and one must explain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from accuracy_eval.diagnose.attention_steps import attention_changes
from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.diagnose.loss_steps import loss_changes, softmax_changes
from accuracy_eval.diagnose.norm_steps import norm_changes
from accuracy_eval.diagnose.rope_steps import rope_changes
from accuracy_eval.formats import Values, decode, ulp
from accuracy_eval.records import Case

REST = 0.01  # of the error's energy may remain unexplained, as for products
STORED = 8.0  # times the energy of rounding the output: steps before it may be stored in its format
RELATIVE = 2.0**-16  # of the output, what sums in float32 may cost besides
CLEAR = 10.0  # times what is left the next change must leave
# An error that is one factor is known to √(rounding / (energy·count)) of itself: beyond this one of twenty changes is as near by chance in
# fewer than one case of a hundred.
CERTAIN = (20 / 0.01) ** 2

Change = tuple[str, Mapping[str, Values]]  # what happened, and the outputs that it gives
Changes = Callable[[Case, Mapping[str, Values]], Iterator[Change]]  # of a case and the values of its operands by name

# op -> operands forward, operands backward, and the changes
CHANGES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], Changes]] = {
    "layernorm": (("x", "weight", "bias"), ("x", "weight", "bias", "grad_y"), norm_changes),
    "rmsnorm": (("x", "weight"), ("x", "weight", "grad_y"), norm_changes),
    "rope": (("x", "cos", "sin"), ("grad_y", "cos", "sin"), rope_changes),
    "softmax": (("x",), ("x", "grad_result"), softmax_changes),
    "cross_entropy": (("x", "target"), ("x", "target", "grad_loss"), loss_changes),
    "attention": (("q", "k", "v"), ("q", "k", "v", "grad_out"), attention_changes),
}


def formula_step(look: Look) -> Finding | None:
    """The change of a step that gives what the output holds; None where none does, or another nearly as well."""
    c = look.context
    if c.op not in CHANGES or look.whole is None:
        return None
    forward, backward, changes = CHANGES[c.op]
    if not set(backward if c.direction == "bwd" else forward) <= set(c.inputs):
        return None
    x, truth = look.whole
    good = np.isfinite(x) & np.isfinite(truth)
    energy, rounding = float(np.sum((x - truth)[good] ** 2)), float(np.sum(ulp(truth[good], look.fmt) ** 2)) / 12
    if not energy * np.count_nonzero(good) > CERTAIN * rounding:
        return None
    values = {name: decode(coded.codes, coded.format) for name, coded in c.inputs.items()}

    def rest(found: Mapping[str, Values]) -> float:
        """Energy that the change leaves; Inf where that is more than a healthy kernel would."""
        prediction = look.rounded(found[c.output].reshape(x.shape))
        y = prediction[good]
        left = float(np.sum((x[good] - y) ** 2))
        allowed = STORED / 12 * np.sum(ulp(y, look.fmt) ** 2) + np.sum((RELATIVE * y) ** 2)
        if not y.any() or left > min(REST * energy, float(allowed)):  # zeros have a name of their own
            return math.inf
        return left if look.explains(prediction) else math.inf

    with np.errstate(all="ignore"):
        left = [(rest(found), what) for what, found in changes(c.case, values) if c.output in found]
    (best, step), (second, _) = sorted([*left, (math.inf, ""), (math.inf, "")])[:2]
    return Finding({"step": step}) if CLEAR * best < second else None
