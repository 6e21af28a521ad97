"""Total error of a quantised result: the noise against the result of the unquantised operands, beside that of the ideal result.

Three results meet per element: t, of the unquantised operands; v, the exact product of the stored codes and scales; a, the output. The
ideal result i is v rounded once to the output's format. Σ(a - t)² beyond Σ(i - t)² is what the device added, and a contract allows
some of it. Where arithmetic has a budget B its error has at most the standard deviation B/λ, and the rounding of the output flips
where it crosses a midpoint; together s² = (B/λ)² + 0.8·ulp·B/λ. Over elements of e = i - t that moves the sum of squares by Σs²,
give or take three standard deviations, √(4·Σe²s² + 2·Σs⁴), and one flip, 2·|v - t|·ulp, where it is rarer than that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA
from accuracy_eval.formats import Codes, Format, Values, decode, get_format
from accuracy_eval.jit import kernel
from accuracy_eval.threads import map_threads

CHUNK = 1 << 15  # elements of a task: temporaries stay in the cache
FLIPS = 0.8  # E|d| of a normal d of standard deviation 1: the share of roundings that flip is E|d|/ulp
DEVIATIONS = 3.0
Sums = NDArray[np.float64]  # [rows, 6]: Σt², Σ(a-t)², Σe², Σs², Σ(4·e²s² + 2·s⁴) and the largest 2·|v-t|·ulp


class TotalMeter:
    """Rows are given in any order, every one once. Elements that are not finite in all three results are left out."""

    def __init__(self, rows: int, fmt: str) -> None:
        self.format: Format = get_format(fmt)
        self.sums: Sums = np.zeros((rows, 6))

    def update(self, first_row: int, codes: Codes, exact: Values, truth: Values, budget: Values | None = None) -> None:
        """Rows first_row … of the output's codes, of the exact product and of the unquantised result, all [r, columns].

        budget  what the contract allows of |a - v| before the output is rounded; None: nothing
        """
        step = max(1, CHUNK // max(exact.shape[1], 1))

        def part(i: int) -> None:
            rows = slice(i, i + step)
            allowed = None if budget is None else budget[rows]
            self.sums[first_row + i : first_row + i + len(exact[rows])] = self._sums(codes[rows], exact[rows], truth[rows], allowed)

        map_threads(part, range(0, len(exact), step))

    def _sums(self, codes: Codes, exact: Values, truth: Values, budget: Values | None) -> Sums:
        f, found = self.format, np.zeros((len(exact), 6))
        allowed = np.zeros((0, 0)) if budget is None else budget
        # integers are numbers whose spacing is 1 everywhere
        bits, emin = (31, 31) if f.kind == "int" else (f.fraction_bits, f.emin)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # matters only where the kernel runs uncompiled
            _add_up(decode(codes, f), exact, truth, allowed, bits, emin, f.max, f.overflow == "saturate", found)
        return found

    def result(self) -> dict[str, Any]:
        """The metrics of registry.DERIVED that total error has; a result without error has +inf dB, a zero truth none."""
        if not len(self.sums):
            return dict.fromkeys(("total_snr_db", "ideal_snr_db", "excess_db", "excess_row_db", "excess_row"))
        whole = np.append(self.sums[:, :5].sum(axis=0), self.sums[:, 5].max())
        rows = [_excess_db(row) for row in self.sums]
        worst = int(np.argmax(rows))
        return {
            "total_snr_db": _snr_db(whole[0], whole[1]),
            "ideal_snr_db": _snr_db(whole[0], whole[2]),
            "excess_db": _excess_db(whole),
            "excess_row_db": rows[worst],
            "excess_row": worst,
        }


@kernel
def _add_up(
    actual: Values, exact: Values, truth: Values, budget: Values, fraction_bits: int, emin: int, largest: float, saturates: bool, out: Sums
) -> None:
    """out += the sums of each row; budget [0, 0] where there is none."""
    budgeted = budget.size > 0
    for r in range(exact.shape[0]):
        for c in range(exact.shape[1]):
            a, v, t = actual[r, c], exact[r, c], truth[r, c]
            if not (math.isfinite(a) and math.isfinite(v) and math.isfinite(t)):
                continue
            exponent = emin if v == 0.0 else max(math.frexp(v)[1] - 1, emin)
            unit = math.ldexp(1.0, exponent - fraction_bits)
            i = np.rint(v / unit) * unit
            if abs(i) > largest:
                if not saturates:
                    continue
                i = math.copysign(largest, i)
            floor = (i - t) ** 2
            out[r, 0] += t * t
            out[r, 1] += (a - t) ** 2
            out[r, 2] += floor
            if budgeted:
                deviation = budget[r, c] / LAMBDA
                if deviation > 0.0:
                    spread = deviation * (deviation + FLIPS * unit)
                    out[r, 3] += spread
                    out[r, 4] += spread * (4.0 * floor + 2.0 * spread)
                    out[r, 5] = max(out[r, 5], 2.0 * abs(v - t) * unit)


def _excess_db(sums: NDArray[np.float64]) -> float:
    off, floor, shift, variance, flip = (float(x) for x in sums[1:])
    allowed = floor + shift + DEVIATIONS * math.sqrt(variance) + flip
    if off == 0 or allowed == 0:
        return 0.0 if off == allowed else math.inf if off else -math.inf
    return 10 * math.log10(off / allowed)


def _snr_db(signal: float, noise: float) -> float | None:
    if noise == 0:
        return math.inf
    return float(10 * math.log10(signal / noise)) if signal else None
