"""How much of its error budget each format uses, by K and device, from results.json files.

    python benchmarks/budget_use.py results.json [results.json …]

One row a device, format, output and K of the random-lane GEMMs: cases, largest and median share of the budget, and the mean of the
errors' bias toward zero in standard deviations (float32 outputs of truncating matrix units: about -0.65; of rounding ones: about 0).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path


def rows(paths: list[Path]) -> list[tuple[str, ...]]:
    """The table's rows as text, sorted."""
    found: dict[tuple[str, str, str, int], list[tuple[float, float | None]]] = defaultdict(list)
    for path in paths:
        for t in json.loads(path.read_text())["tensors"]:
            case = t["case"]
            if case["op"] != "gemm" or case["lane"] != "random":
                continue
            k = dict(case["shape"])[{"da": "n", "db": "m", "dbias": "m"}.get(t["tensor"], "k")]
            for side in t["sides"]:
                used = side["metrics"].get("budget_max")
                if isinstance(used, float):
                    bias = side["metrics"].get("bias_sigma")
                    name = case["format"] + (f"-{case['out_format']}" if case["out_format"] else "")
                    found[side["label"] + ("" if t["candidate"] == "default" else f" {t['candidate']}"), name, t["tensor"], k].append(
                        (used, bias)
                    )
    table = []
    for (label, fmt, tensor, k), values in sorted(found.items()):
        used = [u for u, _ in values]
        biases = [b for _, b in values if isinstance(b, float)]
        bias = f"{statistics.mean(biases):+.3f}" if biases else "-"
        table.append((label, fmt, tensor, str(k), str(len(values)), f"{max(used):.3f}", f"{statistics.median(used):.3f}", bias))
    return table


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    head = ("device", "format", "tensor", "K", "cases", "largest share", "median share", "bias")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows([Path(p) for p in sys.argv[1:]]):
        print(f"| {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
