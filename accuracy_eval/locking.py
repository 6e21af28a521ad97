"""Files and folders that one process at a time may write. Imports nothing but the standard library."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # what flock says there
TRIES = 100  # each needs another process that ends in the moment between opening and locking


def locked(path: Path, opened: Callable[[], int]) -> int:
    """What `opened` gives, a descriptor of `path`, once this process alone has its lock. BlockingIOError while another has it.

    One that had the lock may have renamed or removed what it locked, between this process's opening and locking: the lock of what does not
    have the name any more keeps nobody out, and what is written there may be that one's finished result. The path is opened anew then.
    A file system without locks, as some of clusters are, keeps nobody out.
    """
    for _ in range(TRIES):
        descriptor = opened()
        try:
            with _where_there_are_locks():
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
        with _where_there_are_locks():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _where_there_are_locks() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
