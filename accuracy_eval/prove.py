"""prove: known faults put into GEMM results, judged as any result is: what every gate of a profile catches, and what none sees.

`prove("default")` computes small products (M × N = 32 × 48) at K = 64 and 8192 in four operand formats, changes them by each of
MUTATIONS, and judges all of them. A mutation that a gate claims to catch (CLAIMS) and does not is a broken claim; a gate that no
mutation of a product can break is named as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.diagnose import fails
from accuracy_eval.formats import Codes, Values, concrete, decode, encode, get_format
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.inputs.exact import integer_codes
from accuracy_eval.judge import judge_tensor, side_of
from accuracy_eval.messages import COMPARISON_WORDS, numbers_apart
from accuracy_eval.ops.gemm import FORMATS as PLAIN_FORMATS
from accuracy_eval.ops.operands import exact_companion, random_codes
from accuracy_eval.ops.spec import Operand as OpOperand
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.quantize import get_recipe, quantize
from accuracy_eval.records import Case, Coded, GateResult, Side, Verdict

M, N = 32, 48
LENGTHS = (64, 8192)
SEED = 1


@dataclass(frozen=True)
class Column:
    """One kind of product of the table: operand family, how operands are quantised, output family."""

    name: str
    format: str
    recipe: str
    out_format: str


COLUMNS = (
    Column("float32", "float32", "", "float32"),
    Column("bfloat16", "bfloat16", "", "bfloat16"),
    Column("e4m3", "fp8_e4m3", "tensorwise", "bfloat16"),
    Column("e4m3 1x128", "fp8_e4m3", "block1x128", "bfloat16"),
    Column("mxfp4", "fp4_e2m1", "mxfp4", "bfloat16"),
    Column("nvfp4", "fp4_e2m1", "nvfp4", "bfloat16"),
)


@dataclass(frozen=True)
class Problem:
    """One product D = A·Bᵀ to mutate.

    a, b           float64 values of the operands' codes, [M, K] and [N, K]
    a_scale, b_scale   what multiplies them, broadcastable to a and b; None where operands are not quantised
    a_codes        codes of A, for mutations of bits
    reference      the truth and its budget, panels held in memory
    """

    column: Column
    case: Case
    output: Output
    contract: str
    a: Values
    b: Values
    a_scale: Values | None
    b_scale: Values | None
    a_codes: Coded
    b_codes: Coded
    reference: Reference

    @cached_property
    def healthy(self) -> Values:
        """A correct device's result before output rounding: one float32 rounding per product, float64 [M, N]."""
        return self.result(self.a, self.b)

    @cached_property
    def codes(self) -> Codes:
        return self.round(self.healthy)

    def round(self, values: Values) -> Codes:
        """One rounding to the output format."""
        return encode(values, self.output.format)

    def result(self, a: Values, b: Values, *, scales: tuple[Values, Values] | None = None, unit: Unit | None = None) -> Values:
        """What a device makes of these code values: float64 [M, N], representable in float32."""
        left, right = scales or (self.a_scale, self.b_scale)
        if left is not None and right is not None:
            a, b = a * left, b * right
        return (unit or float32_sums)(a, b)


Unit = Callable[[Values, Values], Values]


