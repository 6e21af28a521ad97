"""One file from there to here: resumed where its beginning is proven, verified before it takes its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accuracy_eval.errors import Interrupted, TransferError
from accuracy_eval.locking import locked
from accuracy_eval.transfer.hashing import FileDigest, digest_of
from accuracy_eval.transfer.links import Span, failures_named
from accuracy_eval.transfer.locations import PART_SUFFIX, Action, FileResult
from accuracy_eval.transfer.parallel import Segments, Work, move
from accuracy_eval.transfer.remote import Files, Remote
from accuracy_eval.transfer.trips import Trip, both, busy, verify


def get(trip: Trip, source: str, size: int, target: Path) -> FileResult:
    """Fetch one file of `size` bytes."""
    remote = trip.remote
    place = f"{remote.label}:{source}"
    part = target.with_name(target.name + PART_SUFFIX)
    with failures_named(remote.label, source):
        if target.is_dir():
            raise TransferError(f"{target}: is a folder, not a file; name another destination")
        sha256 = _already_here(remote, source, size, target)
        if sha256:
            trip.meter(size)
            return FileResult(place, str(target), size, sha256, Action.SKIPPED)
        other = target.is_file()
        if trip.options.dry_run:
            _, offset = _resumed(trip, source, part, size)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            sha256, offset = _fetched(trip, source, size, part, target)
            _sync_folder(target.parent)
    action = Action.RESUMED if offset else Action.SENT
    return FileResult(place, str(target), size, sha256, action, offset, remote.stream(size).method, other)


def _already_here(remote: Remote, source: str, size: int, target: Path) -> str:
    """The digest of both files, if the target holds the same; else ""."""
    if not target.is_file() or target.stat().st_size != size:
        return ""
    theirs = remote.digest(source, size)
    with target.open("rb") as file:
        return theirs if digest_of(file.fileno(), size).hexdigest() == theirs else ""


def _fetched(trip: Trip, source: str, size: int, part: Path, target: Path) -> tuple[str, int]:
    """(SHA-256 of the target, which is whole and verified; how much of its part was here before)."""
    remote, place = trip.remote, f"{trip.remote.label}:{source}"
    with _only_writer(part) as file, ThreadPoolExecutor(1) as threads:
        digest, offset = _resumed(trip, source, part, size)
        _check_room(part.parent, size - offset)
        trip.meter(offset)
        file.truncate(offset)
        span = Span(file.fileno(), offset, size)
        whole = threads.submit(remote.digest, source, size) if remote.computes(size) else None  # while the bytes travel
        with FileDigest(file.fileno(), offset, digest) as mine:
            if remote.several(size - offset):
                _receive_in_segments(trip, source, span, mine)
            else:
                remote.stream(size).receive(source, span, trip.counter(span, mine.reach))
            found = os.fstat(file.fileno()).st_size
            if found < size:
                raise Interrupted(f"{place}: {found} of {size} bytes arrived; run again to go on from here")
            file.truncate(size)  # it may have grown meanwhile
            os.fsync(file.fileno())
            sha256: str = mine.hexdigest()
        verify(place, whole.result() if whole else remote.digest(source, size), str(part), sha256, part.unlink)
        os.replace(part, target)
        return sha256, offset


def _receive_in_segments(trip: Trip, source: str, span: Span, mine: FileDigest) -> None:
    remote = trip.remote

    @contextmanager
    def work(files: Files) -> Iterator[Work]:
        with files.reader(source) as read:

            def move_segment(start: int, end: int) -> None:
                arrived = start

                def moved(count: int) -> None:
                    nonlocal arrived
                    arrived += count
                    trip.pace.spend(count)

                read(Span(span.fd, start, end), moved)
                if arrived < end:
                    raise Interrupted(f"{remote.label}:{source}: {arrived} of {span.end} bytes arrived; run again to go on from here")

            yield move_segment

    segments = Segments(span.start, span.end)
    try:
        move(remote, segments, work, both(mine.reach, trip.meter))
    except BaseException:
        os.ftruncate(span.fd, segments.frontier)  # what lies behind it has gaps
        raise


def _resumed(trip: Trip, source: str, part: Path, size: int) -> tuple[Any, int]:
    """(running digest of the bytes already here, how many): none unless their digest proves them."""
    here = part.stat().st_size if part.is_file() else 0
    if not trip.options.resume or not 0 < here <= size:
        return None, 0
    with part.open("rb") as file:
        return trip.beginning(source, file, here)


@contextmanager
def _only_writer(part: Path) -> Iterator[Any]:
    """The part, open for writing by this transfer alone."""
    try:
        descriptor = locked(part, lambda: os.open(part, os.O_RDWR | os.O_CREAT, 0o666))
    except BlockingIOError:
        raise busy(str(part)) from None
    with open(descriptor, "r+b") as file:
        yield file


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TransferError(f"{folder}: {needed} bytes are to be written, {free} are free; make room or name another folder")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
