"""Arrays as operands are stored."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from accuracy_eval.formats import encode
from accuracy_eval.records import Coded


def coded(values: ArrayLike, fmt: str = "float32") -> Coded:
    """Values, rounded to the format once."""
    return Coded(encode(np.asarray(values, np.float64), fmt), fmt)
