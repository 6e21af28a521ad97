"""The metrics: one row each. This is the one place to add one.

A row's `value` takes the totals of a pass to a number, an index, or None where the metric has no meaning (empty arrays, no finite
pair, a zero reference for relative ones). No metric adds an epsilon to a denominator. Nothing here imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from accuracy_eval.metrics.totals import Totals, as_float, root

Value = float | int | list[int] | None
Better = Literal["lower", "higher", "info"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    definition  one sentence; a is actual, e expected, d = a - e; sums run over pairs of finite values
    unit        "" for plain ratios
    better      whether a smaller or a larger value is nearer to the expectation, or neither
    number      spreadsheet number format
    value       totals -> value; None for those of DERIVED, which take more than two arrays
    index       name of the metric that says where the value was found; "" where that is no single place
    aggregate   of a metric of whole rows, columns or tiles: what one of them is called
    factor      of a metric of a factor that many elements share: what the factor multiplies
    by_contract whether its limit follows from the contract: under a looser one the value is another
    """

    name: str
    definition: str
    unit: str
    better: Better
    number: str
    value: Callable[[Totals], Value] | None = None
    index: str = ""
    aggregate: str = ""
    factor: str = ""
    by_contract: bool = False


def _if_valid(value: Callable[[Totals], Value]) -> Callable[[Totals], Value]:
    return lambda t: value(t) if t.valid else None


def _quantile(name: str) -> Callable[[Totals], Value]:
    return lambda t: t.ulp_quantiles.get(name)


SMALL, PLAIN, COUNT, PERCENT, DECIBEL, ULP, TEXT = "0.00E+00", "0.000000", "#,##0", "0.0000%", "0.00", "#,##0.00", "@"
_QUANTILE = (
    "{} of |ulp error|: exact to 65536 between codes; beyond that and for real values rounded up by at most 2^-10 of itself "
    "(2^-30 if that is more); beyond 2^64 (real: 2^83) the maximum"
)


