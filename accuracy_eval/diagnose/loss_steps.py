"""Changes of cross-entropy and of the gradient of softmax that kernels have had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.reduce import reduce
from accuracy_eval.formats import Values
from accuracy_eval.ops.loss import OPTIONS
from accuracy_eval.ops.reduce import axis_of
from accuracy_eval.ops.spec import option_of
from accuracy_eval.records import Case


@dataclass(frozen=True)
class _Loss:
    """What is computed of logits x [m, n].

    target   [m] classes; counted: [m] rows that do
    own      weight of a row's class, other: of all else
    divisor  of the sum of all rows, and of their gradients; 0: rows keep a loss each
    """

    target: NDArray[np.int64]
    counted: NDArray[np.bool_]
    own: float
    other: float
    divisor: int

    def results(self, x: Values, g: Values | None) -> dict[str, Values]:
        logs = x - reduce("logsumexp", x)[:, None]
        hit = np.arange(x.shape[1]) == self.target[:, None]
        label = np.where(hit, self.own, self.other)
        if g is None:
            loss = np.where(self.counted, -(label * logs).sum(axis=1), 0.0)
            return {"loss": np.asarray(loss.sum() / self.divisor) if self.divisor else loss}
        upstream = np.broadcast_to(g, len(x)) / (self.divisor or 1)
        return {"dx": np.where(self.counted, upstream, 0.0)[:, None] * (np.exp(logs) * label.sum(axis=1, keepdims=True) - label)}


def loss_changes(case: Case, values: Mapping[str, Values]) -> Iterator[tuple[str, Mapping[str, Values]]]:
    x, given = values["x"], values["target"].astype(np.int64)
    (m, n), s, reduction = x.shape, float(option_of(OPTIONS, case, "smoothing")), option_of(OPTIONS, case, "reduction")
    counted, target = given >= 0, np.maximum(given, 0)
    divisor = {"none": 0, "sum": 1}.get(str(reduction), max(int(counted.sum()), 1))
    asked = _Loss(target, counted, 1 - s + s / n, s / n, divisor)
    for what, change in _changes(asked, s, m, n):
        yield what, change.results(x, values.get("grad_loss"))


def _changes(a: _Loss, s: float, m: int, n: int) -> Iterator[tuple[str, _Loss]]:
    if s:
        yield "the label smoothing is missing", replace(a, own=1.0, other=0.0)
        yield f"the label smoothing is over {n - 1} classes, not {n}", replace(a, own=1 - s, other=s / max(n - 1, 1))
        yield "the target has no share of the label smoothing", replace(a, own=1 - s)
    if not a.counted.all():
        yield "rows to ignore count", replace(a, counted=np.ones(m, np.bool_))
        if a.divisor > 1:
            yield f"the mean is over all {m} rows, not {a.divisor}", replace(a, divisor=m)
    if a.divisor > 1:
        yield "the sum is not divided by the rows", replace(a, divisor=1)
    yield "targets are those of the row before", replace(a, target=np.roll(a.target, 1))
    yield "targets are those of the row after", replace(a, target=np.roll(a.target, -1))


def softmax_changes(case: Case, values: Mapping[str, Values]) -> Iterator[tuple[str, Mapping[str, Values]]]:
    """Of the gradient s·(grad − Σ grad·s); the forward pass has no step to leave out."""
    if case.direction == "fwd":
        return
    along_first = axis_of(case) == "first"
    x, g = (values[name].T if along_first else values[name] for name in ("x", "grad_result"))
    s = reduce("softmax", x)
    dot = (g * s).sum(axis=1, keepdims=True)
    found = {
        "Σ grad · softmax is not subtracted": s * g,
        "Σ grad · softmax is added": s * (g + dot),
        "the mean of grad is subtracted, not Σ grad · softmax": s * (g - g.mean(axis=1, keepdims=True)),
        "it is the gradient of log_softmax": g - s * g.sum(axis=1, keepdims=True),
    }
    for what, dx in found.items():
        yield what, {"dx": dx.T if along_first else dx}
