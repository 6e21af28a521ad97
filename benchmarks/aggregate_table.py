"""What the gates on whole rows, columns and tiles raise on healthy units, and how much smaller faults they see than single elements do.

    python benchmarks/aggregate_table.py [--k 1,8,64,512,4096] [--size 48] [--filter 4096]

False alarms: every healthy unit × operand format × input class × K of tests/support_units.py; the largest use of a row, column or tile
of size × size results before output rounding (above 0.7 is a false alarm). Misses: faults added to the exact result of float32
operands; the largest |error|/B of the fault from which the gates on many elements fail, where that on elements fails from 1.
A filter of the products of one k, which is no gate: how much of a lost one a healthy unit's own errors look like, beside what the
gates on elements see.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import support_units as units

from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.metrics.aggregates import LIMIT, AggregateMeter
from accuracy_eval.records import Coded
from accuracy_eval.resolution import ResolutionMeter

FINE = get_format("float64")  # results before output rounding


def reference(a, b, fmt, contract):
    """Values, budgets and typical budgets [m, n]."""
    parts = list(panels(Gemm(Coded(a, fmt), Coded(b, fmt), "nt"), contract=contract))
    return (np.concatenate([getattr(p, name) for p in parts]) for name in ("values", "budget", "typical"))


def uses(actual, values, typical):
    """Largest use of a row, a column, a tile."""
    meter = AggregateMeter(*values.shape, FINE)
    meter.update(0, encode(actual, FINE), values, typical)
    found = meter.result()
    return tuple(x[1] if x else 0.0 for x in (found.row, found.column, found.tile))


def healthy(lengths, size):
    """(contract, input class) -> largest use over units, formats and K; and how many outputs that were, how many over the limit."""
    worst, count, alarms = defaultdict(float), 0, 0
    for unit in units.HEALTHY:
        for fmt in unit.formats:
            for kind in units.KINDS:
                for k in lengths:
                    a, b = units.operands(kind, size, k, fmt, seed=k)
                    values, _, typical = reference(a, b, fmt, unit.contract)
                    use = max(uses(units.pairs(unit.run, a, b, fmt), values, typical))
                    worst[unit.contract, kind] = max(worst[unit.contract, kind], use)
                    count, alarms = count + 1, alarms + (use > LIMIT)
    return worst, count, alarms


def shapes(rng, values, budget, a, b):
    """Name -> errors of unit size (in budgets where they are noise; a share of the lost products where they are that)."""
    m, n = values.shape
    noise = rng.choice([-1.0, 1.0], size=(m, n)) * budget
    row, column, tile = np.zeros((m, n)), np.zeros((m, n)), np.zeros((m, n))
    row[m // 2], column[:, n // 2] = noise[m // 2], noise[:, n // 2]
    tile[:128, :128] = noise[:128, :128]
    every = {f"every {q}. product": -(a[:, ::q] @ b[:, ::q].T) for q in (2, 16, 128) if q < a.shape[1]}
    return {"a row": row, "a column": column, "a tile": tile, **every}


def smallest(error, values, budget, typical):
    """Largest |error|/B of the fault at which the gates on many elements begin to fail; that on elements fails from 1."""
    largest = float(np.max(np.abs(error) / budget))
    return LIMIT / max(uses(values + error / largest, values, typical))


def found_by_filter(unit, fmt, kind, k, size):
    """The share of each k's products (-1: they are lost) that best fits a healthy unit's errors: the least; and (k_seen, k_total)."""
    a, b = units.operands(kind, size, k, fmt, seed=2)
    problem = Gemm(Coded(a, fmt), Coded(b, fmt), "nt")
    values, budget, typical = reference(a, b, fmt, unit.contract)
    weight = 1 / np.square(typical)
    x, y = decode(a, fmt), decode(b, fmt)
    fit = np.einsum("ij,ik,jk->k", weight * (units.pairs(unit.run, a, b, fmt) - values), x, y, optimize=True)
    size_of = np.einsum("ij,ik,jk->k", weight, x**2, y**2, optimize=True)
    meter = ResolutionMeter(size, FINE, problem)
    meter.update(0, values, budget, typical)
    seen = meter.result()
    return float((fit[size_of > 0] / size_of[size_of > 0]).min()), seen.k_seen, seen.k_total


FILTERED = ("volta", "hopper", "cdna3", "hopper fp8")
FILTERED_KINDS = ("normal", "relu", "positive", "constant")


def filter_table(k, size):
    print("| unit | " + " | ".join(FILTERED_KINDS) + " |\n|-" + "|-" * len(FILTERED_KINDS) + "|")
    for unit in (u for u in units.HEALTHY if u.name in FILTERED):
        cells = [found_by_filter(unit, unit.formats[0], kind, k, size) for kind in FILTERED_KINDS]
        print(f"| {unit.name} | {' | '.join(f'{share:.1e} · {seen} of {total}' for share, seen, total in cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", default="1,8,64,512,4096")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--filter", type=int, metavar="K", help="only the table of the filter, at this K")
    options = parser.parse_args()
    if options.filter:
        filter_table(options.filter, options.size)
        return
    worst, count, alarms = healthy([int(k) for k in options.k.split(",")], options.size)
    kinds = list(units.KINDS)
    print(f"| contract | {' | '.join(kinds)} |\n|-|{'-|' * len(kinds)}")
    for contract in dict.fromkeys(c for c, _ in worst):
        print(f"| {contract} | {' | '.join(f'{worst[contract, kind]:.2f}' for kind in kinds)} |")
    print(f"\n{alarms} of {count} healthy outputs are over {LIMIT}\n")
    rng = np.random.default_rng(1)
    print("| fault | " + " | ".join(f"K = {k}" for k in (64, 512, 4096)) + " |\n|-|-|-|-|")
    table: dict[str, dict[int, str]] = defaultdict(dict)
    for k in (64, 512, 4096):
        a, b = units.operands("normal", 256, k, "float32", seed=k)
        values, budget, typical = reference(a, b, "float32", "fp32acc")
        x, y = a.view(np.float32).astype(np.float64), b.view(np.float32).astype(np.float64)
        for name, error in shapes(rng, values, budget, x, y).items():
            table[name][k] = f"{smallest(error, values, budget, typical):.2f}"
    for name, sizes in table.items():
        print(f"| {name} | {' | '.join(sizes.get(k, '-') for k in (64, 512, 4096))} |")


if __name__ == "__main__":
    main()
