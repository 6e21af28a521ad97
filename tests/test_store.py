from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from support_store import INFO, PLATFORM, codes_of, record, sha256, tensor, unsupported, write

from accuracy_eval.digests import sha256_codes, sha256_many
from accuracy_eval.errors import CorruptFile, NotADump, SchemaError, UsageError
from accuracy_eval.formats import FORMATS
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.store import Dump, completed, content_digest, pack, part_name, write_part

SHAPES = [(), (1,), (0,), (7,), (0, 3), (3, 0), (2, 3), (2, 0, 4), (2, 3, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_codes_come_back_as_they_were_written(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    codes = codes_of(name, shape)
    made = dataclasses.replace(record()[0], tensors=(tensor("d", name, codes),))
    path = write_part(tmp_path, made, {"d": codes}, info=INFO, platform=PLATFORM)
    with Dump.open(path) as dump:
        read = dump.read(dump.records[0], "d")
        view = dump.view(dump.records[0], "d")
    assert read.dtype == FORMATS[name].storage
    assert read.shape == shape
    assert np.array_equal(read, codes)
    assert view.shape == ((int(np.prod(shape[:-1])), shape[-1]) if shape else (1, 1))
    assert np.array_equal(view.reshape(-1), codes.reshape(-1))
    assert not view.flags.writeable


def test_large_tensors_are_mapped_and_aligned(tmp_path: Path) -> None:
    codes = codes_of("float64", (300, 101))
    made = dataclasses.replace(record()[0], tensors=(tensor("d", "float64", codes),))
    with Dump.open(write_part(tmp_path, made, {"d": codes}, info=INFO, platform=PLATFORM)) as dump:
        view = dump.view(dump.records[0], "d")
    assert isinstance(view, np.memmap)
    assert view.flags.aligned
    assert np.array_equal(view[17:20], codes[17:20])


def test_a_part_holds_what_its_record_says(tmp_path: Path) -> None:
    made, arrays = record(4, 6)
    made = dataclasses.replace(made, repeats=2, distinct={"d": 1}, notes={"kernel": "Cijk", "worst": float("inf")})
    path = write_part(tmp_path, made, arrays, info=INFO, platform=PLATFORM, times={"started": "2026-11-30T12:00:00Z"})
    assert path == tmp_path / "gemm.m4.n6.k8.nt.bfloat16.normal.s0@default.h5"
    assert os.listdir(tmp_path) == [path.name]
    with Dump.open(path) as dump:
        assert dump.info == INFO
        assert dump.platform == PLATFORM
        assert dump.times_of(made) == {"started": "2026-11-30T12:00:00Z"}
        stored = dataclasses.replace(made.tensors[0], path=f"/cases/{made.id}/default/d")
        assert dump.records == [dataclasses.replace(made, tensors=(stored, made.tensors[1]))]


def test_any_hdf5_reader_finds_the_codes_and_their_meaning(tmp_path: Path) -> None:
    made, arrays = record(4, 6)
    path = write_part(tmp_path, made, arrays, info=INFO, platform=PLATFORM)
    with h5py.File(path) as f:
        assert f.attrs["schema"] == b"accuracy-eval-dump/1.0"
        ds = f[f"cases/{made.id}/default/d"]
        assert ds.dtype == np.dtype("<u2")
        assert ds.chunks is None
        assert {k: v.decode() for k, v in ds.attrs.items()} == {"format": "bfloat16", "role": "output", "sha256": made.tensors[0].sha256}
        assert np.array_equal(ds[()], arrays["d"])


def test_signed_codes_are_stored_as_unsigned_bits(tmp_path: Path) -> None:
    codes = np.array([[-1, 5, -(2**31)]], np.int32)
    made = dataclasses.replace(record()[0], tensors=(TensorRecord("d", "output", "int32", (1, 3), ""),))
    with Dump.open(write_part(tmp_path, made, {"d": codes}, info=INFO, platform=PLATFORM)) as dump:
        assert dump.read(dump.records[0], "d").tolist() == [[0xFFFFFFFF, 5, 0x80000000]]


@pytest.mark.parametrize(
    "make", [np.asfortranarray, lambda c: c[::-1], lambda c: c.astype(c.dtype.newbyteorder(">"))], ids=["fortran", "reversed", "big"]
)
def test_layout_and_byte_order_in_memory_do_not_reach_the_file(tmp_path: Path, make: object) -> None:
    codes = make(codes_of("float32", (9, 5)))  # type: ignore[operator]
    made = dataclasses.replace(record()[0], tensors=(TensorRecord("d", "output", "float32", (9, 5), ""),))
    with Dump.open(write_part(tmp_path, made, {"d": codes}, info=INFO, platform=PLATFORM)) as dump:
        assert np.array_equal(dump.read(dump.records[0], "d"), codes)
        assert dump.records[0].tensors[0].sha256 == sha256(np.ascontiguousarray(codes))


def test_inputs_are_not_modified(tmp_path: Path) -> None:
    made, arrays = record()
    before = arrays["d"].copy()
    arrays["d"].flags.writeable = False
    write_part(tmp_path, made, arrays, info=INFO, platform=PLATFORM)
    assert np.array_equal(arrays["d"], before)
    assert made.tensors[0].path == ""


def test_a_tensor_without_codes_is_recorded_but_not_readable(tmp_path: Path) -> None:
    path = write(tmp_path)
    with Dump.open(path) as dump, pytest.raises(UsageError) as e:
        dump.read(dump.records[0], "a")
    assert str(e.value) == (
        f"{path}: gemm.m4.n6.k8.nt.bfloat16.normal.s0 source 'a' is recorded by its digest only; its codes are not in the file"
    )


def test_codes_that_do_not_fit_their_record_are_refused(tmp_path: Path) -> None:
    made, arrays = record(4, 6)
    with pytest.raises(
        UsageError, match=r"tensor 'd': codes of shape \(6, 4\) and dtype uint16, expected \(4, 6\) and uint16 for bfloat16"
    ):
        write_part(tmp_path, made, {"d": arrays["d"].T}, info=INFO, platform=PLATFORM)
    with pytest.raises(UsageError, match="codes given for e, but the record has no such tensor"):
        write_part(tmp_path, made, {"e": arrays["d"]}, info=INFO, platform=PLATFORM)
    with pytest.raises(UsageError, match="dtype float32"):
        write_part(tmp_path, made, {"d": np.zeros((4, 6), np.float32)}, info=INFO, platform=PLATFORM)
    bare = dataclasses.replace(made, tensors=(dataclasses.replace(made.tensors[0], sha256=""),))
    with pytest.raises(UsageError, match="neither codes nor a digest"):
        write_part(tmp_path, bare, {}, info=INFO, platform=PLATFORM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "a\x00b"])
def test_names_that_cannot_be_links_are_refused(tmp_path: Path, name: str) -> None:
    made, arrays = record()
    with pytest.raises(UsageError, match="cannot be stored"):
        write_part(tmp_path, dataclasses.replace(made, candidate=name), arrays, info=INFO, platform=PLATFORM)
    with pytest.raises(UsageError, match="cannot be stored"):
        write_part(tmp_path, dataclasses.replace(made, id=name), arrays, info=INFO, platform=PLATFORM)


def test_part_names_are_safe_short_and_distinct() -> None:
    assert part_name("exp.m4", "default") == "exp.m4@default.h5"
    assert part_name("exp.m4", "my kernel") == "exp.m4@my%20kernel.h5"
    assert part_name("a@b", "c") != part_name("a", "b@c")
    long = [part_name("x" * 300 + end, "default") for end in "ab"]
    assert long[0] != long[1]
    assert all(len(n.encode()) <= 200 for n in [*long, part_name("é" * 90, "é" * 90)])


def test_completed_lists_readable_parts_only(tmp_path: Path) -> None:
    assert completed(tmp_path / "none") == set()
    good, broken = write(tmp_path, m=4), write(tmp_path, m=5)
    broken.write_bytes(broken.read_bytes()[:-100])
    made = unsupported()
    write_part(tmp_path, made, {}, info=INFO, platform=PLATFORM)
    assert good.exists()
    assert completed(tmp_path) == {("gemm.m4.n6.k8.nt.bfloat16.normal.s0", "default"), (made.id, "default")}


def test_completed_removes_temporary_files_of_dead_writers_only(tmp_path: Path) -> None:
    import multiprocessing

    from accuracy_eval.store.building import _host_tag

    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    dead = tmp_path / f"x.h5.{_host_tag()}-{process.pid}-0.tmp"
    alive = tmp_path / f"x.h5.{_host_tag()}-{os.getpid()}-0.tmp"
    elsewhere = tmp_path / f"x.h5.00000000-{process.pid}-0.tmp"
    for p in (dead, alive, elsewhere):
        p.touch()
    completed(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, elsewhere])


def test_a_failed_write_leaves_the_earlier_part_and_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr("accuracy_eval.store.parts.run_document", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_equal_content_gives_equal_bytes_at_any_time(tmp_path: Path) -> None:
    path = write(tmp_path / "1")
    assert path.read_bytes() == write(tmp_path / "2").read_bytes()
    with h5py.File(path) as f:
        objects = [f.id, f["cases"].id, f["index"].id, f["cases/gemm.m4.n6.k8.nt.bfloat16.normal.s0/default/d"].id]
        assert [h5py.h5o.get_info(o).ctime for o in objects] == [0, 0, 0, 0]


def test_content_digest_is_the_hash_of_the_documented_lines() -> None:
    made, arrays = record(4, 6)
    skipped = unsupported()
    lines = [
        f"{made.id}\tdefault\td\tbfloat16\t4x6\t{sha256(arrays['d'])}\n",
        f"{made.id}\tdefault\ta\tfloat32\t4x8\t{made.tensors[1].sha256}\n",
        f"{skipped.id}\tdefault\tunsupported\n",
    ]
    assert content_digest([made, skipped]) == hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def test_content_digest_ignores_order_reason_notes_and_time(tmp_path: Path) -> None:
    made, arrays = record()
    a, b = [made, unsupported("one")], [unsupported("another"), dataclasses.replace(made, notes={"kernel": "x"})]
    assert content_digest(a) == content_digest(b)
    one = write_part(tmp_path / "1", made, arrays, info=INFO, platform=PLATFORM, times={"t": 1})
    two = write_part(tmp_path / "2", made, arrays, info=INFO, platform={"host": "b"}, times={"t": 2})
    assert Dump.open(one).content_digest == Dump.open(two).content_digest


@pytest.mark.parametrize("change", ["id", "candidate", "status", "tensor", "format", "shape", "sha256"])
def test_content_digest_sees_every_part_of_identity(change: str) -> None:
    made, _ = record()
    t = made.tensors[0]
    others = {
        "id": dataclasses.replace(made, id="other"),
        "candidate": dataclasses.replace(made, candidate="other"),
        "status": dataclasses.replace(made, status="error"),
        "tensor": dataclasses.replace(made, tensors=(dataclasses.replace(t, name="e"), made.tensors[1])),
        "format": dataclasses.replace(made, tensors=(dataclasses.replace(t, format="float16"), made.tensors[1])),
        "shape": dataclasses.replace(made, tensors=(dataclasses.replace(t, shape=(6, 4)), made.tensors[1])),
        "sha256": dataclasses.replace(made, tensors=(dataclasses.replace(t, sha256="0" * 64), made.tensors[1])),
    }
    assert content_digest([others[change]]) != content_digest([made])


@pytest.mark.parametrize("shape", [*SHAPES, (1 << 12, 1 << 13)], ids=str)
def test_digest_is_that_of_the_little_endian_bytes_however_they_lie(shape: tuple[int, ...]) -> None:
    codes = codes_of("bfloat16", shape)
    expected = hashlib.sha256(codes.tobytes()).hexdigest()
    assert sha256_codes(codes) == expected
    assert sha256_codes(codes.astype(">u2")) == expected
    assert sha256_codes(np.asfortranarray(codes)) == expected
    assert sha256_codes(codes.view(np.int16)) == expected
    assert sha256_many([codes, codes]) == [expected, expected]


def test_digest_of_values_is_refused() -> None:
    with pytest.raises(UsageError, match="codes must be integers, found dtype float32"):
        sha256_codes(np.zeros(3, np.float32))


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    with h5py.File(path) as f:
        offset = f["cases/gemm.m4.n6.k8.nt.bfloat16.normal.s0/default/d"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[offset + 3] ^= 1
    path.write_bytes(data)
    codes = np.frombuffer(bytes(data[offset : offset + 48]), "<u2")
    with Dump.open(path) as dump:
        made = dump.records[0]
        text = (
            f"{path}: /cases/{made.id}/default/d: sha256 {hashlib.sha256(codes.tobytes()).hexdigest()} of its bytes, "
            f"{made.tensors[0].sha256} recorded; the file is damaged. Fetch it again or dump again."
        )
        for attempt in (dump.read, dump.view):
            with pytest.raises(CorruptFile) as e:
                attempt(made, "d")
            assert str(e.value) == text
        with pytest.raises(CorruptFile) as e:
            dump.verify_all()
        assert str(e.value) == text
        assert np.array_equal(dump.read(made, "d", verify=False).reshape(-1), codes)


def test_verify_all_lists_every_damaged_tensor_and_counts_the_bytes(tmp_path: Path) -> None:
    for m in (3, 4, 5):
        write(tmp_path / "p", m=m)
    path = pack(tmp_path / "p", tmp_path / "d.h5")
    seen: list[tuple[int, int]] = []
    assert Dump.open(path).verify_all(progress=lambda done, total: seen.append((done, total))) == 3
    assert sorted(seen)[-1] == (2 * 6 * (3 + 4 + 5),) * 2
    with h5py.File(path, "r+") as f:
        for m in (3, 5):
            f[f"cases/gemm.m{m}.n6.k8.nt.bfloat16.normal.s0/default/d"][0, 0] ^= 1
    with pytest.raises(CorruptFile) as e:
        Dump.open(path).verify_all()
    assert [line.split("/")[-3] for line in str(e.value).split(": sha256")[0:1]] == ["gemm.m3.n6.k8.nt.bfloat16.normal.s0"]
    assert len(str(e.value).splitlines()) == 2


def test_an_altered_index_is_found(tmp_path: Path) -> None:
    path = write(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"contract":"fp32acc"', b'"contract":"fp64acc"'))
    with pytest.raises(CorruptFile, match=r"/index: sha256 [0-9a-f]{64} of its bytes, [0-9a-f]{64} stored"):
        Dump.open(path)


def _rewrite_index(path: Path, old: bytes, new: bytes) -> None:
    """Replace text in /index and give it a matching sha256, as a deliberate forger would."""
    with h5py.File(path, "r+") as f:
        data = f["index"][()].tobytes().replace(old, new)
        del f["index"]
        ds = f.create_dataset("index", data=np.frombuffer(data, np.uint8))
        ds.attrs["sha256"] = np.bytes_(hashlib.sha256(data).hexdigest())


def test_an_index_whose_content_digest_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    _rewrite_index(path, b'"format":"bfloat16"', b'"format":"float16"')
    with pytest.raises(CorruptFile, match=r"/index: content_digest '[0-9a-f]{64}' is stored, the records give [0-9a-f]{64}"):
        Dump.open(path)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b'"status":"done"', b'"status":"fine"', "status 'fine', allowed: done, unsupported, error"),
        (b'"role":"output"', b'"role":"result"', "role 'result', allowed: output, input, source"),
        (b'"shape":[4,6]', b'"shape":[4,-6]', "shape"),
        (b'"shape":[4,6]', b'"shape":[4,1e99]', "shape"),
        (b'"shape":[4,6]', b'"shape":"ab"', "shape"),
        (b'"sha256":"', b'"sha256":"Z', "is not 64 hex digits"),
        (b'"candidate":"default"', b'"candidate":"a/b"', "candidate 'a/b' cannot be stored"),
        (b'"candidate":"default"', b'"candidate":7', "TypeError"),
        (b'/default/d"', b'/../../../x"', "path"),
        (b'"records":[', b'"records":[5,', "record 0"),
        (b'"records":[', b'"records":5,"x":[', "expected 'info'"),
        (b'{"content', b'{{"content', "not JSON"),
        (b'"info":{', b'"info":' + b"[" * 100000 + b',"y":{', "not JSON"),
    ],
)
def test_a_forged_index_is_refused_with_the_place(tmp_path: Path, old: bytes, new: bytes, found: str) -> None:
    path = write(tmp_path)
    _rewrite_index(path, old, new)
    with pytest.raises(CorruptFile) as e:
        Dump.open(path)
    assert str(path) in str(e.value)
    assert "/index" in str(e.value)
    assert found in str(e.value)


def _set_schema(path: Path, schema: str) -> None:
    with h5py.File(path, "r+") as f:
        f.attrs["schema"] = schema


def test_a_newer_minor_schema_is_read_and_its_additions_ignored(tmp_path: Path) -> None:
    path = write(tmp_path)
    _rewrite_index(path, b'"contract":', b'"colour":"red","contract":')
    _set_schema(path, "accuracy-eval-dump/1.7")
    assert Dump.open(path).records[0].contract == "fp32acc"


@pytest.mark.parametrize("schema", ["accuracy-eval-dump/2.0", "accuracy-eval-dump/0.9", "accuracy-eval-dump/1", "accuracy-eval-dump/x.y"])
def test_another_major_schema_is_refused(tmp_path: Path, schema: str) -> None:
    path = write(tmp_path)
    _set_schema(path, schema)
    with pytest.raises(SchemaError) as e:
        Dump.open(path)
    assert str(e.value) == (
        f"{path}: schema '{schema}' cannot be read; this version reads accuracy-eval-dump/1.x. "
        "Read it with the accuracy-eval that wrote it, or dump again."
    )


def test_files_that_are_no_dumps_say_what_they_are(tmp_path: Path) -> None:
    text, empty, foreign, other = (tmp_path / n for n in ("t.h5", "e.h5", "f.h5", "o.h5"))
    text.write_bytes(b"PK\x03\x04 not hdf5 at all")
    empty.touch()
    with h5py.File(foreign, "w") as f:
        f["x"] = 1
    with h5py.File(other, "w") as f:
        f.attrs["schema"] = "anndata/0.1"
    expected = {
        tmp_path / "none.h5": "no such file. Fetch or dump it again.",
        empty: "is empty, expected HDF5. Fetch or dump it again.",
        text: "not HDF5: begins with 50 4b 03 04 20 6e 6f 74, expected 89 48 44 46 0d 0a 1a 0a. Fetch or dump it again.",
        foreign: "HDF5 without a root attribute 'schema'; the file was not written by accuracy-eval",
        other: "root attribute 'schema' is 'anndata/0.1', expected 'accuracy-eval-dump/1.0'; the file was not written by accuracy-eval",
    }
    for path, message in expected.items():
        with pytest.raises(NotADump) as e:
            Dump.open(path)
        assert str(e.value) == f"{path}: {message}"
    with pytest.raises(NotADump, match=r"a folder without \.h5 files"):
        Dump.open(_mkdir(tmp_path / "empty"))


def _mkdir(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_read_only_file_in_a_read_only_folder_opens(tmp_path: Path) -> None:
    path = write(tmp_path / "p")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with Dump.open(path) as dump:
            assert dump.verify_all() == 1
    finally:
        path.parent.chmod(0o755)


def test_lookups_name_what_there_is(tmp_path: Path) -> None:
    path = write(tmp_path)
    dump = Dump.open(path)
    made = dump.record("gemm.m4.n6.k8.nt.bfloat16.normal.s0")
    with pytest.raises(UsageError, match=r"no case 'x' of candidate 'default'; it has 1 others"):
        dump.record("x")
    with pytest.raises(UsageError, match=r"of candidate 'mine'; it has candidates default"):
        dump.record(made.id, "mine")
    with pytest.raises(UsageError, match=r"has no tensor 'e'; it has d, a"):
        dump.read(made, "e")


def test_of_tensors_that_share_a_name_the_stored_one_is_read(tmp_path: Path) -> None:
    codes = codes_of("bfloat16", (2, 2))
    source = tensor("a", "float32", codes_of("float32", (2, 2)), "source")
    made = CaseRecord("x", Case("gemm", ()), "default", "done", tensors=(source, tensor("a", "bfloat16", codes, "input")))
    with Dump.open(write_part(tmp_path, made, {"a": codes}, info=INFO, platform=PLATFORM)) as dump:
        assert dump.tensor(dump.records[0], "a").role == "input"
        assert np.array_equal(dump.read(dump.records[0], "a"), codes)


_BIG_WRITE = """
import resource, sys, tracemalloc
import numpy as np
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.store import Dump, write_part

small, big = np.zeros((4, 4), np.uint16), np.ones((64, 1 << 19), np.uint16)
def write(name, codes):
    tensor = TensorRecord("d", "output", "bfloat16", codes.shape, "0" * 64)
    record = CaseRecord(name, Case("gemm", ()), "default", "done", tensors=(tensor,))
    return write_part(sys.argv[1], record, {"d": codes}, info={}, platform={})
write("warm", small)
tracemalloc.start()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
path = write("big", big)
print(tracemalloc.get_traced_memory()[1], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, path.stat().st_size)
"""


def test_a_large_array_is_written_from_its_own_memory(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _BIG_WRITE, str(tmp_path)], capture_output=True, text=True, check=True)
    traced, resident, size = map(int, run.stdout.split())
    assert size > 1 << 26
    assert traced < 1 << 20
    assert resident < 1 << 24


def test_importing_the_store_loads_neither_h5py_nor_numba_nor_torch() -> None:
    code = "import sys, accuracy_eval.store; print([m for m in ('h5py', 'numba', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


ARCHIVED = Path(__file__).parent / "data" / "dump-1.0.h5"


def test_the_archived_file_of_schema_1_0_is_read_for_ever() -> None:
    with Dump.open(ARCHIVED) as dump:
        assert dump.content_digest == "a3a0923a93459eab51158a4c664e9553e671d4af4a26ad892a03c3c54905769f"
        assert dump.info == {"producer": "accuracy-eval 0.1.0", "suite": "sample", "suite_digest": "5a" * 32}
        assert dump.platform == {"arch": "gfx942", "driver": None, "vendor": "amd"}
        assert [(r.id, r.candidate, r.status) for r in dump.records] == [
            ("gemm.m2.n3.k0.nt.bfloat16.normal.s0", "default", "done"),
            ("gemm.m2.n3.k4.nt.fp8_e4m3.normal.s0", "default", "unsupported"),
            ("sum.n5.float32.normal.s0", "default", "done"),
        ]
        gemm, skipped, total = dump.records
        assert dump.read(gemm, "d").tolist() == [[0x3F80, 0xBF80, 0x7FC0], [0, 0x8000, 0x7F80]]
        assert dump.read(gemm, "a").shape == (2, 0)
        assert gemm.case == Case("gemm", (("m", 2), ("n", 3), ("k", 0)), "nt", "bfloat16", options=(("alpha", 1.5),))
        assert gemm.notes == {"kernel": "Cijk", "never_written": {"d": 0}}
        assert dump.times_of(gemm) == {"started": "2026-11-30T12:00:00Z"}
        assert skipped.reason == "no fp8 on this device"
        assert dump.read(total, "d").tolist() == 0x40A00000
        assert dump.verify_all() == 3
