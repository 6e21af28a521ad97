from __future__ import annotations

import dataclasses
import itertools
import json
import resource
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support_store import INFO, PLATFORM, record, unsupported, write

from accuracy_eval.cli import run
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.store import Dump, completed, merge, pack, write_part
from accuracy_eval.store.shards import Shards


def _folder(path: Path, sizes: list[int], **options: Any) -> Path:
    for m in sizes:
        write(path, m=m, **options)
    return path


def test_packing_keeps_records_codes_and_identity(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "run.h5.parts", [3, 1, 2])
    write_part(folder, unsupported(), {}, info=INFO, platform=PLATFORM)
    with Dump.open(folder) as dump:
        before = dump.records, dump.info, dump.platform, dump.content_digest
    path = pack(folder, tmp_path / "run.h5")
    assert list(tmp_path.iterdir()) == [path]
    with Dump.open(path) as dump:
        assert (dump.records, dump.info, dump.platform, dump.content_digest) == before
        assert dump.verify_all() == 3
        for m in (1, 2, 3):
            made, arrays = record(m)
            assert np.array_equal(dump.read(dump.record(made.id), "d"), arrays["d"])


def test_the_index_is_canonical_json_and_parts_share_their_platform(tmp_path: Path) -> None:
    path = pack(_folder(tmp_path / "p", [1, 2, 3]), tmp_path / "a.h5")
    with h5py.File(path) as f:
        text = bytes(f["index"][()])
    data = json.loads(text)
    assert text == json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    assert [dict(r["case"]["shape"])["m"] for r in data["records"]] == [1, 2, 3]
    folder = Dump.open(_folder(tmp_path / "q", [1, 2, 3]))
    assert len({id(folder.platform_of(r)) for r in folder.records}) == 1


def test_packing_can_keep_the_parts_and_never_removes_other_files(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "parts", [1, 2])
    (folder / "notes.txt").write_text("mine")
    pack(folder, tmp_path / "a.h5", keep_parts=True)
    assert len(completed(folder)) == 2
    pack(folder, tmp_path / "a.h5")
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_packing_into_the_folder_itself_keeps_the_result(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "parts", [1, 2])
    out = pack(folder, folder / "all.h5")
    assert list(folder.iterdir()) == [out]
    assert len(Dump.open(folder).records) == 2


def test_a_large_tensor_survives_packing_page_aligned(tmp_path: Path) -> None:
    made, arrays = record(300, 700)
    write_part(tmp_path / "p", made, arrays, info=INFO, platform=PLATFORM)
    path = pack(_folder(tmp_path / "p", [1]), tmp_path / "a.h5")
    with h5py.File(path) as f:
        assert f[f"cases/{made.id}/default/d"].id.get_offset() % 4096 == 0
    with Dump.open(path) as dump:
        assert np.array_equal(dump.view(dump.record(made.id), "d"), arrays["d"])


def test_codes_are_copied_where_the_kernel_cannot_do_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> int:
        raise OSError("cross-device")

    monkeypatch.setattr("os.copy_file_range", refused)
    with Dump.open(pack(_folder(tmp_path / "p", [1, 2, 3]), tmp_path / "a.h5")) as dump:
        assert dump.verify_all() == 3


def test_progress_counts_every_byte_of_codes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    pack(_folder(tmp_path / "p", [1, 2]), tmp_path / "a.h5", progress=lambda *x: seen.append(x))
    assert seen == [(12, 36), (36, 36)]


def test_shards_merged_in_any_order_give_the_bytes_of_one_run(tmp_path: Path) -> None:
    whole = pack(_folder(tmp_path / "p", [1, 2, 3, 4]), tmp_path / "whole.h5")
    shards = [pack(_folder(tmp_path / f"s{i}", sizes), tmp_path / f"s{i}.h5") for i, sizes in enumerate([[4, 1], [3], [2]])]
    for i, order in enumerate(itertools.permutations(shards)):
        merged = merge(order, tmp_path / f"m{i}.h5")
        assert merged.read_bytes() == whole.read_bytes()


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    a, b = _folder(tmp_path / "a", [1, 2]), _folder(tmp_path / "b", [2, 3])
    once = merge([a, b], tmp_path / "once.h5")
    expected = once.read_bytes()
    assert merge([once, a, b, once], tmp_path / "twice.h5").read_bytes() == expected
    assert merge([once], once).read_bytes() == expected
    assert [r.case.dims["m"] for r in Dump.open(once).records] == [1, 2, 3]


