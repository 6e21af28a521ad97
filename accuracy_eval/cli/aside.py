"""Standard output kept for what the command says itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def printing_aside() -> Iterator[None]:
    """What others print inside the block, kernels and the processes that are started there, goes to standard error."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed: nothing can be mixed up
        yield
        return
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
