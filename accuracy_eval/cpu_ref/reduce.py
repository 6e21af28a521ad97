"""Reductions over the last axis: the truth, gradients, and what an error budget needs. One row of REDUCTIONS a function.

    reduce(name, x)                  the real value as float64: correctly rounded but for a few 2^-20 of an ulp
    reduce_gradient(name, x, grad)   the gradient with respect to x
    row_statistics(x)                running sums and norms of the rows
    sum_budget(x, contract)          error a sum may have under a contract
    reduce_limit(name, x, ref, fmt)  error that max, logsumexp, softmax and norm may have
    log_steps(name, x, ref, fmt)     and what a logsumexp in 16-bit steps may have besides

x is float64, [..., n], the exact operand values; results keep the leading axes ([...] or, softmax and gradients, [..., n]).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from accuracy_eval.contracts import LAMBDA, Contract
from accuracy_eval.cpu_ref.special import limit_ulps
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Format, Values, arithmetic_format, get_format, ulp
from accuracy_eval.threads import map_threads

if TYPE_CHECKING:
    from accuracy_eval.cpu_ref.running import RunningSums

TASK = 1 << 18  # elements of a task
_DOUBTFUL = 2.0**-20  # certificate of a row sum, in ulps of float64: above it the sum is made exactly
_WALK = 0.3  # rms of one rounding in ulps, as in the budget of a product


@dataclass(frozen=True)
class Reduction:
    """One reduction.

    formula   the definition, special operands included
    forward   x [r, n] → [r], or [r, n] where `keeps_axis`
    backward  (x [r, n], grad [r] or [r, n]) → [r, n]
    gradient  the gradient's definition
    budgeted  the error is bounded by a contract (`sum_budget`); else by `reduce_limit`
    """

    name: str
    formula: str
    forward: Callable[[Values], Values]
    backward: Callable[[Values, Values], Values]
    gradient: str
    keeps_axis: bool = False
    budgeted: bool = False


def _rows(x: Values) -> list[slice]:
    step = max(1, TASK // max(x.shape[1], 1))
    return [slice(i, i + step) for i in range(0, x.shape[0], step)]


def _loop(name: str) -> Callable[..., None]:
    from accuracy_eval.cpu_ref import _reduce_kernels  # compiles: only when something is reduced

    run: Callable[..., None] = getattr(_reduce_kernels, name)

    def quiet(*arrays: Any) -> None:
        with np.errstate(all="ignore"):
            run(*arrays)

    return quiet


def _sum_pairs(x: Values) -> tuple[Values, Values]:
    """hi + lo of each row's sum, |lo| ≤ ulp(hi)/2; exact where cancellation leaves the compiled sum in doubt."""
    hi, lo, size = (np.empty(x.shape[0]) for _ in range(3))
    run = _loop("sums")
    map_threads(lambda s: run(x[s], hi[s], lo[s], size[s]), _rows(x))
    finite = np.isfinite(size)
    for i in np.flatnonzero(~finite):  # Inf or NaN among the terms, or a sum of magnitudes beyond float64
        finite[i] = np.isfinite(x[i]).all()
    with np.errstate(invalid="ignore", over="ignore"):
        doubtful = finite & ~(x.shape[1] * 2.0**-105 * size <= _DOUBTFUL * np.spacing(np.abs(hi)))
    odd = x[~finite]  # Inf or NaN decides; finite terms must not overflow on the way to it
    with np.errstate(invalid="ignore"):
        hi[~finite], lo[~finite] = np.where(np.isfinite(odd), 0.0, odd).sum(axis=1), 0.0
    for i in np.flatnonzero(doubtful):
        hi[i], lo[i] = _exact_sum(x[i])
    # a sum of zeros is −0 only where every term is
    zero = np.flatnonzero((hi == 0.0) & (x.shape[1] > 0))
    hi[zero] = np.where(np.signbit(x[zero]).all(axis=1) & (x[zero] == 0.0).all(axis=1), -0.0, 0.0)
    return hi, lo


def _exact_sum(row: Values) -> tuple[float, float]:
    try:
        hi = math.fsum(row)
        return hi, math.fsum([*row, -hi])
    except OverflowError:  # of a partial sum or of the whole
        total = sum(map(Fraction, row.tolist()), Fraction(0))
        try:
            hi = float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf, 0.0
        return hi, float(total - Fraction(hi))


