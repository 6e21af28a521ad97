"""Shell completion: the scripts, and what is offered for a half-typed line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accuracy_eval.cli import run


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "a.h5"
    grid = ["--op", "gemm", "--shape", "8x4x16", "--layout", "nt", "--layout", "nn", "--format", "float32", "--lane", "random"]
    assert run(["dump", *grid, "--device", "reference", "-o", str(path), "-q"]) == 0
    return path


def offered(*words: str) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    environment = os.environ | {
        "_ACCURACY_EVAL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["accuracy-eval", *words]), "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "accuracy_eval"], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [line.split(",", 1)[1] for line in done.stdout.splitlines() if line]


def test_case_ids_come_from_the_dump_on_the_line(dump: Path) -> None:
    assert offered("compare", str(dump), "--case", "gemm.m8.n4.k16.n") == [
        "gemm.m8.n4.k16.nn.float32.normal.s0", "gemm.m8.n4.k16.nt.float32.normal.s0",
    ]  # fmt: skip
    assert offered("inspect", str(dump), "--case", "gemm.m8.n4.k16.nt") == ["gemm.m8.n4.k16.nt.float32.normal.s0"]


def test_a_dump_that_cannot_be_read_offers_nothing_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_text("no dump")
    assert offered("compare", str(tmp_path / "x.h5"), "--case", "g") == []


def test_commands_suites_profiles_and_metrics_are_offered() -> None:
    assert offered("hist") == ["history"]
    assert "smoke" in offered("dump", "s")
    assert offered("compare", "a.h5", "--gates", "tu") == ["turbo"]
    assert offered("history", "--metric", "rel_") == ["rel_fro"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_that_asks_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_ACCURACY_EVAL_COMPLETE={shell}_complete" in script
    assert "accuracy-eval" in script


def test_bash_takes_the_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run([bash, "-c", f"source {script}; complete -p accuracy-eval"], capture_output=True, text=True, check=True)
    assert "accuracy-eval" in done.stdout
