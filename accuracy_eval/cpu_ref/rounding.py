"""Correctly rounded GEMM results: exact elements, and the few of a panel whose rounding float64 leaves open.

A value v with |error| ≤ eps has a certain code when v − eps and v + eps round to the same one. The rest are summed again in
doubled precision; what even that leaves open (values on a rounding boundary) is decided in integers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref import wide
from accuracy_eval.cpu_ref.gemm import Panel
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.pairs import two_prod, two_sum
from accuracy_eval.formats import Codes, Overflow, Values, decode, encode, get_format
from accuracy_eval.jit import kernel

PAIRS = 256  # open elements summed again at a time


def exact_element(problem: Gemm, row: int, column: int) -> Fraction | float:
    """D[row, column] before output rounding as an exact fraction; NaN or ±Inf where IEEE arithmetic gives that.

    Scaled operands count as the float64 values `Operand.values` gives. Milliseconds per thousand products.
    """
    alpha, beta = problem.scalars
    extra = Fraction(0)
    special = 0.0
    if beta != 0 and problem.c is not None:
        value = float(decode(problem.c.codes[row : row + 1, column], problem.c.format)[0])
        special, extra = (
            (special + beta * value, extra) if not math.isfinite(value) else (special, extra + Fraction(beta) * Fraction(value))
        )
    if problem.bias_values is not None:
        value = float(problem.bias_values[column])
        special, extra = (special + value, extra) if not math.isfinite(value) else (special, extra + Fraction(value))
    if alpha == 0:
        return extra if special == 0 else special
    x = problem.a_rows([row])[0]
    y = problem.b_columns([column])[:, 0]
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        with np.errstate(invalid="ignore", over="ignore"):
            return special + alpha * float(np.sum(x * y))
    if special != 0:
        return special
    return Fraction(alpha) * exact_dot(x, y) + extra


def exact_dot(x: Values, y: Values) -> Fraction:
    """Σ x·y of finite float64 vectors, exactly."""
    use = (x != 0) & (y != 0)
    if not use.any():
        return Fraction(0)
    mx, ex = np.frexp(x[use])
    my, ey = np.frexp(y[use])
    shift = ex.astype(np.int64) + ey - 106
    low = int(shift.min())
    a, b = (mx * 2.0**53).astype(np.int64).tolist(), (my * 2.0**53).astype(np.int64).tolist()
    total = sum((p * q) << s for p, q, s in zip(a, b, (shift - low).tolist(), strict=True))
    return Fraction(total) * Fraction(2) ** low


def correctly_rounded(problem: Gemm, panel: Panel, out_format: str, *, overflow: Overflow | None = None) -> Codes:
    """Codes [r, n] of `out_format`: each element of the panel's exact result rounded once, to nearest even.

    overflow  as in `formats.encode`
    """
    codes, open_rows, open_columns = _certain(problem, panel, out_format, overflow)
    for i in range(0, len(open_rows), PAIRS):
        rows, columns = open_rows[i : i + PAIRS], open_columns[i : i + PAIRS]
        codes[rows, columns] = _again(problem, rows + panel.first_row, columns, out_format, overflow)
    return codes


def _certain(problem: Gemm, panel: Panel, out_format: str, overflow: Overflow | None) -> tuple[Codes, NDArray[np.int64], NDArray[np.int64]]:
    """Codes of the panel, and rows (of the panel) and columns of those that are not certain."""
    eps = error_bound(problem, panel)
    with np.errstate(invalid="ignore", over="ignore"):
        if panel.low is None:
            below, above = panel.values - eps, panel.values + eps
        else:
            # the sum hi + lo lies within an ulp of hi, which is its code's value unless a boundary is that near
            exact = (panel.low == 0) & (eps == 0)
            below = np.where(exact, panel.values, np.nextafter(panel.values + (panel.low - eps), -np.inf))
            above = np.where(exact, panel.values, np.nextafter(panel.values + (panel.low + eps), np.inf))
    special = ~np.isfinite(panel.values)
    below, above = np.where(special, panel.values, below), np.where(special, panel.values, above)
    codes = encode(panel.values, out_format, overflow=overflow)
    if panel.low is not None and get_format(out_format).name == "float64":
        # hi is the sum rounded to float64 unless the rest comes near half the gap to the neighbour towards zero
        unsure = ~special & (np.abs(panel.low) + eps >= 0.5 * np.spacing(np.nextafter(np.abs(panel.values), 0))) & (eps > 0)
        at = np.nonzero(unsure)
        return codes, at[0], at[1]
    unsure = (encode(below, out_format, overflow=overflow) != codes) | (encode(above, out_format, overflow=overflow) != codes)
    # ±0 differ in code but not in value: the sign of a computed zero stands
    unsure &= (panel.values != 0) | (eps > 0)
    rows, columns = np.nonzero(unsure)
    return codes, rows, columns


def error_bound(problem: Gemm, panel: Panel) -> Values:
    """Largest error of panel.values (+ low) against the exact result, float64 [r, n]; (|A||B|) is bounded by row times column norm."""
    alpha, beta = problem.scalars
    rows = slice(panel.first_row, panel.first_row + panel.values.shape[0])
    k = problem.k
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.outer(problem.a_norms[rows], problem.b_norms) * abs(alpha)
        wide_sum = panel.low is not None
        eps = size * ((k * k + 8.0) * 2.0**-104 if wide_sum else (k + 6.0) * 2.0**-53)
        rest = 0.0 if not wide_sum else 2.0**-100
        if beta != 0:
            eps += np.abs(beta * problem.c_values(rows)) * (rest or 4 * 2.0**-53)
        if problem.bias_values is not None:
            eps += np.abs(problem.bias_values) * (rest or 4 * 2.0**-53)
    return np.asarray(eps)


@kernel
def _pair_dots(x: Any, y: Any, hi: Any, lo: Any) -> None:
    """hi + lo = Σ_k x·y for each row of x and y [p, k]; values within the range of float32."""
    for i in range(x.shape[0]):
        h, e = 0.0, 0.0
        for t in range(x.shape[1]):
            p, low = two_prod(x[i, t], y[i, t])
            h, rest = two_sum(h, p)
            e += rest + low
        hi[i], lo[i] = two_sum(h, e)


def _again(problem: Gemm, rows: NDArray[np.int64], columns: NDArray[np.int64], out_format: str, overflow: Overflow | None) -> Codes:
    """Codes of single elements whose float64 value was too near a rounding boundary."""
    codes = np.empty(len(rows), get_format(out_format).storage)
    settled = np.zeros(len(rows), np.bool_)
    if not problem.wide:
        x = problem.a_rows(rows)
        y = np.ascontiguousarray(problem.b_columns(columns).T)
        hi, lo, high, low = (np.zeros((len(rows), 1)) for _ in range(4))
        _pair_dots(x, y, hi[:, 0], lo[:, 0])
        alpha, beta = problem.scalars
        c = np.empty((0, 0)) if beta == 0 or problem.c is None else decode(problem.c.codes[rows, columns], problem.c.format)[:, None]
        wide.combine(hi, lo, alpha, beta, c, np.empty(0), high, low)
        h, e = high[:, 0], low[:, 0]
        if problem.bias_values is not None:
            bias = problem.bias_values[columns]
            n = h + bias
            z = n - h
            e = e + ((h - (n - z)) + (bias - z))
            h = n + e
            e = e - (h - n)
        size = problem.a_norms[rows] * problem.b_norms[columns] * abs(alpha) + np.abs(h) + (np.abs(beta * c[:, 0]) if c.size else 0.0)
        eps = size * (problem.k * problem.k + 16.0) * 2.0**-102
        under, over = (encode(to_odd(h, e + d), out_format, overflow=overflow) for d in (-eps, eps))
        settled = under == over
        codes[settled] = under[settled]
    for i in np.nonzero(~settled)[0]:
        codes[i] = round_exact(exact_element(problem, int(rows[i]), int(columns[i])), out_format, overflow=overflow)
    return codes


def to_odd(high: Values, low: Values) -> Values:
    """high + low rounded to odd in float64, so that one more rounding to at most 51 bits is the rounding of the sum itself."""
    total = high + low
    z = total - high
    rest = (high - (total - z)) + (low - z)
    even = (np.ascontiguousarray(total).view(np.uint64) & np.uint64(1)) == 0
    return np.where((rest != 0) & even, np.nextafter(total, np.where(rest > 0, np.inf, -np.inf)), total)


def round_exact(value: Fraction | float, out_format: str, *, overflow: Overflow | None = None) -> int:
    """Code of an exact number rounded once to `out_format`."""
    if isinstance(value, float):
        return int(encode(np.array([value]), out_format, overflow=overflow)[0])
    try:
        near = float(value)
    except OverflowError:
        return int(encode(np.array([math.inf if value > 0 else -math.inf]), out_format, overflow=overflow)[0])
    rest = value - Fraction(near)
    if get_format(out_format).name == "float64":
        return int(encode(np.array([near]), out_format, overflow=overflow)[0])
    # only the sign of the rest matters to rounding to odd; a quarter of an ulp stands for it
    step = math.copysign(math.ulp(near) / 4, rest) if rest else 0.0
    return int(encode(to_odd(np.array([near]), np.array([step])), out_format, overflow=overflow)[0])
