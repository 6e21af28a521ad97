"""The gate an error budget makes, what it can see, and what a healthy unit is expected to show.

The budget B of an element (`cpu_ref.running`) bounds its error before the output is rounded. An output passes iff its code lies in
[round(C − B), round(C + B)], C the reference: equivalently, the distance from C to the reals that round to the code is at most B.
Everything else here is reported, not gated: the minimum detectable effect (`ResolutionMeter`), worst-case bounds (`gamma`), expected
noise, bias and flips of a unit on normal data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import Accumulator, parse_contract
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Codes, Format, Overflow, Values, encode, get_format, is_nan, ordinals
from accuracy_eval.jit import kernel, map_threads

AGGREGATE = 0.7  # of the root mean square of B over a row, column or tile; healthy units reach 0.54 (docs/budgets.md)
STRIP_ELEMENTS = 1 << 19  # elements that one thread works on at a time: 4 MB of float64
MEDIAN_SAMPLES = 1 << 16


def interval(values: Values, budget: Values | float, fmt: str | Format, *, overflow: Overflow | None = None) -> tuple[Codes, Codes]:
    """Codes of round(C − B) and round(C + B): the codes between them (in the order of `ordinals`) pass. NaN and ±Inf stand alone."""
    v = np.asarray(values, np.float64)
    b = np.where(np.isfinite(v), np.asarray(budget, np.float64), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        # float64 rounds C ± B by half an ulp of C; outward, so that B itself never shrinks
        low = np.where(b > 0, np.nextafter(v - b, -np.inf), v)
        high = np.where(b > 0, np.nextafter(v + b, np.inf), v)
    return encode(low, fmt, overflow=overflow), encode(high, fmt, overflow=overflow)


def within_budget(
    codes: Codes, values: Values, budget: Values | float, fmt: str | Format, *, overflow: Overflow | None = None
) -> NDArray[np.bool_]:
    """Which codes the reference and its budget allow, same shape. NaN is allowed exactly where the reference is NaN."""
    f = get_format(fmt)
    low, high = interval(values, budget, f, overflow=overflow)
    at = ordinals(codes, f)
    inside = (ordinals(low, f) <= at) & (at <= ordinals(high, f))
    nan = is_nan(codes, f)
    expected_nan = is_nan(low, f) | is_nan(high, f)
    return np.asarray(np.where(nan | expected_nan, nan & expected_nan, inside))


def gamma(k: int, unit: float) -> float:
    """γ_K = K·u/(1 − K·u): |error| ≤ γ_K·(|A||B|) in any order of additions with unit roundoff u. Inf once K·u ≥ 1."""
    return k * unit / (1 - k * unit) if k * unit < 1 else math.inf


def probable_gamma(k: int, unit: float, spread: float = 6.0) -> float:
    """The same with spread·sqrt(K) for K: exceeded with probability 2·exp(−spread²/2) under mean-independent rounding errors.

    Not valid for truncating units. Source: Higham and Mary 2019, theorem 2.4.
    """
    return math.expm1(spread * math.sqrt(k) * unit + k * unit * unit / (1 - unit))


def worst_case(problem: Gemm, first_row: int, rows: int, contract: str) -> Values:
    """γ_K·(|A||B|) of a panel, float64 [rows, n], under the contract's coarsest accumulator, with (|A||B|) bounded by norms.

    Vacuous from K of a few thousand on (a TF32 product stays inside float32's): reported, never gated.
    """
    accumulators = parse_contract(contract).accumulators
    coarsest = max((2.0**-a.bits * (1.0 if a.rounding == "RZ" else 0.5) for a in accumulators), default=0.0)
    size = np.outer(problem.a_norms[first_row : first_row + rows], problem.b_norms)
    return np.asarray(gamma(problem.k, coarsest) * abs(problem.scalars[0]) * size)


@dataclass(frozen=True)
class Resolution:
    """Smallest errors of the output that fail the budget gate: certainly (whatever is hit), and 19 times in 20.

    Certain, for the error that is left after rounding, against the reference:
    element         any single element off by more fails, absolute; Inf where an element may overflow within its budget
    element_median  the same, of half of all elements
    row, column     an error of that relative Frobenius norm within one row (column) fails, whichever it is; NaN if all are zero
    gain            the whole output multiplied by 1 ± gain fails
    k_seen          products a_ik·b_kj, k fixed, whose loss from every element fails; k_total: those that change anything
    k_unseen        first such k that would not be missed, or None
    Nineteen in twenty, for what is added to a correctly rounded output before it is rounded again:
    element_95      one element, anywhere, changed by that much either way
    row_95, column_95   one row (column), anywhere, whose elements get independent normal errors of that norm relative to its own
    gain_95         the whole output multiplied by 1 + gain or 1 - gain
    """

    element: float
    element_median: float
    row: float
    column: float
    gain: float
    k_seen: int = 0
    k_total: int = 0
    k_unseen: int | None = None
    element_95: float = math.nan
    row_95: float = math.nan
    column_95: float = math.nan
    gain_95: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `Side.resolution`."""
        return {
            "element": self.element, "element_median": self.element_median, "row": self.row, "column": self.column, "gain": self.gain,
            "k_seen": self.k_seen, "k_total": self.k_total, "k_unseen": self.k_unseen, "element_95": self.element_95,
            "row_95": self.row_95, "column_95": self.column_95, "gain_95": self.gain_95,
        }  # fmt: skip


@kernel
def _ulp(x: float, bits: int, emin: int) -> float:
    if x == 0.0:
        return math.ldexp(1.0, emin - bits)
    _, e = math.frexp(x)
    return math.ldexp(1.0, max(e - 1, emin) - bits)


@kernel
def _thresholds(values: Any, budget: Any, bits: int, emin: int, top: float, rows: Any, columns: Any, allowed: Any) -> float:
    """allowed = largest output error that may pass; adds its squares to rows [r, 2] and columns [n, 2] beside those of values.

    Returns the smallest gain that fails: an element scaled by it is off by more than `allowed` after rounding.
    """
    gain = np.inf
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = abs(values[i, j])
            if not v < np.inf:
                allowed[i, j] = 0.0
                continue
            b = budget[i, j]
            reach = (v + b) * (1 + 4e-16)
            half = 0.5 * _ulp(reach, bits, emin)
            t = b + half if reach + half < top else np.inf
            allowed[i, j] = t
            rows[i, 0] += t * t
            rows[i, 1] += v * v
            columns[j, 0] += t * t
            columns[j, 1] += v * v
            if v > 0.0 and t < np.inf:
                g = (t + 0.5 * _ulp(v + 2.0 * t, bits, emin)) / v
                gain = min(gain, g)
    return gain


@kernel
def _nearest(x: float, bits: int, emin: int) -> float:
    u = _ulp(x, bits, emin)
    return np.rint(x / u) * u  # type: ignore[no-any-return]


@kernel
def _reach(x: float, from_: float, bits: int, emin: int, top: float) -> float:
    """From a representable number up to where the reals end that round like x ≥ 0; Inf where that is an overflow."""
    r = _nearest(x, bits, emin)
    return (r - from_) + 0.5 * _ulp(r, bits, emin) if r < top else np.inf


@kernel
def _reach_down(x: float, from_: float, bits: int, emin: int, top: float) -> float:
    """The same downward, x of either sign."""
    if x <= 0.0:
        return _reach(-x, -from_, bits, emin, top)
    r = _nearest(x, bits, emin)
    below = _ulp(np.nextafter(r, 0.0), bits, emin) if r > 0.0 else np.inf
    return (from_ - r) + 0.5 * min(_ulp(r, bits, emin), below)


@kernel
def _changes(values: Any, budget: Any, bits: int, emin: int, top: float, away: Any, toward: Any) -> None:
    """What must be added to the rounded value, away from zero and toward it, to leave the codes that its budget allows.

    values, budget, away, toward: one axis. Inf where no change does.
    """
    for i in range(values.shape[0]):
        v = abs(values[i])
        if not v < np.inf:
            away[i] = toward[i] = np.inf
            continue
        r = _nearest(v, bits, emin)
        away[i] = _reach(v + budget[i], r, bits, emin, top)
        toward[i] = _reach_down(v - budget[i], r, bits, emin, top)


SAMPLED_LINES = 32  # columns, and rows of the first panel, looked at for what nineteen of twenty would show; 4 rows of later panels
SAMPLED_ALONG = 8192  # elements of each row, and of each column in the first panel, that stand for all: small thresholds are rare
PER_OCTAVE = 4  # classes of a threshold: 19 % wide
LOWEST, HIGHEST = -60, 20  # octaves of thresholds relative to the line's rms: below, always crossed; above, never


@kernel
def _count(thresholds: Any, rms: Any, weight: float, counts: Any) -> None:
    """Adds thresholds [lines, elements], relative to rms [lines], to counts [lines, classes]."""
    last = counts.shape[1] - 1
    for i in range(thresholds.shape[0]):
        if not 0.0 < rms[i] < np.inf:
            continue
        for j in range(thresholds.shape[1]):
            t = thresholds[i, j] / rms[i]
            place = last if not t < np.inf else 0 if t <= 0.0 else int(np.rint((np.log2(t) - LOWEST) * PER_OCTAVE))
            counts[i, min(max(place, 0), last)] += weight


def _line_counts(thresholds: NDArray[np.float64], rms: NDArray[np.float64], along: float) -> NDArray[np.float64]:
    """Classes of the thresholds [2, lines, elements] of lines of `along` elements each: [lines, classes]; lines without a norm left out."""
    counts = np.zeros((len(rms), (HIGHEST - LOWEST) * PER_OCTAVE + 1))
    for side in thresholds:
        _count(np.ascontiguousarray(side), rms, along / side.shape[1], counts)
    return counts[(rms > 0) & (rms < math.inf)]


def _line_size(counts: NDArray[np.float64], share: float = 0.95) -> float:
    """Relative norm of a normal error that is caught in that share of lines [lines, classes]; NaN without lines, Inf where none is."""
    if not len(counts):
        return math.nan
    used = np.nonzero(counts.any(axis=0))[0]
    counts = counts[:, used]
    octaves = used / PER_OCTAVE + LOWEST

    def caught(octave: float) -> float:
        # an element has two thresholds, of which one error can cross one: each stands for half of a two-sided one
        beyond = np.array([math.erfc(2.0 ** (t - octave) / math.sqrt(2)) for t in octaves])
        return float(np.mean(-np.expm1(counts / 2 @ np.log1p(-np.minimum(beyond, 1 - 1e-15)))))

    low, high = float(LOWEST), float(HIGHEST)
    if caught(high) < share:
        return math.inf
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if caught(middle) >= share else (middle, high)
    return float(2.0**high)


def _spread(size: int, count: int) -> NDArray[np.int64]:
    """`count` indices, or all, evenly over `size`."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)) if size else np.zeros(0, np.int64)


class ResolutionMeter:
    """Collects a Resolution from the panels of a reference, in any order.

    problem     the GEMM, for lost products; None leaves k_* at 0
    out_format  format of the output; columns: its width
    """

    def __init__(self, columns: int, out_format: str | Format, problem: Gemm | None = None) -> None:
        self._format = get_format(out_format)
        self._columns = np.zeros((columns, 2))
        self._rows: list[NDArray[np.float64]] = []
        self._element = 0.0
        self._gain = math.inf
        self._sample: list[NDArray[np.float64]] = []
        self._changes: list[NDArray[np.float64]] = []  # [3, elements]: away, toward, |value|
        self._row_counts: list[NDArray[np.float64]] = []  # [rows, classes]
        self._looked_at = _spread(columns, SAMPLED_LINES)
        self._column_changes: list[NDArray[np.float64]] = []  # [2, looked_at, rows]
        self._height = 0
        self._problem = problem
        if problem is not None:
            self._place = _largest_products(problem)
            self._seen = np.zeros(problem.k, np.bool_)

    def update(self, first_row: int, values: Values, budget: Values) -> None:
        """A panel: values and budget float64 [r, columns], rows from first_row on."""
        f = self._format
        allowed = np.empty(values.shape)
        rows = np.zeros((values.shape[0], 2))
        bits, emin, top = (f.fraction_bits, f.emin, f.max) if f.kind == "float" else (62, 62, math.inf)  # the ulp of integers is 1
        step = max(1, STRIP_ELEMENTS // max(1, values.shape[1]))

        def strip(first: int) -> tuple[float, NDArray[np.float64]]:
            part, columns = slice(first, first + step), np.zeros_like(self._columns)
            return _thresholds(values[part], budget[part], bits, emin, top, rows[part], columns, allowed[part]), columns

        gain = math.inf
        for smallest, columns in map_threads(strip, range(0, values.shape[0], step)):
            gain = min(gain, smallest)
            self._columns += columns
        self._rows.append(rows)
        self._gain = min(self._gain, gain)
        self._element = max(self._element, float(allowed.max(initial=0.0)))
        flat = allowed.reshape(-1)
        self._sample.append(flat[:: max(1, flat.size * max(1, len(self._sample)) // MEDIAN_SAMPLES)].copy())
        self._look(values, budget, bits, emin, top)
        if self._problem is not None:
            self._missed(first_row, values, budget, allowed)

    def _look(self, values: Values, budget: Values, bits: int, emin: int, top: float) -> None:
        """Thresholds of a sample: rows, columns and single elements spread over the panel."""

        def changes(v: Values, b: Values) -> NDArray[np.float64]:
            found = np.empty((2, v.size))
            _changes(np.ascontiguousarray(v).reshape(-1), np.ascontiguousarray(b).reshape(-1), bits, emin, top, found[0], found[1])
            return found.reshape(2, *v.shape)

        height, width = values.shape
        self._height += height
        if not values.size:
            return
        earlier = len(self._row_counts)
        rows = _spread(height, max(4, SAMPLED_LINES // (1 + earlier)))
        at = np.ix_(rows, _spread(width, SAMPLED_ALONG))
        self._row_counts.append(_line_counts(changes(values[at], budget[at]), np.sqrt(self._rows[-1][rows, 1] / width), width))
        at = np.ix_(_spread(height, max(64, SAMPLED_ALONG // (1 + earlier))), self._looked_at)
        self._column_changes.append(changes(values[at].T, budget[at].T))
        step = max(1, values.size * max(1, len(self._changes)) // MEDIAN_SAMPLES)
        v, b = values.reshape(-1)[::step], budget.reshape(-1)[::step]
        self._changes.append(np.concatenate([changes(v, b), np.abs(v)[None]]))

    def _probable(self) -> tuple[float, float, float, float]:
        """element_95, row_95, column_95, gain_95."""
        if not self._changes:
            return math.nan, math.nan, math.nan, math.nan
        away, toward, size = np.concatenate(self._changes, axis=1)
        smallest = self._format.smallest_subnormal / 2 if self._format.kind == "float" else 0.5
        use = (size > smallest) & (size < math.inf)  # what is stored as zero stays zero under any gain
        gain = max(float((t[use] / size[use]).min()) for t in (away, toward)) if use.any() else math.inf
        either = np.concatenate([away, toward])
        element = float(np.quantile(either, 0.95, method="higher"))
        rms = np.sqrt(self._columns[self._looked_at, 1] / self._height)
        columns = _line_counts(np.concatenate(self._column_changes, axis=2), rms, self._height)
        return element, _line_size(np.concatenate(self._row_counts)), _line_size(columns), gain

    def _missed(self, first_row: int, values: Values, budget: Values, allowed: Values) -> None:
        i, j, size = self._place
        here = np.nonzero((i >= first_row) & (i < first_row + values.shape[0]) & (size > 0))[0]
        at = (i[here] - first_row, j[here])
        with np.errstate(invalid="ignore"):
            half = 0.5 * _ulps(np.abs(values[at]) + size[here], self._format)
            self._seen[here] = np.isfinite(values[at]) & (size[here] * (1 - 1e-12) - half > allowed[at])

    def result(self) -> Resolution:
        """What the panels so far can show."""
        rows = np.concatenate(self._rows) if self._rows else np.zeros((0, 2))
        sample = np.concatenate(self._sample) if self._sample else np.zeros(0)
        seen = total = 0
        unseen = None
        if self._problem is not None:
            there = self._place[2] > 0
            seen, total = int((self._seen & there).sum()), int(there.sum())
            missing = np.nonzero(there & ~self._seen)[0]
            unseen = int(missing[0]) if missing.size else None
        return Resolution(
            self._element, float(np.median(sample)) if sample.size else math.nan, _relative(rows), _relative(self._columns),
            self._gain, seen, total, unseen, *self._probable(),
        )  # fmt: skip


def _ulps(x: Values, f: Format) -> Values:
    if f.kind == "int":
        return np.ones_like(x)
    safe = np.where(np.isfinite(x), x, f.max)
    e = np.where(safe == 0, f.emin, np.maximum(np.frexp(safe)[1] - 1, f.emin))
    return np.asarray(np.ldexp(1.0, e - f.fraction_bits))


def _relative(sums: NDArray[np.float64]) -> float:
    use = sums[:, 1] > 0
    if not use.any():
        return math.nan
    with np.errstate(invalid="ignore"):
        ratio = sums[use, 0] / sums[use, 1]  # squares beyond float64 on both sides leave nothing that is certain
    return float(np.sqrt(np.where(np.isnan(ratio), np.inf, ratio).max()))


def _largest_products(problem: Gemm) -> tuple[NDArray[np.int64], NDArray[np.int64], Values]:
    """For every k: row and column of the largest |alpha·a_ik·b_kj|, and that size; 0 where no finite one is left."""
    every = slice(0, problem.k)
    i, left = _largest_along(problem.m, problem.k, lambda lines: problem.a_values(lines, every))
    j, right = _largest_along(problem.n, problem.k, lambda lines: problem.b_values(every, lines).T)
    with np.errstate(over="ignore"):
        return i, j, left * right * abs(problem.scalars[0])


def _largest_along(lines: int, k: int, values: Callable[[slice], Values]) -> tuple[NDArray[np.int64], Values]:
    """For every k: the first of `lines` whose finite magnitude is largest, and that magnitude. values(lines) [lines, k]."""

    def strip(first: int) -> tuple[NDArray[np.int64], Values]:
        index, largest = np.full(k, first), np.zeros(k)
        block = values(slice(first, min(first + step, lines)))
        if block.flags.c_contiguous:
            _largest_by_line(block, first, index, largest)
        else:
            _largest_by_k(block.T, first, index, largest)
        return index, largest

    step = max(1, STRIP_ELEMENTS // max(1, k))
    index, largest = np.zeros(k, np.int64), np.zeros(k)
    for at, size in map_threads(strip, range(0, lines, step)):
        better = size > largest
        index[better], largest[better] = at[better], size[better]
    return index, largest


@kernel
def _largest_by_line(block: Any, first: int, index: Any, largest: Any) -> None:
    """block [lines, k], walked in the order it is stored."""
    for i in range(block.shape[0]):
        for t in range(block.shape[1]):
            x = abs(block[i, t])
            if x > largest[t] and x < np.inf:
                largest[t] = x
                index[t] = first + i


@kernel
def _largest_by_k(block: Any, first: int, index: Any, largest: Any) -> None:
    """block [k, lines], walked in the order it is stored."""
    for t in range(block.shape[0]):
        for i in range(block.shape[1]):
            x = abs(block[t, i])
            if x > largest[t] and x < np.inf:
                largest[t] = x
                index[t] = first + i


def aggregate_limit(budget: Values, rounding: Values | float = 0.0) -> float:
    """Largest root mean square error of a row, column or tile: AGGREGATE·rms(B) + rms of the output's rounding errors.

    budget    B of its elements (any shape, at least 32 of them: fewer may be one large error)
    rounding  half an output ulp at each element
    """
    walk = float(np.sqrt(np.mean(np.square(budget))))
    return AGGREGATE * walk + float(np.sqrt(np.mean(np.square(rounding))))


def rounding_nsr(fmt: str | Format) -> float:
    """Noise-to-signal ratio of rounding normal data once to a format: 0.4253·2^-(p+1). SNR in dB: −20·log10 of it."""
    return 0.4253 * 2.0 ** -(get_format(fmt).fraction_bits + 1)


def expected_nsr(unit: Accumulator, k: int, *, product_bits: int = 16) -> float:
    """Noise-to-signal ratio rms(error)/rms(C) of a dot product of K normal values in a unit, before output rounding.

    product_bits  significant bits of a product: 16 bfloat16, 22 float16 and TF32, 8 e4m3, 6 e5m2
    RNE: 0.150·sqrt(K/L)·2^-p (half of that for bfloat16 products, which often add exactly). Truncation with F > p: 1.45 × its
    bias. With F = p the alignment truncates both signs alike: c·sqrt(K)·2^-F, c 0.31 for long products, 0.16 for 8-bit ones.
    Checked within 25 % against simulated units (tests).
    """
    if unit.align is not None and unit.align <= unit.bits:
        return (0.16 if product_bits <= 8 else 0.31) * math.sqrt(k) * 2.0**-unit.align
    if unit.rounding == "RZ":
        return 1.45 * abs(expected_bias(unit, k))
    return (0.075 if product_bits == 16 else 0.150) * math.sqrt(k / unit.width) * 2.0**-unit.bits


def expected_bias(unit: Accumulator, k: int) -> float:
    """Mean of error·sign(C) over rms(C) for normal data: −0.1439·(K/L)·(1 − 2^(p−F))·2^-p for truncation, 0 for RNE."""
    if unit.rounding == "RNE":
        return 0.0
    lost = 1.0 if unit.align is None else 1 - 2.0 ** (unit.bits - unit.align)
    return -0.1439 * (k / unit.width) * max(lost, 0.0) * 2.0**-unit.bits


def expected_snr_db(nsr: float, fmt: str | Format) -> float:
    """SNR in dB of a unit's output: its own noise and one rounding to the output format, independent."""
    total = math.hypot(nsr, rounding_nsr(fmt))
    return math.inf if total == 0 else -20 * math.log10(total)


def expected_flips(nsr: float, fmt: str | Format) -> float:
    """Fraction of outputs that two results of normal data with relative difference `nsr` round to different codes.

    0.8·ν·2^p·G with G = 0.8·log2(1/(ν·2^p)) − 0.75, at most 1; holds for ν·2^p below about 0.2.
    """
    x = nsr * 2.0 ** get_format(fmt).fraction_bits
    if x <= 0:
        return 0.0
    return float(min(1.0, 0.8 * x * max(0.8 * math.log2(1 / x) - 0.75, 1.0)))
