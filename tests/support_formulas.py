"""Ops as kernels compute them, in float32 numpy, and the mistakes kernels make: each a change of one named step of a formula.

A formula takes the operands' values by name, the case, and `at`: at(step, value, *more) is what the step leaves, changed where the planted
fault is one of that step (`more`: what a fault may need besides the value).
"""

import numpy as np
import torch

HALF_PI = 0.7978845608028654  # √(2/π)


def healthy(step, value, *more):
    return value


def planted(step, change):
    """The `at` of a fault: change(value, *more) in place of the value at that step."""
    return lambda name, value, *more: change(value, *more) if name == step else value


def _single(values, *names):
    return [values[n].astype(np.float32) for n in names]


def _lost(index, axis=0):
    """Zeros in place of a row, or column."""

    def change(x, *more):
        x = x.copy()
        x[(slice(None),) * axis + (index,)] = 0
        return x

    return change


def _column(x, index):
    return np.where(np.arange(x.shape[1]) == index % x.shape[1], x, 0)


def cross_entropy(values, case, at):
    (x,), target = _single(values, "x"), values["target"].astype(np.int64)
    (m, n), smoothing = x.shape, float(case.option("smoothing", 0.0))
    keep = at("kept", target >= 0)
    target = at("target", np.where(target >= 0, target, 0))
    shifted = x - x.max(axis=1, keepdims=True)
    logs = shifted - np.log(at("summed", np.exp(shifted)).sum(axis=1, keepdims=True))
    label = at("label", np.where(np.arange(n) == target[:, None], 1 - smoothing, 0) + smoothing / n, smoothing)
    mean = case.option("reduction", "mean") == "mean"
    count = at("count", keep.sum(), x) if mean else 1
    if case.direction == "fwd":
        loss = at("loss", np.where(keep, -(label * logs).sum(axis=1), 0))
        return {"loss": loss.sum() / count if mean else loss}
    upstream = at("upstream", np.broadcast_to(values["grad_loss"], m)) / count
    dx = np.where(at("zeroed", keep)[:, None], upstream[:, None] * (at("p", np.exp(logs)) - label), 0)
    return {"dx": at("dx", dx)}


def _peak(label):
    return label == label.max(axis=1, keepdims=True)


CROSS_ENTROPY = {
    "ignored rows count": ("kept", np.ones_like),
    "wrong rows are ignored": ("kept", lambda keep: np.roll(keep, 1)),
    "the last row is lost": ("kept", _lost(-1)),
    "the class after the target": ("target", lambda t: np.where(t > 0, t - 1, 1)),
    "the target of the row before": ("target", lambda t: np.roll(t, 1)),
    "the last class is not summed": ("summed", _lost(-1, 1)),
    "a tail of classes is not summed": ("summed", _lost(slice(-8, None), 1)),
    "two blocks with a maximum each": ("summed", lambda e: np.concatenate([h / h.max(1, keepdims=True) for h in np.split(e, 2, 1)], 1)),
    "exponentials in base 2": ("summed", lambda e: np.exp2(np.log(e))),
    "an eps in the sum": ("summed", lambda e: e * 1.001),
    "no smoothing": ("label", lambda y, s: np.where(_peak(y), 1.0, 0.0)),
    "half the smoothing": ("label", lambda y, s: np.where(_peak(y), 1 - s / 2, 0) + s / 2 / y.shape[1]),
    "smoothing over n - 1": ("label", lambda y, s: np.where(_peak(y), 1 - s, s / (y.shape[1] - 1))),
    "no share for the target": ("label", lambda y, s: np.where(_peak(y), 1 - s, s / y.shape[1])),
    "the whole target beside its share": ("label", lambda y, s: np.where(_peak(y), 1.0, 0.0) + s / y.shape[1]),
    "smoothing that is not divided": ("label", lambda y, s: np.where(_peak(y), 1 - s, 0) + s),
    "smoothing for the target": ("label", lambda y, s: np.where(_peak(y), s, (1 - s) / y.shape[1])),
    "a mean over all rows": ("count", lambda count, x: len(x)),
    "a mean over classes": ("count", lambda count, x: x.shape[1]),
    "a sum for a mean": ("count", lambda count, x: 1),
    "a mean over one row more": ("count", lambda count, x: count + 1),
    "a loss with its sign": ("loss", np.negative),
    "one row's loss twice": ("loss", lambda loss: np.where(np.arange(len(loss)) == 0, 2 * loss, loss)),
    "the upstream gradient is ignored": ("upstream", np.ones_like),
    "the upstream gradient of the row before": ("upstream", lambda g: np.roll(g, 1)),
    "ignored rows keep a gradient": ("zeroed", np.ones_like),
    "no target in the gradient": ("label", lambda y, s: np.zeros_like(y)),
    "the target twice": ("label", lambda y, s: 2 * y),
    "probabilities 5 % off": ("p", lambda p: 1.05 * p),
    "a gradient with its sign": ("dx", np.negative),
    "a gradient 2 % off": ("dx", lambda dx: 1.02 * dx),
    "the last class is not written": ("dx", _lost(-1, 1)),
}


