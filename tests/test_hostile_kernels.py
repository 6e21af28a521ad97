"""A user's kernel can give a wrong result or raise; it can do nothing to what runs after it, to the dump, or to what the command prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from accuracy_eval.backends.candidates import candidate
from accuracy_eval.errors import UsageError
from accuracy_eval.store import Dump

PLUGIN = Path(__file__).parent / "programs" / "hostile_kernels.py"
# forward and backward: gradients need what a kernel may have switched off
COMMAND = ("--op", "gemm", "--shape", "8x8x16", "--format", "float32", "--layout", "nt", "--device", "cpu", "-q", "--plugin", str(PLUGIN))


def dumped(folder: Path, *candidates: str, more: tuple[str, ...] = ()) -> tuple[subprocess.CompletedProcess[str], Dump]:
    """A dump in a process of its own, its folder the working directory."""
    named = [x for name in candidates for x in ("--candidate", name)]
    command = [sys.executable, "-m", "accuracy_eval", "dump", *COMMAND, *named, "-o", "a.h5", *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done, Dump.open(folder / "a.h5")


LEAVING = ("reshapes", "transposes", "takes_away", "changes_folder", "stops_gradients", "takes_one_thread", "changes_defaults",
           "raises_on_overflow")  # fmt: skip


def test_what_kernels_do_to_their_operands_and_their_process_reaches_nobody_else(tmp_path: Path) -> None:
    done, dump = dumped(tmp_path, *LEAVING, "writes_and_raises", "after")
    records = {r.candidate: r for r in dump.records}
    outputs = {name: [t.sha256 for t in r.tensors if t.role == "output"] for name, r in records.items()}
    assert (done.returncode, done.stderr) == (1, "")
    assert outputs.pop("writes_and_raises") == []
    assert records["writes_and_raises"].reason == "ValueError: after writing to its operand (hostile_kernels.py:19)"
    assert {tuple(digests) for digests in outputs.values()} == {tuple(outputs["after"])}
    assert dump.verify_all() == len(outputs)


def test_the_process_is_put_back() -> None:
    from accuracy_eval.backends.surroundings import put_back

    def state() -> tuple[object, ...]:
        return (
            os.getcwd(), np.geterr(), torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(),
            torch.get_default_device(), torch.empty(1).device.type,
        )  # fmt: skip

    before = state()
    with put_back(torch, on_gpu=False):
        os.chdir("/")
        np.seterr(all="raise")
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        assert not any(now == then for now, then in zip(state(), before, strict=True))
    assert state() == before


REASONS = {
    "exits": "candidate 'exits' raised SystemExit: 0, which would have ended the dump",
    "closes": "candidate 'closes' raised GeneratorExit: , which would have ended the dump",
    "unsayable": "Unsayable: (what it says cannot be had: RuntimeError) (hostile_kernels.py:83)",
    "controls": r"ValueError: \x1b[31mred\x00 \u202eturned\ud800 (hostile_kernels.py:83)",
    "talks": f"ValueError: {'x' * 2000} … (1000000 characters in all) (hostile_kernels.py:83)",
    "nothing": "candidate 'nothing' output d: a NoneType; expected a torch tensor",
    "array": "candidate 'array' output d: a ndarray; expected a torch tensor",
    "list": "candidate 'list' output d: a list; expected a torch tensor",
    "elsewhere": "candidate 'elsewhere' output d: on device meta; expected cpu",
}


def test_what_kernels_raise_and_return_is_an_error_of_their_case_that_can_be_read(tmp_path: Path) -> None:
    done, dump = dumped(tmp_path, *REASONS, "after")
    found = {r.candidate: r.reason for r in dump.records}
    assert (done.returncode, found.pop("after")) == (1, "")
    assert found == REASONS


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["in-this-process", "by-a-worker"])
def test_what_kernels_print_is_not_mixed_with_what_the_command_says(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done, _ = dumped(tmp_path, "prints", more=("--json", *workers))
    assert json.loads(done.stdout)["done"] == 1
    assert done.stderr == "from Python\nfrom C\n" * 2


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["in-this-process", "by-a-worker"])
def test_a_process_that_a_kernel_forks_does_not_go_on_with_the_dump(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done, dump = dumped(tmp_path, "forks", "forks_and_raises", "after", more=workers)
    assert (done.returncode, done.stderr) == (0, "")
    assert dump.verify_all() == len(dump.records) == 3


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["in-this-process", "by-a-worker"])
def test_a_thread_that_a_kernel_leaves_does_not_keep_the_dump_from_ending(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done, dump = dumped(tmp_path, "leaves_a_thread", "after", more=workers)
    assert (done.returncode, done.stderr) == (0, "")
    assert dump.verify_all() == 2


def test_a_plugin_that_ends_the_process_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\n\nsys.exit(0)\n")
    command = [sys.executable, "-m", "accuracy_eval", "dump", "smoke", "--plugin", "leaves.py", "--device", "reference", "-o", "a.h5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "accuracy-eval: plugin leaves.py:3: SystemExit: 0; nothing was run\n")


@pytest.mark.parametrize("name", ["a+graph", "\x1b[31mred", "\u202eturned", "\ud800", "two words"])
def test_a_name_that_cannot_be_shown_or_stored_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(UsageError, match="allowed: a name without '/', '@', '.', '\\+', spaces, control characters") as refused:
        candidate("gemm", name=name)
    assert str(refused.value).isprintable()
