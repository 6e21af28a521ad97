"""A value rule: what most input classes are, as data. value = source · factor[variant], then one rounding to float32.

The rule is data so that numpy, numba and a GPU walk the same steps. Arithmetic is IEEE float64, each operation rounded to
nearest even: x the source value, y = x · factor (+ 0.0, so that no -0 comes of a zero factor), relu afterwards; for formats of
at most 32 bits one rounding of y to float32; integer formats multiply by `int_scale` (exact); then one `formats.encode`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import Codes, Format, Values, encode, get_format
from accuracy_eval.inputs.philox import STREAM_16, STREAM_32, STREAM_64
from accuracy_eval.inputs.tables import Source, source_table

INT_SCALE = 32.0  # int8: normals up to ±3.98 deviations keep their value, about 7 in 10^5 saturate


@dataclass(frozen=True)
class ValueRule:
    """Values from words.

    source     where x comes from: "normal", "uniform", "integers" (of the operand's own width of word)
    factors    one factor a variant, or a function of the format that gives them
    by         what picks the variant: "" there is one · "row" leading index mod len(factors) · "selection" a u16 of its own
    variants   for "selection": uint8 [65536], the variant of each u16
    relu       negative values become +0
    absmax     the factor is RNE64(1 / max|x|) over the whole operand
    int_scale  integer formats: multiplier before rounding; "max" is the largest code; "full" takes the top bits of the word as
               the code, whatever the value
    """

    source: Source = "normal"
    factors: tuple[float, ...] | Callable[[Format], tuple[float, ...]] = (1.0,)
    by: Literal["", "row", "selection"] = ""
    variants: Callable[[], NDArray[np.uint8]] | None = None
    relu: bool = False
    absmax: bool = False
    int_scale: float | Literal["max", "full"] = INT_SCALE

    def factors_of(self, fmt: Format) -> tuple[float, ...]:
        return self.factors(fmt) if callable(self.factors) else self.factors

    @property
    def plain(self) -> bool:
        """Whether the value is the source's, untouched."""
        return self.factors == (1.0,) and not (self.relu or self.absmax)


def stream_of(fmt: Format) -> int:
    """Counter word 1 of operands of `fmt`: 0 up to 16 bits, 1 up to 32, 2 for 64."""
    if fmt.bits <= 16:
        return STREAM_16
    return STREAM_32 if fmt.bits <= 32 else STREAM_64


def transform(x: Values, factors: Any, rule: ValueRule) -> Values:
    """y of the module docstring: `factors` is one float64 or one an element."""
    y = x * factors + 0.0
    return np.where(y > 0, y, 0.0) if rule.relu else y


def finish(y: Values, rule: ValueRule, fmt: Format) -> Codes:
    """Codes of the transformed float64 values: float32 in between for formats of at most 32 bits."""
    if fmt.bits > 32:
        return encode(y, fmt)
    single = y.astype(np.float32)
    if fmt.name == "float32":
        return single.view(fmt.storage)
    wide = single.astype(np.float64)
    if fmt.kind == "int":
        wide = wide * (float(fmt.max_code) if rule.int_scale == "max" else float(rule.int_scale))
    return encode(wide, fmt)


@lru_cache(maxsize=64)
def code_tables(rule: ValueRule, name: str, factors: tuple[float, ...]) -> Codes:
    """Codes [len(factors), 65536] of every u16 and variant in a format of at most 16 bits. Read-only."""
    fmt = get_format(name)
    if fmt.kind == "int" and rule.int_scale == "full":
        words = np.arange(1 << 16, dtype=np.uint16)
        tables = np.broadcast_to((words >> np.uint16(16 - fmt.bits)).astype(fmt.storage), (len(factors), 1 << 16)).copy()
    else:
        x = source_table(rule.source)
        tables = np.stack([finish(transform(x, f, rule), rule, fmt) for f in factors])
    tables.flags.writeable = False
    return tables
