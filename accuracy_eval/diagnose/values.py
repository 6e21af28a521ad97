"""Rules about what happened to the values: a gain, another encoding, overflow, flushed subnormals, a cast that truncates."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.special_functions import FUNCTIONS
from accuracy_eval.diagnose.context import Finding, Limits, Look
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FAMILIES, Values, decode, get_format, is_nan, ulp
from accuracy_eval.messages import number, numbers_apart
from accuracy_eval.quantize import RECIPES, element_format, quantize

ENCODED = ("fp8_e4m3", "fp8_e5m2")  # families with two encodings
FACTORS = ("alpha", "result_scale")  # options that multiply the whole output
SUMS = ("", "gemm", "batched_gemm", "grouped_gemm", "gemm_epilogue", "sum", "mean")  # ops whose elements are sums; "": it is not known
FEWEST = 8  # elements of one magnitude that say whether it is off by a factor
UNKNOWN = 1 << 20  # a power of two no number has: of a magnitude that is no evidence
BUDGETS = 4.0  # that what is left of an error may use, once a gain is taken out
REST = 0.03  # of the error's energy may remain once a gain is taken out: a lost part of K leaves more than half
# where an op's values lie; a correctly rounded result may touch the ends
RANGES: dict[str, tuple[float, float]] = {
    **{f.name: f.values for f in FUNCTIONS.values() if f.values != (-math.inf, math.inf)},
    "softmax": (0.0, 1.0),
    "relu": (0.0, math.inf),
}


def smallest_gain(look: Look) -> float:
    """|gain - 1| below which nothing is said: 4 × the contract's bias, and what a truncating cast alone would give (0.35 eps)."""
    eps = look.fmt.eps if look.fmt.kind == "float" else 0.0
    return max(4 * look.bias(look.context.contraction), eps / 2 if look.fmt.bits <= 16 else 4 * eps)


def gain(look: Look) -> Finding | None:
    m, nonzero = look.metrics, look.m.classes.expected.finite - look.m.classes.expected.zero
    g, se, error = m.get("gain"), m.get("gain_se"), m.get("rel_fro")
    if g is None or se is None or not error or min(nonzero, m["finite_pairs"]) < 8:
        return None
    if abs(g - 1) < smallest_gain(look) or min(abs(g - 1), abs(g)) <= 8 * se:
        return None
    if look.fmt.kind == "int" and _truncating_cast(look) is not None:  # integers that are cut look like a factor just below 1
        return None
    residual = se * math.sqrt(m["finite_pairs"] - 1)
    if residual > max(math.sqrt(REST) * min(error, abs(g)), 1.5 * look.rounding * abs(g)) or not _everywhere(look, abs(g - 1), abs(g)):
        return None
    if not _of_every_size(look, g) or not _within_budgets(look, g):
        return None
    exponent = round(math.log2(abs(g))) if g else 0
    power = g > 0 and exponent != 0 and abs(g / 2.0**exponent - 1) <= min(8 * se / g, 0.01) + look.fmt.eps / 16
    said = f", {2.0**exponent:g} exactly" if power else ", no power of two"
    suspect = _like_an_option(look, g, se) or (_like_an_encoding(look, exponent) if power else "")
    return Finding({"value": g, "power_of_two": power}, {"power": said + suspect})


def _like_an_option(look: Look, g: float, se: float) -> str:
    """An option that multiplies the whole output, where the factor is what leaving it out would give, or dividing by it."""
    options = look.context.options
    for name in () if options.get("beta") or options.get("bias") else FACTORS:
        factor = options.get(name)
        if not isinstance(factor, float) or factor in (0.0, 1.0):
            continue
        for expected, what in ((1 / factor, "not applied"), (factor**-2, "taken as a divisor")):
            if abs(g / expected - 1) <= min(8 * se / abs(g), 0.01) + look.fmt.eps / 16:
                return f": as if {name} {factor:g} were {what}"
    return ""


