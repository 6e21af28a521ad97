"""Joining what units of the walk found: sums without overflow or loss, moments, records and norms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.metrics import slots as k
from accuracy_eval.metrics.measured import NoiseMap, Values

_BUCKET_EXPONENT = (0, -600, 600)  # of the middle, small and big bucket, for sums of d; twice that for sums of products


def new_records() -> tuple[Values, NDArray[np.int64]]:
    records = np.zeros(k.M_COUNT)
    records[[k.M_MIN_A, k.M_MIN_E]] = np.inf
    records[[k.M_MAX_A, k.M_MAX_E]] = -np.inf
    return records, np.full(k.M_COUNT, -1, np.int64)


def added(parts: list[Values]) -> Values:
    """Sums of all parts, each bucket added with one rounding; shape of one part, low words 0."""
    out = np.zeros_like(parts[0])
    if len(parts) == 1:  # two words a bucket: their sum is rounded once
        high, low = parts[0][..., 0], parts[0][..., 1]
        with np.errstate(invalid="ignore"):
            out[..., 0] = np.where(np.isfinite(high) & np.isfinite(low), high + low, high)
        return out
    stacked = np.stack(parts)
    for q in range(k.S_COUNT):
        for b in range(3):
            terms = stacked[:, q, b, :].ravel()
            # an ulp error beyond float64 leaves an infinite high word and a meaningless low one
            out[q, b, 0] = math.fsum(terms) if np.isfinite(terms).all() else stacked[:, q, b, 0].sum()
    return out


def joined(buckets: Values, power: int) -> Fraction:
    """Σ of the three buckets of sums of d (power 1) or of products (power 2)."""
    if not buckets[1:].any():  # ordinary magnitudes
        return Fraction(float(buckets[0]))
    total = Fraction(0)
    for value, exponent in zip(buckets, _BUCKET_EXPONENT, strict=True):
        if value:
            total += Fraction(float(value)) * Fraction(2) ** (exponent * power)
    return total


def merge_moments(into: Values, part: Values) -> None:
    """(count, mean, Σ(d-mean)²) of a part into that of the whole."""
    n = into[0] + part[0]
    if part[0] == 0:
        return
    delta = part[1] - into[1]
    into[2] += part[2] + delta * delta * (into[0] * part[0] / n)
    into[1] += delta * (part[0] / n)
    into[0] = n


def spread(moments: Values) -> Fraction:
    """Σ(d - mean)² over all buckets, each of which holds its own scale."""
    if not moments[1:].any():  # ordinary magnitudes: one bucket holds them all
        return Fraction(float(moments[0, 2])) if moments[0, 0] else Fraction(0)
    n = Fraction(float(moments[:, 0].sum()))
    if n == 0:
        return Fraction(0)
    scale = [Fraction(2) ** e for e in _BUCKET_EXPONENT]
    means = [Fraction(float(m)) * s for m, s in zip(moments[:, 1], scale, strict=True)]
    counts = [Fraction(float(c)) for c in moments[:, 0]]
    mean = sum((c * m for c, m in zip(counts, means, strict=True)), Fraction(0)) / n
    within = sum((Fraction(float(v)) * s * s for v, s in zip(moments[:, 2], scale, strict=True)), Fraction(0))
    return within + sum((c * (m - mean) ** 2 for c, m in zip(counts, means, strict=True)), Fraction(0))


def better(i: int, records: Values, places: NDArray[np.int64], value: float, place: int) -> None:
    """Take a unit's record if it beats the one held: larger, smaller for minima, first for places alone."""
    if i in (k.M_NAN_A, k.M_NAN_E, k.M_INF_A, k.M_INF_E):
        if place >= 0 and (places[i] < 0 or place < places[i]):
            places[i] = place
        return
    smaller = i in (k.M_MIN_A, k.M_MIN_E)
    ahead = value < records[i] if smaller else value > records[i]
    if ahead or (value == records[i] and 0 <= place < places[i]):
        records[i], places[i] = value, place


def noise(parts: Values | None) -> NoiseMap | None:
    """Norms from sums of squares in three buckets."""
    if parts is None:
        return None

    with np.errstate(all="ignore"):
        (e, e_exponent), (r, r_exponent) = _norm(parts[k.B_DD : k.B_DD + 3]), _norm(parts[k.B_EE : k.B_EE + 3])
        ratio = np.ldexp(e / r, e_exponent - r_exponent)
        return NoiseMap(
            error=np.ldexp(e, e_exponent),
            reference=np.ldexp(r, r_exponent),
            nsr=np.where(e == 0, 0.0, np.where(r == 0, np.inf, ratio)),
            mismatches=parts[k.B_MIS].astype(np.int64),
            max_abs=parts[k.B_MAX].copy() if len(parts) > k.B_MAX else None,
        )


def _norm(buckets: Values) -> tuple[Values, NDArray[np.int64]]:
    """(mantissa, exponent) of the square root of three buckets of squares: the norm is mantissa·2^exponent."""
    if not buckets[1:].any():  # ordinary magnitudes: nothing near overflow or underflow
        return np.sqrt(buckets[0]), np.zeros(1, np.int64)
    middle, small, big = np.sqrt(buckets)
    mantissa = np.where(big > 0, np.hypot(big, middle * 2.0**-600), np.where(middle > 0, np.hypot(middle, small * 2.0**-600), small))
    return mantissa, np.where(big > 0, 600, np.where(middle > 0, 0, -600))


def worst_of(noise: NoiseMap | None) -> tuple[int, float] | None:
    """(flat index, NSR) of the noisiest part; the first of equals."""
    if noise is None or not noise.error.size:
        return None
    nsr = noise.nsr.ravel()
    at = int(np.argmax(nsr))
    return at, float(nsr[at])
