"""Scaled dot-product attention and its gradients in float64, with the error that independent roundings of its steps leave.

Per head, with S = scale·Q·Kᵀ (and a mask), P = softmax(S): O = P·V, L = log Σ e^S. Backward from dO: dV = Pᵀ·dO, dP = dO·Vᵀ,
δ = Σ dO·O, dS = P·(dP − δ), dQ = scale·dS·K, dK = scale·dSᵀ·Q. Several query heads may share one of K and V: their gradients add.

What a fused kernel rounds: S and dP keep a float32 accumulator; P and dS are rounded to the operands' format before they are multiplied;
O, from which δ comes, is stored in it. Each is one independent error per element; a sum of products with them is off by LAMBDA standard
deviations at most (docs/budgets.md). Float64 operands keep everything in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.cpu_ref.special import evaluate
from accuracy_eval.formats import Values, get_format

WALK = 0.3  # rms of one rounding in ulps, as in the budget of a product
SOFT = 4.0  # ulps of the scalar arithmetic that scaling, exponential, division and rescaling take each time
STEP = 4  # products a truncating matrix unit adds per rounding (the coarsest the contract allows)


@dataclass(frozen=True)
class Attention:
    """What is computed.

    q [b, h, s, d], k, v [b, g, t, d]   float64; h is a multiple of g
    causal   query i sees keys up to i (counted from the first)
    window   query i sees keys from i − window + 1 to i; 0: no window
    format   format of the operands: what P, dS and O are rounded to
    """

    q: Values
    k: Values
    v: Values
    scale: float
    causal: bool
    window: int
    format: str

    @property
    def unit(self) -> float:
        """Half a relative step of the operands' format; of float64's arithmetic half a step of float64."""
        return get_format(self.format).eps / 2

    @property
    def ulp(self) -> float:
        """A relative step of the arithmetic between the roundings."""
        return 2.0**-52 if self.format == "float64" else 2.0**-23

    def visible(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
        """[s, t]: which keys a query sees; None: all."""
        if not (self.causal or self.window):
            return None
        i, j = np.arange(self.q.shape[2])[:, None], np.arange(self.k.shape[2])[None, :]
        return (j <= i) & ((j > i - self.window) if self.window else True)


@dataclass(frozen=True)
class Result:
    """A tensor's values and the largest error of each, float64, same shape."""

    values: Values
    budget: Values


_NO_WARNING = np.errstate(over="ignore", invalid="ignore")  # Inf − Inf and 0·Inf are NaN; a budget may overflow


@_NO_WARNING
def forward(a: Attention) -> dict[str, Result]:
    """out [b, h, s, d] and lse [b, h, s]."""
    heads = [_Head(a, i, j) for i in range(a.q.shape[0]) for j in range(a.q.shape[1])]
    shape = a.q.shape[:2]
    return {
        "out": _stacked([h.out for h in heads], (*shape, a.q.shape[2], a.v.shape[3])),
        "lse": _stacked([h.lse for h in heads], (*shape, a.q.shape[2])),
    }