def softmax_gradient(values, case, at):
    x, g = _single(values, "x", "grad_result")
    e = np.exp(x - x.max(axis=1, keepdims=True))
    s = at("s", e / at("summed", e).sum(axis=1, keepdims=True))
    dot = at("dot", at("terms", g * s).sum(axis=1, keepdims=True), g)
    return {"dx": at("dx", s * (g - dot), s, g)}


SOFTMAX_GRADIENT = {
    "the last column is not summed": ("summed", _lost(-1, 1)),
    "a tail of columns is not summed": ("summed", _lost(slice(-8, None), 1)),
    "weights of the row before": ("s", lambda s: np.roll(s, 1, axis=0)),
    "a temperature of 1.01": ("s", lambda s: s**1.01 / (s**1.01).sum(axis=1, keepdims=True)),
    "exponentials in base 2": ("s", lambda s: s ** np.log(2) / (s ** np.log(2)).sum(axis=1, keepdims=True)),
    "no dot": ("dot", lambda dot, g: 0 * dot),
    "the dot added": ("dot", lambda dot, g: -dot),
    "the dot twice": ("dot", lambda dot, g: 2 * dot),
    "the dot of the row before": ("dot", lambda dot, g: np.roll(dot, 1, axis=0)),
    "a mean of the gradient for the dot": ("dot", lambda dot, g: g.mean(axis=1, keepdims=True)),
    "a dot of float16": ("terms", lambda t: np.add.accumulate(t.astype(np.float16), axis=1)[:, -1:]),
    "a dot without its last column": ("terms", _lost(-1, 1)),
    "a dot without its tail": ("terms", _lost(slice(-8, None), 1)),
    "the gradient of log_softmax": ("dx", lambda dx, s, g: g - s * g.sum(axis=1, keepdims=True)),
    "weights squared": ("dx", lambda dx, s, g: dx * s),
    "its sign": ("dx", lambda dx, s, g: -dx),
    "1 % off": ("dx", lambda dx, s, g: 1.01 * dx),
    "the last row is lost": ("dx", _lost(-1)),
    "the last column is lost": ("dx", _lost(-1, 1)),
    "rows one too low": ("dx", lambda dx, s, g: np.roll(dx, 1, axis=0)),
    "columns one too low": ("dx", lambda dx, s, g: np.roll(dx, 1, axis=1)),
}


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _tanh_of_gelu(x):
    return np.tanh(HALF_PI * (x + 0.044715 * x**3))


def _cdf(x):
    return 0.5 * (1 + torch.erf(torch.from_numpy(np.ascontiguousarray(x)) / 2**0.5).numpy())


def _pdf(x):
    return np.exp(-x * x / 2) / (2 * np.pi) ** 0.5


def _tanh_slope(x):
    t = _tanh_of_gelu(x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * HALF_PI * (1 + 3 * 0.044715 * x * x)


ACTIVATIONS = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(x.dtype)),
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    "gelu-erf": (lambda x: x * _cdf(x), lambda x: _cdf(x) + x * _pdf(x)),
    "gelu-tanh": (lambda x: 0.5 * x * (1 + _tanh_of_gelu(x)), _tanh_slope),
}


def activation_gradient(values, case, at):
    a, b, g = _single(values, "a", "b", "grad_y")
    f, slope = ACTIVATIONS[str(case.option("activation", "none"))]
    alpha, bias = np.float32(case.option("alpha", 1.0)), values.get("bias", np.zeros(1)).astype(np.float32)
    t = at("alpha", alpha) * (a @ b.T) + at("bias", bias)
    dt = at("upstream", g / np.float32(case.option("output_scale", 1.0)), g) * at("slope", slope(t), t, f)
    found = {"da": at("da", alpha * (dt @ b)), "db": alpha * (dt.T @ a)}
    return found | ({"dbias": at("dbias", dt.sum(axis=0), g)} if "bias" in values else {})


