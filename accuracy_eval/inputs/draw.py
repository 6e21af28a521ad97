"""One operand being made: its stream in pieces, value rules applied piece by piece, the same bits for any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Values
from accuracy_eval.inputs.philox import STREAM_64, STREAM_SELECTION, StreamKey, words
from accuracy_eval.inputs.rules import ValueRule, code_tables, finish, stream_of, transform
from accuracy_eval.inputs.tables import INTEGERS_TOP, normal_table, source_table
from accuracy_eval.threads import map_threads

PIECE = 1 << 17  # elements per piece, a multiple of 8: words, indices and codes of a piece stay in the L2 cache


@dataclass(frozen=True)
class Draw:
    """What a class needs to make an operand.

    key, shape, fmt, operand   the stream and what is made of it
    axes                       names of the axes, () where unknown
    domain                     for class wide
    compiled                   whether numba forms may run
    """

    key: StreamKey
    shape: tuple[int, ...]
    fmt: Format
    operand: str
    axes: tuple[str, ...]
    domain: tuple[float, float] | None
    compiled: bool

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def row_size(self) -> int:
        """Elements of one row; rows run along the leading axis. A scalar is one row."""
        return max(1, math.prod(self.shape[1:]))

    @property
    def stream(self) -> int:
        return stream_of(self.fmt)

    def words(self, first: int, count: int) -> NDArray[Any]:
        """The operand's own words: u16, u32 or u64 by format, one an element."""
        return words(self.key, self.stream, first, count, compiled=self.compiled)

    def selection(self, first: int, count: int) -> NDArray[np.uint16]:
        """The u16 that choose elements, one an element."""
        return words(self.key, STREAM_SELECTION, first, count, compiled=self.compiled)

    def pieces(self) -> list[tuple[int, int]]:
        """(first, count) of the fixed pieces of the flat operand."""
        return [(i, min(PIECE, self.size - i)) for i in range(0, self.size, PIECE)]

    def fill(self, piece: Callable[[int, int], Codes]) -> Codes:
        """Codes in the operand's shape, from a function that makes those of (first, count)."""
        out = np.empty(self.size, self.fmt.storage)

        def one(place: tuple[int, int]) -> None:
            first, count = place
            out[first : first + count] = piece(first, count)

        map_threads(one, self.pieces())
        return out.reshape(self.shape)

    def valued(self, rule: ValueRule) -> Codes:
        """The operand under a value rule."""
        if not self.size:
            return np.empty(self.shape, self.fmt.storage)
        factors = self._factors(rule)
        if self.fmt.bits <= 16:
            # one with its own factor is made for this operand alone: kept out of the cache of tables
            make = code_tables.__wrapped__ if rule.absmax else code_tables
            tables = make(rule, self.fmt.name, factors)
            return self.fill(lambda first, count: self._gathered(rule, tables, first, count))
        if self.fmt.kind == "int" and rule.int_scale == "full":
            return self.fill(self.words)
        return self.fill(lambda first, count: self._computed(rule, np.array(factors), first, count))

    def _factors(self, rule: ValueRule) -> tuple[float, ...]:
        if not rule.absmax:
            return rule.factors_of(self.fmt)
        return (1.0 / max(map_threads(lambda place: self._largest(rule, *place), self.pieces())),)

    def _largest(self, rule: ValueRule, first: int, count: int) -> float:
        """max|x| of a piece."""
        if self.fmt.bits > 16:
            return float(np.abs(self._source(rule, first, count)).max())
        u = self.words(first, count)
        x = source_table(rule.source)  # ascending: the extremes are those of the words
        return float(max(x[u.max()], -x[u.min()]))

    def _variants(self, rule: ValueRule, first: int, count: int) -> NDArray[np.uint8]:
        if rule.by == "row":
            top, last = first // self.row_size, (first + count - 1) // self.row_size
            lengths = np.full(last - top + 1, self.row_size)
            lengths[-1] -= (last + 1) * self.row_size - (first + count)
            lengths[0] -= first - top * self.row_size
            return np.repeat((np.arange(top, last + 1) % len(rule.factors_of(self.fmt))).astype(np.uint8), lengths)
        assert rule.variants is not None
        chosen: NDArray[np.uint8] = rule.variants()[self.selection(first, count)]
        return chosen

    def _gathered(self, rule: ValueRule, tables: Codes, first: int, count: int) -> Codes:
        u = self.words(first, count)
        variant = self._variants(rule, first, count) if rule.by else None
        if not self.compiled:
            codes: Codes = tables[0][u] if variant is None else tables[variant, u]
            return codes
        from accuracy_eval.inputs import kernels

        out = np.empty(count, self.fmt.storage)
        if variant is None:
            kernels.gather(out, tables[0], u)
        else:
            kernels.gather_variant(out, tables, variant, u)
        return out

    def _computed(self, rule: ValueRule, factors: Values, first: int, count: int) -> Codes:
        x = self._source(rule, first, count)
        if rule.plain and x.dtype.itemsize == self.fmt.storage.itemsize and self.fmt.bits in (32, 64) and self.fmt.kind == "float":
            return x.view(self.fmt.storage)
        factor = factors[self._variants(rule, first, count)] if rule.by else factors[0]
        return finish(transform(x.astype(np.float64), factor, rule), rule, self.fmt)

    def _source(self, rule: ValueRule, first: int, count: int) -> NDArray[Any]:
        """x of a piece: float32 values from u32 words, float64 from u64."""
        w = self.words(first, count)
        double = self.stream == STREAM_64
        if rule.source == "integers":
            top = (w >> np.uint64(32)) if double else w.astype(np.uint64)
            scaled = (top * np.uint64(2 * INTEGERS_TOP + 1)) >> np.uint64(32)
            return (scaled.astype(np.int64) - INTEGERS_TOP).astype(np.float64 if double else np.float32)
        if self.compiled:
            return self._source_compiled(rule, w, double)
        if rule.source == "uniform":
            return uniform64(w) if double else uniform32(w)
        return normal64(w) if double else normal32(w)

    def _source_compiled(self, rule: ValueRule, w: NDArray[Any], double: bool) -> NDArray[Any]:
        from accuracy_eval.inputs import kernels

        out: NDArray[Any] = np.empty(w.size, np.float64 if double else np.float32)
        if rule.source == "uniform":
            (kernels.uniform64 if double else kernels.uniform32)(out, w)
        else:
            (kernels.normal64 if double else kernels.normal32)(out, normal_table(), w)
        return out


