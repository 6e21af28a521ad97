"""One file from here to there or back: resumed where its beginning is proven, verified before it takes its name."""

from __future__ import annotations

import fcntl
import os
import posixpath
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accuracy_eval.errors import DigestMismatch, Interrupted, TransferError
from accuracy_eval.transfer.hashing import FileDigest, digest_of
from accuracy_eval.transfer.links import Moved, Span, failures_named
from accuracy_eval.transfer.locations import PART_SUFFIX, Action, FileResult, Options
from accuracy_eval.transfer.pacing import Pace
from accuracy_eval.transfer.parallel import AHEAD_BYTES, Segments, Work, move
from accuracy_eval.transfer.remote import Files, Remote
from accuracy_eval.transfer.shell import Stat

SETTLING_TRIES, SETTLING_S = 20, 0.25
ABANDONED_S = 1.0  # a partial file that cannot be gone on with is removed once it has not grown for so long
Meter = Callable[[int], None]  # called with the bytes of the file that are done so far


def put(remote: Remote, source: Path, target: str, options: Options, pace: Pace, meter: Meter) -> FileResult:
    """Send one file. `meter` is called with how much of it is there, what was there before included."""
    place = f"{remote.label}:{target}"
    part = target + PART_SUFFIX
    with failures_named(remote.label, target), source.open("rb") as file, _overtaking_named(remote, part, target):
        before = os.fstat(file.fileno())
        size = before.st_size
        survey = remote.names.survey(target, part)
        other, found = _already_there(remote, file, size, target, survey.target)
        if found:
            meter(size)
            return FileResult(str(source), place, size, found, Action.SKIPPED)
        digest, offset, leftover = _resume_put(remote, file, part, size, options, survey.part)
        action = Action.RESUMED if offset else Action.SENT
        if options.dry_run:
            return FileResult(str(source), place, size, "", action, offset, remote.stream(size).method, other)
        remote.make_folders(posixpath.dirname(target), there=survey.folder.kind == "folder")
        remote.check_room(posixpath.dirname(target), size - offset, survey.room)
        if leftover and not offset:
            remote.names.remove(part)
        meter(offset)
        span = Span(file.fileno(), offset, size)
        with FileDigest(file.fileno(), offset, digest) as mine:
            try:
                if remote.several(size - offset):
                    theirs = _send_in_segments(remote, part, span, pace, _both(mine.reach, meter))
                else:
                    theirs = remote.stream(size).send(part, span, _counter(span, pace, _both(mine.reach, meter)), new=offset == 0)
            except FileExistsError:
                raise _busy(f"{remote.label}:{part}") from None
            wanted = mine.hexdigest()
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise TransferError(f"{source}: changed while it was being sent to {place}; send it again once it is complete")
        _verify(place, wanted, f"{remote.label}:{part}", theirs or remote.digest(part, size), lambda: remote.names.remove(part))
        remote.names.replace(part, target)
    return FileResult(str(source), place, size, wanted, action, offset, remote.stream(size).method, other)


def _counter(span: Span, pace: Pace, meter: Meter) -> Moved:
    """Paces what moves of a span and tells the meter."""
    position = span.start

    def moved(count: int) -> None:
        nonlocal position
        position = min(span.end, position + count)
        pace.spend(count)
        meter(position)

    return moved


def _already_there(remote: Remote, file: Any, size: int, target: str, there: Stat) -> tuple[bool, str]:
    """Whether `target` is a file of other bytes, and the digest of both if it holds the same."""
    if there.kind in ("folder", "other"):
        raise TransferError(f"{remote.label}:{target}: is a {there.kind}, not a file; name another destination")
    if there.kind == "file" and there.size == size:
        mine: str = digest_of(file.fileno(), size).hexdigest()
        if remote.digest(target, size) == mine:
            return False, mine
    return there.kind == "file", ""


def _resume_put(remote: Remote, file: Any, part: str, size: int, options: Options, there: Stat) -> tuple[Any, int, bool]:
    """(running digest of the bytes already there, how many, whether a partial file is there): 0 bytes unless their digest proves them."""
    for _ in range(SETTLING_TRIES):
        if there.kind != "file":
            return None, 0, False
        digest, proven = None, 0
        if options.resume and there.size <= size:
            digest, proven = _same_beginning(remote, part, file, there.size)
        if not proven:
            time.sleep(ABANDONED_S)
        before, there = there, remote.names.stat(part)
        if there == before:
            return digest, proven, True
        time.sleep(SETTLING_S)  # the far end may still be writing what it had received when the last connection broke
    raise _busy(f"{remote.label}:{part}")


def _busy(part: str) -> Interrupted:
    return Interrupted(f"{part}: another transfer is writing it; wait until that has ended, or name another destination")


