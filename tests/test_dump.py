"""dump on real devices: torch's CPU and the reference; candidates that fail in known ways; kills and resumes."""

import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import support_kernels
from support_interrupts import HEARING

from accuracy_eval.backends import candidates
from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.formats import decode
from accuracy_eval.records import Verdict
from accuracy_eval.store import Dump, completed, merge
from accuracy_eval.suite import load_suite, parse_suite


def suite(**table):
    return parse_suite({"name": "test", "cases": [{"op": "gemm", "shape": "8x6x32", "format": "float32", **table}]}, "test")


@pytest.fixture(autouse=True)
def faulty_kernels(monkeypatch):
    """The faulty candidates are registered for one test at a time."""
    monkeypatch.setattr(candidates, "_USER", {})
    support_kernels.register()


@pytest.fixture
def cpu():
    backend = TorchBackend("cpu")
    yield backend
    backend.close()


def test_an_operand_that_a_kernel_writes_to_is_found_and_given_back(tmp_path, cpu):
    dump(suite(), cpu, tmp_path / "a.h5", candidates=["eats-its-input", "fills-out"])
    results = {t.candidate: t for t in compare_dumps(tmp_path / "a.h5").tensors}
    side = results["eats-its-input"].sides[0]
    assert side.verdict is Verdict.FAIL
    first = side.diagnoses[0]
    assert (first.code, first.evidence) == ("operand-changed", {"operand": "b"})
    assert first.sentence == "the run wrote to operand b: later runs, and whoever reads it next, get other inputs"
    assert results["fills-out"].verdict is Verdict.PASS  # ran after it, on the same operands


def test_the_same_suite_twice_has_the_same_content_digest(tmp_path, cpu):
    for name in ("a", "b"):
        dump(suite(lane=["random", "exact"]), cpu, tmp_path / f"{name}.h5", candidates=["default"])
    a, b = Dump.open(tmp_path / "a.h5"), Dump.open(tmp_path / "b.h5")
    assert a.content_digest == b.content_digest
    assert not (tmp_path / "a.h5.parts").exists()


def test_shards_merged_equal_the_whole(tmp_path):
    whole, reference = suite(layout=["nt", "nn", "tn"], lane=["random", "exact", "coded"]), open_backend("reference")
    dump(whole, reference, tmp_path / "whole.h5")
    for i in range(3):
        dump(whole, reference, tmp_path / f"{i}.h5", shard=(i, 3))
    merge([tmp_path / f"{i}.h5" for i in (2, 0, 1)], tmp_path / "merged.h5")
    assert Dump.open(tmp_path / "merged.h5").content_digest == Dump.open(tmp_path / "whole.h5").content_digest
    assert Dump.open(tmp_path / "merged.h5").info == Dump.open(tmp_path / "whole.h5").info


def test_a_dump_that_goes_on_with_another_shard_holds_both(tmp_path):
    cases, reference = suite(layout=["nt", "nn", "tn"]), open_backend("reference")
    dump(cases, reference, tmp_path / "a.h5", shard=(0, 3))
    assert Dump.open(tmp_path / "a.h5").part_text() == "1 of 3 cases of suite test, shard 0/3"
    dump(cases, reference, tmp_path / "a.h5", shard=(2, 3), resume=True)
    assert Dump.open(tmp_path / "a.h5").part_text() == "2 of 3 cases of suite test, 2 of 3 shards (missing: 1/3)"
    dump(cases, reference, tmp_path / "a.h5", resume=True)
    assert "shards" not in Dump.open(tmp_path / "a.h5").info


def test_a_row_that_no_run_writes_is_found(tmp_path, cpu):
    summary = dump(suite(), cpu, tmp_path / "a.h5", candidates=["skips-a-row"])
    assert summary.never_written == ["gemm.m8.n6.k32.nt.float32.normal.s0 (skips-a-row)"]
    (result,) = compare_dumps(tmp_path / "a.h5").tensors
    assert result.verdict is Verdict.FAIL
    first = result.sides[0].diagnoses[0]
    assert (first.code, first.evidence["count"]) == ("never-written", 6)


