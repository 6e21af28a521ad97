"""Thousands of small cases: seconds and memory of dump and compare against the number of cases.

    python benchmarks/bench_scale.py [--cases 1000 3000 10000] [--workers N] [--device cpu]

Cases are 16×16×16 to 48×48×48 GEMMs in three formats, so that what a case costs besides its arithmetic is what is measured. The dump is
compared with a second one of the reference. Each step is a process of its own; its time includes starting it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = ("16x16x16", "32x16x48", "48x48x48", "17x33x65")
FORMATS = ("float32", "bfloat16", "float16")
LANES = ("random", "exact")


def suite(path: Path, cases: int) -> None:
    """A suite of at least `cases` cases at `path`."""
    seeds = -(-cases // (len(SHAPES) * len(FORMATS) * len(LANES)))
    lists = {"shape": SHAPES, "format": FORMATS, "lane": LANES, "seed": range(seeds)}
    rows = "\n".join(f"{k} = {list(v)!r}" for k, v in lists.items())
    path.write_text(f'name = "many"\n[[cases]]\nop = "gemm"\n{rows}\n'.replace("'", '"'))


def run(*arguments: str) -> tuple[float, float, float]:
    """(wall time, processor time, MiB of the largest process) of one command of the program."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "accuracy_eval", *arguments])
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)}: exit {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--workers", default="")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    workers = ["--workers", options.workers] if options.workers else []
    print("| cases | step | wall s | processor s | MiB |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for cases in options.cases:
            toml, a, b = (str(Path(folder) / n) for n in ("many.toml", f"{cases}-a.h5", f"{cases}-b.h5"))
            suite(Path(toml), cases)
            steps = {
                "dump": ("dump", toml, "--device", options.device, "-q", "-o", a, *workers),
                "dump (reference)": ("dump", toml, "--device", "reference", "-q", "-o", b, *workers),
                "compare": ("compare", a, b, "-q", "--to", "json", "--out", str(Path(folder) / f"{cases}"), *workers),
            }
            for name, arguments in steps.items():
                wall, processor, memory = run(*arguments)
                print(f"| {cases} | {name} | {wall:.1f} | {processor:.1f} | {memory:.0f} |", flush=True)
            print(f"results.json: {(Path(folder) / str(cases) / 'results.json').stat().st_size / 2**20:.1f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
