"""Opening HDF5 files nobody vouches for: only hard links, only plain datasets, nothing outside the file, nothing absurd.

What is checked when:
- `open_file`: it is HDF5, complete, and says it is a dump of a schema that can be read. Plugins are off before HDF5 is loaded.
- `dataset`: every link on the way to one dataset, then the dataset's type, storage, filters and size, before a byte is read.
- `check_structure`: the same for everything reachable in the file, and that nothing is reached twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from accuracy_eval.errors import CorruptFile, HostileFile, NotADump
from accuracy_eval.store.schema import check_schema

MAX_BYTES = 1 << 40  # of one dataset
MAX_DOCUMENT_BYTES = 1 << 30  # of /index and /run: 10,000 cases take about 15 MB
DOCUMENT_PIECE_BYTES = 1 << 20
METADATA_CACHE_BYTES = 1 << 18  # HDF5's own grows to 32 MiB a file; a dataset is looked up once
MAX_EXPANSION = 100  # uncompressed over stored bytes; a real gzip of codes stays below 10
FREE_EXPANSION_BYTES = 1 << 24  # below this an expansion costs nothing
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
_loading = Lock()


def import_h5py() -> Any:
    """h5py, loaded with HDF5's filter plugins switched off: a file must not be able to name a library to load.

    Where h5py was in use before, its plugins stay as they are; a dataset with such a filter is refused all the same.
    """
    with _loading:  # the first two files of a process may be opened by two threads
        return _load_h5py()


@cache
def _load_h5py() -> Any:
    before = os.environ.get("HDF5_PLUGIN_PRELOAD")
    os.environ["HDF5_PLUGIN_PRELOAD"] = "::"  # HDF5's own name for "no plugins"
    try:
        import h5py
        import h5py.h5pl
        from h5py._objects import phil

        with phil:  # h5pl is the one module whose calls do not take h5py's lock: beside another thread's they corrupt or crash HDF5
            h5py.h5pl.size()  # any call of the plugin interface makes the library read the variable, once for all
    finally:
        if before is None:
            del os.environ["HDF5_PLUGIN_PRELOAD"]
        else:
            os.environ["HDF5_PLUGIN_PRELOAD"] = before
    return h5py


def limit_metadata(access: Any, size: int) -> None:
    """Let the cache of a file's metadata hold that many bytes of the file, which are twenty times as many of memory."""
    cache = access.get_mdc_config()
    cache.max_size = cache.initial_size = size
    cache.min_size = min(cache.min_size, size)
    access.set_mdc_config(cache)


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """The low-level h5py file, read-only and without locks (read-only media have none), once it has proved to be a readable dump.

    Low-level: closing an h5py.File searches every object open in the process, which makes 10,000 files quadratic.
    """
    h5py = import_h5py()
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_file_locking(False, True)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)  # with the file, everything opened through it
    limit_metadata(access, METADATA_CACHE_BYTES)
    try:
        file = h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY, access)
    except OSError as e:
        if _holds_results(path):
            raise NotADump(
                f"{path}: results of a comparison, not a dump; show them with accuracy-eval report, or name the dumps they are of"
            ) from None
        raise NotADump(f"{path}: {_why_not_hdf5(path, e)}. Fetch or dump it again.") from None
    try:
        with damage_named(path, "/"):
            check_schema(_root_text(file, "schema", path), path)
        yield file
    finally:
        file.close()


def _holds_results(path: Path) -> bool:
    """Whether the file begins like a results.json."""
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as f:
        return f.read(64).startswith(b'{\n "schema": "accuracy-eval-results/')


def _why_not_hdf5(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) or not path.exists():
        return "no such file"
    if path.is_dir():
        return "is a directory, not a file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if path.stat().st_size == 0:
        return "is empty, expected HDF5"
    with path.open("rb") as f:
        signature = f.read(8)
    if signature != b"\x89HDF\r\n\x1a\n":
        return f"not HDF5: begins with {signature.hex(' ')}, expected 89 48 44 46 0d 0a 1a 0a"
    return f"HDF5, but truncated or damaged ({' '.join(str(error).split())})"


