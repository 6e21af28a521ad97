"""What a dump finds of an earlier run at its place: whether it may go on from there, and what it does not keep."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from accuracy_eval import store
from accuracy_eval.cases import case_id
from accuracy_eval.dump.choosing import Known
from accuracy_eval.dump.running import Job
from accuracy_eval.errors import FileError, UsageError, counted
from accuracy_eval.locking import is_at, locked
from accuracy_eval.records import Case
from accuracy_eval.store.schema import SAME_RUN, Key


def taken_over(
    out: Path, parts: Path, info: Mapping[str, Any], provenance: Mapping[str, Any], *, resume: bool
) -> tuple[set[Key], list[Path]]:
    """The finished (case id, candidate) in `parts`, and its damaged files; a finished `out` is unpacked there first.

    `parts` must be locked: what another dump writes there is not to be looked at, and not to be written over.
    UsageError where either is there and the dump does not resume, or holds results of another suite, device or version.
    """
    store.remove_packed(parts)
    if out.exists() and not resume:
        raise UsageError(f"{out} exists already; complete it with --resume, remove it, or choose another name")
    if out.exists():
        _require_same_run(out, info, provenance)
        store.unpack(out, parts)
    finished, damaged = store.intact(parts)
    if store.part_files(parts) and not resume:
        raise UsageError(
            f"{parts} holds {counted(len(finished), 'result')} of an unfinished dump; go on with --resume (and --workers 1 where a case "
            "ended the process: it then costs itself alone), or remove it"
        )
    if finished:
        _require_same_run(parts / store.part_name(*min(finished)), info, provenance)
    return finished, damaged


def outdated(parts: Path, work: Sequence[Job], finished: Collection[Key], of: Callable[[Case], Sequence[Known]]) -> dict[Key, str]:
    """Of the finished (case id, candidate): those that came from other files than the user's candidate does now, and which files."""
    found: dict[Key, str] = {}
    for job in work:
        now = {k.name: dict(k.sources) for k in of(job.case) if not k.built_in}
        for name in job.candidates:
            key, base = (case_id(job.case), name), name.partition("+")[0]
            if base not in now or key not in finished:
                continue
            with store.Dump.open(parts / store.part_name(*key)) as d:
                before = dict(d.records[0].notes.get("sources", {}))
            differing = sorted(file for file, _ in before.items() ^ now[base].items())
            if differing:
                found[key] = " and ".join(dict.fromkeys(differing))
    return found


def again_text(stale: Mapping[Key, str], damaged: Sequence[Path]) -> list[str]:
    """Why results are run again: a sentence a candidate and what has changed, and one of files that are damaged."""
    numbers = Counter((name, files) for (_, name), files in stale.items())
    changed = [
        f"{counted(n, 'result')} of {name} {'is' if n == 1 else 'are'} run again: {files} {'have' if ' and ' in files else 'has'} changed"
        for (name, files), n in numbers.items()
    ]
    if not damaged:
        return changed
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    are = "are" if more else "is"
    return [*changed, f"{counted(len(damaged), 'damaged file')} of the earlier run {are} not kept: {damaged[0].name}{more}"]


@contextmanager
def only_writer(parts: Path) -> Iterator[None]:
    """The folder, made where it is not there and removed where it stays empty, locked for the block, or as long as this process lives.

    FileError where it cannot be made, UsageError when another dump writes there.
    """

    def opened() -> int:
        parts.mkdir(parents=True, exist_ok=True)
        return os.open(parts, os.O_RDONLY)

    try:
        handle = locked(parts, opened)
    except BlockingIOError:
        raise UsageError(f"{parts}: another dump is writing there; wait for it, or choose another file") from None
    except OSError as error:
        raise FileError(f"{parts}: cannot be made: {error.strerror}; name a file that can be written with -o") from error
    try:
        yield
    finally:
        if is_at(handle, parts):
            with suppress(OSError):  # results are in it
                parts.rmdir()
        os.close(handle)


@contextmanager
def kept_said(parts: Path) -> Iterator[None]:
    """A file that cannot be written, or is gone, is an error that says what is left of the dump and how to go on."""
    try:
        yield
    except FileError as error:
        if there := len(store.part_files(parts)):
            error.add_note(f"{counted(there, 'result')} of this dump {'is' if there == 1 else 'are'} kept in {parts}; go on with --resume")
        raise


def require_all(parts: Path, work: Sequence[Job]) -> None:
    """FileError where parts of jobs that are done are not in their folder any more: packing would leave them out."""
    names = [store.part_name(case_id(job.case), name) for job in work for name in job.candidates]
    gone = [name for name in names if not (parts / name).exists()]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise FileError(
            f"{parts}: {len(gone)} of {len(names)} results of this dump are gone, {gone[0]}{more}: something removed them while it ran; "
            "the same command with --resume runs them again"
        )


def _difference(name: str, before: Any, now: Any) -> str:
    """What was another in the run that is resumed, in words."""
    if name == "chosen":  # filters as the command line has them
        then, this = (", ".join(filters) or "no filter" for filters in (before, now))
        return f"it was made with {then}, this command has {this}"
    if name == "suite_digest":
        return f"its suite holds other cases (digest {before:.8} != {now:.8})"
    return f"{name} {before!r} != {now!r}"


def _require_same_run(path: Path, info: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """UsageError unless the results in a dump or a part were made by this suite on this device."""
    with store.Dump.open(path) as d:
        suite = {"suite_digest": d.info.get("suite_digest"), "chosen": d.info.get("chosen", [])}
        before = suite | {k: d.platform.get(k) for k in SAME_RUN}
        gone = _names(d.info.get("candidates", {})) - _names(info["candidates"])
    now = {**{k: info[k] for k in ("suite_digest", "chosen")}, **{k: provenance.get(k) for k in SAME_RUN}}
    different = [_difference(k, before[k], now[k]) for k in now if before[k] != now[k]]
    if different:
        raise UsageError(
            f"{path}: --resume goes on with results of another run: {'; '.join(different)}. "
            "Use the same suite, filters, seed, device and versions, or write to another file"
        )
    if gone:
        raise UsageError(
            f"{path}: --resume goes on with results of another run, in which {', '.join(sorted(gone))} was registered too. "
            "Register it again with the same --plugin FILE, or write to another file"
        )


def _names(registered: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {f"candidate {name} of {op}" for op, of_op in registered.items() for name in of_op}
