"""Gates `excess` and `excess-row`: what healthy units score, and the smallest gain of one row that fails, without and with the bias
that a contract allows. Prints the table of docs/gates.md.

    python benchmarks/excess_table.py [--k 64,1024,8192] [--input normal,relu,spike]

The unit is Hopper's, modelled: its 8-bit sums in 14 bits, in one chain or in parts of 128 products; under fp32acc the exact product,
rounded once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from accuracy_eval.cases import make_case
from accuracy_eval.datapath import dot
from accuracy_eval.formats import Values, decode, encode
from accuracy_eval.metrics.aggregates import LIMIT
from accuracy_eval.metrics.meter import Meter
from accuracy_eval.metrics.total import TotalMeter
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import OPS
from accuracy_eval.ops.spec import Inputs

ROWS, COLUMNS = 32, 512
EXCESS = 0.3  # dB, accuracy_eval/profiles/default.toml
FINEST, STEPS = 1e-4, 160  # gains are looked for from there up to 1, in steps of 6 %
INPUTS = ("normal", "uniform", "outlier", "heavy-tailed", "relu", "spike")
PROMISES = {"fp8fast": "rowwise", "fp8promoted": "rowwise", "fp32acc": "mxfp8_rceil"}


@dataclass(frozen=True)
class Healthy:
    """A healthy result and what it is judged by, all [ROWS, COLUMNS]: exact product, unquantised result and the two budgets."""

    values: Values
    exact: Values
    truth: Values
    budget: Values
    typical: Values

    def excess(self, values: Values, rows: slice, *, biased: bool = True) -> float:
        """The largest excess_db of those rows."""
        meter = TotalMeter(len(values), "bfloat16")
        meter.update(
            0, encode(values, "bfloat16"), self.exact[rows], self.truth[rows], self.budget[rows], self.typical[rows] if biased else None
        )
        return float(meter.result()["excess_row_db"])

    def by_excess(self, values: Values, rows: slice, *, biased: bool = True) -> bool:
        """Whether `excess-row` fails."""
        return self.excess(values, rows, biased=biased) > EXCESS

    def by_kernel_error(self, values: Values, rows: slice) -> bool:
        """Whether `budget` or `rows` fails."""
        meter = Meter(values.shape, "bfloat16", reference=True)
        meter.update(0, encode(values, "bfloat16"), self.exact[rows], self.budget[rows], self.typical[rows])
        found = meter.result().metrics
        return bool(found["budget_max"] > 1 or found["row_budget"] > LIMIT)


def healthy(contract: str, input_class: str, k: int) -> Healthy:
    gemm = OPS["gemm"]
    dims = (("m", ROWS), ("n", COLUMNS), ("k", k))
    case = make_case("gemm", dims, format="fp8_e4m3", recipe=PROMISES[contract], input_class=input_class, seed=42)
    inputs = stored_inputs(gemm, case, "ocp", operand_codes(gemm, case, "ocp"))
    reference = gemm.reference(case, inputs, "ocp", contract)["d"]
    assert reference.unquantised is not None
    panels = list(reference.panels())
    exact, budget, typical = (np.concatenate([getattr(p, name) for p in panels]) for name in ("values", "budget", "typical"))
    truth = np.concatenate([p.values for p in reference.unquantised()])
    values = exact if contract == "fp32acc" else hopper(inputs, k if contract == "fp8fast" else 128)
    return Healthy(values, exact, truth, budget, typical)


def hopper(inputs: Inputs, part: int) -> Values:
    """Products of rows with rows by Hopper's unit, parts of the contraction added in float32, times the scales of rows."""
    a, b = inputs["a"].codes, inputs["b"].codes
    out = np.zeros((ROWS, COLUMNS), np.float32)
    for row in range(ROWS):
        for i in range(0, a.shape[1], part):
            left = np.repeat(a[row : row + 1, i : i + part], COLUMNS, axis=0)
            codes = dot("hopper", left, b[:, i : i + part], format="float8_e4m3fn", out="float32")
            out[row] += decode(codes, "float32").astype(np.float32)
    scales = [inputs[f"{name}_scale"].codes.view(np.float32) for name in "ab"]
    return np.asarray(out * scales[0][:, None] * scales[1], np.float64)


def smallest(fails: Callable[[Values, slice], bool], values: Values, sign: int) -> float:
    """The least |g - 1| from which a row times g fails, in the median of rows; Inf where half of the rows never do."""
    gains = FINEST * FINEST ** (-np.arange(STEPS + 1) / STEPS)
    found = []
    for row in range(ROWS):
        rows = slice(row, row + 1)
        low, high = 0, len(gains)  # bisection: the error grows with the gain
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(values[rows] * (1 + sign * gains[middle]), rows) else (middle + 1, high)
        found.append(gains[low] if low < len(gains) else np.inf)
    return float(np.median(found))


def percent(x: float) -> str:
    return f"{100 * x:.2g} %" if np.isfinite(x) else "never"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", default="64,1024,8192")
    parser.add_argument("--input", default=",".join(INPUTS))
    given: Any = parser.parse_args()
    print("| contract | input | K | healthy: `excess_row_db` | row × (1 + g) fails from g = | row × (1 − g) | by `budget`, `rows`: + · − |")
    print("|-|-|-|-|-|-|-|")
    for contract in PROMISES:
        for name in given.input.split(","):
            for k in map(int, given.k.split(",")):
                case = healthy(contract, name, k)
                everything = slice(0, ROWS)
                scores = [case.excess(case.values, everything, biased=b) for b in (False, True)]
                cells = [" → ".join(f"{s:.2f}" for s in scores)]
                for sign in (1, -1):
                    seen = [smallest(partial(case.by_excess, biased=b), case.values, sign) for b in (False, True)]
                    cells.append(" → ".join(map(percent, seen)))
                cells.append(" · ".join(percent(smallest(case.by_kernel_error, case.values, sign)) for sign in (1, -1)))
                print(f"| {contract} | {name} | {k} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