def test_runs_that_differ_are_all_kept_and_judged(tmp_path, cpu):
    dump(suite(), cpu, tmp_path / "a.h5", candidates=["wobbles"], repeats=4)
    d = Dump.open(tmp_path / "a.h5")
    (record,) = d.records
    assert (record.distinct, record.repeats) == ({"d": 2}, 4)
    assert d.read(record, "d").tobytes() != d.read(record, "d#2").tobytes()
    (result,) = compare_dumps(tmp_path / "a.h5").tensors
    assert result.verdict is Verdict.WARN
    assert result.sides[0].diagnoses[0].code == "nondeterministic"


def test_an_exception_is_recorded_with_its_text_and_stops_nothing(tmp_path, cpu):
    summary = dump(suite(), cpu, tmp_path / "a.h5", candidates=["raises", "default"])
    assert (summary.done, summary.error) == (1, 1)
    assert "illegal memory access" in summary.errors[0]
    results = compare_dumps(tmp_path / "a.h5")
    assert (results.exit_code, results.not_compared[0].verdict) == (1, Verdict.ERROR)


def test_what_a_candidate_refuses_is_unsupported_with_its_reason(tmp_path, cpu):
    summary = dump(suite(shape=["8x6x32", "32x6x32"]), cpu, tmp_path / "a.h5", candidates=["refuses"])
    assert (summary.done, summary.unsupported, summary.reasons) == (1, 1, {"needs m % 32 == 0": 1})
    assert Dump.open(tmp_path / "a.h5").record("gemm.m8.n6.k32.nt.float32.normal.s0", "refuses").reason == "needs m % 32 == 0"


def test_a_result_of_the_wrong_shape_is_an_error_of_its_case(tmp_path, cpu):
    summary = dump(suite(), cpu, tmp_path / "a.h5", candidates=["wrong-shape"])
    assert summary.error == 1
    assert "shape [6, 8] of float32; expected [8, 6] of float32" in summary.errors[0]


def test_an_unknown_candidate_is_refused_before_anything_runs(tmp_path, cpu):
    with pytest.raises(
        UsageError, match=r"candidate trion is registered for no op of the suite \(did you mean triton\?\); there are: .*, jax, "
    ):
        dump(suite(), cpu, tmp_path / "a.h5", candidates=["trion"])
    with pytest.raises(UsageError, match=r"unknown state 'grph' \(did you mean graph\?\); allowed: alone, graph, misaligned, stream"):
        dump(suite(), cpu, tmp_path / "a.h5", states=["grph"])
    assert not list(tmp_path.iterdir())


def test_cases_without_any_of_the_named_candidates_are_counted_by_op(tmp_path, cpu):
    several = parse_suite({"cases": [{"op": "gemm", "shape": "8x6x32"}, {"op": ["exp", "cos"], "shape": ["4", "8"]}]}, "several")
    summary = dump(several, cpu, tmp_path / "a.h5", candidates=["refuses"])
    assert (summary.unsupported, summary.unnamed) == (1, {"exp": 2, "cos": 2})


def test_nothing_is_overwritten(tmp_path):
    reference = open_backend("reference")
    (tmp_path / "a.h5").write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        dump(suite(), reference, tmp_path / "a.h5")
    assert (tmp_path / "a.h5").read_text() == "precious"


def test_leftovers_need_resume(tmp_path):
    reference = open_backend("reference")
    dump(suite(), reference, tmp_path / "a.h5", pack=False)
    with pytest.raises(UsageError, match="go on with --resume"):
        dump(suite(), reference, tmp_path / "a.h5")
    summary = dump(suite(), reference, tmp_path / "a.h5", resume=True)
    assert (summary.done, summary.resumed) == (0, 1)