def _sum(x: Values) -> Values:
    return _sum_pairs(x)[0]


def _mean(x: Values) -> Values:
    if x.shape[1] == 0:
        return np.full(x.shape[0], np.nan)
    hi, lo = _sum_pairs(x)
    out = np.empty_like(hi)
    _loop("quotients")(hi, lo, float(x.shape[1]), out)
    for i in np.flatnonzero(np.isinf(hi)):
        if np.isfinite(x[i]).all():  # only the sum leaves float64, not the mean
            out[i] = float(sum(map(Fraction, x[i].tolist()), Fraction(0)) / x.shape[1])
    return out


def _max(x: Values) -> Values:
    if x.shape[1] == 0:
        raise UsageError(f"max of an empty axis: x has {x.shape[0]} rows of 0 elements; give it at least one")
    out = np.empty(x.shape[0])
    run = _loop("maxima")
    map_threads(lambda s: run(x[s], out[s]), _rows(x))
    return out


def _per_row(loop: str, x: Values, out: Values, *more: Values) -> Values:
    if x.size == 0:
        out[...] = -np.inf  # log of an empty sum; nothing is written where the rows are kept
        return out
    maximum = _max(x)
    run = _loop(loop)
    map_threads(lambda s: run(x[s], maximum[s], *(m[s] for m in more), out[s]), _rows(x))
    return out


def _logsumexp(x: Values) -> Values:
    return _per_row("log_sum_exps", x, np.empty(x.shape[0]))


def _softmax(x: Values) -> Values:
    return _per_row("softmaxes", x, np.empty_like(x))


def _row_units(x: Values) -> Values:
    """[r]: a power of two within a factor of two of the largest magnitude of each row, 1 where that is 0 or not finite."""
    with np.errstate(invalid="ignore"):
        top = np.max(np.abs(x), axis=1, initial=0.0)
    return np.asarray(np.ldexp(1.0, np.frexp(np.where((top > 0) & np.isfinite(top), top, 1.0))[1] - 1))


def _norm(x: Values) -> Values:
    out, unit = np.empty(x.shape[0]), _row_units(x)
    run = _loop("norms")
    map_threads(lambda s: run(x[s], unit[s], out[s]), _rows(x))
    nan, infinite = np.isnan(x).any(axis=1), np.isinf(x).any(axis=1)
    return np.where(nan, np.nan, np.where(infinite, np.inf, out))


def _sum_backward(x: Values, grad: Values) -> Values:
    return np.repeat(grad[:, None], x.shape[1], axis=1)


def _mean_backward(x: Values, grad: Values) -> Values:
    return np.repeat(grad[:, None] / max(x.shape[1], 1), x.shape[1], axis=1)


def _max_backward(x: Values, grad: Values) -> Values:
    return _per_row("max_gradients", x, np.empty_like(x), grad)


def _logsumexp_backward(x: Values, grad: Values) -> Values:
    with np.errstate(invalid="ignore"):
        return np.asarray(grad[:, None] * _softmax(x))


def _softmax_backward(x: Values, grad: Values) -> Values:
    return _per_row("softmax_gradients", x, np.empty_like(x), grad)


def _norm_backward(x: Values, grad: Values) -> Values:
    y = _norm(x)[:, None]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(y == 0.0, 0.0, x / y * grad[:, None])


REDUCTIONS: dict[str, Reduction] = {
    r.name: r
    for r in (
        Reduction(
            "sum", "Σx; NaN with a NaN or with Inf of both signs; 0 for an empty row", _sum, _sum_backward, "grad at every element",
            budgeted=True,
        ),
        Reduction("mean", "Σx / n; NaN for an empty row", _mean, _mean_backward, "grad / n at every element", budgeted=True),
        Reduction(
            "max", "largest element; NaN if one is NaN; +0 where zeros of both signs are largest", _max, _max_backward,
            "grad shared evenly by all largest elements (amax), 0 elsewhere; NaN where the maximum is NaN",
        ),
        Reduction(
            "logsumexp", "m + log Σ e^(x − m), m the maximum; m where that is Inf, −Inf or NaN", _logsumexp, _logsumexp_backward,
            "grad · softmax(x)",
        ),
        Reduction(
            "softmax", "e^(x − m) / Σ e^(x − m), m the maximum; a row of NaN where that is Inf, −Inf or NaN", _softmax, _softmax_backward,
            "s·(grad − Σ grad·s)", keeps_axis=True,
        ),
        Reduction(
            "norm", "√Σx²; NaN with a NaN, else Inf with an Inf; 0 for an empty row", _norm, _norm_backward,
            "grad · x / norm; 0 where the norm is 0",
        ),
    )
}  # fmt: skip


