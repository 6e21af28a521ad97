"""A GPU that answers every call with an earlier error costs the case that raised it, in one process and in workers."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import support_fake_torch
import torch

from accuracy_eval.backends import candidates
from accuracy_eval.backends.staging import Staging
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.dump import dump
from accuracy_eval.dump.running import Here
from accuracy_eval.dump.workers import Crew
from accuracy_eval.errors import EngineError, UsageError, described
from accuracy_eval.store import Dump
from accuracy_eval.suite import Suite, parse_suite

PLUGIN = str(Path(__file__).parent / "support_lost_device.py")
DEADLY = str(Path(__file__).parent / "support_deadly_kernels.py")
SHAPES = ["8x6x32", "16x6x64", "8x8x8"]
# the beginning of what torch 2.11 says on an H200
ERROR = "CUDA error: misaligned address\nSearch for `cudaErrorMisalignedAddress' in https://docs.nvidia.com for more information.\n"
# what is recorded of it: the first sentence, and the line of the kernel
RECORDED = r"AcceleratorError: CUDA error: misaligned address \(test_dump_lost_device\.py:\d+\)"


def suite() -> Suite:
    return parse_suite({"name": "test", "cases": [{"op": "gemm", "shape": SHAPES, "format": ["float32"], "lane": ["random"]}]}, "test")


def statuses(path: Path) -> dict[tuple[int, int, str], str]:
    return {(r.case.dims["m"], r.case.dims["k"], r.candidate): r.status for r in Dump.open(path).records}


def command(plugin: str, names: Sequence[str], out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    chosen = ["--op", "gemm", *(x for s in SHAPES for x in ("--shape", s)), "--format", "float32", "--lane", "random"]
    chosen += ["--plugin", plugin, *(x for name in names for x in ("--candidate", name))]
    line = [sys.executable, "-m", "accuracy_eval", "dump", *chosen, "--device", "cpu", "-o", str(out), *more]
    environment = {**os.environ, "DEADLY_AFTER": f"{out}.parts"}
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, env=environment)


# a process of its own, as a user starts it


def test_a_dump_in_one_process_goes_on_in_a_worker_and_has_the_records_of_workers(tmp_path: Path) -> None:
    names = ["default", "loses", "steady"]
    found = command(PLUGIN, names, tmp_path / "here.h5")
    assert found.returncode == 1, found.stderr  # and not 134, by the destructor of what the raising kernel held
    assert "8 results done, 0 unsupported, 1 error" in found.stdout
    assert re.search(r"\(loses\): RuntimeError: CUDA error: misaligned address \(support_lost_device\.py:\d+\)\n", found.stdout)
    assert "a fresh process ran the cases after it" in found.stdout
    with Crew("cpu", 1, plugins=[PLUGIN]) as crew:
        dumped = dump(suite(), crew, tmp_path / "workers.h5", candidates=names)
    assert (dumped.done, dumped.error, len(dumped.lost)) == (8, 1, 1)
    here, workers = Dump.open(tmp_path / "here.h5"), Dump.open(tmp_path / "workers.h5")
    assert here.content_digest == workers.content_digest
    assert [(r.id, r.candidate, r.status, r.reason, r.notes) for r in here.records] == [
        (r.id, r.candidate, r.status, r.reason, r.notes) for r in workers.records
    ]
    lost = [r for r in here.records if r.status == "error"]
    sources = {"support_lost_device.py": hashlib.sha256(Path(PLUGIN).read_bytes()).hexdigest()}
    assert [(r.candidate, r.case.dims["m"], r.notes) for r in lost] == [("loses", 16, {"device_lost": True, "sources": sources})]


def test_a_kernel_that_aborts_the_only_process_leaves_results_and_the_way_on(tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    died = command(DEADLY, ["default", "abort"], out)
    assert died.returncode == -signal.SIGABRT
    assert f"what was done is kept in {out}.parts. Go on with --resume --workers 1" in died.stderr
    again = command(DEADLY, ["default", "abort"], out)
    assert again.returncode == 2
    assert f"{out}.parts holds " in again.stderr
    assert "--resume (and --workers 1 where a case ended the process" in again.stderr
    assert "kept" not in again.stderr  # it ended as it should
    on = command(DEADLY, ["default", "abort"], out, "--resume", "--workers", "1")
    assert on.returncode == 1, on.stderr
    assert [k for k, status in statuses(out).items() if status == "error"] == [(16, 64, "abort")]


# a recorded H200 in this process


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A device that candidate `loses` takes away at m = 16; until then no result of an earlier case has reached the host."""
    monkeypatch.setattr(candidates, "_USER", {})
    gone = Event()
    with support_fake_torch.fake_torch("h200") as found:

        @candidates.candidate("gemm", name="loses")
        def loses(case: Any, tensors: Any) -> Any:
            if case.dims["m"] == 16:
                found.lose(ERROR)
                gone.set()
                raise torch.AcceleratorError(ERROR)
            return tensors["a"] @ tensors["b"].t()

        def synchronize(event: Any) -> None:
            assert gone.wait(60)
            found.answer()

        monkeypatch.setattr(support_fake_torch.Event, "synchronize", synchronize)
        yield found