def _aggregate(name: str, what: str, value: Callable[[Totals], Value]) -> Metric:
    definition = (
        f"largest root mean square over a {what} of the distance from e to the reals that round to a's code, each over the element's "
        "typical budget; of 32 finite elements and more"
    )
    return Metric(name, definition, "budgets", "lower", "0.00", value, index=f"{name}_index", aggregate=what, by_contract=True)


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("rel_fro", "‖d‖/‖e‖; 0 for equal arrays, none where e is zero and a is not", "", "lower", SMALL, lambda t: t.rel_fro),
        Metric("max_abs", "max |d|", "value", "lower", SMALL, _if_valid(lambda t: t.max_abs), index="max_abs_index"),
        Metric("max_abs_index", "where |d| is largest", "index", "info", TEXT, lambda t: t.index(t.max_abs_at)),
        Metric("rmse", "√(Σd²/n)", "value", "lower", SMALL, _if_valid(lambda t: root(t.dd / t.valid))),
        Metric("mse", "Σd²/n", "value²", "lower", SMALL, _if_valid(lambda t: as_float(t.dd / t.valid))),
        Metric(
            "cosine", "⟨a,e⟩/(‖a‖·‖e‖) within [-1, 1]; 1 for equal arrays, 0 if only one of them is zero", "", "higher", PLAIN,
            lambda t: t.cosine,
        ),
        Metric("snr_db", "20·log10(‖e‖/‖d‖); +inf for equal arrays, none where e is zero and a is not", "dB", "higher", DECIBEL,
               lambda t: t.snr_db),
        Metric("sym_diff", "1 - 2⟨a,e⟩/(‖a‖²+‖e‖²) = ‖d‖²/(‖a‖²+‖e‖²)", "", "lower", SMALL, lambda t: t.sym_diff),
        Metric("max_scaled", "max |d|/max(1,|e|)", "", "lower", SMALL, _if_valid(lambda t: t.max_scaled)),
        Metric("max_rel", "max |d|/|e| over e ≠ 0, to 2^-50 of itself", "", "lower", SMALL, lambda t: t.max_rel, index="max_rel_index"),
        Metric("max_rel_index", "where |d|/|e| is largest", "index", "info", TEXT, lambda t: t.index(t.max_rel_at)),
        Metric("nonzero_where_expected_zero", "elements with e = 0 and a ≠ 0", "elements", "lower", COUNT, lambda t: t.nonzero_at_zero),
        Metric("zero_reference", "1 if every finite expected value is zero", "", "info", COUNT, _if_valid(lambda t: int(t.ee == 0))),
        Metric("ulp_max", "largest |ulp error|: code steps between codes of a format, else |d| in ulps of the actual's format at e",
               "ulp", "lower", ULP, lambda t: t.ulp_max, index="ulp_max_index"),
        Metric("ulp_max_index", "where |ulp error| is largest", "index", "info", TEXT, lambda t: t.index(t.ulp_max_at)),
        Metric("ulp_mean", "mean |ulp error|", "ulp", "lower", ULP, lambda t: t.ulp_mean),
        Metric("ulp_p50", _QUANTILE.format("median"), "ulp", "lower", ULP, _quantile("ulp_p50")),
        Metric("ulp_p99", _QUANTILE.format("99 % quantile"), "ulp", "lower", ULP, _quantile("ulp_p99")),
        Metric("ulp_p999", _QUANTILE.format("99.9 % quantile"), "ulp", "lower", ULP, _quantile("ulp_p999")),
        Metric("bias_ulp", "mean signed ulp error", "ulp", "info", ULP, lambda t: t.bias_ulp),
        Metric("bias_sigma", "mean(d·sgn e)/std(d); none if d is the same everywhere", "std", "info", PLAIN, lambda t: t.bias_sigma),
        Metric("mismatch_count", "elements whose code is not the expected (rounded) one; NaN equals NaN, -0 is not +0", "elements", "lower",
               COUNT, lambda t: t.mismatches),
        Metric("value_mismatch_count", "mismatch_count without zeros of the wrong sign", "elements", "lower", COUNT,
               lambda t: t.mismatches - t.zero_sign),
        Metric("mismatch_fraction", "mismatch_count/n", "", "lower", PERCENT, lambda t: t.mismatches / t.n if t.n else None),
        Metric("flips_up", "elements above the expected (rounded) value", "elements", "info", COUNT, lambda t: t.up),
        Metric("flips_down", "elements below the expected (rounded) value", "elements", "info", COUNT, lambda t: t.down),
        Metric("zero_sign_mismatch", "zeros of the wrong sign (part of mismatch_count)", "elements", "lower", COUNT, lambda t: t.zero_sign),
        Metric("nonfinite_mismatch", "elements whose class (NaN, +Inf, -Inf, finite) is not the expected one", "elements", "lower", COUNT,
               lambda t: t.nonfinite),
        Metric("gain", "⟨a,e⟩/⟨e,e⟩: the scale that fits a best to e", "", "info", PLAIN, lambda t: t.gain),
        Metric("gain_se", "standard error of gain from its residual", "", "info", SMALL, lambda t: t.gain_se),
        Metric("inner_err_max", "max distance from e to the reals that round to a's code; 0 where a is e rounded", "value", "lower",
               SMALL, lambda t: t.inner_max, index="inner_err_index"),
        Metric("inner_err_index", "where that distance is largest", "index", "info", TEXT, lambda t: t.index(t.inner_max_at)),
        Metric("budget_max", "max of that distance (between codes: of |d|) over the element's budget", "budgets", "lower", "0.00",
               lambda t: t.budget_max, index="budget_max_index", by_contract=True),
        Metric("budget_max_index", "where the budget is used most", "index", "info", TEXT, lambda t: t.index(t.budget_max_at)),
        Metric("over_budget", "elements beyond their budget", "elements", "lower", COUNT, lambda t: t.over_budget),
        _aggregate("row_budget", "row", lambda t: t.uses.row and t.uses.row[1]),
        Metric("row_budget_index", "that row", "index", "info", COUNT, lambda t: t.uses.row and t.uses.row[0]),
        _aggregate("col_budget", "column", lambda t: t.uses.column and t.uses.column[1]),
        Metric("col_budget_index", "that column", "index", "info", COUNT, lambda t: t.uses.column and t.uses.column[0]),
        _aggregate("tile_budget", "128×128 tile", lambda t: t.uses.tile and t.uses.tile[1]),
        Metric("tile_budget_index", "its row and column, in tiles", "index", "info", TEXT, lambda t: t.uses.tile and list(t.uses.tile[0])),
        Metric("worst_row_nsr", "largest ‖d‖/‖e‖ of a row", "", "lower", SMALL, lambda t: t.worst_row and t.worst_row[1]),
        Metric("worst_row", "that row", "index", "info", COUNT, lambda t: t.worst_row and t.worst_row[0]),
        Metric("worst_col_nsr", "largest ‖d‖/‖e‖ of a column", "", "lower", SMALL, lambda t: t.worst_col and t.worst_col[1]),
        Metric("worst_col", "that column", "index", "info", COUNT, lambda t: t.worst_col and t.worst_col[0]),
        Metric("worst_tile_nsr", "largest ‖d‖/‖e‖ of a 128×128 tile", "", "lower", SMALL, lambda t: t.worst_tile and t.worst_tile[1]),
        Metric("worst_tile", "its row and column, in tiles", "index", "info", TEXT, lambda t: t.worst_tile and list(t.worst_tile[0])),
        Metric("count", "elements", "elements", "info", COUNT, lambda t: t.n),
        Metric("finite_pairs", "elements finite on both sides", "elements", "info", COUNT, lambda t: t.valid),
    )
}  # fmt: skip


