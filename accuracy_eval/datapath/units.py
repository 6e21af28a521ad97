"""Matrix units: one row per architecture, instruction and operand formats, with where the rule comes from and how sure it is.

`find_unit` accepts every name of an architecture or part (`hopper`, `sm_90`, `H200`, `model:hopper`, `gfx942`, `MI300X`), with an
instruction after a slash where it matters: `hopper/mma.sync`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accuracy_eval.datapath import rules
from accuracy_eval.datapath.rules import Rule, half, tfdpa
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Format, get_format
from accuracy_eval.parts import CPU_UNIT, resolve_unit

Certainty = Literal["silicon", "statistics", "model", "unknown"]

CERTAINTIES: dict[str, str] = {
    "silicon": "bit for bit against outputs of the hardware",
    "statistics": "against published statistics of hardware outputs",
    "model": "from published models, not checked here",
    "unknown": "not known: probe it",
}


@dataclass(frozen=True)
class Unit:
    """One row.

    arch, instruction  `arch/instruction` is its name
    formats    operand formats; either operand may have any of them
    rule       its arithmetic; None where it is not known
    certainty  a key of CERTAINTIES
    scales     formats of block scales the instruction takes, with the products that share one
    group      k's whose order inside one instruction differs from increasing, in the language's spelling; "" increasing
    nan        code of the NaN it makes; payloads of CPU and AMD units depend on operands, so only NaN-ness is compared
    """

    arch: str
    instruction: str
    formats: tuple[str, ...]
    rule: Rule | None
    certainty: Certainty
    source: str
    scales: tuple[tuple[str, int], ...] = ()
    group: str = ""
    nan: int = 0x7FFFFFFF

    @property
    def name(self) -> str:
        return f"{self.arch}/{self.instruction}"

    @property
    def out(self) -> str:
        """Format of the accumulator and the result; "" where the rule is not known."""
        return self.rule.accumulator if self.rule else ""


_16 = ("float16", "bfloat16")
_8 = ("float8_e4m3fn", "float8_e5m2")
_8Z = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_864 = (*_8, "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
_M2 = "MMA-Sim v2, arXiv 2511.10909"
_KM = f"{_M2}; Khattak & Mikaitis, arXiv 2512.07004"
_H200 = f"{_KM}; every GEMM output of an H200 looked at (torch 2.11, cuBLAS 13.0)"
_IEEE = "IEEE 754-2019 fusedMultiplyAdd, increasing k"
_MI300 = f"{_M2}; statistics of six MI300X records (github.com/jeffdaily/tf32_analysis)"
_RDNA = "raw captures of Radeon PRO W7900 and AI PRO R9700 (ROCm/rocm-systems, rocjitsu float_dot fixtures)"
_NOT_CAPTURED = "the captures of R9700 cover float16 and bfloat16 only"


def _fma(arch: str, matrix: bool, certainty: Certainty = "model") -> tuple[Unit, ...]:
    """float32 and float64 rows of an NVIDIA architecture; matrix: whether float64 has a matrix instruction."""
    return (
        Unit(arch, "ffma", ("float32",), rules.FMA, certainty, _IEEE),
        Unit(arch, "dmma" if matrix else "dfma", ("float64",), rules.FMA64, certainty, _IEEE),
    )


def _both(arch: str, instruction: str, formats: tuple[str, ...], L: int, F: int, e0: int, e0h: int, certainty: Certainty, source: str,
          P: int = 23) -> tuple[Unit, ...]:  # fmt: skip
    """A T-FDPA row and, where it takes float16 or fp8, its row with a float16 accumulator."""
    narrow = tuple(f for f in formats if f not in ("bfloat16", "tfloat32"))
    rows = [Unit(arch, instruction, formats, tfdpa(L, F, P, e0), certainty, source)]
    if narrow:
        rows.append(Unit(arch, instruction, narrow, half(L, F, e0h), "model", _KM))
    return tuple(rows)


UNITS: tuple[Unit, ...] = (
    *_both("volta", "mma", ("float16",), 4, 23, -131, -19, "model", _KM),
    *_fma("volta", False),
    *_both("turing", "mma", ("float16",), 8, 24, -132, -20, "model", _KM),
    *_fma("turing", False),
    *_both("ampere", "mma", _16, 8, 24, -132, -20, "model", _KM),
    *_both("ampere", "mma", ("tfloat32",), 4, 24, -132, -20, "model", _KM),
    *_fma("ampere", True),
    *_both("ada", "mma", _16, 8, 24, -132, -20, "model", _KM),
    *_both("ada", "mma", ("tfloat32",), 4, 24, -132, -20, "model", _KM),
    *_both("ada", "mma", _8, 16, 13, -132, -20, "model", _KM, P=13),
    *_fma("ada", False),
    *_both("hopper", "wgmma", _16, 16, 25, -133, -21, "silicon", _H200),
    *_both("hopper", "wgmma", ("tfloat32",), 8, 25, -133, -21, "silicon", _H200),
    *_both("hopper", "wgmma", _8, 32, 13, -133, -21, "silicon", _H200, P=13),
    Unit("hopper", "mma.sync", _8, rules.EMULATED, "model", f"{_M2}: 0 of 5000 results differ"),
    Unit("hopper", "mma.sync", _8, rules.EMULATED_HALF, "model", f"{_M2}: 0 of 5000 results differ"),
    *_both("hopper", "mma.sync", _16, 16, 25, -133, -21, "silicon", _H200),
    *_both("hopper", "mma.sync", ("tfloat32",), 8, 25, -133, -21, "silicon", _H200),
    *_fma("hopper", True, "silicon"),
    *_both("blackwell", "tcgen05", _16, 16, 25, -133, -21, "model", _KM),
    *_both("blackwell", "tcgen05", ("tfloat32",), 8, 25, -133, -21, "model", _KM),
    *_both("blackwell", "tcgen05", _864, 32, 25, -133, -21, "model", _KM),
    Unit("blackwell", "mxf4nvf4", ("float4_e2m1fn",), rules.GST, "model", _M2, (("float8_e8m0fnu", 32), ("float8_ue4m3", 16))),
    Unit("blackwell", "mxf8f6f4", _864, tfdpa(32, 25), "model", _M2, (("float8_e8m0fnu", 32),)),
    Unit("blackwell", "mma.sync", _8, rules.EMULATED, "model", f"{_M2}: B200, where mma.sync has no fp8 unit"),
    *_fma("blackwell", True),
    Unit("cdna1", "mfma", ("float16",), rules.E4, "model", _KM),
    Unit("cdna1", "mfma", ("bfloat16",), rules.E2, "model", _KM),
    Unit("cdna1", "mfma", ("float32",), rules.FMA, "model", _M2),
    Unit("cdna2", "mfma", _16, rules.Z4, "model", f"{_M2}; bfloat16 as bf16_1k"),
    Unit("cdna2", "mfma.bf16", ("bfloat16",), rules.Z2, "model", f"{_M2}; the instruction CDNA1 had, without _1k"),
    Unit("cdna2", "mfma", ("float32",), rules.FMA, "model", _M2),
    Unit("cdna2", "mfma", ("float64",), rules.FMA64, "model", _M2),
    Unit("cdna3", "mfma", _16, rules.TR8, "model", _M2),
    Unit("cdna3", "mfma", ("tfloat32",), rules.TR4, "statistics", _MI300),
    Unit("cdna3", "mfma", _8Z, rules.GTR16, "model", _M2),
    Unit("cdna3", "mfma", ("float32",), rules.FMA, "model", _M2),
    Unit("cdna3", "mfma", ("float64",), rules.FMA64, "model", _M2),
    Unit("cdna4", "mfma", (*_16, *_864), None, "unknown", "no model and no raw outputs are public"),
    Unit("cdna4", "mfma", ("float32",), rules.FMA, "model", "as CDNA1 to CDNA3"),
    Unit("cdna4", "mfma", ("float64",), rules.FMA64, "model", "as CDNA2 and CDNA3"),
    Unit("gfx1250", "wmma", (*_16, *_864), None, "unknown", "no model and no raw outputs are public"),
    Unit("rdna3", "wmma", _16, rules.W3, "silicon", _RDNA, nan=0xFFC00000),
    Unit("rdna4", "wmma", _16, rules.W4, "silicon", f"{_RDNA}; wave32", group="lanes2x8.4", nan=0xFFC00000),
    Unit("rdna4", "wmma.w64", _16, rules.W4, "silicon", f"{_RDNA}; wave64", nan=0xFFC00000),
    Unit("rdna4", "wmma", _8, None, "unknown", _NOT_CAPTURED),
    Unit("rdna4", "wmma.w64", _8, None, "unknown", _NOT_CAPTURED),
    Unit(CPU_UNIT, "fma", ("float32",), rules.FMA, "silicon", _IEEE, nan=0x7FC00000),
    Unit(CPU_UNIT, "fma", ("float64",), rules.FMA64, "silicon", _IEEE, nan=0x7FF8000000000000),
)  # fmt: skip

NAN = {"float16": 0x7FFF, "float32": 0x7FFFFFFF, "float64": 0x7FFFFFFFFFFFFFFF}  # what NVIDIA units write


def units_of(name: str) -> tuple[Unit, ...]:
    """Every row of an architecture or part name, or of one of its instructions. UsageError where there is none."""
    arch, _, instruction = resolve_unit(name).partition("/")
    rows = tuple(u for u in UNITS if u.arch == arch and instruction in ("", u.instruction))
    if not rows:
        raise unknown("matrix instruction", name, sorted({u.name for u in UNITS if u.arch == arch}) or sorted({u.arch for u in UNITS}))
    return rows


def find_unit(name: str, format: str | Format | tuple[str, str], *, out: str | None = None, scaled: bool = False) -> Unit:
    """The row that multiplies operands of `format` (one, or a pair) on that architecture, part or instruction.

    out     "float16" picks the row with a float16 accumulator; other formats are made from the wider accumulator
    scaled  whether operands carry block scales
    UsageError where no row takes these formats, and where its arithmetic is not known: nothing is invented.
    """
    pair = format if isinstance(format, tuple) else (format, format)
    wanted = tuple(get_format(f).name for f in pair)
    if wanted == ("tfloat32", "float32") or wanted == ("float32", "tfloat32"):
        wanted = ("tfloat32", "tfloat32")
    rows = units_of(name)
    fits = [u for u in rows if all(f in u.formats for f in wanted) and bool(u.scales) == scaled]
    if not fits:
        have = sorted({f"{u.name} {'/'.join(u.formats)}{' with block scales' if u.scales else ''}" for u in rows})
        raise UsageError(
            f"unit {name!r} has no instruction for {' × '.join(wanted)}{' with block scales' if scaled else ''}; it has: {'; '.join(have)}"
        )
    known = [u for u in fits if u.rule is not None]
    if not known:
        raise UsageError(
            f"the arithmetic of {fits[0].name} for {' × '.join(wanted)} is not known ({fits[0].source}); "
            "probe the device and explain its outputs instead of modelling them"
        )
    half_wanted = out is not None and get_format(out).name == "float16"
    first = known[0]
    same = [u for u in known if u.instruction == first.instruction and (u.out == "float16") == half_wanted]
    return same[0] if same else first


def architectures() -> tuple[str, ...]:
    """Architectures with at least one row, in the table's order."""
    return tuple(dict.fromkeys(u.arch for u in UNITS))
