"""Whoever waits hears that a kernel is being compiled: told by `jit`, heard by what shows progress, which need not import numba for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[], None]] = []


def tell() -> None:
    """A kernel that the cache does not hold is about to be compiled."""
    for listener in tuple(_listeners):
        listener()


@contextmanager
def heard(listener: Callable[[], None]) -> Iterator[None]:
    """Within the block `listener` is called before each kernel that is compiled, from whatever thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