# metrics that take more than a tensor and its expectation: operands, also before they were quantised, several outputs of one side, ranks
DERIVED: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("total_snr_db", "snr_db against the result of the unquantised operands", "dB", "higher", DECIBEL),
        Metric("ideal_snr_db", "total_snr_db of the ideal result: ideal quantiser, exact product, one rounding of the output", "dB",
               "higher", DECIBEL),
        Metric("excess_db", "noise beyond the ideal result's and what the contract's arithmetic may add (docs/gates.md)", "dB", "lower",
               DECIBEL, by_contract=True),
        Metric("excess_row_db", "largest excess_db of a row", "dB", "lower", DECIBEL, by_contract=True),
        Metric("excess_row", "that row", "index", "info", COUNT),
        Metric("scale_mismatch_count", "scale factors whose code is not the recipe's", "scales", "lower", COUNT),
        Metric("conversion_mismatch_count", "element codes that are not the correctly rounded ones under the scales they stand with",
               "elements", "lower", COUNT),
        Metric("rank_mismatch_count", "elements that some rank holds otherwise than rank 0, where a collective leaves all of them alike",
               "elements", "lower", COUNT),
        Metric("values_factor", "largest |f - 1| of a head over what the contract allows, f the factor of V that fits the output best", "",
               "lower", "0.00", index="values_factor_index", factor="V"),
        Metric("values_factor_index", "that head's batch and number", "index", "info", TEXT),
        Metric("scores_factor", "the same of the factor of the scores", "", "lower", "0.00", index="scores_factor_index",
               factor="the scores"),
        Metric("scores_factor_index", "that head's batch and number", "index", "info", TEXT),
        Metric("weights_factor", "|f - 1| over what the contract allows, f the factor of e^(x - L) that fits a 16-bit gradient best", "",
               "lower", "0.00", factor="all weights"),
        Metric("smoothing_factor", "the same of the factor of the label smoothing in it", "", "lower", "0.00",
               factor="the label smoothing"),
        Metric("rounding_bias", "code steps by which 16-bit elements lie further from zero than the rounded reference, or nearer, in the "
               "mean, less eight standard errors of it", "ulp", "lower", "0.00"),
        Metric("saturated_actual", "elements at the largest magnitude their format has", "elements", "info", COUNT),
        Metric("saturated_expected", "elements that a correct quantiser puts there", "elements", "info", COUNT),
    )
}  # fmt: skip
KNOWN: dict[str, Metric] = {**METRICS, **DERIVED}
AGGREGATES = tuple(m.name for m in METRICS.values() if m.aggregate)  # of rows, columns, tiles, in this order
OF_MANY = frozenset(m.name for m in KNOWN.values() if m.aggregate or m.factor)  # metrics that no single element breaks


def allclose_name(rtol: float, atol: float) -> str:
    """Key under which the metrics hold the number of elements outside |d| <= atol + rtol·|e|."""
    return f"allclose_violations[rtol={rtol:g},atol={atol:g}]"
