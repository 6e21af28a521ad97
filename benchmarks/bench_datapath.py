"""Rates of the unit models, and the time an explanation and a numerics card take.

    python benchmarks/bench_datapath.py            units, explain, card
    python benchmarks/bench_datapath.py --units    only the units; --size 512 --k 2048

Multiply-adds per second of wall time on all threads, the best of three runs after compilation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from accuracy_eval.datapath import Call, Problem, evaluate, explain, gemm, model_matmul, numerics_card, parse
from accuracy_eval.datapath.units import UNITS, Unit
from accuracy_eval.formats import encode
from accuracy_eval.jit import thread_count
from accuracy_eval.records import Coded

SLOW = ("exact", "rdna3", "rdna4", "gst", "flush")  # rules without a lane form: measured on a smaller product


def best(function: Callable[[], Any], repeats: int = 3) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def operands(m: int, n: int, k: int, fmt: str, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return encode(rng.standard_normal((m, k)), fmt), encode(rng.standard_normal((n, k)), fmt)


def unit_rate(unit: Unit, size: int, k: int) -> float:
    """Million multiply-adds a second of a square product."""
    assert unit.rule is not None
    if unit.rule.kind in SLOW:
        size, k = size // 4, k // 4
    fmt = unit.formats[-1]
    a, b = operands(size, size, k, fmt)
    scales: dict[str, Any] = {}
    if unit.scales:
        width = unit.scales[0][1]
        scales = {"a_scale": np.ones((size, k // width)), "b_scale": np.ones((size, k // width))}
    seconds = best(lambda: gemm(unit, a, b, format=fmt, out=unit.out, **scales))
    return size * size * k / seconds / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", action="store_true")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--k", type=int, default=1024)
    options = parser.parse_args()
    print(f"{thread_count()} threads; products of {options.size} × {options.size} × {options.k}\n")
    print(f"{'rule':<16} {'unit':<22} {'formats':<12} {'M madd/s':>9}")
    seen = set()
    for unit in UNITS:
        if unit.rule is None or str(unit.rule) in seen:
            continue
        seen.add(str(unit.rule))
        print(f"{unit.rule!s:<16} {unit.name:<22} {unit.formats[-1]:<12.12} {unit_rate(unit, options.size, options.k):>9.0f}")
    if options.units:
        return
    print(f"\n{'explain':<44} {'s':>6}  found")
    for text, fmt, m, n, k in (
        ("T16.25.23 fwd", "bfloat16", 256, 256, 4096), ("F fwd c32 seq", "float32", 256, 256, 4096),
        ("T32.13.13 fwd c128 seq", "float8_e4m3fn", 256, 256, 4096), ("tf32rne T8.25.23 fwd c192 seq", "float32", 256, 256, 4096),
        ("T16.25.23 fwd c1408 seq", "bfloat16", 16, 16, 4096), ("T16.25.23 fwd", "bfloat16", 1024, 1024, 4096),
    ):  # fmt: skip
        a, b = operands(m, n, k, fmt)
        d = Coded(evaluate(parse(text), Problem(a, b, fmt, fmt)), "float32")
        explain(Coded(d.codes[:4, :8].copy(), "float32"), Coded(a[:4], fmt), Coded(b[:8], fmt), layout="nt", tries=10)
        start = time.perf_counter()
        found = explain(d, Coded(a, fmt), Coded(b, fmt), layout="nt")
        label = f"{text} {fmt} {m}x{n}x{k}"
        print(f"{label:<44.44} {time.perf_counter() - start:>6.2f}  {found.status}: {found.description} ({found.tried} tried)")
    order = np.random.default_rng(1).permutation(1024)
    a, b = operands(256, 256, 1024, "bfloat16")
    d = Coded(evaluate(parse("T16.25.23"), Problem(a[:, order], b[:, order], "bfloat16", "bfloat16")), "float32")
    start = time.perf_counter()
    found = explain(d, Coded(a, "bfloat16"), Coded(b, "bfloat16"), layout="nt")
    print(f"{'permuted k bfloat16 256x256x1024':<44} {time.perf_counter() - start:>6.2f}  {found.status} ({found.tried} tried)")
    start = time.perf_counter()
    formats = [("bfloat16", "float32"), ("float16", "float32"), ("float8_e4m3fn", "float32"), ("float8_e5m2", "float32")]
    numerics_card([Call(f, o, model_matmul("hopper", f, o)) for f, o in formats], device="model")
    print(f"\nnumerics card of {len(formats)} formats: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
