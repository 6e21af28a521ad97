"""The scripts under examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_a_kernel_that_rounds_its_halves_is_named_and_the_frameworks_own_passes(tmp_path: Path) -> None:
    done = python(str(EXAMPLES / "own_kernel.py"), str(tmp_path))
    assert done.returncode == 1, done.stderr
    first, second, last = done.stdout.splitlines()
    assert first.startswith("default: PASS, ")
    assert second.startswith("half-sums: FAIL, ")
    assert second.endswith("× budget, ['reduced-partials']")
    assert last == f"open {tmp_path / 'report' / 'report.html'}"
    assert (tmp_path / "report" / "report.html").exists()


def test_the_switches_run_beside_the_default(tmp_path: Path) -> None:
    grid = ["--op", "gemm", "--shape", "16x8x64", "--layout", "nt", "--format", "float32", "--format", "bfloat16", "--lane", "random"]
    dump = str(tmp_path / "switches.h5")
    made = python("-m", "accuracy_eval", "dump", *grid, "--plugin", str(EXAMPLES / "switches.py"), "--device", "cpu", "-o", dump, "-q")
    assert made.returncode == 0, made.stderr
    shown = python("-m", "accuracy_eval", "inspect", dump)
    assert "@tf32" in shown.stdout
    assert "@bf16-reduction" in shown.stdout
