"""A second implementation of the generator's stream in Python integers, from the paper and the documented layout alone."""

from __future__ import annotations

import hashlib

MASK = 0xFFFFFFFF

# every operand format, and shapes with odd sizes, one axis and more than one piece of work
OPERAND_FORMATS = (
    "float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int8", "int32", "uint8",
)  # fmt: skip
GOLDEN_SHAPES = ((7,), (33, 130), (3, 5, 27))


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of one counter, in Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def name_words(name: str) -> list[int]:
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return [int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i in range(8)]


def stream_words(name: str, seed: int, stream: int, bits: int, count: int) -> list[int]:
    """The first `count` words of `bits` bits of a stream."""
    h = name_words(name)
    out: list[int] = []
    block = 0
    while len(out) < count:
        whole = sum(w << (32 * i) for i, w in enumerate(philox((block, stream, h[1], h[2]), (seed % 2**32, h[0]))))
        out += [(whole >> (bits * i)) & (2**bits - 1) for i in range(128 // bits)]
        block += 1
    return out[:count]
