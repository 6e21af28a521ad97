"""Small emulations of how devices accumulate a dot product, written apart from the package's own models: healthy units and faults.

Every unit takes a [r, K] and b [r, K], float64 values representable in the operand format, and returns r results as float64
(representable in float32). Exact integer arithmetic in float64 lanes: all intermediate integers stay under 2^53.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.jit import kernel
from accuracy_eval.records import Coded

NONE = -(1 << 20)  # exponent of a zero term


def exponents(x: np.ndarray, emin: int) -> np.ndarray:
    """floor(log2|x|), at least emin; NONE for zero."""
    e = np.frexp(x)[1].astype(np.int64) - 1
    return np.where(x == 0, NONE, np.maximum(e, emin))


@kernel
def _scale(x, e):
    # x·2^e in two steps, so that neither factor leaves the range of float64
    h = e // 2
    return x * 2.0**h * 2.0 ** (e - h)


@kernel
def _exponent(x):
    # floor(log2|x|) of a nonzero float64
    e = int(np.floor(np.log2(np.abs(x))))
    s = _scale(np.abs(x), -e)
    if s >= 2.0:
        e += 1
    elif s < 1.0:
        e -= 1
    return e


@kernel
def _truncate(x, bits):
    # toward zero to `bits` fraction bits, float32 subnormals kept
    if x == 0.0:
        return 0.0
    e = max(_exponent(x), -126)
    return _scale(np.trunc(_scale(x, bits - e)), e - bits)


@kernel
def _floor(x, bits):
    if x == 0.0:
        return 0.0
    e = max(_exponent(x), -126)
    return _scale(np.floor(_scale(x, bits - e)), e - bits)


@kernel
def _nearest(x, bits):
    # ties to even
    if x == 0.0:
        return 0.0
    e = max(_exponent(x), -126)
    return _scale(np.rint(_scale(x, bits - e)), e - bits)


@kernel
def _add_nearest(x, y, bits):
    # x + y correctly rounded to `bits` fraction bits: float64 sum rounded to odd, then once more
    s = x + y
    t = s - x
    error = (x - (s - t)) + (y - t)
    r = _nearest(s, bits)
    if error != 0.0 and s != 0.0:
        # only a sum that float64 rounded onto a midpoint (or off one) can go wrong: nudge towards the true sum
        e = max(_exponent(s), -126)
        u = _scale(s, bits - e)
        if np.abs(u - np.floor(u) - 0.5) == 0.0:
            r = _scale(np.ceil(u) if error > 0 else np.floor(u), e - bits)
    return r


@kernel
def _tfdpa(a, b, ea, eb, length, f, p, start):
    rows, k = a.shape
    out = np.empty(rows)
    for i in range(rows):
        c = start[i]
        for k0 in range(0, k, length):
            top = NONE if c == 0.0 else max(_exponent(c), -126)
            for t in range(k0, min(k0 + length, k)):
                if a[i, t] != 0.0 and b[i, t] != 0.0:
                    top = max(top, ea[i, t] + eb[i, t])
            if top == NONE:
                continue
            total = np.trunc(_scale(c, f - top))
            for t in range(k0, min(k0 + length, k)):
                total += np.trunc(_scale(a[i, t] * b[i, t], f - top))
            c = _truncate(_scale(total, top - f), p)
        out[i] = c
    return out


@kernel
def _trfdpa(a, b, ea, eb, length, halves, start):
    # CDNA3; halves: even and odd products are summed apart first (fp8)
    rows, k = a.shape
    out = np.empty(rows)
    for i in range(rows):
        c = start[i]
        for k0 in range(0, k, length):
            tops = np.full(halves, NONE)
            for t in range(k0, min(k0 + length, k)):
                if a[i, t] != 0.0 and b[i, t] != 0.0:
                    h = (t - k0) % halves
                    tops[h] = max(tops[h], ea[i, t] + eb[i, t])
            top = max(tops[0], tops[halves - 1])
            if top == NONE:
                continue
            total = 0.0  # in units 2^(top - 24)
            for h in range(halves):
                if tops[h] == NONE:
                    continue
                s = 0.0
                for t in range(k0 + h, min(k0 + length, k), halves):
                    s += np.trunc(_scale(a[i, t] * b[i, t], 24 - tops[h]))
                s = _scale(s, tops[h] - top)
                total += np.floor(s) if halves > 1 else s
            ec = NONE if c == 0.0 else max(_exponent(c), -126)
            m = max(top, ec)
            s = np.floor(_scale(total, top - 24 - m + (31 if halves > 1 else 32)))
            s = _scale(s, -31 if halves > 1 else -32)
            d = np.floor(_scale(c, 24 - m)) * 2.0**-24
            if halves > 1 and ec < m - 25:
                d = 0.0
            c = _nearest(_floor(_scale(s + d, m), 31), 23)
        out[i] = c
    return out


@kernel
def _rdna3(a, b, ea, eb, start):
    # two products a step; opposite signs count one grid unit more, in the frame of c's sign
    rows, k = a.shape
    out = np.empty(rows)
    for i in range(rows):
        c = start[i]
        for k0 in range(0, k, 2):
            top = NONE
            lead = NONE if c == 0.0 else _exponent(c)
            for t in range(k0, min(k0 + 2, k)):
                if a[i, t] != 0.0 and b[i, t] != 0.0:
                    top = max(top, ea[i, t] + eb[i, t])
                    lead = max(lead, _exponent(a[i, t] * b[i, t]))
            if lead == NONE:
                continue
            grid = max(top - 24, lead - 26)
            frame = -1.0 if c < 0.0 else 1.0
            total = np.trunc(_scale(np.abs(c), -grid))
            for t in range(k0, min(k0 + 2, k)):
                p = a[i, t] * b[i, t] * frame
                mag = np.trunc(_scale(np.abs(p), -grid))
                total += mag if p >= 0.0 else -mag - 1.0
            c = frame * _nearest(_scale(total, grid), 23)
        out[i] = c
    return out


@kernel
def _exact_blocks(a, b, length, start):
    # CDNA1: the exact sum of a few products and c, rounded once
    rows, k = a.shape
    out = np.empty(rows)
    for i in range(rows):
        c = start[i]
        for k0 in range(0, k, length):
            s, error = c, 0.0
            for t in range(k0, min(k0 + length, k)):
                p = a[i, t] * b[i, t]
                n = s + p
                z = n - s
                error += (s - (n - z)) + (p - z)
                s = n
            c = _add_nearest(s, error, 23)
        out[i] = c
    return out


@kernel
def _fma(a, b, bits, start):
    rows, k = a.shape
    out = np.empty(rows)
    for i in range(rows):
        c = start[i]
        for t in range(k):
            c = _add_nearest(a[i, t] * b[i, t], c, bits)
        out[i] = c
    return out


Run = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # (a, b, exponent of the smallest normal operand) → results


def fdpa(length: int, f: int, p: int) -> Run:
    """Blocks of `length` products and the accumulator, truncated f bits below the largest, result truncated to p bits."""
    return lambda a, b, emin: _tfdpa(a, b, exponents(a, emin), exponents(b, emin), length, f, p, np.zeros(len(a)))


def cdna3(length: int, halves: int = 1) -> Run:
    return lambda a, b, emin: _trfdpa(a, b, exponents(a, emin), exponents(b, emin), length, halves, np.zeros(len(a)))


def rdna3(a: np.ndarray, b: np.ndarray, emin: int) -> np.ndarray:
    return _rdna3(a, b, exponents(a, emin), exponents(b, emin), np.zeros(len(a)))


def cdna1(a: np.ndarray, b: np.ndarray, emin: int = 0) -> np.ndarray:
    return _exact_blocks(a, b, 4, np.zeros(len(a)))


def fma32(a: np.ndarray, b: np.ndarray, emin: int = 0) -> np.ndarray:
    """One float32 fused multiply-add per k."""
    return _fma(a, b, 23, np.zeros(len(a)))


def mul_add32(a: np.ndarray, b: np.ndarray, emin: int = 0) -> np.ndarray:
    """Products rounded to float32, then added one by one."""
    with np.errstate(over="ignore"):
        p = (a * b).astype(np.float32)
        return np.cumsum(p, axis=1, dtype=np.float32)[:, -1].astype(np.float64)


def pairwise32(a: np.ndarray, b: np.ndarray, emin: int = 0) -> np.ndarray:
    """Products rounded to float32, added in a binary tree."""
    p = (a * b).astype(np.float32)
    while p.shape[1] > 1:
        if p.shape[1] % 2:
            p = np.concatenate([p, np.zeros((len(p), 1), np.float32)], axis=1)
        p = p[:, 0::2] + p[:, 1::2]
    return p[:, 0].astype(np.float64)


def cdna2(a: np.ndarray, b: np.ndarray, emin: int = 0) -> np.ndarray:
    """Four rounded products summed in pairs, the sum added to the accumulator; subnormals flushed (not reached by normal data)."""
    p = (a * b).astype(np.float32)
    p = np.concatenate([p, np.zeros((len(p), -p.shape[1] % 4), np.float32)], axis=1)
    q = (p[:, 0::4] + p[:, 1::4]) + (p[:, 2::4] + p[:, 3::4])
    return np.cumsum(q, axis=1, dtype=np.float32)[:, -1].astype(np.float64)


def pieces(unit: Run, width: int, partial: Callable[[np.ndarray], np.ndarray] | None = None) -> Run:
    """K cut into contiguous parts, each summed by `unit` from zero, the parts added in order in float32."""

    def run(a: np.ndarray, b: np.ndarray, emin: int) -> np.ndarray:
        total = np.zeros(len(a), np.float32)
        for k in range(0, a.shape[1], width):
            part = unit(a[:, k : k + width], b[:, k : k + width], emin)
            total = total + (part if partial is None else partial(part)).astype(np.float32)
        return total.astype(np.float64)

    return run


def interleaved(unit: Run, width: int, ways: int) -> Run:
    """`ways` accumulators take alternate chunks of `width`, added at the end in float32."""

    def run(a: np.ndarray, b: np.ndarray, emin: int) -> np.ndarray:
        group = (np.arange(a.shape[1]) // width) % ways
        total = np.zeros(len(a), np.float32)
        for w in range(ways):
            if (group == w).any():
                total = total + unit(a[:, group == w], b[:, group == w], emin).astype(np.float32)
        return total.astype(np.float64)

    return run


def to_bits(x: np.ndarray, fraction_bits: int, *, truncate: bool = False) -> np.ndarray:
    """Rounded to nearest even (or toward zero) to that many fraction bits; unbounded exponent."""
    mantissa, e = np.frexp(x)
    scaled = np.ldexp(mantissa, fraction_bits + 1)
    return np.ldexp(np.trunc(scaled) if truncate else np.rint(scaled), e - fraction_bits - 1)


@dataclass(frozen=True)
class Unit:
    """One way to accumulate.

    formats   operand formats it takes
    contract  the contract it must keep
    run       (a, b, emin) → results
    """

    name: str
    formats: tuple[str, ...]
    contract: str
    run: Run


HALF = ("bfloat16", "float16")
FP8 = ("float8_e4m3fn", "float8_e5m2")
HEALTHY = (
    Unit("volta", ("float16",), "fp32acc", fdpa(4, 23, 23)),
    Unit("ampere", HALF, "fp32acc", fdpa(8, 24, 23)),
    Unit("hopper", HALF, "fp32acc", fdpa(16, 25, 23)),
    Unit("hopper, split in 4 float32 pieces", HALF, "fp32acc", lambda a, b, e: pieces(fdpa(16, 25, 23), -(-a.shape[1] // 4))(a, b, e)),
    Unit("cdna1", HALF, "fp32acc", cdna1),
    Unit("cdna2", HALF, "fp32acc", cdna2),
    Unit("cdna3", HALF, "fp32acc", cdna3(8)),
    Unit("cdna3, two accumulators", HALF, "fp32acc", interleaved(cdna3(8), 32, 2)),
    Unit("rdna3", HALF, "fp32acc", rdna3),
    Unit("fma", (*HALF, "float32"), "fp32acc", fma32),
    Unit("multiply, add", (*HALF, "float32"), "fp32acc", mul_add32),
    Unit("pairwise", (*HALF, "float32"), "fp32acc", pairwise32),
    Unit("ampere tf32 operands", ("tfloat32",), "fp32acc", fdpa(4, 24, 23)),
    Unit("hopper tf32 operands", ("tfloat32",), "fp32acc", fdpa(8, 25, 23)),
    Unit("cdna3 xf32 operands", ("tfloat32",), "fp32acc", cdna3(4)),
    Unit("hopper tf32", ("float32",), "tf32", lambda a, b, e: fdpa(8, 25, 23)(to_bits(a, 10), to_bits(b, 10), e)),
    Unit("cdna3 xf32", ("float32",), "tf32", lambda a, b, e: cdna3(4)(to_bits(a, 10, truncate=True), to_bits(b, 10, truncate=True), e)),
    Unit("hopper fp8", FP8, "fp8fast", fdpa(32, 13, 13)),
    Unit("ada fp8", FP8, "fp8fast", fdpa(16, 13, 13)),
    Unit("hopper fp8 promoted", FP8, "fp8promoted", pieces(fdpa(32, 13, 13), 128)),
    Unit("blackwell fp8", FP8, "fp32acc", fdpa(32, 25, 23)),
    Unit("cdna3 fp8", FP8, "fp32acc", cdna3(16, 2)),
    Unit("blackwell fp8 under the Hopper contract", FP8, "fp8fast", fdpa(32, 25, 23)),
)


def lost_product(a: np.ndarray, b: np.ndarray, emin: int = 0) -> np.ndarray:
    """The largest product of each row is left out, the rest is exact."""
    p = a * b
    p[np.arange(len(p)), np.abs(p).argmax(axis=1)] = 0.0
    return p.sum(axis=1)


FAULTS = (
    Unit("bf16 split-K partials", HALF, "fp32acc", lambda a, b, e: pieces(fma32, -(-a.shape[1] // 4), lambda x: to_bits(x, 7))(a, b, e)),
    Unit("14-bit accumulator", (*HALF, *FP8), "fp32acc", fdpa(16, 13, 13)),
    Unit("TF32 operands", ("float32",), "fp32acc", lambda a, b, e: fma32(to_bits(a, 10), to_bits(b, 10))),
    Unit("bf16 operands", ("float32",), "fp32acc", lambda a, b, e: fma32(to_bits(a, 7), to_bits(b, 7))),
    Unit("bf16 operands", ("float32",), "tf32", lambda a, b, e: fma32(to_bits(a, 7), to_bits(b, 7))),
    Unit("a lost product", (*HALF, "float32"), "fp32acc", lost_product),
)


def _normal(rng, r, k):
    return rng.standard_normal((r, k)), rng.standard_normal((r, k))


def _relu(rng, r, k):
    a, b = _normal(rng, r, k)
    return np.maximum(a, 0), np.maximum(b, 0)


def _spike(rng, r, k):
    a, b = _normal(rng, r, k)
    a[np.arange(r), rng.integers(0, k, r)] *= 1000
    return a, b


def _cancellation(rng, r, k):
    a, b = _normal(rng, r, k)
    h = k // 2
    a[:, h : 2 * h] = -a[:, :h] * (1 + 2.0**-6 * rng.integers(-1, 2, (r, h)))
    b[:, h : 2 * h] = b[:, :h]
    return a, b


def _outlier(rng, r, k):
    return tuple(np.where(rng.random((r, k)) < 1e-3, 100 * x, x) for x in _normal(rng, r, k))


def _tiny(rng, r, k):
    a, b = _normal(rng, r, k)
    return a * 10.0 ** rng.uniform(-6, -3, (r, 1)), b * 1e-3


def _large_first(rng, r, k):
    a, b = _normal(rng, r, k)
    a[:, 0], b[:, 0] = 2048, 1 + np.abs(b[:, 0])
    return a, b


KINDS: dict[str, Callable] = {
    "normal": _normal,
    "uniform": lambda rng, r, k: (rng.uniform(-1, 1, (r, k)), rng.uniform(-1, 1, (r, k))),
    "relu": _relu,
    "positive": lambda rng, r, k: (rng.uniform(0, 1, (r, k)), rng.uniform(0, 1, (r, k))),
    "spike": _spike,
    "heavy tail": lambda rng, r, k: (rng.standard_t(1.5, (r, k)), rng.standard_t(1.5, (r, k))),
    "log-uniform": lambda rng, r, k: tuple(x * 2.0 ** rng.uniform(-12, 4, (r, k)) for x in _normal(rng, r, k)),
    "cancellation": _cancellation,
    "outlier": _outlier,
    "tiny": _tiny,
    "large first": _large_first,
    "constant": lambda rng, r, k: (np.ones((r, k)) * rng.uniform(0.5, 1.5, (r, 1)), np.ones((r, k)) * rng.uniform(0.5, 1.5, (r, 1))),
}  # fmt: skip


def operands(kind: str, rows: int, k: int, fmt: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes a, b [rows, k] of an input class; data beyond the format's range are scaled into it by a power of two."""
    f = get_format(fmt)
    out = []
    for x in KINDS[kind](np.random.default_rng(seed), rows, k):
        top = np.abs(x).max()
        if top > f.max:
            x = x * 2.0 ** np.floor(np.log2(f.max / top))
        out.append(encode(x, f, overflow="saturate"))
    return out[0], out[1]


def reference(a: np.ndarray, b: np.ndarray, fmt: str, contract: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and budgets [rows, rows] of a·bᵀ."""
    parts = list(panels(Gemm(Coded(a, fmt), Coded(b, fmt), "nt"), contract=contract))
    return np.concatenate([p.values for p in parts]), np.concatenate([p.budget for p in parts])


def pairs(run: Run, a: np.ndarray, b: np.ndarray, fmt: str) -> np.ndarray:
    """`run` on the values of every row of codes a with every row of codes b: [len(a), len(b)]."""
    x, y = decode(a, fmt), decode(b, fmt)
    return run(np.repeat(x, len(y), axis=0), np.tile(y, (len(x), 1)), get_format(fmt).emin).reshape(len(x), len(y))


def ratio(error: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """error / budget, 0 where there is no error, Inf where there is one and no budget."""
    out = np.zeros(error.shape)
    np.divide(error, budget, out=out, where=(error > 0) & (budget > 0))
    out[(error > 0) & (budget == 0)] = np.inf
    return out
