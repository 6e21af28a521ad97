"""One large GEMM dumped end to end: what each stage took, and what the same work reaches alone on the same machine.

    python benchmarks/h200_stages.py [--size 8192] [--lane random] [--device cuda:0] [--folder .] [--passes 3]

The case is bfloat16, size × size × 2·size, layout NT, two runs. Stages are those that the dump records (on a GPU by its own clock); writing
is the time from the last digest until the part is on the disk, packing that of `store.pack`. Every stage is then done alone, with the same
bytes, three times: the fastest counts. A stage's GB/s are its bytes by the time it was busy, of one thread. Prints the time line and table
of each pass (the first one pins memory and loads kernels), then names the slowest stage of the fastest pass. Exits with 1 when that stage
reaches less than 70 % of what it does alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval import store
from accuracy_eval.backends import torch_inputs
from accuracy_eval.backends.open import open_backend
from accuracy_eval.cases import make_case
from accuracy_eval.digests import sha256_codes
from accuracy_eval.dump import dump
from accuracy_eval.ops.operands import operand_codes, random_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case
from accuracy_eval.store.building import sync
from accuracy_eval.suite import Suite

LEAST = 0.7  # of what the slowest stage reaches alone
AGAIN = 3  # times each stage is done alone


@dataclass(frozen=True)
class Stage:
    """A stage of the dump: seconds after the start at which it began and ended, seconds it was busy, and bytes."""

    name: str
    began: float
    ended: float
    busy: float
    size: int

    @property
    def rate(self) -> float:
        return self.size / self.busy if self.busy else float("inf")


def dumped(case: Case, backend: Any, folder: Path) -> tuple[float, list[Stage]]:
    """(wall seconds, stages) of a dump of the case."""
    path, started = folder / "one.h5", time.time()
    parts = dump(Suite("one", "", (case,), ()), backend, path, pack=False).path
    written = time.time()
    with store.Dump.open(store.part_files(parts)[0]) as part:
        times = part.times_of(part.records[0])
    packing = time.time()
    store.pack(parts, path)
    packed = time.time()
    reading = packing - written  # of the time line, no part of a dump
    after = times["began"] - started
    stages = [Stage(n, t["from_s"] + after, t["to_s"] + after, t["busy_s"], t["bytes"]) for n, t in times["stages"].items()]
    last, size = max(s.ended for s in stages), path.stat().st_size
    path.unlink()
    stages += [
        Stage("write", last, written - started, written - started - last, size),
        Stage("pack", written - started, packed - started - reading, packed - packing, size),
    ]
    return packed - started - reading, sorted(stages, key=lambda s: s.began)


class Alone:
    """Each stage's work by itself: a call gives the seconds of the fastest, for the bytes of one operand or output."""

    def __init__(self, case: Case, backend: Any, folder: Path) -> None:
        self.case, self.backend, self.torch, self.folder = case, backend, backend.torch, folder
        spec = get_op(case.op)
        self.operand, *_ = spec.operands(case, "ocp")
        prepared = backend.prepare(case)
        self.tensors = prepared.tensors
        self.codes = prepared.sources[0].codes()
        self.output = np.zeros(spec.outputs(case, "ocp")[0].shape, np.uint16)
        self.output[:] = self.codes[: len(self.output), : self.output.shape[1]]

    def rates(self) -> dict[str, float]:
        """Bytes a second by stage."""
        a, b = self.tensors["a"], self.tensors["b"]
        d = self.torch.empty((len(a), len(b)), dtype=a.dtype, device=a.device)
        moved = sum(t.numel() * t.element_size() for t in (*self.tensors.values(), d))
        size, result = self.codes.nbytes, self.output.nbytes
        raw = self.codes.view(np.int16)
        both = sum(t.numel() * t.element_size() for t in self.tensors.values())
        found = {
            "make": (both if self.case.lane == "exact" else size) / self.fastest(self.make),
            "digest": size / self.fastest(lambda: sha256_codes(self.codes), host=True),
            "run": moved / self.fastest(lambda: self.torch.mm(a, b.t(), out=d)),
            "digest_output": result / self.fastest(lambda: sha256_codes(self.output), host=True),
            "write": result / self.fastest(self.write, host=True),
            "pack": result / self.fastest(self.copy, host=True),
        }
        if self.backend.on_gpu:
            found["to_device"] = size / self.fastest(lambda: self.torch.from_numpy(raw).to(self.backend.device))
            pinned = self.torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
            found["to_host"] = size / self.fastest(lambda: pinned.copy_(a, non_blocking=True))
            found["pin"] = size / self.pinning(a)
        return found

    def fastest(self, call: Callable[[], Any], *, host: bool = False) -> float:
        """Seconds, on a GPU by its own clock unless the host does the work."""
        return min(self.timed(call, host or not self.backend.on_gpu) for _ in range(AGAIN))

    def timed(self, call: Callable[[], Any], host: bool) -> float:
        if host:
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def make(self) -> Any:
        c, o = self.case, self.operand
        if c.lane == "exact":
            return operand_codes(get_op(c.op), c, "ocp")
        if not self.backend.on_gpu:
            return random_codes(c, o)
        return torch_inputs.generate(self.torch, self.backend.device, c.op, o.name, o.shape, c.input_class, c.seed, o.format)

    def pinning(self, like: Any) -> float:
        """Of memory that was not pinned before: blocks are held until the allocator has no old one left."""
        held, times = [], []
        for _ in range(8):
            started = time.perf_counter()
            held.append(self.torch.empty(like.shape, dtype=like.dtype, pin_memory=True))
            times.append(time.perf_counter() - started)
        return max(times)

    def write(self) -> None:
        """A new file each time: rewriting one may reuse its blocks."""
        path = self.folder / "alone.bin"
        path.unlink(missing_ok=True)
        self.output.tofile(path)
        sync(path)

    def copy(self) -> None:
        path, other = self.folder / "alone.bin", self.folder / "copy.bin"
        other.unlink(missing_ok=True)
        shutil.copyfile(path, other)
        sync(other)


