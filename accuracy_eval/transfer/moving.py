"""From what the user names to files: which go where, over which connection."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from accuracy_eval.errors import Interrupted, TransferError, UsageError
from accuracy_eval.transfer.copying import Meter, get, put
from accuracy_eval.transfer.links import failures_named
from accuracy_eval.transfer.locations import PART_SUFFIX, FileResult, Location, Options, parse_location
from accuracy_eval.transfer.pacing import Pace
from accuracy_eval.transfer.remote import Remote

BACK_OFF_S = 0.5  # before the first repetition; doubles with each
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Job:
    """One file: source and target paths, its size, the host's files."""

    remote: Remote
    source: str
    target: str
    size: int


def transfer(
    sources: Sequence[str], destination: str, *, options: Options | None = None, progress: Progress | None = None
) -> list[FileResult]:
    """Copy files and folders to or from other hosts over SSH; one result a file, in order.

    sources, destination  as scp takes them (`locations.parse_location`): one side remote, the other local. A folder is copied with
                          all below it, as DESTINATION/its name; `folder/` copies what is in it. The destination is a folder if it
                          is one, ends in '/', or has to hold several things; else the file's new name. Missing folders are made.
    progress              called with (bytes done, bytes in all), from the calling thread

    Bytes go to NAME.part and are verified by SHA-256 at both ends before they take the name; a partial file of an earlier attempt
    is continued if its digest proves that it begins the file; a file that is there already is not sent again.
    TransferError, HostKeyError and DigestMismatch name host, path and remedy; UsageError for sides that do not fit.
    """
    options = options or Options()
    if options.ask is not None:
        options = replace(options, ask=cache(options.ask))  # a further connection does not ask again
    froms, to = [parse_location(s) for s in sources], parse_location(destination)
    _check_sides(froms, to)
    with ExitStack() as stack:
        remotes: dict[Location, Remote] = {}

        def remote(location: Location) -> Remote:
            key = Location(location.host, "", location.user, location.port)
            if key not in remotes:
                remotes[key] = Remote(location, options)
                stack.callback(remotes[key].close)
            return remotes[key]

        pairs = zip(sources, froms, strict=True)
        if to.remote:
            jobs = _puts(remote(to), [(text, Path(f.path)) for text, f in pairs], to.path, destination)
        else:
            jobs = [j for text, f in pairs for j in _gets(remote(f), f.path, text, Path(to.path), destination, len(sources) > 1)]
        _check_targets(jobs)
        return _run(jobs, to.remote, options, progress)


def _check_sides(froms: Sequence[Location], to: Location) -> None:
    if not froms:
        raise UsageError("nothing to transfer: no sources were given")
    kinds = {f.remote for f in froms}
    if kinds == {True, False}:
        raise UsageError("sources are partly local, partly remote; name them in separate transfers")
    if to.remote == froms[0].remote:
        both = "both sides are remote; run the transfer on one of the hosts" if to.remote else "neither side is remote; copy with cp"
        raise UsageError(f"{froms[0]} to {to}: {both}, or write one side as [user@]host:path")


