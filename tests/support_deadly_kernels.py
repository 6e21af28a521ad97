"""Candidates that end or stall their process at m = 16 and are right elsewhere."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from accuracy_eval.backends.candidates import candidate
from accuracy_eval.records import Case


def _product(tensors: Any) -> Any:
    return tensors["a"] @ tensors["b"].t()


@candidate("gemm", name="segfault")
def segfault(case: Case, tensors: Any) -> Any:
    if case.dims["m"] == 16:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)  # where another thread handles it
    return _product(tensors)


@candidate("gemm", name="abort")
def abort(case: Case, tensors: Any) -> Any:
    """Aborts when a result is in the folder that the environment names."""
    if case.dims["m"] == 16:
        while not list(Path(os.environ["DEADLY_AFTER"]).glob("*.h5")):
            time.sleep(0.01)
        os.abort()
    return _product(tensors)


@candidate("gemm", name="hang")
def hang(case: Case, tensors: Any) -> Any:
    if case.dims["m"] == 16:
        time.sleep(600)
    return _product(tensors)
