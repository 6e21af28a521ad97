"""What a dump file may hold, apart from HDF5: versions, names, fields, identity. docs/schema.md is the specification."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from accuracy_eval.errors import NotADump, SchemaError, UsageError
from accuracy_eval.records import CaseRecord, TensorRecord

SCHEMA_NAME = "accuracy-eval-dump"
SCHEMA_MAJOR, SCHEMA_MINOR = 1, 0
SCHEMA = f"{SCHEMA_NAME}/{SCHEMA_MAJOR}.{SCHEMA_MINOR}"
PRODUCER = "accuracy-eval"

STATUSES = ("done", "unsupported", "error")
ROLES = ("output", "input", "source")  # also the order in which a name is looked up

# of a platform, what is equal in all of a dump that one run on one device made: the device and the software that computes
DEVICE = ("label", "vendor", "arch", "device_name", "backend", "fp8_encoding")
VERSIONS = ("torch_version", "library.cublas.version", "driver_version", "accuracy_eval_version")
SAME_RUN = (*DEVICE, *VERSIONS)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNNAMEABLE = re.compile(r"[/\x00-\x1f\x7f\ud800-\udfff]")
_FORMAT = re.compile(r"[A-Za-z0-9_]{1,64}")

Key = tuple[str, str]  # case id, candidate


def check_schema(found: str, file: Path) -> None:
    """Raise NotADump for another program's file, SchemaError for a major version this one does not read."""
    name, _, version = found.partition("/")
    if name != SCHEMA_NAME:
        raise NotADump(f"{file}: root attribute 'schema' is {found!r}, expected {SCHEMA!r}; the file was not written by accuracy-eval")
    match = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", version)
    if match is None or int(match[1]) != SCHEMA_MAJOR:
        raise SchemaError(
            f"{file}: schema {found!r} cannot be read; this version reads {SCHEMA_NAME}/{SCHEMA_MAJOR}.x. "
            "Read it with the accuracy-eval that wrote it, or dump again."
        )


def check_name(kind: str, name: str) -> str:
    """`name` where it may be a link in the file: not empty, '.' or '..', no '/' and no control character. Else UsageError."""
    if not name or name in (".", "..") or _UNNAMEABLE.search(name):
        raise UsageError(
            f"{kind} {name!r} cannot be stored: it must not be empty, '.' or '..' and must hold no '/' and no control character"
        )
    return name


def dataset_path(case_id: str, candidate: str, tensor: str) -> str:
    """Where the codes of a stored tensor lie."""
    return f"/cases/{case_id}/{candidate}/{tensor}"


def content_digest(records: Iterable[CaseRecord]) -> str:
    """Identity of a dump: SHA-256 over the sorted lines that say what was computed. Order, time and host do not enter.

    One line a tensor: id, candidate, tensor, format, shape as 2x3 (0-d: empty), sha256, separated by tabs. One line for a record
    that is not done or has no tensor: id, candidate, status. Reasons and notes do not enter.
    """
    digest = hashlib.sha256(usedforsecurity=False)
    # no name holds a character below the tab, so all lines of one key lie between those of its neighbours
    for _, same in groupby(sorted(records, key=_key), key=_key):
        digest.update("".join(sorted(line for record in same for line in _lines(record))).encode())
    return digest.hexdigest()


def _key(record: CaseRecord) -> Key:
    return record.id, record.candidate


def _lines(record: CaseRecord) -> list[str]:
    """The lines of a record in the content digest."""
    start = f"{record.id}\t{record.candidate}\t"
    lines = [f"{start}{t.name}\t{t.format}\t{_shape_text(t.shape)}\t{t.sha256}\n" for t in record.tensors]
    return lines if lines and record.status == "done" else [*lines, f"{start}{record.status}\n"]


@lru_cache(maxsize=1024)
def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def key_text(key: Key) -> str:
    return f"{key[0]}@{key[1]}"


def dump_json(value: Any) -> bytes:
    """Compact ASCII JSON, keys sorted: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def record_problem(record: CaseRecord) -> str:
    """Why the record cannot be used, "" where it can."""
    check_name("case id", record.id)
    check_name("candidate", record.candidate)
    if record.status not in STATUSES:
        return f"status {record.status!r}, allowed: {', '.join(STATUSES)}"
    stored: set[str] = set()
    for t in record.tensors:
        problem = _tensor_problem(record, t)
        if not problem and t.path and t.name in stored:
            problem = "two stored tensors have this name"
        if problem:
            return f"{record.id} candidate {record.candidate!r} tensor {t.name!r}: {problem}"
        if t.path:
            stored.add(t.name)
    return ""


def _tensor_problem(record: CaseRecord, t: TensorRecord) -> str:
    check_name("tensor name", t.name)
    if t.role not in ROLES:
        return f"role {t.role!r}, allowed: {', '.join(ROLES)}"
    if not isinstance(t.format, str) or not _FORMAT.fullmatch(t.format):
        return f"format {t.format!r} is not a name"
    if len(t.shape) > 32 or not all(type(n) is int and 0 <= n < 1 << 48 for n in t.shape):
        return f"shape {t.shape!r}, allowed: at most 32 sizes of 0 … 2^48"
    if not isinstance(t.sha256, str) or not _SHA256.fullmatch(t.sha256):
        return f"sha256 {t.sha256!r} is not 64 hex digits"
    wanted = dataset_path(record.id, record.candidate, t.name)
    if t.path not in ("", wanted):
        return f"path {t.path!r}, allowed: {wanted!r} or empty"
    return ""