ACTIVATION_GRADIENT = {
    ("relu", "1 at 0"): ("slope", lambda d, x, f: (x >= 0) * 1.0),
    ("relu", "1/2 at 0"): ("slope", lambda d, x, f: d + 0.5 * (x == 0)),
    ("relu", "1 everywhere"): ("slope", lambda d, x, f: np.ones_like(d)),
    ("relu", "of a leaky one"): ("slope", lambda d, x, f: np.where(x > 0, 1, 0.01)),
    ("relu", "0 from 6 on"): ("slope", lambda d, x, f: d * (x < 6)),
    ("silu", "without x"): ("slope", lambda d, x, f: _sigmoid(x)),
    ("silu", "x subtracted"): ("slope", lambda d, x, f: _sigmoid(x) * (1 - x * (1 - _sigmoid(x)))),
    ("silu", "at the result"): ("slope", lambda d, x, f: ACTIVATIONS["silu"][1](f(x))),
    ("silu", "of beta 1.01"): ("slope", lambda d, x, f: ACTIVATIONS["silu"][1](1.01 * x)),
    ("silu", "of gelu"): ("slope", lambda d, x, f: _tanh_slope(x)),
    ("gelu-erf", "without the density"): ("slope", lambda d, x, f: _cdf(x)),
    ("gelu-erf", "of the tanh form"): ("slope", lambda d, x, f: _tanh_slope(x)),
    ("gelu-erf", "of a sigmoid"): ("slope", lambda d, x, f: ACTIVATIONS["silu"][1](1.702 * x)),
    ("gelu-erf", "0 and 1 from 3 on"): ("slope", lambda d, x, f: np.where(np.abs(x) > 3, x > 0, d)),
    ("gelu-tanh", "of the erf form"): ("slope", lambda d, x, f: ACTIVATIONS["gelu-erf"][1](x)),
    ("gelu-tanh", "without its cubic"): (
        "slope", lambda d, x, f: 0.5 * (1 + _tanh_of_gelu(x)) + 0.5 * x * (1 - _tanh_of_gelu(x) ** 2) * HALF_PI,
    ),
    ("gelu-tanh", "1 % off"): ("slope", lambda d, x, f: 1.01 * d),
    ("silu", "alpha forgotten"): ("alpha", lambda alpha: 1.0),
    ("silu", "bias forgotten"): ("bias", lambda bias: 0 * bias),
    ("silu", "bias of the next column"): ("bias", lambda bias: np.roll(bias, 1)),
    ("silu", "output scale forgotten"): ("upstream", lambda scaled, g: g),
    ("silu", "last row of the gradient lost"): ("upstream", _lost(-1)),
    ("silu", "dbias a mean"): ("dbias", lambda db, g: db / len(g)),
    ("silu", "dbias before the slope"): ("dbias", lambda db, g: g.sum(axis=0)),
    ("silu", "da without its last column"): ("da", _lost(-1, 1)),
}  # fmt: skip


def _taken(x, chosen):
    return np.take_along_axis(x, chosen, axis=1)


def _score(x, case):
    if case.option("score", "softmax") == "sigmoid":
        return _sigmoid(x)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def topk(values, case, at):
    (x,), k = _single(values, "x"), case.dims["k"]
    s = _score(x, case)
    if case.direction == "fwd":
        chosen = at("chosen", np.argsort(-at("ranked", x, s), axis=1, kind="stable")[:, :k], x)
        w = at("weights", _taken(s, chosen), x, s, chosen)
        w = w / at("total", w.sum(axis=1, keepdims=True), s) if case.option("normalised", False) else w
        return {"indices": chosen.astype(np.int32), "weights": at("written", w)}
    chosen, g = values["indices"].astype(np.int64), at("upstream", values["grad_weights"].astype(np.float32))
    if case.option("normalised", False):
        total = at("total", _taken(s, chosen).sum(axis=1, keepdims=True))
        g = (g - at("mean", (g * _taken(s, chosen)).sum(axis=1, keepdims=True) / total)) / total
    a = np.zeros_like(s)
    np.put_along_axis(a, at("places", chosen, x), at("scattered", g), axis=1)
    sigmoid = case.option("score", "softmax") == "sigmoid"
    return {"dx": at("dx", a * s * (1 - s) if sigmoid else s * (a - at("dot", (a * s).sum(axis=1, keepdims=True))), a)}


