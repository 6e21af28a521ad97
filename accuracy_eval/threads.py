"""Threads over a fixed list of work items: how many, and a map that keeps order. Imports nothing but the standard library."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def thread_count() -> int:
    """Threads to use: ACCURACY_EVAL_THREADS, else the cores this process may run on."""
    wanted = os.environ.get("ACCURACY_EVAL_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_threads(function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None) -> list[R]:
    """[function(x) for x in items] on a thread pool, results in order of items; the first exception is raised.

    Inside a function that is itself being mapped the items run one after the other: the cores are taken already.
    """
    work: Sequence[T] = list(items)
    count = min(threads or thread_count(), len(work))
    if count <= 1 or getattr(_here, "mapped", False):
        return [function(x) for x in work]
    with ThreadPoolExecutor(count, initializer=_mark) as pool:
        return list(pool.map(function, work))


@contextmanager
def alone() -> Iterator[None]:
    """The block is one of several that run at once: what it maps runs one after the other, as inside a function that is being mapped."""
    before = getattr(_here, "mapped", False)
    _here.mapped = True
    try:
        yield
    finally:
        _here.mapped = before


_here = threading.local()


def _mark() -> None:
    _here.mapped = True