class _Tally:
    """Bytes done over all jobs, told to the user's function; a job that starts again does not count twice."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._before = self._shown = 0

    def of(self, job: _Job) -> Meter:
        before = self._before
        self._before += job.size

        def meter(position: int) -> None:
            self._shown = max(self._shown, before + position)
            if self._progress is not None:
                self._progress(self._shown, self._total)

        return meter


def _run(jobs: Sequence[_Job], up: bool, options: Options, progress: Progress | None) -> list[FileResult]:
    tally, pace = _Tally(sum(j.size for j in jobs), progress), Pace(options.rate_limit)

    def move(job: _Job, meter: Meter) -> FileResult:
        if not options.dry_run:
            job.remote.choose(job.size, up=up)
        if up:
            return put(job.remote, Path(job.source), job.target, options, pace, meter)
        return get(job.remote, job.source, job.size, Path(job.target), options, pace, meter)

    return [persist(partial(move, job), job.remote, options, tally.of(job)) for job in jobs]


def persist(move: Callable[[Meter], FileResult], remote: Remote, options: Options, meter: Meter) -> FileResult:
    """Do it, again over a new connection when it is interrupted: at most `retries` times in a row without getting further."""
    furthest = 0
    moved_on = False

    def watched(position: int) -> None:
        nonlocal furthest, moved_on
        moved_on = moved_on or position > furthest
        furthest = max(furthest, position)
        meter(position)

    failures = 0
    while True:
        try:
            if failures:
                remote.reconnect()
            return move(watched)
        except Interrupted as error:
            failures = 1 if moved_on else failures + 1
            moved_on = False
            if failures > options.retries:
                if options.retries:
                    error.add_note(f"given up after {options.retries} more attempts")
                raise
            wait_s = BACK_OFF_S * 2 ** (failures - 1)
            options.note(f"{error}; trying again in {wait_s:g} s")
            time.sleep(wait_s)


def _puts(remote: Remote, sources: Sequence[tuple[str, Path]], target: str, destination: str) -> list[_Job]:
    target = remote.at(target)
    with failures_named(remote.label, target):
        kind = remote.names.stat(target).kind
    into = kind == "folder" or destination.endswith("/") or len(sources) > 1
    jobs: list[_Job] = []
    for text, path in sources:
        if path.is_dir():
            base = target if text.endswith("/") or path.name in ("", "..") else posixpath.join(target, path.name)
            files = _local_files(path)
            jobs.extend(_Job(remote, str(path / f), posixpath.join(base, *f.parts), (path / f).stat().st_size) for f in files)
        elif path.is_file():
            jobs.append(_Job(remote, str(path), posixpath.join(target, path.name) if into else target, path.stat().st_size))
        else:
            raise TransferError(f"{path}: no such file or folder; nothing was sent")
    return jobs


def _local_files(folder: Path) -> list[Path]:
    """Every file below a folder, relative to it, without partial and temporary ones; links to folders are not followed."""
    found = [Path(top, name) for top, _, names in os.walk(folder) for name in names]
    return sorted(p.relative_to(folder) for p in found if p.is_file() and p.suffix not in (PART_SUFFIX, ".tmp"))


def _gets(remote: Remote, path: str, text: str, target: Path, destination: str, several: bool) -> list[_Job]:
    path = remote.at(path)
    with failures_named(remote.label, path):
        found = remote.names.stat(path)
        if found.kind == "folder":
            name = posixpath.basename(path.rstrip("/"))
            base = target if text.endswith("/") or name in ("", ".", "..") else target / name
            files = [(f, size) for f, size in remote.names.walk(path) if not f.endswith((PART_SUFFIX, ".tmp"))]
            return [_Job(remote, posixpath.join(path, f), str(base / _safe(remote, path, f)), size) for f, size in files]
    if found.kind != "file":
        raise TransferError(
            f"{remote.label}:{path}: {'no such file or folder' if found.kind == 'none' else 'is not a file'}; nothing was fetched"
        )
    into = target.is_dir() or destination.endswith("/") or several
    return [_Job(remote, path, str(target / _safe(remote, path, posixpath.basename(path)) if into else target), found.size)]


def _safe(remote: Remote, path: str, name: str) -> Path:
    """A name the far host gave, refused where it would leave the destination."""
    parts = name.split("/")
    if any(p in ("", ".", "..") or "\x00" in p or os.sep in p.replace("/", "") for p in parts):
        raise TransferError(f"{remote.label}:{path}: the host lists a file {name!r}, which would land outside the destination; refused")
    return Path(*parts)


def _check_targets(jobs: Sequence[_Job]) -> None:
    seen: dict[str, str] = {}
    for j in jobs:
        if j.target in seen:
            raise UsageError(f"{seen[j.target]} and {j.source} would both become {j.target}; transfer them to different folders")
        seen[j.target] = j.source
