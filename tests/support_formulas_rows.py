"""Norms of rows and turned pairs in float32 numpy, and the mistakes kernels make in them; in the form of support_formulas."""

import numpy as np
from support_formulas import _lost, _single


def norm(values, case, at):
    x, w = _single(values, "x", "weight")
    b, eps = values.get("bias"), np.float32(case.option("eps", 1e-5))
    mean = at("mean", x.mean(axis=1, keepdims=True) if b is not None else np.zeros((len(x), 1), np.float32), x)
    c = x - mean
    var = at("var", at("squares", c * c, x).mean(axis=1, keepdims=True), c)
    r = at("r", 1 / np.sqrt(var + eps), var, eps)
    h = at("h", c * r, x, r)
    if case.direction == "fwd":
        y = at("scaled", h * at("weight", w), w)
        return {"y": at("y", y if b is None else y + at("bias", b.astype(np.float32)), w)}
    (g,) = _single(values, "grad_y")
    q = at("q", g * at("weight", w), g)
    along = at("along", at("products", q * h, q * x).mean(axis=1, keepdims=True), x)
    level = at("level", q.mean(axis=1, keepdims=True) if b is not None else np.zeros_like(along), q)
    found = {
        "dx": at("dx", at("factor", r) * (q - level - h * along), q, r),
        "dweight": at("dweight", at("terms", g * h, g, h, q).sum(axis=0), g),
    }
    return found | ({"dbias": at("dbias", at("upstream", g, q).sum(axis=0), g)} if b is not None else {})


def _first_lines(count):
    """Once more the lines that come first: an accumulator that was not cleared, or a tile that is added twice."""
    return lambda terms, *more: np.concatenate([terms, terms[:count]])


