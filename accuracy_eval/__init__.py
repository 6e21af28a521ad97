"""accuracy-eval: does AMD match NVIDIA and the CPU on this math, and if not, who is off, where, and why?

Names are loaded on first use: importing the package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accuracy_eval.arrays import codes
    from accuracy_eval.backends.candidates import candidate
    from accuracy_eval.checking import check, explain
    from accuracy_eval.compare import compare_dumps
    from accuracy_eval.errors import AccuracyEvalError
    from accuracy_eval.report import load_results, to_frame, write_reports
    from accuracy_eval.verifying import seeded, verify
    from accuracy_eval.version import __version__

_HOME = {
    "AccuracyEvalError": "errors",
    "candidate": "backends.candidates",
    "check": "checking",
    "codes": "arrays",
    "compare_dumps": "compare",
    "explain": "checking",
    "load_results": "report",
    "seeded": "verifying",
    "to_frame": "report",
    "verify": "verifying",
    "write_reports": "report",
    "__version__": "version",
}
__all__ = [
    "AccuracyEvalError",
    "__version__",
    "candidate",
    "check",
    "codes",
    "compare_dumps",
    "explain",
    "load_results",
    "seeded",
    "to_frame",
    "verify",
    "write_reports",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "datapath":
        return import_module(f"{__name__}.datapath")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
