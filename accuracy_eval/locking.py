"""Files and folders that one process at a time may write. Imports nothing but the standard library."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TRIES = 100  # each needs another process that ends in the moment between opening and locking


def locked(path: Path, opened: Callable[[], int]) -> int:
    """What `opened` gives, a descriptor of `path`, once this process alone has its lock. BlockingIOError while another has it.

    One that had the lock may have renamed or removed what it locked, between this process's opening and locking: the lock of what does not
    have the name any more keeps nobody out, and what is written there may be that one's finished result. The path is opened anew then.
    """
    for _ in range(TRIES):
        descriptor = opened()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise BlockingIOError(f"{path}: is not what was opened there, {TRIES} times")


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """The block has the folder to itself among those that ask for it like this: others wait, where the file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
