"""What the probes answer on known units, written down from published models and measurements, not computed from the models here.

Sources: MMA-Sim v2 (arXiv 2511.10909), Khattak & Mikaitis (arXiv 2512.07004); measured on an H200 (Hopper rows) and on CPUs; the rest
follows by hand from each rule (RDNA rows: the rules of raw captures). Survivors are at K = 64 for i = 1, 2, 3, 4, 8, 16, 32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from accuracy_eval.datapath.probes import Answer

FP8 = ("float8_e4m3fn", "float8_e5m2")
FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
HALVES = ("float16", "bfloat16")

BY_4 = (60, 60, 60, 56, 52, 44, 28)
BY_8 = (56, 56, 56, 56, 48, 40, 24)
BY_16 = (48, 48, 48, 48, 48, 32, 16)
BY_32 = (32, 32, 32, 32, 32, 32, 0)
RDNA3 = (-1, -4, -4, -6, -10, -18, -34)  # each term against the accumulator's sign costs a unit of the grid of M²
IN_ORDER = (62, 61, 60, 59, 55, 47, 31)
EXACT = "≥"  # as many bits as the format can ask for


@dataclass(frozen=True)
class Expectation:
    """Answers of one arithmetic for operand formats: alignment bits (twice), survivors, rounding, and what differs from the usual.

    name  architecture, with the instruction or the library's operand conversion where that matters
    model the unit, or the composition, of `datapath` that stands for it
    out   "float16": only of products with that output and accumulator; "" every other
    """

    name: str
    formats: tuple[str, ...]
    bits: int | str
    bits_apart: int | str
    survivors: tuple[int, ...]
    rounding: tuple[int, int]
    model: str
    more: dict[str, Answer] = field(default_factory=dict)
    out: str = ""

    def answers(self, fmt: str) -> dict[str, Answer]:
        """Every answer that is known for that format, float32 output (float64 for float64 operands)."""
        wide = fmt in ("bfloat16", "float32", "tfloat32")
        known: dict[str, Answer] = {
            "alignment_bits": self.bits, "alignment_bits_apart": self.bits_apart, "survivors": self.survivors, "rounding": self.rounding,
            "tiny_accumulator": (0, 0), "input_subnormals": True, "integers_exact": True,
        }  # fmt: skip
        if isinstance(self.bits, int):
            known["alignment_rounding"] = (1, -1)
        if wide or fmt == "float64":
            known["output_subnormals"] = True
        if wide:
            known["wide_exponents"] = "0"
        if fmt == "float32":
            known["operand_rounding"] = (6, 4, 12, 1)
        if fmt == "float16":
            known["half_accumulation"] = 2048 if self.out == "float16" else 2175
        if self.out == "float16":
            known["overflow"] = "inf"
        if fmt in (*FP8, *FNUZ):
            known["fp8_encoding"] = "fnuz" if fmt in FNUZ else "ocp"
        if fmt not in FNUZ:
            known["negative_zero"] = "+0"
        if fmt in ("float16", "bfloat16", "float32", "tfloat32", "float64", "float8_e5m2"):
            known["infinity_minus_infinity"] = known["zero_times_infinity"] = "nan"
        return {k: v for k, v in {**known, **self.more}.items() if k in known}


_RZ, _RNE, _LOST = (1, -1), (2, -2), (0, 0)
_FLOORED: dict[str, Answer] = {"tiny_accumulator": (-1, 0), "wide_exponents": "nan"}
_CHAIN: dict[str, Answer] = {"wide_exponents": "inf"}
_COMPLEMENT: dict[str, Answer] = {"tiny_accumulator": (1, 0), "integers_exact": False}  # 1 + (−1) is −2^-24 there
_RNE_TF32: dict[str, Answer] = {"operand_rounding": (8, 0, 16, 0)}

EXPECTATIONS: tuple[Expectation, ...] = (
    Expectation("volta", ("float16",), 23, 23, BY_4, _LOST, "volta"),
    Expectation("turing", ("float16",), 24, 24, BY_8, _RZ, "turing"),
    Expectation("ampere", HALVES, 24, 24, BY_8, _RZ, "ampere"),
    Expectation("ampere", ("tfloat32",), 24, 24, BY_4, _RZ, "ampere"),
    Expectation("ampere, operands rounded to TF32", ("float32",), 24, 24, BY_4, _RZ, "tf32rne T4.24.23", _RNE_TF32),
    Expectation("ada", HALVES, 24, 24, BY_8, _RZ, "ada"),
    Expectation("ada", ("tfloat32",), 24, 24, BY_4, _RZ, "ada"),
    Expectation("ada", FP8, 13, 13, BY_16, _LOST, "ada"),
    Expectation("hopper", HALVES, 25, 25, BY_16, _RZ, "hopper"),
    Expectation("hopper", ("tfloat32",), 25, 25, BY_8, _RZ, "hopper"),
    Expectation("hopper, operands rounded to TF32", ("float32",), 25, 25, BY_8, _RZ, "tf32rne T8.25.23", _RNE_TF32),
    Expectation("hopper", FP8, 13, 13, BY_32, _LOST, "hopper"),
    Expectation("hopper/mma.sync", FP8, EXACT, 25, (48, 32, 32, 48, 48, 48, 0), _RNE, "hopper/mma.sync"),
    Expectation("blackwell", HALVES, 25, 25, BY_16, _RZ, "blackwell"),
    Expectation("blackwell", ("tfloat32",), 25, 25, BY_8, _RZ, "blackwell"),
    Expectation("blackwell, operands rounded to TF32", ("float32",), 25, 25, BY_8, _RZ, "tf32rne T8.25.23", _RNE_TF32),
    Expectation("blackwell", FP8, 25, 25, BY_32, _RZ, "blackwell", {"tiny_accumulator": (-1, 0)}),
    Expectation("cdna1", ("float16",), EXACT, EXACT, (62, 62, 62, 59, 55, 47, 31), _RNE, "cdna1"),
    Expectation("cdna1", ("bfloat16",), EXACT, EXACT, (62, 61, 61, 59, 55, 47, 31), _RNE, "cdna1"),
    Expectation("cdna2", ("float16",), EXACT, 24, (62, 60, 60, 56, 52, 44, 28), _RNE, "cdna2", {"input_subnormals": False}),
    Expectation("cdna2", ("bfloat16",), EXACT, 24, (62, 60, 60, 56, 52, 44, 28), _RNE, "cdna2",
                {"input_subnormals": False, "output_subnormals": False, "wide_exponents": "nan"}),
    Expectation("cdna2/mfma.bf16", ("bfloat16",), EXACT, 24, (62, 60, 60, 58, 54, 46, 30), _RNE, "cdna2/mfma.bf16",
                {"input_subnormals": False, "output_subnormals": False, "wide_exponents": "nan"}),
    Expectation("cdna3", HALVES, 24, 24, BY_8, _RNE, "cdna3", _FLOORED),
    Expectation("cdna3", ("tfloat32",), 24, 24, BY_4, _RNE, "cdna3", _FLOORED),
    Expectation("cdna3, operands cut to TF32", ("float32",), 24, 24, BY_4, _RNE, "tf32rz TR4",
                {**_FLOORED, "operand_rounding": (0, 0, 8, 0)}),
    Expectation("cdna3", FNUZ, 24, 24, BY_16, _RNE, "cdna3", {"tiny_accumulator": (-1, 0)}),
    Expectation("rdna3/wmma", ("float16",), EXACT, EXACT, RDNA3, (2, -1), "rdna3/wmma", _COMPLEMENT),
    Expectation("rdna3/wmma", ("bfloat16",), EXACT, EXACT, RDNA3, (2, -1), "rdna3/wmma",
                {**_COMPLEMENT, "input_subnormals": False, "output_subnormals": False, "wide_exponents": "-inf"}),
    Expectation("rdna4/wmma", HALVES, 24, 24, (60, 60, 60, 52, 56, 44, 28), _RNE, "rdna4/wmma", {"alignment_rounding": (1, -2)}),
    Expectation("rdna4/wmma.w64", HALVES, 24, 24, BY_4, _RNE, "rdna4/wmma.w64", {"alignment_rounding": (1, -2)}),
    Expectation("fused multiply-adds in order", (*HALVES, *FP8, "float32"), EXACT, 23, IN_ORDER, _LOST, "F", _CHAIN),
    Expectation("fused multiply-adds in order", ("float64",), EXACT, EXACT, IN_ORDER, _LOST, "D"),
    *(Expectation(f"{name}, float16 accumulator", ("float16",), bits, bits, survivors, _LOST, name, out="float16")
      for name, bits, survivors in (("volta", 23, BY_4), ("turing", 24, BY_8), ("ampere", 24, BY_8), ("ada", 24, BY_8),
                                    ("hopper", 25, BY_16), ("blackwell", 25, BY_16))),
)  # fmt: skip


def same_answer(found: Answer, expected: Answer) -> bool:
    """Whether an answer is the expected one; "≥ n" stands for every answer that reached the end of what a format can ask."""
    if isinstance(expected, str) and expected.startswith("≥"):
        return isinstance(found, str) and found.startswith("≥")
    return found == expected
