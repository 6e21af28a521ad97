"""A dump's index in memory: what records share is held once, and no document is held whole."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support_store import INFO, PLATFORM, record, write, write_part

from accuracy_eval.errors import CorruptFile
from accuracy_eval.json_data import to_json
from accuracy_eval.records import CaseRecord, TensorRecord
from accuracy_eval.store import Dump, content_digest, merge
from accuracy_eval.store.building import METADATA_CACHE_BYTES, Builder
from accuracy_eval.store.compact import Shared
from accuracy_eval.store.guard import dataset, open_file
from accuracy_eval.store.json_stream import members


def _many(path: Path, count: int) -> Path:
    """A dump of `count` GEMM records with three operands and an output each, and what a run on a device notes of its time."""
    records, times = [], {}
    for seed in range(count):
        made, _ = record(seed=seed)
        extra = tuple(TensorRecord(n, "source", "float32", (6, 8), hashlib.sha256(f"{n}{seed}".encode()).hexdigest()) for n in "bc")
        output = dataclasses.replace(made.tensors[0], path=f"/cases/{made.id}/default/d")
        records.append(dataclasses.replace(made, tensors=(made.tensors[1], *extra, output), repeats=2, distinct={"d": 1}))
        stage = {"busy_s": seed * 1e-6, "bytes": 96, "from_s": seed * 1e-5, "to_s": seed * 1e-4}
        times[f"{made.id}@default"] = {"began": 1.7e9 + seed, "run_s": 0.01, "seat": "gpu 0", "stages": {"make": stage, "run": stage}}
    lines = [f"{r.id}\tdefault\t{t.name}\t{t.format}\t{'x'.join(map(str, t.shape))}\t{t.sha256}\n" for r in records for t in r.tensors]
    digest = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    documents = {
        "index": {"info": INFO, "records": [to_json(r) for r in records], "content_digest": digest},
        "run": {"platforms": [PLATFORM], "times": times},
    }
    with h5py.File(path, "w") as f:
        f.attrs["schema"] = "accuracy-eval-dump/1.0"
        for name, value in documents.items():
            data = json.dumps(value).encode()
            f[name] = np.frombuffer(data, np.uint8)
            f[name].attrs["sha256"] = np.bytes_(hashlib.sha256(data).hexdigest())
    return path


def _traced(path: Path) -> tuple[int, int]:
    """(bytes held by the open dump, most at a time while it was opened)."""
    tracemalloc.start()
    try:
        dump = Dump.open(path)
        held = tracemalloc.get_traced_memory()
        assert dump.records
        return held
    finally:
        tracemalloc.stop()


def test_an_open_dump_takes_little_memory_a_record(tmp_path: Path) -> None:
    """0.9 KB a record are held and 1.2 at most on the way; plain dataclasses beside the JSON they were read from took 4.8 and 9.6."""
    few, many = 1500, 3500  # more than a piece of their document
    small, large = (_traced(_many(tmp_path / f"{n}.h5", n)) for n in (few, many))
    held, most = ((b - a) / (many - few) for a, b in zip(small, large, strict=True))
    assert held < 1500
    assert most < 2000


def test_what_hdf5_keeps_of_a_file_that_is_read_through_stays_small(tmp_path: Path) -> None:
    """Half a kilobyte a dataset stayed, up to 32 MiB a file."""
    path = tmp_path / "many.h5"
    with h5py.File(path, "w", libver=("v108", "v110")) as f:
        f.attrs["schema"] = "accuracy-eval-dump/1.0"
        for i in range(1000):
            f[f"/cases/{i}/default/d"] = np.arange(4, dtype=np.uint16)
    with open_file(path) as file:
        for i in range(1000):
            dataset(file, path, f"/cases/{i}/default/d")
        assert file.get_mdc_size()[2] <= 1 << 18


def _varied() -> list[CaseRecord]:
    made, _ = record()
    stored = dataclasses.replace(made.tensors[0], path=f"/cases/{made.id}/default/d", attributes={"block": 32})
    options = [(("alpha", value),) for value in (1, 1.0, True, -0.0, 0.0)]
    return [
        made,
        dataclasses.replace(made, tensors=(stored, made.tensors[1]), distinct={"d": 2}, notes={"kernel": "Cijk", "worst": float("inf")}),
        dataclasses.replace(made, tensors=(), status="error", reason="out of memory"),
        *(dataclasses.replace(made, case=dataclasses.replace(made.case, options=o)) for o in options),
    ]


@pytest.mark.parametrize("number", range(len(_varied())))
def test_a_compact_record_says_the_same(number: int) -> None:
    records = _varied()
    shared = Shared()
    made, compact = records[number], [shared.compact(r) for r in records][number]
    assert compact == made
    assert made == compact
    assert json.dumps(to_json(compact)) == json.dumps(to_json(made))  # tells 1, 1.0 and true apart, 0.0 and -0.0 too
    assert repr(compact) == repr(made)
    assert copy.deepcopy(compact) == made  # by what pickle uses
    assert content_digest([compact]) == content_digest([made])


def test_tensors_of_a_compact_record_are_a_sequence() -> None:
    made, _ = record()
    tensors = Shared().compact(made).tensors
    assert (len(tensors), list(tensors), tensors[-1]) == (2, list(made.tensors), made.tensors[1])
    assert tensors[:1] == tuple(made.tensors[:1])
    assert made.tensors[1] in tensors
    assert tensors != made.tensors[:1]
    with pytest.raises(IndexError):
        tensors[2]


def test_a_tensor_that_differs_makes_records_differ() -> None:
    made, _ = record()
    other = dataclasses.replace(made, tensors=(dataclasses.replace(made.tensors[0], sha256="0" * 64), made.tensors[1]))
    assert Shared().compact(made) != other


def test_the_content_digest_is_of_all_lines_in_order_where_ids_begin_alike() -> None:
    made, _ = record()
    ids = [("a", "z"), ("a", "b"), ("a.b", "a"), ("a b", "c"), ("a#", "c"), ("a", "b.c"), ("A", "b"), ("é", "b"), ("aa", "b")]
    records = [dataclasses.replace(made, id=i, candidate=c) for i, c in ids]
    lines = [f"{r.id}\t{r.candidate}\t{t.name}\t{t.format}\t{t.shape[0]}x{t.shape[1]}\t{t.sha256}\n" for r in records for t in r.tensors]
    assert content_digest(records) == hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def test_keys_of_a_newer_minor_schema_survive_merging(tmp_path: Path) -> None:
    path = write(tmp_path)
    with h5py.File(path, "r+") as f:
        data = f["index"][()].tobytes().replace(b'"contract":', b'"colour":"red","contract":')
        del f["index"]
        f["index"] = np.frombuffer(data, np.uint8)
        f["index"].attrs["sha256"] = np.bytes_(hashlib.sha256(data).hexdigest())
    other, arrays = record(5)
    write_part(tmp_path, other, arrays, info=INFO, platform=PLATFORM)
    with h5py.File(merge([tmp_path], tmp_path / "out.h5")) as f:
        records = json.loads(f["index"][()].tobytes())["records"]
    assert [r.get("colour") for r in records] == ["red", None]


def _whole(document: bytes, size: int, apart: dict[str, type]) -> dict[str, Any]:
    """What `members` gives for a document in pieces of `size` bytes, put together again."""
    whole: dict[str, Any] = {}
    inside: dict[str, dict[Any, Any]] = {}
    for key, place, value in members([document[i : i + size] for i in range(0, len(document), size)], "x.h5: /index", apart):
        if place is not None:
            inside.setdefault(key, {})[place] = value
        elif parts := inside.pop(key, None):
            assert value == apart[key]()
            whole[key] = parts if value == {} else list(parts.values())
        else:
            whole[key] = value
    assert not inside
    return whole


DOCUMENTS = {
    "nested": {"info": {"a": [1, {"b": None}]}, "records": [{"x": 1}, [2, []], "three", 4.5, True, None], "content_digest": "ab"},
    "numbers": {"records": [12, -3, 1.25, 1e-300, 123456789012345678901234567890, 0], "n": 17},
    "text": {"records": ["é — 𝄞", 'quote " and \\ backslash', "\n", ""], "ключ": "значение"},
    "empty": {"records": [], "times": {}, "info": {}},
    "objects": {"times": {"a@b": {"t": 1}, "c": [], "": 0}, "records": {"not": "an array"}},
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_in_pieces_of_any_size_is_what_the_json_module_reads(name: str, size: int, indent: int | None) -> None:
    document = json.dumps(DOCUMENTS[name], indent=indent, ensure_ascii=False).encode()
    assert _whole(document, size, {"records": list, "times": dict}) == DOCUMENTS[name]


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("document", "found"),
    [
        (b"", r"not JSON \(Expecting value: character 0\)"),
        (b"[1, 2]", "expected a JSON object, found list"),
        (b'{"a": 1', r"not JSON \(expected , or }: character 7\)"),
        (b'{"a" 1}', r"not JSON \(expected :: character 5\)"),
        (b'{"a": 1,}', r"not JSON \(expected a name in double quotes: character 8\)"),
        (b'{"records": [1, 2}', r"not JSON \(expected , or ]: character 17\)"),
        (b'{"records": [1, nil]}', r"not JSON \(Expecting value: character 16\)"),
        (b'{"a": 1} {"b": 2}', r"not JSON \(Extra data: character 9\)"),
        (b'{"a": 1, "a": 2}', "key 'a' occurs twice"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": ' + b"[" * 100000, "not JSON"),
    ],
)
def test_a_document_that_is_no_json_object_is_refused_with_the_place(document: bytes, size: int, found: str) -> None:
    with pytest.raises(CorruptFile, match=rf"^x\.h5: /index: .*{found}"):
        _whole(document, size, {"records": list})


def test_metadata_of_a_file_being_written_stays_bounded(tmp_path: Path) -> None:
    with Builder(tmp_path / "a.h5") as builder:
        for number in range(2500):
            builder.reserve(f"/cases/exp.n4.s{number}/default/y", np.dtype(np.uint32), (4,), {"format": "float32", "role": "output"})
        _, _, held, _ = builder._file.get_mdc_size()
    assert held <= METADATA_CACHE_BYTES
