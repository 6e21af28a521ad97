"""What the weights of a gradient in 16 bits share, as metrics of its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from accuracy_eval.cpu_ref.weight_factors import Weights, factors
from accuracy_eval.formats import Codes, decode
from accuracy_eval.ops.spec import Reference


def with_factors(found: Reference, weights: Callable[[], Weights], *, turned: bool = False) -> Reference:
    """The reference with metrics weights_factor and smoothing_factor; `turned`: the rows of `weights` are its columns."""

    def shared(codes: Codes) -> dict[str, float]:
        values = decode(codes.T if turned else codes, found.format)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return {f"{name}_factor": use for name, use in factors(weights(), values).items()}

    return replace(found, shared=shared)
