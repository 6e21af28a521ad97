"""The pytest plugin: loading, messages, JUnit properties, one GPU a worker; and the example project that uses it."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from accuracy_eval.backends.pinning import amd_count, nvidia_count, pinned, worker_number

ROOT = Path(__file__).parent.parent
PLUGIN = ["-p", "accuracy_eval.pytest_plugin", "-p", "no:cacheprovider"]


def run_pytest(folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "CUDA_VIS", "HIP_VIS", "ROCR_VIS"))}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_loading_the_plugin_imports_nothing_heavy():
    heavy = ("numpy", "torch", "h5py", "numba", "accuracy_eval.errors")
    code = f"import accuracy_eval.pytest_plugin, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_failure_reads_as_the_report_and_becomes_junit_properties(tmp_path):
    (tmp_path / "test_user.py").write_text(
        "import torch\n"
        "def lossy(a, b):\n"
        "    return a[:, :-16] @ b[:-16]\n"
        "def inputs(accuracy):\n"
        "    return {'a': accuracy.seeded((24, 64)), 'b': accuracy.seeded((64, 16))}\n"
        "def test_right(accuracy):\n"
        "    accuracy.verify(torch.matmul, reference='gemm', inputs=inputs(accuracy))\n"
        "def test_wrong(accuracy):\n"
        "    accuracy.verify(lossy, reference='gemm', inputs=inputs(accuracy), grad=False)\n"
        "def test_arrays(accuracy):\n"
        "    accuracy.check(torch.ones(3), torch.ones(3) * 2)\n"
    )
    done = run_pytest(tmp_path, "--junitxml=out.xml")
    assert "2 failed, 1 passed" in done.stdout
    assert "warning" not in done.stdout.lower(), "properties suit pytest's default form of --junitxml"
    assert "AssertionError: FAIL gemm.m24.n16.k64.nn.float32.normal.s0 output 'd' (float32): error" in done.stdout
    assert "cause k-tail-missing: products from k = 48 of 64 on are missing" in done.stdout
    assert "pytest_plugin.py" not in done.stdout, "frames of the plugin are hidden"
    cases = {
        c.get("name"): {p.get("name"): p.get("value") for p in c.iter("property")} for c in ET.parse(tmp_path / "out.xml").iter("testcase")
    }
    right = cases["test_right"]
    assert right["accuracy_eval.gemm.m24.n16.k64.nn.float32.normal.s0.d.verdict"] == "PASS"
    assert float(right["accuracy_eval.gemm.m24.n16.k64.nn.float32.normal.bwd.s0.db.budget_max"]) < 1
    assert cases["test_wrong"]["accuracy_eval.gemm.m24.n16.k64.nn.float32.normal.s0.d.causes"] == "k-tail-missing"
    assert cases["test_arrays"]["accuracy_eval.arrays.actual.verdict"] == "FAIL"


def test_the_example_project_finds_its_planted_bug():
    done = run_pytest(ROOT / "examples" / "row_norm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("....")


def test_workers_of_xdist_run_with_the_plugin(tmp_path):
    (tmp_path / "test_user.py").write_text("def test_one(accuracy):\n    assert accuracy.check([1.0], [1.0]).passed\n")
    done = run_pytest(tmp_path, "-n", "2")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


# pinning, by recorded trees of device nodes


def machine(root, *, nvidia=0, amd=0, hidden=()):
    (root / "dev" / "dri").mkdir(parents=True)
    for i in range(nvidia):
        (root / "dev" / f"nvidia{i}").touch()
    if nvidia:
        for name in ("nvidiactl", "nvidia-uvm"):
            (root / "dev" / name).touch()
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for i in range(amd + (1 if amd else 0)):
        folder = nodes / str(i)
        folder.mkdir(parents=True)
        cpu = i == 0
        folder.joinpath("properties").write_text(f"simd_count {0 if cpu else 304}\ndrm_render_minor {0 if cpu else 127 + i}\n")
        if not cpu and i - 1 not in hidden:
            (root / "dev/dri" / f"renderD{127 + i}").touch()
    return root


@pytest.mark.parametrize(("name", "number"), [("gw0", 0), ("gw13", 13), ("master", None), ("", None)])
def test_a_workers_name_tells_its_number(name, number):
    assert worker_number(name) == number


def test_devices_are_counted_as_the_process_may_open_them(tmp_path):
    assert nvidia_count(machine(tmp_path / "a", nvidia=3)) == 3
    assert amd_count(machine(tmp_path / "b", amd=8)) == 8
    assert amd_count(machine(tmp_path / "c", amd=8, hidden=(0, 5))) == 6
    assert (nvidia_count(tmp_path / "b"), amd_count(tmp_path / "a")) == (0, 0)


@pytest.mark.parametrize(
    ("gpus", "environment", "worker", "changes"),
    [
        ({"nvidia": 3}, {}, 4, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"nvidia": 8}, {"CUDA_VISIBLE_DEVICES": "2,5"}, 3, {"CUDA_VISIBLE_DEVICES": "5"}),
        ({"nvidia": 8}, {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, 0, {"CUDA_VISIBLE_DEVICES": "GPU-aa"}),
        ({"nvidia": 2}, {"CUDA_VISIBLE_DEVICES": ""}, 0, {}),
        ({"nvidia": 2}, {"CUDA_VISIBLE_DEVICES": "-1"}, 0, {}),
        ({"amd": 8}, {}, 9, {"HIP_VISIBLE_DEVICES": "1"}),
        ({"amd": 8}, {"ROCR_VISIBLE_DEVICES": "4,6"}, 1, {"ROCR_VISIBLE_DEVICES": "6"}),
        ({"amd": 8}, {"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "0,1"}, 1, {"HIP_VISIBLE_DEVICES": "1"}),
        ({"amd": 8}, {"CUDA_VISIBLE_DEVICES": "3"}, 5, {"CUDA_VISIBLE_DEVICES": "3"}),
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, 0, {}),
    ],
)  # fmt: skip
def test_each_worker_sees_one_gpu_of_those_there_are(gpus, environment, worker, changes, tmp_path):
    assert pinned(worker, environment, machine(tmp_path, **gpus)) == changes