def table(wall: float, stages: list[Stage], alone: dict[str, float]) -> None:
    print("| stage | from s | to s | bytes | busy s | GB/s | alone GB/s | ratio |\n|---|---|---|---|---|---|---|---|")
    for s in stages:
        rate = alone.get(s.name)
        alone_text = f"{rate / 1e9:.2f} | {s.rate / rate:.0%}" if rate else "|"
        print(f"| {s.name} | {s.began:.3f} | {s.ended:.3f} | {s.size:,} | {s.busy:.4f} | {s.rate / 1e9:.2f} | {alone_text} |")
    print(f"in none of them: {wall - covered(stages):.3f} s")


def covered(stages: list[Stage]) -> float:
    """Seconds in which some stage was under way."""
    total, reached = 0.0, 0.0
    for s in sorted(stages, key=lambda s: s.began):
        total += max(0.0, s.ended - max(s.began, reached))
        reached = max(reached, s.ended)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--lane", choices=["random", "exact"], default="random")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    m, k = options.size, 2 * options.size
    case = make_case("gemm", [("m", m), ("n", m), ("k", k)], layout="nt", format="bfloat16", lane=options.lane)
    backend = open_backend(options.device)
    print(f"{m}×{m}×{k} bfloat16 NT, lane {options.lane}, {backend.platform().get('device_name')}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        passes = [dumped(case, backend, Path(folder)) for _ in range(options.passes)]
        alone = Alone(case, backend, Path(folder)).rates()
    for number, (wall, stages) in enumerate(passes, 1):
        print(f"\npass {number}: {wall:.3f} s end to end")
        table(wall, stages, alone)
    slowest = max(min(passes, key=lambda p: p[0])[1], key=lambda s: s.busy)
    rate = alone[slowest.name]
    ratio = slowest.rate / rate
    share = f"{ratio:.0%} of the {rate / 1e9:.2f} GB/s it reaches alone"
    print(f"\nslowest: {slowest.name}, {slowest.size:,} bytes in {slowest.busy:.3f} s, {share}")
    backend.close()
    return 0 if ratio >= LEAST else 1


if __name__ == "__main__":
    raise SystemExit(main())
