"""compare with and without kept references: seconds of the first and of later comparisons of one dump, taken in turns.

python benchmarks/bench_reference_cache.py [--size 2048] [--format bfloat16] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from accuracy_eval.backends.open import open_backend
from accuracy_eval.cases import make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.json_data import to_json
from accuracy_eval.suite import Suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--format", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    shape = tuple((letter, options.size) for letter in "mnk")
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "d.h5", Path(folder) / "cache"
        dump(Suite("benchmark", "", (make_case("gemm", shape, format=options.format),), {}), open_backend("reference"), path)

        def timed(where: Path | None) -> tuple[float, str]:
            start = time.perf_counter()
            results = compare_dumps(path, reference="full", reference_cache=where)
            return time.perf_counter() - start, json.dumps(to_json(results))

        timed(None)  # compile
        first, _ = timed(cache)
        plain, kept = zip(*((timed(None), timed(cache)) for _ in range(options.repeats)), strict=True)
        size = sum(p.stat().st_size for p in cache.iterdir()) / 2**20
    assert len({text for _, text in (*plain, *kept)}) == 1
    without, with_cache = (min(seconds for seconds, _ in runs) for runs in (plain, kept))
    print(f"gemm {options.size}³ {options.format}: without {without:.2f} s, first with {first:.2f} s, later {with_cache:.2f} s "
          f"({without / with_cache:.1f} x), {size:.0f} MiB kept, equal results")  # fmt: skip


if __name__ == "__main__":
    main()
