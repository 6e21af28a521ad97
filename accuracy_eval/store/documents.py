"""The two documents of a dump file, written and read in pieces: `index`, what was computed, and `run`, where and when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from accuracy_eval.errors import CorruptFile, UsageError
from accuracy_eval.json_data import from_json, to_json
from accuracy_eval.records import CaseRecord
from accuracy_eval.store.compact import Shared
from accuracy_eval.store.json_stream import members
from accuracy_eval.store.schema import Key, content_digest, dump_json, record_problem


@dataclass(frozen=True, slots=True)
class Entry:
    """One record and its file.

    text  the JSON object it was read from, as `dump_json` writes it, where the record does not say all of it: a newer minor version's
          extra keys live on in it
    """

    record: CaseRecord
    file: Path
    text: bytes = b""

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text) if self.text else to_json(self.record)
        return found

    def json(self) -> bytes:
        return self.text or dump_json(to_json(self.record))

    @property
    def key(self) -> Key:
        return self.record.id, self.record.candidate


@dataclass(frozen=True)
class Index:
    """What was computed: the dump as a whole, its records in canonical order, its identity."""

    info: Mapping[str, Any]
    entries: list[Entry]
    content_digest: str


@dataclass(frozen=True)
class Run:
    """What is outside identity: the platforms the records were made on and when.

    platforms  distinct provenance objects
    assigned   key_text -> index into platforms, where it is not 0
    times      key_text -> whatever the writer noted about the time, as JSON
    """

    platforms: tuple[Mapping[str, Any], ...] = ({},)
    assigned: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, bytes] = field(default_factory=dict)


def index_document(info: Mapping[str, Any], entries: Iterable[Entry]) -> Iterator[bytes]:
    """As `dump_json` writes it, in pieces."""
    ordered = sorted(entries, key=lambda e: e.key)
    digest = content_digest(e.record for e in ordered)
    yield b'{"content_digest":"%b","info":%b,"records":[' % (digest.encode(), dump_json(to_json(info)))
    yield from _joined(e.json() for e in ordered)
    yield b"]}"


def run_document(run: Run) -> Iterator[bytes]:
    """As `dump_json` writes it, in pieces."""
    yield b'{"assigned":%b,"platforms":%b,"times":{' % (dump_json(dict(run.assigned)), dump_json(to_json(run.platforms)))
    yield from _joined(b"%b:%b" % (dump_json(key), run.times[key]) for key in sorted(run.times))
    yield b"}}"


def _joined(texts: Iterable[bytes]) -> Iterator[bytes]:
    for number, text in enumerate(texts):
        if number:
            yield b","
        yield text


def parse_index(pieces: Iterable[bytes], file: Path, shared: Shared) -> Index:
    """An index document, every field checked, content digest recomputed and compared."""
    where = f"{file}: /index"
    document: dict[str, Any] = {}
    entries: list[Entry] = []
    for key, place, value in members(pieces, where, {"records": list}):
        if place is None:
            document[key] = value
        else:
            entries.append(_parse_record(value, f"{where} record {place}", file, shared))
    info = document.get("info")
    if not isinstance(info, dict) or not isinstance(document.get("records"), list):
        raise CorruptFile(f"{where}: expected 'info' (object) and 'records' (array), found {sorted(document)}")
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
    return Index(info, entries, found)


def _parse_record(item: Any, where: str, file: Path, shared: Shared) -> Entry:
    try:
        record = from_json(CaseRecord, item)
        problem = record_problem(record)
    except (UsageError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
        problem = f"{type(e).__name__}: {e}"
    if problem:
        raise CorruptFile(f"{where}: {problem}; the file is damaged or was not written by accuracy-eval")
    held = shared.compact(record)
    return Entry(held, file, b"" if to_json(held) == item else dump_json(item))


def parse_run(pieces: Iterable[bytes], file: Path) -> Run:
    where = f"{file}: /run"
    document: dict[str, Any] = {}
    times: dict[str, bytes] = {}
    for key, place, value in members(pieces, where, {"times": dict}):
        if place is None:
            document[key] = value
        elif value:
            times[str(place)] = dump_json(value)
    platforms, assigned = document.get("platforms"), document.get("assigned", {})
    good = isinstance(platforms, list) and platforms and all(isinstance(p, dict) for p in platforms)
    if not good or not isinstance(assigned, dict) or not isinstance(document.get("times", {}), dict):
        raise CorruptFile(f"{where}: expected 'platforms' (objects), 'assigned' and 'times' (objects), found {sorted(document)}")
    count = len(platforms)  # type: ignore[arg-type]
    for name, i in assigned.items():
        if type(i) is not int or not 0 <= i < count:
            raise CorruptFile(f"{where}: platform {i!r} assigned to {name}, allowed: 0 … {count - 1}")
    return Run(tuple(platforms), assigned, times)  # type: ignore[arg-type]
