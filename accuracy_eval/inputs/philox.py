"""Philox4x32-10, the counter-based generator under every input, in integers only.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. One block is four u32 words made
from a counter of four and a key of two u32 words; any block is reached directly, so pieces of a stream need no order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK32 = 0xFFFFFFFF

STREAM_16 = 0  # operands of formats of at most 16 bits: 8 u16 a block
STREAM_32 = 1  # 4 u32 a block
STREAM_64 = 2  # 2 u64 a block
STREAM_SELECTION = 16  # u16 that choose which elements a class treats differently
WORD_BITS = {STREAM_16: 16, STREAM_32: 32, STREAM_64: 64, STREAM_SELECTION: 16}

NUMPY_BLOCKS = 1 << 13  # blocks per pass of the numpy form: its eight uint64 temporaries stay in the L2 cache


@dataclass(frozen=True)
class StreamKey:
    """What selects a stream: the seed and the first four little-endian u32 words of the name's SHA-256.

    Philox key = (seed, h0); counter = (block, stream, h1, h2). h3 places single elements (class spike).
    """

    seed: int
    h0: int
    h1: int
    h2: int
    h3: int


def stream_key(op: str, operand: str, shape: tuple[int, ...], input_class: str, seed: int) -> StreamKey:
    """The stream of an operand: SHA-256 of the UTF-8 text `op/operand/shape/class`, shape as in "512x256"; seed mod 2^32."""
    name = f"{op}/{operand}/{'x'.join(str(int(s)) for s in shape)}/{input_class}"
    digest = hashlib.sha256(name.encode()).digest()
    h0, h1, h2, h3 = (int.from_bytes(digest[i : i + 4], "little") for i in (0, 4, 8, 12))
    return StreamKey(int(seed) & MASK32, h0, h1, h2, h3)


def blocks(counter: tuple[Any, int, int, int], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 of the counters (counter[0][i], counter[1], counter[2], counter[3]): u32 [len(counter[0]), 4], little-endian."""
    low, shift = np.uint64(MASK32), np.uint64(32)
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    c0 = np.asarray(counter[0], np.uint64) & low
    c1, c2, c3 = (np.full(c0.shape, word, np.uint64) for word in counter[1:])
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * m0, c2 * m1  # both factors are under 2^32: the products are whole
        c0, c1 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low
        c2, c3 = (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + WEYL[0]) & MASK32, (k1 + WEYL[1]) & MASK32
    out = np.empty((*c0.shape, 4), "<u4")
    for i, c in enumerate((c0, c1, c2, c3)):
        out[..., i] = c
    return out


def words(key: StreamKey, stream: int, first: int, count: int, *, compiled: bool = False) -> NDArray[Any]:
    """Words `first` … `first + count - 1` of a stream: u16, u32 or u64 by stream, low half first within each wider word.

    `first` must start a block. compiled=True uses the numba form, which gives the same words.
    """
    bits = WORD_BITS[stream]
    per_block = 128 // bits
    if first % per_block:
        raise ValueError(f"word {first} does not start a block of {per_block}")
    start, number = first // per_block, -(-count // per_block)
    if start + number > 1 << 32:
        raise UsageError(f"stream word {first + count - 1} is beyond the generator's {per_block << 32} words; use fewer elements")
    out = np.empty(4 * number, "<u4")
    if compiled and number:
        from accuracy_eval.inputs import kernels

        kernels.philox_words(out, np.int64(start), *(np.uint64(w) for w in (stream, key.h1, key.h2, key.seed, key.h0)))
    else:
        for i in range(0, number, NUMPY_BLOCKS):
            n = min(NUMPY_BLOCKS, number - i)
            counter = (np.arange(start + i, start + i + n, dtype=np.uint64), stream, key.h1, key.h2)
            out[4 * i : 4 * (i + n)] = blocks(counter, (key.seed, key.h0)).reshape(-1)
    return out.view(f"<u{bits // 8}")[:count]