TOPK = {
    "the smallest": ("ranked", lambda x, s: -x),
    "by magnitude": ("ranked", lambda x, s: np.abs(x)),
    "the last expert never": ("ranked", lambda x, s: np.where(np.arange(x.shape[1]) == x.shape[1] - 1, -np.inf, x)),
    "by scores of float16": ("ranked", lambda x, s: s.astype(np.float16)),
    "in the other order": ("chosen", lambda c, x: c[:, ::-1]),
    "the next experts": ("chosen", lambda c, x: (c + 1) % x.shape[1]),
    "the first twice": ("chosen", lambda c, x: np.where(np.arange(c.shape[1]) == c.shape[1] - 1, c[:, :1], c)),
    "of the token before": ("chosen", lambda c, x: np.roll(c, 1, axis=0)),
    "the last token lost": ("chosen", _lost(-1)),
    "logits for weights": ("weights", lambda w, x, s, c: _taken(x, c)),
    "weights of the next experts": ("weights", lambda w, x, s, c: _taken(s, (c + 1) % s.shape[1])),
    "an eps in the sum": ("total", lambda total, *s: total + 0.01),
    "a sum over all": ("total", lambda total, *s: s[0].sum(axis=1, keepdims=True) if s else np.ones_like(total)),
    "weights 1 % off": ("written", lambda w: 1.01 * w),
    "the upstream gradient reversed": ("upstream", lambda g: g[:, ::-1]),
    "the upstream gradient of the token before": ("upstream", lambda g: np.roll(g, 1, axis=0)),
    "no quotient rule": ("mean", lambda mean: 0 * mean),
    "scattered to the next expert": ("places", lambda c, x: (c + 1) % x.shape[1]),
    "scattered twice": ("scattered", lambda g: 2 * g),
    "one choice scattered twice": ("scattered", lambda g: np.where(np.arange(g.shape[1]) == 0, 2 * g, g)),
    "the last choice lost": ("scattered", _lost(-1, 1)),
    "the first choice alone": ("scattered", lambda g: _column(g, 0)),
    "no slope": ("dx", lambda dx, a: a),
    "no dot": ("dot", lambda dot: 0 * dot),
    "the gradient's sign": ("dx", lambda dx, a: -dx),
    "only the chosen have a gradient": ("dx", lambda dx, a: np.where(a != 0, dx, 0)),
}


def _places(experts):
    order = np.argsort(experts.ravel(), kind="stable")
    return order, np.argsort(order)


