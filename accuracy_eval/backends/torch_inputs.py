"""The input generator on a device, by int64 torch operations: the same bits as `inputs.generate`, without a copy from the host.

A 32 × 32 → 64 bit product wraps in int64 to the right 64 bits; the arithmetic shift that takes its upper half is masked afterwards.
Up to 16 bits a value is a gather from the table of codes that the host uses, so no device conversion takes part. Wider values are
float64 sums and products, each exact or rounded once, and one conversion to float32: IEEE operations every device has right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.formats import Format, get_format
from accuracy_eval.inputs import INPUT_CLASSES, StreamKey, ValueRule, stream_key
from accuracy_eval.inputs.philox import MASK32, MULTIPLIERS, ROUNDS, STREAM_64, STREAM_SELECTION, WEYL
from accuracy_eval.inputs.rules import code_tables, stream_of
from accuracy_eval.inputs.tables import INTEGERS_TOP, source_table

CHUNK = 1 << 24  # elements at a time: the working set is about 0.6 GB, and the launches no longer count
FORMATS = (
    "float64", "float32", "float16", "bfloat16",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8", "uint8",
)  # fmt: skip


def supports(input_class: str, fmt: str | Format) -> bool:
    """Whether `generate` makes this class in this format: classes that are value rules, formats that torch has."""
    row = INPUT_CLASSES.get(input_class)
    return row is not None and row.rule is not None and get_format(fmt).name in FORMATS


def generate(torch: Any, device: Any, op: str, operand: str, shape: Sequence[int], input_class: str, seed: int, fmt: str | Format) -> Any:
    """The operand as a contiguous tensor of the format's torch dtype on `device`: the bits of `inputs.generate`.

    UnsupportedCase where `supports` says no. Memory beyond the result: about 0.6 GB, whatever the size.
    """
    f = get_format(fmt)
    if not supports(input_class, f):
        raise UnsupportedCase(f"inputs of class {input_class!r} in {f.name} are not made on a device; make them with inputs.generate")
    rule = INPUT_CLASSES[input_class].rule
    assert rule is not None
    dims = tuple(int(s) for s in shape)
    maker = _Maker(torch, device, stream_key(op, operand, dims, input_class, seed), dims, f, rule)
    with torch.no_grad():
        return maker.make().reshape(dims)


class _Maker:
    """One operand being made; the steps mirror `inputs.draw`."""

    def __init__(self, torch: Any, device: Any, key: StreamKey, shape: tuple[int, ...], fmt: Format, rule: ValueRule) -> None:
        self.torch, self.device, self.key, self.fmt, self.rule = torch, device, key, fmt, rule
        self.size = math.prod(shape)
        self.row_size = max(1, math.prod(shape[1:]))
        self.stream = stream_of(fmt)
        self.source = self.constant(source_table(rule.source)) if fmt.bits > 16 else None
        variants = rule.variants() if rule.variants is not None else np.zeros(1, np.uint8)
        self.variant_table = self.constant(variants.astype(np.int64))

    def constant(self, array: Any) -> Any:
        return self.torch.from_numpy(np.array(array)).to(self.device)

    def make(self) -> Any:
        dtype = getattr(self.torch, self.fmt.name)
        out = self.torch.empty(self.size, dtype=dtype, device=self.device)
        if not self.size:
            return out
        factors = self.factors()
        narrow = self.fmt.bits <= 16
        if narrow:
            tables = (code_tables.__wrapped__ if self.rule.absmax else code_tables)(self.rule, self.fmt.name, factors)
            signed = self.constant(tables.reshape(-1).view(f"<i{self.fmt.storage.itemsize}"))
            raw = out.view(signed.dtype)
        else:
            scale = self.constant(np.array(factors))
        for first in range(0, self.size, CHUNK):
            count = min(CHUNK, self.size - first)
            if narrow:
                raw[first : first + count] = self.torch.take(signed, self.indices(first, count))
            else:
                out[first : first + count] = self.values(scale, first, count)
        return out

    def factors(self) -> tuple[float, ...]:
        if not self.rule.absmax:
            return self.rule.factors_of(self.fmt)
        largest = 0.0
        for first in range(0, self.size, CHUNK):
            count = min(CHUNK, self.size - first)
            if self.fmt.bits <= 16:
                u, x = self.words16(self.stream, first, count), source_table(self.rule.source)
                largest = max(largest, float(x[int(u.max())]), -float(x[int(u.min())]))
            else:
                largest = max(largest, float(self.source_values(first, count).abs().max()))
        return (1.0 / largest,)  # divided on the host

    # words

    def blocks(self, stream: int, first: int, count: int) -> Any:
        """Philox blocks first … first + count - 1 as int32 [count, 4]."""
        torch = self.torch
        m0, m1 = MULTIPLIERS
        k0, k1 = self.key.seed, self.key.h0
        # words that are still the same for every block stay Python integers: the same expressions serve both
        c0: Any = torch.arange(first, first + count, dtype=torch.int64, device=self.device)
        c1: Any = stream
        c2: Any = self.key.h1
        c3: Any = self.key.h2
        for _ in range(ROUNDS):
            p0, p1 = c0 * m0, c2 * m1
            c0, c1 = ((p1 >> 32) ^ (c1 ^ k0)) & MASK32, p1 & MASK32
            c2, c3 = ((p0 >> 32) ^ (c3 ^ k1)) & MASK32, p0 & MASK32
            k0, k1 = (k0 + WEYL[0]) & MASK32, (k1 + WEYL[1]) & MASK32
        out = torch.empty((count, 4), dtype=torch.int32, device=self.device)
        for i, word in enumerate((c0, c1, c2, c3)):
            out[:, i] = word
        return out

    def words16(self, stream: int, first: int, count: int) -> Any:
        """u16 words as int64."""
        words = self.blocks(stream, first // 8, -(-count // 8)).view(self.torch.int16).reshape(-1)[:count]
        return words.to(self.torch.int64).bitwise_and_(0xFFFF)

    def variants(self, first: int, count: int) -> Any:
        if self.rule.by == "row":
            position = self.torch.arange(first, first + count, dtype=self.torch.int64, device=self.device)
            return (position // self.row_size) % len(self.rule.factors_of(self.fmt))
        return self.torch.take(self.variant_table, self.words16(STREAM_SELECTION, first, count))

    def indices(self, first: int, count: int) -> Any:
        """Place in the flat code tables of each element."""
        u = self.words16(self.stream, first, count)
        return u.add_(self.variants(first, count) << 16) if self.rule.by else u

    # values of wide formats

    def values(self, scale: Any, first: int, count: int) -> Any:
        x = self.source_values(first, count)
        if self.rule.plain:
            return x
        factor = self.torch.take(scale, self.variants(first, count)) if self.rule.by else scale[0]
        y = x.to(self.torch.float64) * factor + 0.0
        if self.rule.relu:
            y = self.torch.where(y > 0, y, self.torch.zeros_like(y))
        return y if self.stream == STREAM_64 else y.to(self.torch.float32)

    def source_values(self, first: int, count: int) -> Any:
        """x as float32 or float64: float64 sums of exact terms."""
        torch, double = self.torch, self.stream == STREAM_64
        per_block = 2 if double else 4
        blocks = self.blocks(self.stream, first // per_block, -(-count // per_block)).reshape(-1)
        if double:
            w, width = blocks.view(torch.int64)[:count], 64
        else:
            w, width = blocks[:count].to(torch.int64).bitwise_and_(MASK32), 32
        if self.rule.source == "integers":
            top = (w >> (width - 32)) & MASK32
            x = ((top * (2 * INTEGERS_TOP + 1)) >> 32).to(torch.float64) - INTEGERS_TOP
        elif self.rule.source == "uniform":
            kept = 53 if double else 24
            v = (w >> (width - kept)) & ((1 << kept) - 1)
            x = (2 * v + (1 - (1 << kept))).to(torch.float64) * 2.0**-kept
        else:
            kept = width - 16
            rest = 2 * ((w >> 16) & ((1 << kept) - 1)) + (1 - (1 << kept))
            x = torch.take(self.source, w & 0xFFFF).add_(rest.to(torch.float64) * 2.0 ** -(kept + 16))
        return x if double else x.to(torch.float32)
