"""Time and memory of the metrics pass against the usual torch expressions, in one run on one machine.

    python benchmarks/bench_metrics.py [--size 8192] [--repeats 3]

The expressions are those found in accuracy scripts: each metric by itself, each on its own float32 copies. Peak memory is what either
way adds to the process, measured in a child process each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TARGET = 25.0


def operands(size: int, kind: str) -> tuple[Any, Any]:
    """Two bfloat16 matrices as codes: normal values, and the same with 1 % noise on every element or a step on one in a hundred."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((size, size), dtype=np.float32)
    expected = round_bfloat16(block)
    if kind == "equal":
        return expected.copy(), expected
    if kind == "flips":
        actual = expected.copy()
        actual.reshape(-1)[rng.integers(0, size * size, size * size // 100)] ^= 1
        return actual, expected
    block *= 1 + np.float32(0.01) * rng.standard_normal((size, size), dtype=np.float32)
    return round_bfloat16(block), expected


def round_bfloat16(x: Any) -> Any:
    """Codes of finite float32 values, ties to even."""
    u = x.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def usual(actual: Any, expected: Any) -> dict[str, float]:
    """Seven metrics as accuracy scripts spell them."""
    import torch

    a, e = (torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (actual, expected))
    steps = a.view(torch.int16).to(torch.int64), e.view(torch.int16).to(torch.int64)
    line = [torch.where(s < 0, -(s & 0x7FFF), s) for s in steps]
    return {
        "rel_fro": ((a.float() - e.float()).norm() / e.float().norm()).item(),
        "max_abs": (a.float() - e.float()).abs().max().item(),
        "mse": ((a.float() - e.float()) ** 2).mean().item(),
        "cosine": torch.nn.functional.cosine_similarity(a.float().flatten(), e.float().flatten(), dim=0).item(),
        "snr_db": (10 * torch.log10(e.float().pow(2).sum() / (a.float() - e.float()).pow(2).sum())).item(),
        "ulp_max": float((line[0] - line[1]).abs().max().item()),
        "mismatch_count": float((a != e).sum().item()),
    }


def ours(actual: Any, expected: Any) -> dict[str, Any]:
    from accuracy_eval.metrics import measure
    from accuracy_eval.records import Coded

    return dict(measure(Coded(actual, "bfloat16"), Coded(expected, "bfloat16"), allclose=((1e-2, 1e-2),)).metrics)


def race(first: Callable[[], Any], second: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Least seconds of either, taken in turns, so that both meet the same neighbours on a shared machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, MiB (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) >> 10


def _added(which: str, paths: tuple[str, str], queue: Any) -> None:
    function = {"usual": usual, "ours": ours}[which]
    function(*operands(64, "noise"))
    pair = [np.load(path) for path in paths]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    function(*pair)
    queue.put(resident("VmHWM") - before)


def added_memory(which: str, paths: tuple[str, str]) -> int:
    """MiB by which one call raises the resident size of a process that holds the operands already."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_added, args=(which, paths, queue))
    child.start()
    found = int(queue.get())
    child.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    start = time.perf_counter()
    ours(*operands(64, "noise"))
    print(f"first call (import, compilation or its cache): {time.perf_counter() - start:.1f} s")
    for kind in ("equal", "flips", "noise"):
        pair = operands(options.size, kind)
        slow, fast = race(lambda pair=pair: usual(*pair), lambda pair=pair: ours(*pair), options.repeats)
        print(f"{options.size}² bfloat16, {kind:5s}: usual {slow:.3f} s, metrics {fast:.3f} s, ratio {slow / fast:.1f} (target {TARGET:g})")
    with tempfile.TemporaryDirectory() as folder:
        paths = (f"{folder}/actual.npy", f"{folder}/expected.npy")
        for path, codes in zip(paths, pair, strict=True):
            np.save(path, codes)
        del pair, codes
        usual_mb, our_mb = (added_memory(which, paths) for which in ("usual", "ours"))
    print(f"peak memory added: usual {usual_mb} MiB, metrics {our_mb} MiB, 1/{usual_mb / max(our_mb, 1):.0f} (target 1/3)")


if __name__ == "__main__":
    main()
