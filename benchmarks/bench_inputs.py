"""Rates of the input generator, and its golden digests on this host and, with --device, on a GPU.

    python benchmarks/bench_inputs.py                        numba per core, all cores, numpy
    python benchmarks/bench_inputs.py --device cuda          also the torch path, and host against device on large operands
    python benchmarks/bench_inputs.py --device cuda --digests digests.json

Rates are GB (10^9 bytes) of codes made a second, the best of several runs. Exit code 1 when a digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.digests import sha256_codes
from accuracy_eval.formats import get_format
from accuracy_eval.inputs import INPUT_CLASSES, generate
from accuracy_eval.inputs.companions import certificate, exact_gemm

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "golden_inputs.json"
RATED = [("normal", "bfloat16"), ("uniform", "bfloat16"), ("normal", "float8_e4m3fn"), ("normal", "float32"), ("normal", "float64"),
         ("uniform", "float32"), ("absmax", "bfloat16"), ("outlier", "bfloat16"), ("tiny", "float32"), ("cancellation", "bfloat16"),
         ("specials", "bfloat16"), ("wide", "float32")]  # fmt: skip


def best(function: Callable[[], Any], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def make(size: int, input_class: str, fmt: str, compiled: bool) -> None:
    generate("gemm", "b", (size // 4096, 4096), input_class, 0, fmt, compiled=compiled)


def host_rates(elements: int, repeats: int) -> None:
    print(f"{'class':14}{'format':16}{'numba 1 core':>14}{'numba all':>12}{'numpy 1 core':>14}   GB/s, {elements} elements")
    for input_class, fmt in RATED:
        rates = []
        for threads, compiled, size in (("1", True, elements), ("", True, elements), ("1", False, elements // 8)):
            os.environ["ACCURACY_EVAL_THREADS"] = threads
            seconds = best(partial(make, size, input_class, fmt, compiled), repeats)
            rates.append(size * get_format(fmt).storage.itemsize / seconds / 1e9)
        print(f"{input_class:14}{fmt:16}{rates[0]:14.2f}{rates[1]:12.2f}{rates[2]:14.3f}")


def companion_times(size: int) -> None:
    start = time.perf_counter()
    e = exact_gemm(size, size, size)
    made = time.perf_counter() - start
    d = e.d()
    product = best(e.d, 2)
    checked = best(lambda: certificate(e.a, e.b, d), 3)
    print(f"exact companion {size}^3: made in {made:.2f} s, D in {product:.2f} s, certified in {checked:.3f} s")


def device_rates(torch: Any, device: str, elements: int, repeats: int) -> None:
    from accuracy_eval.backends import torch_inputs

    def run(input_class: str, fmt: str) -> None:
        torch_inputs.generate(torch, device, "gemm", "b", (elements // 4096, 4096), input_class, 0, fmt)
        if device != "cpu":
            torch.cuda.synchronize()

    print(f"{'class':14}{'format':16}{device:>14}   GB/s, {elements} elements")
    for input_class, fmt in RATED:
        if torch_inputs.supports(input_class, fmt):
            seconds = best(partial(run, input_class, fmt), repeats)
            print(f"{input_class:14}{fmt:16}{elements * get_format(fmt).storage.itemsize / seconds / 1e9:14.2f}")


def device_codes(torch: Any, device: str, shape: tuple[int, ...], input_class: str, seed: int, fmt: str) -> np.ndarray[Any, Any]:
    from accuracy_eval.backends import torch_inputs

    tensor = torch_inputs.generate(torch, device, "gemm", "b", shape, input_class, seed, fmt)
    f = get_format(fmt)
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[f.storage.itemsize]
    codes: np.ndarray[Any, Any] = tensor.view(plain).cpu().numpy().view(f.storage)
    return codes


def check(torch: Any, device: str | None, side: int, save: Path | None) -> int:
    """Golden digests on host and device, and large operands on one against the other; the number of differences."""
    from accuracy_eval.backends import torch_inputs

    wrong, found = 0, {"host": {}, "device": {}}  # type: ignore[var-annotated]
    for input_class, formats in json.loads(GOLDEN.read_text()).items():
        for fmt, shapes in formats.items():
            for text, expected in shapes.items():
                shape = tuple(int(s) for s in text.split("x"))
                name = f"{input_class}/{fmt}/{text}"
                found["host"][name] = sha256_codes(generate("gemm", "b", shape, input_class, 42, fmt))
                if device and torch_inputs.supports(input_class, fmt):
                    found["device"][name] = sha256_codes(device_codes(torch, device, shape, input_class, 42, fmt))
                for where, digests in found.items():
                    if digests.get(name, expected) != expected:
                        wrong += 1
                        print(f"DIFFERS {where} {name}: {digests[name]} != {expected}")
    for where, digests in found.items():
        whole = hashlib.sha256("\n".join(f"{k} {v}" for k, v in sorted(digests.items())).encode()).hexdigest()
        print(f"golden digests, {where}: {len(digests)} entries, sha256 of all {whole}")
    large = 0
    for input_class in INPUT_CLASSES if device else ():
        for fmt in torch_inputs.FORMATS:
            if device and torch_inputs.supports(input_class, fmt):
                shape = (side + 1, side + 3)
                host = sha256_codes(generate("gemm", "b", shape, input_class, 7, fmt, compiled=True))
                there = sha256_codes(device_codes(torch, device, shape, input_class, 7, fmt))
                large += 1
                if host != there:
                    wrong += 1
                    print(f"DIFFERS {shape} {input_class}/{fmt}: host {host} != {device} {there}")
    if device:
        print(f"large operands {side + 1}x{side + 3}: {large} compared, host against {device}")
    if save:
        save.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{wrong} differences")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="torch device to time and check, such as cuda")
    parser.add_argument("--elements", type=int, default=1 << 25, help="elements per timed operand")
    parser.add_argument("--side", type=int, default=4096, help="rows of the large operands compared with the device")
    parser.add_argument("--companion", type=int, default=4096, help="m = n = k of the timed companion")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--digests", type=Path, help="write every golden digest found to this JSON file")
    options = parser.parse_args()
    host_rates(options.elements, options.repeats)
    companion_times(options.companion)
    torch: Any = None
    if options.device:
        torch = importlib.import_module("torch")
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if options.device.startswith('cuda') else options.device}")
        device_rates(torch, options.device, options.elements, options.repeats)
    return 1 if check(torch, options.device, options.side, options.digests) else 0


if __name__ == "__main__":
    sys.exit(main())
