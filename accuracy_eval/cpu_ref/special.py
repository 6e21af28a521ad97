"""Special functions: the truth, correctly rounded results, gradients, test domains and error limits.

    evaluate(fn, x, y)         the real value as float64                rounded(fn, x, fmt, y)      the code a perfect function returns
    gradient(fn, x, grad, y)   grad · f'(x), float64                    into_domain(codes, fmt, d)  operands moved into a function's domain
    limit(fn, x, ref, fmt)     the error a device may show              region(fn, x, ref, fmt)     core, tail or subnormal
    gradient_limit(fn, x, grad, fmt, y)                                 the same for gradients

Values come from double-double kernels (70 bits and more), so they have the same bits on every host; what those cannot decide is left to
mpmath: no result depends on a platform's libm. The functions are rows of `special_functions.FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.special_functions import FUNCTIONS, Function, Tail
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Codes, Format, Values, arithmetic_format, decode, encode, get_format, ulp
from accuracy_eval.threads import map_threads

Vendor = Literal["any", "cuda", "hip", "pair"]

BLOCK = 1 << 16  # elements a task: temporaries stay in the L2 cache
CORE, TAIL, SUBNORMAL = 0, 1, 2


def get_function(fn: str | Function) -> Function:
    """The row of that name; unknown names raise UsageError."""
    if isinstance(fn, Function):
        return fn
    try:
        return FUNCTIONS[fn]
    except KeyError:
        raise unknown("special function", fn, FUNCTIONS) from None


# --- values -----------------------------------------------------------------------------------------------------------------


def evaluate(fn: str | Function, x: Any, y: Any = None) -> Values:
    """f(x) or f(x, y) as float64, same shape as the operands: within one ulp of the real value (all but never more than 0.5001).

    x, y: exact operand values, float64, of one shape. NaN operands give NaN (but pow(x, 0) = pow(1, y) = 1); a negative operand of log
    or sqrt gives NaN, a pole ±Inf, overflow ±Inf; zeros keep the sign that the formula gives them.
    """
    f = get_function(fn)
    return _shaped(_pairs(f, f.kernel, x, y)[0], x)


def gradient(fn: str | Function, x: Any, grad: Any, y: Any = None) -> tuple[Values, ...]:
    """grad · ∂f/∂x, and for pow also grad · ∂f/∂y, float64, each within 2^-51 relative of the real value.

    Defined by the formulas in `slope_text`, at poles and non-finite operands too (sqrt at 0: Inf), and outside the function's domain
    where the formula has a value (log at −1: −1). 0 · Inf is NaN.
    """
    f = get_function(fn)
    g = np.asarray(grad, np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        # one rounding of grad·hi; grad·lo only repairs the half ulp of hi
        products = (_times(g, *_pairs(f, slope, x, y)) for slope in f.slopes)
        return tuple(_shaped(p, x) for p in products)


def _times(g: Values, hi: Values, lo: Values) -> Values:
    p = g * hi
    correction = g * lo
    return np.where(np.isfinite(correction), p + correction, p)


def rounded(fn: str | Function, x: Any, fmt: str | Format, y: Any = None) -> Codes:
    """Codes of `fmt` of f(x) or f(x, y), correctly rounded to nearest even; any float format up to float64. Operands as in `evaluate`.

    Overflow follows the format's own policy (`formats.encode`). The double-double value decides unless it lies within 2^-60 of a
    midpoint between two codes; those few, exact ties among them, are decided by mpmath.
    """
    f, out = get_function(fn), get_format(fmt)
    if out.kind != "float":
        raise UsageError(f"{f.name}: rounding to {out.name}; special functions have float results")
    hi, lo = _pairs(f, f.kernel, x, y)
    xs, ys = _operands(f, x, y)
    codes = np.empty(hi.shape, out.storage)

    def block(i: int) -> None:
        s = slice(i, i + BLOCK)
        h, low = hi[s].copy(), lo[s]
        undecided = _undecided(h, low, out)
        if out.name != "float64":
            # a value beside a midpoint moves off it, so that encoding cannot take it for a tie
            beside = np.flatnonzero(_is_midpoint(h, out) & (low != 0.0) & ~undecided)
            h[beside] = np.nextafter(h[beside], np.where(low[beside] > 0.0, np.inf, -np.inf))
        for j in np.flatnonzero(undecided):
            h[j] = _decide(f, float(xs[i + j]), float(ys[i + j]), float(h[j]), out)
        codes[s] = encode(h, out)

    map_threads(block, range(0, hi.size, BLOCK))
    return codes.reshape(np.shape(x))


def _operands(f: Function, x: Any, y: Any) -> tuple[Values, Values]:
    xs = np.ascontiguousarray(x, np.float64)
    if (y is None) != (f.arity == 1):
        raise UsageError(f"{f.name} takes {f.arity} operand{'s' if f.arity > 1 else ''}, found {1 if y is None else 2}")
    ys = xs if y is None else np.ascontiguousarray(y, np.float64)
    if xs.shape != ys.shape:
        raise UsageError(f"{f.name}: operands of one shape are needed, found x {xs.shape} and y {ys.shape}")
    return xs.reshape(-1), ys.reshape(-1)


def _pairs(f: Function, loop: str, x: Any, y: Any) -> tuple[Values, Values]:
    """The loop's hi and lo, flat float64."""
    from accuracy_eval.cpu_ref import _special_derivatives, _special_kernels  # compile and tabulate: only when something is evaluated

    run = getattr(_special_derivatives if loop.startswith("d_") else _special_kernels, loop)
    xs, ys = _operands(f, x, y)
    hi, lo = np.empty_like(xs), np.empty_like(xs)

    def block(i: int) -> None:
        s = slice(i, i + BLOCK)
        with np.errstate(all="ignore"):
            run(xs[s], ys[s], hi[s], lo[s])

    map_threads(block, range(0, xs.size, BLOCK))
    return hi, lo


