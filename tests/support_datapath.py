"""The rules of matrix units in exact rational arithmetic: one element at a time, slow, written from their statements alone.

A value is a Fraction, or the float nan, inf or -inf. `chain(rule…)` functions take the operand values of one element in the order
of k and the accumulator, and return the result. Zeros have no sign here: comparisons take −0 and +0 as equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from accuracy_eval.formats import decode, get_format

Value = Fraction | float
ZERO = Fraction(0)


def value(x: float) -> Value:
    return Fraction(float(x)) if math.isfinite(x) else float(x)


def log2_floor(x: Fraction) -> int:
    """floor(log2|x|) of a nonzero rational."""
    x = abs(x)
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def exponent(x: Fraction, emin: int) -> int:
    return max(log2_floor(x), emin)


def two(e: int) -> Fraction:
    return Fraction(2) ** e


def truncated(x: Fraction, unit: Fraction) -> Fraction:
    return math.trunc(x / unit) * unit


def floored(x: Fraction, unit: Fraction) -> Fraction:
    return math.floor(x / unit) * unit


def nearest(x: Fraction, bits: int, emin: int, limit: Fraction) -> Value:
    """Ties to even; infinite once the rounded magnitude reaches `limit`."""
    if x == 0:
        return ZERO
    unit = two(exponent(x, emin) - bits)
    r = round(x / unit) * unit
    return (math.inf if x > 0 else -math.inf) if abs(r) >= limit else r


def rne32(x: Fraction) -> Value:
    return nearest(x, 23, -126, two(128))


def rne16(x: Fraction) -> Value:
    return nearest(x, 10, -14, Fraction(65536))


def toward_zero(x: Fraction, bits: int) -> Value:
    """Float32 range with `bits` fraction bits."""
    if x == 0:
        return ZERO
    r = truncated(x, two(exponent(x, -126) - bits))
    return (math.inf if x > 0 else -math.inf) if abs(r) >= two(128) else r


def special(terms: Sequence[Value]) -> float | None:
    """NaN, ±Inf, or None where every term is finite."""
    if any(isinstance(t, float) and math.isnan(t) for t in terms):
        return math.nan
    infinite = {t for t in terms if isinstance(t, float)}
    if len(infinite) == 2:
        return math.nan
    return infinite.pop() if infinite else None


def times(x: Value, y: Value) -> Value:
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x * y
    x, y = (v if isinstance(v, float) else float((v > 0) - (v < 0)) for v in (x, y))  # infinities and NaN only look at signs
    return x * y


def tfdpa(a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int], eb: Sequence[int], *, F: int, rho: str, e0: int) -> Value:
    """One block. ea, eb: exponents of the operands (anything for zeros). rho: RZ32, RZ14 or RNE16."""
    products = [times(x, y) for x, y in zip(a, b, strict=True)]
    forced = special([*products, c])
    if forced is not None:
        return forced
    emin = -14 if rho == "RNE16" else -126
    es = [x + y if p != 0 else e0 for p, x, y in zip(products, ea, eb, strict=True)] + [exponent(c, emin) if c != 0 else e0]
    unit = two(max(es) - F)
    total = sum((truncated(t, unit) for t in [*products, c]), ZERO)
    if rho == "RNE16":
        return rne16(total)
    return toward_zero(total, {"RZ32": 23, "RZ14": 13}[rho])


def by_blocks(L: int, block: Callable[..., Value], a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int],
              eb: Sequence[int]) -> Value:  # fmt: skip
    for i in range(0, len(a), L):
        c = block(a[i : i + L], b[i : i + L], c, ea[i : i + L], eb[i : i + L])
    return c


def exact_block(a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int], eb: Sequence[int]) -> Value:
    terms = [*(times(x, y) for x, y in zip(a, b, strict=True)), c]
    forced = special(terms)
    return rne32(sum(terms, ZERO)) if forced is None else forced


def flushed(x: Value) -> Value:
    return ZERO if isinstance(x, Fraction) and abs(x) < two(-126) else x


def add32(x: Value, y: Value) -> Value:
    forced = special([x, y])
    return rne32(x + y) if forced is None else forced


def flushing_block(smallest: Fraction) -> Callable[..., Value]:
    """CDNA2; smallest: the operands' smallest normal value."""

    def read(x: Value) -> Value:
        return ZERO if isinstance(x, Fraction) and abs(x) < smallest else x

    def block(a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int], eb: Sequence[int]) -> Value:
        p = []
        for x, y in zip(a, b, strict=True):
            t = times(read(x), read(y))
            p.append(flushed(rne32(t) if isinstance(t, Fraction) else t))
        q = flushed(add32(p[0], p[1]))
        if len(p) == 4:
            q = flushed(add32(q, flushed(add32(p[2], p[3]))))
        return flushed(add32(flushed(c), q))

    return block


