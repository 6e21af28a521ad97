"""What a dump file holds, apart from HDF5: names, the index and run documents, identity. docs/schema.md is the specification."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from accuracy_eval.errors import CorruptFile, NotADump, SchemaError, UsageError
from accuracy_eval.json_data import from_json, to_json
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
    lines: list[str] = []
    for record in records:
        if record.status != "done" or not record.tensors:
            lines.append(f"{record.id}\t{record.candidate}\t{record.status}\n")
        lines.extend(
            f"{record.id}\t{record.candidate}\t{t.name}\t{t.format}\t{'x'.join(map(str, t.shape))}\t{t.sha256}\n" for t in record.tensors
        )
    digest = hashlib.sha256(usedforsecurity=False)
    for line in sorted(lines):
        digest.update(line.encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One record with the JSON object it was read from (a newer minor version's extra keys live on in it) and its file.

    text  that object as `dump_json` writes it: a sixth of the memory of its dicts, ten thousand of which may be held
    """

    record: CaseRecord
    text: bytes
    file: Path

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def key(self) -> Key:
        return self.record.id, self.record.candidate


@dataclass(frozen=True)
class Run:
    """What is outside identity: the platforms the records were made on and when.

    platforms  distinct provenance objects
    assigned   key_text -> index into platforms, where it is not 0
    times      key_text -> whatever the writer noted about the time
    """

    platforms: tuple[Mapping[str, Any], ...] = ({},)
    assigned: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, Any] = field(default_factory=dict)


def key_text(key: Key) -> str:
    return f"{key[0]}@{key[1]}"


def dump_json(value: Any) -> bytes:
    """Compact ASCII JSON, keys sorted: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def load_json(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; CorruptFile naming `where` for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise CorruptFile(f"{where}: not JSON ({e}); the file is damaged or was not written by accuracy-eval") from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def index_document(info: Mapping[str, Any], entries: Iterable[Entry]) -> bytes:
    """As `dump_json` writes it; the records are not parsed again for it."""
    ordered = sorted(entries, key=lambda e: e.key)
    digest = content_digest(e.record for e in ordered).encode()
    return b'{"content_digest":"%b","info":%b,"records":[%b]}' % (digest, dump_json(to_json(info)), b",".join(e.text for e in ordered))


def parse_index(data: bytes, file: Path) -> tuple[dict[str, Any], list[Entry]]:
    """(info, entries in canonical order) of an index document, every field checked, content digest recomputed and compared."""
    where = f"{file}: /index"
    document = load_json(data, where)
    info, raw = document.get("info"), document.get("records")
    if not isinstance(info, dict) or not isinstance(raw, list):
        raise CorruptFile(f"{where}: expected 'info' (object) and 'records' (array), found {sorted(document)}")
    entries = [_parse_record(item, f"{where} record {i}", file) for i, item in enumerate(raw)]
    entries.sort(key=lambda e: e.key)
    for a, b in pairwise(entries):
        if a.key == b.key:
            raise CorruptFile(f"{where}: {a.record.id} candidate {a.record.candidate!r} occurs twice; a dump holds each once")
    found = content_digest(e.record for e in entries)
    if found != document.get("content_digest"):
        raise CorruptFile(
            f"{where}: content_digest {document.get('content_digest')!r} is stored, the records give {found}; "
            "the index was altered after it was written. Fetch the file again or dump again."
        )
    return info, entries


def _parse_record(item: Any, where: str, file: Path) -> Entry:
    try:
        record = from_json(CaseRecord, item)
        problem = _problem(record)
    except (UsageError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
        problem = f"{type(e).__name__}: {e}"
    if problem:
        raise CorruptFile(f"{where}: {problem}; the file is damaged or was not written by accuracy-eval")
    return Entry(record, dump_json(item), file)


def _problem(record: CaseRecord) -> str:
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


def run_document(run: Run) -> bytes:
    return dump_json({"platforms": to_json(run.platforms), "assigned": dict(run.assigned), "times": to_json(run.times)})


def parse_run(data: bytes, file: Path) -> Run:
    where = f"{file}: /run"
    document = load_json(data, where)
    platforms, assigned, times = document.get("platforms"), document.get("assigned", {}), document.get("times", {})
    good = isinstance(platforms, list) and platforms and all(isinstance(p, dict) for p in platforms)
    if not good or not isinstance(assigned, dict) or not isinstance(times, dict):
        raise CorruptFile(f"{where}: expected 'platforms' (objects), 'assigned' and 'times' (objects), found {sorted(document)}")
    count = len(platforms)  # type: ignore[arg-type]
    for name, i in assigned.items():
        if type(i) is not int or not 0 <= i < count:
            raise CorruptFile(f"{where}: platform {i!r} assigned to {name}, allowed: 0 … {count - 1}")
    return Run(tuple(platforms), assigned, times)  # type: ignore[arg-type]