def test_a_resumed_dump_comes_from_one_suite_and_one_device(tmp_path, cpu):
    dump(suite(), open_backend("reference"), tmp_path / "a.h5", pack=False)
    with pytest.raises(UsageError, match=r"results of another run: label 'rounded-reference' != "):
        dump(suite(), cpu, tmp_path / "a.h5", candidates=["default"], resume=True)
    with pytest.raises(UsageError, match="its suite holds other cases"):
        dump(suite(seed=3), open_backend("reference"), tmp_path / "a.h5", resume=True)
    with pytest.raises(UsageError, match="its suite holds other cases"):
        dump(suite(lane=["random", "exact"]), open_backend("reference"), tmp_path / "a.h5", resume=True)


def test_a_finished_dump_is_completed_where_a_case_had_failed(tmp_path, cpu, monkeypatch):
    out = tmp_path / "a.h5"
    dump(suite(), cpu, out, candidates=["raises", "default"])
    assert {r.status for r in Dump.open(out).records} == {"error", "done"}
    with pytest.raises(UsageError, match="complete it with --resume"):
        dump(suite(), cpu, out, candidates=["raises", "default"])
    mended = dataclasses.replace(candidates._USER["gemm", "raises"], run=candidates.default_candidate("gemm").run)
    monkeypatch.setitem(candidates._USER, ("gemm", "raises"), mended)
    summary = dump(suite(), cpu, out, candidates=["raises", "default"], resume=True)
    assert (summary.done, summary.error, summary.resumed) == (1, 0, 1)
    d = Dump.open(out)
    assert {r.status for r in d.records} == {"done"}
    assert d.verify_all() == 2
    assert not (tmp_path / "a.h5.parts").exists()


def test_a_result_of_another_dtype_is_an_error_of_its_case(tmp_path, cpu):
    summary = dump(suite(format="bfloat16"), cpu, tmp_path / "a.h5", candidates=["halves"])
    assert summary.error == 1
    assert "shape [8, 6] of float16; expected [8, 6] of bfloat16" in summary.errors[0]


def test_a_kernel_that_fills_out_need_not_return_it(tmp_path, cpu):
    dump(suite(), cpu, tmp_path / "a.h5", candidates=["fills-out"])
    assert compare_dumps(tmp_path / "a.h5").exit_code == 0


def test_operands_are_stored_on_request_and_equal_their_digests(tmp_path):
    dump(suite(), open_backend("reference"), tmp_path / "a.h5", store_inputs=True)
    d = Dump.open(tmp_path / "a.h5")
    (record,) = d.records
    a, b = (decode(d.read(record, n), "float32") for n in "ab")
    np.testing.assert_array_equal(decode(d.read(record, "d"), "float32"), (a @ b.T).astype(np.float32))


def test_views_change_the_layout_in_memory_and_not_the_values(tmp_path, cpu):
    whole = suite(input=["misaligned", "strided"], format=["float32", "bfloat16"])
    prepared = {c.input_class: cpu.prepare(c) for c in whole.cases if c.format == "float32"}
    assert prepared["misaligned"].tensors["a"].storage_offset() == 3
    assert prepared["strided"].tensors["a"].stride(0) > prepared["strided"].tensors["a"].shape[1]
    dump(whole, cpu, tmp_path / "a.h5", candidates=["default"])
    assert compare_dumps(tmp_path / "a.h5").exit_code == 0


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("batched_gemm", "3x8x16x32"),
        ("attention", "1x4x2x16x16x32"),
        ("rope", "8x3x16"),
        ("rmsnorm", "8x64"),
        ("topk", "8x2x16"),
        ("unpermute", "8x2x4x16"),
        ("embedding", "8x5x16"),
        ("cross_entropy", "8x16"),
    ],
)
def test_operands_of_any_number_of_dimensions_lie_in_views(tmp_path, cpu, op, shape):
    views = parse_suite({"name": "v", "description": "v", "cases": [{"op": op, "shape": shape, "input": ["misaligned", "strided"]}]}, "v")
    summary = dump(views, cpu, tmp_path / "a.h5", candidates=["default"])
    assert (summary.done, summary.errors) == (2, [])
    assert compare_dumps(tmp_path / "a.h5").exit_code == 0


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, cpu):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"file/a\.h5\.parts: cannot be made: Not a directory; name a file that can be written with -o"):
        dump(suite(), cpu, tmp_path / "file" / "a.h5")


