"""Rate and memory of the GEMM reference against numpy's plain float64 product on the same cores.

    python benchmarks/bench_reference.py [M N K] [--format bfloat16] [--layout nt] [--repeats 3]

Prints seconds of a float64 matmul of decoded operands (a quarter of the rows where the whole would not fit the time), of the
reference without and with budgets, their ratios, and the peak resident memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np

from accuracy_eval.cpu_ref.blas import one_thread
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.rounding import correctly_rounded
from accuracy_eval.cpu_ref.sampling import sampled_reference
from accuracy_eval.formats import get_format
from accuracy_eval.records import Coded
from accuracy_eval.threads import map_threads, thread_count


def random_codes(rows: int, cols: int, fmt: str, seed: int) -> Coded:
    """Random finite codes with exponents near 0, made without a float64 copy."""
    f = get_format(fmt)
    rng = np.random.default_rng(seed)
    field = f.fraction_bits + 2  # two exponent bits vary
    low = rng.integers(0, 1 << field, (rows, cols), dtype=np.uint64).astype(f.storage)
    base = ((f.bias - 3) << f.fraction_bits) if f.exponent_bits else 0
    sign = rng.integers(0, 2, (rows, cols), dtype=np.uint8).astype(f.storage)
    codes = (low + f.storage.type(base)) | (sign << f.storage.type(f.magnitude_bits))
    return Coded(codes.astype(f.storage), fmt)


def best(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="*", type=int, default=[2048, 2048, 2048])
    parser.add_argument("--format", default="bfloat16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--contract", default="fp32acc")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    m, n, k = options.shape
    a = random_codes(*((m, k) if options.layout[0] == "n" else (k, m)), options.format, 1)
    b = random_codes(*((k, n) if options.layout[1] == "n" else (n, k)), options.format, 2)
    problem = Gemm(a, b, options.layout)

    def consume(contract: str | None) -> None:
        for _ in panels(problem, contract=contract):
            pass

    first = Gemm(*(Coded(np.ascontiguousarray(x.codes[:64, :64]), x.format) for x in (a, b)), options.layout)
    list(panels(first, contract=options.contract))  # compile
    values = best(lambda: consume(None), options.repeats)
    budgets = best(lambda: consume(options.contract), options.repeats)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows = min(m, 2048)
    x, y = problem.a_values(slice(0, rows), slice(0, k)), problem.b_values(slice(0, k), slice(0, n))
    plain = best(lambda: x @ y, options.repeats) * m / rows

    def tiles() -> None:
        with one_thread():
            step = -(-rows // thread_count())
            map_threads(lambda i: x[i : i + step] @ y, range(0, rows, step))

    threaded = best(tiles, options.repeats) * m / rows
    flop = problem.flop / 1e9
    print(f"{m}x{n}x{k} {options.layout} {options.format}, {thread_count()} threads, peak memory of the reference {memory:.2f} GiB")
    for name, seconds in (
        ("numpy matmul", plain),
        ("numpy matmul, tiles on threads", threaded),
        ("reference", values),
        ("with budgets", budgets),
    ):
        print(f"  {name:32} {seconds:8.3f} s  {flop / seconds:7.1f} GFLOP/s  {seconds / min(plain, threaded):5.2f} x")
    print(f"  {'sampled (64 rows, 8 probes)':32} {best(lambda: sampled_reference(problem), 1):8.3f} s")
    panel = next(panels(problem, rows=128))
    print(f"  {'correct rounding of 128 rows':32} {best(lambda: correctly_rounded(problem, panel, options.format), 1):8.3f} s")


if __name__ == "__main__":
    main()
