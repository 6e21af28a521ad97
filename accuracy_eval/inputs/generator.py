"""`generate`: an operand's codes from its name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Codes, Format, get_format
from accuracy_eval.inputs.classes import INPUT_CLASSES
from accuracy_eval.inputs.draw import Draw
from accuracy_eval.inputs.philox import stream_key

COMPILED_FROM = 1 << 20  # elements from which loading the compiled kernels pays


def generate(
    op: str,
    operand: str,
    shape: Sequence[int],
    input_class: str,
    seed: int,
    fmt: str | Format,
    *,
    axes: Sequence[str] = (),
    domain: tuple[float, float] | None = None,
    compiled: bool | None = None,
) -> Codes:
    """Codes of the operand, `shape` (logical, any number of axes), C order: the same bits on every host.

    seed      any integer, taken mod 2^32
    axes      one name an axis, such as ("m", "k"); class cancellation pairs along "k", else along the last axis
    domain    class wide: (lo, hi), ends included, infinities meaning the largest finite value; None is every finite value
    compiled  whether numba may run; None: from 2^20 elements on. Never changes a bit.
    Unknown classes and formats, formats of scale factors and axes that do not fit the shape raise UsageError.
    """
    f = get_format(fmt)
    if input_class not in INPUT_CLASSES:
        raise unknown("input class", input_class, INPUT_CLASSES, listed="inputs")
    if f.scale_only:
        raise UsageError(f"{f.name} is a format of scale factors; operands come in the other formats")
    dims = tuple(int(s) for s in shape)
    if min(dims, default=0) < 0:
        raise UsageError(f"operand {operand!r}: shape {dims} has a negative size")
    if axes and len(axes) != len(dims):
        raise UsageError(f"operand {operand!r}: {len(axes)} axis names {tuple(axes)} for shape {dims}; name every axis or none")
    if domain is not None and input_class != "wide":
        raise UsageError(f"operand {operand!r}: a domain is for class wide, not for {input_class!r}")
    wanted = math.prod(dims) >= COMPILED_FROM if compiled is None else compiled
    draw = Draw(stream_key(op, operand, dims, input_class, seed), dims, f, operand, tuple(axes), domain, wanted)
    row = INPUT_CLASSES[input_class]
    if row.rule is not None:
        return draw.valued(row.rule)
    assert row.build is not None
    return row.build(draw)
