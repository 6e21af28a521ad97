"""Which special functions there are: one row of FUNCTIONS for each, with its definition, kernels, test domains and error limits.

Nothing here computes; `special` does. Sources of limits are in the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from accuracy_eval.formats import Values

SOFTPLUS_THRESHOLD = 20.0

_CUDA = "CUDA C++ Programming Guide, maximum ulp error against the correctly rounded result"
_HIP = "ROCm HIP math API, ulp difference to the host's libm over short ranges"
_BOTH = f"cuda: {_CUDA}; hip: {_HIP}"
_CONFORMANCE = f"cuda: {_CUDA}; hip: exhaustive over float32 on an RX 6950 XT (LLVM libc GPU conformance), above the documented 1"


@dataclass(frozen=True)
class Interval:
    """Operands of the `wide` input class. "log": evenly over the exponents between low and high; signed: either sign."""

    low: float
    high: float
    spacing: Literal["linear", "log"] = "linear"
    signed: bool = False


@dataclass(frozen=True)
class Tail:
    """Operands low ≤ x ≤ high where the formula itself loses bits: |error| ≤ n ulp + absolute + relative·|x|."""

    low: float
    high: float
    why: str
    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True)
class Ulps:
    """Documented or derived maximum error in ulp of a float32 result, against the correctly rounded one."""

    cuda: float
    hip: float
    source: str


@dataclass(frozen=True)
class Function:
    """One special function.

    formula      the definition, also for operands where it and the limit of the function differ (−Inf · 0 is NaN)
    exact        the value by mpmath: (context, x[, y]) → number, for finite operands inside `where`
    where        finite operands that have a real value; elsewhere the result is NaN or, at a pole, ±Inf
    kernel       loop of `_special_kernels` that evaluates it
    slopes       loop for the derivative with respect to each operand, of `_special_derivatives` (d_…) or of `_special_kernels`
    slope_text   these derivatives
    sensitivity  (x, f, f') → sum of the magnitudes of the terms that cancel in the usual formula of f', where that is above |f'|
    vanishing    x → what those terms leave at most where they cancel: in 16 bits no more than twice that is lost, and all of it where
                 `sensitivity` is 0
    saved        that formula starts from the rounded result of the forward pass
    turbo        transform of `DOMAINS` for each operand of class `normal`
    wide         intervals that reach overflow, underflow, saturation, poles and (sin, cos) large arguments
    ulps         limit for float32; 16-bit and smaller results: 1 ulp, since they are computed in float32 and rounded once
    tails        by arithmetic, "float32" (also for smaller formats) and "float64"
    monotone     over all x of one sign; "" where it is not
    parity       "odd": f(−x) = −f(x), "even": f(−x) = f(x)
    values       interval its values lie in; a correctly rounded result may touch the ends
    """

    name: str
    formula: str
    exact: Callable[..., Any]
    kernel: str
    slopes: tuple[str, ...]
    slope_text: tuple[str, ...]
    wide: tuple[Interval, ...]
    ulps: Ulps
    turbo: tuple[str, ...] = ("any",)
    where: str = "all x"
    sensitivity: Callable[[Values, Values, Values], Values] | None = None
    vanishing: Callable[[Values], Values] | None = None
    saved: bool = False
    tails: Mapping[str, tuple[Tail, ...]] | None = None
    monotone: Literal["", "increasing", "decreasing"] = ""
    parity: Literal["", "odd", "even"] = ""
    values: tuple[float, float] = (-np.inf, np.inf)

    @property
    def arity(self) -> int:
        return len(self.slopes)


def _softplus(ctx: Any, x: Any) -> Any:
    return x if x > SOFTPLUS_THRESHOLD else ctx.log1p(ctx.exp(x))


# of gelu-tanh, beyond which its tanh is within 2^-70 of ±1: in float64 and below it is that, and 1 − tanh² exactly 0, whatever x² is
_TANH_IS_ONE = 8.0


def _gelu_tanh(ctx: Any, x: Any) -> Any:
    return x / (1 + ctx.exp(-ctx.sqrt(8 / ctx.pi) * (x + ctx.mpf("0.044715") * x**3)))


def _gelu_tanh_terms(x: Values) -> Values:
    """(1 − |t|)/2 + |x|·(1 − t²)·√(2/π)·(1 + 0.134145·x²)/2, t the tanh."""
    size = np.minimum(np.abs(x), 40.0)  # from where on they are 0
    left = 2.0 / (1.0 + np.exp(np.minimum(2.0 * np.sqrt(2.0 / np.pi) * (size + 0.044715 * size**3), 700.0)))
    return np.asarray(left / 2 + size * left * (2.0 - left) * np.sqrt(2.0 / np.pi) * (1.0 + 0.134145 * size**2) / 2)


def _power(ctx: Any, x: Any, y: Any) -> Any:
    value = ctx.power(abs(x), y)
    return -value if x < 0 and y % 2 == 1 else value


_EXPONENTS = Interval(-110.0, 95.0)
_POSITIVE = Interval(2.0**-149, 2.0**127.99, "log")
_ANY_SIGN = Interval(2.0**-149, 2.0**127.99, "log", signed=True)
_ANGLES = Interval(2.0**-30, 2.0**100, "log", signed=True)

_EXP_OVERFLOW = "exp(−x) overflows, so the result is 0 where the true one is still representable"
_ONE_MINUS_ONE = "1 + erf or 1 + tanh near −1 has an absolute error of a few 2^-24 (2^-53), and is then multiplied with x"
# 1.7e-7 = (erf within 4 + 0.5 ulp of 2^-24, one more rounding of the sum) / 2; 3.2e-16 the same for 2^-53
_GELU_TAILS = {
    "float32": (Tail(-15.0, -0.0, _ONE_MINUS_ONE, relative=1.7e-7),),
    "float64": (Tail(-40.0, -0.0, _ONE_MINUS_ONE, relative=3.2e-16),),
}

FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function(
            "exp",
            monotone="increasing",
            values=(0.0, np.inf),
            formula="e^x",
            exact=lambda c, x: c.exp(x),
            kernel="exp",
            slopes=("exp",),
            slope_text=("e^x",),
            wide=(_EXPONENTS,),
            saved=True,
            ulps=Ulps(2, 1, _BOTH),
        ),
        Function(
            "exp2",
            monotone="increasing",
            values=(0.0, np.inf),
            formula="2^x",
            exact=lambda c, x: c.power(2, x),
            kernel="exp2",
            slopes=("d_exp2",),
            slope_text=("2^x·ln 2",),
            wide=(Interval(-155.0, 135.0),),
            saved=True,
            ulps=Ulps(2, 1, _BOTH),
        ),
        Function(
            "expm1",
            monotone="increasing",
            values=(-1.0, np.inf),
            formula="e^x − 1",
            exact=lambda c, x: c.expm1(x),
            kernel="expm1",
            slopes=("exp",),
            slope_text=("e^x",),
            wide=(Interval(-30.0, 95.0),),
            saved=True,
            ulps=Ulps(1, 1, _BOTH),
            sensitivity=lambda x, f, d: np.abs(f),
        ),
        Function(
            "log",
            monotone="increasing",
            formula="ln x; log(±0) = −Inf",
            exact=lambda c, x: c.log(x),
            kernel="log",
            slopes=("reciprocal",),
            slope_text=("1/x",),
            wide=(_POSITIVE,),
            ulps=Ulps(1, 2, _BOTH),
            turbo=("abs-plus-1e-3",),
            where="x > 0",
        ),
        Function(
            "log2",
            monotone="increasing",
            formula="log2 x; log2(±0) = −Inf",
            exact=lambda c, x: c.log(x) / c.ln2,
            kernel="log2",
            slopes=("d_log2",),
            slope_text=("1/(x·ln 2)",),
            wide=(_POSITIVE,),
            ulps=Ulps(1, 1, _BOTH),
            turbo=("abs-plus-1e-3",),
            where="x > 0",
        ),
        Function(
            "log10",
            monotone="increasing",
            formula="log10 x; log10(±0) = −Inf",
            exact=lambda c, x: c.log10(x),
            kernel="log10",
            slopes=("d_log10",),
            slope_text=("1/(x·ln 10)",),
            wide=(_POSITIVE,),
            ulps=Ulps(2, 2, _BOTH),
            turbo=("abs-plus-1e-3",),
            where="x > 0",
        ),
        Function(
            "log1p",
            monotone="increasing",
            formula="ln(1 + x); log1p(−1) = −Inf",
            exact=lambda c, x: c.log1p(x),
            kernel="log1p",
            slopes=("d_log1p",),
            slope_text=("1/(1 + x)",),
            wide=(_POSITIVE,),
            ulps=Ulps(1, 1, _BOTH),
            turbo=("abs",),
            where="x > −1",
        ),
        Function(
            "sqrt",
            monotone="increasing",
            values=(0.0, np.inf),
            formula="√x; sqrt(−0) = −0",
            exact=lambda c, x: c.sqrt(x),
            kernel="sqrt",
            slopes=("d_sqrt",),
            slope_text=("1/(2·√x)",),
            wide=(_POSITIVE,),
            saved=True,
            ulps=Ulps(0, 1, _BOTH),
            turbo=("abs",),
            where="x ≥ 0",
        ),
        Function(
            "rsqrt",
            monotone="decreasing",
            values=(0.0, np.inf),
            formula="1/√x; rsqrt(±0) = ±Inf",
            exact=lambda c, x: 1 / c.sqrt(x),
            kernel="rsqrt",
            slopes=("d_rsqrt",),
            slope_text=("−1/(2·x·√x)",),
            wide=(_POSITIVE,),
            saved=True,
            ulps=Ulps(2, 1, _BOTH),
            turbo=("abs-plus-1e-3",),
            where="x > 0",
        ),
        Function(
            "reciprocal",
            monotone="decreasing",
            parity="odd",
            formula="1/x; 1/±0 = ±Inf",
            exact=lambda c, x: 1 / x,
            kernel="reciprocal",
            slopes=("d_reciprocal",),
            slope_text=("−1/x²",),
            wide=(_ANY_SIGN,),
            saved=True,
            ulps=Ulps(0, 0, f"IEEE division: {_BOTH}"),
            where="x ≠ 0",
        ),
        Function(
            "sigmoid",
            monotone="increasing",
            values=(0.0, 1.0),
            formula="1/(1 + e^−x)",
            exact=lambda c, x: 1 / (1 + c.exp(-x)),
            kernel="sigmoid",
            slopes=("d_sigmoid",),
            slope_text=("s·(1 − s)",),
            wide=(Interval(-110.0, 40.0),),
            saved=True,
            ulps=Ulps(4, 3, "derived: exp within 2 (hip 1) + 0.5 ulp, at most doubled by a change of binade; sum, quotient"),
            sensitivity=lambda x, f, d: f,
            tails={
                "float32": (Tail(-np.inf, -88.7, _EXP_OVERFLOW, absolute=3.1e-39),),
                "float64": (Tail(-np.inf, -709.7, _EXP_OVERFLOW, absolute=6.1e-309),),
            },
        ),
        Function(
            "tanh",
            monotone="increasing",
            parity="odd",
            values=(-1.0, 1.0),
            formula="tanh x",
            exact=lambda c, x: c.tanh(x),
            kernel="tanh",
            slopes=("d_tanh",),
            slope_text=("1 − tanh² x",),
            wide=(Interval(2.0**-20, 30.0, "log", signed=True),),
            saved=True,
            ulps=Ulps(2, 2, _BOTH),
            sensitivity=lambda x, f, d: 2.0 * f * f,
        ),
        Function(
            "erf",
            monotone="increasing",
            parity="odd",
            values=(-1.0, 1.0),
            formula="2/√π·∫₀ˣ e^−t² dt",
            exact=lambda c, x: c.erf(x),
            kernel="erf",
            slopes=("d_erf",),
            slope_text=("2/√π·e^−x²",),
            wide=(Interval(2.0**-40, 7.0, "log", signed=True),),
            ulps=Ulps(2, 4, _BOTH),
            sensitivity=lambda x, f, d: np.minimum(x * x, 2000.0) * d,
        ),
        Function(
            "sin",
            parity="odd",
            values=(-1.0, 1.0),
            formula="sin x",
            exact=lambda c, x: c.sin(x),
            kernel="sin",
            slopes=("cos",),
            slope_text=("cos x",),
            wide=(_ANGLES,),
            ulps=Ulps(2, 2, _CONFORMANCE),
        ),
        Function(
            "cos",
            parity="even",
            values=(-1.0, 1.0),
            formula="cos x",
            exact=lambda c, x: c.cos(x),
            kernel="cos",
            slopes=("d_cos",),
            slope_text=("−sin x",),
            wide=(_ANGLES,),
            ulps=Ulps(2, 2, _CONFORMANCE),
        ),
        Function(
            "pow",
            formula="x^y, special operands as C99 F.10.4.4",
            exact=_power,
            kernel="pow",
            slopes=("d_pow", "d_pow_y"),
            slope_text=("y·x^(y−1); 0 for y = 0", "x^y·ln x; 0 for x = 0, y ≥ 0"),
            wide=(Interval(2.0**-40, 2.0**40, "log"), Interval(-4.0, 4.0)),
            saved=True,
            ulps=Ulps(4, 1, _BOTH),
            turbo=("abs-plus-1e-3", "abs"),
            where="x > 0; x = 0; x < 0 with integer y",
        ),
        Function(
            "gelu",
            formula="x·(1 + erf(x/√2))/2; NaN at −Inf, where it is −Inf · 0",
            exact=lambda c, x: x * c.erfc(-x / c.sqrt(2)) / 2,
            kernel="gelu",
            slopes=("d_gelu",),
            slope_text=("Φ(x) + x·φ(x)",),
            wide=(Interval(-15.0, 15.0),),
            ulps=Ulps(4, 5, "derived: erf within 2 (hip 4) + 0.5 ulp, halved by the sum; three roundings"),
            sensitivity=lambda x, f, d: np.where(x > -40.0, np.minimum(np.abs(x), 1.0), 0.0),
            tails=_GELU_TAILS,
        ),
        Function(
            "gelu-tanh",
            formula="x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2, constants exact; NaN at −Inf, where it is −Inf · 0",
            exact=_gelu_tanh,
            kernel="gelu_tanh",
            slopes=("d_gelu_tanh",),
            slope_text=("s + x·s·(1 − s)·2·√(2/π)·(1 + 0.134145·x²), s the logistic of twice tanh's argument",),
            wide=(Interval(-12.0, 12.0),),
            ulps=Ulps(4, 4, "derived: tanh within 2 + 0.5 ulp, its argument within 2 ulp; three roundings"),
            sensitivity=lambda x, f, d: np.where(np.abs(x) < _TANH_IS_ONE, 0.5 + 0.4 * np.abs(x) * (1.0 + 0.134 * x * x), 0.0),
            vanishing=_gelu_tanh_terms,
            tails=_GELU_TAILS,
        ),
        Function(
            "silu",
            formula="x/(1 + e^−x); NaN at −Inf, where it is −Inf/Inf",
            exact=lambda c, x: x / (1 + c.exp(-x)),
            kernel="silu",
            slopes=("d_silu",),
            slope_text=("s + x·s·(1 − s), s = 1/(1 + e^−x)",),
            wide=(Interval(-110.0, 40.0),),
            ulps=Ulps(4, 3, "derived: exp within 2 (hip 1) + 0.5 ulp, at most doubled by a change of binade; sum, quotient"),
            sensitivity=lambda x, f, d: np.where(x > -40.0, np.minimum(np.abs(x), 1.0), 0.0),
            tails={
                "float32": (Tail(-np.inf, -88.7, _EXP_OVERFLOW, absolute=2.7e-37),),
                "float64": (Tail(-np.inf, -709.7, _EXP_OVERFLOW, absolute=4.4e-306),),
            },
        ),
        Function(
            "softplus",
            monotone="increasing",
            values=(0.0, np.inf),
            formula="ln(1 + e^x) for x ≤ 20, x above (beta 1, threshold 20)",
            exact=_softplus,
            kernel="softplus",
            slopes=("d_softplus",),
            slope_text=("1/(1 + e^−x) for x ≤ 20, 1 above",),
            wide=(Interval(-110.0, 30.0),),
            ulps=Ulps(4, 3, "derived: exp within 2 (hip 1) + 0.5 ulp, log1p within 1 + 0.5; measured 2.70 exhaustively on an H200"),
        ),
    )
}
