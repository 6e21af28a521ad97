"""Error over budget of simulated units, healthy and faulty: the table of docs/budgets.md.

    python benchmarks/budget_table.py [--k 64,1024,8192] [--size 16] [--plain]

Every row is a unit and an operand format; the columns are input classes; each cell is the largest |error|/B over all elements and
K (healthy units: above 1 is a false alarm) or the smallest over K of the largest (faults: below 1 is a miss). `--plain` shows the
formula without its two corrections: no (1 + N/K) on the bias, subnormal operands counted at their value.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import support_units as units

from accuracy_eval.contracts import LAMBDA, parse_contract
from accuracy_eval.formats import decode


def plain_budget(a, b, contract):
    """The formula without its corrections, from every running sum."""
    p = a[:, None, :] * b[None, :, :]
    k = p.shape[2]
    s = np.cumsum(p, axis=2)
    looks = s[:, :, max(1, k // 32) - 1 :: max(1, k // 32)]
    v = np.sqrt((p * p).sum(axis=2))
    m = np.maximum(np.abs(looks).mean(axis=2), 4 * v / np.sqrt(k))
    size = np.maximum(np.sqrt((looks**2).mean(axis=2)), v)
    n = np.abs(np.sign(p).sum(axis=2))

    def chain(unit):
        align = 0.0 if unit.align is None else 2.0**-unit.align
        steps, step = unit.steps(k), 2.0**-unit.bits
        bias = 0.5 * (steps * step * (unit.rounding == "RZ") + n * align) * m
        return bias + LAMBDA * 0.3 * (np.sqrt(steps) * step + np.sqrt(k) * align) * size

    c = parse_contract(contract)
    total = np.maximum.reduce([chain(u) for u in c.accumulators]) + 2.0**-22 * np.abs(s[:, :, -1])
    if c.operand_bits is not None:
        total += LAMBDA * 2.0**-11 * v
    return total


def worst(unit, fmt, kind, k, size, plain):
    """Largest |error|/B of a size × size block of results."""
    a, b = units.operands(kind, size, k, fmt, seed=k)
    values, budget = units.reference(a, b, fmt, unit.contract)
    if plain:
        budget = plain_budget(decode(a, fmt), decode(b, fmt), unit.contract)
    error = np.abs(units.pairs(unit.run, a, b, fmt) - values)
    return float(units.ratio(error, budget).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--k", default="1,3,8,31,64,512,4096,8192")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    lengths = [int(k) for k in options.k.split(",")]
    kinds = list(units.KINDS)
    for title, rows, pick in (
        ("healthy: largest |error|/B", units.HEALTHY, max),
        ("faults: largest |error|/B, smallest over K", units.FAULTS, min),
    ):
        print(f"\n{title}\n| unit | operands | contract | {' | '.join(kinds)} |\n|-|-|-|{'-|' * len(kinds)}")
        for unit in rows:
            if options.plain and unit.contract == "fp8promoted":
                continue
            for fmt in unit.formats:
                ks = lengths if rows is units.HEALTHY else [k for k in lengths if k >= 64]
                cells = [f"{pick(worst(unit, fmt, kind, k, options.size, options.plain) for k in ks):.2g}" for kind in kinds]
                print(f"| {unit.name} | {fmt} | {unit.contract} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
