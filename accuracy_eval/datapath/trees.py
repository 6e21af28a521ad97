"""The order in which a product adds its terms, read from its results alone (the method of FPRev, Xie et al. 2024).

A row holds M at i, −M at j and 1 everywhere else, against ones, with M so large that a sum holding it loses every 1. What is left
counts the terms added after M and −M met: k minus the leaves under the lowest common ancestor of i and j. Rows are independent, so
one product of m rows answers m pairs, and a tree of k leaves needs about k·depth pairs, not all k²/2.

The product keeps the shape it is asked at: libraries choose another kernel, and another tree, for another shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Format, decode, encode, get_format

Matmul = Callable[[Codes, Codes], Codes]
Nested = int | tuple["Nested", ...]

# log2 of M and of the unit: k units together must be lost beside M. Other formats hold 2^60 and 1
LARGE = {"float64": (120, 0), "float16": (15, -24), "float8_e4m3fn": (8, -9), "float8_e4m3fnuz": (7, -10), "float8_e5m2": (15, -16),
         "float8_e5m2fnuz": (15, -17)}  # fmt: skip


@dataclass(frozen=True)
class SummationTree:
    """parents of the leaves 0 … k − 1 (the k's of the contraction) and of the inner nodes k, k + 1, …; −1 for the root.

    An inner node of two children is an addition, one of more a fused block; a chain that starts from 0 has one node less.
    uniform  whether every element of the product answered the same (8-bit operands: not looked at)
    """

    k: int
    parents: tuple[int, ...]
    uniform: bool = True

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Children of every inner node, in the order of the first leaf below each."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found.setdefault(parent, []).append(node)
        return {node: tuple(sorted(below, key=self.first.__getitem__)) for node, below in found.items()}

    @cached_property
    def first(self) -> dict[int, int]:
        """The smallest leaf under every node."""
        found = {leaf: leaf for leaf in range(self.k)}
        for leaf in range(self.k):
            node = self.parents[leaf]
            while node >= 0 and node not in found:
                found[node] = leaf
                node = self.parents[node]
        return found

    @property
    def root(self) -> int:
        return self.parents.index(-1)

    def nested(self) -> Nested:
        """As nested tuples: ((0, 1), 2) adds 0 and 1 first; a fused block is one tuple of several."""
        made: dict[int, Nested] = {leaf: leaf for leaf in range(self.k)}
        for node in self._upwards():
            made[node] = tuple(made[child] for child in self.children[node])
        return made[self.root]

    def _upwards(self) -> list[int]:
        """Inner nodes, children before parents."""
        order, stack = [], [self.root]
        while stack:
            node = stack.pop()
            if node in self.children:
                order.append(node)
                stack += self.children[node]
        return order[::-1]


def summation_tree(matmul: Matmul, fmt: str | Format, out: str | Format, k: int, *, m: int = 256, n: int = 16) -> SummationTree:
    """The tree of an m×n×k product of a device (`matmul`: codes a [m, k], b [n, k] → codes of D [m, n] in format `out`).

    UsageError where the output cannot count to k, and where the answers are no tree's.
    """
    f, o = get_format(fmt), get_format(out)
    if k > 2 << o.fraction_bits:
        raise UsageError(
            f"a summation tree of {k} products: {o.name} counts to {2 << o.fraction_bits}; ask for a wider output or a smaller k"
        )
    asker = _Asker(matmul, f, o, k, m, n)
    parents: dict[int, int] = {}
    nodes = k
    # leaves below `parent`, whose own size is `size`: one subtree, or several children of a fused block
    tasks: list[tuple[NDArray[np.int64], int, int]] = [(np.arange(k), -1, 0)]
    while tasks:
        asked = [(leaves[0], j) for leaves, _, _ in tasks for j in leaves[1:]]
        sizes = asker.sizes(np.array(asked, np.int64).reshape(-1, 2))
        following: list[tuple[NDArray[np.int64], int, int]] = []
        at = 0
        for leaves, parent, size in tasks:
            here = sizes[at : at + len(leaves) - 1]
            at += len(leaves) - 1
            siblings = here == size
            if siblings.any():
                following.append((leaves[1:][siblings], parent, size))
            node = int(leaves[0])
            for step in np.unique(here[~siblings]):
                parents[node] = nodes
                following.append((leaves[1:][here == step], nodes, int(step)))
                node, nodes = nodes, nodes + 1
            parents[node] = parent
        tasks = following
    return SummationTree(k, tuple(parents[i] for i in range(nodes)), asker.uniform)


class _Asker:
    """Pairs of k in, leaves under their lowest common ancestor out."""

    def __init__(self, matmul: Matmul, fmt: Format, out: Format, k: int, m: int, n: int) -> None:
        self.matmul, self.fmt, self.out, self.k = matmul, fmt, out, k
        large, unit = LARGE.get(fmt.name, (60, 0))
        self.twice = fmt.bits <= 8  # 8 bits hold half the ratio that is needed: both operands carry the question
        self.unit = 2.0 ** (2 * unit if self.twice else unit)
        self.large, self.minus, self.small, self.one = encode(np.array([2.0**large, -(2.0**large), 2.0**unit, 1.0]), fmt)
        self.by_rows = m >= n  # the longer side carries the questions
        self.sides = max(m, n), min(m, n)
        self.capacity = self.sides[1 if self.twice else 0]
        self.uniform = True

    def sizes(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leaves under the lowest common ancestor of each pair [p, 2]."""
        found = [self._ask(pairs[first : first + self.capacity]) for first in range(0, len(pairs), self.capacity)]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _operand(self, rows: int, asked: NDArray[np.int64], fill: Codes, first: Codes, second: Codes) -> Codes:
        codes = np.full((rows, self.k), fill, self.fmt.storage)
        at = np.arange(len(asked))
        codes[at, asked[:, 0]], codes[at, asked[:, 1]] = first, second
        return codes

    def _ask(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        asked = np.resize(pairs, (self.capacity, 2))
        long = self._operand(self.sides[0], asked, self.small, self.large, self.minus)
        short = self._operand(self.sides[1], asked if self.twice else asked[:0], *(
            (self.small, self.large, self.large) if self.twice else (self.one,) * 3))  # fmt: skip
        d = self.matmul(long, short) if self.by_rows else self.matmul(short, long).T
        left = decode(np.ascontiguousarray(d), self.out) / self.unit
        if self.twice:
            left = np.diagonal(left)[:, None]
        self.uniform &= bool((left == left[:, :1]).all())
        sizes = self.k - left[: len(pairs), 0]
        wrong = ~(np.isfinite(sizes) & (sizes == np.floor(sizes)) & (sizes >= 2) & (sizes <= self.k))
        if wrong.any():
            i = int(np.argmax(wrong))
            raise UsageError(f"the pair {pairs[i].tolist()} left {left[i, 0]:g} of {self.k} units: no tree of additions does that")
        counted: NDArray[np.int64] = sizes.astype(np.int64)
        return counted
