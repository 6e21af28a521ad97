"""Many files into one: documents joined, codes copied byte for byte without passing through HDF5."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from accuracy_eval.errors import FileError, UsageError, counted
from accuracy_eval.formats import get_format
from accuracy_eval.records import CaseRecord, TensorRecord
from accuracy_eval.store import shards
from accuracy_eval.store.building import Builder, final_name
from accuracy_eval.store.compact import Shared
from accuracy_eval.store.documents import index_document, run_document
from accuracy_eval.store.guard import damage_named, dataset, import_h5py, open_file
from accuracy_eval.store.joining import Contents, Item, join, load, load_all, of_one_device
from accuracy_eval.store.parts import clean, completed, dataset_attributes, part_files, write_part
from accuracy_eval.store.reading import Dump
from accuracy_eval.store.schema import Key, dump_json

COPY_BYTES = 1 << 24


@dataclass(frozen=True)
class _Copy:
    """`size` bytes of `source` at `source_offset` to go to `offset` of the new file."""

    source: Path
    source_offset: int
    offset: int
    size: int


def pack(folder: str | Path, out: str | Path, *, keep_parts: bool = False, progress: Callable[[int, int], None] | None = None) -> Path:
    """All parts under `folder` as one dump file `out`; the parts are removed once it is complete unless `keep_parts`.

    Killed at any moment, either the parts or the finished file are whole. progress(bytes done, bytes in all).
    """
    folder, out = Path(folder), Path(out)
    aside = packed_parts(folder)
    remove_packed(folder)
    result = _write(join(load_all(_files([folder]))), out, progress)
    if not keep_parts:
        if not result.resolve().is_relative_to(folder.resolve()):
            # at once, not file by file: half a folder would look like a run to be resumed and packed over the result
            os.replace(folder, aside)
            _remove_parts(aside)
            if aside.is_dir():  # it held more than parts
                os.replace(aside, folder)
        else:
            _remove_parts(folder, keep=result)
    return result


def packed_parts(folder: Path) -> Path:
    """Where the parts of a folder are while they are removed: what is there is whole in the file they were packed into."""
    return folder.with_name(f"{folder.name}.packed")


def remove_packed(folder: Path) -> None:
    """Remove what is left of parts whose removal was interrupted."""
    aside = packed_parts(folder)
    if aside.is_dir():
        _remove_parts(aside)


def intact(folder: str | Path) -> tuple[set[Key], list[Path]]:
    """(case id, candidate) of every finished part under `folder` whose stored digests match: what a resumed run may keep and pack. And
    the parts that are damaged: their cases run again, and replace them.

    A folder that does not exist holds nothing.
    """
    folder = Path(folder)
    done, damaged = completed(folder), []
    for path in part_files(folder):
        keys: set[Key] = set()
        try:
            with Dump.open(path) as d:
                keys = {(r.id, r.candidate) for r in d.records}
                d.verify_all(threads=1)
        except FileError:  # one that cannot be opened at all is not among the finished
            done -= keys
            damaged.append(path)
    return done, damaged


def _remove_parts(folder: Path, keep: Path | None = None) -> None:
    """Remove the .h5 files and dead writers' temporary files under `folder`, then the folders that are left empty."""
    for path in part_files(folder):
        if keep is None or path.resolve() != keep.resolve():
            path.unlink()
    clean(folder)
    for path in [*sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True), folder]:
        if not any(path.iterdir()):
            path.rmdir()