def _shaped(values: Values, like: Any) -> Values:
    return values.reshape(np.shape(like))


def _is_midpoint(h: Values, f: Format) -> NDArray[np.bool_]:
    """Which float64 lie exactly between two neighbouring codes of a format of at most 51 fraction bits (also max and its overflow)."""
    bits = h.view(np.int64)
    exponent = ((bits >> 52) & 0x7FF) - 1023
    dropped = 52 - f.fraction_bits + np.maximum(f.emin - exponent, 0)
    significand = (bits & ((1 << 52) - 1)) | (1 << 52)
    usable = (dropped <= 53) & (exponent > -1023) & (exponent < 1024)
    mask = (np.int64(1) << np.where(usable, dropped, 1)) - 1
    return np.asarray(usable & ((significand & mask) == (mask >> 1) + 1))


def _undecided(h: Values, low: Values, f: Format) -> NDArray[np.bool_]:
    """Elements whose rounding needs more than the double-double value."""
    magnitude, tail = np.abs(h), np.abs(low)
    with np.errstate(all="ignore"):
        if f.name != "float64":
            return _is_midpoint(h, f) & (tail < 2.0**-60 * magnitude)
        half = np.spacing(magnitude) / 2
        close = np.abs(tail / half - 1) < 2.0**-11  # 2^-65 of the value
        # just below a power of two the spacing halves
        close |= (np.abs(2 * tail / half - 1) < 2.0**-11) & (np.frexp(magnitude)[0] == 0.5)
        deep = (magnitude < 2.0**-900) & (magnitude > 0.0)
        over = np.isinf(h) & (tail > 0.0)
        return np.asarray((np.isfinite(h) & (close | deep)) | over)


