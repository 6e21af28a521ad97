"""A disk that takes no more, or gives up what it was given: one message, nothing half written, and --resume goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accuracy_eval.backends.open import open_backend
from accuracy_eval.cli import run
from accuracy_eval.dump import dump
from accuracy_eval.errors import FileError
from accuracy_eval.store import Dump, completed
from accuracy_eval.suite import load_suite

CASES = ("dump", "smoke", "--op", "gemm", "--format", "bfloat16", "--format", "float32", "--lane", "random", "--device", "reference")


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from accuracy_eval.cli import main
main()
"""


def limited(size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process whose files may have `size` bytes: to HDF5 that is a full disk. Python would cut its bytecode there."""
    command, environment = [sys.executable, "-c", PROGRAM, str(size), *arguments], {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["in-this-process", "by-a-worker"])
@pytest.mark.parametrize("size", [1000, 9000, 20_000, 100_000], ids=["codes", "documents", "some-parts", "the-packed-file"])
def test_a_full_disk_is_one_message_and_what_is_done_is_gone_on_from(tmp_path: Path, size: int, workers: tuple[str, ...]) -> None:
    out = tmp_path / "a.h5"
    ended = limited(size, *CASES, *workers, "-o", str(out), "-q")
    first, *more = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    refused = out if size == 100_000 else f"{out}.parts/gemm."
    assert first.startswith(f"accuracy-eval: {refused}")
    assert first.endswith(": cannot be written: File too large; make room there, or name another place with -o")
    assert not out.exists()
    kept = len(completed(f"{out}.parts"))
    assert more == ([f"  {kept} results of this dump are kept in {out}.parts; go on with --resume"] if kept else [])
    assert run([*CASES, "-o", str(out), "-q", *(["--resume"] if kept else [])]) == 0
    assert run([*CASES, "-o", str(tmp_path / "b.h5"), "-q"]) == 0
    assert Dump.open(out).content_digest == Dump.open(tmp_path / "b.h5").content_digest
    assert Dump.open(out).verify_all() > kept
    assert {p.name for p in tmp_path.iterdir()} == {"a.h5", "b.h5"}


def test_results_that_somebody_removed_are_missed_before_they_are_packed(tmp_path: Path) -> None:
    out, smoke = tmp_path / "a.h5", load_suite("smoke")
    suite = replace(smoke, cases=tuple(c for c in smoke.cases if c.op == "exp"))

    def removing(done: int, total: int, what: str) -> None:
        if done == 2:
            (tmp_path / "a.h5.parts" / f"{what}@default.h5").unlink()

    with pytest.raises(FileError, match=r"a\.h5\.parts: 1 of \d+ results of this dump are gone, exp\..*@default\.h5: something removed"):
        dump(suite, open_backend("reference"), out, progress=removing)
    assert not out.exists()
    dump(suite, open_backend("reference"), out, resume=True)
    assert len(Dump.open(out).records) == len(suite.cases)
