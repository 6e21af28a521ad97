"""Inside kernels: float64 numbers and their bits, and the values of codes of the wide formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from accuracy_eval.jit import inline, kernel


@inline
def bits(x: Any) -> Any:
    return np.float64(x).view(np.int64)


@inline
def from_bits(i: Any) -> Any:
    return np.int64(i).view(np.float64)


@inline
def exponent(x: Any) -> Any:
    """floor(log2|x|) of a normal float64; -1023 for zero and subnormals."""
    return ((bits(x) >> 52) & 0x7FF) - 1023


@kernel
def scaled(x: float, k: int) -> Any:
    """x·2^k without an intermediate overflow."""
    while k > 1000:
        x *= 2.0**1000
        k -= 1000
    while k < -1000:
        x *= 2.0**-1000
        k += 1000
    return x * from_bits((k + 1023) << 52)


@inline
def bf16_value(h: Any) -> Any:
    return np.float64(np.uint32(h << 16).view(np.float32))


@inline
def fp16_value(h: Any) -> Any:
    m = h & 0x7FFF
    # rebias by 112; an all-ones exponent takes another 112 to float32's all-ones
    wide = (m << 13) + ((112 << 23) if m < 0x7C00 else (224 << 23))
    v = np.float64(np.uint32(wide).view(np.float32))
    v = v if m >= 0x400 else np.float64(m) * 2.0**-24
    return v if h == m else -v


@inline
def fp32_value(h: Any) -> Any:
    return np.float64(np.uint32(h).view(np.float32))


@inline
def signed(h: Any, mask: int) -> Any:
    """Place of a sign-magnitude code on the number line."""
    m = h & mask
    return m if h == m else -m