def test_the_same_suite_run_twice_merges_to_the_same_identity(tmp_path: Path) -> None:
    made, arrays = record()
    for i in (1, 2):
        write_part(tmp_path / str(i), made, arrays, info=INFO, platform={**PLATFORM, "host": i}, times={"t": i})
    digests = {
        Dump.open(p).content_digest for p in (tmp_path / "1", tmp_path / "2", merge([tmp_path / "1", tmp_path / "2"], tmp_path / "m.h5"))
    }
    assert len(digests) == 1


def test_different_results_for_one_case_name_both_files_and_digests(tmp_path: Path) -> None:
    made, arrays = record()
    a = write_part(tmp_path / "a", made, arrays, info=INFO, platform=PLATFORM)
    other = arrays["d"] ^ np.uint16(1)
    changed = dataclasses.replace(made, tensors=(dataclasses.replace(made.tensors[0], sha256=""), made.tensors[1]))
    b = write_part(tmp_path / "b", changed, {"d": other}, info=INFO, platform=PLATFORM)
    text = (
        f"{made.id} candidate 'default' output 'd': bfloat16 [4, 6] sha256 {made.tensors[0].sha256} ({a}) != "
        f"bfloat16 [4, 6] sha256 {Dump.open(b).records[0].tensors[0].sha256} ({b}); one dump cannot hold both. "
        "Dumps of different devices, or of two runs that disagree, are compared, not merged."
    )
    for attempt in (lambda: merge([a, b], tmp_path / "m.h5"), lambda: Dump.open(tmp_path)):
        with pytest.raises(FileError) as e:
            attempt()
        assert str(e.value) == text
    assert not (tmp_path / "m.h5").exists()


def test_done_and_unsupported_for_one_case_is_a_conflict(tmp_path: Path) -> None:
    made, arrays = record()
    a = write_part(tmp_path / "a", made, arrays, info=INFO, platform=PLATFORM)
    b = write_part(tmp_path / "b", dataclasses.replace(made, status="error", reason="boom", tensors=()), {}, info=INFO, platform=PLATFORM)
    with pytest.raises(FileError) as e:
        merge([a, b], tmp_path / "m.h5")
    assert f"status done ({a}) != error ({b})" in str(e.value)


def test_of_equal_records_the_one_with_stored_codes_is_kept(tmp_path: Path) -> None:
    made, arrays = record()
    a = write_part(tmp_path / "a", made, {}, info=INFO, platform=PLATFORM)
    b = write_part(tmp_path / "b", made, arrays, info=INFO, platform=PLATFORM)
    for i, order in enumerate(([a, b], [b, a])):
        with Dump.open(merge(order, tmp_path / f"m{i}.h5")) as dump:
            assert np.array_equal(dump.read(dump.records[0], "d"), arrays["d"])


def test_different_suites_join_with_a_note(tmp_path: Path) -> None:
    a = _folder(tmp_path / "a", [1], info={"suite": "core", "suite_digest": "aa" * 32})
    b = _folder(tmp_path / "b", [2], info={"suite": "gemm", "suite_digest": "bb" * 32})
    orders = ([a, b], [b, a], [tmp_path / "m0.h5", a])
    infos = [Dump.open(merge(order, tmp_path / f"m{i}.h5")).info for i, order in enumerate(orders)]
    assert infos[0] == infos[1] == infos[2]
    assert infos[0]["suite"] == "core + gemm"
    assert infos[0]["suites"] == [["core", "aa" * 32], ["gemm", "bb" * 32]]
    assert infos[0]["notes"] == ["joined from different suites: core (aaaaaaaaaaaa), gemm (bbbbbbbbbbbb)"]
    assert infos[0]["suite_digest"] not in ("aa" * 32, "bb" * 32)


def test_values_that_differ_between_dumps_are_all_kept(tmp_path: Path) -> None:
    a = _folder(tmp_path / "a", [1], info={**INFO, "producer": "accuracy-eval 0.2.0"})
    b = _folder(tmp_path / "b", [2], info={**INFO, "producer": "accuracy-eval 0.1.0"})
    c = merge([a, b], tmp_path / "c.h5")
    for i, order in enumerate(([a, b], [b, a, c])):
        info = Dump.open(merge(order, tmp_path / f"m{i}.h5")).info
        assert info["producer"] == "accuracy-eval 0.1.0"
        assert info["joined"] == {"producer": ["accuracy-eval 0.1.0", "accuracy-eval 0.2.0"]}
        assert "suites" not in info


