"""The coded companion of a product with scales: every element of D says which element of B and which blocks of scales made it.

A is one-hot by rows, as in `inputs.coded`, so D[i, j] = B[j, σ(i)] · scale of A's block · scale of B's block. B counts through the
numbers of one binade, so the significand of D names the element; all scales are powers of two, so the exponent of D names the blocks:
A's are multiples of the count of B's. Blocks are distinct as far as the exponents of the formats reach, and neighbours always differ.
Codes of A are 1 or 0, those of B the numbers: nothing is ever rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, Values, decode, encode
from accuracy_eval.inputs.coded import golden_step, one_hot_places

Exponents = NDArray[np.int64]
ENOUGH = 16  # exponents that tell the blocks of one factor apart: more of one are worth less than some of the other
WIDE = (-120, 120)  # exponents used of formats that have more


@dataclass(frozen=True)
class CodedSide:
    """One factor: element codes [rows, k] of `format`, and the exponent of the scale of every block.

    block      rows and columns that share a scale
    exponents  [row blocks, column blocks], each block's own where `capacity` allows
    capacity   how many exponents there were to choose from
    """

    codes: Codes
    format: str
    block: tuple[int, int]
    exponents: Exponents
    capacity: int

    def values(self) -> Values:
        """[rows, k]: codes times scales."""
        rows, columns = (np.arange(n) // b for n, b in zip(self.codes.shape, self.block, strict=True))
        return np.asarray(np.ldexp(decode(self.codes, self.format), self.exponents[rows][:, columns]))


@dataclass(frozen=True)
class CodedScales:
    """Operands of a coded case with scales.

    a [m, k], b [n, k]
    sigma [m]   k of the single 1 in each row of a
    step        the number of b[j, k] is (k · step + j) mod (how many numbers there are)
    unseen_k    the k that no row of a picks
    """

    a: CodedSide
    b: CodedSide
    sigma: Exponents
    step: int
    unseen_k: Exponents

    def d(self) -> Values:
        """D [m, n]."""
        rows = np.arange(self.sigma.size)
        scale_a = self.a.exponents[rows // self.a.block[0], self.sigma // self.a.block[1]]
        return np.asarray(np.ldexp(self.b.values().T[self.sigma], scale_a[:, None]))


def binade(fmt: Format) -> Values:
    """The numbers B counts through: those of one binade, of either sign, ascending. Integers: 64 … 127."""
    if fmt.kind == "int":
        half = np.arange(64.0, 128.0)
    else:
        half = 1 + np.arange(1 << fmt.fraction_bits) * fmt.eps
    return np.concatenate([-half[::-1], half])


def exponent_range(formats: tuple[Format, ...]) -> tuple[int, int]:
    """Exponents whose powers of two, times any number of a binade, are normal in all of the formats."""
    low = max(WIDE[0], *(f.emin for f in formats))
    return low, min(WIDE[1], *(math.frexp(f.max)[1] - 2 for f in formats))


def coded_scales(
    m: int,
    n: int,
    k: int,
    element: tuple[Format, Format],
    block: tuple[tuple[int, int], tuple[int, int]],
    scale: tuple[Format, Format],
    held: tuple[Format, ...],
    *,
    seed: int = 0,
) -> CodedScales:
    """Operands of D = A·Bᵀ, m × n × k.

    element, block, scale  of A and of B: element format, rows and columns of a block (0 is the whole extent), format of the scales
    held                   formats that must hold an operand or D exactly: the source's and the output's
    """
    if min(m, n, k) < 0:
        raise UsageError(f"coded operands of m={m}, n={n}, k={k}: sizes must not be negative")
    numbers = binade(element[1])
    top = math.frexp(numbers[-1])[1] - 1  # of the numbers themselves
    low, high = exponent_range(held)
    high -= top
    blocks = [(rows or max(size, 1), columns or max(k, 1)) for (rows, columns), size in zip(block, (m, n), strict=True)]
    grids = [(-(-size // b[0]), -(-k // b[1])) for size, b in zip((m, n), blocks, strict=True)]
    ranges = [exponent_range((f,)) for f in scale]
    count_b, count_a = _capacities(high - low + 1, [g[0] * g[1] for g in grids], ranges)
    first_a = max(low, ranges[0][0])
    first_b = max(low - first_a, ranges[1][0])
    a_exponents = first_a + count_b * _numbered(grids[0], count_a)
    b_exponents = first_b + _numbered(grids[1], count_b)
    sigma = one_hot_places(m, k, seed)
    step = n if n * k <= numbers.size else golden_step(numbers.size)
    a = np.zeros((m, k), element[0].storage)
    if k:
        a[np.arange(m), sigma] = encode(np.array([1.0]), element[0])[0]
    index = (np.arange(k, dtype=np.int64)[None, :] * step + np.arange(n, dtype=np.int64)[:, None]) % numbers.size
    return CodedScales(
        CodedSide(a, element[0].name, blocks[0], a_exponents, count_a),
        CodedSide(encode(numbers, element[1])[index], element[1].name, blocks[1], b_exponents, count_b),
        sigma, step, np.setdiff1d(np.arange(k), sigma),
    )  # fmt: skip


def _capacities(exponents: int, blocks: list[int], ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """How many exponents the blocks of B and of A use, all different if possible: A's are multiples of the count of B's."""
    room_a, room_b = (high - low + 1 for low, high in ranges)
    wanted = [max(1, min(n, ENOUGH)) for n in blocks]
    best = (0.0, 0, 0, 0)
    for count_b in range(1, max(1, min(blocks[1], room_b, exponents)) + 1):
        count_a = max(1, min(blocks[0], exponents // count_b, 1 + (room_a - 1) // count_b))
        share = min(1.0, count_a / wanted[0], count_b / wanted[1])
        best = max(best, (share, count_a * count_b, count_b, count_a))
    return best[2], best[3]


def _numbered(grid: tuple[int, int], count: int) -> Exponents:
    """Numbers 0 … count - 1 of the blocks of a grid: row by row where they suffice, else so that neighbours differ."""
    rows, columns = grid
    stride = columns if rows * columns <= count else golden_step(count)
    return (np.arange(rows)[:, None] * stride + np.arange(columns)[None, :]) % count