def truncating_block(groups: int) -> Callable[..., Value]:
    """CDNA3: one group of products, or the even and the odd k's apart."""

    def block(a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int], eb: Sequence[int]) -> Value:
        products: list[Value] = []
        for x, y in zip(a, b, strict=True):
            p = times(x, y)
            products.append((math.inf if p > 0 else -math.inf) if isinstance(p, Fraction) and abs(p) >= two(128) else p)
        forced = special([*products, c])
        if forced is not None:
            return forced
        sums: list[tuple[int, Fraction]] = []
        for g in range(groups):
            members = [(p, ea[i] + eb[i]) for i, p in enumerate(products) if i % groups == g and p != 0]
            if members:
                top = max(e for _, e in members)
                sums.append((top, sum((truncated(p, two(top - 24)) for p, _ in members), ZERO)))
        ec = exponent(c, -126) if c != 0 else None
        if not sums and ec is None:
            return ZERO
        ed = max(e for e, _ in sums) if sums else None
        S = ZERO
        if ed is not None:
            S = sums[0][1] if groups == 1 else sum((floored(s, two(ed - 24)) for _, s in sums), ZERO)
        M = max(e for e in (ed, ec) if e is not None)
        S = floored(S, two(M - 32))
        joined = floored(c, two(M - 24)) if ec is not None and not (groups == 2 and ec < M - 25) else ZERO
        v = S + joined
        return rne32(floored(v, two(exponent(v, -126) - 31))) if v != 0 else ZERO

    return block


def fma(a: Sequence[Value], b: Sequence[Value], c: Value, *, bits: int, emin: int, limit: Fraction) -> Value:
    for x, y in zip(a, b, strict=True):
        p = times(x, y)
        forced = special([p, c])
        c = nearest(p + c, bits, emin, limit) if forced is None else forced
    return c


def emulated_block(a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int], eb: Sequence[int], *, half: bool) -> Value:
    """32 fp8 products as two float16 blocks of 16 (k mod 4 < 2 first) from +0; their result is added to c, rounded to nearest."""
    first = [i for i in range(32) if i % 4 < 2]
    second = [i for i in range(32) if i % 4 >= 2]
    d: Value = ZERO
    for part in (first, second):
        fa, fb = [a[i] for i in part], [b[i] for i in part]
        fea = [exponent(x, -14) if isinstance(x, Fraction) and x != 0 else 0 for x in fa]
        feb = [exponent(x, -14) if isinstance(x, Fraction) and x != 0 else 0 for x in fb]
        d = tfdpa(fa, fb, d, fea, feb, F=25, rho="RNE16" if half else "RZ32", e0=-21 if half else -133)
    forced = special([c, d])
    if forced is not None:
        return forced
    return rne16(c + d) if half else rne32(c + d)


