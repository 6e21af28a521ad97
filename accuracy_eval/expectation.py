"""What a healthy unit is expected to show on normal data, and the worst case of textbooks: reported beside what was seen, never gated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from accuracy_eval.contracts import Accumulator, Contract, parse_contract
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import Format, get_format

SHORT_PARTS = 0.56  # parts of four steps begin at zero: 1.24e-4 for 128 products of 14 bits, whatever K is (simulated, 512 to 16384)


def gamma(k: int, unit: float) -> float:
    """γ_K = K·u/(1 − K·u): |error| ≤ γ_K·(|A||B|) in any order of additions with unit roundoff u. Inf once K·u ≥ 1."""
    return k * unit / (1 - k * unit) if k * unit < 1 else math.inf


def probable_gamma(k: int, unit: float, spread: float = 6.0) -> float:
    """The same with spread·sqrt(K) for K: exceeded with probability 2·exp(−spread²/2) under mean-independent rounding errors.

    Not valid for truncating units. Source: Higham and Mary 2019, theorem 2.4.
    """
    return math.expm1(spread * math.sqrt(k) * unit + k * unit * unit / (1 - unit))


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
    return -0.1439 * (k / unit.width) * lost * 2.0**-unit.bits if lost > 0 else 0.0


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


def expected_of_normal_data(problem: Gemm, contract: str, fmt: str | Format) -> dict[str, tuple[float, float]]:
    """(least, largest) snr_db, bias_sigma and mismatch_fraction of a product of normal operands, over the accumulators a contract allows.

    Empty where nothing is known: exact contracts, partial sums of 16 bits, C or bias added to the product.
    """
    promise = parse_contract(contract)
    if not promise.accumulators or promise.partial or problem.beta != 0 or problem.bias_values is not None:
        return {}
    found = [_shown(promise, a, problem, fmt) for a in promise.accumulators]
    names = [name for name in found[0] if all(name in f for f in found)]
    return {name: (min(f[name] for f in found), max(f[name] for f in found)) for name in names}


def _shown(promise: Contract, unit: Accumulator, problem: Gemm, fmt: str | Format) -> dict[str, float]:
    bits = problem.left.format.fraction_bits + problem.right.format.fraction_bits + 2
    k = min(promise.part or problem.k, problem.k)
    nsr, bias = expected_nsr(unit, k, product_bits=bits), expected_bias(unit, k)
    if promise.part:
        nsr *= SHORT_PARTS
    if promise.operand_bits is not None:
        nsr = math.hypot(nsr, math.sqrt(2) * 0.4253 * 2.0 ** -(promise.operand_bits + 1))
    for more in promise.promoted[:1]:
        parts = -(-problem.k // k)
        nsr, bias = math.hypot(nsr, expected_nsr(more, parts, product_bits=48)), bias + expected_bias(more, parts)
    spread = math.sqrt(max(nsr * nsr - bias * bias, 0.0) + rounding_nsr(fmt) ** 2)
    out = {"snr_db": expected_snr_db(nsr, fmt), "bias_sigma": bias / spread}
    if nsr * 2.0 ** get_format(fmt).fraction_bits < 0.2:  # as far as the formula holds
        out["mismatch_fraction"] = expected_flips(nsr, fmt)
    return out


def share_of_bounds(problem: Gemm, contract: str, row: int, column: int, error: float) -> dict[str, float]:
    """An element's error over the bounds of its |A||B|: "worst_case" with γ_K, "probable" with six standard deviations of sqrt(K).

    Both vacuous for long contractions (a TF32 product stays inside float32's γ_K from K of about 2048): reported, never gated.
    """
    accumulators = parse_contract(contract).accumulators
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.abs(problem.a_rows([row])[0]) @ np.abs(problem.b_columns([column])[:, 0])) * abs(problem.scalars[0])
    if not accumulators or not 0 < size < math.inf:
        return {}
    unit = max(2.0**-a.bits * (1.0 if a.rounding == "RZ" else 0.5) for a in accumulators)
    return {"worst_case": error / (gamma(problem.k, unit) * size), "probable": error / (probable_gamma(problem.k, unit) * size)}


def expectation_of(problem: Gemm | None, contract: str, fmt: str | Format, metrics: Mapping[str, Any], *, normal: bool) -> dict[str, Any]:
    """What a report shows beside what was measured: expected ranges (normal operands only), and the worst error's share of its bounds.

    Keys: each metric of `expected_of_normal_data` -> [least, largest, seen]; "bounds" -> `share_of_bounds` of the element of the
    largest error.
    """
    if problem is None or not contract:
        return {}
    ranges = expected_of_normal_data(problem, contract, fmt) if normal else {}
    out: dict[str, Any] = {name: [*limits, metrics.get(name)] for name, limits in ranges.items()}
    index, error = metrics.get("inner_err_index"), metrics.get("inner_err_max")
    if isinstance(index, list) and len(index) == 2 and error:
        row, column = index
        out["bounds"] = share_of_bounds(problem, contract, row, column, error)
    return out
