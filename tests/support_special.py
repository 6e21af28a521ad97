"""Independent expectations for special functions: definitions in mpmath at 500 bits, and rounding of a real number by integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath

PRECISION = 500

# name: (fraction bits, exponent of the smallest normal, exponent of the largest finite value)
LAYOUT = {"float64": (52, -1022, 1023), "float32": (23, -126, 127), "float16": (10, -14, 15), "bfloat16": (7, -126, 127)}


def gelu(x: Any) -> Any:
    return x * mpmath.ncdf(x)


def gelu_tanh(x: Any) -> Any:
    # (1 + tanh u)/2 cancels for u < 0; as a logistic it does not
    return x * sigmoid(2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))


def sigmoid(x: Any) -> Any:
    return mpmath.exp(x) / (1 + mpmath.exp(x)) if x < 0 else 1 / (1 + mpmath.exp(-x))


def softplus(x: Any) -> Any:
    return x if x > 20 else mpmath.log1p(mpmath.exp(x))


def power(x: Any, y: Any) -> Any:
    return mpmath.mpf(mpmath.power(x, y).real)


TRUTH: dict[str, Callable[..., Any]] = {
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.power(2, x),
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: mpmath.sqrt(1 / x),
    "reciprocal": lambda x: mpmath.mpf(1) / x,
    "sigmoid": sigmoid,
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "pow": power,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "softplus": softplus,
}
DOMAIN: dict[str, Callable[[float], bool]] = {
    "log": lambda x: x > 0,
    "log2": lambda x: x > 0,
    "log10": lambda x: x > 0,
    "log1p": lambda x: x > -1,
    "sqrt": lambda x: x >= 0,
    "rsqrt": lambda x: x > 0,
    "reciprocal": lambda x: x != 0,
}


def truth(name: str, *operands: float) -> Any:
    """The real value as an mpf of 500 bits. Operands finite and inside the domain."""
    # beyond these the value is 0, 1 or beyond every format, and mpmath would need billions of digits for it
    x = operands[0]
    if name in ("exp", "exp2", "expm1", "sigmoid", "silu", "softplus", "tanh", "gelu-tanh", "gelu", "erf"):
        x = min(max(x, -3000.0), 3000.0) if name not in ("silu", "gelu", "gelu-tanh", "softplus") or x < 0 else x
    with mpmath.workprec(PRECISION):
        return TRUTH[name](mpmath.mpf(x), *(mpmath.mpf(y) for y in operands[1:]))


def round_code(value: Any, fmt: str) -> int:
    """Code of an mpf under round-to-nearest, ties to even, overflow to Inf; 0 gives +0."""
    fraction, emin, emax = LAYOUT[fmt]
    sign, mantissa, exponent, length = value._mpf_
    bits = {"float64": 63, "float32": 31}.get(fmt, 15)
    if mantissa == 0:
        return 0
    if exponent + length < emin - fraction - 1:  # below half of the smallest subnormal
        return sign << bits
    unit = max(exponent + length - 1, emin) - fraction  # exponent of the last place kept
    shift = unit - exponent
    if shift <= 0:
        q = mantissa << -shift
    else:
        q, rest = mantissa >> shift, mantissa & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        q += rest > half or (rest == half and q & 1)
    code = ((unit - (emin - fraction)) << fraction) + q
    top = (emax - emin + 2) << fraction
    return min(code, top) | (sign << bits)
