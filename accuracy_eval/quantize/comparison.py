"""Scale factors of one side against another's: exponents, relative difference, and which rule each follows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accuracy_eval.formats import Codes, decode
from accuracy_eval.quantize.scales import exponent_step_histogram
from accuracy_eval.records import ScaleFacts


def compare_scales(
    actual: Codes, expected: Codes, scale_format: str, *, rules: Sequence[str] = (), expected_rules: Sequence[str] = ()
) -> ScaleFacts:
    """What scale codes of the same shape and format say against each other; rules: those each side is known to follow."""
    found = exponent_step_histogram(actual, expected, scale_format=scale_format)
    a, e = decode(actual, scale_format), decode(expected, scale_format)
    both = np.isfinite(a) & np.isfinite(e) & (e != 0)
    relative = np.abs(a[both] / e[both] - 1)
    return ScaleFacts(
        " or ".join(rules), " or ".join(expected_rules), tuple(found.steps.items()), found.nan_actual, found.nan_expected,
        float(relative.max()) if relative.size else None,
    )  # fmt: skip