def _send_in_segments(remote: Remote, part: str, span: Span, pace: Pace, meter: Meter) -> str | None:
    """Returns the SHA-256 of the whole file there, where the host could compute it meanwhile."""

    @contextmanager
    def work(files: Files) -> Iterator[Work]:
        with files.writer(part) as write:
            yield lambda start, end: write(Span(span.fd, start, end), pace.spend)

    if not span.start:
        remote.names.create(part)
    follower = remote.shell.follower(part) if remote.shell is not None else None
    if follower is None:
        move(remote, Segments(span.start, span.end), work, meter)
        return None
    try:
        move(remote, Segments(span.start, span.end), work, _both(follower.reach, meter))
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
            raise _busy(f"{remote.label}:{part}") from error
        raise


def get(remote: Remote, source: str, size: int, target: Path, options: Options, pace: Pace, meter: Meter) -> FileResult:
    """Fetch one file of `size` bytes. `meter` is called with how much of it is here, what was here before included."""
    place = f"{remote.label}:{source}"
    part = target.with_name(target.name + PART_SUFFIX)
    with failures_named(remote.label, source):
        if target.is_dir():
            raise TransferError(f"{target}: is a folder, not a file; name another destination")
        if target.is_file() and target.stat().st_size == size:
            theirs = remote.digest(source, size)
            with target.open("rb") as file:
                if digest_of(file.fileno(), size).hexdigest() == theirs:
                    meter(size)
                    return FileResult(place, str(target), size, theirs, Action.SKIPPED)
        other = target.is_file()
        if options.dry_run:
            _, offset = _resume_get(remote, source, part, size, options)
            action = Action.RESUMED if offset else Action.SENT
            return FileResult(place, str(target), size, "", action, offset, remote.stream(size).method, other)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_writer(part) as file, ThreadPoolExecutor(1) as threads:
            digest, offset = _resume_get(remote, source, part, size, options)
            _check_room(target.parent, size - offset)
            meter(offset)
            file.truncate(offset)
            span = Span(file.fileno(), offset, size)
            whole = threads.submit(remote.digest, source, size) if remote.computes(size) else None  # while the bytes travel
            with FileDigest(file.fileno(), offset, digest) as mine:
                if remote.several(size - offset):
                    _receive_in_segments(remote, source, span, mine, pace, meter)
                else:
                    remote.stream(size).receive(source, span, _counter(span, pace, _both(mine.reach, meter)))
                found = os.fstat(file.fileno()).st_size
                if found < size:
                    raise Interrupted(f"{place}: {found} of {size} bytes arrived; run again to go on from here")
                file.truncate(size)  # it may have grown meanwhile
                os.fsync(file.fileno())
                sha256 = mine.hexdigest()
            _verify(place, whole.result() if whole else remote.digest(source, size), str(part), sha256, part.unlink)
            os.replace(part, target)
        _sync_folder(target.parent)
    action = Action.RESUMED if offset else Action.SENT
    return FileResult(place, str(target), size, sha256, action, offset, remote.stream(size).method, other)


def _both(first: Meter, second: Meter) -> Meter:
    def meter(position: int) -> None:
        first(position)
        second(position)

    return meter


def _receive_in_segments(remote: Remote, source: str, span: Span, digest: FileDigest, pace: Pace, meter: Meter) -> None:
    @contextmanager
    def work(files: Files) -> Iterator[Work]:
        with files.reader(source) as read:

            def move_segment(start: int, end: int) -> None:
                arrived = start

                def moved(count: int) -> None:
                    nonlocal arrived
                    arrived += count
                    pace.spend(count)

                read(Span(span.fd, start, end), moved)
                if arrived < end:
                    raise Interrupted(f"{remote.label}:{source}: {arrived} of {span.end} bytes arrived; run again to go on from here")

            yield move_segment

    segments = Segments(span.start, span.end)
    try:
        move(remote, segments, work, _both(digest.reach, meter))
    except BaseException:
        os.ftruncate(span.fd, segments.frontier)  # what lies behind it has gaps
        raise


def _resume_get(remote: Remote, source: str, part: Path, size: int, options: Options) -> tuple[Any, int]:
    there = part.stat().st_size if part.is_file() else 0
    if not options.resume or not 0 < there <= size:
        return None, 0
    with part.open("rb") as file:
        return _same_beginning(remote, source, file, there)


def _same_beginning(remote: Remote, path: str, file: Any, size: int) -> tuple[Any, int]:
    """(running digest, length) of the bytes with which a partial file of `size` bytes proves to begin the whole: both ends compute at once.

    All of them, or all but the last: what came over several connections may have gaps there.
    """
    for length in (size, size - AHEAD_BYTES):
        if length > 0:
            with ThreadPoolExecutor(1) as threads:
                theirs = threads.submit(remote.digest, path, length, length)
                digest = digest_of(file.fileno(), length)
                if digest.hexdigest() == theirs.result():
                    return digest, length
    return None, 0


@contextmanager
def _only_writer(part: Path) -> Iterator[Any]:
    """The part, open for writing by this transfer alone."""
    with open(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _busy(str(part)) from None
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


def _verify(place: str, wanted: str, where: str, found: str, remove: Callable[[], object]) -> None:
    if found != wanted:
        remove()
        raise DigestMismatch(
            f"{place}: sha256 {found} of {where} != {wanted} of the source; the bytes changed on the way or at the far end "
            "and were removed. Run again; if it repeats, check the disk and memory of both hosts."
        )
