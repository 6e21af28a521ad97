"""Suites on a device and on its host's CPU, judged against the reference and each other: what is not a pass, and how long each step took.

    python benchmarks/verdicts.py OUT suite[:option,…] [suite …] [--device cuda:0] [--no-cpu] [--timeout seconds]

An option is one of dump's, without its dashes: `models:max-m=128`, `turbo-gemm:lane=random`. OUT receives SUITE.json, the results.
Each step runs as its own process, as a user runs it; a step over the time limit is stopped and said to be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any


def run(arguments: list[str], seconds: float) -> tuple[float, int, str]:
    """(wall time, exit code or -1 for a time-out, last lines of stderr) of one command of the program."""
    start = time.perf_counter()
    try:
        done = subprocess.run([sys.executable, "-m", "accuracy_eval", *arguments], capture_output=True, text=True, timeout=seconds)
        return time.perf_counter() - start, done.returncode, done.stderr[-1500:]
    except subprocess.TimeoutExpired:
        return time.perf_counter() - start, -1, "stopped: over the time limit"


def _reasons(side: dict[str, Any]) -> list[str]:
    """A side's failed gates with value and limit, and its diagnoses."""
    gates = [f"{g['gate']} {g['value']} {g['comparison']} {g['limit']}" for g in side["gates"] if not g["passed"]]
    return gates + [d["sentence"] for d in side["diagnoses"]]


def not_passed(results: dict[str, Any], most: int = 12) -> list[str]:
    """The verdict's message of everything that is neither a pass nor unsupported, at most `most`."""
    lines = []
    for t in results["tensors"]:
        if t["verdict"] != "PASS":
            sides = (s for s in t["sides"] if s["verdict"] != "PASS")
            detail = "; ".join(f"{s['label']} {s['verdict']} {', '.join(_reasons(s))}"[:300] for s in sides)
            lines.append(f"{t['verdict']} {t['case_id']} {t['candidate']} {t['tensor']}: {detail}")
    for n in results["not_compared"]:
        if n["verdict"] != "UNSUPPORTED":
            lines.append(f"{n['verdict']} {n['case_id']} {n['label']}: {n['reason'][:300]}")
    return lines[:most] + ([f"… {len(lines) - most} more"] if len(lines) > most else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--no-cpu", action="store_true")
    parser.add_argument("--timeout", type=float, default=240)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for entry in options.suites:
            suite, _, rest = entry.partition(":")
            extra = [f"--{o}" for o in rest.split(",") if o]
            dumps = []
            for device in (options.device,) if options.no_cpu else (options.device, "cpu"):
                path = Path(folder) / f"{suite}-{device.replace(':', '')}.h5"
                seconds, code, text = run(["dump", suite, "--device", device, "-o", str(path), *extra], options.timeout)
                print(f"{suite} dump {device}: {seconds:.1f} s, exit {code}{'' if code == 0 else '; ' + text}", flush=True)
                dumps += [path] if path.exists() else []
            target = Path(folder) / f"{suite}-report"
            seconds, code, text = run(["compare", *map(str, dumps), "--to", "json", "--out", str(target)], options.timeout)
            print(f"{suite} compare: {seconds:.1f} s, exit {code}{'' if code in (0, 1) else '; ' + text}", flush=True)
            if (target / "results.json").exists():
                text = (target / "results.json").read_text()
                (options.out / f"{suite}.json").write_text(text)
                results = json.loads(text)
                counts = Counter(t["verdict"] for t in results["tensors"]) + Counter(n["verdict"] for n in results["not_compared"])
                print(f"{suite}:", ", ".join(f"{n} {v}" for v, n in sorted(counts.items())), flush=True)
                print("\n".join(not_passed(results)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
