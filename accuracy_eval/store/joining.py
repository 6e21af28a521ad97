"""Several files as one dump: equal records are one, unequal ones of the same name are an error, the order given is irrelevant."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from accuracy_eval.errors import FileError
from accuracy_eval.json_data import to_json
from accuracy_eval.records import TensorRecord
from accuracy_eval.store import shards
from accuracy_eval.store.compact import Shared
from accuracy_eval.store.documents import Entry, Run, parse_index, parse_run
from accuracy_eval.store.guard import document, open_file
from accuracy_eval.store.schema import DEVICE, Key, content_digest, dump_json, key_text


@dataclass(frozen=True, slots=True)
class Item:
    """One record of one file with the platform and time its file gives for it: `timed`, as JSON, empty where there is none."""

    entry: Entry
    platform: Mapping[str, Any]
    timed: bytes = b""

    @property
    def times(self) -> Any:
        return json.loads(self.timed) if self.timed else None

    def rank(self) -> tuple[int, str, str, str, str]:
        """Which of several equal records is kept: the one with most codes stored, then by text, so that order does not matter."""
        stored = sum(bool(t.path) for t in self.entry.record.tensors)
        platform = dump_json(to_json(self.platform)).decode()
        return -stored, self.entry.json().decode(), platform, (self.timed or b"null").decode(), str(self.entry.file)


@dataclass(frozen=True)
class Contents:
    """The documents of a dump, whichever files they come from: items sorted by key."""

    info: Mapping[str, Any]
    items: tuple[Item, ...]
    stored_digest: str = ""  # of the file they come from, where they are all of one

    @cached_property
    def content_digest(self) -> str:
        return self.stored_digest or content_digest(i.entry.record for i in self.items)

    def run(self) -> Run:
        """The run document: distinct platforms, the one of most records first (ties by text)."""
        written = {id(i.platform): i.platform for i in self.items}  # items of one file share their platform: write each once
        text_of = {key: dump_json(to_json(platform)).decode() for key, platform in written.items()}
        texts = [text_of[id(i.platform)] for i in self.items]
        order = [text for text, _ in sorted(Counter(texts).items(), key=lambda x: (-x[1], x[0]))] or ["{}"]
        index = {text: i for i, text in enumerate(order)}
        keys = [key_text(i.entry.key) for i in self.items]
        return Run(
            tuple(json.loads(text) for text in order),
            {k: index[text] for k, text in zip(keys, texts, strict=True) if index[text]},
            {k: i.timed for k, i in zip(keys, self.items, strict=True) if i.timed},
        )


def load(path: Path, shared: Shared | None = None) -> Contents:
    """The documents of one file, checked; no dataset of codes is touched. Its records share parts with those `shared` knows."""
    with open_file(path) as file:
        index = parse_index(document(file, path, "/index"), path, shared or Shared())
        run = parse_run(document(file, path, "/run"), path)
    return Contents(index.info, tuple(_item(e, run) for e in index.entries), index.content_digest)


def _item(entry: Entry, run: Run) -> Item:
    key = key_text(entry.key)
    return Item(entry, run.platforms[run.assigned.get(key, 0)], run.times.get(key, b""))


def load_all(paths: Iterable[Path]) -> Iterator[Contents]:
    """The documents of several files, each as it comes."""
    shared = Shared()
    return (load(path, shared) for path in paths)


def of_one_device(contents: Iterable[Contents]) -> Iterator[Contents]:
    """The same, each as it comes; FileError where one is of another kind of device than those before it.

    One report on both would judge them as one device. What a platform does not say is taken to be equal.
    """
    known: dict[str, Item] = {}
    for c in contents:
        for item in {id(i.platform): i for i in c.items}.values():
            stated = [name for name in DEVICE if item.platform.get(name) is not None]
            for name in stated:
                if known.setdefault(name, item).platform[name] != item.platform[name]:
                    raise _two_devices(known[name], item)
        yield c


def _two_devices(a: Item, b: Item) -> FileError:
    differ = [n for n in DEVICE if None not in (a.platform.get(n), b.platform.get(n)) and a.platform[n] != b.platform[n]]
    of_a, of_b = (_device(i.platform, differ) for i in (a, b))
    return FileError(
        f"{a.entry.file} is of {of_a}, {b.entry.file} of {of_b}; one dump is of one kind of device. "
        "Dumps of different devices are compared (accuracy-eval compare), not merged."
    )


def _device(platform: Mapping[str, Any], fields: Iterable[str]) -> str:
    name = str(platform.get("device_name") or "a device")
    facts = ", ".join(f"{n} {platform[n]}" for n in fields if n != "device_name")
    return f"{name} ({facts})" if facts else name


def join(contents: Iterable[Contents]) -> Contents:
    """All of them as one. FileError naming both files and digests where two hold different results for one (case, candidate).

    Equal infos and platforms are held once: ten thousand parts of a dump have one between them.
    """
    kept: dict[Key, Item] = {}
    infos: dict[bytes, Mapping[str, Any]] = {}
    platforms: dict[bytes, Mapping[str, Any]] = {}
    for c in contents:
        infos.setdefault(dump_json(to_json(c.info)), c.info)
        shared: dict[int, Mapping[str, Any]] = {}
        for item in c.items:
            if id(item.platform) not in shared:
                shared[id(item.platform)] = platforms.setdefault(dump_json(to_json(item.platform)), item.platform)
            item = replace(item, platform=shared[id(item.platform)])
            other = kept.get(item.entry.key)
            if other is None:
                kept[item.entry.key] = item
                continue
            if content_digest([other.entry.record]) != content_digest([item.entry.record]):
                raise _conflict(other.entry, item.entry)
            if item.rank() < other.rank():
                kept[item.entry.key] = item
    return Contents(join_info(infos.values()), tuple(kept[k] for k in sorted(kept)))


def _conflict(a: Entry, b: Entry) -> FileError:
    if a.record.status != b.record.status:
        difference = f"status {a.record.status} ({a.file}) != {b.record.status} ({b.file})"
    else:
        left, right = ({(t.role, t.name): t for t in e.record.tensors} for e in (a, b))
        unequal = next(k for k in sorted({*left, *right}) if _text(left.get(k)) != _text(right.get(k)))
        difference = f"{unequal[0]} {unequal[1]!r}: {_text(left.get(unequal))} ({a.file}) != {_text(right.get(unequal))} ({b.file})"
    return FileError(
        f"{a.record.id} candidate {a.record.candidate!r} {difference}; one dump cannot hold both. "
        "Dumps of different devices, or of two runs that disagree, are compared, not merged."
    )


def _text(t: TensorRecord | None) -> str:
    return "absent" if t is None else f"{t.format} {list(t.shape)} sha256 {t.sha256}"


_OWN = ("suite", "suite_digest", "suites", "joined", "notes", shards.KEY)


def join_info(infos: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One info for several dumps, the same in any order and when repeated.

    Different suites are listed in `suites` and said in `notes`; shards are added up, and are none when all are there; a key with several
    values takes the first in text order and keeps all of them in `joined`.
    """
    suites: set[tuple[str, str]] = set()
    notes: set[str] = set()
    variants: dict[str, set[str]] = {}
    infos = list(infos)
    for info in infos:
        suites.update((str(n), str(d)) for n, d in info.get("suites", [(info.get("suite", ""), info.get("suite_digest", ""))]))
        notes.update(str(n) for n in info.get("notes", []) if not str(n).startswith(_NOTE))
        joined = info.get("joined", {})
        for key in {*info, *joined} - set(_OWN):
            values = joined.get(key, [info.get(key)])
            variants.setdefault(key, set()).update(dump_json(to_json(v)).decode() for v in values)
    result: dict[str, Any] = {key: json.loads(min(values)) for key, values in sorted(variants.items())}
    several = {key: [json.loads(v) for v in sorted(values)] for key, values in sorted(variants.items()) if len(values) > 1}
    if several:
        result["joined"] = several
    if len(suites) > 1:
        ordered = sorted(suites)
        result["suites"] = [list(s) for s in ordered]
        result["suite"] = " + ".join(dict.fromkeys(name for name, _ in ordered))
        result["suite_digest"] = hashlib.sha256(dump_json([list(s) for s in ordered]), usedforsecurity=False).hexdigest()
        notes.add(_NOTE + ", ".join(f"{name} ({digest[:12]})" for name, digest in ordered))
    elif suites and suites != {("", "")}:
        result["suite"], result["suite_digest"] = suites.pop()
    if held := shards.joined(infos):
        result |= held.info()
    if notes:
        result["notes"] = sorted(notes)
    return result


_NOTE = "joined from different suites: "