def _like_an_encoding(look: Look, exponent: int) -> str:
    """What to suspect of a factor of 2 per fp8 operand where no byte tells a wrong encoding from a wrong scale."""
    read = sum(get_format(look.context.inputs[n].format).family in ENCODED for n in ("a", "b") if n in look.context.inputs)
    if look.context.op != "gemm" or not 1 <= abs(exponent) <= read:
        return ""
    which = "an operand was" if abs(exponent) == 1 else "both operands were"
    return f": as if {which} read in the other fp8 encoding (OCP against FNUZ), or a scale were off by that"


def _everywhere(look: Look, shift: float, size: float) -> bool:
    """Whether nine in ten rows, and columns, are off by that factor: a fit is ruled by the few largest elements."""
    for noise, width in ((look.m.rows, look.cols), (look.m.cols, look.rows)):
        if noise is None:
            continue
        counted = noise.reference > 0
        rounding = look.fmt.eps if width < 8 and look.fmt.kind == "float" else 3 * look.rounding
        allowed = 0.2 * shift + size * rounding
        near = (np.abs(noise.error - shift * noise.reference) <= allowed * noise.reference) & (noise.error > shift * noise.reference / 2)
        if counted.any() and near[counted].mean() < 0.9:
            return False
    return True


def _within_budgets(look: Look, g: float) -> bool:
    """Whether nearly all wrong elements are within a few of their budgets of that factor, where budgets are known."""
    budget = look.context.budget
    if budget is None or look.exact or look.whole is None or budget.shape != look.wrong.shape:
        return True
    a, e = look.whole
    rounding = np.maximum(ulp(a, look.fmt), abs(g) * ulp(e, look.fmt))
    infinite = np.isinf(a) & (np.abs(g * e) >= look.fmt.max)
    return look.explained((np.abs(a - g * e) <= BUDGETS * (abs(g) * budget + rounding)) | infinite)


def _of_every_size(look: Look, g: float) -> bool:
    """Whether nine in ten of the magnitudes that are there are off by that factor: elements that are right speak against it, however few.

    The largest number of the format is no evidence: it stands for what was cut off there, and may itself be what is read as another.
    """
    if not look.open or not look.height:
        return True
    a, e = look.whole or (look.actual(0, look.height), look.expected(0, look.height))
    size = _sizes(look, e)
    with np.errstate(invalid="ignore", over="ignore"):
        top = (np.abs(look.rounded(e)) >= look.fmt.max) | (np.abs(g * e) >= look.fmt.max) | (size == UNKNOWN)
        seen = np.isfinite(a) & (e != 0) & np.isfinite(e) & ~top
        seen &= np.abs(g - 1) * np.abs(e) >= 2 * np.maximum(ulp(e, look.fmt), ulp(g * e, look.fmt))
    if not seen.any():
        return not (top & (e != 0) & np.isfinite(e)).any()
    share = (a[seen] - e[seen]) / ((g - 1) * e[seen])
    follows = []
    for s in np.unique(size[seen]):
        part = share[size[seen] == s]
        if len(part) >= FEWEST:
            middle = float(np.median(part))
            spread = float(np.median(np.abs(part - middle))) / 0.6745
            follows.append(abs(middle - 1) <= 0.25 + 4 * spread / math.sqrt(len(part)))
    return not follows or float(np.mean(follows)) >= 0.9


def _sizes(look: Look, e: Values) -> NDArray[np.int64]:
    """The magnitude of each expected element: its power of two; of the values of a quantiser that of its code, UNKNOWN for the largest."""
    c = look.context
    recipe, x = RECIPES.get(c.recipe), c.inputs.get("x")
    if c.op != "quantize" or c.output != "values" or recipe is None or x is None or recipe.hadamard or look.whole is None:
        return np.frexp(e)[1].astype(np.int64)
    element = element_format(recipe, c.out_format or None, encoding=c.encoding)
    held = np.abs(decode(quantize(x.codes, x.format, recipe, element=element).codes, element)).reshape(e.shape)
    return np.where(held >= recipe.largest(element), UNKNOWN, np.frexp(held)[1])