def test_results_that_were_still_on_the_device_are_run_again_and_nothing_else_is_accused(tmp_path: Path, fake: Any) -> None:
    def fresh() -> Any:
        fake.lose("")  # as another process would find it
        return nullcontext(Here(TorchBackend("cuda:0", torch=fake)))

    place = Here(TorchBackend("cuda:0", torch=fake), rescue=fresh)
    summary = dump(suite(), place, tmp_path / "a.h5", candidates=["default", "loses"])
    assert (summary.done, summary.error) == (5, 1)
    assert [k for k, status in statuses(tmp_path / "a.h5").items() if status != "done"] == [(16, 64, "loses")]
    assert re.search(rf"\(loses\): {RECORDED}$", summary.errors[0])


def test_a_backend_of_ones_own_that_is_lost_ends_the_dump_with_what_is_done_kept(tmp_path: Path, fake: Any) -> None:
    with pytest.raises(EngineError, match=r"cuda:0 answers every call .*kept in .*a.h5.parts.*--resume --workers 1"):
        dump(suite(), TorchBackend("cuda:0", torch=fake), tmp_path / "a.h5", candidates=["default", "loses"])
    with pytest.raises(UsageError, match="go on with --resume"):
        dump(suite(), TorchBackend("cpu"), tmp_path / "a.h5", candidates=["default", "loses"])
    records = [r for path in (tmp_path / "a.h5.parts").glob("*.h5") for r in Dump.open(path).records]
    (record,) = records
    assert (record.candidate, record.status) == ("loses", "error")
    assert re.fullmatch(RECORDED, record.reason)


# the parts


def test_of_a_gpus_message_the_first_sentence_is_kept_and_of_others_all() -> None:
    assert described(RuntimeError(ERROR)) == "RuntimeError: CUDA error: misaligned address"
    assert described(RuntimeError("HIP error: invalid argument\nHIP kernel errors …")) == "RuntimeError: HIP error: invalid argument"
    assert described(ValueError("expected:\n  2 rows")) == "ValueError: expected:\n  2 rows"


def test_page_locked_memory_is_taken_again_when_no_view_of_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        uint8 = torch.uint8

        @staticmethod
        def empty(size: int, dtype: Any, pin_memory: bool) -> Any:
            assert pin_memory
            return torch.zeros(size, dtype=dtype)

    staging = Staging(Torch)
    first = staging.take(6)
    view = staging.lend(first, 6).view(np.uint16).reshape(3, 1)
    assert staging.take(6) is not first
    assert view.shape == (3, 1)
    del view
    assert staging.take(5) is first
