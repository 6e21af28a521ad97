"""How much of its error budget each format uses, by K and device, from results.json files.

    python benchmarks/budget_use.py results.json [results.json …] [--tensor da]

One row a device (and candidate), operand format and output format of the random-lane GEMMs; in the column of each K the largest share of
the budget among the outputs that keep theirs, the mean of the errors' bias toward zero in standard deviations (float32 outputs of
truncating matrix units: about -0.65; of rounding ones: about 0), and how many are over.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CONTRACTED = {"da": "n", "db": "m", "dbias": "m"}  # dimension that a gradient sums over


class Group(NamedTuple):
    """What one row of the table is about."""

    device: str
    operands: str
    output: str


class Use(NamedTuple):
    """What one output used of its budget, and its errors' bias."""

    share: float
    bias: float | None


Found = dict[Group, dict[int, list[Use]]]


def uses(results: dict[str, Any], tensor: str) -> Iterator[tuple[Group, int, Use]]:
    """(group, K, use) of every output of that name of a random-lane GEMM."""
    for t in results["tensors"]:
        case = t["case"]
        if case["op"] != "gemm" or case["lane"] != "random" or t["tensor"] != tensor:
            continue
        k = dict(case["shape"])[CONTRACTED.get(tensor, "k")]
        for side in t["sides"]:
            used = side["metrics"].get("budget_max")
            if isinstance(used, float):
                device = side["label"] if t["candidate"] == "default" else f"{side['label']} {t['candidate']}"
                yield Group(device, case["format"], side["format"]), k, Use(used, side["metrics"].get("bias_sigma"))


def cell(outputs: list[Use]) -> str:
    within = [u.share for u in outputs if u.share <= 1]
    biases = [u.bias for u in outputs if u.bias is not None]
    bias = f"{statistics.mean(biases):+.2f}" if biases else ""
    over = len(outputs) - len(within)
    words = [f"{max(within):.2f}" if within else "", bias, f"({over} over)" if over else ""]
    return " ".join(w for w in words if w)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--tensor", default="d", help="the output looked at: d, da, db, dbias")
    options = parser.parse_args()
    found: Found = defaultdict(lambda: defaultdict(list))
    for path in options.results:
        for group, k, use in uses(json.loads(path.read_text()), options.tensor):
            found[group][k].append(use)
    lengths = sorted({k for of in found.values() for k in of})
    print(f"| device | operands | output | outputs | {' | '.join(f'K = {k}' for k in lengths)} |\n|{'-|' * (4 + len(lengths))}")
    for group, of in sorted(found.items()):
        cells = [cell(of[k]) if k in of else "" for k in lengths]
        print(f"| {' | '.join(group)} | {sum(map(len, of.values()))} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
