"""compare --reference-cache: the same results from the disk, never from a stale, foreign or changed file."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_compare import dump_with, lost_k, right

from accuracy_eval import reference_cache
from accuracy_eval.cases import make_case
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.errors import CorruptFile, FileError
from accuracy_eval.ops import gemm
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.reference_cache import ReferenceCache

SHAPE = (("m", 96), ("n", 64), ("k", 512))
CASE = make_case("gemm", SHAPE)


@pytest.fixture
def dumps(tmp_path):
    return dump_with(tmp_path, "a", CASE, right), dump_with(tmp_path, "b", CASE, lost_k)


def results_json(dumps, folder, *more):
    arguments = ["compare", *map(str, dumps), "--to", "json", "-o", str(folder), "-q", *map(str, more)]
    return run(arguments), (folder / "results.json").read_bytes()


def entries(folder):
    return sorted(folder.glob("*.reference"))


def references(case=CASE, contract="fp32acc"):
    spec = get_op(case.op)
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
    return inputs, spec.reference(case, inputs, "ocp", contract)


@pytest.fixture
def nothing_is_computed(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a reference was computed")

    def now():
        monkeypatch.setattr(gemm, "panels", refuse)

    return now


def test_results_json_is_the_same_byte_for_byte_without_computing(dumps, tmp_path, nothing_is_computed):
    plain = results_json(dumps, tmp_path / "0")
    first = results_json(dumps, tmp_path / "1", "--reference-cache", tmp_path / "cache")
    nothing_is_computed()
    second = results_json(dumps, tmp_path / "2", "--reference-cache", tmp_path / "cache")
    assert plain == first == second
    assert plain[0] == 1
    refused = compare_dumps(*dumps)  # without the cache
    assert any("AssertionError: a reference was computed" in n.reason for n in refused.not_compared)


@pytest.mark.parametrize(
    "case",
    [
        make_case("gemm", SHAPE, direction="bwd", layout="tn", format="bfloat16"),
        make_case("gemm", SHAPE, format="float64"),
        make_case("sum", (("m", 40), ("n", 300))),
        make_case("softmax", (("m", 40), ("n", 300)), format="bfloat16"),
        make_case("exp", (("n", 4096),)),
    ],
    ids=lambda c: f"{c.op} {c.format} {c.direction}",
)
def test_panels_read_back_are_those_that_were_computed(case, tmp_path):
    cache = ReferenceCache(tmp_path)
    inputs, truths = references(case, get_op(case.op).contract(case))
    want = {n: list(r.panels()) for n, r in truths.items()}
    for _ in range(2):
        found = {n: list(r.panels()) for n, r in cache.kept(truths, case, "ocp", inputs).items()}
        for name in want:
            for a, b in zip(want[name], found[name], strict=True):
                assert a.first_row == b.first_row
                np.testing.assert_array_equal(a.values, b.values)
                np.testing.assert_array_equal(a.budget, b.budget)
                assert (a.typical is None) == (b.typical is None)
                if a.typical is not None:
                    np.testing.assert_array_equal(a.typical, b.typical)
    assert len(entries(tmp_path)) == 2 * len(truths)


def test_a_fault_that_only_its_row_shows_fails_from_the_cache_too(tmp_path):
    def in_one_row(values, a, b):
        (panel,) = references()[1]["d"].panels()
        values[5] += 0.6 * panel.budget[5]
        return values

    dump = dump_with(tmp_path, "a", CASE, in_one_row)
    for _ in range(2):
        (result,) = compare_dumps(dump, reference_cache=tmp_path / "cache").tensors
        assert [g.gate for g in result.sides[0].gates if g.passed is False] == ["rows"]


def test_values_are_shared_by_contracts_and_budgets_are_not(tmp_path):
    cache = ReferenceCache(tmp_path)
    found = {}
    for contract in ("fp32acc", "tf32"):
        inputs, truths = references(contract=contract)
        (found[contract],) = cache.kept(truths, CASE, "ocp", inputs)["d"].panels()
    assert len(entries(tmp_path)) == 3
    assert (found["tf32"].budget > found["fp32acc"].budget).all()


def test_other_operands_options_sources_and_numpys_have_entries_of_their_own(tmp_path, monkeypatch):
    cache = ReferenceCache(tmp_path)
    inputs, truths = references()

    def fill(case, inputs):
        for r in cache.kept(truths, case, "ocp", inputs).values():
            list(r.panels())
        return len(entries(tmp_path))

    assert fill(CASE, inputs) == 2
    assert fill(replace(CASE, seed=5, input_class="relu"), inputs) == 2  # how operands were made does not matter, what they are does
    changed = inputs["a"].codes.copy()
    changed[0, 0] ^= 1
    assert fill(CASE, {**inputs, "a": replace(inputs["a"], codes=changed)}) == 4
    assert fill(replace(CASE, options=(("alpha", 2.0),)), inputs) == 6
    assert fill(replace(CASE, layout="nn"), inputs) == 8
    monkeypatch.setattr(reference_cache, "sources_digest", lambda: "another program")
    assert fill(CASE, inputs) == 10


def test_the_sources_digest_follows_every_source(tmp_path, monkeypatch):
    for name in reference_cache.SOURCES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.endswith(".py"):
            (tmp_path / name).write_text("x = 1\n")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "part.py").write_text("x = 1\n")
    monkeypatch.setattr(reference_cache.resources, "files", lambda package: tmp_path)
    digest = reference_cache.sources_digest.__wrapped__
    seen = {digest()}
    for file in sorted(tmp_path.rglob("*.py")):
        file.write_text("x = 2\n")
        seen.add(digest())
    assert len(seen) == 1 + len(reference_cache.SOURCES)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda d: b"", "it has 0 bytes"),
        (lambda d: d[: len(d) // 2], "it does not end as a reference does"),
        (lambda d: flipped(d, 100), "the digest of its rows from 0 on does not match their bytes"),
        (lambda d: d[8:], "its footer describes 49152 bytes of panels, there are 49144"),
        (lambda d: d[:-16] + (1 << 60).to_bytes(8, "little") + d[-8:], "it does not end as a reference does"),
        (lambda d: d[:-16] + (10).to_bytes(8, "little") + d[-8:], "its footer cannot be read"),
        (lambda d: b"\x89HDF\r\n\x1a\n" + bytes(100), "it does not end as a reference does"),
    ],
    ids=["empty", "cut", "a bit flipped", "bytes lost", "absurd footer", "wrong footer", "another kind of file"],
)
def test_a_changed_file_is_one_clear_error(dumps, tmp_path, change, what):
    cache = tmp_path / "cache"
    compare_dumps(*dumps, reference_cache=cache)
    path = min(entries(cache), key=lambda p: p.stat().st_size)  # the values
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CorruptFile) as error:
        compare_dumps(*dumps, reference_cache=cache)
    text = str(error.value)
    assert text.startswith(f"reference cache {path}: {what}")
    assert text.endswith("Delete it: it is computed again.")
    path.unlink()
    assert compare_dumps(*dumps, reference_cache=cache) == compare_dumps(*dumps)


def test_the_reference_of_another_case_under_this_name_is_an_error(dumps, tmp_path):
    cache = tmp_path / "cache"
    compare_dumps(*dumps, reference_cache=cache)
    mine = entries(cache)
    compare_dumps(dump_with(tmp_path, "c", make_case("gemm", SHAPE, seed=1), right), reference_cache=cache)
    other = next(p for p in entries(cache) if p not in mine)
    mine[0].write_bytes(other.read_bytes())
    with pytest.raises(CorruptFile, match="it holds the reference of another case"):
        compare_dumps(*dumps, reference_cache=cache)


def test_what_was_not_read_to_the_end_leaves_nothing(tmp_path):
    inputs, truths = references(make_case("gemm", (("m", 300), ("n", 64), ("k", 8))))
    panels = ReferenceCache(tmp_path).kept(truths, CASE, "ocp", inputs)["d"].panels()
    next(panels)
    panels.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="File exists; give a folder that can be written to"):
        ReferenceCache(tmp_path / "file")


def test_whoever_may_read_the_folder_may_read_its_entries(dumps, tmp_path):
    (tmp_path / "plain").write_text("")
    compare_dumps(*dumps, reference_cache=tmp_path / "cache")
    assert {p.stat().st_mode for p in entries(tmp_path / "cache")} == {(tmp_path / "plain").stat().st_mode}


def test_two_processes_may_share_the_folder(dumps, tmp_path):
    arguments = [sys.executable, "-m", "accuracy_eval", "compare", *map(str, dumps), "--reference-cache", str(tmp_path / "cache"), "-q"]
    running = [subprocess.Popen([*arguments, "--to", "json", "-o", str(tmp_path / str(i))]) for i in range(2)]
    assert [p.wait() for p in running] == [1, 1]
    first, second = ((tmp_path / str(i) / "results.json").read_bytes() for i in range(2))
    assert first == second == results_json(dumps, tmp_path / "2", "--reference-cache", tmp_path / "cache")[1]
    assert all(p.suffix == ".reference" for p in (tmp_path / "cache").iterdir())
