"""What a call promises about its arithmetic: one row per contract, from which every error budget follows.

A contract is stated by the case (or the candidate), never read off the device that is judged. `partials(FORMAT)` is a family
of rows: partial sums of a split contraction are rounded to FORMAT before they are added; `partials(FORMAT,P)` states how many
there are. `hops(FORMAT)` is one for sums over ranks: each addition is rounded to FORMAT. The formula that turns a row into a budget is
`cpu_ref.running.element_budget`, over ranks `cpu_ref.hops`; docs/budgets.md derives and checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Format, get_family, get_format

LAMBDA = 8.0  # standard deviations a healthy error may reach: 2·Q(8) = 1.2e-15, so no element of any suite exceeds it by chance
TYPICAL = 2.0  # the same for the root mean square of many elements: rows of 32 reach 0.43 of that (docs/gates.md)
PARTIALS = 4  # pieces of a split contraction where the contract does not say
LARGEST_PARTIALS = 0.5  # of a result, that roundings of partial sums may amount to: a promise beyond it is none


@dataclass(frozen=True)
class Accumulator:
    """How a running sum is kept.

    rounding   "RZ" toward zero (its error has a bias) or "RNE"
    bits       fraction bits of the sum after each step
    align      bits below the largest term of a step that survive when products are aligned; None: products are added exactly
    width      products added per rounding: a sum of K products has ceil(K / width) roundings
    """

    rounding: Literal["RZ", "RNE"]
    bits: int
    align: int | None
    width: int

    def steps(self, k: int) -> int:
        """Roundings of a sum of k products."""
        return -(-k // self.width)


@dataclass(frozen=True)
class Contract:
    """One promise. The budget of an element is the largest that any of `accumulators` needs, plus the other terms.

    accumulators  ways to accumulate that the contract allows
    part          width of the parts that are accumulated on their own by `accumulators` and then added by `promoted`; 0: none
    promoted      accumulators of the sum over parts
    operand_bits  operands are first rounded (or truncated) to that many fraction bits; None: used as they are
    partial       format of the partial sums of a split contraction; "" where they are kept in the accumulator's
    pieces        number of those partial sums
    scalar_bits   significant bits of the arithmetic of alpha, beta, bias and scales
    exact         no error at all before the output is rounded
    certain       the budget bounds every order there is: a healthy run may use all of it
    """

    name: str
    sentence: str
    source: str
    accumulators: tuple[Accumulator, ...] = ()
    part: int = 0
    promoted: tuple[Accumulator, ...] = ()
    operand_bits: int | None = None
    partial: str = ""
    pieces: int = 0
    scalar_bits: int = 24
    exact: bool = False
    certain: bool = False

    @property
    def flushes(self) -> bool:
        """Whether subnormal numbers of float32 may count as zero: all arithmetic but float64's and that of integers."""
        return not self.exact and self.scalar_bits == 24

    @property
    def largest(self) -> float | None:
        """Largest finite value of the narrowest running sum; None where sums are exact."""
        if self.exact:
            return None
        kept = get_format("float64" if all(a.bits > 23 for a in self.accumulators) else "float32").max
        return min(kept, get_format(self.partial).max) if self.partial else kept


RZ32 = Accumulator("RZ", 23, 23, 4)  # the coarsest matrix unit with a 24-bit sum: 4 products a step, no bit below the largest (Volta)
RNE32 = Accumulator("RNE", 23, None, 1)  # one correctly rounded float32 addition per product
RZ14 = Accumulator("RZ", 13, 13, 32)  # Hopper's and Ada's fp8 units: 14 significant bits
_FP32 = (RZ32, RNE32)

CONTRACTS: dict[str, Contract] = {
    c.name: c
    for c in (
        Contract(
            "fp64", "every product is added in float64, rounded to nearest",
            "IEEE 754-2019 fused multiply-add; the float64 matrix units of A100, H100, MI200 and MI300 are chains of them",
            (Accumulator("RNE", 52, None, 1),), scalar_bits=53,
        ),
        Contract(
            "fp32acc", "operands are used as stored and products are added in float32 or better, truncating matrix units included",
            "the larger of a truncating unit of 4 products a step (Volta) and one float32 rounding per product", _FP32,
        ),
        Contract(
            "tf32", "operands are rounded or truncated to 10 fraction bits, then fp32acc",
            "cuBLAS rounds float32 operands to TF32; the xf32 instruction of gfx942 truncates them", _FP32, operand_bits=10,
        ),
        Contract(
            "fp8fast", "products are added with 14 significant bits, 32 at a time, toward zero",
            "the fp8 unit of Hopper in fast accumulation (use_fast_accum=True)", (RZ14,),
        ),
        Contract(
            "fp8promoted", "fp8fast over parts of 128 products, the parts added in float32",
            "fp8 GEMM with promotion every 128 products (use_fast_accum=False, 1x128 and 128x128 scales)", (RZ14,), 128, _FP32,
        ),
        Contract(
            "int32acc", "integer products are added exactly in int32; scales, alpha and bias in float32",
            "int8 matrix units of both vendors; K·128·128 < 2^31", exact=True,
        ),
        Contract("exact", "no error before the output is rounded: one correct code per element", "an op without accumulation", exact=True,
                 scalar_bits=0),
    )
}  # fmt: skip

_PARTIALS = re.compile(r"partials\(\s*([A-Za-z0-9_]+)\s*(?:,\s*(\d+)\s*)?\)")
_HOPS = re.compile(r"hops\(\s*([A-Za-z0-9_]+)\s*\)")


