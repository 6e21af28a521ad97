"""Rate and memory of the quantiser on one thread, in GB/s of bfloat16 operand: `python benchmarks/bench_quantize.py [rows] [K]`.

Best of five after a first run that compiles; the operand (32 MB by default) is larger than the caches. Memory is what one call takes
beyond the operand, in bytes an element: 1 of them is the codes, 8 would be a float64 copy. Exit code 1 if 1×128 or an MX recipe is
under 1 GB/s, or any recipe takes more than 3 bytes an element.
"""

from __future__ import annotations

import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from accuracy_eval.quantize import RECIPES, dequantize, quantize

LEAST_GB_S, MOST_BYTES = 1.0, 3.0
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


def memory(function: Callable[[], object]) -> int:
    """Most bytes that one call held at once."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main(rows: int = 4096, length: int = 4096) -> int:
    """Print one line a recipe: quantise, its memory, and dequantise to float64."""
    values = np.random.default_rng(0).standard_normal((rows, length), np.float32)
    codes = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    del values
    print(f"bfloat16 [{rows}, {length}], one thread, GB/s of operand\n{'recipe':<18} quantize  bytes/element  dequantize")
    missed = []
    for name in SHOWN:
        assert name in RECIPES
        call = partial(quantize, codes, "bfloat16", name, threads=1)
        q = call()
        there, held = codes.nbytes / best(call) / 1e9, memory(call) / codes.size
        back = codes.nbytes / best(partial(dequantize, q, threads=1)) / 1e9
        print(f"{name:<18} {there:8.2f}  {held:13.2f}  {back:10.2f}")
        if held > MOST_BYTES or (name.startswith(("block1x128", "mx")) and there < LEAST_GB_S):
            missed.append(name)
    print(
        f"peak resident set {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, of which the float64 copies of dequantise"
    )
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*(int(a) for a in sys.argv[1:3])))
