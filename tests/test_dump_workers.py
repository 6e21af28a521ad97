"""A dump by several processes: the same bytes, and what a crash, a hang and a broken device cost."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accuracy_eval.backends import candidates
from accuracy_eval.backends.open import open_backend
from accuracy_eval.dump import dump, dumping, workers
from accuracy_eval.dump.workers import Crew
from accuracy_eval.engine.local import LocalPool
from accuracy_eval.engine.seats import gpu_count, gpu_seats, most_workers, seats_for
from accuracy_eval.engine.work import Seat
from accuracy_eval.errors import EngineError, UsageError
from accuracy_eval.store import Dump
from accuracy_eval.suite import Suite, parse_suite

PLUGIN = str(Path(__file__).parent / "support_deadly_kernels.py")


def suite(**table: Any) -> Suite:
    cases = {"op": "gemm", "shape": ["8x6x32", "16x6x64", "8x8x8"], "format": ["float32", "bfloat16"], "lane": ["random", "exact"], **table}
    return parse_suite({"name": "test", "cases": [cases]}, "test")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(candidates, "_USER", {})
    candidates.load_plugin(PLUGIN)
    return PLUGIN


def stored(path: Path) -> list[tuple[Any, ...]]:
    return [(r.id, r.candidate, t.name, t.format, t.shape, t.sha256) for r in Dump.open(path).records for t in r.tensors]


def test_one_or_three_workers_give_the_same_bytes_as_none(tmp_path: Path) -> None:
    dump(suite(), open_backend("reference"), tmp_path / "here.h5")
    for n in (1, 3):
        with Crew("reference", n) as crew:
            summary = dump(suite(), crew, tmp_path / f"{n}.h5")
        assert (summary.done, summary.error) == (12, 0)
        assert stored(tmp_path / f"{n}.h5") == stored(tmp_path / "here.h5")
        assert Dump.open(tmp_path / f"{n}.h5").content_digest == Dump.open(tmp_path / "here.h5").content_digest


def test_a_kernel_that_kills_its_process_costs_its_case_alone(tmp_path: Path, plugin: str) -> None:
    with Crew("cpu", 1, plugins=[plugin]) as crew:
        summary = dump(suite(format="float32", lane="random"), crew, tmp_path / "a.h5", candidates=["default", "segfault"])
    assert (summary.done, summary.error) == (5, 1)  # it kills at m = 16
    lost = [r for r in Dump.open(tmp_path / "a.h5").records if r.status == "error"]
    assert [(r.candidate, r.case.dims["m"]) for r in lost] == [("segfault", 16)]
    assert "SIGSEGV" in lost[0].reason


def test_a_kernel_that_hangs_is_ended_and_costs_its_case_alone(tmp_path: Path, plugin: str) -> None:
    with Crew("cpu", 1, plugins=[plugin], limit_s=3) as crew:
        summary = dump(suite(format="float32", lane="random"), crew, tmp_path / "a.h5", candidates=["hang"])
    assert (summary.done, summary.error) == (2, 1)
    assert "no sign of life for 3 s" in summary.errors[0]


def test_what_was_lost_is_run_again_by_resume(tmp_path: Path, plugin: str) -> None:
    with Crew("cpu", 1, plugins=[plugin]) as crew:
        dump(suite(format="float32", lane="random"), crew, tmp_path / "a.h5", candidates=["segfault"])
    with Crew("cpu", 1, plugins=[plugin]) as crew:
        again = dump(suite(format="float32", lane="random"), crew, tmp_path / "a.h5", candidates=["segfault"], resume=True)
    assert (again.resumed, again.error) == (2, 1)


def test_parts_that_cannot_be_written_end_the_dump_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.h5.parts").mkdir()
    with Crew("reference", 1) as crew:
        monkeypatch.setattr(dumping, "Settings", lambda parts, *rest, **more: _settings(tmp_path / "no" / "\0", *rest, **more))
        with pytest.raises(ValueError, match="null byte"):
            dump(suite(), crew, tmp_path / "a.h5")


def test_parts_that_only_their_node_sees_end_the_dump_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Crew("reference", 1) as crew:
        monkeypatch.setattr("accuracy_eval.dump.workers.store.part_name", lambda ident, candidate: "on-another-disk.h5")
        with pytest.raises(EngineError, match=r"worker 0 wrote on-another-disk.h5, which is not in .*; give a dump \(-o\) on storage"):
            dump(suite(), crew, tmp_path / "a.h5")


def test_what_nobody_expected_says_where_in_the_worker_it_was() -> None:
    told: list[Any] = []
    with ThreadPoolExecutor(1) as threads:
        workers._when_all([threads.submit(_mistaken)], told.append)
    with pytest.raises(ZeroDivisionError) as raised:
        raise pickle.loads(pickle.dumps(told[0]))  # noqa: S301  what a pipe does: the traceback itself is lost
    assert "in _mistaken" in raised.value.__notes__[0]


def _mistaken() -> Any:
    raise ZeroDivisionError


def _settings(*values: Any, **more: Any) -> Any:
    from accuracy_eval.dump.running import Settings

    return Settings(*values, **more)


def test_a_device_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(EngineError, match="could not start: device 'cuda:0'"), Crew("cuda:0", 1):
        pass


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"device_name": "NVIDIA H100", "uuid": "b"}, "gpu 1 has device_name 'NVIDIA H100', gpu 0 'NVIDIA H200'"),
        ({"device_name": "NVIDIA H200", "uuid": "a"}, "two workers got the same GPU"),
    ],
)
def test_workers_with_other_or_the_same_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, second: dict[str, str], said: str) -> None:
    platforms = {"gpu 0": {"device_name": "NVIDIA H200", "uuid": "a"}, "gpu 1": second}
    seats = [Seat(name) for name in platforms]
    monkeypatch.setattr(workers, "seats_for", lambda device, count: ("cuda:0", seats))
    monkeypatch.setattr(LocalPool, "__enter__", lambda pool: pool)
    monkeypatch.setattr(LocalPool, "hellos", [SimpleNamespace(platform=p) for p in platforms.values()])
    with pytest.raises(EngineError, match=said), Crew("cuda", 2):
        pass


# seats


def host(root: Path, *, nvidia: int = 0, amd: int = 0) -> Path:
    (root / "dev").mkdir(parents=True)
    for i in range(nvidia):
        (root / "dev" / f"nvidia{i}").touch()
    if nvidia:
        (root / "dev/nvidiactl").touch()
    if amd:
        (root / "dev/kfd").touch()
    for i in range(amd + 1 if amd else 0):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{i}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count {0 if i else 64}\nsimd_count {1216 if i else 0}\n")
    return root


def test_each_nvidia_worker_sees_one_gpu(tmp_path: Path) -> None:
    root = host(tmp_path / "r", nvidia=4)
    device, seats = seats_for("cuda", 3, {}, root)
    assert device == "cuda:0"
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in seats] == ["0", "1", "2"]


def test_the_devices_a_user_left_visible_are_the_ones_used(tmp_path: Path) -> None:
    root = host(tmp_path / "r", nvidia=8)
    environment = {"CUDA_VISIBLE_DEVICES": "5, GPU-8a1f"}
    assert gpu_count(environment, root) == 2
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in gpu_seats(2, environment, root)] == ["5", "GPU-8a1f"]
    with pytest.raises(UsageError, match=r"3 workers asked for, 2 GPUs can be used here \(CUDA_VISIBLE_DEVICES=5,GPU-8a1f\)"):
        gpu_seats(3, environment, root)
    with pytest.raises(UsageError, match=r"no GPU can be used here \(CUDA_VISIBLE_DEVICES is not set\); --device cpu or reference"):
        gpu_seats(6, {}, host(tmp_path / "none"))


def test_amd_workers_are_pinned_by_hip_within_what_rocr_leaves(tmp_path: Path) -> None:
    root = host(tmp_path / "r", amd=8)
    assert gpu_count({}, root) == 8
    environment = {"ROCR_VISIBLE_DEVICES": "2,3"}
    assert gpu_count(environment, root) == 2
    assert [s.environment for s in gpu_seats(2, environment, root)] == [
        {"HIP_VISIBLE_DEVICES": str(i), "ACCURACY_EVAL_THREADS": s.environment["ACCURACY_EVAL_THREADS"]}
        for i, s in enumerate(gpu_seats(2, environment, root))
    ]
    assert [s.environment["HIP_VISIBLE_DEVICES"] for s in gpu_seats(2, {"CUDA_VISIBLE_DEVICES": "6,7"}, root)] == ["6", "7"]


def test_all_is_one_a_gpu_and_one_a_core_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCURACY_EVAL_THREADS", "6")
    assert most_workers("auto", {}, host(tmp_path / "a", nvidia=2)) == 2
    assert most_workers("auto", {}, host(tmp_path / "b")) == 6
    assert most_workers("cuda:1", {}, host(tmp_path / "c", nvidia=2)) == 1
    with pytest.raises(UsageError, match="one GPU and 2 workers"):
        seats_for("cuda:1", 2, {}, tmp_path / "c")
