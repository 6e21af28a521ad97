"""The working form of a dump: one small dump file per (case, candidate), each written whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.digests import sha256_many
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.formats import get_format
from accuracy_eval.json_data import to_json
from accuracy_eval.records import CaseRecord, TensorRecord
from accuracy_eval.store.building import Builder, abandoned, final_name
from accuracy_eval.store.compact import Shared
from accuracy_eval.store.documents import Entry, Index, Run, index_document, parse_index, run_document
from accuracy_eval.store.guard import document, open_file
from accuracy_eval.store.schema import ROLES, STATUSES, Key, check_name, dataset_path, dump_json, key_text

MAX_NAME_BYTES = 200  # of 255 that file systems take: room for the temporary suffix


def part_name(case_id: str, candidate: str) -> str:
    """File name of a part: `<id>@<candidate>.h5`; characters that need care are written %XX, a long name ends in a hash."""
    check_name("case id", case_id)
    check_name("candidate", candidate)
    stem = "@".join(re.sub(r"[^A-Za-z0-9._+=,#-]", _percent, text) for text in (case_id, candidate))
    if len(stem) + 3 > MAX_NAME_BYTES:
        digest = hashlib.sha256(key_text((case_id, candidate)).encode(), usedforsecurity=False).hexdigest()[:16]
        stem = f"{stem[: MAX_NAME_BYTES - 20]}~{digest}"
    return f"{stem}.h5"


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{b:02X}" for b in match[0].encode())


def write_part(
    folder: str | Path,
    record: CaseRecord,
    arrays: Mapping[str, NDArray[Any]],
    *,
    info: Mapping[str, Any],
    platform: Mapping[str, Any],
    times: Mapping[str, Any] | None = None,
) -> Path:
    """Write one case of one candidate; returns the part's path. Its final name appears only when all its bytes are on disk.

    arrays    codes by tensor name: unsigned (or, for integer formats, signed) integers of the record's shape and format; written
              from their own memory where contiguous. Tensors of the record without codes are recorded, not stored.
    record    digests are taken as given (`digests.sha256_codes` of the codes); an empty one is computed here
    info      suite, suite_digest and whatever else belongs to the dump as a whole; the same for every part
    platform  provenance; outside identity, as are `times`
    UsageError where a record and its arrays do not fit, FileError where the disk does not take the part.
    """
    folder = Path(folder)
    stored, entry = _prepare(record, arrays)
    run = Run((platform,), times={key_text(entry.key): dump_json(to_json(times))} if times else {})
    path = folder / part_name(record.id, record.candidate)
    with final_name(path) as temporary, Builder(temporary) as builder:
        for tensor in entry.record.tensors:
            if tensor.path:
                builder.dataset(tensor.path, stored[tensor.name], dataset_attributes(tensor))
        builder.document("index", index_document(info, [entry]))
        builder.document("run", run_document(run))
    return path


def dataset_attributes(tensor: TensorRecord) -> dict[str, str]:
    """What a stored dataset says about itself to a reader without the index."""
    return {"format": tensor.format, "role": tensor.role, "sha256": tensor.sha256}


def _prepare(record: CaseRecord, arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], Entry]:
    where = f"{record.id} candidate {record.candidate!r}"
    if record.status not in STATUSES:
        raise UsageError(f"{where}: status {record.status!r}, allowed: {', '.join(STATUSES)}")
    tensors = list(record.tensors)
    chosen: dict[str, int] = {}
    for i, t in enumerate(tensors):
        check_name("tensor name", t.name)
        if t.role not in ROLES:
            raise UsageError(f"{where} tensor {t.name!r}: role {t.role!r}, allowed: {', '.join(ROLES)}")
        if t.name in arrays and (t.name not in chosen or ROLES.index(t.role) < ROLES.index(tensors[chosen[t.name]].role)):
            chosen[t.name] = i
    missing = sorted(set(arrays) - set(chosen))
    if missing:
        raise UsageError(f"{where}: codes given for {', '.join(missing)}, but the record has no such tensor")
    stored = {name: _plain_codes(arrays[name], tensors[i], where) for name, i in chosen.items()}
    unknown = [name for name, i in chosen.items() if not tensors[i].sha256]
    computed = dict(zip(unknown, sha256_many(stored[name] for name in unknown), strict=True))
    for i, t in enumerate(tensors):
        mine = chosen.get(t.name) == i
        path = dataset_path(record.id, record.candidate, t.name) if mine else ""
        tensors[i] = dataclasses.replace(t, path=path, sha256=t.sha256 or (computed[t.name] if mine else ""))
        if not tensors[i].sha256:
            raise UsageError(f"{where} tensor {t.name!r}: neither codes nor a digest; give one of them")
    complete = dataclasses.replace(record, tensors=tuple(tensors))
    return stored, Entry(complete, Path())


def _plain_codes(codes: NDArray[Any], tensor: TensorRecord, where: str) -> NDArray[Any]:
    storage = get_format(tensor.format).storage
    if tuple(codes.shape) != tuple(tensor.shape) or codes.dtype.kind not in "ui" or codes.dtype.itemsize != storage.itemsize:
        raise UsageError(
            f"{where} tensor {tensor.name!r}: codes of shape {tuple(codes.shape)} and dtype {codes.dtype}, "
            f"expected {tuple(tensor.shape)} and {storage} for {tensor.format}"
        )
    # little-endian, C order; asarray copies only where the array is something else (ascontiguousarray would make 0-d 1-d)
    little = np.asarray(codes, codes.dtype.newbyteorder("<"), order="C")
    return little.view(storage)


def part_files(folder: Path) -> list[Path]:
    """Every .h5 file under `folder`, sorted."""
    return sorted(p for p in folder.rglob("*.h5") if p.is_file())


def completed(folder: str | Path) -> set[Key]:
    """(case id, candidate) of every readable part under `folder`: what a resumed run need not do again. A case that failed is done again.

    A part that cannot be read is not complete; the case's next run replaces it. Temporary files whose writer is gone are removed.
    A folder that does not exist holds nothing.
    """
    done: set[Key] = set()
    for index in _readable(Path(folder)):
        done.update(e.key for e in index.entries if e.record.status != "error")
    clean(Path(folder))
    return done


def _readable(folder: Path) -> Iterator[Index]:
    for path in part_files(folder):
        try:
            with open_file(path) as file:
                index = parse_index(document(file, path, "/index"), path, Shared())
        except FileError:
            continue
        yield index


def clean(folder: Path, pattern: str = "**/*.h5.*.tmp") -> None:
    """Remove temporary files of that pattern whose writer is gone."""
    for path in folder.glob(pattern):
        if abandoned(path):
            path.unlink(missing_ok=True)
