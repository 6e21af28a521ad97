"""Causes that leave an output on a coarser grid than its format's: the whole result went through a narrower format."""

from __future__ import annotations

import numpy as np

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import FORMATS, Format, Values, decode, encode, round_to

FEWEST = 24  # elements whose truth is not on the grid, of all those looked at at least a quarter
SAME = 0.9  # of them the output must hold exactly the truth rounded (or cut) once: sums that were rounded on their way miss more


def result_rounded(look: Look) -> Finding | None:
    """Every element is a number of a narrower format, and the truth, rounded to it once, is what the output holds.

    Small integers lie on every grid, and so does their truth: where few true values lie beside the grid nothing is said.
    """
    if look.fmt.kind != "float" or not look.open or not look.height:
        return None
    a, e = look.whole or (look.actual(0, look.height), look.expected(0, look.height))
    finite = np.isfinite(a) & np.isfinite(e)
    a, e = a[finite], e[finite]
    for grid in _narrower(look.fmt):
        held = round_to(a, grid)
        if not np.array_equal(held, a):
            continue
        once = encode(e, grid)
        nearest = decode(once, grid)
        telling = nearest != look.rounded(e)
        if telling.sum() < max(FEWEST, len(e) / 4):
            return None
        cut = decode(np.where(np.abs(nearest) > np.abs(e), once - once.dtype.type(1), once), grid)
        for how, values in (("rounded", nearest), ("cut", cut)):
            if _same(a, values, telling) >= SAME:
                return Finding({"format": grid.name}, {"how": how, "stored": look.fmt.name})
        return None
    return None


def _same(a: Values, b: Values, where: Values) -> float:
    return float(np.mean((a == b)[where]))


def _narrower(out: Format) -> list[Format]:
    """Formats an output may have gone through, coarsest first."""
    wide = [f for f in FORMATS.values() if f.kind == "float" and f.bits >= 16 and f.fraction_bits < out.fraction_bits]
    return sorted(wide, key=lambda f: (f.fraction_bits, f.bits))  # what float16 holds tfloat32 holds too
