"""Opening dumps for reading: documents at once, codes only when asked for, digests verified."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import CorruptFile, NotADump, SchemaError, UsageError
from accuracy_eval.formats import FORMATS, Codes, get_format
from accuracy_eval.json_data import to_json
from accuracy_eval.records import CaseRecord, TensorRecord
from accuracy_eval.store.guard import check_structure, damage_named, dataset, import_h5py, open_file
from accuracy_eval.store.joining import Contents, Item, join, load, load_all, of_one_device
from accuracy_eval.store.parts import part_files
from accuracy_eval.store.schema import ROLES, VERSIONS, Key, dump_json
from accuracy_eval.store.shards import Shards
from accuracy_eval.threads import map_threads

KEPT_OPEN = 8  # files at most: a folder of parts has one a case
MAP_FROM_BYTES = 1 << 16  # smaller tensors are read, larger ones mapped


class Dump:
    """A dump open for reading: a file, or a folder whose .h5 files (in subfolders too) are read as one dump.

    records         every CaseRecord, sorted by id and candidate
    info            suite, suite_digest and whatever else its writer put there
    platform        provenance of most records; `platforms` all distinct ones, `platform_of` that of one record
    content_digest  identity: recomputed from the records, and compared with the stored one, on opening
    files           the files it was read from

    Opening reads the documents only; a dataset is looked at, and its digest verified, when it is read. Safe to use from threads.
    """

    def __init__(self, path: Path, contents: Contents, files: tuple[Path, ...]) -> None:
        self.path = path
        self.files = files
        self.info: Mapping[str, Any] = contents.info
        self.records: list[CaseRecord] = [i.entry.record for i in contents.items]
        self.content_digest = contents.content_digest
        self.platforms = contents.run().platforms
        self.platform: Mapping[str, Any] = self.platforms[0]
        self._contents = contents
        self._items: dict[Key, Item] = {i.entry.key: i for i in contents.items}
        self._verified: set[tuple[Path, str]] = set()
        self._lenders: tuple[Dump, ...] = ()
        self._open: OrderedDict[Path, tuple[ExitStack, Any]] = OrderedDict()
        self._keeping = 0
        self._lock = RLock()

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Raises NotADump, SchemaError, CorruptFile or HostileFile, each naming the file and the place in it."""
        path = Path(path)
        if not path.is_dir():
            return cls(path, load(path), (path,))
        files = tuple(part_files(path))
        if not files:
            raise NotADump(f"{path}: a folder without .h5 files; expected a dump or a folder of its parts")
        return cls(path, join(of_one_device(load_all(files))), files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open between reads outside `kept_open`; mapped views keep their own hold on the file."""
        self._verified.clear()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Inside the block the files read last stay open: opening one costs more than reading a small tensor."""
        with self._lock:
            self._keeping += 1
        try:
            yield
        finally:
            with self._lock:
                self._keeping -= 1
                self._close_all_but(KEPT_OPEN if self._keeping else 0)

    def _close_all_but(self, count: int) -> None:
        while len(self._open) > count:
            self._open.popitem(last=False)[1][0].close()

    def documents_digest(self) -> str:
        """SHA-256 of all that the documents say but times: info, platforms, and records with their digests, reasons and notes."""
        items = self._contents.items
        platforms = {id(p): dump_json(to_json(p)) for p in {id(i.platform): i.platform for i in items}.values()}
        digest = hashlib.sha256(b"[%b,[" % dump_json(to_json(self.info)), usedforsecurity=False)
        for number, i in enumerate(items):
            said = dump_json(i.entry.key), i.entry.json(), platforms[id(i.platform)]
            digest.update(b",[%b]" % b",".join(said) if number else b"[%b]" % b",".join(said))
        digest.update(b"]]")
        return digest.hexdigest()

    def part_text(self) -> str:
        """How much of its suite the dump holds, how that was chosen, and in which shards; "" where that is all of it, or is not known."""
        total, chosen = self.info.get("suite_cases"), self.info.get("chosen")
        held = len({r.id for r in self.records})
        if type(total) is not int or held >= total or "suites" in self.info:
            return ""
        known = isinstance(chosen, list) and chosen and "chosen" not in self.info.get("joined", {})
        by = f", by {', '.join(map(str, chosen))}" if known and chosen else ""
        shards = Shards.of(self.info)
        return f"{held} of {total} cases of suite {self.info.get('suite')}{by}{f', {shards.text()}' if shards else ''}"

    def mixed(self) -> dict[str, dict[str, int]]:
        """Versions that its results do not share though those of one run do: name -> value -> how many results have it."""
        found = {name: Counter(str(i.platform.get(name)) for i in self._contents.items) for name in VERSIONS}
        return {name: dict(values.most_common()) for name, values in found.items() if len(values) > 1}

    def record(self, case_id: str, candidate: str = "default") -> CaseRecord:
        """The record of that case and candidate; UsageError where the dump has none."""
        return self._item(case_id, candidate).entry.record

    def platform_of(self, record: CaseRecord) -> Mapping[str, Any]:
        """Provenance of the process that made the record."""
        return self._item(record.id, record.candidate).platform

    def times_of(self, record: CaseRecord) -> Any:
        """What the writer noted about the record's time; None where it noted nothing."""
        return self._item(record.id, record.candidate).times

    def _item(self, case_id: str, candidate: str) -> Item:
        try:
            return self._items[case_id, candidate]
        except KeyError:
            others = sorted(c for i, c in self._items if i == case_id)
            found = f"it has candidates {', '.join(others)}" if others else f"it has {len(self._items)} others"
            raise UsageError(f"{self.path}: no case {case_id!r} of candidate {candidate!r}; {found}") from None

    def tensor(self, record: CaseRecord, name: str) -> TensorRecord:
        """The record's tensor of that name: the stored one where several share it, else output before input before source."""
        found = [t for t in record.tensors if t.name == name]
        if not found:
            names = ", ".join(dict.fromkeys(t.name for t in record.tensors)) or "none"
            raise UsageError(f"{self.path}: {record.id} has no tensor {name!r}; it has {names}")
        return min(found, key=lambda t: (not t.path, ROLES.index(t.role)))

    def borrow(self, lenders: Iterable[Dump]) -> None:
        """From now on codes that are here by their digest alone are read from a dump that holds the same bytes for the same case."""
        self._lenders = tuple(lenders)

    def readable(self, record: CaseRecord) -> bool:
        """Whether every output of a record can be read, here or from a lender."""
        return all(t.path or self._lent(record, t) for t in record.tensors if t.role == "output")

    def _lent(self, record: CaseRecord, t: TensorRecord) -> tuple[Dump, CaseRecord, TensorRecord] | None:
        for lender in self._lenders:
            item = lender._items.get((record.id, record.candidate))
            if item is None:
                continue
            record_there = item.entry.record
            for other in record_there.tensors:
                if other.path and (other.sha256, other.format, other.shape) == (t.sha256, t.format, t.shape):
                    return lender, record_there, other
        return None

    def read(self, record: CaseRecord, tensor: str | TensorRecord, *, verify: bool = True) -> Codes:
        """The codes, shape and dtype of the record, in memory of their own. `verify` compares their SHA-256 (CorruptFile)."""
        if lent := self._borrowed(record, tensor):
            return lent[0].read(lent[1], lent[2], verify=verify)
        t, file = self._stored(record, tensor)
        codes = self._read(t, file)
        if verify:
            self._verify(t, file, codes)
        return codes

    def view(self, record: CaseRecord, tensor: str | TensorRecord, *, verify: bool = True) -> Codes:
        """The codes as [rows, cols], read-only: cols is the last dimension (0-d and 1-d: one row).

        Large tensors are mapped, not read: memory is bounded by what the caller touches. `verify` reads those once, and only once
        for as long as the dump is open; small ones each time, for they are read anyway.
        """
        if lent := self._borrowed(record, tensor):
            return lent[0].view(lent[1], lent[2], verify=verify)
        t, file = self._stored(record, tensor)
        rows, cols = (math.prod(t.shape[:-1]), t.shape[-1]) if t.shape else (1, 1)
        codes = self._map(t, file)
        if codes is None:
            codes = self._read(t, file)
            codes.flags.writeable = False
            if verify:
                self._verify(t, file, codes)
        elif verify and (file, t.path) not in self._verified:  # only what is mapped can be viewed again without being read
            self._verify(t, file, codes)
            self._verified.add((file, t.path))
        return codes.reshape(rows, cols)

    def verify_all(self, *, threads: int | None = None, progress: Callable[[int, int], None] | None = None) -> int:
        """Verify every stored tensor, in threads; returns how many. CorruptFile lists all that differ.

        progress(done, total)  called with bytes, from any of the threads
        """
        work = [(r, t) for r in self.records for t in r.tensors if t.path]
        sizes = [math.prod(t.shape) * get_format(t.format).storage.itemsize if t.format in FORMATS else 0 for _, t in work]
        total, done = sum(sizes), 0

        def check(i: int) -> str:
            nonlocal done
            try:
                self.view(*work[i])
            except CorruptFile as e:
                return str(e)
            finally:
                done += sizes[i]
                if progress:
                    progress(done, total)
            return ""

        bad = [text for text in map_threads(check, range(len(work)), threads=threads) if text]
        if bad:
            raise CorruptFile("\n".join(bad))
        return len(work)

    def check_structure(self) -> int:
        """Walk everything in the files, index or not, and refuse what reading would refuse; returns the number of datasets."""
        count = 0
        for path in self.files:
            with open_file(path) as file:
                count += check_structure(file, path)
        return count

    @contextmanager
    def _file(self, path: Path) -> Iterator[Any]:
        """The open file, one thread at a time: HDF5 serialises its calls anyway."""
        with self._lock:
            if path not in self._open:
                stack = ExitStack()
                self._open[path] = stack, stack.enter_context(open_file(path))
            self._open.move_to_end(path)
            try:
                yield self._open[path][1]
            finally:
                self._close_all_but(KEPT_OPEN if self._keeping else 0)

    def _borrowed(self, record: CaseRecord, tensor: str | TensorRecord) -> tuple[Dump, CaseRecord, TensorRecord] | None:
        t = self.tensor(record, tensor) if isinstance(tensor, str) else tensor
        return None if t.path else self._lent(record, t)

    def _stored(self, record: CaseRecord, tensor: str | TensorRecord) -> tuple[TensorRecord, Path]:
        t = self.tensor(record, tensor) if isinstance(tensor, str) else tensor
        file = self._item(record.id, record.candidate).entry.file
        if not t.path:
            raise UsageError(f"{file}: {record.id} {t.role} {t.name!r} is recorded by its digest only; its codes are not in the file")
        if t.format not in FORMATS:
            raise SchemaError(f"{file}: {t.path}: unknown format {t.format!r}; a newer accuracy-eval wrote it. Update, or dump again.")
        return t, file

    def _open_dataset(self, file: Any, t: TensorRecord, path: Path) -> Any:
        ds = dataset(file, path, t.path)
        dtype = get_format(t.format).storage
        with damage_named(path, t.path):
            found = f"uint{8 * ds.get_type().get_size()} {list(ds.shape)}"
        wanted = f"uint{8 * dtype.itemsize} {list(t.shape)}"
        if found != wanted:
            raise CorruptFile(f"{path}: {t.path}: {found} stored, the index says {wanted} ({t.format}); the file is damaged")
        return ds

    def _read(self, t: TensorRecord, path: Path) -> Codes:
        h5py = import_h5py()
        with self._file(path) as file:
            ds = self._open_dataset(file, t, path)
            codes: NDArray[Any] = np.empty(t.shape, get_format(t.format).storage)
            if codes.size:
                with damage_named(path, t.path):
                    ds.read(h5py.h5s.ALL, h5py.h5s.ALL, codes)
        return codes

    def _map(self, t: TensorRecord, path: Path) -> Codes | None:
        """A read-only map of a contiguous, aligned, large dataset; None for any other."""
        h5py = import_h5py()
        dtype = get_format(t.format).storage
        if math.prod(t.shape) * dtype.itemsize < MAP_FROM_BYTES:
            return None
        with self._file(path) as file:
            ds = self._open_dataset(file, t, path)
            if ds.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS or ds.get_offset() % dtype.itemsize:
                return None
            offset = int(ds.get_offset())
        return np.memmap(path, dtype, "r", offset, t.shape)

    def _verify(self, t: TensorRecord, path: Path, codes: Codes) -> None:
        found = sha256_codes(codes)
        if found != t.sha256:
            raise CorruptFile(
                f"{path}: {t.path}: sha256 {found} of its bytes, {t.sha256} recorded; the file is damaged. Fetch it again or dump again."
            )