@dataclass(frozen=True)
class ContractFamily:
    """Contracts that differ in a format: name, sentence and source as in `Contract`, the format and the number of pieces left open."""

    name: str
    sentence: str
    source: str


HOPS = ContractFamily(
    "hops(FORMAT)", "sums over ranks, or of rows that meet: each addition of two numbers is rounded to FORMAT, in any order or tree",
    "NCCL, RCCL and gloo reduce in the format of the buffers, one addition a step; so do index_add and its atomics",
)  # fmt: skip
PIECES = ContractFamily(
    "partials(FORMAT,P)", "fp32acc over P pieces of the contraction, whose sums are rounded to FORMAT before they are added",
    "split-K with reduced-precision reduction (torch: allow_bf16_reduced_precision_reduction)",
)  # fmt: skip
FAMILIES = (HOPS, ContractFamily("partials(FORMAT)", f"partials(FORMAT,{PARTIALS})", PIECES.source), PIECES)


def parse_contract(name: str) -> Contract:
    """The contract of that name: a row of CONTRACTS, `hops(FORMAT)`, `partials(FORMAT)` or `partials(FORMAT,P)` with P ≥ 1 pieces.

    UsageError for anything else.
    """
    if name in CONTRACTS:
        return CONTRACTS[name]
    if hops := _HOPS.fullmatch(name):
        return _hops(get_format(hops[1]))
    match = _PARTIALS.fullmatch(name)
    if not match:
        raise unknown("contract", name, [*CONTRACTS, *(f.name for f in FAMILIES)], listed="contracts")
    fmt, pieces = get_format(match[1]), int(match[2] or PARTIALS)
    if fmt.kind != "float" or fmt.scale_only or pieces < 1:
        raise UsageError(f"contract {name!r}: partial sums need a float operand format and at least one piece, found {fmt.name}, {pieces}")
    most = int(LARGEST_PARTIALS * 2.0 ** (fmt.fraction_bits + 1))
    if pieces > most:
        raise UsageError(
            f"contract {name!r}: {pieces} pieces in {fmt.name} may be off by more than half of what they add up to, so that nothing could "
            f"fail; allowed: at most {most}"
        )
    base = CONTRACTS["fp32acc"]
    suffix = f",{pieces}" if match[2] else ""
    return replace(
        base, name=f"partials({fmt.name}{suffix})", partial=fmt.name, pieces=pieces,
        sentence=PIECES.sentence.replace(" P ", f" {pieces} ").replace("FORMAT", fmt.name), source=PIECES.source,
    )  # fmt: skip


def _hops(fmt: Format) -> Contract:
    if fmt.kind != "float" or fmt.scale_only:
        raise UsageError(f"contract hops({fmt.name}): sums travel in a float format, found {fmt.name}")
    return replace(
        CONTRACTS["fp32acc"], name=f"hops({fmt.name})", partial=fmt.name, certain=True,
        sentence=HOPS.sentence.replace("FORMAT", fmt.name), source=HOPS.source,
    )  # fmt: skip


_PROMOTED = ("1x128", "128x1", "128x128")  # scales of such blocks are applied to partial sums, outside the matrix unit


def default_contract(operand_formats: Iterable[str], scaled: str = "") -> str:
    """Name of the contract of a call that adds up products or terms, where neither case nor candidate states one.

    operand_formats  format or family names of the operands
    scaled           what shares a scale factor (`Recipe.granularity`): "tensor", "row", or a block such as "1x128"; "" where nothing
                     is scaled
    The widest operand decides: float64 fp64 · tfloat32 tf32 · float32, 16-bit, fp6, fp4 fp32acc · int8 int32acc · fp8 fp8fast, under
    scales of 128-wide blocks fp8promoted, under those of narrower ones, which the unit applies itself (MX, NVFP4), fp32acc.
    UsageError without operand formats.
    """
    formats = [get_format(f) for f in operand_formats]
    if not formats:
        raise UsageError("a default contract needs the operand formats; found none")
    names = {f.name for f in formats}
    if "float64" in names:
        return "fp64"
    if all(f.kind == "int" for f in formats):
        return "int32acc"
    if "tfloat32" in names:
        return "tf32"
    if not {f.family for f in formats} <= {"fp8_e4m3", "fp8_e5m2"}:
        return "fp32acc"
    if scaled in ("", "tensor", "row"):
        return "fp8fast"
    return "fp8promoted" if scaled in _PROMOTED else "fp32acc"


def looser_contracts(name: str, operand_formats: Iterable[str]) -> tuple[str, ...]:
    """Contracts that a device may have kept instead of the promised one, tightest first; those that suit the operands.

    float32: TF32. 16-bit: partial sums rounded to that format. Both: 14-bit accumulators are not theirs. fp8 under fp32acc or
    fp8promoted: promotion every 128 products, then fast accumulation.
    """
    families = {get_family(f) for f in operand_formats}
    if name == "fp32acc" and families == {"float32"}:
        return ("tf32",)
    if name == "fp32acc" and families <= {"float16", "bfloat16"}:
        return tuple(f"partials({f})" for f in sorted(families))
    if families <= {"fp8_e4m3", "fp8_e5m2"}:
        order = ("fp8promoted", "fp8fast")
        return order if name == "fp32acc" else order[1:] if name == "fp8promoted" else ()
    return ()