def normal32(w: NDArray[np.uint32]) -> NDArray[Any]:
    """float32 normals of u32 words: q[low half] · 2^-20 + (2 · high half + 1 - 2^16) · 2^-32, exact in float64, rounded once."""
    grid = (normal_table()[w & np.uint32(0xFFFF)].astype(np.int64) << 12) + 2 * (w >> np.uint32(16)).astype(np.int64) - 65535
    values: NDArray[Any] = (grid * 2.0**-32).astype(np.float32)
    return values


def normal64(w: NDArray[np.uint64]) -> NDArray[Any]:
    """float64 normals of u64 words: RNE64(q[low 16] · 2^-20 + (2 · upper 48 + 1 - 2^48) · 2^-64); both terms are exact."""
    rest = 2 * (w >> np.uint64(16)).astype(np.int64) - ((1 << 48) - 1)
    values: NDArray[Any] = normal_table()[w & np.uint64(0xFFFF)] * 2.0**-20 + rest * 2.0**-64
    return values


def uniform32(w: NDArray[np.uint32]) -> NDArray[Any]:
    """float32 uniforms of u32 words: (2v + 1 - 2^24) / 2^24, v the upper 24 bits; exact."""
    return ((2 * (w >> np.uint32(8)).astype(np.int64) - ((1 << 24) - 1)) * 2.0**-24).astype(np.float32)


def uniform64(w: NDArray[np.uint64]) -> NDArray[Any]:
    """float64 uniforms of u64 words: (2v + 1 - 2^53) / 2^53, v the upper 53 bits; exact."""
    values: NDArray[Any] = (2 * (w >> np.uint64(11)).astype(np.int64) - ((1 << 53) - 1)) * 2.0**-53
    return values