def _decide(f: Function, x: float, y: float, near: float, out: Format) -> float:
    """A float64 that rounds to the right code of `out`, by mpmath: for float64 the value itself, else `near` moved off the midpoint.

    A difference that is still zero at 400 bits is an exact tie: no other operand of at most 53 bits comes that near.
    """
    import mpmath

    context = mpmath.mp.clone()
    for precision in (160, 400):
        context.prec = precision
        arguments = (x, y)[: f.arity]
        value = f.exact(context, *(context.mpf(a) for a in arguments))
        if out.name == "float64":
            return _to_float64(value)
        difference = value - context.mpf(near)
        if abs(difference) > abs(near) * context.ldexp(1, 20 - precision):
            return float(np.nextafter(near, np.inf if difference > 0 else -np.inf))
    return near


def _to_float64(value: Any) -> float:
    """An mpmath number as the nearest float64: division of integers is correctly rounded, into the subnormals too."""
    sign, mantissa, exponent, _ = value._mpf_
    try:
        magnitude = float(mantissa << exponent) if exponent >= 0 else mantissa / (1 << -exponent)
    except OverflowError:
        magnitude = float("inf")
    return -magnitude if sign else magnitude


# --- test domains -----------------------------------------------------------------------------------------------------------

DOMAINS: dict[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "any": ("x", lambda x: x),
    "abs": ("|x|", np.abs),
    "abs-plus-1e-3": ("|x| + 1e-3", lambda x: np.abs(x) + x.dtype.type(1e-3)),
}


def into_domain(codes: Codes, fmt: str | Format, domain: str) -> Codes:
    """Operand codes moved into a domain of `DOMAINS`: codes of `fmt` in, codes of `fmt` out, same shape.

    The transform is one float32 operation (float64 for float64 operands), then one RNE to `fmt`: the same bits everywhere.
    """
    f = get_format(fmt)
    try:
        _, transform = DOMAINS[domain]
    except KeyError:
        raise unknown("domain", domain, DOMAINS) from None
    if domain == "any":
        return np.array(codes, f.storage)
    values = decode(codes, f)
    with np.errstate(over="ignore"):
        moved = transform(values if f.bits > 32 else values.astype(np.float32))
    return encode(moved.astype(np.float64), f)


# --- limits -----------------------------------------------------------------------------------------------------------------


def limit_ulps(fn: str | Function, fmt: str | Format, vendor: Vendor = "any") -> float:
    """Largest error in ulp of `fmt`, the result's own rounding included, outside the tails.

    float32: the documented distance to the correctly rounded result plus the half ulp of that; vendor "any" takes the larger of both,
    "pair" the sum (for |a − b|). Formats of at most 16 bits: 1, a pair 1 (both are a float32 result rounded once; they differ by at
    most one code). float64: the same count as float32 and one more for the reference, which is rounded itself.
    """
    f, out = get_function(fn), get_format(fmt)
    if out.bits <= 19:
        return 1.0
    n = {"cuda": f.ulps.cuda, "hip": f.ulps.hip, "any": max(f.ulps.cuda, f.ulps.hip), "pair": f.ulps.cuda + f.ulps.hip}
    try:
        count = n[vendor]
    except KeyError:
        raise unknown("vendor", vendor, n) from None
    count += 1.0 if vendor == "pair" else 0.5
    return count + (1.0 if out.name == "float64" else 0.0)


def _tails(f: Function, out: Format) -> tuple[Tail, ...]:
    return (f.tails or {}).get(arithmetic_format(out).name, ())


def _inside(tail: Tail, x: Values) -> NDArray[np.bool_]:
    # strict at 0, so that an upper end of −0.0 leaves the zeros out
    return np.asarray((x >= tail.low) & ((x <= tail.high) if tail.high else (x < 0.0)))