@cache
def readings(family: str) -> frozenset[tuple[str, str]]:
    """What each byte reads as in the OCP and the FNUZ encoding: pairs of hex floats, "nan" for NaN."""
    ocp, fnuz = (get_format(n) for n in FAMILIES[family])
    codes = np.arange(256, dtype=np.uint8)
    return frozenset((_text(x), _text(y)) for x, y in zip(decode(codes, ocp), decode(codes, fnuz), strict=True))


def _text(x: float) -> str:
    return "nan" if math.isnan(x) else float(x).hex() if x else "0"


def fp8_encoding(look: Look) -> Finding | None:
    """One byte read by two rules: finite values exactly a factor of 2 apart, and the NaN of one side a zero or a large value of the other.

    The factor alone is a gain: the bytes themselves (two formats of a family), or bytes that are NaN in one encoding only, in the
    output or in the operands, must speak as well.
    """
    m = look.metrics
    g, se = m.get("gain"), m.get("gain_se")
    if g is None or se is None or m["finite_pairs"] < 8:
        return None
    which = _operands_read_otherwise(look)
    if which is not None:
        return Finding({"gain": 2.0 ** round(math.log2(g))}, {"what": which})
    if g not in (0.5, 2.0) or se != 0:
        return None
    two = (look.fmt.name, look.m.expected_format)
    same_bytes = two[0] != two[1] and look.fmt.family in ENCODED and get_format(two[1]).family == look.fmt.family
    if same_bytes:
        return Finding({"gain": g}, {"what": "the output was"})
    if not look.metrics["nonfinite_mismatch"]:
        return None
    pairs = _pairs(look)
    for family in ENCODED:
        if pairs is not None and all((p if g == 2.0 else p[::-1]) in readings(family) for p in pairs):
            return Finding({"gain": g}, {"what": f"{family} values were"})
    return None


def _operands_read_otherwise(look: Look) -> str | None:
    """The fp8 operands of a product whose bytes that are NaN in the other encoding alone made NaN of just their rows or columns."""
    c, wrong = look.context, look.m.classes.nan_actual_only
    if c.op != "gemm" or not wrong or c.direction == "bwd" or not {"a", "b"} <= set(c.inputs):
        return None
    layout = c.layout or "nn"
    gone = []  # per operand: how many of its rows or columns would be NaN
    for name, axis, size in (("a", 1 if layout[0] == "n" else 0, look.rows), ("b", 0 if layout[1] == "n" else 1, look.cols)):
        x = c.inputs[name]
        other = [f for f in FAMILIES[get_format(x.format).family] if f != x.format]
        if not other or get_format(x.format).family not in ENCODED or x.codes.ndim != 2:
            gone.append(0)
            continue
        lines = int(is_nan(x.codes, other[0]).any(axis=axis).sum())
        gone.append(lines if lines < size else 0)
    total, g = look.rows * look.cols, look.metrics["gain"]
    factor = 2.0 ** round(math.log2(g)) if g > 0 else 0.0
    if not factor or abs(g / factor - 1) > look.fmt.eps + 8 * look.metrics["gain_se"] / g or look.metrics["gain_se"] > g / 64:
        return None
    for which, (r, k) in {"operand a was": (gone[0], 0), "operand b was": (0, gone[1]), "both operands were": (gone[0], gone[1])}.items():
        both = which.startswith("both")
        if (r or k) and factor in ((0.25, 4.0) if both else (0.5, 2.0)) and total - (look.rows - r) * (look.cols - k) == wrong:
            return which
    return None


