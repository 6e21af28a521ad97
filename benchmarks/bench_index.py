"""What the index of a dump costs once it is open: memory, and processor seconds to open it.

    python benchmarks/bench_index.py DUMP

Memory is what Python allocates for it: held while the dump is open, and the most at a time on the way. Seconds are the best of five.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc

from accuracy_eval.store import Dump
from accuracy_eval.store.guard import import_h5py

REPEATS = 5


def seconds(path: str) -> float:
    start = time.process_time()
    Dump.open(path)
    return time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump")
    path = parser.parse_args().dump
    import_h5py()
    best = min(seconds(path) for _ in range(REPEATS))
    tracemalloc.start()
    dump = Dump.open(path)
    held, most = tracemalloc.get_traced_memory()
    count = len(dump.records)
    print(f"{count} records: {held / count:.0f} B a record held, {most / count:.0f} at most, opened in {best:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
