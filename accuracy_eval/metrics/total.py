"""Total error of a quantised result: the noise against the result of the unquantised operands, beside that of the ideal result.

Three results meet per element: t, of the unquantised operands; v, the exact product of the stored codes and scales; a, the output. The
ideal result i is v rounded once to the output's format. Σ(a - t)² beyond Σ(i - t)² is what the device added, and a contract allows
some of it.

By chance: where arithmetic has a budget B its error has at most the standard deviation B/λ, and the rounding of the output flips
where it crosses a midpoint; together s² = (B/λ)² + 0.8·ulp·B/λ. Over elements of e = i - t that moves the sum of squares by Σs²,
give or take three standard deviations, √(4·Σe²s² + 2·Σs⁴), and one flip, 2·|v - t|·ulp, where it is rarer than that.

By its bias: truncation moves all elements the same way, so that errors of quantisation that agree in a row add up with it. The
systematic part of the budget, as much of it as gate `rows` lets a row use, moves v toward zero, down or up before it is rounded, and
Σ(i - t)² gives way to the largest of the four sums. For a bias b and an e of no common sign that is Σb² more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import LAMBDA, TYPICAL
from accuracy_eval.formats import Codes, Format, Values, decode, get_format
from accuracy_eval.jit import kernel
from accuracy_eval.metrics.aggregates import LIMIT
from accuracy_eval.threads import map_threads

CHUNK = 1 << 15  # elements of a task: temporaries stay in the cache
FLIPS = 0.8  # E|d| of a normal d of standard deviation 1: the share of roundings that flip is E|d|/ulp
DEVIATIONS = 3.0
NOTHING: Values = np.zeros((0, 0))
# columns: Σt², Σ(a-t)², Σe², the same after a bias toward zero, down and up, Σs², Σ(4·e²s² + 2·s⁴), the largest 2·|v-t|·ulp
SIGNAL, NOISE, IDEAL, TOWARD_ZERO, DOWN, UP, SHIFT, VARIANCE, FLIP = range(9)
Sums = NDArray[np.float64]  # [rows, 9]


class TotalMeter:
    """Rows are given in any order, every one once. Elements that are not finite in all three results are left out."""

    def __init__(self, rows: int, fmt: str) -> None:
        self.format: Format = get_format(fmt)
        self.sums: Sums = np.zeros((rows, FLIP + 1))

    def update(
        self, first_row: int, codes: Codes, exact: Values, truth: Values, budget: Values | None = None, typical: Values | None = None
    ) -> None:  # fmt: skip
        """Rows first_row … of the output's codes, of the exact product and of the unquantised result, all [r, columns].

        budget   what the contract allows of |a - v| before the output is rounded; None: nothing
        typical  the same for many elements together; None: errors of elements have nothing in common
        """
        step = max(1, CHUNK // max(exact.shape[1], 1))

        def part(i: int) -> None:
            rows = slice(i, i + step)
            allowed = NOTHING if budget is None else budget[rows]
            bias = NOTHING if budget is None or typical is None else _bias(budget[rows], typical[rows])
            self.sums[first_row + i : first_row + i + len(exact[rows])] = self._sums(codes[rows], exact[rows], truth[rows], allowed, bias)

        map_threads(part, range(0, len(exact), step))

    def _sums(self, codes: Codes, exact: Values, truth: Values, budget: Values, bias: Values) -> Sums:
        f, found = self.format, np.zeros((len(exact), FLIP + 1))
        # integers are numbers whose spacing is 1 everywhere
        bits, emin = (31, 31) if f.kind == "int" else (f.fraction_bits, f.emin)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # matters only where the kernel runs uncompiled
            _add_up(decode(codes, f), exact, truth, budget, bias, bits, emin, f.max, f.overflow == "saturate", found)
        return found

    def result(self) -> dict[str, Any]:
        """The metrics of registry.DERIVED that total error has; a result without error has +inf dB, a zero truth none."""
        if not len(self.sums):
            return dict.fromkeys(("total_snr_db", "ideal_snr_db", "excess_db", "excess_row_db", "excess_row"))
        whole = np.append(self.sums[:, :FLIP].sum(axis=0), self.sums[:, FLIP].max())
        rows = [_excess_db(row) for row in self.sums]
        worst = int(np.argmax(rows))
        return {
            "total_snr_db": _snr_db(whole[SIGNAL], whole[NOISE]),
            "ideal_snr_db": _snr_db(whole[SIGNAL], whole[IDEAL]),
            "excess_db": _excess_db(whole),
            "excess_row_db": rows[worst],
            "excess_row": worst,
        }


def _bias(budget: Values, typical: Values) -> Values:
    """The largest systematic error of each element that a row of them may have; 0 where the budget is infinite."""
    with np.errstate(invalid="ignore"):
        systematic = (LAMBDA * typical - TYPICAL * budget) / (LAMBDA - TYPICAL)  # both are it and so many deviations
    return np.asarray(np.where(systematic > 0, LIMIT * systematic, 0.0))


@kernel
def _rounded(x: float, fraction_bits: int, emin: int) -> float:
    """To nearest, ties to even, in a format without a largest value."""
    unit = _unit(x, fraction_bits, emin)
    return np.rint(x / unit) * unit  # type: ignore[no-any-return]


@kernel
def _unit(x: float, fraction_bits: int, emin: int) -> float:
    exponent = emin if x == 0.0 else max(math.frexp(x)[1] - 1, emin)
    return math.ldexp(1.0, exponent - fraction_bits)


@kernel
def _add_up(
    actual: Values, exact: Values, truth: Values, budget: Values, bias: Values, fraction_bits: int, emin: int, largest: float,
    saturates: bool, out: Sums,
) -> None:  # fmt: skip
    """out += the sums of each row; budget and bias [0, 0] where there is none."""
    budgeted, biased = budget.size > 0, bias.size > 0
    for r in range(exact.shape[0]):
        for c in range(exact.shape[1]):
            a, v, t = actual[r, c], exact[r, c], truth[r, c]
            if not (math.isfinite(a) and math.isfinite(v) and math.isfinite(t)):
                continue
            i = _rounded(v, fraction_bits, emin)
            if abs(i) > largest:
                if not saturates:
                    continue
                i = math.copysign(largest, i)
            floor = (i - t) ** 2
            out[r, SIGNAL] += t * t
            out[r, NOISE] += (a - t) ** 2
            out[r, IDEAL] += floor
            b = bias[r, c] if biased else 0.0
            for column, by in ((TOWARD_ZERO, -math.copysign(b, v)), (DOWN, -b), (UP, b)):
                moved = _rounded(v + by, fraction_bits, emin) if b > 0.0 else i
                out[r, column] += (min(max(moved, -largest), largest) - t) ** 2
            if budgeted:
                deviation = budget[r, c] / LAMBDA
                if deviation > 0.0:
                    unit = _unit(v, fraction_bits, emin)
                    spread = deviation * (deviation + FLIPS * unit)
                    out[r, SHIFT] += spread
                    out[r, VARIANCE] += spread * (4.0 * floor + 2.0 * spread)
                    out[r, FLIP] = max(out[r, FLIP], 2.0 * abs(v - t) * unit)


def _excess_db(sums: NDArray[np.float64]) -> float:
    off, ideal = float(sums[NOISE]), float(sums[IDEAL : UP + 1].max())
    allowed = ideal + float(sums[SHIFT]) + DEVIATIONS * math.sqrt(sums[VARIANCE]) + float(sums[FLIP])
    if off == 0 or allowed == 0:
        return 0.0 if off == allowed else math.inf if off else -math.inf
    return 10 * math.log10(off / allowed)


def _snr_db(signal: float, noise: float) -> float | None:
    if noise == 0:
        return math.inf
    return float(10 * math.log10(signal / noise)) if signal else None
