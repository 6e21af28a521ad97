"""Changes of attention's gradients that kernels have had beside those of scale, mask, keys and heads (`attention`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from accuracy_eval.formats import Values
from accuracy_eval.ops.attention import option, order, scale_of, unorder
from accuracy_eval.records import Case

LARGEST = 1 << 22  # scores in all: 32 MiB of float64


def attention_changes(case: Case, values: Mapping[str, Values]) -> Iterator[tuple[str, Mapping[str, Values]]]:
    """Of dq, dk, dv and dsink, where there are scores, and all can be held."""
    if case.direction == "fwd":
        return
    q, k, v, g = (values[name].transpose(order(case.layout)) for name in ("q", "k", "v", "grad_out"))
    (b, h, s, _), (groups, t) = q.shape, k.shape[1:3]
    if not 0 < b * h * s * t <= LARGEST:
        return
    k, v = (np.repeat(x, h // groups, axis=1) for x in (k, v))
    p, of_sink = _weights(case, q, k, values.get("sink"))
    dp, scale = g @ v.swapaxes(2, 3), scale_of(case)
    delta = (p * dp).sum(axis=3, keepdims=True)
    back = unorder(case.layout)

    def gradients(delta: Values, shared: str = "sum") -> dict[str, Values]:
        ds = p * (dp - delta)

        def added(x: Values) -> Values:
            of_heads = x.reshape(b, groups, h // groups, *x.shape[2:])
            kept = {"sum": of_heads.sum(axis=2), "mean": of_heads.mean(axis=2), "first": of_heads[:, :, 0], "last": of_heads[:, :, -1]}
            return np.asarray(kept[shared].transpose(back))

        found = {"dq": (scale * ds @ k).transpose(back), "dk": added(scale * ds.swapaxes(2, 3) @ q), "dv": added(p.swapaxes(2, 3) @ g)}
        return found if of_sink is None else {**found, "dsink": -(of_sink * delta).sum(axis=(0, 2, 3))}

    yield "δ = Σ grad_out · out is not subtracted", gradients(0 * delta)
    yield "δ = Σ grad_out · out is added", gradients(-delta)
    yield "δ = Σ grad_out · out is that of the query before", gradients(np.roll(delta, 1, axis=2))
    yield "δ = Σ grad_out · out is that of the head before", gradients(np.roll(delta, 1, axis=1))
    for shared, how in (("mean", "averaged, not added"), ("first", "those of the first alone"), ("last", "those of the last alone")):
        if groups != h:
            yield f"gradients of the heads that share one of K and V are {how}", gradients(delta, shared)
    if of_sink is not None:
        for what, x in _of_sinks(of_sink, delta, scale).items():
            yield what, {"dsink": x}


def _weights(case: Case, q: Values, k: Values, sink: Values | None) -> tuple[Values, Values | None]:
    """P [b, h, s, t], and the weight of the sink [b, h, s, 1]."""
    scores = scale_of(case) * q @ k.swapaxes(2, 3)
    i, j, window = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :], int(option(case, "window"))
    if window or option(case, "causal"):
        scores = np.where((j <= i) & ((j > i - window) if window else True), scores, -np.inf)
    top = scores.max(axis=3, keepdims=True)
    if sink is None:
        e = np.exp(scores - top)
        return e / e.sum(axis=3, keepdims=True), None
    top = np.maximum(top, sink[:, None, None])
    e, of_sink = np.exp(scores - top), np.exp(sink[:, None, None] - top)
    total = e.sum(axis=3, keepdims=True) + of_sink
    return e / total, of_sink / total


def _of_sinks(p: Values, delta: Values, scale: float) -> dict[str, Values]:
    return {
        "the gradient of a sink is the sum of its weights": p.sum(axis=(0, 2, 3)),
        "the gradient of a sink is of the first batch alone": -(p * delta)[0].sum(axis=(1, 2)),
        "the gradient of a sink is of the last batch alone": -(p * delta)[-1].sum(axis=(1, 2)),
        "the gradient of a sink is scaled as scores are": -scale * (p * delta).sum(axis=(0, 2, 3)),
        "the gradient of a sink has its weights alone once more": -(p * p * delta).sum(axis=(0, 2, 3)),
    }
