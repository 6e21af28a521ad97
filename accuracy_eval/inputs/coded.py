"""The coded companion of a GEMM: D holds B's codes themselves, so a wrong element says which k and j it came from.

A is one-hot by rows: row i has its single 1 at sigma(i), so D[i, j] = B[j, sigma(i)] exactly, in any order, split or accumulator.
B's codes count through the format's normal numbers of both signs: neighbours in k and in j always differ, and where the operand
has no more elements than the format has such numbers every element is its own.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FORMATS, Codes, Format, Values, decode, encode, get_format
from accuracy_eval.inputs.exact import INPUT_CLASS
from accuracy_eval.inputs.philox import STREAM_16, stream_key, words

Indices = NDArray[np.int64]
NOTHING, NO_CODE = -1, -2  # found_k, found_j of an element that is zero, or is no value of B


@dataclass(frozen=True)
class CodedOperands:
    """Operands of one coded case.

    a [m, k], b [n, k]   codes of `format`
    sigma [m]            k of the single 1 in each row of a
    step                 the number of b[j, k] is (k · step + j) mod (how many normal numbers there are)
    unseen_k             the k that no row of a picks: more k than rows
    """

    a: Codes
    b: Codes
    format: str
    sigma: Indices
    step: int
    unseen_k: Indices

    def d(self) -> Values:
        """D [m, n] as float64 values: b[j, sigma(i)]."""
        return decode(self.b.T[self.sigma], self.format)


@dataclass(frozen=True)
class CodedFault:
    """One wrong element: D[row, column] should hold b[column, k] and holds b[found_column, found_k].

    found_k = found_column = -1: zero, nothing arrived; -2: no value of b, such as a sum or a scaled value (`value` says which).
    """

    row: int
    column: int
    k: int
    found_column: int
    found_k: int
    value: float

    def __str__(self) -> str:
        where = f"D[{self.row}, {self.column}] should be b[{self.column}, {self.k}]"
        if self.found_k == NOTHING:
            return f"{where} and is zero"
        if self.found_k == NO_CODE:
            return f"{where} and is {self.value!r}, no element of b"
        return f"{where} and is b[{self.found_column}, {self.found_k}]"


@dataclass(frozen=True)
class CodedReading:
    """What a device's D says.

    wrong      how many elements differ
    found_k, found_column [m, n]   where each element came from (nearest, where several elements of b share a code)
    faults     the first wrong elements in C order
    sentence   one sentence that names the pattern
    """

    wrong: int
    found_k: Indices
    found_column: Indices
    faults: tuple[CodedFault, ...]
    sentence: str


@cache
def coded_values(name: str) -> Values:
    """The normal numbers B counts through, ascending: all of a format of at most 16 bits; those of bfloat16 for float32, tfloat32
    and float64 (so that no conversion in between changes them); all but 0 of int8 and uint8, and int8's for int32. Read-only."""
    f = get_format(name)
    if f.kind == "int":
        low, high = (-128, 127) if f.signed else (0, 255)
        values = np.array([float(i) for i in range(low, high + 1) if i])
    else:
        f = FORMATS["bfloat16"] if f.bits > 16 else f
        every = decode(np.arange(1 << f.bits, dtype=f.storage), f)
        values = np.sort(every[np.isfinite(every) & (np.abs(every) >= f.smallest_normal)])
    values.flags.writeable = False
    return values


def coded_gemm(m: int, n: int, k: int, fmt: str | Format, *, seed: int = 0) -> CodedOperands:
    """Operands of D = A·Bᵀ, m × n × k. The layout of either in memory is the caller's: the arrays here are logical."""
    f = get_format(fmt)
    if min(m, n, k) < 0 or f.scale_only:
        raise UsageError(f"coded operands of m={m}, n={n}, k={k} in {f.name}: sizes must not be negative, the format one of operands")
    numbers = coded_values(f.name)
    step = n if n * k <= numbers.size else golden_step(numbers.size)
    index = (np.arange(k, dtype=np.int64)[None, :] * step + np.arange(n, dtype=np.int64)[:, None]) % numbers.size
    sigma = one_hot_places(m, k, seed)
    a = np.zeros((m, k), f.storage)
    if k:
        a[np.arange(m), sigma] = encode(np.array([1.0]), f)[0]
    return CodedOperands(
        a=a,
        b=encode(numbers, f)[index],
        format=f.name,
        sigma=sigma if k else np.full(m, NOTHING),
        step=step,
        unseen_k=np.setdiff1d(np.arange(k), sigma),
    )


