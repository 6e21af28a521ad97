"""From what the user names to files: which go where, over which connection."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from accuracy_eval.errors import Interrupted, TransferError, UsageError
from accuracy_eval.transfer.bundles import BATCH, TOOLS, Small, get_many, put_many
from accuracy_eval.transfer.fetching import get
from accuracy_eval.transfer.links import failures_named
from accuracy_eval.transfer.locations import PART_SUFFIX, FileResult, Location, Options, parse_location
from accuracy_eval.transfer.pacing import Pace
from accuracy_eval.transfer.remote import SMALL_BYTES, Remote
from accuracy_eval.transfer.sending import put
from accuracy_eval.transfer.trips import Meter, Trip

T = TypeVar("T")
MANY = 32  # small files from here travel together
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

    sources, destination  as scp takes them (`locations.parse_location`): either side remote, or both, through here. A folder is copied with
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
    if to.remote and froms[0].remote:
        return _relay(sources, destination, options, progress)
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
    if not to.remote and not froms[0].remote:
        raise UsageError(f"{froms[0]} to {to}: neither side is remote; copy with cp, or write one side as [user@]host:path")


def _relay(sources: Sequence[str], destination: str, options: Options, progress: Progress | None) -> list[FileResult]:
    """From host to host through a folder of this one, which stays until all has arrived: an interrupted relay goes on from there."""
    key = hashlib.sha256("\0".join([*sources, destination]).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accuracy-eval" / f"relay-{key}"
    fetched: list[FileResult] = []
    staged = []
    for number, source in enumerate(sources):
        folder = cache / str(number)
        fetched += transfer([source], f"{folder}/", options=options, progress=progress)
        if not options.dry_run:
            staged += [f"{folder}/"] if source.endswith("/") else [str(p) for p in folder.iterdir() if p.suffix != PART_SUFFIX]
    if options.dry_run:
        return [replace(f, destination=destination) for f in fetched]
    first = {f.destination: f.source for f in fetched}
    sent = transfer(staged, destination, options=options, progress=progress)
    shutil.rmtree(cache)
    return [replace(f, source=first[f.source]) for f in sent]


class _Tally:
    """Bytes done over all jobs, told to the user's function; a job that starts again does not count twice."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._before = self._shown = 0

    def of(self, size: int) -> Meter:
        before = self._before
        self._before += size

        def meter(position: int) -> None:
            self._shown = max(self._shown, before + position)
            if self._progress is not None:
                self._progress(self._shown, self._total)

        return meter


def _run(jobs: Sequence[_Job], up: bool, options: Options, progress: Progress | None) -> list[FileResult]:
    tally, pace = _Tally(sum(j.size for j in jobs), progress), Pace(options.rate_limit)

    def move(job: _Job, meter: Meter) -> FileResult:
        if not options.dry_run:
            job.remote.choose(job.size)
        trip = Trip(job.remote, options, pace, meter)
        return put(trip, Path(job.source), job.target) if up else get(trip, job.source, job.size, Path(job.target))

    results: dict[_Job, FileResult] = {}
    for folder, batch in _batches(jobs, up) if not options.dry_run else ():
        remote = batch[0].remote
        many = partial(_move_many, remote, up, folder, batch)
        moved = persist(many, remote, options, tally.of(sum(j.size for j in batch)))
        results |= dict(zip(batch, moved, strict=True))
        pace.spend(sum(j.size for j in batch))
    for job in jobs:
        if job not in results:
            results[job] = persist(partial(move, job), job.remote, options, tally.of(job.size))
    return [results[j] for j in jobs]


def _batches(jobs: Sequence[_Job], up: bool) -> Iterator[tuple[str, list[_Job]]]:
    """(folder there, jobs) of small files to be moved together, where there are many and the host can."""
    small: dict[Remote, list[_Job]] = {}
    for j in jobs:
        if j.size <= SMALL_BYTES:
            small.setdefault(j.remote, []).append(j)
    for remote, found in small.items():
        with failures_named(remote.label, "asking for tar"):
            if len(found) < MANY or remote.shell is None or not remote.shell.has(*TOOLS):
                continue
        folder = posixpath.commonpath([posixpath.dirname(j.target if up else j.source) or "." for j in found])
        for start in range(0, len(found), BATCH):
            yield folder, found[start : start + BATCH]


def _move_many(remote: Remote, up: bool, folder: str, jobs: Sequence[_Job], meter: Meter) -> list[FileResult]:
    assert remote.shell is not None
    files = [Small(Path(j.source if up else j.target), posixpath.relpath(j.target if up else j.source, folder)) for j in jobs]
    results = (put_many if up else get_many)(remote, remote.shell, folder, files)
    meter(sum(j.size for j in jobs))
    return results


def persist(move: Callable[[Meter], T], remote: Remote, options: Options, meter: Meter) -> T:
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
        kind = remote.look(target).kind
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
    return sorted(p.relative_to(folder) for p in found if p.is_file() and _finished(str(p.relative_to(folder))))


def _finished(name: str) -> bool:
    """Whether neither a file nor a folder above it is of a transfer or a dump that still goes on."""
    return not any(part.endswith((PART_SUFFIX, ".tmp")) for part in name.split("/"))


def _gets(remote: Remote, path: str, text: str, target: Path, destination: str, several: bool) -> list[_Job]:
    path = remote.at(path)
    with failures_named(remote.label, path):
        found = remote.look(path)
        if found.kind == "folder":
            name = posixpath.basename(path.rstrip("/"))
            base = target if text.endswith("/") or name in ("", ".", "..") else target / name
            files = [(f, size) for f, size in remote.names.walk(path) if _finished(f)]
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
