"""What lossless compression of outputs would save, and at which rate: Blosc2 by kind of output.

    pip install blosc2
    python benchmarks/bench_compression.py

2^22 outputs of products as they are distributed (normal, K = 4096, rounded; integers of the exact lane), pieces of 4 MiB, bytes or bits
shuffled by the element's size, on one thread. Prints bytes before over bytes after, and GB/s of codes in and out. Every piece is
decompressed and compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import blosc2
import numpy as np
from numpy.typing import NDArray

from accuracy_eval.formats import encode

PIECE = 1 << 22
WAYS = {
    "lz4, bytes shuffled": {"codec": blosc2.Codec.LZ4, "clevel": 5, "filter": blosc2.Filter.SHUFFLE},
    "zstd 1, bytes shuffled": {"codec": blosc2.Codec.ZSTD, "clevel": 1, "filter": blosc2.Filter.SHUFFLE},
    "zstd 1, bits shuffled": {"codec": blosc2.Codec.ZSTD, "clevel": 1, "filter": blosc2.Filter.BITSHUFFLE},
    "zstd 5, bits shuffled": {"codec": blosc2.Codec.ZSTD, "clevel": 5, "filter": blosc2.Filter.BITSHUFFLE},
}


def outputs() -> Iterator[tuple[str, NDArray[Any]]]:
    random = np.random.default_rng(0)
    sums = random.standard_normal((1 << 22,)) * np.sqrt(4096)
    for fmt in ("bfloat16", "float16", "float32", "float8_e4m3fn"):
        yield f"{fmt}, random lane", encode(sums / (16 if fmt.startswith("float8") else 1), fmt, overflow="saturate")
    yield "bfloat16, exact lane", encode(np.rint(random.standard_normal(1 << 22) * 40), "bfloat16")


def row(name: str, codes: NDArray[Any], way: str) -> str:
    pieces = [codes.view(np.uint8)[i : i + PIECE] for i in range(0, codes.nbytes, PIECE)]
    started = time.perf_counter()
    packed = [blosc2.compress(p, typesize=codes.itemsize, **WAYS[way]) for p in pieces]
    written = time.perf_counter()
    back = [blosc2.decompress(p) for p in packed]
    read = time.perf_counter()
    assert all(x == y.tobytes() for x, y in zip(back, pieces, strict=True)), "not lossless"
    ratio = codes.nbytes / sum(map(len, packed))
    rates = (codes.nbytes / 1e9 / (end - start) for start, end in ((started, written), (written, read)))
    return f"{name:36s} {way:24s} {ratio:6.2f} " + " ".join(f"{r:6.2f}" for r in rates)


def main() -> None:
    blosc2.set_nthreads(1)
    print(f"{'output':36s} {'way':24s}  ratio  GB/s in, out")
    for name, codes in outputs():
        for way in WAYS:
            print(row(name, codes, way), flush=True)


if __name__ == "__main__":
    main()
