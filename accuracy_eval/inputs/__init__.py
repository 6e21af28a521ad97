"""Operands made from integers: the same bits on every host, device and library version, for ever.

The bits below are a contract: golden digests hold them, and a change of any one is a new suite version.

**Stream.** Philox4x32-10; key = (seed mod 2^32, h0), counter = (block, stream, h1, h2), block counting from 0; h0 … h7 are the
little-endian u32 words of SHA-256 over the UTF-8 text `op/operand/shape/class`, shape as "512x256" (a scalar's is empty). The
name holds neither format nor layout. stream is 0 for operands of formats of at most 16 bits (eight u16 a block: each u32 word low
half first), 1 up to 32 bits (one u32 an element), 2 for 64 bits (one u64 an element, first u32 word low) and 16 for the selection
(u16 as in stream 0) of classes that treat some elements differently. Element i of the operand in C order takes word i.

**Sources.** x of a word, float64 unless said otherwise:

    source    u16 (stream 0)              u32 (stream 1), float32               u64 (stream 2)
    normal    q[u] · 2^-20                RNE32(q[u mod 2^16] · 2^-20           RNE64(q[u mod 2^16] · 2^-20
                                            + (2·(u >> 16) + 1 - 2^16)·2^-32)     + (2·(u >> 16) + 1 - 2^48)·2^-64)
    uniform   (2u + 1 - 2^16) / 2^16      (2v + 1 - 2^24)/2^24, v = u >> 8      (2v + 1 - 2^53)/2^53, v = u >> 11
    integers  (17u >> 16) - 8             (17u >> 32) - 8                       (17(u >> 32) >> 32) - 8

q [65536] is the package's normal table, q[u] = round(Φ⁻¹((u + 1/2)/65536) · 2^20).

**Values.** y = RNE64(x · factor) + 0.0; relu replaces y <= 0 by +0; formats of at most 32 bits take RNE32(y); integer formats
multiply by 32 (absmax: by the largest code; integers: by 1); then one `formats.encode` with the format's own overflow.

    normal, misaligned, strided, uniform, integers, relu    factor 1
    absmax        RNE64(1 / max|x|), the maximum over the operand
    outlier       100 where selection < 66, else 1
    tiny          2^-(20 + row mod 21); a row is an index of the leading axis
    huge          2^12, 2^40, 2^300 on stream 0, 1, 2
    zero-rows     0 where row mod 4 = 0, else 1
    heavy-tailed  2^min(trailing zeros of selection, 15), 2^15 for 0
    spike         0.5, but 100 at flat index h3 mod size; no stream
    cancellation  normal; along the axis named k (else the last) of n elements, h = n // 2, element j of h … 2h - 1 is its
                  partner j - h: a copy in operand `a`, its value under factor -(1 - 2^-7) in every other operand
    negative-zero every element -0 (+0 where the format has none); no stream
    specials      normal, but where selection < 1792 the code of kind selection >> 8 of `special_codes`

**Codes.** These classes are bit patterns of the format. w is the width of the word, `bits` that of the code:

    uniform       of integer formats: the top bits of the word
    subnormal     fraction = low fraction bits of the word, sign = its top bit, exponent field 0 (fnuz: -0 becomes 0)
    codes         code i = i · step mod 2^bits; step 1 up to 16 bits, 0x9E3779B1 up to 32, 0x9E3779B97F4A7C15 for 64; no stream
    wide          ordinal = ord(lo) + floor(u · (ord(hi) - ord(lo) + 1) / 2^w), lo and hi the outermost finite values of the
                  format inside the domain; ordinal 0 is +0

**Indices** (classes, tokens, experts) below a bound: stream 1, the class is the spread and the bound, as in "uniform1000".
Index = (u · bound) >> 32 of a u32 word; skewed: of (u · u) >> 32 in place of u; one: bound // 2, no stream.

**Rows that are added** (exact lane of embedding and the expert ops): `accuracy_eval.ops.rows.summands`. **Midway** (that of cast and
quantize): `accuracy_eval.inputs.midway`.

Importing this package imports neither numba nor a GPU library.
"""

from __future__ import annotations

from accuracy_eval.inputs.classes import INPUT_CLASSES, InputClass, special_codes
from accuracy_eval.inputs.generator import generate
from accuracy_eval.inputs.indices import Spread, indices
from accuracy_eval.inputs.philox import StreamKey, stream_key
from accuracy_eval.inputs.rules import ValueRule

__all__ = [
    "INPUT_CLASSES",
    "InputClass",
    "Spread",
    "StreamKey",
    "ValueRule",
    "generate",
    "indices",
    "special_codes",
    "stream_key",
]
