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

    def outline(self) -> str:
        """The tree in words: `64 in order, 16 at a time`, `3 pieces of (1408 in order, 16 at a time) added in order`."""
        if self.k == 1:
            return "one product"
        found: dict[int, _Shape] = {leaf: _Shape(1, "1", (leaf,)) for leaf in range(self.k)}
        for node in self._upwards():
            if node == self.root or self.children[self.parents[node]][0] != node:  # a spine is described from its top
                found[node] = self._describe(node, found)
        return found[self.root].text

    def _describe(self, node: int, found: dict[int, _Shape]) -> _Shape:
        """The spine from a node down to its first leaf, in the order in which things were added to it."""
        steps: list[list[_Shape]] = []
        while node in self.children:
            steps.append([found[child] for child in self.children[node][1:]])
            node = self.children[node][0]
        steps.reverse()
        whole = sorted(leaf for leaf in (node, *(leaf for step in steps for shape in step for leaf in shape.leaves)))
        alone = next((i for i, step in enumerate(steps) if any(shape.size > 1 for shape in step)), len(steps))
        first = [node, *(shape.leaves[0] for step in steps[:alone] for shape in step)]
        text = _chain([len(step) for step in steps[:alone]]) + _spacing(first)
        if alone < len(steps):
            text = _joined(_Shape(len(first), text, tuple(first)), steps[alone:])
        return _Shape(len(whole), text, tuple(whole))

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


@dataclass(frozen=True)
class _Shape:
    """A described subtree."""

    size: int
    text: str
    leaves: tuple[int, ...]


def _chain(added: list[int]) -> str:
    """Leaves added step by step, the first leaf with the first step."""
    if not added:
        return "1"
    sizes = [added[0] + 1, *added[1:]]
    if set(sizes[1:]) <= {1} and sizes[0] == 2:
        return f"{sum(sizes)} in order"
    if len(sizes) == 1:
        return f"{sizes[0]} at once"
    body, last = set(sizes[:-1]), sizes[-1]
    if len(body) == 1 and last <= sizes[0]:
        return f"{sum(sizes)} in order, {sizes[0]} at a time"
    return f"{sum(sizes)} in order, {'+'.join(map(str, sizes))} at a time"


def _spacing(leaves: list[int]) -> str:
    """How the leaves of one chain lie: nothing for neighbours in increasing k."""
    steps = np.diff(leaves)
    if (steps == 1).all():
        return ""
    if len(steps) > 1 and (steps == steps[0]).all():
        return f", every {steps[0]}th k" if steps[0] > 0 else f", every {-steps[0]}th k downwards"
    runs = np.flatnonzero(steps != 1)
    widths = set(np.diff([-1, *runs, len(steps)])[:-1].tolist())
    if len(widths) == 1 and len(set(steps[runs].tolist())) == 1:
        return f", {widths.pop()} of every {int(steps[runs[0]]) + int(runs[0])} k"
    return ", in another order of k"


def _joined(first: _Shape, steps: list[list[_Shape]]) -> str:
    """Subtrees added to a first one: pieces in order, a tree of neighbours, or a list."""
    if all(len(step) == 1 for step in steps):
        parts = [first, *(step[0] for step in steps)]
        sums = [sum(p.size for p in parts[:i]) for i in range(1, len(parts))]
        if len(parts) > 2 and sums == [p.size for p in parts[1:]]:
            return f"{1 << len(steps)} times ({first.text}), in pairs and pairs of pairs" if _doubled(parts) else _list(parts)
        if len({p.text for p in parts[:-1]}) == 1:
            last = "" if parts[-1].text == first.text else f", the last ({parts[-1].text})"
            return f"{len(parts)} pieces of ({first.text}){last}, added in order"
        return _list(parts)
    return " + ".join([f"({first.text})", *(f"[{' & '.join(shape.text for shape in step)}]" for step in steps)])


def _doubled(parts: list[_Shape]) -> bool:
    """Whether each further part is a tree of as many of the first as came before it."""
    expected = parts[0].text
    for count, part in enumerate(parts[1:]):
        if part.text != (expected if count == 0 else f"2 pieces of ({parts[0].text}), added in order" if count == 1 else
                         f"{1 << count} times ({parts[0].text}), in pairs and pairs of pairs"):  # fmt: skip
            return False
    return True


def _list(parts: list[_Shape]) -> str:
    runs: list[tuple[int, str]] = []
    for part in parts:
        if runs and runs[-1][1] == part.text:
            runs[-1] = (runs[-1][0] + 1, part.text)
        else:
            runs.append((1, part.text))
    return " + ".join(f"{count} × ({text})" if count > 1 else f"({text})" for count, text in runs)


class _Asker:
    """Pairs of k in, leaves under their lowest common ancestor out."""

    def __init__(self, matmul: Matmul, fmt: Format, out: Format, k: int, m: int, n: int) -> None:
        self.matmul, self.fmt, self.out, self.k = matmul, fmt, out, k
        self.by_rows = m >= n  # the longer side carries the questions
        self.sides = max(m, n), min(m, n)
        self.uniform = True
        self._set(*LARGE.get(fmt.name, (60, 0)), twice=fmt.bits <= 8)  # 8 bits hold half the ratio that is needed
        if fmt.name == "float16" and not self._counts():  # the unit is subnormal there, which some units take for 0
            self._set(15, -14, twice=True)

    def _set(self, large: int, unit: int, *, twice: bool) -> None:
        """log2 of M and of the unit; twice: both operands carry the question, M² and unit² meet, and only the diagonal is read."""
        self.twice, self.unit = twice, 2.0 ** (2 * unit if twice else unit)
        self.large, self.minus, self.small, self.one = encode(np.array([2.0**large, -(2.0**large), 2.0**unit, 1.0]), self.fmt)
        self.capacity = self.sides[1 if twice else 0]

    def _counts(self) -> bool:
        """Whether k units and nothing else give k."""
        units, ones = (np.full((side, self.k), x, self.fmt.storage) for side, x in zip(self.sides, (self.small, self.one), strict=True))
        d = self.matmul(units, ones) if self.by_rows else self.matmul(ones, units).T
        return bool((decode(np.ascontiguousarray(d), self.out) == self.k * self.unit).all())

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
