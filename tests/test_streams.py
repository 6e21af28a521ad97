"""Standard streams that are closed, or full: the command does its work, and says what it cannot say elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accuracy_eval.store import Dump

COMMAND = f"{sys.executable} -m accuracy_eval dump smoke --op exp --device reference -o a.h5"


def in_shell(folder: Path, redirected: str, more: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        ["/bin/sh", "-c", f"{COMMAND} {more} {redirected}"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("workers", ["", "--workers 1"], ids=["in-this-process", "by-a-worker"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_dump_needs_no_standard_stream(tmp_path: Path, closed: str, workers: str) -> None:
    assert in_shell(tmp_path, closed, workers).returncode == 0
    assert Dump.open(tmp_path / "a.h5").verify_all() == 4


def test_a_full_standard_output_is_one_message_and_the_dump_is_there(tmp_path: Path) -> None:
    done = in_shell(tmp_path, ">/dev/full")
    said = "accuracy-eval: standard output cannot be written: No space left on device; files that were written are whole\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert Dump.open(tmp_path / "a.h5").verify_all() == 4


@pytest.mark.parametrize("option", ["--shard ²/3", "--workers ²"])
def test_digits_that_are_no_numbers_are_refused(tmp_path: Path, option: str) -> None:
    done = in_shell(tmp_path, "", option)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("such as 0/4" if "shard" in option else "or all for one per GPU")