def float32_sums(a: Values, b: Values) -> Values:
    """a [m, k], b [n, k] → [m, n]: products added one by one in increasing k, each sum rounded to float32."""
    total = np.zeros((len(a), len(b)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(a.shape[1]):
            total = (total + a[:, t, None] * b[None, :, t]).astype(np.float32)
    return total.astype(np.float64)


def bfloat16_partials(a: Values, b: Values, pieces: int = 4) -> Values:
    """K in four contiguous pieces, whose sums are rounded to bfloat16 before they are added in float32."""
    width = -(-a.shape[1] // pieces)
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(0, a.shape[1], width):
        part = float32_sums(a[:, k : k + width], b[:, k : k + width])
        total += decode(encode(part, "bfloat16"), "bfloat16").astype(np.float32)
    return total.astype(np.float64)


def fourteen_bits(a: Values, b: Values, width: int = 32) -> Values:
    """An accumulator of 14 significant bits: terms of 32 products and the sum are cut 13 bits below the largest, toward zero."""
    zero = -(1 << 12)  # exponent of a zero: below every other

    def exponent(x: Values) -> Values:
        return np.where(x == 0, zero, np.frexp(x)[1] - 1)

    total = np.zeros((len(a), len(b)))
    for k in range(0, a.shape[1], width):
        x, y = a[:, None, k : k + width], b[None, :, k : k + width]
        of_terms = np.concatenate([exponent(x) + exponent(y), exponent(total)[:, :, None]], axis=2)  # products are not normalised
        unit = np.maximum(of_terms.max(axis=2), -900) - 13
        terms = np.concatenate([x * y, total[:, :, None]], axis=2)
        total = np.ldexp(np.trunc(np.ldexp(terms, -unit[:, :, None])).sum(axis=2), unit)
        unit = np.maximum(exponent(total), -900) - 13
        total = np.ldexp(np.trunc(np.ldexp(total, -unit)), unit)
    return total


# --- mutations


class NotApplicable(str):
    """Why a mutation means nothing for a product."""


Change = Callable[[Problem], Values | NotApplicable]


@dataclass(frozen=True)
class Mutation:
    """One fault.

    kind    what it breaks: "result" the finished output, "product" some of the terms, "arithmetic" how they are added
    change  the result before output rounding, float64, any shape
    """

    name: str
    sentence: str
    kind: Literal["result", "product", "arithmetic"]
    change: Change


def _output(change: Callable[[Values], Values]) -> Change:
    """A mutation of the finished output's values."""
    return lambda p: change(decode(p.codes, p.output.format))


def _set(value: float) -> Callable[[Values], Values]:
    def change(d: Values) -> Values:
        out = d.copy()
        out[5, 7] = value
        return out

    return change


def _row(factor: float) -> Callable[[Values], Values]:
    def change(d: Values) -> Values:
        out = d.copy()
        out[5] *= factor
        return out

    return change


LOST = 3  # of the products of every element, the K / LOST-th is lost
TAIL = 8  # products dropped at the end of K


def _lost_k(p: Problem) -> Values:
    a = p.a.copy()
    a[:, a.shape[1] // LOST] = 0
    return p.result(a, p.b)


def _dropped_tail(p: Problem) -> Values:
    a = p.a.copy()
    a[:, -TAIL:] = 0
    return p.result(a, p.b)


def _nibbles(p: Problem) -> Values | NotApplicable:
    if get_format(p.a_codes.format).bits != 4:
        return NotApplicable("codes of a byte and more are not packed in pairs")
    pairs = p.a.reshape(len(p.a), -1, 2)
    return p.result(pairs[:, :, ::-1].reshape(p.a.shape), p.b)


def _other_encoding(p: Problem) -> Values | NotApplicable:
    if p.column.format != "fp8_e4m3":
        return NotApplicable("only fp8 formats have two encodings")
    return p.result(decode(p.a_codes.codes, "float8_e4m3fnuz"), p.b)


def _scale(factor: float) -> Change:
    def change(p: Problem) -> Values | NotApplicable:
        if p.a_scale is None or p.b_scale is None:
            return NotApplicable("operands have no scale")
        scale = np.broadcast_to(p.a_scale, p.a.shape).copy()
        rows, width = get_recipe(p.column.recipe).block
        # the only scale there is, or that of one block of one row: the second, where there are two
        part = (slice(5, 6), slice(width, 2 * width) if p.a.shape[1] > width else slice(None)) if rows else slice(None)
        scale[part] *= factor
        return p.result(p.a, p.b, scales=(scale, p.b_scale))

    return change


def _swapped_scales(p: Problem) -> Values | NotApplicable:
    if p.a_scale is None or p.b_scale is None:
        return NotApplicable("operands have no scale")
    if p.a_scale.size == 1:
        return NotApplicable("one scale an operand: their product stays the same")
    blocks = [np.broadcast_to(s, x.shape) for s, x in ((p.a_scale, p.a), (p.b_scale, p.b))]
    return p.result(p.a, p.b, scales=(np.resize(blocks[1], p.a.shape), np.resize(blocks[0], p.b.shape)))


def _tf32(p: Problem) -> Values:
    def cut(x: Values) -> Values:
        return decode(encode(x, "tfloat32"), "tfloat32")

    return p.result(cut(p.a), cut(p.b))


NEAR = 0.9  # of an element's budget: what no single element shows, and no healthy unit reaches in many at once


def _near_budget(rows: slice, columns: slice) -> Change:
    """Elements whose errors are NEAR their budget, of random signs."""

    def change(p: Problem) -> Values | NotApplicable:
        if p.reference.kind == "codes":
            return NotApplicable("codes that must be equal have no budget")
        (panel,) = p.reference.panels()
        assert panel.budget is not None
        out = p.healthy.copy()
        signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=out.shape)
        out[rows, columns] = (panel.values + NEAR * signs * panel.budget)[rows, columns]
        return out

    return change


def _unit(unit: Unit) -> Change:
    return lambda p: p.result(p.a, p.b, unit=unit)


MUTATIONS: dict[str, Mutation] = {
    m.name: m
    for m in (
        Mutation("twice", "every element is doubled", "result", _output(lambda d: 2 * d)),
        Mutation("zero", "every element is zero", "result", _output(np.zeros_like)),
        Mutation("one NaN", "one element is NaN", "result", _output(_set(math.nan))),
        Mutation("one Inf", "one element is infinite", "result", _output(_set(math.inf))),
        Mutation("one column short", "the result has N - 1 columns", "result", _output(lambda d: d[:, :-1])),
        Mutation("shifted", "every row holds its neighbour's values", "result", _output(lambda d: np.roll(d, 1, axis=0))),
        Mutation("transposed", "the result is stored column by column", "result", _output(lambda d: d.T.reshape(d.shape))),
        Mutation("gate/up swapped", "the halves of N change places", "result", _output(lambda d: np.roll(d, d.shape[1] // 2, axis=1))),
        Mutation("a zero row", "one of 32 rows is zero", "result", _output(_row(0.0))),
        Mutation("a row 1 % off", "one of 32 rows is multiplied by 1.01", "result", _output(_row(1.01))),
        Mutation("a lost k", "one product of K is missing from every element", "product", _lost_k),
        Mutation("K tail dropped", "the last 8 products are missing from every element", "product", _dropped_tail),
        Mutation("nibbles swapped", "the two codes in each byte of A change places", "product", _nibbles),
        Mutation("FNUZ for OCP", "A's codes are read in the other fp8 encoding", "product", _other_encoding),
        Mutation("scale exponent +1", "a scale of A is doubled: the tensor's, or that of one block", "product", _scale(2.0)),
        Mutation("scale exponent -1", "a scale of A is halved: the tensor's, or that of one block", "product", _scale(0.5)),
        Mutation("scales swapped", "A's codes meet B's scales and B's A's, row by row", "product", _swapped_scales),
        Mutation("a row near its budget", "every error in one of 32 rows is 0.9 of its element's budget", "arithmetic",
                 _near_budget(slice(5, 6), slice(None))),
        Mutation("a column near its budget", "the same in one of 48 columns", "arithmetic", _near_budget(slice(None), slice(5, 6))),
        Mutation("all near their budget", "the same everywhere", "arithmetic", _near_budget(slice(None), slice(None))),
        Mutation("bf16 partials", "four partial sums are rounded to bfloat16, then added", "arithmetic", _unit(bfloat16_partials)),
        Mutation("14-bit accumulator", "sums keep 14 significant bits, cut toward zero", "arithmetic", _unit(fourteen_bits)),
        Mutation("TF32 inputs", "operands are rounded to 10 fraction bits", "arithmetic", _tf32),
    )
}  # fmt: skip


# --- products


def problem(column: Column, k: int, *, lane: str = "random", input_class: str = "normal") -> Problem:
    """The product of a column at one K, with its reference."""
    shape = (("m", M), ("n", N), ("k", k))
    case = Case("gemm", shape, "nt", column.format, column.out_format, column.recipe, (), input_class, lane, "fwd", SEED)
    source = "bfloat16" if column.recipe else column.format
    if lane == "exact":
        exact = exact_companion(case)
        made = {"a": integer_codes(exact.a, source), "b": integer_codes(exact.b, source)}
    else:
        made = {n: random_codes(case, OpOperand(n, (size, k), source, (axis, "k"))) for n, size, axis in (("a", M, "m"), ("b", N, "n"))}
    coded = {n: Coded(c, concrete(column.format, "ocp").name) for n, c in made.items()}
    scales: dict[str, Any] = {"a": None, "b": None}
    blocks: dict[str, Any] = {"a": None, "b": None}
    if column.recipe:
        recipe = get_recipe(column.recipe)
        for n, c in made.items():
            q = quantize(c, source, recipe if n == "a" else recipe.weights or recipe)
            coded[n], scales[n] = Coded(q.codes, q.format), decode(q.scale, q.scale_format)
            blocks[n] = (q.blocks[0], q.blocks[1]) if scales[n].ndim == 2 else None
            if q.global_scale is not None:
                scales[n] = scales[n] * decode(q.global_scale, "float32")
    gemm = Gemm(
        coded["a"], coded["b"], "nt", a_scale=scales["a"], b_scale=scales["b"], a_block=blocks["a"], b_block=blocks["b"],
    )  # fmt: skip
    plain = Gemm(Coded(made["a"], source), Coded(made["b"], source), "nt") if column.recipe else None
    output = Output("d", (M, N), concrete(column.out_format, "ocp").name)
    contract = default_contract("gemm", [column.format], column.recipe)
    if lane == "exact":
        codes = integer_codes(exact.d(), output.format, exact.unit)
        reference = Reference("codes", output.format, (M, N), contract, lambda: iter((Panel(0, codes),)))
    else:
        parts = [Panel(p.first_row, p.values, p.budget, p.typical) for p in panels(gemm, contract=contract, out_format=output.format)]
        reference = Reference(
            "values", output.format, (M, N), contract, lambda: iter(parts), unquantised=None if plain is None else lambda: _plain(plain)
        )

    def grid(x: Operand) -> Values | None:
        return x.scale_of() if column.recipe else None

    return Problem(
        column, case, output, contract, decode(coded["a"].codes, coded["a"].format), decode(coded["b"].codes, coded["b"].format),
        grid(gemm.left), grid(gemm.right), coded["a"], coded["b"], reference,
    )  # fmt: skip


def _plain(gemm: Gemm) -> Iterator[Panel]:
    """The product of the operands before they were quantised."""
    for p in panels(gemm):
        yield Panel(p.first_row, p.values)


def lanes(column: Column) -> tuple[str, ...]:
    """The lanes there are for a column: integer companions exist for unscaled operands."""
    return ("random", "exact") if column.format in PLAIN_FORMATS else ("random",)


# --- what the profiles claim


@dataclass(frozen=True)
class Cell:
    """One mutation of one product in one lane, judged.

    status  "caught"; "missed": the result differs and passes; "same": the mutation leaves the bytes as they are; "n/a": it cannot
            be applied
    by      the gates and structural checks that failed
    reason  of "missed": what the gates saw; of "same" and "n/a": why nothing changed
    """

    mutation: str
    column: str
    k: int
    lane: str
    status: str
    by: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Claim:
    """What a profile says about itself: `by` catches these mutations wherever they change a byte.

    profile    name of a profile; "*" every one
    by         a gate or a structural check; "" any of them
    mutations  names; columns, lengths, lanes: where (empty: everywhere)
    """

    profile: str
    by: str
    mutations: tuple[str, ...]
    source: str
    columns: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    lanes: tuple[str, ...] = ()

    def covers(self, cell: Cell) -> bool:
        return (
            cell.mutation in self.mutations
            and (not self.columns or cell.column in self.columns)
            and (not self.lengths or cell.k in self.lengths)
            and (not self.lanes or cell.lane in self.lanes)
        )


RESULT = tuple(m.name for m in MUTATIONS.values() if m.kind == "result" and m.name not in ("one NaN", "one Inf", "one column short"))
LARGE = tuple(name for name in RESULT if name != "a row 1 % off")
PRODUCT = tuple(m.name for m in MUTATIONS.values() if m.kind == "product")
NEAR_BUDGET = ("a row near its budget", "a column near its budget", "all near their budget")
ARITHMETIC = tuple(m.name for m in MUTATIONS.values() if m.kind == "arithmetic" and m.name not in NEAR_BUDGET)
SCALED = ("FNUZ for OCP", "scale exponent +1", "scale exponent -1")
STRUCTURE = "NaN and Inf sets, an all-zero output and a wrong shape fail whatever the limits say"
BUDGET = "fp32acc allows about 6e-5 of rms(D) at K = 4096 (docs/budgets.md); fp8fast, in 14 bits, about 4 % at K = 8192"
TOGETHER = "many elements have two standard deviations of the random walk, one has eight; 16-bit outputs hide both in their rounding"
COMPANION = "on the integer companion every element has one right value, and every k is in some element"
EXCESS = "0.3 dB is 7 % of the noise that quantisation itself leaves in a row"
SNR25 = "25 dB is an error of 5.6 % of the norm"
SNR10 = "10 dB is an error of 32 % of the norm"
ALLCLOSE = "one element beyond the tolerance is enough"
SCALED_ERROR = "one element off by 0.08 of itself, or by 0.08 where it is below 1, is enough; cosine sees noise of 1.4 % of the norm"
BITS = "one differing code is enough"

HEALTHY_PASSES = ("default", "l3")  # turbo's float32 tolerance does not hold for long sums (docs/gates.md); exact is for exact results
CLAIMS: tuple[Claim, ...] = (
    Claim("*", "all-zero", ("zero",), STRUCTURE),
    Claim("*", "nan-in-actual", ("one NaN",), STRUCTURE),
    Claim("*", "inf-in-actual", ("one Inf",), STRUCTURE),
    Claim("*", "shape-mismatch", ("one column short",), STRUCTURE),
    Claim("default", "exact-lane", RESULT + PRODUCT, COMPANION, lanes=("exact",)),
    Claim("default", "budget", LARGE + PRODUCT, BUDGET, lanes=("random",)),
    Claim("default", "budget", ("a row 1 % off",), BUDGET, lanes=("random",),
          columns=("float32", "bfloat16", "e4m3 1x128", "mxfp4", "nvfp4")),
    Claim("default", "budget", ARITHMETIC, BUDGET, lanes=("random",), columns=("float32", "bfloat16", "mxfp4", "nvfp4")),
    Claim("default", "rows", ("a row near its budget", "all near their budget"), TOGETHER, lanes=("random",), columns=("float32",)),
    Claim("default", "columns", ("a column near its budget", "all near their budget"), TOGETHER, lanes=("random",), columns=("float32",)),
    Claim("default", "tiles", ("all near their budget",), TOGETHER, lanes=("random",), columns=("float32",)),
    Claim("default", "excess", SCALED, EXCESS, columns=("e4m3", "e4m3 1x128")),
    Claim("default", "excess-row", (*SCALED, "scales swapped", "nibbles swapped"), EXCESS, lengths=(64,)),
    Claim("default", "excess-row", ("scale exponent +1", "scales swapped", "nibbles swapped"), EXCESS),
    *(
        claim
        for name in ("turbo", "strict")
        for claim in (
            Claim(name, "allclose-float32", RESULT + PRODUCT + ARITHMETIC, ALLCLOSE, columns=("float32",)),
            Claim(name, "allclose-16-bit", LARGE + PRODUCT, ALLCLOSE, columns=("bfloat16",)),
            Claim(name, "snr-e4m3", LARGE + SCALED, SNR25, columns=("e4m3",)),
            Claim(name, "snr-fp4", ("twice", "zero", "shifted", "transposed", "gate/up swapped", "nibbles swapped"), SNR10,
                  columns=("mxfp4",)),
        )
    ),
    Claim("l3", "", LARGE + PRODUCT, SCALED_ERROR),
    Claim("exact", "bitwise", RESULT + PRODUCT + ARITHMETIC + NEAR_BUDGET, BITS),
)  # fmt: skip


# --- judging


@dataclass(frozen=True)
class Proof:
    """What a profile's gates did with every mutation.

    cells         in the order of MUTATIONS, COLUMNS, LENGTHS, lanes
    healthy       the unchanged results: status "pass", or "caught" by a false alarm
    cannot_fail   (gate, column, K, lane) where a gate applies and no mutation of a product breaks it
    broken        claims that do not hold, each in a sentence
    """

    profile: str
    cells: tuple[Cell, ...]
    healthy: tuple[Cell, ...]
    cannot_fail: tuple[tuple[str, str, int, str], ...]
    broken: tuple[str, ...]


def prove(profile: str = "default", *, lengths: Sequence[int] = LENGTHS, input_class: str = "normal") -> Proof:
    """Judge every mutation under a profile (a built-in name or a .toml file)."""
    return prove_all([profile], lengths=lengths, input_class=input_class)[0]


def prove_all(profiles: Iterable[str], *, lengths: Sequence[int] = LENGTHS, input_class: str = "normal") -> list[Proof]:
    """The same for several profiles; products and mutants are made once."""
    loaded = [load_profile(name) for name in profiles]
    made = [
        (p, {m.name: m.change(p) for m in MUTATIONS.values()})
        for c in COLUMNS for k in lengths for lane in lanes(c) for p in (problem(c, k, lane=lane, input_class=input_class),)
    ]  # fmt: skip
    return [_prove(p, made, input_class) for p in loaded]


def _prove(profile: Profile, made: Sequence[tuple[Problem, dict[str, Values | NotApplicable]]], input_class: str) -> Proof:
    cells: list[Cell] = []
    healthy: list[Cell] = []
    cannot_fail: list[tuple[str, str, int, str]] = []
    for p, mutants in made:
        where = p.column.name, p.case.dims["k"], p.case.lane
        plain = _judge(p, p.codes, profile)
        healthy.append(
            Cell("", *where, "caught" if plain.verdict is Verdict.FAIL else "pass", _caught_by(plain), _seen(plain.gates, p.contract))
        )
        here = [_cell(name, p, values, profile, where) for name, values in mutants.items()]
        cells += here
        finite = [c for c in here if c.mutation not in ("one NaN", "one Inf")]  # those fail whatever the gates say
        unbroken = {g.gate for g in plain.gates} - {name for c in finite for name in c.by} - set(_caught_by(plain))
        cannot_fail += [(g, *where) for g in sorted(unbroken)]
    order = list(MUTATIONS)
    cells.sort(key=lambda c: order.index(c.mutation))
    return Proof(profile.name, tuple(cells), tuple(healthy), tuple(cannot_fail), tuple(_broken(profile.name, cells, healthy, input_class)))


def _judge(p: Problem, codes: Codes, profile: Profile) -> Side:
    """The judge's verdict on one result, as it gives it for a dump's."""
    side = side_of("mutant", Coded(codes, p.output.format), contract=p.contract)
    return judge_tensor(p.case, "proof", "gemm", "", p.output, [side], {"mutant": p.reference}, profile).sides[0]


def _cell(name: str, p: Problem, made: Values | NotApplicable, profile: Profile, where: tuple[str, int, str]) -> Cell:
    if isinstance(made, NotApplicable):
        return Cell(name, *where, "n/a", (), str(made))
    codes = p.round(made)
    if np.array_equal(codes, p.codes):
        return Cell(name, *where, "same", (), _why_same(MUTATIONS[name], p, made))
    side = _judge(p, codes, profile)
    if side.verdict is Verdict.FAIL:
        return Cell(name, *where, "caught", _caught_by(side))
    return Cell(name, *where, "missed", (), _seen(side.gates, p.contract))


def _caught_by(side: Side) -> tuple[str, ...]:
    """Gates that failed, in the profile's order, then structural checks."""
    gates = [g.gate for g in side.gates if g.passed is False]
    return tuple(dict.fromkeys([*gates, *(d.code for d in side.diagnoses if fails([d]) or not side.gates)]))


def telling(by: Sequence[str]) -> tuple[str, ...]:
    """The gates that say something: those on many elements together only where no single element fails."""
    return tuple(name for name in by if "budget" not in by or name not in ("rows", "columns", "tiles"))


def _seen(gates: Sequence[GateResult], contract: str) -> str:
    """What the gates saw."""
    by_limit: dict[str, list[str]] = {}
    for g in gates:
        if g.value is not None:
            value, limit = numbers_apart(g.value, g.limit, 3)
            under = f" under {contract}" if g.metric == "budget_max" else ""
            by_limit.setdefault(f"{COMPARISON_WORDS[g.comparison]} {limit}", []).append(f"{g.metric} {value}{under}")
    return ", ".join(f"{', '.join(seen)} ({limit})" for limit, seen in by_limit.items()) or "no gate of the profile applies"


def _why_same(mutation: Mutation, p: Problem, made: Values) -> str:
    if not np.array_equal(made, p.healthy):
        return f"every change is below half an ulp of {p.output.format} and rounds away"
    if mutation.kind != "arithmetic":
        return "what is changed is zero in these operands"
    if mutation.name == "TF32 inputs" and get_format(p.a_codes.format).fraction_bits <= 10:
        return "operands of at most 10 fraction bits: rounding to TF32 changes none"
    return "every partial sum of these operands is held exactly by this arithmetic"


def _broken(profile: str, cells: Iterable[Cell], healthy: Iterable[Cell], input_class: str) -> list[str]:
    """Claims that do not hold. Limits in absolute units mean something for normal operands only: other classes test the structure."""
    found: dict[str, list[str]] = {}
    if profile in HEALTHY_PASSES:
        for c in healthy:
            if c.status != "pass":
                found.setdefault(f"{', '.join(c.by)} fails a healthy result", []).append(_place(c))
    claims = [claim for claim in CLAIMS if claim.profile == "*" or (claim.profile == profile and input_class == "normal")]
    for c in cells:
        for claim in claims:
            if claim.covers(c) and c.status not in ("n/a", "same") and (c.status != "caught" or (claim.by and claim.by not in c.by)):
                what = f"{claim.by or f'profile {profile}'} claims to catch {c.mutation!r} ({claim.source}) and does not"
                found.setdefault(what, []).append(_place(c))
    return [f"{what}: {', '.join(places)}" for what, places in found.items()]


def _place(c: Cell) -> str:
    return f"{c.column} K={c.k} ({c.lane} lane)"
