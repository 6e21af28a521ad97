"""What a matrix unit returns for given operands: row by row (`dot`) and as a matrix (`gemm`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath import chains
from accuracy_eval.datapath.orders import instruction_order
from accuracy_eval.datapath.planes import Plane, as_codes, order_of, plane, scaled_plane
from accuracy_eval.datapath.units import NAN, Unit, find_unit
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, decode, encode, get_format

Pair = str | tuple[str, str]


def dot(
    unit: str | Unit,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    format: Pair,
    out: str = "float32",
    a_scale: Any = None,
    b_scale: Any = None,
) -> Codes:
    """d[r] = Σ_k a[r, k]·b[r, k] + c[r] as the unit computes it, k in increasing order; codes of `out`, [r].

    unit     a name `find_unit` takes, or a row of UNITS
    a, b     [r, k] codes (integers) or values (floats) of `format`, one name or a pair; values are rounded to nearest, for
             tfloat32 cut to 10 fraction bits as the instructions do
    c        [r] codes or values of the accumulator's format; None is +0
    out      the accumulator's format, or a narrower one it is rounded to once. "float16" picks the instruction with a float16
             accumulator where there is one
    a_scale, b_scale  [r, k / g] block scales, codes or values, g products a scale: the instruction's (32 E8M0, 16 UE4M3)
    K is padded with zeros to a whole block. NaN results have the unit's NaN code.
    """
    row, pa, pb = _operands(unit, a, b, format, out, a_scale, b_scale)
    if pa.count != pb.count:
        raise UsageError(f"dot works row by row: a has {pa.count} rows, b {pb.count}")
    return _finish(row, pa, pb, _start(row, c, (pa.count,)), out)


def gemm(
    unit: str | Unit,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    format: Pair,
    out: str = "float32",
    a_scale: Any = None,
    b_scale: Any = None,
) -> Codes:
    """D = A·Bᵀ + C as one chain of the unit's blocks per element; codes of `out`, [m, n].

    a [m, k], b [n, k], c [m, n] (None: +0), scales [m, k / g], [n, k / g]; everything else as in `dot`.
    """
    row, pa, pb = _operands(unit, a, b, format, out, a_scale, b_scale)
    return _finish(row, pa, pb, _start(row, c, (pa.count, pb.count)), out)


def _operands(unit: str | Unit, a: Any, b: Any, format: Pair, out: str, a_scale: Any, b_scale: Any) -> tuple[Unit, Plane, Plane]:
    pair = format if isinstance(format, tuple) else (format, format)
    scaled = a_scale is not None or b_scale is not None
    row = find_unit(unit, pair, out=out, scaled=scaled) if isinstance(unit, str) else unit
    if row.rule is None:
        raise UsageError(f"the arithmetic of {row.name} is not known ({row.source})")
    formats = tuple("tfloat32" if "tfloat32" in row.formats else f for f in pair)
    codes = [as_codes(x, f) for x, f in zip((a, b), formats, strict=True)]
    for name, x in zip("ab", codes, strict=True):
        if x.ndim != 2:
            raise UsageError(f"operand {name} has shape {x.shape}; expected two dimensions, rows and k")
    if codes[0].shape[1] != codes[1].shape[1]:
        raise UsageError(f"a and b have different k: {codes[0].shape[1]} and {codes[1].shape[1]}")
    pre = "fp16" if row.rule.kind == "emulated" else ""
    if not scaled:
        bare = [plane(x, f, rule=row.rule, pre=pre) for x, f in zip(codes, formats, strict=True)]
        return row, bare[0], bare[1]
    scales = [_scale(row, s, x.shape) for s, x in zip((a_scale, b_scale), codes, strict=True)]
    made = [scaled_plane(x, f, row.rule, *s) for x, f, s in zip(codes, formats, scales, strict=True)]
    return row, made[0], made[1]


def _scale(row: Unit, scale: Any, shape: tuple[int, ...]) -> tuple[Codes, str, int]:
    """Codes, format and width of the block scales of an operand of that shape; None is 1."""
    if scale is None:
        name, width = row.scales[0]
        return encode(np.ones((shape[0], -(-shape[1] // width))), name), name, width
    s = np.asarray(scale)
    for name, width in row.scales:
        if s.shape == (shape[0], -(-shape[1] // width)):
            return as_codes(s, name), name, width
    raise UsageError(
        f"block scales of shape {s.shape} do not fit an operand of shape {shape}; {row.name} takes "
        + " or ".join(f"one {name} per {width} products" for name, width in row.scales)
    )


def _start(row: Unit, c: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    assert row.rule is not None
    acc = chains.accumulators(row.rule, shape)
    if c is not None:
        codes = as_codes(c, row.out)
        if codes.shape != shape:
            raise UsageError(f"c has shape {codes.shape}, expected {shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            acc[...] = decode(codes, row.out)
    return acc


def _finish(row: Unit, a: Plane, b: Plane, acc: NDArray[Any], out: str) -> Codes:
    assert row.rule is not None
    order = order_of(a.length, row.rule.L, instruction_order(a.length, row.group))
    chains.run(row.rule, a, b, order, acc)
    return result_codes(acc, row.out, out, row.nan if row.out == "float32" else NAN[row.out])


def result_codes(values: NDArray[Any], accumulator: str, out: str, nan: int | None = None) -> Codes:
    """Codes of accumulator values, rounded once to `out`; NaN becomes `nan` where out is the accumulator's format."""
    f = get_format(out)
    with np.errstate(over="ignore", invalid="ignore"):
        codes = encode(np.asarray(values, np.float64), f)
    if f.name == accumulator and nan is not None:
        codes[np.isnan(values)] = nan
    return codes
