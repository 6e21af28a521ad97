"""The compiled forms of the generator. Same bits as the numpy forms; imported only where one of them is called."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.jit import inline, kernel

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@inline
def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    for _ in range(10):
        p0 = c0 * _M0
        p1 = c2 * _M1
        c0 = (p1 >> _32) ^ c1 ^ k0
        c1 = p1 & _LOW
        c2 = (p0 >> _32) ^ c3 ^ k1
        c3 = p0 & _LOW
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@kernel
def philox_words(out: NDArray[np.uint32], first: Any, stream: Any, h1: Any, h2: Any, k0: Any, k1: Any) -> None:
    """Fill out [4·n] with blocks first … first + n - 1. LLVM runs several blocks side by side: 4 to 9 GB/s a core."""
    for i in range(out.size // 4):
        a, b, c, d = _philox(np.uint64(first + i) & _LOW, stream, h1, h2, k0, k1)
        out[4 * i] = np.uint32(a)
        out[4 * i + 1] = np.uint32(b)
        out[4 * i + 2] = np.uint32(c)
        out[4 * i + 3] = np.uint32(d)


@kernel
def gather(out: NDArray[Any], table: NDArray[Any], index: NDArray[np.uint16]) -> None:
    """out[i] = table[index[i]]; table has 65,536 codes."""
    for i in range(out.size):
        out[i] = table[index[i]]


@kernel
def gather_variant(out: NDArray[Any], tables: NDArray[Any], variant: NDArray[np.uint8], index: NDArray[np.uint16]) -> None:
    """out[i] = tables[variant[i], index[i]]; tables [variants, 65536]."""
    for i in range(out.size):
        out[i] = tables[variant[i], index[i]]


@kernel
def normal32(out: NDArray[np.float32], table: NDArray[np.int32], words: NDArray[np.uint32]) -> None:
    """float32 normals: table entry · 2^-20 + (2r + 1 - 2^16) · 2^-32, exact in float64, rounded once."""
    low, half = np.uint32(0xFFFF), np.uint32(16)
    for i in range(out.size):
        grid = (np.int64(table[words[i] & low]) << np.int64(12)) + np.int64(2) * np.int64(words[i] >> half) - np.int64(65535)
        out[i] = np.float32(np.float64(grid) * 2.0**-32)


@kernel
def normal64(out: NDArray[np.float64], table: NDArray[np.int32], words: NDArray[np.uint64]) -> None:
    """float64 normals: RNE64(table entry · 2^-20 + (2r + 1 - 2^48) · 2^-64); both terms are exact."""
    low, half = np.uint64(0xFFFF), np.uint64(16)
    for i in range(out.size):
        rest = np.int64(2) * np.int64(words[i] >> half) - np.int64((1 << 48) - 1)
        out[i] = np.float64(table[words[i] & low]) * 2.0**-20 + np.float64(rest) * 2.0**-64


@kernel
def uniform32(out: NDArray[np.float32], words: NDArray[np.uint32]) -> None:
    """float32 uniforms (2v + 1 - 2^24) / 2^24, v the upper 24 bits: exact."""
    for i in range(out.size):
        out[i] = np.float32(np.int64(2) * np.int64(words[i] >> np.uint32(8)) - np.int64((1 << 24) - 1)) * np.float32(2.0**-24)


@kernel
def uniform64(out: NDArray[np.float64], words: NDArray[np.uint64]) -> None:
    """float64 uniforms (2v + 1 - 2^53) / 2^53, v the upper 53 bits: exact."""
    for i in range(out.size):
        out[i] = np.float64(np.int64(2) * np.int64(words[i] >> np.uint64(11)) - np.int64((1 << 53) - 1)) * 2.0**-53


@kernel
def combine_rows(total: NDArray[np.uint64], matrix: NDArray[Any], weights: NDArray[np.uint64]) -> None:
    """total[k] += sum over j of matrix[j, k] · weights[j] mod 2^64; matrix [rows, cols] of small signed integers."""
    for j in range(matrix.shape[0]):
        w = weights[j]
        for k in range(matrix.shape[1]):
            total[k] += np.uint64(np.int64(matrix[j, k])) * w


@kernel
def row_products(out: NDArray[np.uint64], matrix: NDArray[Any], weights: NDArray[np.uint64]) -> None:
    """out[i] = sum over k of matrix[i, k] · weights[k] mod 2^64; matrix [rows, cols] of signed integers."""
    for i in range(matrix.shape[0]):
        s = np.uint64(0)
        for k in range(matrix.shape[1]):
            s += np.uint64(np.int64(matrix[i, k])) * weights[k]
        out[i] = s


@kernel
def add_sparse(sums: NDArray[Any], x: NDArray[np.int8], packed: NDArray[Any], block: NDArray[np.int64]) -> None:
    """sums[i, block[c]·w + t] += sum over c of x[i, c] · packed[c, t], skipping zeros of x; packed [s, w]."""
    width = packed.shape[1]
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            factor = x[i, c]
            if factor != 0:
                target, source = sums[i, block[c] * width : (block[c] + 1) * width], packed[c]
                for t in range(width):
                    target[t] += factor * source[t]