def _root_text(file: Any, name: str, path: Path) -> str:
    """A root attribute of one short string; NotADump where it is missing or something else."""
    h5py = import_h5py()
    if not h5py.h5a.exists(file, name.encode()):
        raise NotADump(f"{path}: HDF5 without a root attribute {name!r}; the file was not written by accuracy-eval")
    attribute = h5py.h5a.open(file, name.encode())
    kind = attribute.get_type()
    if kind.get_class() != h5py.h5t.STRING or attribute.shape != () or (not kind.is_variable_str() and kind.get_size() > 4096):
        raise NotADump(f"{path}: root attribute {name!r} is not one short string; the file was not written by accuracy-eval")
    holder = np.empty((), attribute.dtype)
    attribute.read(holder)
    value: Any = holder[()]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def damage_named(path: Path, place: str) -> Iterator[None]:
    """Turns what h5py raises about damaged metadata into CorruptFile with file and place."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as e:
        text = " ".join(str(e).split())
        raise CorruptFile(f"{path}: {place}: HDF5 cannot read it ({text}); the file is damaged. Fetch it again or dump again.") from None


def dataset(file: Any, path: Path, name: str, *, max_bytes: int = MAX_BYTES) -> Any:
    """The low-level dataset at `name` ("/a/b/c"), every link on the way hard and the dataset fit to be read.

    Raises CorruptFile where it is missing, HostileFile where reading it would leave the file or take absurd resources.
    """
    h5py = import_h5py()
    with damage_named(path, name):
        here = file
        *groups, last = name.strip("/").split("/")
        place = ""
        for part in groups:
            place = f"{place}/{part}"
            here = _hard_child(h5py, here, part, path, place, "group")
        here = _hard_child(h5py, here, last, path, f"{place}/{last}", "dataset")
        check_dataset(h5py, here, path, name, max_bytes=max_bytes)
    return here


def _hard_child(h5py: Any, group: Any, part: str, path: Path, place: str, kind: str) -> Any:
    """The child of that kind ("group", "dataset"), or of any ("")."""
    encoded = part.encode()
    if not group.links.exists(encoded):
        raise CorruptFile(f"{path}: {place}: missing; the index names it. Fetch the file again or dump again.")
    link = group.links.get_info(encoded).type
    if link != h5py.h5l.TYPE_HARD:
        names = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
        raise HostileFile(f"{path}: {place}: {names.get(link, 'a user-defined link')}; a dump holds hard links only. Do not use this file.")
    if kind:
        with suppress(KeyError):  # of another kind; asked by kind, HDF5 takes half the time
            return (h5py.h5d if kind == "dataset" else h5py.h5g).open(group, encoded)
    found = h5py.h5o.open(group, encoded)
    if kind:
        raise CorruptFile(f"{path}: {place}: expected a {kind}, found {type(found).__name__}; the file is damaged")
    return found


def check_dataset(h5py: Any, ds: Any, path: Path, name: str, *, max_bytes: int = MAX_BYTES) -> None:
    """HostileFile unless the dataset is plain: its bytes in this file, known filters only, little-endian unsigned, of sane size."""

    def refuse(reason: str) -> HostileFile:
        return HostileFile(f"{path}: {name}: {reason}. Do not use this file.")

    plist = ds.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        raise refuse("virtual dataset; its bytes would come from other files")
    if layout == h5py.h5d.CONTIGUOUS and plist.get_external_count():
        raise refuse(f"external storage in {plist.get_external(0)[0]!r}; its bytes would come from another file")
    kind = ds.get_type()
    if not isinstance(kind, h5py.h5t.TypeIntegerID) or kind.get_size() not in (1, 2, 4, 8):
        raise refuse(f"element type {_type_name(h5py, kind)}, allowed: unsigned integers of 8, 16, 32 or 64 bits")
    if kind.get_sign() != h5py.h5t.SGN_NONE or (kind.get_size() > 1 and kind.get_order() != h5py.h5t.ORDER_LE):
        raise refuse("element type is signed or big-endian, allowed: little-endian unsigned integers")
    if kind.get_precision() != 8 * kind.get_size():
        raise refuse(f"element type of {kind.get_precision()} bits in {kind.get_size()} bytes, allowed: full bytes")
    space = ds.get_space()
    if space.get_simple_extent_type() not in (h5py.h5s.SIMPLE, h5py.h5s.SCALAR):
        raise refuse("null dataspace, allowed: simple or scalar")
    size = kind.get_size()
    for n in space.shape:
        size *= int(n)
    if size > max_bytes:
        raise refuse(f"{size} bytes, allowed: {max_bytes}")
    _check_storage(h5py, ds, plist, layout, size, path, refuse)


def _check_storage(h5py: Any, ds: Any, plist: Any, layout: int, size: int, path: Path, refuse: Any) -> None:
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    for f in filters:
        if f not in FILTERS:
            raise refuse(f"filter {f}, allowed: none, {', '.join(f'{i} ({n})' for i, n in FILTERS.items())}")
    if size == 0:
        return
    stored = int(ds.get_storage_size())
    file_size = path.stat().st_size
    if layout == h5py.h5d.CONTIGUOUS:
        offset = ds.get_offset()
        if offset is None or stored < size or offset + size > file_size:
            raise refuse(f"{size} bytes claimed, {stored} stored at {offset} of a file of {file_size}")
    elif stored > file_size or (size > FREE_EXPANSION_BYTES and size > MAX_EXPANSION * stored):
        raise refuse(f"{size} bytes out of {stored} stored, allowed: {MAX_EXPANSION} times as many (a decompression bomb)")


def _type_name(h5py: Any, kind: Any) -> str:
    names = {
        h5py.h5t.FLOAT: "float", h5py.h5t.STRING: "string", h5py.h5t.BITFIELD: "bitfield", h5py.h5t.OPAQUE: "opaque",
        h5py.h5t.COMPOUND: "compound", h5py.h5t.REFERENCE: "reference", h5py.h5t.ENUM: "enum", h5py.h5t.VLEN: "variable length",
        h5py.h5t.ARRAY: "array", h5py.h5t.TIME: "time",
    }  # fmt: skip
    return names.get(kind.get_class(), f"integer of {kind.get_size()} bytes")


def document(file: Any, path: Path, name: str) -> Iterator[bytes]:
    """The bytes of /index or /run in pieces, once all of them have proved to give the SHA-256 stored beside them."""
    h5py = import_h5py()
    ds = dataset(file, path, name, max_bytes=MAX_DOCUMENT_BYTES)
    with damage_named(path, name):
        if ds.rank != 1 or ds.get_type().get_size() != 1:
            raise CorruptFile(f"{path}: {name}: expected one row of bytes, found shape {ds.shape}; the file is damaged")
        wanted = _sha256_attribute(h5py, ds)
        # a chunk, however large, would be decoded again for every piece of it
        plain = ds.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
        places = _places(int(ds.shape[0]), DOCUMENT_PIECE_BYTES if plain else MAX_DOCUMENT_BYTES)
        digest, piece = hashlib.sha256(usedforsecurity=False), b""
        for place in places:
            piece = _read_bytes(h5py, ds, place)
            digest.update(piece)
    if digest.hexdigest() != wanted:
        raise CorruptFile(
            f"{path}: {name}: sha256 {digest.hexdigest()} of its bytes, {wanted} stored; the file is damaged. Fetch or dump it again."
        )
    for place in places:
        if len(places) > 1:
            with damage_named(path, name):
                piece = _read_bytes(h5py, ds, place)
        yield piece


def _places(size: int, step: int) -> list[range]:
    return [range(first, min(first + step, size)) for first in range(0, size, step)]


def _read_bytes(h5py: Any, ds: Any, place: range) -> bytes:
    data = np.empty(len(place), np.uint8)
    if data.shape == ds.shape:
        ds.read(h5py.h5s.ALL, h5py.h5s.ALL, data)
        return data.tobytes()
    space = ds.get_space()
    space.select_hyperslab((place.start,), data.shape)
    ds.read(h5py.h5s.create_simple(data.shape), space, data)
    return data.tobytes()


def _sha256_attribute(h5py: Any, ds: Any) -> str:
    if not h5py.h5a.exists(ds, b"sha256"):
        return "none"
    attribute = h5py.h5a.open(ds, b"sha256")
    if attribute.get_type().get_class() != h5py.h5t.STRING or attribute.get_type().get_size() != 64 or attribute.shape != ():
        return "something that is not a digest"
    value = np.empty((), "S64")
    attribute.read(value)
    return bytes(value[()]).decode("ascii", "replace")


def check_structure(file: Any, path: Path) -> int:
    """Walk everything reachable in the file and refuse what `dataset` would; returns the number of datasets.

    An object reached twice is refused too: a cycle never ends, and shared groups can make a small file endless.
    """
    h5py = import_h5py()
    seen = {_address(h5py, file)}
    todo: list[tuple[Any, str]] = [(file, "")]
    count = 0
    with damage_named(path, "/"):
        while todo:
            group, prefix = todo.pop()
            for encoded in list(group):
                place = f"{prefix}/{encoded.decode('utf-8', 'replace')}"
                child = _hard_child(h5py, group, encoded.decode("utf-8", "surrogateescape"), path, place, "")
                address = _address(h5py, child)
                if address in seen:
                    raise HostileFile(f"{path}: {place}: a second link to the same object, allowed: one. Do not use this file.")
                seen.add(address)
                if isinstance(child, h5py.h5g.GroupID):
                    todo.append((child, place))
                elif isinstance(child, h5py.h5d.DatasetID):
                    check_dataset(h5py, child, path, place)
                    count += 1
                else:
                    raise HostileFile(f"{path}: {place}: a named type; a dump holds groups and datasets only. Do not use this file.")
    return count


def _address(h5py: Any, obj: Any) -> tuple[int, int]:
    info = h5py.h5o.get_info(obj)
    return int(info.fileno), int(info.addr)