def decode_coded(operands: CodedOperands, d_codes: Codes, out_format: str | Format, *, faults: int = 16) -> CodedReading:
    """Where each element of a device's D [m, n], codes of `out_format`, came from.

    An element equal to the one expected is right. Of several elements of b with the same value the nearest in k in the same column
    is taken, or the nearest column at the same k, whichever is closer.
    """
    n, k = operands.b.shape
    m = operands.sigma.size
    if d_codes.shape != (m, n):
        raise UsageError(f"coded D has shape {d_codes.shape}, expected {(m, n)}")
    d = decode(d_codes, out_format)
    expected_k = np.broadcast_to(operands.sigma[:, None], (m, n))
    columns = np.broadcast_to(np.arange(n), (m, n))
    found_k, found_column = expected_k.copy(), columns.copy()
    expected = operands.d() if k else np.zeros((m, n))
    at = np.argwhere(d != expected)  # NaN differs from everything
    if at.size:
        i, j = at.T
        found_k[i, j], found_column[i, j] = _locate(operands, d[i, j], operands.sigma[i], j)
    listed = tuple(
        CodedFault(int(i), int(j), int(operands.sigma[i]), int(found_column[i, j]), int(found_k[i, j]), float(d[i, j]))
        for i, j in at[:faults]
    )
    return CodedReading(len(at), found_k, found_column, listed, _sentence(at, found_k, found_column, operands, m * n))


def one_hot_places(m: int, k: int, seed: int) -> Indices:
    """k of the single 1 in each row of A [m]: every k before any comes again; zeros where there is no k."""
    w = words(stream_key("gemm", "sigma", (m, k), INPUT_CLASS, seed), STREAM_16, 0, 8).astype(np.int64)
    stride, offset = (int((w[i] << 32) | (w[i + 1] << 16) | w[i + 2]) % max(k, 1) for i in (0, 3))
    while math.gcd(stride, k) > 1:
        stride += 1
    return (stride * np.arange(m, dtype=np.int64) + offset) % max(k, 1)


def golden_step(count: int) -> int:
    """Near count / golden ratio and coprime to count: small moves in k and j never meet the same number."""
    step = max(1, round(count * 0.6180339887498949))
    while math.gcd(step, count) > 1:
        step += 1
    return step


def _locate(operands: CodedOperands, values: Values, k: Indices, j: Indices) -> tuple[Indices, Indices]:
    """(k, column) of the element of b nearest to (k, j) with each value."""
    n, size_k = operands.b.shape
    numbers = coded_values(operands.format)
    number = np.minimum(np.searchsorted(numbers, np.where(np.isnan(values), 0, values)), numbers.size - 1)
    known = numbers[number] == values
    if n * size_k <= numbers.size:  # every element its own
        found_k, found_j = number // max(n, 1), number % max(n, 1)
        known &= found_k < size_k
    else:
        # same column: k = (number - j) / step; same k: j = number - k · step, each mod how many numbers there are
        inverse = pow(operands.step, -1, numbers.size)
        other_k, k_exists = _nearest((number - j) * inverse % numbers.size, k, numbers.size, size_k)
        other_j, j_exists = _nearest((number - k * operands.step) % numbers.size, j, numbers.size, n)
        by_k = k_exists & (~j_exists | (np.abs(other_k - k) <= np.abs(other_j - j)))
        by_j = j_exists & ~by_k
        found_k, found_j = np.where(by_k, other_k, k), np.where(by_j, other_j, j)
        known &= by_k | by_j
    unknown = np.where(values == 0, NOTHING, NO_CODE)
    return np.where(known, found_k, unknown), np.where(known, found_j, unknown)


def _nearest(residue: Indices, target: Indices, modulus: int, size: int) -> tuple[Indices, NDArray[np.bool_]]:
    """The index in 0 … size - 1 of that residue nearest to target, and whether there is one."""
    below = target - (target - residue) % modulus
    above = below + modulus
    below_ok, above_ok = (below >= 0) & (below < size), above < size
    take_below = below_ok & (~above_ok | (target - below <= above - target))
    return np.where(take_below, below, above), below_ok | above_ok


def _sentence(at: Indices, found_k: Indices, found_column: Indices, operands: CodedOperands, total: int) -> str:
    if not len(at):
        return "every element of D is the element of b it should be"
    i, j = at.T
    k, column = found_k[i, j], found_column[i, j]
    kinds = {
        "zero: their k never reached the product": k == NOTHING,
        "no element of b: terms were added, scaled or rounded": k == NO_CODE,
        "from another k of the right column": (k >= 0) & (column == j),
        "from another column at the right k": (k >= 0) & (column != j) & (k == operands.sigma[i]),
        "from another column and another k": (k >= 0) & (column != j) & (k != operands.sigma[i]),
    }
    parts = [f"{int(mask.sum())} {text}" for text, mask in kinds.items() if mask.any()]
    real = k >= 0
    moves = Counter(zip((k - operands.sigma[i])[real].tolist(), (column - j)[real].tolist(), strict=True))
    shift = ""
    if moves:
        (dk, dj), count = moves.most_common(1)[0]
        shift = f"; most often by k {dk:+d}, column {dj:+d} ({count})"
    return f"{len(at)} of {total} elements are wrong: {', '.join(parts)}{shift}"
