"""Probes: what ordinary matrix products say about the arithmetic behind them.

A device is a callable `matmul(a, b) -> d`: codes [m, k] and [n, k] of the operand format in, codes [m, n] of the output format out,
D = A·Bᵀ. Every question is one dot product: row r of A with row r of B, read at d[r, r]. As rows are independent, one product asks
all questions of a format at once; a second one asks what needs the first one's answers.

M is the operands' large power of two, so M² − M² cancels and leaves what survived beside it. Expected answers: `expectations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import (
    Codes,
    Format,
    Values,
    arithmetic_format,
    concrete,
    decode,
    decode_table,
    encode,
    get_format,
    is_nan,
    ordinals,
    round_to,
)

Matmul = Callable[[Codes, Codes], Codes]
Terms = dict[int, tuple[float, float]]  # k → the two factors there
Answer = int | float | str | bool | tuple[Any, ...] | None

LENGTH = 64  # contraction of the questions, the shortest that shows every block
BLOCK_POSITIONS = (1, 2, 3, 4, 8, 16, 32)
SMALLEST = {"float8_e4m3fn": -9, "float8_e4m3fnuz": -10, "float8_e5m2": -16, "float8_e5m2fnuz": -17}
MOST_BITS = 45  # alignment bits beyond which an accumulator counts as exact
LONG = 4096  # contraction of the question about float16 accumulation

PROBES: dict[str, str] = {
    "alignment_bits": "bits below the largest term of a block that survive (P1, terms at k = 0, 1, 2)",
    "alignment_bits_apart": "the same with the cancelling term behind the small one (P1, k = 0, 3, 2)",
    "survivors": "units left of K − 2 when M² stands at k = 0 and −M² at k = i (P2)",
    "rounding": "ulps kept of +1.5 and −1.5 ulp in a later block: truncation 1, to nearest 2 (P3)",
    "alignment_rounding": "units kept of +1.5 and −1.5 units of the last alignment bit: truncation ±1, floor 1 and −2 (P4)",
    "tiny_accumulator": "steps a product of 1 moves for an accumulator of ∓2^-40 (fp8 ∓2^-25, float64 ∓2^-80 of it) (P5)",
    "input_subnormals": "whether subnormal operands count (P6)",
    "output_subnormals": "whether subnormal results are kept (P7)",
    "operand_rounding": "float32 operands 1 + (6, 4, 12, 1)·2^-13 as the product sees them, in 2^-13 (P8)",
    "half_accumulation": "2048 plus 127 ones, one every 32 k: 2048 with a float16 accumulator (P9)",
    "fp8_encoding": "which encoding the bytes 0x80, 0x7F, 0x7E, 0x08 are read in (P10)",
    "infinity_minus_infinity": "class of Inf − Inf (P11)",
    "zero_times_infinity": "class of 0·Inf (P11)",
    "wide_exponents": "2^160 − 2^160: 0 where products may exceed float32 (P11)",
    "negative_zero": "sign of a sum of negative zeros (P11)",
    "nan_code": "code of a NaN result (P11)",
    "overflow": "class of 65536 in a float16 output (P12)",
    "integers_exact": "whether small integers multiply exactly, every element (P13)",
}
INFORMATION = ("nan_code",)  # payloads depend on operands and library: reported, not compared


@dataclass
class _Questions:
    """Dot products to ask, and where each probe's answers lie."""

    k: int
    terms: list[Terms] = field(default_factory=list)
    where: dict[str, list[int]] = field(default_factory=dict)

    def ask(self, probe: str, *terms: Terms) -> None:
        """Add dot products for a probe; those whose factors do not fit the contraction are the caller's to leave out."""
        at = self.where.setdefault(probe, [])
        for t in terms:
            at.append(len(self.terms))
            self.terms.append(t)

    def operands(self, fmt: Format) -> tuple[Codes, Codes]:
        """Codes [r, k] of both operands, r a multiple of 16. UsageError where a value is not one of the format."""
        rows = -(-max(len(self.terms), 1) // 16) * 16
        a, b = np.zeros((rows, self.k)), np.zeros((rows, self.k))
        for r, terms in enumerate(self.terms):
            for k, (x, y) in terms.items():
                a[r, k], b[r, k] = x, y
        codes = encode(a, fmt), encode(b, fmt)
        for values, c in zip((a, b), codes, strict=True):
            if not np.array_equal(decode(c, fmt), values, equal_nan=True):
                raise UsageError(f"a probe asks for a value that {fmt.name} does not have")
        return codes


def split(exponent: int) -> tuple[float, float]:
    """Two powers of two whose product is 2^exponent, as near to each other as may be."""
    return 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


def large(fmt: Format, out: Format) -> int:
    """log2 of M. M² stays within a float16 output, which may be the accumulator's format."""
    if out.name == "float16":
        return 7
    if fmt.name in SMALLEST and "e4m3" in fmt.name:
        return 8 if fmt.name == "float8_e4m3fn" else 7
    return 30 if fmt.name == "float64" else 15


def unit_exponent(fmt: Format, out: Format) -> int:
    """log2 of the unit u² that the tree probe counts: far enough below M² to be lost beside it."""
    return -16 if fmt.name in SMALLEST else (-14 if out.name == "float16" else 0)


def _static(fmt: Format, out: Format, k: int) -> _Questions:
    """All questions that need no other's answer."""
    q = _Questions(k)
    h = large(fmt, out)
    M, m = 2.0**h, 2 * h
    lowest = 2 * SMALLEST[fmt.name] if fmt.name in SMALLEST else (-48 if fmt.name == "float16" else m - MOST_BITS)
    lowest = max(lowest, -24) if out.name == "float16" else lowest
    for j in range(1, min(MOST_BITS, m - lowest) + 1):
        for probe, last in (("alignment_bits", 1), ("alignment_bits_apart", 3)):
            q.ask(probe, {0: (M, M), last: (M, -M), 2: split(m - j)})
    for i in range(1, k):
        q.ask("survivors", tree_row(fmt, out, k, 0, i))
    # a 16-bit output would round the answer away: a last product takes the large part off again, the rest is exact in any format
    for sign in (1.0, -1.0):
        x, y = split(_ulp_exponent(out) - 1)
        ending: Terms = {k - 1: (16.0, -16.0 * sign)} if narrow(out) else {}
        q.ask("rounding", {0: (16.0, 16.0 * sign), **dict.fromkeys((32, 33, 34), (x, y * sign)), **ending})
    q.ask("tiny_accumulator", *(_tiny(fmt, sign, k if narrow(out) else 0) for sign in (-1.0, 1.0)))
    q.ask("input_subnormals", _subnormal(fmt))
    deep = {"bfloat16": -140, "float32": -140, "tfloat32": -140, "float64": -1060}.get(fmt.name)
    if narrow(out):
        deep = -24 if out.name == fmt.name == "float16" else (-130 if out.name == fmt.name == "bfloat16" else None)
    if deep is not None:
        q.ask("output_subnormals", {0: split(deep)})
    if fmt.name == "float32":
        q.ask("operand_rounding", *({0: (1 + n * 2.0**-13, 1.0)} for n in (6, 4, 12, 1)))
    if fmt.has_inf:
        q.ask("infinity_minus_infinity", {0: (np.inf, 1.0), 1: (-np.inf, 1.0)})
        q.ask("zero_times_infinity", {0: (np.inf, 0.0)})
    if fmt.name in ("bfloat16", "float32", "tfloat32"):
        q.ask("wide_exponents", {0: (2.0**80, 2.0**80), 1: (2.0**80, -(2.0**80))})
    if fmt.has_negative_zero:
        q.ask("negative_zero", dict.fromkeys(range(k), (-0.0, 1.0)))
    if out.name == "float16" and fmt.name == "float16":
        q.ask("overflow", {0: (256.0, 256.0)})
    return q


def narrow(out: Format) -> bool:
    """Whether an output format is narrower than the accumulator it is made from."""
    return out.bits <= 16


def _ulp_exponent(out: Format) -> int:
    """log2 of an ulp of 2^8 in the accumulator: float64's for a float64 output, else float32's."""
    return 8 - arithmetic_format(out).fraction_bits


def tree_row(fmt: Format, out: Format, k: int, i: int, j: int) -> Terms:
    """M² at i, −M² at j, u² everywhere else: the result counts the units added after both have met."""
    M, (x, y) = 2.0 ** large(fmt, out), split(unit_exponent(fmt, out))
    return {kk: (M, M) if kk == i else ((M, -M) if kk == j else (x, y)) for kk in range(k)}


def _tiny(fmt: Format, sign: float, k: int) -> Terms:
    """An accumulator far below, then one product in a later block; k: taken off again by the last of k products (0: not)."""
    below, one = (-80 if fmt.name == "float64" else -40), 0
    if fmt.name in SMALLEST:
        below, one = 2 * SMALLEST[fmt.name], 2 * SMALLEST[fmt.name] + 25
    (x, y), (u, v) = split(below), split(one)
    return {0: (x, y * sign), 32: (u, v), **({k - 1: (u, -v)} if k else {})}


def _subnormal(fmt: Format) -> Terms:
    if fmt.name in ("bfloat16", "float32", "tfloat32"):
        return {0: (2.0**-130, 2.0**100)}
    if fmt.name == "float64":
        return {0: (2.0**-1040, 2.0**1000)}
    return {0: (fmt.smallest_subnormal, 1.0)}


def ask(matmul: Matmul, questions: _Questions, fmt: Format, *, repeats: int = 1) -> tuple[Codes, bool]:
    """Codes at the diagonal, and whether all repeats gave the same bytes."""
    a, b = questions.operands(fmt)
    results = [np.asarray(matmul(a, b)) for _ in range(max(repeats, 1))]
    for d in results:
        if d.shape != (a.shape[0], b.shape[0]):
            raise UsageError(f"matmul returned shape {d.shape} for operands {a.shape} and {b.shape}; expected {(a.shape[0], b.shape[0])}")
    same = all(np.array_equal(d, results[0]) for d in results[1:])
    return np.diagonal(results[0]).copy(), same


@dataclass(frozen=True)
class Answers:
    """What a device said about one format.

    answers    probe name → answer; None where the format cannot be asked
    survivors  of every i at the probe length (index 0 unused), and at each further length for i a power of two and K − 1
    """

    answers: dict[str, Answer]
    survivors: dict[int, dict[int, int]]
    deterministic: bool


def probe(
    matmul: Matmul, fmt: str | Format, out: str | Format, *, lengths: Sequence[int] = (), long: bool = True, repeats: int = 1
) -> Answers:
    """Ask a device everything about one operand format.

    out      format of the codes `matmul` returns; the questions suit float32 (float64 for float64 operands), float16 answers fewer
    lengths  further contractions at which the order is looked at, because libraries change kernels with the shape
    long     also ask at K = 4096 whether float16 products are accumulated in float16
    repeats  how often the first product is made, to compare bytes
    """
    f, o = get_format(fmt), get_format(out)
    q = _static(f, o, LENGTH)
    codes, deterministic = ask(matmul, q, f, repeats=repeats)
    answers: dict[str, Answer] = dict.fromkeys(PROBES)
    values = decode(codes, o)
    got = {name: values[at] for name, at in q.where.items()}
    raw = {name: codes[at] for name, at in q.where.items()}
    for name in ("alignment_bits", "alignment_bits_apart"):
        answers[name] = _largest(got[name])
    counts = {LENGTH: _counts(got["survivors"], f, o, range(1, LENGTH))}
    answers["survivors"] = tuple(counts[LENGTH][i] for i in BLOCK_POSITIONS)
    large_part = np.zeros(2) if narrow(o) else np.array([256.0, -256.0])
    answers["rounding"] = tuple(_number(x) for x in (got["rounding"] - large_part) / 2.0 ** _ulp_exponent(o))
    target = 2.0 ** (2 * SMALLEST[f.name] + 25) if f.name in SMALLEST else 1.0
    wide = arithmetic_format(o)
    home = int(ordinals(encode(np.array([target]), wide), wide)[0])
    moved = encode(got["tiny_accumulator"] + (target if narrow(o) else 0.0), wide)
    answers["tiny_accumulator"] = tuple(int(x) - home for x in ordinals(moved, wide))
    answers["input_subnormals"] = bool(got["input_subnormals"][0] != 0)
    if "output_subnormals" in got:
        answers["output_subnormals"] = bool(got["output_subnormals"][0] != 0)
    if "operand_rounding" in got:
        answers["operand_rounding"] = tuple(_number((x - 1) * 2.0**13) for x in got["operand_rounding"])
    for name in ("infinity_minus_infinity", "zero_times_infinity", "wide_exponents", "overflow"):
        if name in got:
            answers[name] = _class(got[name][0])
    if "negative_zero" in raw:
        answers["negative_zero"] = "-0" if int(raw["negative_zero"][0]) & o.sign_mask else "+0"
    if "infinity_minus_infinity" in raw and is_nan(raw["infinity_minus_infinity"], o).all():
        answers["nan_code"] = f"0x{int(raw['infinity_minus_infinity'][0]):0{o.code_digits}X}"
    _follow_up(matmul, f, o, answers)
    if long and f.name == "float16":
        answers["half_accumulation"] = _half(matmul, f, o)
    for k in lengths:
        counts[k] = order_counts(matmul, f, o, k)
    return Answers(answers, counts, deterministic)


def _follow_up(matmul: Matmul, f: Format, o: Format, answers: dict[str, Answer]) -> None:
    """What needs the alignment bits, the fp8 bytes, and integers."""
    q = _Questions(LENGTH)
    bits = answers["alignment_bits"]
    h = large(f, o)
    if isinstance(bits, int):
        for sign in (1.0, -1.0):
            x, y = split(2 * h - bits)
            if f.name not in SMALLEST or min(x, y) >= 2.0 ** (SMALLEST[f.name] + 1):
                q.ask("alignment_rounding", {0: (2.0**h, 2.0**h), 1: (2.0**h, -(2.0**h)), 2: (1.5 * x, y * sign)})
    codes, _ = ask(matmul, q, f)
    if "alignment_rounding" in q.where:
        unit = 2.0 ** (2 * h - int(bits or 0))  # type: ignore[arg-type]
        answers["alignment_rounding"] = tuple(_number(x / unit) for x in decode(codes[q.where["alignment_rounding"]], o))
    if f.name in SMALLEST:
        answers["fp8_encoding"] = _encoding(matmul, f, o)
    answers["integers_exact"] = _integers(matmul, f, o)


def _encoding(matmul: Matmul, f: Format, o: Format) -> str:
    """The encoding ("ocp", "fnuz") that bytes times a code of 1 come out in; "neither" where they fit none."""
    tested = np.array([0x80, 0x7F, 0x7E, 0x08], np.uint8)
    a, b = np.zeros((16, LENGTH), np.uint8), np.zeros((16, LENGTH), np.uint8)
    a[:4, 0] = tested
    found = {}
    for encoding in ("ocp", "fnuz"):
        named = concrete(f.family, "ocp" if encoding == "ocp" else "fnuz")
        b[:4, 0] = int(encode(np.array([1.0]), named)[0])
        d = decode(np.diagonal(np.asarray(matmul(a, b)))[:4], o)
        expected = decode_table(named.name)[tested]
        found[encoding] = bool(np.array_equal(d, expected + 0.0, equal_nan=True))
    return next((name for name, fits in found.items() if fits), "neither")


def _integers(matmul: Matmul, f: Format, o: Format) -> bool:
    """Every element of a product of small integers, whose sums any accumulator holds exactly."""
    rng = np.random.default_rng(13)
    top = 4 if f.bits <= 8 else 8
    a, b = (rng.integers(-top, top + 1, (32, LENGTH)).astype(np.float64) for _ in range(2))
    if f.bits < 8:  # e2m1 and e3m2 have no 5 and 7
        a, b = np.clip(a, -2, 2), np.clip(b, -2, 2)
    exact = a @ b.T
    if o.name not in ("float32", "float64"):
        a[:, 8:], exact = 0.0, a[:, :8] @ b[:, :8].T
    return bool(np.array_equal(decode(np.asarray(matmul(encode(a, f), encode(b, f))), o), round_to(exact, o)))


def _half(matmul: Matmul, f: Format, o: Format) -> Answer:
    q = _Questions(LONG)
    ending: Terms = {LONG - 1: (64.0, -32.0)} if narrow(o) else {}
    q.ask("half_accumulation", {0: (64.0, 32.0), **dict.fromkeys(range(32, LONG, 32), (1.0, 1.0)), **ending})
    return _number(decode(ask(matmul, q, f)[0], o)[0] + (2048.0 if narrow(o) else 0.0))


def order_counts(matmul: Matmul, fmt: str | Format, out: str | Format, k: int) -> dict[int, int]:
    """Survivors at a contraction of k for i = 1, 2, 4, … and k − 1: jumps show blocks, chunks and splits."""
    f, o = get_format(fmt), get_format(out)
    positions = sorted({1 << s for s in range(k.bit_length()) if 1 << s < k} | {k - 1})
    q = _Questions(k)
    q.ask("survivors", *(tree_row(f, o, k, 0, i) for i in positions))
    return _counts(decode(ask(matmul, q, f)[0][: len(positions)], o), f, o, positions)


def _counts(values: Values, f: Format, o: Format, positions: Sequence[int] | range) -> dict[int, int]:
    scale = 2.0 ** -unit_exponent(f, o)
    return {i: int(v * scale) if np.isfinite(v) else -1 for i, v in zip(positions, values, strict=True)}


def _largest(survived: Values) -> Answer:
    """Largest j whose term left something; "≥ n" where the last one asked did."""
    alive = np.flatnonzero(survived != 0)
    if not len(alive):
        return 0
    j = int(alive[-1]) + 1
    return f"≥{j}" if j == len(survived) else j


def _number(x: float) -> Answer:
    if not np.isfinite(x):
        return _class(x)
    return int(x) if float(x).is_integer() else float(x)


def _class(x: float) -> str:
    if np.isnan(x):
        return "nan"
    if np.isinf(x):
        return "inf" if x > 0 else "-inf"
    return "0" if x == 0 else repr(float(x))
