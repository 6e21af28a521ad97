"""Healthy results and faulty ones, made from float64 truth with numpy alone: what the tests of diagnose put in.

Everything is a matrix product D = A·Bᵀ (layout nt) whose operands are rounded normal numbers, unless a fault needs other data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.diagnose import Context, rows_of
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.metrics import measure
from accuracy_eval.records import Coded

Values = NDArray[np.float64]
SHAPES = ((96, 64, 128), (64, 160, 257), (96, 96, 320))
FORMATS = ("float32", "bfloat16", "float8_e4m3fn")
CONTRACTS = {"float32": "fp32acc", "bfloat16": "fp32acc", "float16": "fp32acc", "float8_e4m3fn": "fp8fast", "float8_e5m2": "fp8fast"}


def rounded(x: Values, fmt: str) -> Values:
    return decode(encode(x, fmt, overflow="saturate"), fmt)


@dataclass(frozen=True)
class Product:
    """A product to judge: operands [m, k] and [n, k] as codes, the truth [m, n], and the budget its contract gives."""

    a: Coded
    b: Coded
    truth: Values
    budget: Values
    fmt: str
    contract: str
    scales: Mapping[str, Values] = field(default_factory=dict)
    lane: str = "random"

    @property
    def operands(self) -> tuple[Values, Values]:
        """Values of A and B with their scales, float64."""
        a, b = decode(self.a.codes, self.a.format), decode(self.b.codes, self.b.format)
        for name, s in self.scales.items():
            x = a if name == "a_scale" else b
            x *= np.repeat(s, x.shape[1] // s.shape[1], axis=1)
        return a, b

    @cached_property
    def healthy(self) -> Values:
        a, b = self.operands
        return (a @ b.T).astype(np.float32).astype(np.float64)

    @property
    def k(self) -> int:
        return self.a.shape[1]


def product(
    shape: tuple[int, int, int], fmt: str, *, seed: int = 0, out: str = "", draw: str = "normal", scales: Mapping[str, Values] | None = None
) -> Product:
    """Operands of `fmt`; `out` is the output's format, `fmt` by default. Values are scaled so that fp8 outputs stay in range.

    draw  normal; cancellation (the second half of k undoes the first); tiny (times 2^-60); relu; integers (-2 … 2)
    """
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))
    if draw == "cancellation":
        h = k // 2
        a[:, h : 2 * h], b[:, h : 2 * h] = a[:, :h], -b[:, :h] * (1 + 2.0**-8 * rng.standard_normal((n, h)))
    if draw == "tiny":
        a *= 2.0**-60
    if draw == "relu":
        a, b = np.maximum(a, 0), np.maximum(b, 0)
    if draw == "integers":
        a, b = rng.integers(-2, 3, a.shape).astype(float), rng.integers(-2, 3, b.shape).astype(float)
    a_codes, b_codes = (Coded(encode(x, fmt, overflow="saturate"), fmt) for x in (a, b))
    contract, out = CONTRACTS[fmt], out or fmt
    given = dict(scales or {})
    parts = list(panels(Gemm(a_codes, b_codes, "nt", **given), contract=contract, out_format=out))
    truth = np.concatenate([p.values for p in parts])
    budget = np.concatenate([p.budget for p in parts if p.budget is not None])
    return Product(a_codes, b_codes, truth, budget, out, contract, given)


def context(p: Product, actual: NDArray[Any], how: str = "budget") -> Context:
    """What the judge would ask about these codes.

    how  "budget": against the truth, with budget and operands · "plain": rounded truth as codes, operands unknown ·
         "codes": rounded truth as codes, operands known, nothing said about rounding
    """
    a = Coded(actual, p.fmt)
    if how == "budget":
        m = measure(a, p.truth, budget=p.budget)
        expected: NDArray[Any] = p.truth
    else:
        expected = encode(p.truth, p.fmt)
        m = measure(a, Coded(expected, p.fmt))
    common: dict[str, Any] = {"actual": rows_of(actual), "expected": rows_of(expected)}
    if how == "plain":
        return Context(m, **common)
    inputs = {"a": p.a, "b": p.b}
    inputs.update({name: Coded(encode(s, "float32"), "float32") for name, s in p.scales.items()})
    contract = p.contract if how == "budget" else ""
    return Context(m, op="gemm", layout="nt", inputs=inputs, contract=contract, contraction=p.k, lane=p.lane, **common)


# healthy arithmetic


def _cut(x: Values, bits: int) -> Values:
    """Toward zero to `bits` significant bits."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)