def test_each_record_keeps_its_platform_and_time(tmp_path: Path) -> None:
    for m, host in ((1, "x"), (2, "y"), (3, "y")):
        made, arrays = record(m)
        write_part(tmp_path / str(m), made, arrays, info=INFO, platform={"host": host}, times={"m": m})
    with Dump.open(merge([tmp_path / str(m) for m in (1, 2, 3)], tmp_path / "m.h5")) as dump:
        assert dump.platform == {"host": "y"}
        assert dump.platforms == ({"host": "y"}, {"host": "x"})
        assert [dump.platform_of(r)["host"] for r in dump.records] == ["x", "y", "y"]
        assert [dump.times_of(r) for r in dump.records] == [{"m": 1}, {"m": 2}, {"m": 3}]


def test_versions_that_one_run_would_share_and_a_merge_does_not_are_counted(tmp_path: Path) -> None:
    for m, version, host in ((1, "2.11", "x"), (2, "2.12", "y"), (3, "2.12", "z")):
        write(tmp_path / str(m), m=m, platform={**PLATFORM, "torch_version": version, "host": host})
    with Dump.open(merge([tmp_path / "1", tmp_path / "2", tmp_path / "3"], tmp_path / "a.h5")) as dump:
        assert dump.mixed() == {"torch_version": {"2.12": 2, "2.11": 1}}
    with Dump.open(merge([tmp_path / "2", tmp_path / "3"], tmp_path / "b.h5")) as dump:
        assert dump.mixed() == {}


