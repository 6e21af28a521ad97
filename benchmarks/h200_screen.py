"""One wrong multiply-add in a GEMM of a GPU: how many a certificate finds and places, its false alarms, and what it costs.

    python benchmarks/h200_screen.py [--size 8192] [--trials 200] [--clean 1000] [--device cuda:0]

A plain Triton kernel multiplies the exact lane's integers and adds, at a random (i, j) when it reaches a random k, what one flipped bit of
that product would have added, until --trials such faults have changed the output. Right products are run at 512³. The cost is what checking
adds to a queue of the framework's own GEMMs of the same operands, as in a dump; what a certificate takes to make, once for its operands, is
given apart and shared by --repeats runs. Exits with 1 under 99 % found or 95 % placed, at any false alarm, and at a cost over 8 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from accuracy_eval.backends.certificates import Certificate
from accuracy_eval.backends.open import open_backend
from accuracy_eval.cases import make_case

TILE = 128
TILE_K = 64
MOST_COST = 0.08  # of the GEMMs' time


@triton.jit
def _faulty(x, y, d, m, n, k, fault_i, fault_j, fault_k, delta, tile: tl.constexpr, tile_k: tl.constexpr):
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    hit = (rows[:, None] == fault_i) & (columns[None, :] == fault_j)
    total = tl.zeros((tile, tile), dtype=tl.float32)
    for first in range(0, k, tile_k):
        ks = first + tl.arange(0, tile_k)
        left = tl.load(x + rows[:, None] * k + ks[None, :])
        right = tl.load(y + columns[None, :] * k + ks[:, None])
        total += tl.dot(left, right)
        if (fault_k >= first) & (fault_k < first + tile_k):
            total += tl.where(hit, delta, 0.0)
    tl.store(d + rows[:, None] * n + columns[None, :], total.to(d.dtype.element_ty))


def product(a: Any, b: Any, fault: tuple[int, int, int, float] = (-1, -1, -1, 0.0)) -> Any:
    """A·Bᵀ of a [m, k], b [n, k] (sizes multiples of the tiles), with delta added at (i, j) at k."""
    (m, k), n = a.shape, b.shape[0]
    d = torch.empty((m, n), dtype=a.dtype, device=a.device)
    _faulty[(m // TILE, n // TILE)](a, b, d, m, n, k, *fault, TILE, TILE_K, num_warps=8)
    return d


def flipped(value: float, bit: int) -> float:
    """float32 with one bit changed."""
    return float((np.array([value], np.float32).view(np.uint32) ^ np.uint32(1 << bit)).view(np.float32)[0])


def queued_ms(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds a call on the GPU, of so many queued at once."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


def cost(gemm: Callable[[], Any], certificate: Certificate, make: Callable[[], Certificate], repeats: int) -> float:
    """Share of the GEMMs' time that checking each adds, the making included. Prints what it comes from: medians, taken in turn."""
    rounds = [(queued_ms(gemm, repeats), queued_ms(lambda: certificate.check(gemm()), repeats), queued_ms(make, 1)) for _ in range(9)]
    alone, checked, made = (float(v) for v in np.median(rounds, axis=0))
    each, whole = (checked - alone) / alone, (checked - alone + made / repeats) / alone
    print(f"GEMM {alone:.3f} ms, checked {checked:.3f} ms: {each:.1%} more")
    print(f"certificate made in {made:.3f} ms: {whole:.1%} of the time of {repeats} GEMMs, checks included")
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--clean", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    backend, random = open_backend(options.device), np.random.default_rng(1)

    def operands(size: int, seed: int) -> tuple[Any, Any, Callable[[], Certificate]]:
        case = make_case("gemm", [("m", size), ("n", size), ("k", size)], layout="nt", format="bfloat16", lane="exact", seed=seed)
        t = backend.prepare(case).tensors  # layout nt: a [m, k], b [n, k]
        return t["a"], t["b"], lambda: Certificate(torch, case, t)

    size = options.size
    a, b, make = operands(size, 0)
    certificate = make()
    right = product(a, b)
    changed = found = placed = 0
    trials = 0
    while changed < options.trials:
        trials += 1
        i, j, k = (int(v) for v in random.integers(0, size, 3))
        terms = torch.nonzero(a[i] * b[j]).flatten()
        if len(terms) and random.integers(2):  # half of them: a product that is not 0
            k = int(terms[0])
        value = float(a[i, k]) * float(b[j, k])
        delta = flipped(value, int(random.integers(32))) - value
        d = product(a, b, (i, j, k, delta))
        if torch.equal(d.view(torch.int16) & 0x7FFF, right.view(torch.int16) & 0x7FFF):
            continue  # rounded away, or the sign of a zero
        changed += 1
        wrong = certificate.check(d).wrong()
        found += bool(wrong)
        placed += bool(wrong) and (wrong["rows"], wrong["columns"]) == ([i], [j])
    print(f"{trials} flipped bits at {size}³: {changed} changed the output, {found} found, {placed} placed to row and column")
    alarms = 0
    for seed in range(-(-options.clean // 20)):
        x, y, make_small = operands(512, seed)
        small = make_small()
        alarms += sum(bool(small.check(product(x, y)).wrong()) for _ in range(20))
    print(f"{-(-options.clean // 20) * 20} right products: {alarms} alarms")
    share = cost(lambda: a @ b.t(), certificate, make, options.repeats)
    return 0 if changed and found >= 0.99 * changed and placed >= 0.95 * changed and not alarms and share <= MOST_COST else 1


if __name__ == "__main__":
    raise SystemExit(main())