def get_reduction(name: str | Reduction) -> Reduction:
    """The row of that name; unknown names raise UsageError."""
    if isinstance(name, Reduction):
        return name
    try:
        return REDUCTIONS[name]
    except KeyError:
        raise unknown("reduction", name, REDUCTIONS) from None


def _matrix(x: Any) -> tuple[Values, tuple[int, ...]]:
    values = np.asarray(x, np.float64)
    if values.ndim == 0:
        raise UsageError("a reduction needs an axis: found a scalar, give an array of at least one dimension")
    lead, n = values.shape[:-1], values.shape[-1]
    return np.ascontiguousarray(values).reshape(math.prod(lead), n), lead


def reduce(name: str | Reduction, x: Any) -> Values:
    """The reduction of x [..., n] over its last axis, float64: [...], for softmax [..., n]. Within 0.51 ulp of the real value.

    NaN, Inf and zeros as the row's formula says. An empty axis: 0, NaN, UsageError (max), −Inf, empty.
    """
    r = get_reduction(name)
    rows, lead = _matrix(x)
    return r.forward(rows).reshape(np.shape(x) if r.keeps_axis else lead)


def reduce_gradient(name: str | Reduction, x: Any, grad: Any) -> Values:
    """Gradient with respect to x, [..., n]; grad has the shape of the result. Two roundings to float64 at most."""
    r = get_reduction(name)
    rows, lead = _matrix(x)
    wanted = np.shape(x) if r.keeps_axis else lead
    g = np.asarray(grad, np.float64)
    if g.shape != wanted:
        raise UsageError(f"{r.name}: grad must have the shape of the result, {wanted}; found {g.shape}")
    flat = np.ascontiguousarray(g).reshape(rows.shape if r.keeps_axis else rows.shape[:1])
    return r.backward(rows, flat).reshape(np.shape(x))


# --- budgets ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowStatistics:
    """Of the rows of x [r, n]; arrays float64 [r]. s_t: running sums in index order.

    total      Σx (rounded at every step: a statistic, not a reference)
    absolute   Σ|x|
    root       sqrt(Σx²)
    mean, rms  of |s_t| and of s_t
    largest    max |s_t|, the largest partial
    coherence  |Σ sign x|
    """

    n: int
    total: Values
    absolute: Values
    root: Values
    mean: Values
    rms: Values
    largest: Values
    coherence: Values

    def running_sums(self) -> RunningSums:
        """The same as columns [r, 1], for `running.element_budget`: a sum is a product with ones."""
        from accuracy_eval.cpu_ref.running import RunningSums

        zero = np.zeros((self.total.size, 1))
        total, mean, rms, root, coherence = (v[:, None] for v in (self.total, self.mean, self.rms, self.root, self.coherence))
        return RunningSums(self.n, total, mean, rms, root, coherence, part_sizes=zero, part_squares=zero)


