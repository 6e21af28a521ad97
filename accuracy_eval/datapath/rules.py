"""The arithmetic of a matrix unit as data: which rule, and its parameters.

A rule says how one block of products joins the accumulator. Kinds, with the spelling the composition language uses:

    T16.25.23      T-FDPA: L = 16 products, F = 25 alignment bits, result truncated to P = 23 fraction bits (float32 range)
    H16.25         the same with a float16 accumulator, rounded to nearest
    TR8 GTR16      CDNA3: products aligned among themselves (GTR: even and odd k apart), floors on joining the accumulator
    E4             CDNA1: L products and the accumulator summed exactly, one rounding
    Z4 Z2          CDNA2: rounded products and pairwise sums in float32, every subnormal flushed
    W3 W4          RDNA3 and RDNA4 WMMA
    G64.35.23      Blackwell mxf4/nvf4: groups of 16 products summed exactly and scaled, then T-FDPA over four groups
    M32            fp8 through two float16 blocks and a float32 addition (mma.sync where no fp8 unit backs it); M32h in float16
    F D            one float32 (float64) fused multiply-add per k
    P              one rounded float32 product and one rounded addition per k

Sources: MMA-Sim v2 (arXiv 2511.10909), Khattak & Mikaitis (arXiv 2512.07004), IEEE 754-2019; RDNA: raw captures of W7900 and R9700.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from accuracy_eval.errors import UsageError

Kind = Literal["tfdpa", "half", "trfdpa", "gtrfdpa", "exact", "flush", "rdna3", "rdna4", "gst", "emulated", "fma", "fma64", "muladd"]

E0 = -133  # exponent of a zero term where a rule names none: Hopper's and Blackwell's


@dataclass(frozen=True)
class Rule:
    """One rule.

    L   products a block (1 for fused multiply-adds)
    F   alignment bits below the largest term of a block
    P   fraction bits of the accumulator
    e0  exponent a zero term takes part in the alignment with; it shows only where every term is smaller still
    accumulator  format of the running sum, hence of c and of the result
    """

    kind: Kind
    L: int = 1
    F: int = 0
    P: int = 23
    e0: int = E0
    accumulator: str = "float32"

    def __str__(self) -> str:
        if self.kind == "tfdpa":
            return f"T{self.L}.{self.F}.{self.P}" + ("" if self.e0 == E0 else f"@{self.e0}")
        if self.kind == "half":
            return f"H{self.L}.{self.F}" + ("" if self.e0 == HALF_E0 else f"@{self.e0}")
        if self.kind == "gst":
            return f"G{self.L}.{self.F}.{self.P}"
        if self.kind == "emulated":
            return f"M{self.L}" + ("h" if self.accumulator == "float16" else "")
        return f"{_PREFIX[self.kind]}{self.L}" if self.kind in ("trfdpa", "gtrfdpa", "exact", "flush") else _PREFIX[self.kind]


HALF_E0 = -21
_PREFIX = {
    "trfdpa": "TR", "gtrfdpa": "GTR", "exact": "E", "flush": "Z", "rdna3": "W3", "rdna4": "W4", "fma": "F", "fma64": "D", "muladd": "P",
}  # fmt: skip


def tfdpa(L: int, F: int, P: int = 23, e0: int = E0) -> Rule:
    """T-FDPA with a float32 accumulator truncated to P fraction bits."""
    return Rule("tfdpa", L, F, P, e0)


def half(L: int, F: int, e0: int = HALF_E0) -> Rule:
    """T-FDPA with a float16 accumulator rounded to nearest."""
    return Rule("half", L, F, 10, e0, "float16")


FMA = Rule("fma")
FMA64 = Rule("fma64", P=52, accumulator="float64")
MULADD = Rule("muladd")
TR4, TR8, GTR16 = Rule("trfdpa", 4, 24), Rule("trfdpa", 8, 24), Rule("gtrfdpa", 16, 24)
E2, E4 = Rule("exact", 2), Rule("exact", 4)
Z2, Z4 = Rule("flush", 2), Rule("flush", 4)
W3, W4 = Rule("rdna3", 2, 24), Rule("rdna4", 4, 24)
GST = Rule("gst", 64, 35, 23, -139)
EMULATED = Rule("emulated", 32, 25)
EMULATED_HALF = Rule("emulated", 32, 25, 10, HALF_E0, "float16")

_FIXED = {str(r): r for r in (FMA, FMA64, MULADD, TR4, TR8, GTR16, E2, E4, Z2, Z4, W3, W4, GST, EMULATED, EMULATED_HALF)}
_T = re.compile(r"T(\d+)\.(\d+)\.(\d+)(?:@(-\d+))?")
_H = re.compile(r"H(\d+)\.(\d+)(?:@(-\d+))?")


def parse_rule(text: str) -> Rule:
    """The rule of that spelling. UsageError for anything else."""
    if text in _FIXED:
        return _FIXED[text]
    if match := _T.fullmatch(text):
        rule = tfdpa(int(match[1]), int(match[2]), int(match[3]), int(match[4] or E0))
    elif match := _H.fullmatch(text):
        rule = half(int(match[1]), int(match[2]), int(match[3] or HALF_E0))
    else:
        raise UsageError(f"unknown arithmetic rule {text!r}; allowed: TL.F.P, HL.F, {', '.join(sorted(_FIXED))}")
    if rule.L not in (4, 8, 16, 32, 64) or not 1 <= rule.F <= 32 or not 1 <= rule.P <= 23:
        raise UsageError(f"rule {text!r} is out of range; allowed: L 4, 8, 16, 32 or 64, F 1 to 32, P 1 to 23")
    return rule