def test_the_command_says_what_a_lost_shard_leaves_and_what_is_of_different_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {**INFO, "suite_cases": 3}
    shards = [
        str(write(tmp_path / str(m), m=m, info=info, platform={**PLATFORM, "driver_version": driver}))
        for m, driver in ((1, "6.12"), (2, "6.12"), (3, "6.14"))
    ]
    assert run(["merge", *shards[:2], "-o", str(tmp_path / "a.h5")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  holds 2 of 3 cases of suite core"]
    assert run(["merge", *shards, "-o", str(tmp_path / "b.h5")]) == 0
    said = ["  of different versions: driver_version 6.12 (2 results), 6.14 (1 result)"]
    assert capsys.readouterr().out.splitlines()[1:] == said


def test_the_command_says_that_a_shard_is_of_another_suite_or_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = write(tmp_path / "1", m=1)
    other = write(tmp_path / "2", m=2, info={**INFO, "suite_digest": "f" * 64})
    assert run(["merge", str(ours), str(other), "-o", str(tmp_path / "a.h5")]) == 0
    digest = INFO["suite_digest"][:12]
    assert capsys.readouterr().out.splitlines()[1:] == [f"  joined from different suites: core ({digest}), core (ffffffffffff)"]


@pytest.mark.parametrize("cases", [(1, 2), (1, 1)], ids=["no case in common", "the same results"])
def test_dumps_of_different_devices_are_not_one_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: tuple[int, int]) -> None:
    made = ({"device_name": "AMD Instinct MI300X", "arch": "gfx942"}, {"device_name": "AMD Instinct MI355X", "arch": "gfx950"})
    a, b = (write(tmp_path / str(i), m=m, platform={**PLATFORM, **made[i]}) for i, m in enumerate(cases))
    text = (
        f"accuracy-eval: {a} is of AMD Instinct MI300X (arch gfx942), {b} of AMD Instinct MI355X (arch gfx950); one dump is of one kind of "
        "device. Dumps of different devices are compared (accuracy-eval compare), not merged.\n"
    )
    out = tmp_path / "out.h5"
    for command in (["merge", str(a), str(b), "-o", str(out)], ["inspect", str(tmp_path)]):
        assert run(command) == 2
        assert capsys.readouterr().err == text
    assert not out.exists()


def test_what_a_platform_does_not_say_is_no_other_device(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", m=1, platform={**PLATFORM, "label": "mi300x"}), write(tmp_path / "b", m=2, platform={"vendor": "amd"})
    assert len(Dump.open(merge([a, b], tmp_path / "m.h5")).records) == 2


def test_a_merge_of_many_files_keeps_few_open(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "p", list(range(1, 101)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, hard))
    try:
        merge([folder], tmp_path / "a.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(Dump.open(tmp_path / "a.h5").records) == 100


def test_merging_nothing_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to merge: no paths were given"):
        merge([], tmp_path / "a.h5")
    with pytest.raises(UsageError, match=r"a folder without \.h5 files; nothing to merge"):
        merge([tmp_path], tmp_path / "a.h5")


def _shard(path: Path, m: int, *held: tuple[int, int], cases: int = 4, **info: Any) -> Path:
    return write(path, m=m, info={**INFO, "suite_cases": 9, "chosen": ["--op gemm"], "shards": {"cases": cases, "held": held}, **info})


def test_the_command_names_the_shards_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = _shard(tmp_path / "a", 1, (0, 4)), _shard(tmp_path / "b", 2, (3, 4))
    assert run(["merge", str(a), str(b), "-o", str(tmp_path / "m.h5")]) == 0
    held = "2 of 9 cases of suite core, by --op gemm, 2 of 4 shards (missing: 1/4, 2/4)"
    assert capsys.readouterr().out.splitlines()[1:] == [f"  holds {held}"]
    assert run(["inspect", str(tmp_path / "m.h5")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path}/m.h5: {held}, device None, 2 results"
    assert run(["inspect", str(b)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{b}: 1 of 9 cases of suite core, by --op gemm, shard 3/4, device None, 1 result"


def test_shards_are_added_up_in_any_order_and_none_when_all_are_there(tmp_path: Path) -> None:
    shards = [_shard(tmp_path / "shards" / str(i), i + 1, (i, 3)) for i in range(3)]
    two = merge(shards[:2], tmp_path / "two.h5")
    assert Dump.open(two).info["shards"] == {"cases": 4, "held": [[0, 3], [1, 3]]}
    assert merge([two, two, shards[1]], tmp_path / "again.h5").read_bytes() == two.read_bytes()
    orders = [[two, shards[2]], [shards[2], two], shards, shards[::-1], [tmp_path / "shards"]]
    files = [merge(order, tmp_path / f"m{i}.h5").read_bytes() for i, order in enumerate(orders)]
    assert len(set(files)) == 1
    assert "shards" not in Dump.open(tmp_path / "m0.h5").info


@pytest.mark.parametrize(
    ("shards", "missing"),
    [
        ([(0, 2), (1, 4)], "3 of 4 shards (missing: 3/4)"),  # a half is two quarters
        ([(0, 6), (1, 6)], "2 of 4 shards (missing: 2/6, 3/6)"),  # of four cases, 4/6 and 5/6 hold none
        ([(1, 16), (1, 8)], "2 of 16 shards (missing: 0/16, 2/16, 3/16, 4/16, 5/16, 6/16, 7/16, 8/16 and 6 more)"),
    ],
)
def test_missing_shards_of_other_divisions(tmp_path: Path, shards: list[tuple[int, int]], missing: str) -> None:
    cases = 4 if "of 4" in missing else 40
    for m, shard in enumerate(shards, 1):
        _shard(tmp_path / str(m), m, shard, cases=cases)
    assert Dump.open(tmp_path).part_text() == f"2 of 9 cases of suite core, by --op gemm, {missing}"


@pytest.mark.parametrize(
    "other",
    [{"chosen": ["--op exp"]}, {"suite_digest": "c" * 64}, {"shards": None}, {"shards": {"cases": 4, "held": [[4, 4]]}}],
    ids=["other filters", "another suite", "no shard", "what is none"],
)
def test_shards_of_different_parts_are_not_added_up(tmp_path: Path, other: dict[str, Any]) -> None:
    _shard(tmp_path / "a", 1, (0, 4))
    _shard(tmp_path / "b", 2, (1, 4), **other)
    assert not (Dump.open(tmp_path).info.get("shards") or {}).get("held")
    assert "shard" not in Dump.open(tmp_path).part_text()


def test_a_file_that_claims_a_great_many_shards_is_not_waited_for() -> None:
    held = [[i, 1 << 20] for i in range(3000)]
    shards = Shards.of({"shards": {"cases": 1 << 20, "held": held}})
    assert shards is not None
    assert len(shards.missing()) == (1 << 20) - 3000
    assert Shards.of({"shards": {"cases": 1 << 20, "held": [[0, n] for n in range(1, 1000)]}}) is None


def test_compare_says_to_merge_the_shards_of_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["dump", "--op", "sum", "--shape", "4x8,4x9", "--format", "float32", "-q"]
    shards = [str(tmp_path / f"s{i}.h5") for i in range(2)]
    for i, path in enumerate(shards):
        assert run([*base, "--device", "cpu", "--shard", f"{i}/2", "-o", path]) == 0
    whole = str(tmp_path / "whole.h5")
    assert run([*base, "--device", "reference", "-o", whole]) == 0
    capsys.readouterr()
    out = ["-o", str(tmp_path / "reports")]

    def said() -> str:
        return " ".join(capsys.readouterr().out.split())

    assert run(["compare", *shards, *out]) == 1
    both = said()
    assert "s0 and s1 are shards of one suite and device; merge these and compare the whole: accuracy-eval merge" in both
    assert "not in the part of its suite that it holds (s1.h5: shard 1/2); it is in s0" in both
    assert "--resume" not in both
    assert run(["compare", shards[0], whole, *out]) == 1
    one = said()
    assert "next: dump the other shards there (accuracy-eval dump with --shard) and join them (accuracy-eval merge)" in one
    assert "merge these" not in one
    assert "--resume" not in one