def permute(values, case, at):
    experts = values["experts"].astype(np.int64)
    (t, k), (order, place) = experts.shape, _places(experts)
    if case.direction == "fwd":
        order = at("order", order, experts)
        return {"y": at("y", values["x"][at("token", order // k, order, t)]), "place": at("place", np.argsort(order), order).reshape(t, k)}
    rows = values["grad_y"][at("place", place, order)].reshape(t, k, -1)
    return {"dx": at("dx", at("added", rows).sum(axis=1), rows)}


PERMUTE = {
    "an unstable sort": ("order", lambda order, experts: np.lexsort((-np.arange(experts.size), experts.ravel()))),
    "sorted by token": ("order", lambda order, experts: np.sort(order)),
    "the last expert first": ("order", lambda order, experts: np.argsort(-experts.ravel(), kind="stable")),
    "tokens modulo, not divided": ("token", lambda token, order, t: order % t),
    "the inverse of places": ("place", lambda place, order: order),
    "places one too high": ("place", lambda place, order: (place + 1) % len(place)),
    "the last row lost": ("y", _lost(-1)),
    "the last column lost": ("y", _lost(-1, 1)),
    "rows one too low": ("y", lambda y: np.roll(y, 1, axis=0)),
    "the last of a token's experts lost": ("added", lambda rows: rows[:, :-1]),
    "overwritten": ("added", lambda rows: rows[:, -1:]),
    "one expert's twice": ("added", lambda rows: np.concatenate([rows, rows[:, :1]], axis=1)),
    "a mean": ("dx", lambda dx, rows: rows.mean(axis=1)),
    "scattered twice": ("dx", lambda dx, rows: 2 * dx),
    "the last token lost": ("dx", _lost(-1)),
    "the last column of the gradient lost": ("dx", _lost(-1, 1)),
    "the first token without its first expert": ("dx", lambda dx, rows: dx - np.where(np.arange(len(dx)) == 0, 1, 0)[:, None] * rows[:, 0]),
    "2 % off": ("dx", lambda dx, rows: 1.02 * dx),
}


def unpermute(values, case, at):
    x, probs, place = values["x"], at("probs", values["probs"]), at("place", values["place"].astype(np.int64))
    (t, k), rows = place.shape, x[place]
    if case.direction == "fwd":
        weighted = rows * probs[:, :, None]
        return {"y": at("y", at("added", weighted).sum(axis=1), weighted)}
    g = values["grad_y"]
    dx = np.zeros_like(x)
    dx[place.ravel()] = (probs[:, :, None] * g[:, None]).reshape(t * k, -1)
    products = at("products", rows * g[:, None])
    return {"dx": at("dx", dx), "dprobs": at("dprobs", products.sum(axis=2), probs)}


UNPERMUTE = {
    "no probabilities": ("probs", np.ones_like),
    "probabilities squared": ("probs", np.square),
    "probabilities that add up to 1": ("probs", lambda p: p / p.sum(axis=1, keepdims=True)),
    "probabilities of the token before": ("probs", lambda p: np.roll(p, 1, axis=0)),
    "places reversed": ("place", lambda place: place[:, ::-1]),
    "places one too high": ("place", lambda place: (place + 1) % place.size),
    "not through places": ("place", lambda place: np.arange(place.size).reshape(place.shape)),
    "the last of a token's experts lost": ("added", lambda rows: rows[:, :-1]),
    "overwritten": ("added", lambda rows: rows[:, -1:]),
    "one expert's twice": ("added", lambda rows: np.concatenate([rows, rows[:, :1]], axis=1)),
    "a mean": ("y", lambda y, rows: rows.mean(axis=1)),
    "the last token lost": ("y", _lost(-1)),
    "the last column lost": ("y", _lost(-1, 1)),
    "2 % off": ("y", lambda y, rows: 1.02 * y),
    "dprobs without its last column": ("products", lambda p: p[:, :, :-1]),
    "dprobs without its tail": ("products", lambda p: p[:, :, :-8]),
    "dprobs a mean": ("products", lambda p: p / p.shape[2]),
    "dprobs times probabilities": ("dprobs", lambda d, p: d * p),
    "dprobs as of a softmax": ("dprobs", lambda d, p: d - (d * p).sum(axis=1, keepdims=True)),
    "a row of dx lost": ("dx", _lost(3)),
}


def embedding(values, case, at):
    ids = at("ids", values["ids"].astype(np.int64))
    if case.direction == "fwd":
        return {"y": at("y", values["weight"][ids % len(values["weight"])], ids)}
    g, dw = values["grad_y"], np.zeros((case.dims["v"], case.dims["n"]))
    rows, words = at("added", (g, ids % len(dw)))
    np.add.at(dw, words, rows)
    return {"dweight": at("dweight", dw, ids, g)}


def _last_of(dw, ids, g):
    found = np.zeros_like(dw)
    found[ids] = g
    return found


EMBEDDING = {
    "the next word": ("ids", lambda ids: ids + 1),
    "ids of 8 bits": ("ids", lambda ids: ids % 256),
    "the word of the token before": ("ids", lambda ids: np.roll(ids, 1)),
    "word 0 is padding": ("y", lambda y, ids: np.where((ids == 0)[:, None], 0, y)),
    "the last token's row lost": ("y", _lost(-1)),
    "the last column lost": ("y", _lost(-1, 1)),
    "scaled by the root of its width": ("y", lambda y, ids: y * y.shape[1] ** 0.5),
    "1 % off": ("y", lambda y, ids: 1.01 * y),
    "the first token lost": ("added", lambda a: (a[0][1:], a[1][1:])),
    "the last token lost": ("added", lambda a: (a[0][:-1], a[1][:-1])),
    "one token twice": ("added", lambda a: (np.concatenate([a[0], a[0][5:6]]), np.concatenate([a[1], a[1][5:6]]))),
    "every thousandth addition lost": ("added", lambda a: tuple(x[np.arange(len(x)) % 1000 != 999] for x in a)),
    "padding has no gradient": ("added", lambda a: (a[0][a[1] != 0], a[1][a[1] != 0])),
    "repeats overwritten": ("dweight", _last_of),
    "the first of repeats": ("dweight", lambda dw, ids, g: _last_of(dw, ids[::-1], g[::-1])),
    "scattered twice": ("dweight", lambda dw, ids, g: 2 * dw),
    "divided by how often a word is met": ("dweight", lambda dw, ids, g: dw / np.maximum(np.bincount(ids, minlength=len(dw)), 1)[:, None]),
    "words met once lost": ("dweight", lambda dw, ids, g: np.where((np.bincount(ids, minlength=len(dw)) == 1)[:, None], 0, dw)),
    "the gradient's last column lost": ("dweight", _lost(-1, 1)),
    "2 % off": ("dweight", lambda dw, ids, g: 1.02 * dw),
}