def test_tf32_is_not_a_mode_of_a_cpu(tmp_path, cpu):
    summary = dump(suite(format="tfloat32"), cpu, tmp_path / "a.h5", candidates=["default"])
    assert (summary.done, summary.unsupported) == (0, 1)


def test_kill_at_any_moment_loses_at_most_the_cases_in_flight(tmp_path):
    out = tmp_path / "a.h5"
    command = [sys.executable, "-m", "accuracy_eval", "dump", "smoke", "--op", "gemm", "--device", "reference", "-o", str(out), "-q"]
    total = len([c for c in load_suite("smoke").cases if c.op == "gemm"])
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 300
    while len(list((tmp_path / "a.h5.parts").glob("*.h5"))) < 5:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = completed(tmp_path / "a.h5.parts")
    assert not out.exists()
    assert 5 <= len(kept) < total
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "a.h5.parts").glob("*.h5")}
    done = subprocess.run([*command, "--resume", "--no-pack"], check=True, capture_output=True, text=True)
    assert done.returncode == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps  # no case ran twice
    assert len(Dump.open(tmp_path / "a.h5.parts").records) == total


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["in-this-process", "by-a-worker"])
def test_an_interrupted_dump_says_how_to_go_on(tmp_path, workers):
    out = tmp_path / "a.h5"
    command = ["dump", "smoke", "--op", "gemm", "--device", "reference", "-o", str(out), *workers]
    process = subprocess.Popen([*HEARING, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while len(list((tmp_path / "a.h5.parts").glob("*.h5"))) < 5:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert f"what is done so far is kept in {out}.parts; the same command with --resume goes on from there" in said
    assert run([*command, "--resume", "-q"]) == 0


def test_a_kernel_that_hands_out_one_buffer_is_seen_to_differ(tmp_path, cpu):
    dump(suite(), cpu, tmp_path / "a.h5", candidates=["one-buffer"])
    d = Dump.open(tmp_path / "a.h5")
    assert d.records[0].distinct == {"d": 2}
    assert d.verify_all() == 2


def test_two_dumps_never_write_into_one_folder(tmp_path):
    folder = tmp_path / "a.h5.parts"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another dump is writing there"):
        dump(suite(), open_backend("reference"), tmp_path / "a.h5")
    (folder / "first.h5").write_bytes(b"")
    with pytest.raises(UsageError, match="another dump is writing there"):
        dump(suite(), open_backend("reference"), tmp_path / "a.h5")
    (folder / "first.h5").unlink()
    os.close(handle)
    dump(suite(), open_backend("reference"), tmp_path / "a.h5")


def test_merge_overwrites_nothing_but_its_inputs(tmp_path):
    dump(suite(), open_backend("reference"), tmp_path / "a.h5")
    (tmp_path / "precious.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not one of the dumps to merge"):
        merge([tmp_path / "a.h5"], tmp_path / "precious.txt")
    assert (tmp_path / "precious.txt").read_text() == "precious"
    merge([tmp_path / "a.h5"], tmp_path / "a.h5")


def test_a_resumed_dump_has_the_candidates_it_began_with(tmp_path, cpu, monkeypatch):
    """Else a kernel that ended the process would be forgotten by the command that goes on."""
    out = tmp_path / "a.h5"
    dump(suite(), cpu, out, candidates=["default", "raises"], pack=False)
    monkeypatch.setattr(candidates, "_USER", {})
    with pytest.raises(UsageError, match=r"candidate raises of gemm.* was registered too\. Register it again with the same --plugin FILE"):
        dump(suite(), cpu, out, resume=True)


def test_a_dump_is_resumed_with_the_filters_it_began_with(tmp_path, capsys):
    """The message names them, not the implementations of ops that they leave out."""
    out = str(tmp_path / "a.h5")
    command = ["dump", "smoke", "--device", "reference", "-o", out, "-q", "--shape", "1024", "--format", "bfloat16"]
    assert run([*command, "--op", "exp,tanh"]) == 0
    assert run([*command, "--op", "exp", "--resume"]) == 2
    said = capsys.readouterr().err
    assert "--op tanh" in said
    assert "was registered" not in said


RIGHT, WRONG = "tensors['a'] @ tensors['b'].t()", "tensors['a'] @ tensors['b'].t() + 1"
PLUGIN = """import accuracy_eval as ae

@ae.candidate("gemm", name="mine")
def mine(case, tensors):
    return {formula}
"""


@pytest.mark.parametrize(("first", "then"), [(WRONG, RIGHT), (RIGHT, WRONG)])
@pytest.mark.parametrize("crew", [[], ["--workers", "1"]])
@pytest.mark.parametrize("left", [[], ["--no-pack"]])
def test_a_resumed_dump_runs_again_what_an_edited_plugin_gave(tmp_path, monkeypatch, capsys, first, then, crew, left):
    """Whether it was mended or broken; results of others are kept, and so are its own where the file is as it was."""
    plugin, out = tmp_path / "k.py", str(tmp_path / "a.h5")
    command = ["dump", "--op", "gemm", "--shape", "8x6x32", "--format", "float32", "--lane", "random", "--lane", "exact", "--layout", "nt"]
    command += ["--device", "cpu", "--plugin", str(plugin), "-o", out]

    def dumped(formula, *options):
        monkeypatch.setattr(candidates, "_USER", {})
        plugin.write_text(PLUGIN.format(formula=formula))
        assert run([*command, *crew, *options]) == 0
        return capsys.readouterr().out

    def verdict():
        return compare_dumps(out if Path(out).exists() else out + ".parts").exit_code

    dumped(first, *left)
    assert verdict() == (first == WRONG)
    said = dumped(then, "--resume", *left)
    assert "2 results done, 0 unsupported, 0 errors, 2 kept from before" in said
    assert "  2 results of mine are run again: k.py has changed" in said.splitlines()
    assert verdict() == (then == WRONG)
    said = dumped(then, "--resume")
    assert "0 results done, 0 unsupported, 0 errors, 4 kept from before" in said
    assert "has changed" not in said


def test_a_resumed_dump_says_which_of_its_parts_it_could_not_read(tmp_path):
    out = tmp_path / "a.h5"
    dump(suite(layout=["nt", "nn", "tn"]), open_backend("reference"), out, pack=False)
    parts = sorted(out.with_name("a.h5.parts").rglob("*.h5"))
    parts[0].write_bytes(b"not HDF5")
    parts[2].write_bytes(parts[2].read_bytes()[:3000])
    summary = dump(suite(layout=["nt", "nn", "tn"]), open_backend("reference"), out, resume=True)
    assert (summary.resumed, summary.done) == (1, 2)
    assert summary.again == [f"2 damaged files of the earlier run are not kept: {parts[0].name} and 1 more"]
    with Dump.open(out) as d:
        assert d.verify_all() == 3


def test_a_resumed_dump_runs_again_what_was_damaged_on_the_disk(tmp_path):
    """A part whose stored digests do not match is not packed."""
    reference, out = open_backend("reference"), tmp_path / "a.h5"
    dump(suite(layout=["nt", "nn"]), reference, out, pack=False)
    whole = {r.id: r.tensors[-1].sha256 for r in Dump.open(out.with_name("a.h5.parts")).records}
    part = next(p for p in sorted(out.with_name("a.h5.parts").rglob("*.h5")))
    with Dump.open(part) as d:
        stored = d.view(d.records[0], d.records[0].tensors[-1]).tobytes()
    damaged = bytearray(part.read_bytes())
    at = damaged.index(stored)
    damaged[at] ^= 1
    part.write_bytes(damaged)
    summary = dump(suite(layout=["nt", "nn"]), reference, out, resume=True)
    assert (summary.resumed, summary.done) == (1, 1)
    assert summary.again == [f"1 damaged file of the earlier run is not kept: {part.name}"]
    with Dump.open(out) as d:
        assert d.verify_all() == 2
        assert {r.id: r.tensors[-1].sha256 for r in d.records} == whole