@_NO_WARNING
def backward(a: Attention, grad: Values) -> dict[str, Result]:
    """dq [b, h, s, d], dk and dv [b, g, t, d] for the upstream gradient of out, [b, h, s, d]."""
    b, h, g = a.q.shape[0], a.q.shape[1], a.k.shape[1]
    found = [[_Head(a, i, j).gradients(grad[i, j]) for j in range(h)] for i in range(b)]
    dq = _stacked([x["dq"] for row in found for x in row], a.q.shape)
    more = {}
    for name, shape in (("dk", a.k.shape), ("dv", a.v.shape)):
        shared = [[[row[j][name] for j in range(i * h // g, (i + 1) * h // g)] for i in range(g)] for row in found]
        more[name] = _stacked([_sum(a, parts) for row in shared for parts in row], shape)
    return {"dq": dq, **more}


def _stacked(parts: list[Result], shape: tuple[int, ...]) -> Result:
    return Result(*(np.stack([getattr(p, f) for p in parts]).reshape(shape) for f in ("values", "budget")))


def _sum(a: Attention, parts: list[Result]) -> Result:
    """Gradients of heads that share an operand: each may be rounded to its format before they are added."""
    total = Result(sum(p.values for p in parts), sum(p.budget for p in parts))  # type: ignore[arg-type]
    if len(parts) == 1:
        return total
    rounded = LAMBDA * a.unit * np.sqrt(sum(p.values**2 for p in parts) / 3.0)
    return Result(total.values, total.budget + rounded)


class _Head:
    """One query head."""

    def __init__(self, a: Attention, batch: int, head: int) -> None:
        shared = head * a.k.shape[1] // a.q.shape[1]
        self.a, self.q, self.k, self.v = a, a.q[batch, head], a.k[batch, shared], a.v[batch, shared]
        self.s = a.scale * (self.q @ self.k.T)
        visible = a.visible()
        masked = self.s if visible is None else np.where(visible, self.s, -np.inf)
        top = masked.max(axis=1, keepdims=True)
        weights = evaluate("exp", masked - top)
        total = weights.sum(axis=1, keepdims=True)
        self.p = weights / total
        self.log = (top + evaluate("log", total))[:, 0]
        self.o = self.p @ self.v
        d = self.q.shape[1]
        energy = a.scale**2 * (self.q**2 @ self.k.T**2)
        size = np.where(self.p > 0, np.abs(self.s), 0.0)
        # relative errors of an element of P: of its exponent, and of the arithmetic around it
        random = np.sqrt((WALK * a.ulp) ** 2 * d * energy + (SOFT * a.ulp * (1 + size)) ** 2 / 3)
        common = a.ulp * d / (2 * STEP) * np.maximum(size, np.sqrt(energy))
        self.random, self.common = np.where(self.p != 0, random, 0.0), np.where(self.p != 0, common, 0.0)

    def _accumulated(self, length: int, energy: Values, value: Values) -> Values:
        """What adding `length` products costs: a truncating unit's bias, and a walk."""
        root = np.sqrt(energy)
        steps = length / STEP
        allowed: Values = self.a.ulp * (steps / 2 * np.maximum(root, np.abs(value)) + LAMBDA * WALK * math.sqrt(length) * root)
        return allowed

    def _rounded(self) -> Values:
        """Variance of the relative error of P where it is multiplied."""
        variance: Values = self.random**2 + self.a.unit**2 / 3
        return variance

    @property
    def out(self) -> Result:
        p2 = self.p**2
        reach = np.abs(self.v)
        variance = (p2 * self._rounded()) @ self.v**2 + (p2 * self.random**2).sum(axis=1, keepdims=True) * self.o**2
        shift = (self.p * self.common) @ reach + (self.p * self.common).sum(axis=1, keepdims=True) * np.abs(self.o)
        adding = self._accumulated(self.p.shape[1], p2 @ self.v**2, self.o)
        return Result(self.o, LAMBDA * np.sqrt(variance) + shift + adding + SOFT * self.a.ulp * np.abs(self.o))

    @property
    def lse(self) -> Result:
        variance = (self.p**2 * self.random**2).sum(axis=1)
        shift = (self.p * self.common).sum(axis=1)
        return Result(self.log, LAMBDA * np.sqrt(variance) + shift + SOFT * self.a.ulp * (1 + np.abs(self.log)))

    def gradients(self, g: Values) -> dict[str, Result]:
        a, p, d, t = self.a, self.p, g.shape[1], self.k.shape[0]
        dp, p2 = g @ self.v.T, self.p**2
        delta = (g * self.o).sum(axis=1, keepdims=True)
        ds = p * (dp - delta)
        # δ from a stored O; dP from a float32 accumulator
        delta_error = np.sqrt((g**2 * self.o**2).sum(axis=1, keepdims=True) * (a.unit**2 / 3 + (WALK * a.ulp) ** 2 * d) + 0.0)
        delta_error = delta_error + np.sqrt((g**2 * (self.out.budget / LAMBDA) ** 2).sum(axis=1, keepdims=True))
        dp_error = np.sqrt((WALK * a.ulp) ** 2 * d * (g**2 @ self.v.T**2)) + a.ulp * d / (2 * STEP) * np.abs(dp) / LAMBDA
        shift = np.abs(ds) * self.common
        variance = ds**2 * self._rounded() + p2 * dp_error**2
        by_query = variance + p2 * delta_error**2
        dq, dk, dv = a.scale * (ds @ self.k), a.scale * (ds.T @ self.q), p.T @ g
        s = abs(a.scale)
        dq_budget = LAMBDA * s * (np.sqrt(variance @ self.k**2) + delta_error * np.abs(p @ self.k)) + s * (shift @ np.abs(self.k))
        dk_budget = LAMBDA * s * np.sqrt(by_query.T @ self.q**2) + s * (shift.T @ np.abs(self.q))
        dv_budget = LAMBDA * np.sqrt((p2 * self._rounded()).T @ g**2) + (p * self.common).T @ np.abs(g)
        return {
            "dq": Result(dq, dq_budget + self._accumulated(t, s**2 * (ds**2 @ self.k**2), dq)),
            "dk": Result(dk, dk_budget + self._accumulated(len(g), s**2 * (ds.T**2 @ self.q**2), dk)),
            "dv": Result(dv, dv_budget + self._accumulated(len(g), p2.T @ g**2, dv)),
        }
