"""Several GPUs of one host: speed-up by workers, equal digests, and what a killed worker costs.

    python benchmarks/h200_workers.py OUT [--workers 1 2] [--device cuda] [--max-m 512] [--every 4]

Dumps suite models with rows capped at --max-m, and every --every-th case of suite fp8, by each number of workers, after a small dump that
starts them (not counted). Then once more with a worker killed halfway, and resumed. Prints wall time, speed-up, the part of the time in
which each GPU's worker ran a case, content digests, and the outputs that differ; the time line by case goes to OUT/timeline.txt. Exits
with 1 where digests differ or the kill cost more than one case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import defaultdict
from pathlib import Path

from accuracy_eval.dump import DumpSummary, dump
from accuracy_eval.dump.planning import flop
from accuracy_eval.dump.workers import Crew
from accuracy_eval.store import Dump
from accuracy_eval.suite import Suite, load_suite, parse_suite

WARM = {"name": "warm", "cases": [{"op": "gemm", "shape": "512x512x512", "format": ["bfloat16", "float32"], "seed": list(range(8))}]}


def campaign(max_m: int, every: int, most_flop: float) -> Suite:
    """The cases of both suites; those over `most_flop` left out."""
    cases = (*load_suite("models", max_m=max_m).cases, *load_suite("fp8").cases[::every])
    return Suite("models+fp8", "", tuple(c for c in dict.fromkeys(cases) if flop(c) <= most_flop), ())


def timeline(path: Path, title: str, out: list[str]) -> None:
    """Each case by its seat, and how much of the dump's time each seat's worker was running one."""
    with Dump.open(path) as d:
        rows = sorted((t["began"], t["run_s"], t["seat"], r.id) for r in d.records if (t := d.times_of(r)))
    first = rows[0][0]
    last = max(began + run for began, run, _, _ in rows)
    seats: dict[str, list[float]] = defaultdict(list)
    out.append(f"# {title}: began s, ran s, seat, case")
    for began, run, seat, ident in rows:
        seats[seat].append(run)
        out.append(f"{began - first:8.3f} {run:8.4f} {seat:10s} {ident}")
    for seat, runs in sorted(seats.items()):
        print(f"    {seat}: {len(runs)} cases, ran {sum(runs):.1f} of {last - first:.1f} s ({sum(runs) / (last - first):.0%})")


def differing(one: Path, other: Path) -> list[str]:
    """Outputs whose digests are not the same in two dumps."""
    digests: list[dict[str, str]] = []
    for path in (one, other):
        with Dump.open(path) as d:
            digests.append({f"{r.id} {r.candidate} {t.name}": t.sha256 for r in d.records for t in r.tensors if t.role == "output"})
    return sorted(name for name in {*digests[0], *digests[1]} if digests[0].get(name) != digests[1].get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--max-m", type=int, default=512)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--flop", type=float, default=float("inf"), help="leave out cases with more operations")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    suite, warm = campaign(options.max_m, options.every, options.flop), parse_suite(WARM, "warm")
    print(f"{len(suite.cases)} cases, {sum(map(flop, suite.cases)) / 1e12:.1f} TFLOP a run", flush=True)
    lines: list[str] = []
    walls: dict[int, float] = {}
    digests: set[str] = set()
    paths: list[Path] = []
    for count in options.workers:
        path = options.out / f"workers-{count}.h5"
        with Crew(options.device, count) as crew:
            dump(warm, crew, options.out / f"warm-{count}.h5")
            started = time.monotonic()
            summary = dump(suite, crew, path, pack=False)
            walls[count] = time.monotonic() - started
        digest = Dump.open(summary.path).content_digest
        digests.add(digest)
        paths.append(summary.path)
        speed = walls[options.workers[0]] / walls[count]
        print(
            f"{count} workers: {walls[count]:.1f} s, {speed:.2f} times, {summary.done} done, {summary.error} errors, {digest[:16]}",
            flush=True,
        )
        timeline(summary.path, f"{count} workers", lines)

    path = options.out / "killed.h5"
    victims: list[str] = []

    def kill_halfway(done: int, total: int, _: str) -> None:
        if done >= total // 2 and not victims:
            victim = multiprocessing.active_children()[0]
            victims.append(victim.name)
            victim.kill()

    with Crew(options.device, options.workers[-1]) as crew:
        killed: DumpSummary = dump(suite, crew, path, progress=kill_halfway)
        again = dump(suite, crew, path, resume=True)
    digest = Dump.open(path).content_digest
    for other in (*paths[1:], path):
        for name in differing(paths[0], other):
            print(f"    {other.name} differs from {paths[0].name}: {name}")
    print(f"{victims[0]} killed: {killed.error} of {len(suite.cases)} cases lost {killed.errors}; resumed {again.resumed}, {digest[:16]}")
    timeline(path, "a worker killed, then resumed", lines)
    (options.out / "timeline.txt").write_text("\n".join(lines) + "\n")
    good = digests == {digest} and killed.error <= 1 and not again.error
    print("equal digests; at most one case lost" if good else "WRONG: digests differ, or the kill cost more than a case")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
