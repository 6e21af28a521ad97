"""Causes inside an accumulator of 16 bits: it overflows on its way, or no longer grows."""

from __future__ import annotations

import numpy as np

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.diagnose.sampling import sample
from accuracy_eval.formats import Values, decode, get_format

HALF = frozenset({"float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})  # added up in float16, if narrowly


def _terms(look: Look) -> tuple[Values, Values, Values] | None:
    """(products [n, k] in increasing k, what the output holds [n], the truth [n]) of sampled elements of a product, a sum or a mean."""
    c = look.context
    if c.op in ("sum", "mean") and look.count == 1 and set(c.inputs) == {"x"} and c.actual is not None:
        x = decode(c.inputs["x"].codes.ravel(), c.inputs["x"].format)[None, :]
        if not 1 < x.size <= 1 << 20 or not np.isfinite(x).all():
            return None
        held = look.actual(0, 1).ravel() * (x.size if c.op == "mean" else 1)
        return x, held, x.sum(axis=1)
    s = sample(look)
    if s is None or s.base.any() or s.alpha != 1.0 or s.problem.k * 64 > 1 << 22:
        return None
    pick = np.stack(np.unravel_index(np.argsort(np.where(np.isfinite(s.error), -np.abs(s.error), -np.inf).ravel())[:64], s.x.shape))
    return s.a[pick[0]] * s.b[:, pick[1]].T, s.x[tuple(pick)], s.t[tuple(pick)]


def accumulator_overflow(look: Look) -> Finding | None:
    """Inf where a 16-bit running sum passes 65504 on its way to a value in range."""
    if not look.m.classes.inf_actual_only:
        return None
    found = _terms(look)
    if found is None:
        return None
    if not {f.format for n, f in look.context.inputs.items() if n in ("a", "b", "x")} <= HALF:
        return None
    products, held, truth = found
    top = get_format("float16").max
    with np.errstate(over="ignore", invalid="ignore"):
        reached = np.abs(np.cumsum(products, axis=1)).max(axis=1)
    out = np.isinf(held)
    scale = products.shape[1] if look.context.op == "mean" else 1
    explained = out & (reached > top) & (np.abs(truth) <= look.fmt.max * scale)
    if not out.any() or not explained[out].all() or (reached[~out] > top).any():
        return None
    return Finding({}, {"reached": f"{reached[out].max():.6g}"})


def accumulator_plateau(look: Look) -> Finding | None:
    """A running sum of 16 bits that no longer grows: each product is under half a step of it."""
    if look.m.metrics["nonfinite_mismatch"] or look.quiet:
        return None
    found = _terms(look)
    if found is None:
        return None
    products, held, truth = found
    import ml_dtypes

    for name, dtype in (("float16", np.dtype(np.float16)), ("bfloat16", np.dtype(ml_dtypes.bfloat16))):
        with np.errstate(over="ignore", invalid="ignore"):
            running = np.add.accumulate(products.astype(dtype), axis=1, dtype=dtype).astype(np.float64)
        total = running[:, -1]
        quarter = max(1, products.shape[1] // 4)
        stuck = (running[:, -quarter:] == total[:, None]).all(axis=1) & (products[:, -quarter:] != 0).any(axis=1)
        wrong = (np.abs(held - truth) > 0.02 * np.abs(truth)) & (total != 0)
        mean = look.context.op == "mean"
        same = np.abs(held - total) <= (2.0**-8 * np.abs(total) if mean else 0.0)
        if wrong.any() and (stuck & same)[wrong].all() and same.mean() >= 0.95:
            return Finding({"value": float(total[wrong][0])}, {"format": name})
    return None