def grouped_block(a: Sequence[Value], b: Sequence[Value], c: Value, sa: Sequence[Value], sb: Sequence[Value], emin: int) -> Value:
    """64 e2m1 products in groups of 16; sa, sb: the groups' scales, emin their format's smallest exponent."""
    forced = special([*(times(x, y) for x, y in zip(sa, sb, strict=True)), c])
    if forced is not None:
        return forced
    terms: list[tuple[Fraction, int]] = []
    for g in range(4):
        products = [x * y for x, y in zip(a[16 * g : 16 * g + 16], b[16 * g : 16 * g + 16], strict=True)]
        if all(p == 0 for p in products) or sa[g] == 0 or sb[g] == 0:
            terms.append((ZERO, -139))
            continue
        terms.append((sum(products, ZERO) * sa[g] * sb[g], exponent(sa[g], emin) + exponent(sb[g], emin)))
    terms.append((c, exponent(c, -126) if c != 0 else -139))
    unit = two(max(e for _, e in terms) - 35)
    return toward_zero(sum((truncated(t, unit) for t, _ in terms), ZERO), 23)


def rdna3_block(bfloat16: bool) -> Callable[..., Value]:
    """Two products; signs of zeros matter, so operands come as floats."""

    def block(a: Sequence[float], b: Sequence[float], c: float, ea: Sequence[int], eb: Sequence[int]) -> float:
        if bfloat16:
            a, b = ([math.copysign(0.0, x) if abs(x) < 2.0**-126 else x for x in xs] for xs in (a, b))
            c = math.copysign(0.0, c) if abs(c) < 2.0**-126 else c
        products = [value(x * y) for x, y in zip(a, b, strict=True)]
        forced = special([*products, value(c)])
        if forced is not None:
            return forced
        signs = [math.copysign(1.0, x) * math.copysign(1.0, y) for x, y in zip(a, b, strict=True)]
        grids = [ea[i] + eb[i] - 24 for i, p in enumerate(products) if p != 0]
        leads = [log2_floor(t) - 26 for t in [value(c), *products] if t != 0]
        if not leads:
            return 0.0
        unit = two(max([*grids, max(leads)]))
        frame = math.copysign(1.0, c)
        total = math.trunc(abs(value(c)) / unit)
        for p, s in zip(products, signs, strict=True):
            magnitude = math.trunc(abs(p) / unit)
            total += magnitude if s == frame else -magnitude - 1
        r = nearest(int(frame) * total * unit, 23, -100000, two(128))
        return 0.0 if abs(r) < 2.0**-126 else float(r)

    return block


def rdna4_block(a: Sequence[Value], b: Sequence[Value], c: Value, ea: Sequence[int], eb: Sequence[int]) -> Value:
    products = [times(x, y) for x, y in zip(a, b, strict=True)]
    forced = special([*products, c])
    if forced is not None:
        return forced
    sums, grids = [], []
    for i in range(0, len(a), 2):
        exponents = [ea[k] + eb[k] for k in (i, i + 1) if products[k] != 0]
        if exponents:
            grids.append(max(exponents) - 24)
            sums.append(sum((floored(products[k], two(grids[-1])) for k in (i, i + 1)), ZERO))
    grid = max([*grids, max(-126, log2_floor(c) if c != 0 else -126) - 26])
    unit = two(grid)
    kept = floored(c, unit)
    if c < 0 and kept == -unit and abs(c) < unit and grid > -126:
        kept = ZERO
    return rne32(sum((floored(s, unit) for s in sums), kept))


def operand_values(codes: np.ndarray, fmt: str) -> tuple[list[Value], list[int]]:
    """Values and exponents (at least the format's emin; 0 for zeros) of a row of codes."""
    f = get_format(fmt)
    values = [value(x) for x in decode(codes, f).tolist()]
    return values, [exponent(v, f.emin) if isinstance(v, Fraction) and v != 0 else 0 for v in values]


def same(value_: Value, expected: Value) -> bool:
    """Equal as numbers, any NaN equal to any NaN."""
    x, y = float(value_), float(expected)
    return (math.isnan(x) and math.isnan(y)) or x == y
