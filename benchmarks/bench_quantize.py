"""Rate of the quantiser on one thread, in GB/s of bfloat16 operand: `python benchmarks/bench_quantize.py [rows] [K]`.

Best of five after a first run that compiles; the operand (32 MB by default) is larger than the caches. The floor wanted of
block1x128 and mxfp8 is 1 GB/s per core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from accuracy_eval.quantize import RECIPES, dequantize, quantize

SHOWN = (
    "tensorwise", "rowwise", "rowwise_direct", "int8_rowwise", "block1x128", "block128x128", "block1x128_ue8m0",
    "mxfp8", "mxfp8_even", "mxfp8_2d", "mxfp6", "mxfp4", "nvfp4",
)  # fmt: skip


def best(function: Callable[[], object], repeats: int = 5) -> float:
    """Least seconds of one call."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main(rows: int = 4096, length: int = 4096) -> None:
    """Print one line a recipe: quantise, and dequantise to float64."""
    values = np.random.default_rng(0).standard_normal((rows, length), np.float32)
    codes = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    print(f"bfloat16 [{rows}, {length}], one thread, GB/s of operand\n{'recipe':<18} quantize  dequantize")
    for name in SHOWN:
        assert name in RECIPES
        q = quantize(codes, "bfloat16", name, threads=1)
        there = best(lambda name=name: quantize(codes, "bfloat16", name, threads=1))  # type: ignore[misc]
        back = best(lambda q=q: dequantize(q, threads=1))  # type: ignore[misc]
        print(f"{name:<18} {codes.nbytes / there / 1e9:8.2f}  {codes.nbytes / back / 1e9:10.2f}")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:3]))
