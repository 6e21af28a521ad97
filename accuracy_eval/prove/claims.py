"""What the built-in profiles say that their gates catch; a claim that a mutation refutes is broken."""

from __future__ import annotations

from dataclasses import dataclass

from accuracy_eval.prove.mutations import MUTATIONS


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