def _pairs(look: Look) -> list[tuple[str, str]] | None:
    """Different (actual, expected) pairs of a part that holds a pair of classes; None where there are too many for an 8-bit format."""
    if not look.open or not look.height:
        return None
    first = look.m.classes.first_nan_actual_only
    begin = 0 if first is None or look.whole else max(0, min(first // look.cols, look.rows - look.height))
    a, e = look.whole or (look.actual(begin, begin + look.height), look.expected(begin, begin + look.height))
    mark = 1e300  # for NaN, which no two of are equal; fp8 values end long before
    either = np.isfinite(a) | np.isfinite(e)
    pairs = np.unique(np.stack([np.where(np.isnan(x), mark, x)[either][: 1 << 16] for x in (a, e)], axis=1), axis=0)
    if len(pairs) > 512:
        return None
    return [(_text(math.nan if x == mark else x), _text(math.nan if y == mark else y)) for x, y in pairs.tolist()]


def overflow_policy(look: Look) -> Finding | None:
    """Every element whose class differs is one that one side saturated and the other made NaN or Inf, and hardly any other is wrong."""
    differ = look.metrics["nonfinite_mismatch"]
    if not differ or look.whole is None:
        return None
    a, e = look.whole
    limit = _largest(look)
    at = (np.isfinite(a) != np.isfinite(e)) | (np.isnan(a) != np.isnan(e)) | (np.isinf(a) & np.isinf(e) & (a != e))
    if limit is None or int(at.sum()) != differ or not look.explained(at):
        return None
    x, y = a[at], e[at]
    saturated = np.where(np.isfinite(x), x, np.where(np.isfinite(y), y, limit))
    if not (np.abs(saturated) == limit).all() or not (_same_side(x, y)).all():
        return None
    source = look.context.inputs.get("x")
    if source is not None and source.codes.size == a.size:
        values = np.abs(decode(source.codes.reshape(a.shape), source.format)[at])
        if not ((values > limit) | np.isnan(values)).all():
            return None
    if look.context.op != "cast" and not (np.isfinite(x) | np.isfinite(y)).any():
        return None  # NaN against Inf in a sum: Inf − Inf came about on the way
    if look.context.op != "cast" and (np.isinf(a) & (a == e)).any():
        return None  # they agree elsewhere: a sum at the edge of the range, rounded either way
    said = ("saturates", "makes NaN or Inf") if np.isfinite(x).mean() > 0.5 else ("makes NaN or Inf", "saturates")
    if not np.isfinite(x).any() and not np.isfinite(y).any():
        said = ("makes " + ("NaN" if np.isnan(x).any() else "Inf"), "makes " + ("NaN" if np.isnan(y).any() else "Inf"))
    return Finding({"count": differ}, {"total": str(look.count), "limit": number(limit), "here": said[0], "there": said[1]})


def _same_side(x: Values, y: Values) -> NDArray[np.bool_]:
    return np.asarray(np.isnan(x) | np.isnan(y) | (np.sign(x) == np.sign(y)))


def _largest(look: Look) -> float | None:
    """Largest finite value of the format that overflows: the op's target, else the output's own."""
    c = look.context
    for name in (str(c.options.get("format", "")), c.out_format, look.fmt.name):
        try:
            fmt = get_format(name) if name else None
        except UsageError:
            continue
        if fmt is not None and fmt.kind == "float":
            return fmt.max
    return None


def flush_to_zero(look: Look) -> Finding | None:
    """Zeros where expected values are subnormal, and no subnormal anywhere in the output."""
    classes, fmt = look.m.classes, look.fmt
    if classes.expected.subnormal < 1 or classes.actual.subnormal or fmt.kind != "float" or look.whole is None:
        return None
    a, e = look.whole
    small = np.abs(look.rounded(e))
    at = (small > 0) & (small < fmt.smallest_normal)
    count = int(at.sum())
    largest = float(small[at].max(initial=0.0))
    if not count or (a[at] != 0).any() or (largest < 4 * fmt.smallest_subnormal and count < 8) or not look.explained(at):
        return None
    return Finding(
        {"count": count}, {"what": f"{count} of {look.count} expected values are subnormal in {fmt.name}; the output has zero there"}
    )


def range_violation(look: Look) -> Finding | None:
    bounds = RANGES.get(look.context.op) if look.context.direction == "fwd" else None
    r = look.m.actual_range
    if bounds is None or r.low is None or r.high is None or look.context.actual is None or (bounds[0] <= r.low and r.high <= bounds[1]):
        return None
    step = max(1, Limits.elements // max(look.cols, 1))
    for first in range(0, look.rows, step):
        values = look.actual(first, min(first + step, look.rows))
        out = np.flatnonzero((values < bounds[0]) | ((values > bounds[1]) & np.isfinite(values)))
        if out.size:
            value = float(values.flat[out[0]])
            shown, _ = numbers_apart(value, bounds[0] if value < bounds[0] else bounds[1])
            words = {"value": shown, "op": look.context.op, "low": number(bounds[0]), "high": number(bounds[1])}
            return Finding({"index": look.index(first * look.cols + int(out[0]))}, words)
    return None


def tail_flush(look: Look) -> Finding | None:
    """An elementwise function that is zero on one side of some argument although its value there is a normal number."""
    c = look.context
    x = c.inputs.get("x")
    if x is None or set(c.inputs) != {"x"} or not c.op or look.whole is None or x.codes.size != look.count or c.op in ("quantize", "gemm"):
        return None
    a, e = (side.ravel() for side in look.whole)
    values = decode(x.codes.ravel(), x.format)
    with np.errstate(invalid="ignore"):
        lost = (a == 0) & (np.abs(e) >= look.fmt.smallest_normal)
    if lost.sum() < 8 or not look.explained((a == 0).reshape(look.rows, look.cols)):
        return None
    low, high = float(values[lost].min()), float(values[lost].max())
    kept = (a != 0) & np.isfinite(values)
    if not kept.any():
        return None
    if values[kept].min() > high:
        return Finding({"from_value": high}, {"side": "below or at", "op": c.op})
    if values[kept].max() < low:
        return Finding({"from_value": low}, {"side": "above or at", "op": c.op})
    return None


def truncation_bias(look: Look) -> Finding | None:
    """Errors pulled toward zero: a cast that truncates, or an adder that does, beyond what the contract allows.

    A part of K that is missing pulls toward zero as well, but then the pull (0.8 × NSR of the error's own size) is no larger than
    the error; a truncating adder's is 0.65 of its spread however small the error is. What is more than a sum (a norm, a softmax) may be
    pulled so by a wrong scale or mean.
    """
    m = look.metrics
    if m["finite_pairs"] < 256:
        return None
    cast = _truncating_cast(look)
    if cast is not None or m["nonfinite_mismatch"]:
        return cast
    pull, error = m.get("bias_sigma"), m.get("rel_fro")
    if look.context.op not in SUMS or pull is None or not error or not look.over_budget or look.exact or m["finite_pairs"] < 1024:
        return None
    if not -1.0 <= pull <= -0.4 or error > 0.05 or -pull < 4 * error:
        return None
    return Finding({"bias_sigma": pull}, {"what": f"the mean error toward zero is {number(-pull, 3)} of its spread"})


def _truncating_cast(look: Look) -> Finding | None:
    """At least a fifth of the elements, of several magnitudes, one step nearer to zero than the rounded expectation, none further away."""
    if look.fmt.bits > 16 or not look.open or not look.height or (look.metrics["ulp_max"] or 0) > 1.001:
        return None
    a, e = look.whole or (look.actual(0, look.height), look.expected(0, look.height))
    r = look.rounded(e)
    both = np.isfinite(a) & np.isfinite(r)
    wrong = both & (a != r)
    inward = wrong & (np.abs(a) < np.abs(r))
    count, total = int(wrong.sum()), int(both.sum())
    if count < 64 or count < total / 5 or int(inward.sum()) < 0.995 * count:
        return None
    if np.ptp(np.abs(r[wrong])) == 0:  # one code that is wrong: the largest, as a rule
        return None
    return Finding({"bias_sigma": look.metrics.get("bias_sigma")}, {"what": f"{count} of {total} elements are one step too near to zero"})
