"""One file from here to there: resumed where its beginning is proven, verified before it takes its name."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accuracy_eval.errors import Interrupted, TransferError
from accuracy_eval.transfer.hashing import FileDigest, digest_of
from accuracy_eval.transfer.links import Span, failures_named
from accuracy_eval.transfer.locations import PART_SUFFIX, Action, FileResult
from accuracy_eval.transfer.parallel import Segments, Work, move
from accuracy_eval.transfer.remote import Files, Remote
from accuracy_eval.transfer.shell import Stat
from accuracy_eval.transfer.trips import Meter, Trip, both, busy, verify

SETTLING_TRIES, SETTLING_S = 20, 0.25
ABANDONED_S = 1.0  # a partial file that cannot be gone on with is removed once it has not grown for so long


def put(trip: Trip, source: Path, target: str) -> FileResult:
    """Send one file."""
    remote, options = trip.remote, trip.options
    place = f"{remote.label}:{target}"
    part = target + PART_SUFFIX
    with failures_named(remote.label, target), source.open("rb") as file, _overtaking_named(remote, part, target):
        before = os.fstat(file.fileno())
        size = before.st_size
        survey = remote.names.survey(target, part)
        other, found = _already_there(remote, file, size, target, survey.target)
        if found:
            trip.meter(size)
            return FileResult(str(source), place, size, found, Action.SKIPPED)
        digest, offset, leftover = _resumed(trip, file, part, size, survey.part)
        action = Action.RESUMED if offset else Action.SENT
        if options.dry_run:
            return FileResult(str(source), place, size, "", action, offset, remote.stream(size).method, other)
        remote.make_folders(posixpath.dirname(target), there=survey.folder.kind == "folder")
        remote.check_room(posixpath.dirname(target), size - offset, survey.room)
        if leftover and not offset:
            remote.names.remove(part)
        trip.meter(offset)
        with FileDigest(file.fileno(), offset, digest) as mine:
            theirs = _sent(trip, part, Span(file.fileno(), offset, size), mine)
            wanted = mine.hexdigest()
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise TransferError(f"{source}: changed while it was being sent to {place}; send it again once it is complete")
        verify(place, wanted, f"{remote.label}:{part}", theirs or remote.digest(part, size), lambda: remote.names.remove(part))
        remote.names.replace(part, target)
    return FileResult(str(source), place, size, wanted, action, offset, remote.stream(size).method, other)


def _already_there(remote: Remote, file: Any, size: int, target: str, there: Stat) -> tuple[bool, str]:
    """Whether `target` is a file of other bytes, and the digest of both if it holds the same."""
    if there.kind in ("folder", "other"):
        raise TransferError(f"{remote.label}:{target}: is a {there.kind}, not a file; name another destination")
    if there.kind == "file" and there.size == size:
        mine: str = digest_of(file.fileno(), size).hexdigest()
        if remote.digest(target, size) == mine:
            return False, mine
    return there.kind == "file", ""


def _resumed(trip: Trip, file: Any, part: str, size: int, there: Stat) -> tuple[Any, int, bool]:
    """(running digest of the bytes already there, how many, whether a partial file is there): 0 bytes unless their digest proves them."""
    remote = trip.remote
    for _ in range(SETTLING_TRIES):
        if there.kind != "file":
            return None, 0, False
        digest, proven = None, 0
        if trip.options.resume and there.size <= size:
            digest, proven = trip.beginning(part, file, there.size)
        if not proven:
            time.sleep(ABANDONED_S)
        before, there = there, remote.names.stat(part)
        if there == before:
            return digest, proven, True
        time.sleep(SETTLING_S)  # the far end may still be writing what it had received when the last connection broke
    raise busy(f"{remote.label}:{part}")


def _sent(trip: Trip, part: str, span: Span, mine: FileDigest) -> str | None:
    """The SHA-256 of the whole file there, where the host could compute it meanwhile."""
    remote = trip.remote
    try:
        if remote.several(span.end - span.start):
            return _sent_in_segments(trip, part, span, both(mine.reach, trip.meter))
        return remote.stream(span.end).send(part, span, trip.counter(span, mine.reach), new=span.start == 0)
    except FileExistsError:
        raise busy(f"{remote.label}:{part}") from None


def _sent_in_segments(trip: Trip, part: str, span: Span, reach: Meter) -> str | None:
    remote = trip.remote

    @contextmanager
    def work(files: Files) -> Iterator[Work]:
        with files.writer(part) as write:
            yield lambda start, end: write(Span(span.fd, start, end), trip.pace.spend)

    if not span.start:
        remote.names.create(part)
    follower = remote.shell.follower(part) if remote.shell is not None else None
    if follower is None:
        move(remote, Segments(span.start, span.end), work, reach)
        return None
    try:
        move(remote, Segments(span.start, span.end), work, both(follower.reach, reach))
        return follower.hexdigest()
    finally:
        follower.close()


@contextmanager
def _overtaking_named(remote: Remote, part: str, target: str) -> Iterator[None]:
    """Where a part is gone because another transfer of the file was a moment faster, trying again finds its result."""
    try:
        yield
    except (TransferError, OSError) as error:
        if isinstance(error, Interrupted | TimeoutError | ConnectionError):
            raise
        if remote.names.stat(part).kind == "none" and remote.names.stat(target).kind == "file":
            raise busy(f"{remote.label}:{part}") from error
        raise
