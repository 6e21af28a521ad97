"""Creating dump files: the HDF5 properties every file shares, and the way a finished file gets its final name."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import FileError
from accuracy_eval.leaving import keep
from accuracy_eval.store.guard import DOCUMENT_PIECE_BYTES, import_h5py, limit_metadata
from accuracy_eval.store.schema import PRODUCER, SCHEMA

ALIGN_FROM_BYTES = 1 << 16  # datasets of this size and larger start on a page, so that they can be mapped and copied whole
ALIGN_BYTES = 4096
METADATA_CACHE_BYTES = 1 << 20  # of some 1,600 datasets; half of HDF5's own, and never more
_serial = count()
_serial_lock = threading.Lock()


class Builder:
    """An HDF5 file being written, as a context manager. Nothing in it depends on the time: equal content gives equal bytes.

    OSError or RuntimeError of HDF5, from whatever call, where the disk does not take it: the file is none then.
    """

    def __init__(self, path: Path) -> None:
        self._h5py = h5py = import_h5py()
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        # the format of HDF5 1.8: checksums on all metadata, compact small groups; 1.10 readers are common
        access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V110)
        access.set_alignment(ALIGN_FROM_BYTES, ALIGN_BYTES)
        access.set_file_locking(False, True)  # the name is this writer's alone; some cluster file systems have no locks
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)  # with the file, everything opened through it
        access.set_sieve_buf_size(0)  # codes that do not fit on the disk are an error of their write, not one that nobody hears
        limit_metadata(access, METADATA_CACHE_BYTES)
        creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
        creation.set_obj_track_times(False)  # of the root group
        self._folder = path.parent
        self._file = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, creation, access)
        self._groups: dict[str, Any] = {"": self._file}  # open ones: a path of groups, not all of them
        self._group_properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        self._group_properties.set_obj_track_times(False)
        self._set_text(self._file, "schema", SCHEMA)
        self._set_text(self._file, "producer", PRODUCER)

    def document(self, name: str, pieces: Iterable[bytes]) -> None:
        """Store JSON bytes as a dataset of uint8 with their SHA-256. Long ones wait on the disk until their size is known."""
        h5py, digest = self._h5py, hashlib.sha256(usedforsecurity=False)
        with SpooledTemporaryFile(DOCUMENT_PIECE_BYTES, dir=os.fspath(self._folder)) as spool:
            for piece in pieces:
                digest.update(piece)
                spool.write(piece)
            ds = self._create(f"/{name}", np.dtype(np.uint8), (spool.tell(),), {"sha256": digest.hexdigest()})
            spool.seek(0)
            for first in count(0, DOCUMENT_PIECE_BYTES):
                data = np.frombuffer(spool.read(DOCUMENT_PIECE_BYTES), np.uint8)
                if not data.size:
                    break
                space = ds.get_space()
                space.select_hyperslab((first,), data.shape)
                ds.write(h5py.h5s.create_simple(data.shape), space, data)

    def dataset(self, path: str, codes: NDArray[Any], attributes: Mapping[str, str]) -> None:
        """Store contiguous little-endian codes, straight from the array's own memory."""
        ds = self._create(path, codes.dtype, codes.shape, attributes)
        if codes.size:
            ds.write(self._h5py.h5s.ALL, self._h5py.h5s.ALL, codes)

    def reserve(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], attributes: Mapping[str, str]) -> int | None:
        """Make room for codes that will be copied in once the file is closed; returns their offset (None: no bytes)."""
        offset: int | None = self._create(path, dtype, shape, attributes).get_offset()
        return offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._abandon()
            return
        try:
            self._h5py.h5f.flush(self._file)
        except (OSError, RuntimeError):
            self._abandon()
            raise
        self._close()

    def _close(self) -> None:
        self._groups.clear()
        self._file.close()

    def _abandon(self) -> None:
        """Close a file that is not wanted any more. HDF5 crashes at the end of a process in which it holds one that it cannot write: what
        it still has to say goes to memory, and where that cannot be the process ends without it."""
        try:
            nowhere = os.memfd_create("abandoned")
            os.dup2(nowhere, self._file.get_vfd_handle())
            os.close(nowhere)
            self._close()
        except (AttributeError, OSError, RuntimeError):  # a system without such files; a limit on the size of files is theirs too
            keep(self._file)

    def _create(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], attributes: Mapping[str, str]) -> Any:
        h5py = self._h5py
        parent, _, name = path.rpartition("/")
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.CONTIGUOUS)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # every byte is written once, by its codes
        properties.set_obj_track_times(False)
        space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
        kind = h5py.h5t.py_create(dtype.newbyteorder("<"))
        ds = h5py.h5d.create(self._group(parent), name.encode(), kind, space, dcpl=properties)
        for key, text in attributes.items():
            self._set_text(ds, key, text)
        return ds

    def _group(self, path: str) -> Any:
        """The group at `path`, made where it is not there yet. Groups that do not lie on the way are closed."""
        if path not in self._groups:
            name = path.rpartition("/")[2].encode()
            parent = self._group(path.rpartition("/")[0])
            self._groups = {p: g for p, g in self._groups.items() if path.startswith(f"{p}/")}
            there = parent.links.exists(name)
            self._groups[path] = (
                self._h5py.h5g.open(parent, name) if there else self._h5py.h5g.create(parent, name, gcpl=self._group_properties)
            )
        return self._groups[path]

    def _set_text(self, obj: Any, key: str, text: str) -> None:
        """An attribute of fixed length: a variable one would cost every file a heap of 4 KiB."""
        h5py = self._h5py
        value = np.array(text.encode())
        kind = h5py.h5t.py_create(value.dtype, logical=True)
        attribute = h5py.h5a.create(obj, key.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
        attribute.write(value)


@contextmanager
def final_name(path: Path) -> Iterator[Path]:
    """Yields a temporary name in the same folder; on success its bytes reach the disk before `path` names them.

    A kill at any moment leaves `path` as it was, or whole. On an exception the temporary file is removed; FileError with the system's
    reason where the folder cannot be made, or the disk does not take the file.
    """
    with _serial_lock:
        serial = next(_serial)
    temporary = path.with_name(f"{path.name}.{_host_tag()}-{os.getpid()}-{serial}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError) and (reason := _system_reason(error)):
            raise FileError(f"{path}: cannot be written: {reason}; make room there, or name another place with -o") from error
        raise


def _system_reason(error: OSError | RuntimeError) -> str:
    """Why the system refused, also where HDF5 says it within a text of its own; "" where it did not."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    told = re.search(r"\berrno = (\d+)", str(error))
    return os.strerror(int(told[1])) if told else ""


def sync(path: Path) -> None:
    """fsync a file or, where the system can, a folder."""
    if path.is_dir() and os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def abandoned(temporary: Path) -> bool:
    """Whether a temporary file's writer is gone: a process of this host that no longer runs. Another host's are left alone."""
    tag, _, rest = temporary.name.removesuffix(".tmp").rpartition(".")[2].partition("-")
    pid = rest.partition("-")[0]
    if tag != _host_tag() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _host_tag() -> str:
    return hashlib.sha256(socket.gethostname().encode(), usedforsecurity=False).hexdigest()[:8]
