"""Metrics: the registry, and one pass over two arrays that fills it.

`METRICS` costs no numba; `Meter`, `measure` and `Measured` are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accuracy_eval.metrics.measured import Measured
    from accuracy_eval.metrics.meter import Meter, measure
    from accuracy_eval.metrics.registry import METRICS, Metric, allclose_name

__all__ = ["METRICS", "Measured", "Meter", "Metric", "allclose_name", "measure"]

_HOME = {
    "METRICS": "registry",
    "Metric": "registry",
    "allclose_name": "registry",
    "Measured": "measured",
    "Meter": "meter",
    "measure": "meter",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