def limit(fn: str | Function, x: Any, ref: Any, fmt: str | Format, *, vendor: Vendor = "any") -> Values:
    """Allowed |actual − ref| of each element, float64, same shape: n ulp of `fmt` at ref, and in a tail the tail's allowance.

    x: operand values (of pow the base); ref: the real values, from `evaluate`. 0 where ref is NaN or Inf: the classes must be equal.
    """
    f, out = get_function(fn), get_format(fmt)
    xs, r = np.asarray(x, np.float64), np.asarray(ref, np.float64)
    allowed = limit_ulps(f, out, vendor) * ulp(r, out)
    for tail in _tails(f, out):
        share = 2.0 if vendor == "pair" else 1.0
        with np.errstate(invalid="ignore", over="ignore"):
            extra = tail.absolute + (tail.relative * np.abs(xs) if tail.relative else 0.0)
        allowed = np.where(_inside(tail, xs), allowed + share * extra, allowed)
    return np.where(np.isfinite(r), allowed, 0.0)


def gradient_limit(
    fn: str | Function, x: Any, grad: Any, fmt: str | Format, y: Any = None, *, vendor: Vendor = "any"
) -> tuple[Values, ...]:
    """Allowed error of each element of `gradient`, float64: one array for each operand.

    The usual formulas take several rounded steps, may start from the rounded forward result, and may cancel (1 − tanh², Φ + x·φ):
    (2·n + 3) ulp of the gradient, n the forward limit in ulp, plus n ulp of the saved result or of the cancelling terms (in 16 bits at
    most twice what they leave, and 4 ulp of float32), plus the forward tail's absolute allowance. An H200 (torch 2.11, every code of
    bfloat16 and float16, 196,608 float32 and 49,152 float64 operands) uses at most 0.96 of it, but for gradients one of whose steps leaves
    the format's range where the gradient does not: r³ of rsqrt, 2^x·ln 2, x·ln 10, x² of gelu-tanh, x^(y−1) of pow. Those are not excused.
    """
    f, out = get_function(fn), get_format(fmt)
    xs, g = np.asarray(x, np.float64), np.abs(np.asarray(grad, np.float64))
    n = limit_ulps(f, out, vendor)
    value = evaluate(f, x, y)
    results = []
    with np.errstate(all="ignore"):
        for slope, dx in zip(gradient(f, x, np.ones_like(xs), y), gradient(f, x, grad, y), strict=True):
            allowed = (2.0 * n + 3.0) * ulp(dx, out)
            if f.saved:
                allowed += n * g * np.where(value == 0.0, 0.0, np.abs(slope / value) * ulp(value, out))
            if f.sensitivity is not None:
                allowed += n * g * _lost(f, out, xs, f.sensitivity(xs, value, np.abs(slope)))
            for tail in _tails(f, out):
                allowed += np.where(_inside(tail, xs), g * tail.absolute, 0.0)
            results.append(np.where(np.isfinite(dx), allowed, 0.0))
    return tuple(results)


def _lost(f: Function, out: Format, xs: Values, cancelled: Values) -> Values:
    """What one ulp of the terms that cancel in a slope leaves of error in it; cancelled: their size."""
    lost: Values = out.eps * cancelled
    if f.vanishing is None:
        return lost
    left = 2.0 * f.vanishing(xs)
    short = np.minimum(lost, left + 4.0 * get_format("float32").eps * cancelled) if out.bits <= 16 else lost
    return np.where(cancelled > 0.0, short, left)


def region(fn: str | Function, x: Any, ref: Any, fmt: str | Format) -> NDArray[np.uint8]:
    """Range of each element: CORE 0, TAIL 1 (of the function, by x), SUBNORMAL 2 (ref below the format's smallest normal, not 0)."""
    f, out = get_function(fn), get_format(fmt)
    xs, r = np.asarray(x, np.float64), np.abs(np.asarray(ref, np.float64))
    result = np.full(xs.shape, CORE, np.uint8)
    for tail in _tails(f, out):
        result[_inside(tail, xs)] = TAIL
    result[(r > 0.0) & (r < out.smallest_normal)] = SUBNORMAL
    return result
