"""Workers as actors of a Ray cluster of two nodes on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support_workers import obedient, unable

from accuracy_eval.backends import candidates
from accuracy_eval.backends.open import open_backend
from accuracy_eval.cli import run
from accuracy_eval.dump import dump
from accuracy_eval.dump.workers import Crew
from accuracy_eval.engine.ray import SETTINGS, Cluster, ClusterSeat, RayPool
from accuracy_eval.engine.work import Finished, Lost
from accuracy_eval.errors import EngineError, MissingDependency, UsageError
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

# Ray starts its processes by fork; JAX, where an earlier test of this process imported it, warns of every one
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
PLUGIN = str(Path(__file__).parent / "support_deadly_kernels.py")
STORE_BYTES = 100 << 20


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes; workers of the second find the modules of these tests as those of the first do."""
    os.environ.update(SETTINGS)
    from ray.cluster_utils import Cluster as TwoNodes

    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = paths
    first = {"num_cpus": 2, "resources": {"amd": 2}, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    made = TwoNodes(initialize_head=True, head_node_args=first)
    made.second = made.add_node(num_cpus=2, resources={"nvidia": 2}, object_store_memory=STORE_BYTES)
    with Cluster(made.address):
        yield made
    made.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def seat(name: str = "worker 0", **environment: str) -> ClusterSeat:
    return ClusterSeat(name, environment)


@pytest.mark.usefixtures("nodes")
def test_every_task_is_done_once_by_workers_that_have_their_seats_variables() -> None:
    with RayPool(obedient, [seat("a", PLACE="first"), seat("b", PLACE="second")]) as pool:
        assert pool.hellos == ["a first", "b second"]
        events = list(pool.run([*(f"later {n}" for n in range(4)), *["name"] * 12]))
    found = {e.task: e.value for e in events if isinstance(e, Finished)}
    assert sorted(e.task for e in events) == list(range(16))
    assert [found[n] for n in range(4)] == [0, 1, 2, 3]
    assert {found[n] for n in range(4, 16)} == {"a", "b"}


@pytest.mark.usefixtures("nodes")
def test_a_death_a_hang_and_a_broken_device_cost_their_task_and_nothing_beside_it() -> None:
    tasks = ["later 7", "die", "square 2", "hang", "square 3", "broken 4", "square 5"]
    with RayPool(obedient, [seat()], limit_s=10.0) as pool:
        events = {e.task: e for e in pool.run(tasks)}
    assert {n: e.value for n, e in events.items() if isinstance(e, Finished)} == {0: 7, 2: 4, 4: 9, 5: "failed 4", 6: 25}
    died, hung = events[1], events[3]
    assert isinstance(died, Lost)
    assert died.seat.startswith("worker 0 on ")
    assert isinstance(hung, Lost)
    assert "no sign of life for 10 s" in hung.reason


@pytest.mark.usefixtures("nodes")
def test_a_worker_that_cannot_start_says_why() -> None:
    with pytest.raises(EngineError, match="worker 0: the worker could not start: RuntimeError: this device is not there"):
        RayPool(unable, [seat()]).__enter__()


@pytest.mark.usefixtures("nodes")
def test_what_no_node_has_is_one_clear_error() -> None:
    asked = ClusterSeat("gpu 0", {}, {"CPU": 1, "GPU": 1}, "H200")
    with pytest.raises(EngineError, match=r"no node gave it 1 CPU, 1 GPU, accelerator type H200 within 0 s; the cluster has .*4 CPU"):
        RayPool(obedient, [asked], start_s=0.2).__enter__()


def test_seats_are_gpus_or_cores_of_the_nodes_asked_for(nodes: Any) -> None:
    with Cluster(nodes.address, on="amd") as cluster:
        device, seats = cluster.seats_for("cpu", 2)
        assert (device, [s.resources for s in seats]) == ("cpu", [{"CPU": 1, "amd": 1}] * 2)
        assert cluster.most_workers("cpu") == 2
        device, seats = cluster.seats_for("cuda", 1)
        assert (device, seats[0].resources, seats[0].accelerator_type) == ("cuda:0", {"CPU": 1, "GPU": 1, "amd": 1}, None)
        with pytest.raises(UsageError, match="no node of the cluster has GPUs and amd"):
            cluster.most_workers("cuda")
        with pytest.raises(UsageError, match="device cuda:1 is a GPU of one host"):
            cluster.seats_for("cuda:1", 1)
    with Cluster(nodes.address, on="H200") as cluster:
        assert cluster.seats_for("cuda", 1)[1][0].options()["accelerator_type"] == "H200"
    with Cluster(nodes.address) as cluster:
        assert cluster.most_workers("auto") == 4
        assert cluster.has_node()
    with Cluster(nodes.address, on="intel") as cluster:
        assert not cluster.has_node()


def test_a_node_that_leaves_costs_nothing(nodes: Any) -> None:
    third = nodes.add_node(num_cpus=1, resources={"third": 1}, object_store_memory=STORE_BYTES)
    leaving = ClusterSeat("leaving", {}, {"CPU": 1, "third": 1})
    with RayPool(obedient, [leaving, seat("staying")]) as pool:
        events = pool.run(["hang-on leaving", *["name"] * 8])
        found = {}
        for event in events:
            found[event.task] = event
            if len(found) == 4:
                nodes.remove_node(third, allow_graceful=False)
    assert all(isinstance(e, Finished) for e in found.values())
    assert found[0].value == "staying"


# dumps


def test_a_dump_by_a_cluster_has_the_digest_of_one_made_here(nodes: Any, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(
        '[[cases]]\nop = "gemm"\nshape = ["8x6x32", "16x6x64"]\nformat = ["float32", "bfloat16"]\nlane = ["random", "exact"]\n'
    )
    arguments = ["dump", str(suite), "--device", "reference", "-q"]
    assert run([*arguments, "-o", str(tmp_path / "here.h5")]) == 0
    assert run([*arguments, "-o", str(tmp_path / "there.h5"), "--engine", "ray", "--address", nodes.address, "--workers", "2"]) == 0
    here, there = Dump.open(tmp_path / "here.h5"), Dump.open(tmp_path / "there.h5")
    assert here.content_digest == there.content_digest
    assert len(there.records) == 8


def test_a_kernel_that_kills_its_actor_costs_its_case_alone(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_USER", {})
    candidates.load_plugin(PLUGIN)
    cases = {"op": "gemm", "shape": ["8x6x32", "16x6x64", "256x64x512"], "format": "float32"}
    suite = parse_suite({"name": "test", "cases": [cases]}, "test")
    with Cluster(nodes.address) as cluster, Crew("cpu", 2, plugins=[PLUGIN], cluster=cluster) as crew:
        summary = dump(suite, crew, tmp_path / "there.h5", candidates=["default", "segfault"])
    dump(suite, open_backend("cpu"), tmp_path / "here.h5", candidates=["default"])
    assert (summary.done, summary.error) == (5, 1)  # it kills at m = 16
    there = Dump.open(tmp_path / "there.h5")
    (lost,) = [r for r in there.records if r.status == "error"]
    assert (lost.candidate, lost.case.dims["m"]) == ("segfault", 16)
    # torch's bits may depend on its threads: an actor has as many as this process
    assert [r.tensors for r in there.records if r.candidate == "default"] == [r.tensors for r in Dump.open(tmp_path / "here.h5").records]


def test_an_address_where_nobody_listens_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(EngineError, match=r"no Ray cluster at 127\.0\.0\.1:1: .*refused; start one with ray start --head"):
        Cluster("127.0.0.1:1").__enter__()


def test_options_of_a_cluster_are_refused_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "smoke", "-o", str(tmp_path / "a.h5"), "--address", "auto", "--on", "amd"]) == 2
    assert "--address and --on belong to --engine ray" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"engine ray needs Ray; install the extra: pip install 'accuracy-eval\[ray\]'"):
        Cluster()