NORM = {
    "eps outside the root": ("r", lambda r, var, eps: 1 / (np.sqrt(var) + eps)),
    "no eps": ("r", lambda r, var, eps: 1 / np.sqrt(var)),
    "eps of 1e-6": ("r", lambda r, var, eps: 1 / np.sqrt(var + eps / 10)),
    "eps squared": ("r", lambda r, var, eps: 1 / np.sqrt(var + eps * eps)),
    "no root": ("r", lambda r, var, eps: 1 / (var + eps)),
    "the root of n - 1": ("var", lambda var, c: var * (c.shape[1] / (c.shape[1] - 1))),
    "a norm, not a mean, of squares": ("var", lambda var, c: var * c.shape[1]),
    "a width that is padded to 64": ("var", lambda var, c: var * c.shape[1] / (-(-c.shape[1] // 64) * 64)),
    "the last column not counted": ("squares", lambda s, x: s * (np.arange(s.shape[1]) < s.shape[1] - 1)),
    "a tail of columns not counted": ("squares", lambda s, x: s * (np.arange(s.shape[1]) < s.shape[1] // 32 * 32)),
    "a variance of the row before": ("var", lambda var, c: np.roll(var, 1, axis=0)),
    "a variance about zero": ("squares", lambda s, x: x * x),
    "a variance in bfloat16": ("var", lambda var, c: (var.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)),
    "squares of float16": ("squares", lambda s, x: s.astype(np.float16).astype(np.float32)),
    "a mean without its last column": ("mean", lambda mean, x: mean - x[:, -1:] / x.shape[1]),
    "no mean": ("mean", lambda mean, x: 0 * mean),
    "a mean that is subtracted": ("mean", lambda mean, x: x.mean(axis=1, keepdims=True)),
    "a mean of the row before": ("mean", lambda mean, x: np.roll(mean, 1, axis=0)),
    "h of the operand as it is": ("h", lambda h, x, r: x * r),
    "no weight": ("weight", np.ones_like),
    "1 + weight": ("weight", lambda w: 1 + w),
    "weights one column on": ("weight", lambda w: np.roll(w, 1)),
    "no bias": ("bias", np.zeros_like),
    "a bias that is scaled": ("y", lambda y, w: y * w),
    "bias one column on": ("bias", lambda b: np.roll(b, 1)),
    "y 1 % off": ("y", lambda y, w: 1.01 * y),
    "the last row of y lost": ("y", _lost(-1)),
    "the last column of y lost": ("y", _lost(-1, 1)),
    "no weight in the gradient": ("q", lambda q, g: g),
    "the upstream gradient of the row before": ("q", lambda q, g: np.roll(q, 1, axis=0)),
    "no projection": ("along", lambda along, x: 0 * along),
    "a projection that is added": ("along", lambda along, x: -along),
    "a projection on x": ("products", lambda p, of_x: of_x),
    "a projection without its last column": ("products", _lost(-1, 1)),
    "a projection without its tail": ("products", lambda p, of_x: p * (np.arange(p.shape[1]) < p.shape[1] // 32 * 32)),
    "a projection of the row before": ("along", lambda along, x: np.roll(along, 1, axis=0)),
    "a projection divided by n - 1": ("along", lambda along, x: along * (x.shape[1] / (x.shape[1] - 1))),
    "no mean of the gradient": ("level", lambda level, q: 0 * level),
    "a mean of the gradient, where there is none": ("level", lambda level, q: q.mean(axis=1, keepdims=True)),
    "the factor cubed": ("factor", lambda r: r**3),
    "no factor": ("factor", np.ones_like),
    "dx 1 % off": ("dx", lambda dx, q, r: 1.01 * dx),
    "dx without its projections": ("dx", lambda dx, q, r: r * q),
    "the last row of dx lost": ("dx", _lost(-1)),
    "dweight of the operands": ("terms", lambda t, g, h, q: g),
    "dweight with the weight": ("terms", lambda t, g, h, q: q * h),
    "dweight without its last row": ("terms", _lost(-1)),
    "dweight without a tile of rows": ("terms", _lost(slice(-8, None))),
    "dweight with a tile twice": ("terms", _first_lines(8)),
    "dweight a mean": ("dweight", lambda dw, g: dw / len(g)),
    "dweight 2 % off": ("dweight", lambda dw, g: 1.02 * dw),
    "dbias with the weight": ("upstream", lambda g, q: q),
    "dbias without its last row": ("upstream", _lost(-1)),
    "dbias with a tile twice": ("upstream", _first_lines(8)),
    "dbias a mean": ("dbias", lambda db, g: db / len(g)),
    "dbias 2 % off": ("dbias", lambda db, g: 1.02 * db),
}  # fmt: skip


def rope(values, case, at):
    forward = case.direction == "fwd"
    x, cos, sin = _single(values, "x" if forward else "grad_y", "cos", "sin")
    cos, sin = (at(n, v)[:, None] for n, v in (("cos", cos), ("sin", sin)))
    sin = at("sign", sin if forward else -sin)
    a, b = at("pairs", np.split(x, 2, axis=2), x)
    turned = at("joined", np.concatenate([at("first", a * cos - b * sin, b * sin), at("second", b * cos + a * sin, a * sin)], axis=2), x)
    return {"y" if forward else "dx": at("written", turned, x)}


# mistake -> the step that is named where it is the one thing that is wrong (op, output, step)
NAMED = {
    ("no eps", "layernorm", "y"): "eps is missing",
    ("eps outside the root", "layernorm", "y"): "eps is added to the root, not under it",
    ("eps of 1e-6", "rmsnorm", "y"): "eps is 1e-06, not 1e-05",
    ("no root", "rmsnorm", "y"): "the root is missing",
    ("the root of n - 1", "layernorm", "y"): "the sum of squares is divided by 199, not 200",
    ("a width that is padded to 64", "rmsnorm", "y"): "the sum of squares is divided by 256, not 200",
    ("a tail of columns not counted", "rmsnorm", "y"): "columns from 192 on are not counted in the statistics",
    ("no mean", "layernorm", "y"): "the mean is not subtracted",
    ("a mean that is subtracted", "rmsnorm", "y"): "the mean is subtracted",
    ("no weight", "layernorm", "y"): "the weight is missing",
    ("1 + weight", "rmsnorm", "y"): "the weight is added to 1",
    ("no bias", "layernorm", "y"): "the bias is missing",
    ("no weight in the gradient", "layernorm", "dx"): "the gradient is not multiplied by the weight",
    ("no projection", "rmsnorm", "dx"): "the part along the normalised row is missing",
    ("a projection that is added", "layernorm", "dx"): "the part along the normalised row is added, not subtracted",
    ("no mean of the gradient", "layernorm", "dx"): "the mean of the gradient is not subtracted",
    ("a mean of the gradient, where there is none", "rmsnorm", "dx"): "the mean of the gradient is subtracted",
    ("dweight without its last row", "rmsnorm", "dweight"): "rows from 32 on do not reach the sum",
    ("dbias without its last row", "layernorm", "dbias"): "rows from 32 on do not reach the sum",
    ("the other way round", "rope", "y"): "pairs are turned the other way round",
    ("neighbours for pairs", "rope", "y"): "neighbours are paired, and the result is in halves",
    ("interleaved", "rope", "dx"): "the result is interleaved, not in halves",
}  # fmt: skip
ALIKE = {  # mistakes that are one of those steps, or come to the same
    "a norm, not a mean, of squares", "h of the operand as it is", "dx without its projections", "a tail of columns not counted",
    "the last column not counted", "a mean without its last column", "dweight without a tile of rows", "eps squared",
}  # fmt: skip


ROPE = {
    "the other way round": ("sign", np.negative),
    "one position on": ("cos", lambda c: np.roll(c, 1, axis=0)),
    "sines of one position on": ("sin", lambda s: np.roll(s, -1, axis=0)),
    "cosines for sines": ("sin", lambda s: np.sqrt(np.maximum(1 - s * s, 0))),
    "angles in reverse": ("sin", lambda s: s[:, ::-1]),
    "neighbours for pairs": ("pairs", lambda p, x: (x[..., 0::2], x[..., 1::2])),
    "halves exchanged": ("pairs", lambda p, x: p[::-1]),
    "the first without its sine": ("first", lambda f, of_sine: f + of_sine),
    "the second without its sine": ("second", lambda f, of_sine: f - of_sine),
    "the sine added in both": ("first", lambda f, of_sine: f + 2 * of_sine),
    "interleaved": ("joined", lambda y, x: np.stack(np.split(y, 2, axis=2), axis=3).reshape(y.shape)),
    "half of a head": ("written", lambda y, x: np.where(np.arange(y.shape[2]) < y.shape[2] // 2, y, x)),
    "the last head as it was": ("written", lambda y, x: np.where((np.arange(y.shape[1]) == y.shape[1] - 1)[:, None], x, y)),
    "the last position as it was": ("written", lambda y, x: np.where((np.arange(len(y)) == len(y) - 1)[:, None, None], x, y)),
    "the last pair lost": ("joined", lambda y, x: np.where(np.arange(y.shape[2]) % (y.shape[2] // 2) == y.shape[2] // 2 - 1, 0, y)),
    "2 % off": ("written", lambda y, x: 1.02 * y),
    "by heads for positions": ("written", lambda y, x: np.roll(y, 1, axis=1)),
}  # fmt: skip