def exact_sum(p: Product) -> Values:
    return p.truth


def float32_chain(p: Product) -> Values:
    """One float32 addition, to nearest, per product."""
    a, b = p.operands
    total = np.zeros(p.truth.shape, np.float32)
    for i in range(p.k):
        total = (total + np.multiply.outer(a[:, i], b[:, i])).astype(np.float32)
    return total.astype(np.float64)


def truncating_unit(p: Product, width: int = 16, bits: int = 24) -> Values:
    """`width` products and the accumulator added exactly, then cut to `bits` significant bits."""
    a, b = p.operands
    total = np.zeros(p.truth.shape)
    for i in range(0, p.k, width):
        total = _cut(total + a[:, i : i + width] @ b[:, i : i + width].T, bits)
    return total


def fp8_unit(p: Product) -> Values:
    return truncating_unit(p, 32, 14 if p.contract == "fp8fast" else 24)


def split_k(p: Product) -> Values:
    """Three pieces of K, each a float32 chain of 32 wide steps, added in float32."""
    a, b = p.operands
    step = -(-p.k // 3)
    total = np.zeros(p.truth.shape, np.float32)
    for i in range(0, p.k, step):
        part = np.zeros(p.truth.shape, np.float32)
        for j in range(i, min(i + step, p.k), 32):
            part = (part + (a[:, j : min(j + 32, i + step)] @ b[:, j : min(j + 32, i + step)].T)).astype(np.float32)
        total = (total + part).astype(np.float32)
    return total.astype(np.float64)


HEALTHY: dict[str, Callable[[Product], Values]] = {
    "exact sum": exact_sum, "float32 chain": float32_chain, "truncating unit": truncating_unit, "fp8 unit": fp8_unit, "split-K": split_k,
}  # fmt: skip


def codes(p: Product, values: Values) -> NDArray[Any]:
    return encode(values, p.fmt)


def result(p: Product, operands: tuple[Values, Values] | None = None) -> Values:
    """A·Bᵀ as a healthy unit would give it: float64, then float32."""
    if operands is None:
        return p.healthy.copy()
    return (operands[0] @ operands[1].T).astype(np.float32).astype(np.float64)


# faults


@dataclass(frozen=True)
class Fault:
    """A faulty output and what must be said about it.

    actual    codes of the output
    evidence  keys and values that must be found; floats within 1 %
    beside    codes that may stand beside it
    """

    code: str
    actual: NDArray[Any]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()


def scaled_part(p: Product, rows: slice, cols: slice, factor: float) -> NDArray[Any]:
    values = result(p)
    values[rows, cols] *= factor
    return codes(p, values)


def gain(p: Product, severity: int) -> Fault:
    factor = (0.05, 2.0, 1.25)[severity]
    return Fault("gain", codes(p, result(p) * factor), {"value": factor, "power_of_two": factor == 2.0})


def rows(p: Product, severity: int) -> Fault:
    m = p.truth.shape[0]
    first, last, factor = ((0, 16, 0.0), (m // 2, m // 2, -1.0), (m - 20, m - 3, 1.5))[severity]
    return Fault("rows", scaled_part(p, slice(first, last + 1), slice(None), factor), {"first": first, "last": last})


def columns(p: Product, severity: int) -> Fault:
    n = p.truth.shape[1]
    first, last, factor = ((n - 16, n - 1, 0.0), (7, 7, 3.0), (n // 2, n // 2 + 7, 1.5))[severity]
    return Fault("columns", scaled_part(p, slice(None), slice(first, last + 1), factor), {"first": first, "last": last})


def block(p: Product, severity: int) -> Fault:
    m, n = p.truth.shape
    r0, r1, c0, c1, factor = ((16, 31, 32, 47, 0.0), (0, 31, n - 32, n - 1, 3.0), (m - 16, m - 1, 0, 15, -1.0))[severity]
    where = {"row_first": r0, "row_last": r1, "col_first": c0, "col_last": c1}
    return Fault("block", scaled_part(p, slice(r0, r1 + 1), slice(c0, c1 + 1), factor), where)


def periodic(p: Product, severity: int) -> Fault:
    axis, modulus, offset, factor = ((0, 8, 3, 0.0), (1, 4, 1, 2.0), (1, 16, 15, -1.0))[severity]
    pick = slice(offset, None, modulus)
    actual = scaled_part(p, pick if axis == 0 else slice(None), pick if axis == 1 else slice(None), factor)
    return Fault("periodic", actual, {"axis": axis, "modulus": modulus, "offset": offset})


def zero_tail(p: Product, severity: int) -> Fault:
    values = result(p)
    start = (values.size // 2 + 5, values.size - values.shape[1] - 11, values.size - 4 * values.shape[1])[severity]
    values.reshape(-1)[start:] = 0
    return Fault("zero-tail", codes(p, values), {"from_index": start}, ("rows",))


def k_tail(p: Product, severity: int) -> Fault:
    from_k = (p.k // 2, p.k - 32, p.k - 16 - p.k % 16)[severity]
    a, b = p.operands
    return Fault("k-tail-missing", codes(p, result(p, (a[:, :from_k], b[:, :from_k]))), {"from_k": from_k})


def lost_k(p: Product, severity: int) -> Fault:
    k = (0, p.k // 3, p.k - 2)[severity]
    a, b = p.operands
    a[:, k] = 0
    return Fault("lost-k", codes(p, result(p, (a, b))), {"k": k})


def transposed(p: Product, severity: int) -> Fault:
    """Whole; with a last bit off here and there; with signs of zero lost."""
    t = np.ascontiguousarray(result(p).T).reshape(p.truth.shape)
    if severity == 1:
        t *= 1 + 2.0**-22
    if severity == 2:
        t += 0.0
    return Fault("transposed", codes(p, t))


def narrowed(x: Values, bits: int, truncate: bool = False) -> Values:
    """`bits` fraction bits, to nearest (or cut)."""
    fraction, exponent = np.frexp(x)
    scaled = np.ldexp(fraction, bits + 1)
    return np.ldexp(np.trunc(scaled) if truncate else np.rint(scaled), exponent - bits - 1)


def tf32(p: Product, severity: int) -> Fault:
    a, b = p.operands
    a = narrowed(a, 10, severity == 1)
    b = b if severity == 2 else narrowed(b, 10, severity == 1)
    return Fault("tf32-like", codes(p, result(p, (a, b))))


def bf16_inputs(p: Product, severity: int) -> Fault:
    a, b = p.operands
    a = narrowed(a, 7, severity == 1)
    b = b if severity == 2 else narrowed(b, 7, severity == 1)
    return Fault("bf16-inputs-like", codes(p, result(p, (a, b))))


def partials(p: Product, severity: int) -> Fault:
    fmt, pieces = (("bfloat16", 2), ("bfloat16", 4), ("float16", 4))[severity]
    a, b = p.operands
    step = -(-p.k // pieces)
    parts = [rounded(a[:, i : i + step] @ b[:, i : i + step].T, fmt) for i in range(0, p.k, step)]
    return Fault("reduced-partials", codes(p, np.sum(parts, axis=0)), {"format": fmt})


def dealt_partials(p: Product, severity: int) -> Fault:
    """Groups of k dealt to accumulators in turn; or many short pieces."""
    fmt, count, group = (("bfloat16", 2, 32), ("float16", 4, 16), ("bfloat16", 0, 16))[severity]
    a, b = p.operands
    which = np.arange(p.k) // group % (count or p.k)
    parts = [rounded(a[:, which == i] @ b[:, which == i].T, fmt) for i in range(which.max() + 1)]
    return Fault("reduced-partials", codes(p, np.sum(parts, axis=0)), {"format": fmt})


def narrow_accumulator(p: Product, severity: int) -> Fault:
    fmt, step = (("bfloat16", 1), ("float16", 16), ("bfloat16", 64))[severity]
    a, b = p.operands
    total = np.zeros(p.truth.shape)
    for i in range(0, p.k, step):
        total = rounded(total + a[:, i : i + step] @ b[:, i : i + step].T, fmt)
    return Fault("accumulator-rounded", codes(p, total), {"format": fmt, "every": step})


def rounded_result(p: Product, severity: int) -> Fault:
    """To bfloat16, to float16, cut to bfloat16."""
    if severity == 2:
        return Fault("result-rounded", codes(p, _cut(result(p), 8)), {"format": "bfloat16"})
    fmt = ("bfloat16", "float16")[severity]
    return Fault("result-rounded", codes(p, rounded(result(p), fmt)), {"format": fmt})


def nan(p: Product, severity: int) -> Fault:
    values = result(p)
    m, n = values.shape
    count = (1, 7, n)[severity]
    flat = (5, n + 3, (m - 1) * n)[severity]
    values.reshape(-1)[flat : flat + count] = np.nan
    beside = ("rows",) if severity == 2 else ("block",)
    return Fault("nan-in-actual", codes(p, values), {"index": [flat // n, flat % n], "count": count}, beside)


def all_zero(p: Product, severity: int) -> Fault:
    actual = codes(p, np.zeros(p.truth.shape))
    if severity:
        actual[:: 1 + severity] = codes(p, np.array([-0.0]))[0]
    return Fault("all-zero", actual)


def constant(p: Product, severity: int) -> Fault:
    value = (1.0, -0.5, 448.0)[severity]
    return Fault("constant", codes(p, np.full(p.truth.shape, value)), {"value": value})


def truncated(p: Product, severity: int) -> Fault:
    """Severity 0: the output is cut, not rounded. 1, 2: the accumulator keeps 14 and 12 bits."""
    if severity == 0:
        return Fault("truncation-bias", codes(p, _cut(result(p), get_format(p.fmt).fraction_bits + 1)))
    return Fault("truncation-bias", codes(p, truncating_unit(p, 8, (0, 14, 12)[severity])))


def scale_ignored(p: Product, severity: int) -> Fault:
    a, b = p.operands
    bare_a, bare_b = decode(p.a.codes, p.a.format), decode(p.b.codes, p.b.format)
    operand, pair = (("a", (bare_a, b)), ("b", (a, bare_b)), ("a, b", (bare_a, bare_b)))[severity]
    return Fault("scale-ignored", codes(p, result(p, pair)), {"operand": operand})


def scale_index(p: Product, severity: int) -> Fault:
    """The first block of k for all; the next block; the next row."""
    scale = p.scales["a_scale"]
    moved = (np.repeat(scale[:, :1], scale.shape[1], axis=1), np.roll(scale, -1, axis=1), np.roll(scale, -1, axis=0))[severity]
    a = decode(p.a.codes, p.a.format) * np.repeat(moved, p.k // scale.shape[1], axis=1)
    return Fault("scale-index", codes(p, result(p, (a, p.operands[1]))), {"blocks": int((moved != scale).sum())})


def flushed_operands(p: Product, severity: int) -> Fault:
    a, b = p.operands
    small = get_format(p.a.format).smallest_normal
    a = np.where(np.abs(a) < small, 0, a)
    b = b if severity == 0 else np.where(np.abs(b) < small, 0, b)
    return Fault("flush-to-zero", codes(p, result(p, (a, b))))


ANYWHERE: dict[str, Callable[[Product, int], Fault]] = {
    "gain": gain, "rows": rows, "columns": columns, "block": block, "periodic": periodic, "zero-tail": zero_tail,
    "transposed": transposed, "nan-in-actual": nan, "all-zero": all_zero, "constant": constant,
}  # fmt: skip
IN_PRODUCTS: dict[str, Callable[[Product, int], Fault]] = {"k-tail-missing": k_tail, "lost-k": lost_k}
NARROWED: dict[str, Callable[[Product, int], Fault]] = {"tf32-like": tf32, "bf16-inputs-like": bf16_inputs}
SCALED: dict[str, Callable[[Product, int], Fault]] = {"scale-ignored": scale_ignored, "scale-index": scale_index}
