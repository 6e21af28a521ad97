"""The exact companion of a GEMM: sparse ±1/±2 integers on which every correct device gives the same bits.

D = alpha·A·Bᵀ + beta·C + bias; dA = alpha·G·B, dB = alpha·Gᵀ·A, dbias = Σ_i G. Every sum of magnitudes stays within `limit`, so no
order, split or accumulator rounds, and still every k (forward), n and m (backward) shows in some output where the sizes allow.

Construction. perm(k) = (stride·k + offset) mod K, stride coprime to K. k belongs to column class q = perm mod Q and row class
p = (perm // Q) mod P; A[i, k] is non-zero iff i mod P = p, B[j, k] iff j mod Q = q, for perm < kept·P·Q. So D[i, j] sums the at most
`kept` values of k of classes (i mod P, j mod Q), each a single non-zero product: the loss of one k changes D. G[i, j] is non-zero
iff rank(i) + rank(j) = 0 mod S, the rank running class by class, so that a row meets each column class at most ⌈⌈N/Q⌉/S⌉ times.

Bits. Streams `gemm/NAME/SHAPE/exact` of u16 (`accuracy_eval.inputs`): `perm` of shape [k] gives stride = 48 bits of words 0-2 mod K,
raised to the next coprime to K, and offset = words 3-5 mod K (first word highest); `a`, `b`, `grad_d` take a word a non-zero, row by
row, each row in order of its non-zeros and as wide as the widest; `c`, `bias` one an element. Bit 0 is the sign, bit 1 the magnitude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, decode, encode, get_format
from accuracy_eval.inputs.exact_plan import Plan, Sizes, plan_of
from accuracy_eval.inputs.generator import COMPILED_FROM
from accuracy_eval.inputs.philox import STREAM_16, stream_key, words
from accuracy_eval.threads import map_threads

Small = NDArray[np.int8]
Indices = NDArray[np.int64]
INPUT_CLASS = "exact"  # the class in the names of the companions' streams


NOT_AN_INTEGER = -0x5A5A5A5B  # far from every sum, and no round number: a certificate sees it


@dataclass(frozen=True)
class ExactOperands:
    """Integer operands of one exact case, and what their product must be.

    a [m, k], b [n, k], c [m, n], bias [n], grad_d [m, n]   int8; c, bias, grad_d None where the case has none
    alpha, beta     0 or powers of two
    unit            D is an integer multiple of `unit`, at most `limit` of them; dA and dB are integers times alpha
    unseen_k, unseen_n, unseen_m   indices whose loss no output of D, dA, dB shows; empty where the sizes allow
    """

    a: Small
    b: Small
    c: Small | None
    bias: Small | None
    grad_d: Small | None
    alpha: float
    beta: float
    unit: float
    limit: int
    plan: Plan
    row_class: Indices
    column_class: Indices
    unseen_k: Indices
    unseen_n: Indices
    unseen_m: Indices

    def d(self) -> NDArray[np.int32]:
        """D / unit [m, n]."""
        q = self.plan.columns
        out = _class_product(self.a, self.b.T, self.column_class, q, np.arange(self.b.shape[0]) % q, self.limit)
        out *= np.int32(self.alpha / self.unit)
        if self.c is not None:
            out += self.c * np.int32(self.beta / self.unit)
        if self.bias is not None:
            out += self.bias * np.int32(1 / self.unit)
        return out

    def da(self) -> NDArray[np.int32]:
        """dA / alpha [m, k]."""
        q = self.plan.columns
        return _class_product(self._grad(), self.b, np.arange(self.b.shape[0]) % q, q, self.column_class, self.limit)

    def db(self) -> NDArray[np.int32]:
        """dB / alpha [n, k]."""
        p = self.plan.rows
        return _class_product(self._grad().T, self.a, np.arange(self.a.shape[0]) % p, p, self.row_class, self.limit)

    def dbias(self) -> NDArray[np.int32]:
        """dbias [n]: column sums of grad_d."""
        return np.asarray(self._grad().sum(axis=0, dtype=np.int32))

    def _grad(self) -> Small:
        if self.grad_d is None:
            raise UsageError("these exact operands are of direction fwd and have no grad_d; ask for direction='bwd'")
        return self.grad_d


def exact_gemm(
    m: int,
    n: int,
    k: int,
    *,
    direction: Literal["fwd", "bwd"] = "fwd",
    seed: int = 0,
    limit: int = 256,
    alpha: float = 1.0,
    beta: float = 0.0,
    has_bias: bool = False,
) -> ExactOperands:
    """Operands of D = alpha·A·Bᵀ + beta·C + bias, m × n × k, with every sum of magnitudes at most `limit` units.

    limit    the integers every partial result holds exactly: 256 bfloat16, 2048 float16, 2^14 Hopper fp8
    alpha, beta   0 or powers of two of either sign; beta 0 leaves c out. Other factors, and factors so far apart that no product
                  fits under the limit, raise UsageError: they round, so no exact companion exists.
    """
    if min(m, n, k) < 0:
        raise UsageError(f"exact operands of m={m}, n={n}, k={k}: sizes must not be negative")
    if not 1 <= limit <= 1 << 24:
        raise UsageError(f"exact operands: limit {limit} is not in 1 … 2^24, the integers float32 holds")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value != 0 and not (math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5):
            raise UsageError(f"exact operands need 0 or a power of two as {name}, found {value}; other factors round")
    unit = min((abs(x) for x in (alpha, beta, float(has_bias)) if x), default=1.0)
    backward = direction == "bwd"
    plan = plan_of(Sizes(m, n, k, limit, has_bias, backward), abs(alpha) / unit, (abs(beta) + has_bias) / unit)
    permuted = _permutation(k, seed)
    whole = permuted < plan.kept * plan.rows * plan.columns
    column_class = np.where(whole, permuted % plan.columns, -1)
    row_class = np.where(whole, permuted // plan.columns % plan.rows, -1)
    a = _spread("a", (m, k), row_class, plan.rows, plan.a, seed)
    b = _spread("b", (n, k), column_class, plan.columns, plan.b, seed)
    nobody = np.arange(0)
    seen_n, seen_m = _seen_by_grad(m, n, plan) if backward else (nobody, nobody)
    return ExactOperands(
        a=a,
        b=b,
        c=_values("c", (m, n), m * n, plan.c, seed).reshape(m, n) if beta else None,
        bias=_values("bias", (n,), n, plan.c, seed) if has_bias else None,
        grad_d=_grad(m, n, plan, seed) if backward else None,
        alpha=alpha,
        beta=beta,
        unit=unit,
        limit=limit,
        plan=plan,
        row_class=row_class,
        column_class=column_class,
        unseen_k=np.flatnonzero(~whole) if m and n and alpha else np.arange(k),
        unseen_n=np.setdiff1d(np.arange(n), seen_n) if backward and k and alpha else np.arange(n if backward else 0),
        unseen_m=np.setdiff1d(np.arange(m), seen_m) if backward and k and alpha else np.arange(m if backward else 0),
    )


def integer_codes(values: NDArray[Any], fmt: str | Format, unit: float = 1.0) -> Codes:
    """Codes of values · unit, same shape, for arrays of integers of a small range; UsageError unless `fmt` holds each exactly."""
    f = get_format(fmt)
    if not values.size:
        return np.empty(values.shape, f.storage)
    low, high = int(values.min()), int(values.max())
    line = np.arange(low, high + 1) * unit
    codes = encode(line, f)
    wrong = decode(codes, f) != line
    if wrong.any() and wrong[np.unique(values) - low].any():
        first = line[np.flatnonzero(wrong)[0]]
        raise UsageError(f"{f.name} does not hold {first} exactly; exact operands and results need a format that does")
    out: Codes = codes[values.astype(np.int64) - low]
    return out


def code_integers(codes: Codes, fmt: str | Format, unit: float = 1.0) -> NDArray[np.int32]:
    """Integers value / unit of codes, same shape; what is no integer below 2^24 (NaN, Inf, 0.5) becomes NOT_AN_INTEGER."""
    f = get_format(fmt)
    if f.bits <= 16:
        table: NDArray[np.int32] = _whole(decode(np.arange(1 << f.bits, dtype=f.storage), f), unit)[codes]
        return table
    out = np.empty(codes.size, np.int32)
    flat = np.ascontiguousarray(codes).reshape(-1)
    for i in range(0, flat.size, 1 << 16):
        out[i : i + (1 << 16)] = _whole(decode(flat[i : i + (1 << 16)], f), unit)
    return out.reshape(codes.shape)


def _whole(values: NDArray[Any], unit: float) -> NDArray[np.int32]:
    with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN and the largest finite values
        x = values / unit
    x = np.where(np.abs(x) <= 2.0**24, x, 0.5)
    return np.where(x == np.rint(x), np.rint(x), NOT_AN_INTEGER).astype(np.int32)


def ranks(size: int, classes: int) -> Indices:
    """Position of each index when ordered by (index mod classes, index): a permutation of 0 … size - 1."""
    out = np.empty(size, np.int64)
    out[np.concatenate([np.arange(c, size, classes) for c in range(classes)])] = np.arange(size)
    return out


ROWS = 1 << 7  # rows of a large product per piece
DENSE_BELOW = 1 << 27  # multiply-adds up to which a plain float32 product is quick enough


def _class_product(x: Small, y: Small, inner_class: Indices, classes: int, outer_class: Indices, limit: int) -> NDArray[np.int32]:
    """x [r, s] @ y [s, t], exact.

    inner_class [s]   class of each inner index, -1 where x or y is zero there
    outer_class [t]   class of each column; y[i, j] is zero unless inner_class[i] = outer_class[j]
    limit             largest sum of magnitudes: exact in float32, and in int16 up to 2^15 - 1
    Large products skip what is zero in x and keep the classes of y together.
    """
    if x.shape[0] * x.shape[1] * y.shape[1] < DENSE_BELOW:
        dense: NDArray[np.int32] = (x.astype(np.float32) @ y.astype(np.float32)).astype(np.int32)
        return dense
    from accuracy_eval.inputs import kernels

    members = [np.flatnonzero(outer_class == c) for c in range(classes)]
    width = max(at.size for at in members)
    narrow = np.int16 if limit < 1 << 15 else np.int32
    packed = np.zeros((y.shape[0], width), narrow)
    place = np.full(y.shape[1], classes * width, np.int64)  # columns of no class: the zero behind the last block
    for c, at in enumerate(members):
        inside = np.flatnonzero(inner_class == c)
        packed[inside, : at.size] = y[np.ix_(inside, at)]
        place[at] = c * width + np.arange(at.size)
    out = np.empty((x.shape[0], y.shape[1]), np.int32)

    def one(first: int) -> None:
        rows = np.ascontiguousarray(x[first : first + ROWS])
        sums = np.zeros((rows.shape[0], classes * width + 1), narrow)
        kernels.add_sparse(sums, rows, packed, inner_class)
        out[first : first + ROWS] = sums.take(place, axis=1)

    map_threads(one, range(0, x.shape[0], ROWS))
    return out


def _permutation(k: int, seed: int) -> Indices:
    key = stream_key("gemm", "perm", (k,), INPUT_CLASS, seed)
    w = words(key, STREAM_16, 0, 8).astype(np.int64)
    stride, offset = (int((w[i] << 32) | (w[i + 1] << 16) | w[i + 2]) % max(k, 1) for i in (0, 3))
    while math.gcd(stride, k) > 1:
        stride += 1
    return (stride * np.arange(k, dtype=np.int64) + offset) % max(k, 1)


def _values(operand: str, shape: tuple[int, ...], count: int, top: int, seed: int) -> Small:
    """`count` values ±1 (top 1) or ±1, ±2 (top 2): bit 0 of the word is the sign, bit 1 the magnitude."""
    key = stream_key("gemm", operand, shape, INPUT_CLASS, seed)
    table = np.array([1, -1, 2, -2] if top == 2 else [1, -1, 1, -1], np.int8)
    out = np.empty(count, np.int8)
    step = 1 << 20
    for i in range(0, count, step):
        w = words(key, STREAM_16, i, min(step, count - i), compiled=count >= COMPILED_FROM)
        out[i : i + w.size] = table[w & np.uint16(3)]
    return out


def _spread(operand: str, shape: tuple[int, int], k_class: Indices, classes: int, top: int, seed: int) -> Small:
    """Operand [rows, k] with row i non-zero at the k of class i mod classes; values in order of (row, k of its class)."""
    rows = shape[0]
    members = [np.flatnonzero(k_class == c) for c in range(classes)]
    width = max((at.size for at in members), default=0)
    values = _values(operand, shape, rows * width, top, seed).reshape(rows, width)
    out = np.zeros(shape, np.int8)
    for c, at in enumerate(members):
        out[c::classes, at] = values[c::classes, : at.size]
    return out


def _grad_places(m: int, n: int, plan: Plan) -> list[tuple[Indices, Indices]]:
    """Rows and columns of each residue: G is non-zero exactly on their products."""
    step = plan.grad_step
    rows, cols = ranks(m, plan.rows) % step, ranks(n, plan.columns) % step
    return [(np.flatnonzero(rows == r), np.flatnonzero(cols == (-r) % step)) for r in range(step)]


def _grad(m: int, n: int, plan: Plan, seed: int) -> Small:
    out = np.zeros((m, n), np.int8)
    width = -(-n // plan.grad_step)
    values = _values("grad_d", (m, n), m * width, plan.grad, seed).reshape(m, width)
    for rows, cols in _grad_places(m, n, plan):
        out[np.ix_(rows, cols)] = values[rows, : cols.size]
    return out


def _seen_by_grad(m: int, n: int, plan: Plan) -> tuple[Indices, Indices]:
    """n that show in dA, m that show in dB: those with a non-zero in their column or row of G."""
    places = [(rows, cols) for rows, cols in _grad_places(m, n, plan) if rows.size and cols.size]
    nobody = [np.arange(0)]
    return np.concatenate([c for _, c in places] or nobody), np.concatenate([r for r, _ in places] or nobody)