def unpack(dump: str | Path, folder: str | Path) -> int:
    """Every case of a dump that did not fail as a part under `folder`, so that a run can be completed; returns how many. The dump stays."""
    d = Dump.open(dump)
    kept = [r for r in d.records if r.status != "error"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with d.kept_open():
        for r in kept:
            arrays = {t.name: d.read(r, t) for t in r.tensors if t.path}
            write_part(folder, r, arrays, info=d.info, platform=d.platform_of(r), times=d.times_of(r))
    return len(kept)


def merge(paths: Sequence[str | Path], out: str | Path, *, progress: Callable[[int, int], None] | None = None) -> Path:
    """Several dumps, shards or folders of parts as one dump file `out` (which may be one of them); returns its path.

    Equal records are kept once, so merging again changes nothing; records of the same case and candidate with different digests
    are a FileError naming both files, and so are dumps of different kinds of device. The result is the same in whatever order the
    paths are given. Codes are copied as they are, not verified: their digests travel along and are verified on reading.
    """
    there = Path(out)
    if there.exists() and not (there.is_file() and any(there.samefile(p) for p in map(Path, paths) if p.exists())):
        raise UsageError(f"{there} exists already and is not one of the dumps to merge; remove it or choose another name")
    return _write(join(of_one_device(load_all(_files(paths)))), Path(out), progress)


def extract(dump: str | Path, out: str | Path, *, keep: Callable[[CaseRecord], bool] = lambda record: True, codes: bool = True) -> Path:
    """A smaller dump for the way to another host: only records for which `keep` is true, and without `codes` their digests alone.

    UsageError when nothing is kept, or `out` exists.
    """
    source, there = Path(dump), Path(out)
    if there.exists():
        raise UsageError(f"{there} exists already; remove it or choose another name")
    whole = join(load_all(part_files(source) if source.is_dir() else [source]))
    shared = Shared()
    items = tuple(i if codes else _without_codes(i, shared) for i in whole.items if keep(i.entry.record))
    if not items:
        raise UsageError(f"{source}: none of its {counted(len(whole.items), 'result')} matches; nothing to extract")
    info = dict(whole.info)
    if len(items) < len(whole.items):
        for owed in ("expected", shards.KEY):  # what the whole suite, or a shard, owes is not owed by a part of it
            info.pop(owed, None)
        info["notes"] = [*info.get("notes", ()), f"{len(items)} of {len(whole.items)} results of the suite"]
    return _write(Contents(info, items), there)


def _without_codes(item: Item, shared: Shared) -> Item:
    entry = item.entry
    record = replace(entry.record, tensors=tuple(replace(t, path="") for t in entry.record.tensors))
    text = b""
    if entry.text:
        data = entry.data
        text = dump_json({**data, "tensors": [{**t, "path": ""} for t in data["tensors"]]})
    return replace(item, entry=replace(entry, record=shared.compact(record), text=text))


def _files(paths: Sequence[str | Path]) -> Iterable[Path]:
    """Every file to be joined, once."""
    files: list[Path] = []
    for p in map(Path, paths):
        found = part_files(p) if p.is_dir() else [p]
        if not found:
            raise UsageError(f"{p}: a folder without .h5 files; nothing to merge")
        files.extend(found)
    if not files:
        raise UsageError("nothing to merge: no paths were given")
    return dict.fromkeys(files)


def _write(contents: Contents, out: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """The records with whatever codes they have, as one file."""
    clean(out.parent, f"{glob.escape(out.name)}.*.tmp")  # a killed merge may have left gigabytes
    with final_name(out) as temporary:
        copies = _build(temporary, contents)
        total, done = sum(c.size for c in copies), 0
        with temporary.open("r+b") as target:
            for c in copies:
                _copy(c, target)
                done += c.size
                if progress:
                    progress(done, total)
    return out


def _build(temporary: Path, contents: Contents) -> list[_Copy]:
    """The new file with documents and room for every dataset; returns what must be copied into that room."""
    copies: list[_Copy] = []
    with Builder(temporary) as builder, _OpenFiles(i.entry.file for i in contents.items) as sources:
        # documents first: a reader that opens the file finds them in its first pages
        builder.document("index", index_document(contents.info, [i.entry for i in contents.items]))
        builder.document("run", run_document(contents.run()))
        for item in contents.items:
            record, source = item.entry.record, item.entry.file
            stored = [t for t in record.tensors if t.path]
            for t in stored:
                copies.extend(_place(builder, sources.get(source), source, record, t))
            sources.used(source)
    return copies


class _OpenFiles:
    """The last few source files, kept open until their last record: those of one file need not be neighbours in the order of the result.

    uses  the file of each record
    """

    LIMIT = 32

    def __init__(self, uses: Iterable[Path]) -> None:
        self._left = Counter(uses)
        self._open: dict[Path, tuple[Any, ExitStack]] = {}

    def __enter__(self) -> _OpenFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        for path in list(self._open):
            self._close(path)

    def get(self, path: Path) -> Any:
        if path not in self._open:
            if len(self._open) >= self.LIMIT:
                self._close(next(iter(self._open)))
            stack = ExitStack()
            self._open[path] = stack.enter_context(open_file(path)), stack
        return self._open[path][0]

    def used(self, path: Path) -> None:
        """A record of that file is done."""
        self._left[path] -= 1
        if not self._left[path] and path in self._open:
            self._close(path)

    def _close(self, path: Path) -> None:
        self._open.pop(path)[1].close()


def _place(builder: Builder, file: Any, source: Path, record: CaseRecord, t: TensorRecord) -> list[_Copy]:
    h5py = import_h5py()
    ds = dataset(file, source, t.path)
    dtype = get_format(t.format).storage
    with damage_named(source, t.path):
        same = tuple(ds.shape) == t.shape and ds.get_type().get_size() == dtype.itemsize
        plain = same and ds.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
        source_offset = ds.get_offset() if plain else None
    if not plain:  # chunked by another writer, or not what the index says: the reader decodes it or says what is wrong
        builder.dataset(t.path, Dump(source, load(source), (source,)).read(record, t), dataset_attributes(t))
        return []
    offset = builder.reserve(t.path, dtype, t.shape, dataset_attributes(t))
    if offset is None or source_offset is None:
        return []
    return [_Copy(source, int(source_offset), offset, int(ds.get_storage_size()))]


def _copy(c: _Copy, target: BinaryIO) -> None:
    with c.source.open("rb") as source:
        if hasattr(os, "copy_file_range") and _copy_in_kernel(c, source, target):
            return
        source.seek(c.source_offset)
        target.seek(c.offset)
        left = c.size
        while left:
            block = source.read(min(left, COPY_BYTES))
            if not block:
                raise OSError(f"{c.source}: ended {left} bytes early while being copied")
            target.write(block)
            left -= len(block)
        target.flush()


def _copy_in_kernel(c: _Copy, source: BinaryIO, target: BinaryIO) -> bool:
    """copy_file_range, which never passes the bytes through this process; False where the file systems cannot."""
    done = 0
    while done < c.size:
        try:
            n = os.copy_file_range(source.fileno(), target.fileno(), c.size - done, c.source_offset + done, c.offset + done)
        except OSError:
            return False
        if n == 0:
            return False
        done += n
    return True
