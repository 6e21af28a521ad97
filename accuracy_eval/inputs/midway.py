"""Operands whose every element lies midway between two neighbours of the format it is rounded to, or one step of its own beside that.

Random numbers are hardly ever midway: which way a tie goes does not show in them, nor what a rounding before the last leaves. Here both
do, in every binade and among subnormals. For a quantiser elements are multiplied by a power of two that scale rules find again: the last
element of each block is the largest code times that.

Bits. A u32 word of the stream `OP/x/SHAPE/midway` an element: bit 0 is the sign; bits 1 and 2 say midway (0, 1), one step of the source
above (2) or below (3); the others, times the number of pairs of neighbours, divided by 2^29, are the pair, counted from the smallest.
Powers of two: bits 0 and 1 of a word of `OP/scale/SHAPE/midway` a block, the exponent less.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Values, decode, encode, get_format, ulp
from accuracy_eval.inputs.philox import STREAM_32, stream_key, words

INPUT_CLASS = "midway"
UE4M3_MAX = 448.0


def midway(op: str, shape: tuple[int, ...], source: str, target: str, seed: int) -> Codes:
    """Codes of `source`, which has more fraction bits than `target`: beside every number of `target` that it reaches, also the largest."""
    wide, narrow = get_format(source), get_format(target)
    first = 0 if wide.smallest_subnormal < narrow.smallest_subnormal else int(encode(wide.smallest_normal, narrow))
    last = narrow.max_code if narrow.max * (1 + narrow.eps) < wide.max else int(encode(wide.max / 2, narrow))
    return _codes(op, shape, wide, narrow, (first, last + 1), np.ones(shape), seed)


def midway_blocks(
    op: str, shape: tuple[int, int], source: str, target: Format, largest: float, block: tuple[int, int], seed: int, *, two_levels: bool
) -> Codes:
    """The same for blocks with a scale each; largest: the code value their amax is mapped to.

    block       rows × elements, 0 for the whole extent, as of a recipe
    two_levels  the first block has the largest scale of UE4M3, so that the scale of all is 1
    """
    high, wide = (extent or max(size, 1) for extent, size in zip(block, shape, strict=True))
    grid = -(-shape[0] // high), -(-shape[1] // wide)
    exponent = words(stream_key(op, "scale", grid, INPUT_CLASS, seed), STREAM_32, 0, math.prod(grid)).reshape(grid) & np.uint32(3)
    scale = np.exp2(-exponent.astype(np.float64))
    if two_levels and scale.size:
        scale[0, 0] = UE4M3_MAX
    down, across = np.arange(shape[0]), np.arange(shape[1])
    factor = scale[np.ix_(down // high, across // wide)]
    codes = _codes(op, shape, get_format(source), target, (0, int(encode(largest, target))), factor, seed)
    codes[np.ix_(_ends(down, high), _ends(across, wide))] = encode(largest * scale, source)
    return codes


def _ends(index: NDArray[np.int64], extent: int) -> NDArray[np.int64]:
    """The last index of each block."""
    return np.asarray(index[(index % extent == extent - 1) | (index == len(index) - 1)])


def _codes(
    op: str, shape: tuple[int, ...], source: Format, target: Format, pairs: tuple[int, int], factor: Values, seed: int
) -> Codes:  # fmt: skip
    """pairs: the codes of `target`, first and end, above which the elements lie."""
    word = words(stream_key(op, "x", shape, INPUT_CLASS, seed), STREAM_32, 0, math.prod(shape)).astype(np.uint64).reshape(shape)
    first, end = (np.uint64(code) for code in pairs)
    below = decode((((word >> np.uint64(3)) * (end - first) >> np.uint64(29)) + first).astype(target.storage), target)
    beside = np.array([0, 0, 1, -1])[(word >> np.uint64(1)) & np.uint64(3)]
    codes = (encode((below + ulp(below, target) / 2) * factor, source).astype(np.int64) + beside).astype(source.storage)
    return np.asarray(np.where(word & np.uint64(1), codes | source.storage.type(source.sign_mask), codes))