def row_statistics(x: Any) -> RowStatistics:
    """Statistics of the rows of x [..., n], leading axes flattened."""
    rows, _ = _matrix(x)
    # squares of rows beyond 1e150 or below 1e-150 leave float64: such rows are measured in a power of two of their own
    unit = _row_units(rows)
    total, absolute, squares, mean, rms, largest, coherence = (np.empty(rows.shape[0]) for _ in range(7))
    run = _loop("statistics")
    out = (total, absolute, squares, mean, rms, largest, coherence)

    def measure(s: slice) -> None:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            scaled = rows[s] / unit[s, None]
        run(scaled, *(o[s] for o in out))

    map_threads(measure, _rows(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        return RowStatistics(
            rows.shape[1],
            total * unit,
            absolute * unit,
            np.sqrt(squares) * unit,
            mean * unit,
            np.sqrt(rms) * unit,
            largest * unit,
            coherence,
        )


def sum_budget(x: Any, contract: Contract, *, mean: bool = False) -> Values:
    """Error that the sum (or mean) of each row of x [..., n] may have under `contract` before output rounding, float64 [...].

    The budget of a product of x with ones, and 4 roundings of the result for a scale, a division or a last join.
    """
    from accuracy_eval.cpu_ref.running import element_budget

    rows, lead = _matrix(x)
    statistics = row_statistics(rows)
    budget = element_budget(contract, statistics.running_sums())[:, 0]
    if not contract.exact:
        budget = budget + 4.0 * 2.0**-contract.scalar_bits * np.abs(statistics.total)
    return np.asarray(budget / max(rows.shape[1], 1) if mean else budget).reshape(lead)


def reduce_limit(name: str | Reduction, x: Any, ref: Any, fmt: str | Format) -> Values:
    """Allowed |actual − ref| of max, logsumexp, softmax and norm, float64, shape of the result; ref: `reduce`'s values; fmt: the output's.

    Arithmetic in float32 (float64 for float64 outputs), u = 2^-24 or 2^-53, then one rounding to fmt:
    max 0 before it. A term e^(x − m) carries |x − m|·u from the difference and the error of exp, the sum of n positive terms
    λ·0.3·sqrt(n) ulp; logsumexp adds two roundings and the error of log, softmax a quotient. A softmax below the smallest normal
    value of float32 may be flushed. A norm is off by half of what its sum of squares is, squares below the smallest normal value
    flushed, and by the root's rounding. 0 where ref is not finite.
    """
    r, out = get_reduction(name), get_format(fmt)
    if r.budgeted:
        raise UsageError(f"{r.name} has an error budget under a contract: use sum_budget")
    rows, _ = _matrix(x)
    values = np.asarray(ref, np.float64)
    inner = arithmetic_format(out)
    rounding = (0.5 if out.bits < 64 else 1.0) * ulp(values, out)  # float64: the reference is rounded itself
    if r.name == "max":
        return np.where(np.isfinite(values), rounding, 0.0)
    step = inner.eps / 2
    accumulation = LAMBDA * _WALK * math.sqrt(rows.shape[1]) * inner.eps
    if r.name == "norm":
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            flushed = _norm(np.where(np.abs(rows) < math.sqrt(inner.smallest_normal), rows, 0.0)).reshape(values.shape)
            allowed = values * (accumulation / 2 + inner.eps) + flushed * np.fmin(flushed / values, 1.0)
        return np.where(np.isfinite(values), allowed + rounding, 0.0)
    exp_error = limit_ulps("exp", inner) * inner.eps
    maximum = _max(rows) if rows.size else np.zeros(rows.shape[0])
    with np.errstate(invalid="ignore", over="ignore"):
        distance = maximum[:, None] - rows
        if r.name == "softmax":
            relative = (distance * step + accumulation + 2.0 * exp_error + inner.eps).reshape(values.shape)
            allowed = np.where(values == 0, 0.0, values * relative) + inner.smallest_normal  # a term of −Inf is 0 at an infinite distance
        else:
            # of Σ e^(x−m)·|x − m| / Σ e^(x−m), what the differences contribute; at most log n
            weighted = np.minimum(np.nanmax(distance, axis=1, initial=0.0), math.log(max(rows.shape[1], 1)))
            relative = weighted * step + accumulation + exp_error
            log_size = np.abs(values - maximum.reshape(values.shape))
            allowed = relative.reshape(values.shape) + limit_ulps("log", inner) * ulp(log_size, inner) + ulp(values, inner)
        return np.where(np.isfinite(values), allowed + rounding, 0.0)


def log_steps(name: str | Reduction, x: Any, ref: Any, fmt: str | Format) -> Values:
    """What a 16-bit logsumexp may lose besides where it subtracts, exponentiates, sums and takes the logarithm as steps of their own, each
    rounded to the operands' format; shape of the result, 0 for all else.

    First order: u·Σ p·|x − m| (at most u·log n), u of exp, u of the sum, u·|log| of the log.
    """
    r, out, values = get_reduction(name), get_format(fmt), np.asarray(ref, np.float64)
    rows, _ = _matrix(x)
    if r.name != "logsumexp" or out.bits > 16 or not rows.size:
        return np.zeros_like(values)
    unit = out.eps / 2
    with np.errstate(invalid="ignore"):
        extra = unit * (np.log(rows.shape[1]) + 2.0 + np.abs(values - rows.max(axis=1).reshape(values.shape)))
    return np.where(np.isfinite(values), extra, 0.0)
