"""Bytes between a file and a pipe, moved by the kernel where it can: no copy of them passes through this process."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

MOST_BLOCKS = 512  # of one write: less than any system's limit
_REFUSED = (errno.EINVAL, errno.ENOSYS)  # a file system without splice


def file_to_pipe(fd: int, position: int, pipe: int, most: int) -> int:
    """Move up to `most` bytes of a file from `position` on into a pipe; 0 at the file's end. BlockingIOError where the pipe is full."""
    if hasattr(os, "splice"):
        try:
            return os.splice(fd, pipe, most, offset_src=position)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
    return os.write(pipe, block) if (block := os.pread(fd, most, position)) else 0


def pipe_to_file(pipe: int, fd: int, position: int, most: int) -> int:
    """Move up to `most` bytes from a pipe into a file from `position` on; 0 at the pipe's end. BlockingIOError where it is empty."""
    if hasattr(os, "splice"):
        try:
            return os.splice(pipe, fd, most, offset_dst=position)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
    block = os.read(pipe, most)
    return write_at(fd, [block], position)


def write_at(fd: int, blocks: Sequence[bytes | memoryview], position: int) -> int:
    """All of the blocks, one behind the other, into a file from `position` on: how many bytes."""
    start = position
    views = [memoryview(b) for b in blocks]
    while views:
        count = os.pwritev(fd, views[:MOST_BLOCKS], position)
        position += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views:
            views[0] = views[0][count:]
    return position - start
