"""What the walk is called with: parameters of a pair of formats, how work is cut, and arrays of one type each.

One type each, so that one compiled signature serves every format.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval import formats
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Overflow
from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.measured import Values

Array = NDArray[Any]
UNIT = 1 << 19  # elements of a unit of work
WIDEST_BAND = 1 << 23  # elements of a band of several rows: bounds what is kept of rows that do not fill a band yet
THIN = 1 << 14  # elements of a band of narrow arrays, so that a call does something
_KINDS = {
    "float64": k.FP64, "float32": k.FP32, "tfloat32": k.TF32, "float16": k.FP16, "bfloat16": k.BF16, "int32": k.INT32,
}  # fmt: skip
_POLICIES = {"saturate": k.SATURATE, "inf": k.INF, "nan": k.NAN}


def _kind(f: Format | None) -> int:
    if f is None:
        return k.REAL
    if f.bits <= 8:
        return k.TABLE8
    if f.name not in _KINDS:
        raise UsageError(f"{f.name} has no decoder in accuracy_eval.metrics; formats over 8 bits that have: {', '.join(_KINDS)}")
    return _KINDS[f.name]


def tables(f: Format) -> Values:
    """[2, 256]: value and ordinal of every 8-bit code; zeros for wider formats. Bits above a format's own are ignored."""
    out = np.zeros((2, 256))
    if f.bits <= 8:
        codes = np.arange(256, dtype=f.storage) & f.storage.type((1 << f.bits) - 1)
        out[0] = formats.decode(codes, f)
        out[1] = formats.ordinals(codes, f)
    return out


def parameters(actual: Format, expected: Format | None, mode: int, overflow: Overflow) -> tuple[NDArray[np.int64], Values]:
    ip, fp = np.zeros(k.P_COUNT, np.int64), np.zeros(k.F_COUNT)
    floating = actual.kind == "float"
    ip[k.P_KIND_A], ip[k.P_KIND_E], ip[k.P_MODE] = _kind(actual), _kind(expected), mode
    ip[k.P_FRACTION], ip[k.P_EMIN], ip[k.P_FLOAT] = actual.fraction_bits, actual.emin if floating else 0, floating
    ip[k.P_POLICY] = _POLICIES[overflow]
    ip[k.P_NEG_ZERO] = actual.has_negative_zero and (expected is None or expected.has_negative_zero)
    ip[k.P_SIGNED], ip[k.P_HAS_ZERO] = actual.signed, actual.has_zero
    ip[k.P_ZERO_FAST] = actual.has_zero and actual.name != "float64"

    fp[k.F_HIGH_A] = fp[k.F_HIGH_E] = k.WIDE_HIGH
    fp[k.F_LOW_A] = fp[k.F_LOW_E] = k.WIDE_LOW
    fp[k.F_FLOOR_E] = -np.inf
    fp[k.F_MAX], fp[k.F_SMALLEST] = actual.max, actual.smallest_subnormal
    fp[k.F_LOWEST] = -actual.max - (0 if floating else 1) if actual.signed else 0.0
    fp[k.F_THRESHOLD], fp[k.F_EDGE] = _overflow_edge(actual)
    if mode == k.REFERENCE:
        fp[k.F_HIGH_E] = min(k.WIDE_HIGH, actual.max)
        if not actual.signed:
            fp[k.F_FLOOR_E] = 0.0
        if not actual.has_zero:
            fp[k.F_LOW_E] = actual.smallest_normal
    fp[k.F_NORMAL_A] = actual.smallest_normal
    fp[k.F_NORMAL_E] = (expected or actual).smallest_normal
    return ip, fp


def _overflow_edge(f: Format) -> tuple[float, float]:
    """(least magnitude that rounds beyond the largest finite value, boundary between the two)."""
    if f.name == "float64":
        return math.inf, math.inf
    edge = f.max + float(formats.ulp(f.max, f)) / 2
    # a tie at an even code stays; e8m0 has no fraction and ties up
    stays = f.max_code % 2 == 0 and f.fraction_bits > 0
    return math.nextafter(edge, math.inf) if stays else edge, edge


def geometry(rows: int, cols: int) -> tuple[int, int]:
    """(rows of a band, columns of a unit), from the shape alone. Bands are 128 rows; fewer where rows are very wide, more where thin."""
    band = k.TILE
    while band > 1 and band * cols > WIDEST_BAND:
        band //= 2
    if cols * band < THIN:
        band *= -(-THIN // (max(cols, 1) * band))
    height = max(1, min(band, rows))
    return band, max(k.LANES, UNIT // height // k.LANES * k.LANES)


def readonly(a: Array) -> Array:
    """The array itself or a copy: C order, aligned, plain ndarray, marked read-only whatever it was."""
    out = np.ascontiguousarray(a)
    if not out.flags.aligned:
        out = out.copy()
    out = out.view(np.ndarray)
    out.flags.writeable = False
    return out


DUMMIES = tuple(readonly(np.zeros((1, 1), t)) for t in (np.uint8, np.uint16, np.uint32, np.uint64, np.float64))
_SLOT = {k.TABLE8: 0, k.BF16: 1, k.FP16: 1, k.FP32: 2, k.TF32: 2, k.INT32: 2, k.FP64: 3, k.REAL: 4}


def source(a: Array, kind: int) -> tuple[Array, ...]:
    out = list(DUMMIES)
    out[_SLOT[kind]] = readonly(a)
    return tuple(out)


def checked_codes(a: Array, f: Format, side: str) -> Array:
    if a.dtype != f.storage:
        raise UsageError(f"{side} codes have dtype {a.dtype}; codes of {f.name} are {f.storage.name}")
    return a
